package shm

import (
	"cmp"
	"slices"
)

const arenaAlign = 64 // a cache line

// span is bytes of the arena.
type span struct{ offset, bytes uint64 }

// arena gives out parts of a range of bytes: the first that is large enough, and
// what comes back is joined with its neighbours. Its user locks it.
//
// Invariant: free is in order of offset, and no two spans of it touch.
type arena struct {
	free []span
}

func newArena(offset, bytes uint64) arena { return arena{free: []span{{offset, bytes}}} }

// take returns a span of at least n bytes; false when there is none.
func (a *arena) take(n uint64) (span, bool) {
	n = (n + arenaAlign - 1) &^ (arenaAlign - 1)
	for i := range a.free {
		f := &a.free[i]
		if f.bytes < n {
			continue
		}
		s := span{f.offset, n}
		f.offset += n
		if f.bytes -= n; f.bytes == 0 {
			a.free = slices.Delete(a.free, i, i+1)
		}
		return s, true
	}
	return span{}, false
}

// give takes a span back.
func (a *arena) give(s span) {
	i, _ := slices.BinarySearchFunc(a.free, s, func(f, s span) int { return cmp.Compare(f.offset, s.offset) })
	before := i > 0 && a.free[i-1].offset+a.free[i-1].bytes == s.offset
	after := i < len(a.free) && s.offset+s.bytes == a.free[i].offset
	switch {
	case before && after:
		a.free[i-1].bytes += s.bytes + a.free[i].bytes
		a.free = slices.Delete(a.free, i, i+1)
	case before:
		a.free[i-1].bytes += s.bytes
	case after:
		a.free[i].offset = s.offset
		a.free[i].bytes += s.bytes
	default:
		a.free = slices.Insert(a.free, i, s)
	}
}
