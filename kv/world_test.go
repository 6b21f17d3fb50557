package kv

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"
)

// A world is two instances with real bytes, and the slow model of what a row of
// their cache holds. The tests move bytes by the plan and compare with a loop over
// (component, layer, head, token).

// cell is what one byte of a row holds: a function of where it is logically.
func cell(component string, layer, head int, token uint64, n int) byte {
	h := uint64(14695981039346656037)
	mix := func(v uint64) { h = (h ^ v) * 1099511628211 }
	for _, c := range component {
		mix(uint64(c))
	}
	mix(uint64(layer) + 1)
	mix(uint64(head) + 1)
	mix(token + 1)
	mix(uint64(n) + 1)
	return byte(h >> 29)
}

// drawModel draws a model of one to three components.
func drawModel(t *rapid.T) Model {
	layers := rapid.IntRange(1, 6).Draw(t, "layers")
	m := Model{ID: "m", Revision: "1"}
	names := []string{"k", "v", "latent"}[:rapid.IntRange(1, 3).Draw(t, "components")]
	heads := rapid.SampledFrom([]int{1, 2, 3, 4, 6, 8}).Draw(t, "heads")
	for _, name := range names {
		c := Component{Name: name, Kind: Paged, Heads: heads, DType: UINT8}
		c.HeadBytes = uint64(rapid.IntRange(1, 5).Draw(t, name+" head bytes"))
		if name == "latent" {
			c.Heads = 1
		}
		for l := range layers {
			// Some layers have no latent; layer 0 always has.
			if name != "latent" || l == 0 || rapid.Bool().Draw(t, "has latent") {
				c.Layers = append(c.Layers, l)
			}
		}
		m.Components = append(m.Components, c)
	}
	return m
}

// drawInstance draws a way to serve the model, with all freedom of strides.
func drawInstance(t *rapid.T, m Model, who string, page uint32, tokens uint64) *Instance {
	var tps []int
	for tp := 1; tp <= 8; tp++ {
		if !slices.ContainsFunc(m.Components, func(c Component) bool { _, ok := HeadsOf(c.Heads, tp, 0); return !ok }) {
			tps = append(tps, tp)
		}
	}
	d := Deployment{Model: m, Layout: NHD}
	d.TP = rapid.SampledFrom(tps).Draw(t, who+" tp")
	all := d.layers()
	d.PP = rapid.IntRange(1, min(3, len(all))).Draw(t, who+" pp")
	cuts := rapid.Permutation(interior(len(all))).Draw(t, who+" cuts")[:d.PP-1]
	slices.Sort(cuts)
	cuts = append(cuts, len(all))
	i := &Instance{
		Model: m, PP: d.PP, TP: d.TP,
		DP: rapid.IntRange(1, 2).Draw(t, who+" dp"), CP: rapid.IntRange(1, 2).Draw(t, who+" cp"),
	}
	_, need := PagesFor(page, 0, max(tokens, 1))
	style := drawStyle(t, who)
	for dp := range i.DP {
		for pp := range i.PP {
			lo := 0
			if pp > 0 {
				lo = cuts[pp-1]
			}
			for cp := range i.CP {
				for tp := range i.TP {
					r := Rank{DP: dp, PP: pp, CP: cp, TP: tp}
					i.Engines = append(i.Engines, style.engine(m, r, i.TP, all[lo:cuts[pp]], page, uint32(need)+3))
				}
			}
		}
	}
	return i
}

// drawPage draws a page size: mostly one that people use, sometimes any.
func drawPage(t *rapid.T, who string) uint32 {
	return rapid.SampledFrom([]uint32{1, 2, 3, 4, 5, 7, 8, 16, 64, rapid.Uint32Range(1, 64).Draw(t, who+" any page")}).Draw(t, who+" page")
}

func interior(n int) []int {
	out := make([]int, 0, n)
	for k := 1; k < n; k++ {
		out = append(out, k)
	}
	return out
}

// style is how an engine lays out its pages.
type style struct {
	headMajor                    bool
	headPad, tokenPad, pagePad   uint64
	gap                          uint64 // between tensors
	interleaved                  bool   // page p of all tensors side by side
	regions                      int
	metaBytes, metaRows, metaPad uint64
}

func drawStyle(t *rapid.T, who string) style {
	pad := func(name string) uint64 {
		return rapid.SampledFrom([]uint64{0, 0, 0, 1, 3}).Draw(t, who+" "+name)
	}
	return style{
		headMajor: rapid.Bool().Draw(t, who+" head major"),
		headPad:   pad("head pad"), tokenPad: pad("token pad"), pagePad: pad("page pad"), gap: pad("gap"),
		interleaved: rapid.Bool().Draw(t, who+" interleaved"),
		regions:     rapid.IntRange(1, 2).Draw(t, who+" regions"),
		metaBytes:   24, metaRows: 4, metaPad: pad("meta pad"),
	}
}

// engine lays out one rank.
func (y style) engine(m Model, r Rank, tp int, stage []int, page, pages uint32) Engine {
	e := Engine{Rank: r, RegionBytes: make([]uint64, y.regions)}
	var strideOfAll uint64
	for _, c := range m.Components {
		h, _ := HeadsOf(c.Heads, tp, r.TP)
		n := uint64(h.High - h.Low)
		s := Shard{Component: c.Name, Heads: h, PageTokens: page}
		if y.headMajor {
			s.TokenStride = c.HeadBytes + y.tokenPad
			s.HeadStride = s.TokenStride*uint64(page) + y.headPad
			s.PageStride = s.HeadStride*n + y.pagePad
		} else {
			s.HeadStride = c.HeadBytes + y.headPad
			s.TokenStride = s.HeadStride*n + y.tokenPad
			s.PageStride = s.TokenStride*uint64(page) + y.pagePad
		}
		for _, l := range stage {
			if slices.Contains(c.Layers, l) {
				s.Layers = append(s.Layers, LayerTensor{Layer: l, Pages: pages})
				strideOfAll += s.PageStride
			}
		}
		if len(s.Layers) > 0 {
			e.Shards = append(e.Shards, s)
		}
	}
	region := 0
	for n := range e.Shards {
		s := &e.Shards[n]
		own := s.PageStride
		if y.interleaved {
			s.PageStride = strideOfAll
			region = 0
		}
		for k := range s.Layers {
			t := &s.Layers[k]
			t.Region, t.Offset = uint32(region), e.RegionBytes[region]
			if y.interleaved {
				e.RegionBytes[0] += own
				continue
			}
			e.RegionBytes[region] += s.PageStride*uint64(pages) + y.gap
			region = (region + 1) % y.regions
		}
	}
	if y.interleaved {
		e.RegionBytes[0] = strideOfAll * uint64(pages)
	}
	last := y.regions - 1
	e.Meta = MetaRows{Region: uint32(last), Offset: e.RegionBytes[last] + y.metaPad, RowBytes: y.metaBytes, Rows: uint32(y.metaRows)}
	e.RegionBytes[last] += y.metaPad + y.metaBytes*y.metaRows
	return e
}

// memory is the regions of one engine.
type memory [][]byte

func newMemory(e *Engine, fill byte) memory {
	m := make(memory, len(e.RegionBytes))
	for n, size := range e.RegionBytes {
		m[n] = slices.Repeat([]byte{fill}, int(size))
	}
	return m
}

// rows visits every row of the tokens [from, to) of an engine, the slow way.
func (e *Engine) rows(m Model, table PageTable, from, to uint64, visit func(c *Component, layer, head int, token uint64, region uint32, at uint64)) {
	for n := range e.Shards {
		s := &e.Shards[n]
		c := m.component(s.Component)
		for _, t := range s.Layers {
			for h := s.Heads.Low; h < s.Heads.High; h++ {
				for token := from; token < to; token++ {
					page := table.Pages[(token-table.First)/uint64(s.PageTokens)]
					at := t.Offset + uint64(page)*s.PageStride + token%uint64(s.PageTokens)*s.TokenStride + uint64(h-s.Heads.Low)*s.HeadStride
					visit(c, t.Layer, h, token, t.Region, at)
				}
			}
		}
	}
}

// drawPages draws pages for the tokens [from, to): shuffled, or in some order.
func drawPages(t *rapid.T, who string, e *Engine, from, to uint64) PageTable {
	size := max(e.PageTokens(), 1)
	first, n := PagesFor(size, from, to)
	_, most := PagesFor(size, 0, max(to, 1))
	all := make([]uint32, most+3)
	for i := range all {
		all[i] = uint32(i)
	}
	switch rapid.IntRange(0, 3).Draw(t, who+" order") {
	case 0:
		slices.Reverse(all)
	case 1:
	default:
		all = rapid.Permutation(all).Draw(t, who+" pages")
	}
	return PageTable{First: first, Pages: all[:n]}
}

// expand visits every row of a copy.
func (c *Copy) expand(visit func(source, target uint64)) {
	for _, r := range c.Runs {
		for n := range r.Count {
			s := c.Source.Offset + uint64(r.Source+n*r.SourceStep)*c.Source.UnitStride
			t := c.Target.Offset + uint64(r.Target+n*r.TargetStep)*c.Target.UnitStride
			for i := range uint64(c.Count[0]) {
				for j := range uint64(c.Count[1]) {
					visit(s+i*c.Source.Stride[0]+j*c.Source.Stride[1], t+i*c.Target.Stride[0]+j*c.Target.Stride[1])
				}
			}
		}
	}
}

// expand visits every row of a range.
func (r *Range) expand(visit func(at uint64)) {
	for _, run := range r.Runs {
		for n := range run.Count {
			at := r.Offset + uint64(run.First+n*run.Step)*r.UnitStride
			for i := range uint64(r.Count[0]) {
				for j := range uint64(r.Count[1]) {
					visit(at + i*r.Stride[0] + j*r.Stride[1])
				}
			}
		}
	}
}

// nests is the promise of a range that a provider builds on.
func (r *Range) nests() error {
	in := r.Bytes
	for n := 1; n >= 0; n-- {
		if r.Count[n] < 1 {
			return fmt.Errorf("count %d is 0", n)
		}
		if r.Count[n] > 1 {
			if r.Stride[n] < in {
				return fmt.Errorf("stride %d is %d, within it are %d bytes", n, r.Stride[n], in)
			}
			in += uint64(r.Count[n]-1) * r.Stride[n]
		}
	}
	if r.UnitStride < in {
		return fmt.Errorf("unit stride is %d, a unit has %d bytes", r.UnitStride, in)
	}
	return nil
}
