package verbs

// slots gives grants the numbers that immediate data has room for: a slot, and which
// life of it. A slot that is free again waits behind all others that are, so that its
// next life is as late as can be. Its user locks it.
type slots struct {
	entries []slot
	free    []uint32 // oldest first
}

type slot struct {
	grant *grant // nil: free
	life  uint32
}

// slotsSpare is how many slots are released after one before it is used again, until
// there are as many slots as there can be.
const slotsSpare = 1024

// take gives a grant a number, false when there are too many.
func (s *slots) take(g *grant) (immediate uint32, ok bool) {
	i := uint32(len(s.entries))
	switch {
	case len(s.free) <= slotsSpare && i < 1<<slotBits:
		s.entries = append(s.entries, slot{})
	case len(s.free) == 0:
		return 0, false
	default:
		i = s.free[0]
		s.free = s.free[1:]
	}
	s.entries[i].grant = g
	return s.entries[i].life<<slotBits | i, true
}

// find is the grant of a number, nil when that life is over.
func (s *slots) find(immediate uint32) *grant {
	i, life := immediate&(1<<slotBits-1), immediate>>slotBits
	if int(i) >= len(s.entries) || s.entries[i].life != life {
		return nil
	}
	return s.entries[i].grant
}

// release ends a life.
func (s *slots) release(immediate uint32) {
	i := immediate & (1<<slotBits - 1)
	x := &s.entries[i]
	x.grant, x.life = nil, (x.life+1)&(1<<lifeBits-1)
	s.free = append(s.free, i)
}
