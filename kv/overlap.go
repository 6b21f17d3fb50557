package kv

import (
	"cmp"
	"fmt"
	"slices"
)

// lattice is the bytes of one tensor: rows that repeat in up to three
// directions, the largest stride first, each at least as large as what lies
// within it.
type lattice struct {
	component string // "" is the metadata rows
	layer     int
	offset    uint64
	strides   [3]uint64
	spans     [4]uint64 // of the whole, and of what is within 1, 2, 3 strides
}

func (l *lattice) String() string {
	if l.component == "" {
		return "metadata rows"
	}
	return fmt.Sprintf("%s layer %d", l.component, l.layer)
}

// latticeOf is a tensor of a shard that was found valid by itself.
func latticeOf(s *Shard, t *LayerTensor, c *Component) lattice {
	l := lattice{component: s.Component, layer: t.Layer, offset: t.Offset}
	counts := [3]uint32{t.Pages, s.pageRows(c), uint32(s.Heads.High - s.Heads.Low)}
	l.strides = [3]uint64{s.PageStride, s.RowStride, s.HeadStride}
	if l.strides[1] < l.strides[2] && counts[2] > 1 || counts[1] == 1 {
		counts[1], counts[2] = counts[2], counts[1]
		l.strides[1], l.strides[2] = l.strides[2], l.strides[1]
	}
	l.spans[3] = c.HeadBytes
	for n := 2; n >= 0; n-- {
		l.spans[n] = l.spans[n+1] + uint64(counts[n]-1)*l.strides[n]
		if counts[n] == 1 {
			l.strides[n] = 0
		}
	}
	return l
}

// overlaps refuses tensors of an engine that share a byte. Tensors may be
// interleaved (by page, by token, by head) if they repeat with the same strides;
// where that is not so, and they are not apart, they count as overlapping.
func (v *validator) overlaps(e *Engine) {
	regions := make([][]lattice, len(e.RegionBytes))
	for n := range e.Shards {
		s := &e.Shards[n]
		c := v.i.Model.component(s.Component)
		for k := range s.Layers {
			t := &s.Layers[k]
			regions[t.Region] = append(regions[t.Region], latticeOf(s, t, c))
		}
	}
	if m := e.Meta; m.Rows > 0 && uint64(m.Region) < uint64(len(regions)) {
		if end, ok := extent(m.Offset, m.Rows, m.RowBytes, m.RowBytes); ok {
			w := end - m.Offset
			regions[m.Region] = append(regions[m.Region], lattice{offset: m.Offset, spans: [4]uint64{w, w, w, w}})
		}
	}
	for region, ls := range regions {
		if a, b, found := collision(ls, 0); found {
			v.refuse("offset", "", a+", "+b, "rank %v: %s and %s overlap in region %d: every tensor needs bytes of its own", e.Rank, a, b, region)
		}
	}
}

// collision finds two tensors that share a byte, looking at what lies within
// depth strides of each.
func collision(ls []lattice, depth int) (a, b string, found bool) {
	slices.SortStableFunc(ls, func(x, y lattice) int { return cmp.Compare(x.offset, y.offset) })
	for lo := 0; lo < len(ls); {
		// A cluster is tensors whose intervals hang together.
		end := ls[lo].offset + ls[lo].spans[depth]
		hi := lo + 1
		for hi < len(ls) && ls[hi].offset < end {
			end = max(end, ls[hi].offset+ls[hi].spans[depth])
			hi++
		}
		if hi-lo > 1 {
			if a, b, found = within(ls[lo:hi], depth); found {
				return a, b, true
			}
		}
		lo = hi
	}
	return "", "", false
}

// within takes a cluster one stride deeper: it has no collision if all tensors
// repeat with the same stride and do not collide within it.
func within(ls []lattice, depth int) (a, b string, found bool) {
	if depth == len(ls[0].strides) {
		return ls[0].String(), ls[1].String(), true
	}
	stride, base := ls[0].strides[depth], ls[0].offset
	inner := slices.Clone(ls)
	for n := range inner {
		l := &inner[n]
		if l.strides[depth] != stride {
			return ls[0].String(), l.String(), true
		}
		if stride > 0 {
			l.offset = (l.offset - base) % stride
			if l.offset+l.spans[depth+1] > stride {
				return ls[0].String(), l.String(), true
			}
		}
	}
	return collision(inner, depth+1)
}
