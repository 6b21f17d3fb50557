package kv

// pattern is the rows of one page of a move: Bytes at i*Stride[0] + j*Stride[1].
type pattern struct {
	bytes          uint64
	count          [2]uint32
	source, target [2]uint64
}

// dim is one direction in which rows repeat.
type dim struct {
	count          uint32
	source, target uint64
}

// rowsOf is the pattern of count x heads rows of rowBytes, with whatever is
// contiguous on both sides made one row. The outer direction is the one with the
// larger stride at the target, so that the rows of a grant nest.
func rowsOf(count, heads uint32, rowBytes uint64, source, target strides) pattern {
	inner := dim{heads, source.head, target.head}
	outer := dim{count, source.step, target.step}
	if outer.count == 1 || (inner.count > 1 && outer.target < inner.target) {
		inner, outer = outer, inner
	}
	p := pattern{bytes: rowBytes}
	// A direction of one row is none, and one without a gap makes rows longer.
	if inner.count == 1 || p.grow(inner) {
		inner = outer
		outer = dim{count: 1}
		if inner.count == 1 || p.grow(inner) {
			inner = dim{count: 1}
		}
	} else if outer.count > 1 && outer.source == uint64(inner.count)*inner.source && outer.target == uint64(inner.count)*inner.target {
		inner.count *= outer.count
		outer = dim{count: 1}
	}
	if outer.count == 1 {
		// One direction stands first; the unused one has stride 0.
		inner, outer = dim{count: 1}, inner
	}
	p.count = [2]uint32{outer.count, inner.count}
	p.source = [2]uint64{outer.source, inner.source}
	p.target = [2]uint64{outer.target, inner.target}
	return p
}

// grow makes the row as long as the direction, if it goes on without a gap on
// both sides.
func (p *pattern) grow(d dim) bool {
	if d.source != p.bytes || d.target != p.bytes {
		return false
	}
	p.bytes *= uint64(d.count)
	return true
}
