package kv

import (
	"fmt"
	"slices"
	"strings"
)

// Layout is the order in which the rows of a tensor follow each other, from the
// outermost direction to the innermost: nhd, hnd, or an order of layer, page,
// part, row and head, with commas. A part is one of the components that share a
// tensor; it stands outside of head. A page holds its rows and heads, so it stands
// outside of both.
type Layout string

const (
	NHD Layout = "nhd" // layer,page,row,part,head
	HND Layout = "hnd" // layer,page,part,head,row
)

// axis is one direction of a layout.
type axis string

const (
	axisLayer axis = "layer"
	axisPage  axis = "page"
	axisPart  axis = "part"
	axisRow   axis = "row"
	axisHead  axis = "head"
)

// axes is the layout, outermost first; an error says what is wrong with it.
func (l Layout) axes() ([]axis, error) {
	switch l {
	case NHD:
		return []axis{axisLayer, axisPage, axisRow, axisPart, axisHead}, nil
	case HND:
		return []axis{axisLayer, axisPage, axisPart, axisHead, axisRow}, nil
	}
	var out []axis
	for name := range strings.SplitSeq(string(l), ",") {
		out = append(out, axis(strings.TrimSpace(name)))
	}
	wrong := func() ([]axis, error) {
		return nil, fmt.Errorf("layout is %q, want nhd or hnd, or an order of layer, page, row and head with page outside of row and head (and part outside of head), as in page,layer,row,head", string(l))
	}
	if !slices.Contains(out, axisPart) {
		out = slices.Insert(out, max(0, slices.Index(out, axisHead)), axisPart)
	}
	for _, a := range []axis{axisLayer, axisPage, axisPart, axisRow, axisHead} {
		if !slices.Contains(out, a) {
			return wrong()
		}
	}
	at := func(a axis) int { return slices.Index(out, a) }
	if len(out) != 5 || at(axisPart) > at(axisHead) || at(axisPage) > min(at(axisRow), at(axisHead)) {
		return wrong()
	}
	return out, nil
}

// ParseLayout reads a layout.
func ParseLayout(s string) (Layout, error) {
	_, err := Layout(s).axes()
	return Layout(s), err
}

// tensor is components that lie in one tensor of an engine, side by side.
type tensor struct {
	components []*Component
	shards     []Shard // of each component: what it holds, but for the layers and the strides
}

// layOut lays the tensor of some layers out from byte at on, and says where it
// ends. It has so many pages, or slots; each begins at a multiple of align bytes
// from the first, if align is above 1.
func (t *tensor) layOut(axes []axis, layers []int, pages uint32, align, at uint64) (end uint64) {
	size := make([]uint64, len(t.components)) // of what lies within the axis
	part := make([]uint64, len(t.components)) // where the component begins
	layer := make([]uint64, len(t.components))
	for n, c := range t.components {
		size[n] = c.HeadBytes
	}
	for _, a := range slices.Backward(axes) {
		sum := uint64(0)
		for n, c := range t.components {
			s := &t.shards[n]
			switch a {
			case axisHead:
				s.HeadStride = size[n]
				size[n] = mulCapped(size[n], uint64(s.Heads.High-s.Heads.Low))
			case axisRow:
				s.RowStride = size[n]
				size[n] = mulCapped(size[n], uint64(s.pageRows(c)))
			case axisPage:
				s.PageStride = alignCapped(size[n], align)
				size[n] = mulCapped(s.PageStride, uint64(pages))
			case axisLayer:
				layer[n] = size[n]
				size[n] = mulCapped(size[n], uint64(len(layers)))
			case axisPart:
				part[n] = sum
				sum = addCapped(sum, size[n])
			}
		}
		if a == axisPart {
			for n := range size {
				size[n] = sum
			}
		}
	}
	for n := range t.components {
		for k, l := range layers {
			offset := addCapped(addCapped(at, part[n]), mulCapped(layer[n], uint64(k)))
			t.shards[n].Layers = append(t.shards[n].Layers, LayerTensor{Layer: l, Offset: offset, Pages: pages})
		}
	}
	return addCapped(at, size[0])
}

// alignCapped is the next multiple of align, or 2^64-1 if that is less.
func alignCapped(n, align uint64) uint64 {
	if align < 2 || n%align == 0 {
		return n
	}
	return addCapped(n, align-n%align)
}
