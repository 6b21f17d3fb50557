package kv

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// shard checks one shard by itself: its box, its strides, its bounds.
func (v *validator) shard(e *Engine, s *Shard, c *Component) {
	where := fmt.Sprintf("rank %v: component %q", e.Rank, s.Component)
	if h := s.Heads; h.Low < 0 || h.Low >= h.High || h.High > c.Heads {
		v.refuse("heads", s.Component, h.String(), "%s: heads are %s, want a range within the %d heads of the component", where, h, c.Heads)
		return
	}
	if !v.pageTokens(e, s, c, where) {
		return
	}
	if !v.within("layers", s.Component, where, len(s.Layers), 1, maxLayers) ||
		!v.ascending(s.Component, where, len(s.Layers), func(n int) int { return s.Layers[n].Layer }) {
		return
	}
	if c.HeadBytes < 1 || c.HeadBytes > maxHeadBytes || c.Heads > maxHeads {
		return // said about the model already
	}
	span, ok := v.strides(where, s, c)
	if !ok {
		return
	}
	for n := range s.Layers {
		t := &s.Layers[n]
		if _, has := slices.BinarySearch(c.Layers, t.Layer); !has {
			v.refuse("layers", s.Component, strconv.Itoa(t.Layer), "%s: holds layer %d, which the component does not have (%s)", where, t.Layer, FormatLayers(c.Layers))
			return
		}
		if t.Pages == 0 {
			v.refuse("pages", s.Component, "0", "%s: layer %d has 0 pages, want at least 1", where, t.Layer)
			return
		}
		end, fits := extent(t.Offset, t.Pages, s.PageStride, span)
		what := func() string { return fmt.Sprintf("the %d pages of %s layer %d", t.Pages, s.Component, t.Layer) }
		v.inside(e, s.Component, what, t.Region, t.Offset, end, fits)
	}
}

// pageTokens checks the page size of a shard: there is one in an instance for all
// components of a window, and pages hold whole rows.
func (v *validator) pageTokens(e *Engine, s *Shard, c *Component, where string) bool {
	if c.Kind == Slot {
		if s.PageTokens != 0 {
			v.refuse("page_tokens", s.Component, strconv.FormatUint(uint64(s.PageTokens), 10), "%s: page_tokens is %d, want 0: it has slots, no pages", where, s.PageTokens)
		}
		return s.PageTokens == 0
	}
	if !v.within("page_tokens", s.Component, where, int(s.PageTokens), 1, maxPageTokens) {
		return false
	}
	if q := c.rowTokens(); s.PageTokens%q != 0 {
		v.refuse("page_tokens", s.Component, strconv.FormatUint(uint64(s.PageTokens), 10),
			"%s: pages hold %d tokens, want a multiple of the %d tokens of a row", where, s.PageTokens, q)
		return false
	}
	if _, ok := v.size[c.Window]; !ok {
		v.size[c.Window], v.sizeOf[c.Window] = s.PageTokens, e.Rank
	}
	if size := v.size[c.Window]; s.PageTokens != size {
		v.refuse("page_tokens", s.Component, strconv.FormatUint(uint64(s.PageTokens), 10),
			"%s: pages hold %d tokens, those of rank %v %d: want one page size in an instance, for all components of a window",
			where, s.PageTokens, v.sizeOf[c.Window], size)
	}
	return true
}

// strides checks that no two rows of a page, and no two pages, share a byte.
// span is what the rows of a page span.
func (v *validator) strides(where string, s *Shard, c *Component) (span uint64, ok bool) {
	type direction struct {
		field  string
		count  uint32
		stride uint64
	}
	ds := []direction{
		{"head_stride", uint32(s.Heads.High - s.Heads.Low), s.HeadStride},
		{"row_stride", s.pageRows(c), s.RowStride},
	}
	slices.SortStableFunc(ds, func(a, b direction) int { return cmp.Compare(a.stride, b.stride) })
	span = c.HeadBytes
	for _, d := range ds {
		if d.stride > maxRegion {
			v.refuse(d.field, s.Component, strconv.FormatUint(d.stride, 10), "%s: %s is %d bytes, want at most %d", where, d.field, d.stride, uint64(maxRegion))
			return 0, false
		}
		if d.count == 1 {
			continue
		}
		if d.stride < span {
			v.refuse(d.field, s.Component, strconv.FormatUint(d.stride, 10), "%s: %s is %d bytes, want at least the %d that lie within it: rows would overlap",
				where, d.field, d.stride, span)
			return 0, false
		}
		if span, ok = extent(0, d.count, d.stride, span); !ok || span > maxRegion {
			v.refuse(d.field, s.Component, strconv.FormatUint(d.stride, 10), "%s: %s is %d bytes, so that a page spans more than %d bytes",
				where, d.field, d.stride, uint64(maxRegion))
			return 0, false
		}
	}
	if s.PageStride < span || s.PageStride > maxRegion {
		v.refuse("page_stride", s.Component, strconv.FormatUint(s.PageStride, 10), "%s: page_stride is %d bytes, want at least the %d that the rows of a page span, and at most %d",
			where, s.PageStride, span, uint64(maxRegion))
		return 0, false
	}
	return span, true
}
