package transfer

import "kvferry/kv"

// split makes writes of at most so many bytes out of copies, in order. A copy
// that is larger is cut between its units; a single unit never is.
func split(copies []kv.Copy, most uint64) [][]kv.Copy {
	var out [][]kv.Copy
	var write []kv.Copy
	room := most
	flush := func() {
		if len(write) > 0 {
			out = append(out, write)
		}
		write, room = nil, most
	}
	for i := range copies {
		c := copies[i]
		unit := c.Bytes * uint64(c.Count[0]) * uint64(c.Count[1])
		if n := unit * units(c.Runs); n <= room || n <= most {
			if n > room {
				flush()
			}
			write = append(write, c)
			room -= n
			continue
		}
		rest := c.Runs
		for len(rest) > 0 {
			fit := uint64(0)
			if unit > 0 {
				fit = room / unit
			}
			if fit == 0 {
				flush()
				fit = max(1, most/max(1, unit))
			}
			c.Runs, rest = cutRuns(rest, fit)
			write = append(write, c)
			if n := unit * units(c.Runs); n < room {
				room -= n
			} else {
				flush()
			}
		}
	}
	flush()
	return out
}

func units(runs []kv.PairRun) uint64 {
	n := uint64(0)
	for _, r := range runs {
		n += uint64(r.Count)
	}
	return n
}

// cutRuns is the first n units of runs, and the rest. It changes no run.
func cutRuns(runs []kv.PairRun, n uint64) (head, rest []kv.PairRun) {
	for i, r := range runs {
		if uint64(r.Count) < n {
			n -= uint64(r.Count)
			continue
		}
		if uint64(r.Count) == n {
			return runs[: i+1 : i+1], runs[i+1:]
		}
		first, second := r, r
		first.Count = uint32(n)
		second.Source += first.Count * r.SourceStep
		second.Target += first.Count * r.TargetStep
		second.Count -= first.Count
		head = append(append(head, runs[:i]...), first)
		rest = append(append(rest, second), runs[i+1:]...)
		return head, rest
	}
	return runs, nil
}

func copyBytes(copies []kv.Copy) uint64 {
	n := uint64(0)
	for i := range copies {
		c := &copies[i]
		n += units(c.Runs) * uint64(c.Count[0]) * uint64(c.Count[1]) * c.Bytes
	}
	return n
}
