package kv

import "slices"

// Route is what the election for one room depends on: the DP rank of the
// prefill instance that computes it, the DP rank of the decode instance that
// takes it, and the room.
type Route struct {
	PrefillDP, DecodeDP int
	Room                uint64
}

// Receivers are the engines of the route's decode DP rank in roster order; the
// first is the decider. None for a DP rank beyond the size.
func (f *Fit) Receivers(r Route) []Rank { return f.decode.ranksOf(r.DecodeDP) }

// Senders are all engines of the route's prefill DP rank in roster order. None
// for a DP rank beyond the size.
func (f *Fit) Senders(r Route) []Rank { return f.prefill.ranksOf(r.PrefillDP) }

func (i *Instance) ranksOf(dp int) []Rank {
	lo, hi, ok := i.dpRange(dp)
	if !ok {
		return nil
	}
	out := make([]Rank, 0, hi-lo)
	for n := lo; n < hi; n++ {
		out = append(out, i.Engines[n].Rank)
	}
	return out
}

// dpRange is where the engines of a DP rank stand in the roster.
func (i *Instance) dpRange(dp int) (lo, hi int, ok bool) {
	if dp < 0 || dp >= i.DP {
		return 0, 0, false
	}
	lo, hi = dp*i.perDP(), (dp+1)*i.perDP()
	return lo, hi, hi <= len(i.Engines)
}

// index is where a rank stands in the roster of a valid instance.
func (i *Instance) index(r Rank) (int, bool) {
	if r.DP < 0 || r.DP >= i.DP || r.PP < 0 || r.PP >= i.PP || r.CP < 0 || r.CP >= i.CP || r.TP < 0 || r.TP >= i.TP {
		return 0, false
	}
	return ((r.DP*i.PP+r.PP)*i.CP+r.CP)*i.TP + r.TP, true
}

// elect chooses one of n who could do the same, alike on both sides, so that the
// receivers of a room, and rooms, spread over all of them. ordinal is the place
// of the receiver in its DP rank.
func elect(ordinal int, room uint64, n int) int {
	return int((uint64(ordinal)%uint64(n) + room%uint64(n)) % uint64(n))
}

// elected is a box that a receiver needs, of those rows that the writer keeps.
type elected struct {
	writer int // index into the prefill roster
	c      *Component
	layers []int // ascending
	heads  HeadRange
}

// boxes visits every box that the receiver (an index into the decode roster)
// needs, with the elected writer. Boxes are as large as their holders are the
// same, so that a plan stays small.
func (f *Fit) boxes(r Route, receiver int, visit func(elected)) {
	e := &f.decode.Engines[receiver]
	ordinal := receiver - r.DecodeDP*f.decode.perDP()
	for n := range f.components {
		c := &f.components[n]
		s := e.shard(c.Name)
		if s == nil {
			continue
		}
		for _, part := range f.held[r.PrefillDP][n] {
			for _, class := range part {
				// Most classes of many stages are none of this engine's: asked first.
				if class.layers[len(class.layers)-1] < s.Layers[0].Layer || class.layers[0] > s.Layers[len(s.Layers)-1].Layer {
					continue
				}
				layers := s.layersIn(class.layers)
				if len(layers) == 0 {
					continue
				}
				for _, sp := range class.spans {
					if heads, ok := sp.heads.intersect(s.Heads); ok {
						visit(elected{sp.holders[elect(ordinal, r.Room, len(sp.holders))], c, layers, heads})
					}
				}
			}
		}
	}
}

// place finds a receiver of the route; false for anybody else, and for
// instances that do not work together.
func (f *Fit) place(r Route, receiver Rank) (int, bool) {
	if !f.Compatible() || receiver.DP != r.DecodeDP || r.PrefillDP < 0 || r.PrefillDP >= f.prefill.DP {
		return 0, false
	}
	return f.decode.index(receiver)
}

// Candidates are the engines that write to one receiver of the route in some
// request, in roster order. The metadata writer is one of them. None for a
// receiver that is not of the route.
func (f *Fit) Candidates(r Route, receiver Rank) []Rank {
	n, ok := f.place(r, receiver)
	if !ok {
		return nil
	}
	writers := f.dataWriters(r, n)
	return f.prefill.ranks(insertSorted(writers, f.metaWriter(r, n, writers)))
}

// Writers are those of the Candidates that write to the receiver when it wants the
// tokens [prefix, length) of a request: they have a row of it, its state, or its
// metadata row.
func (f *Fit) Writers(r Route, receiver Rank, prefix, length uint64) []Rank {
	n, ok := f.place(r, receiver)
	if !ok {
		return nil
	}
	candidates := f.dataWriters(r, n)
	writers := []int{f.metaWriter(r, n, candidates)}
	pools := f.decode.Pools(receiver)
	sources := make(map[int][]Pool, len(candidates))
	f.boxes(r, n, func(b elected) {
		if _, found := slices.BinarySearch(writers, b.writer); found {
			return
		}
		if b.c.Kind == Slot {
			if b.c.needed(length) {
				writers = insertSorted(writers, b.writer)
			}
			return
		}
		if sources[b.writer] == nil {
			sources[b.writer] = f.prefill.Pools(f.prefill.Engines[b.writer].Rank)
		}
		source, target := lane{Pool: poolOf(sources[b.writer], b.c.Window)}, lane{Pool: poolOf(pools, b.c.Window)}
		if common(source, target, b.c.rowTokens(), prefix, length).count > 0 {
			writers = insertSorted(writers, b.writer)
		}
	})
	return f.prefill.ranks(writers)
}

// ranks are the ranks of engines.
func (i *Instance) ranks(engines []int) []Rank {
	out := make([]Rank, len(engines))
	for n, e := range engines {
		out[n] = i.Engines[e].Rank
	}
	return out
}

// MetaWriter is the rank of the last prefill stage that writes the metadata row
// of one receiver: one that sends to it anyway, where there is one. The zero
// rank for a receiver that is not of the route.
func (f *Fit) MetaWriter(r Route, receiver Rank) Rank {
	n, ok := f.place(r, receiver)
	if !ok {
		return Rank{}
	}
	return f.prefill.Engines[f.metaWriter(r, n, f.dataWriters(r, n))].Rank
}

// dataWriters are the elected writers of a receiver, ascending.
func (f *Fit) dataWriters(r Route, receiver int) []int {
	var out []int
	f.boxes(r, receiver, func(b elected) { out = insertSorted(out, b.writer) })
	return out
}

// insertSorted adds v to an ascending list that does not have it.
func insertSorted(list []int, v int) []int {
	at, found := slices.BinarySearch(list, v)
	if found {
		return list
	}
	return slices.Insert(list, at, v)
}

// metaWriter elects among the last stage, those who write anyway before others.
func (f *Fit) metaWriter(r Route, receiver int, writers []int) int {
	last := f.prefill.CP * f.prefill.TP
	hi := (r.PrefillDP + 1) * f.prefill.perDP()
	var could []int
	for _, w := range writers {
		if w >= hi-last {
			could = append(could, w)
		}
	}
	ordinal := receiver - r.DecodeDP*f.decode.perDP()
	if len(could) > 0 {
		return could[elect(ordinal, r.Room, len(could))]
	}
	return hi - last + elect(ordinal, r.Room, last)
}
