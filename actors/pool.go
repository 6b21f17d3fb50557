package actors

import (
	"fmt"
	"slices"
)

// Pool is the free pages of an engine, or its free metadata rows. It gives the
// lowest pages that are free, in as few runs as it can: long runs make small
// plans. The engine actor owns it.
//
// Invariants: free is ascending, its extents neither overlap nor touch, and
// their lengths sum to Free().
type Pool struct {
	total uint32
	left  uint32
	free  []extent
}

type extent struct{ first, count uint32 }

// NewPool is a pool of pages 0 to total-1, all free.
func NewPool(total uint32) *Pool {
	p := &Pool{total: total, left: total}
	if total > 0 {
		p.free = []extent{{0, total}}
	}
	return p
}

// Total is how many pages there are; Free, how many of them are free.
func (p *Pool) Total() uint32 { return p.total }
func (p *Pool) Free() uint32  { return p.left }

// Take takes n pages: a run that holds them all if there is one, else the
// longest ones first. False: fewer than n are free, and none is taken.
func (p *Pool) Take(n uint32) ([]uint32, bool) {
	if n > p.left {
		return nil, false
	}
	pages := make([]uint32, 0, n)
	for need := n; need > 0; need = n - uint32(len(pages)) {
		pages = p.takeFrom(p.choose(need), need, pages)
	}
	p.left -= n
	return pages, true
}

// choose is the first extent that holds n pages, else the longest.
func (p *Pool) choose(n uint32) int {
	longest := 0
	for i, e := range p.free {
		if e.count >= n {
			return i
		}
		if e.count > p.free[longest].count {
			longest = i
		}
	}
	return longest
}

func (p *Pool) takeFrom(i int, n uint32, pages []uint32) []uint32 {
	e := &p.free[i]
	n = min(n, e.count)
	for k := range n {
		pages = append(pages, e.first+k)
	}
	e.first, e.count = e.first+n, e.count-n
	if e.count == 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
	return pages
}

// Give returns pages that Take gave. It panics on a page that is free already or
// was never in the pool: a page with two owners is the fault that this project
// exists to prevent.
func (p *Pool) Give(pages []uint32) {
	sorted := slices.Sorted(slices.Values(pages))
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n] == sorted[n-1]+1 {
			n++
		}
		p.giveRun(extent{sorted[0], uint32(n)})
		sorted = sorted[n:]
	}
	p.left += uint32(len(pages))
}

func (p *Pool) giveRun(e extent) {
	i, _ := slices.BinarySearchFunc(p.free, e.first, func(f extent, first uint32) int {
		return int(int64(f.first) - int64(first))
	})
	end := uint64(e.first) + uint64(e.count)
	if end > uint64(p.total) ||
		i < len(p.free) && end > uint64(p.free[i].first) ||
		i > 0 && p.free[i-1].first+p.free[i-1].count > e.first {
		panic(fmt.Sprintf("pool: pages %d to %d are given back, but not all of them were taken", e.first, end-1))
	}
	left := i > 0 && p.free[i-1].first+p.free[i-1].count == e.first
	right := i < len(p.free) && uint64(p.free[i].first) == end
	switch {
	case left && right:
		p.free[i-1].count += e.count + p.free[i].count
		p.free = slices.Delete(p.free, i, i+1)
	case left:
		p.free[i-1].count += e.count
	case right:
		p.free[i].first, p.free[i].count = e.first, p.free[i].count+e.count
	default:
		p.free = slices.Insert(p.free, i, e)
	}
}
