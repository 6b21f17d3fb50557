package rdma

import (
	"cmp"
	"slices"
	"sort"
)

// unitSet answers whether units are in a list of runs. It never lists units.
type unitSet struct {
	runs []Run    // by First; single units and runs without gaps are joined
	last []uint32 // last[i] is the largest unit of runs[:i+1]
}

// listedMax is the longest run with gaps of which the units are listed. Pages in no
// order pack into runs of two or three far apart; each would span the others, and
// every question would walk past all of them.
const listedMax = 4

// newUnitSet is the set of checked runs.
func newUnitSet(runs []Run) *unitSet {
	sorted := make([]Run, 0, len(runs))
	for _, r := range runs {
		if r.Count > listedMax || r.Step == 1 {
			sorted = append(sorted, r)
			continue
		}
		for i := range r.Count {
			sorted = append(sorted, Run{First: r.First + i*r.Step, Count: 1, Step: 1})
		}
	}
	slices.SortFunc(sorted, func(a, b Run) int { return cmp.Compare(a.First, b.First) })
	s := &unitSet{runs: sorted[:0]}
	for _, r := range sorted {
		if r.Count == 1 {
			r.Step = 1
		}
		if n := len(s.runs); n > 0 && r.Step == 1 {
			if p := &s.runs[n-1]; p.Step == 1 && uint64(r.First) <= uint64(p.First)+uint64(p.Count) {
				p.Count = max(p.Count, r.First-p.First+r.Count)
				continue
			}
		}
		s.runs = append(s.runs, r)
	}
	s.runs = slices.Clip(s.runs)
	s.last = make([]uint32, len(s.runs))
	top := uint32(0)
	for i, r := range s.runs {
		top = max(top, r.First+(r.Count-1)*r.Step)
		s.last[i] = top
	}
	return s
}

// bounds are the smallest and the largest unit.
func (s *unitSet) bounds() (first, last uint32) { return s.runs[0].First, s.last[len(s.last)-1] }

// follow is how many of the units u, u+step, ... are in the set before the first
// that is not, n at most. Where runs have other steps it may say fewer, but at
// least 1 if u is in the set.
func (s *unitSet) follow(u uint64, n, step uint64) uint64 {
	i := sort.Search(len(s.runs), func(i int) bool { return uint64(s.runs[i].First) > u }) - 1
	for ; i >= 0 && uint64(s.last[i]) >= u; i-- {
		r := &s.runs[i]
		last := uint64(r.First) + uint64(r.Count-1)*uint64(r.Step)
		if u > last || (u-uint64(r.First))%uint64(r.Step) != 0 {
			continue
		}
		switch {
		case step == 0:
			return n
		case step%uint64(r.Step) == 0:
			return min(n, (last-u)/step+1)
		}
		return min(n, 1)
	}
	return 0
}
