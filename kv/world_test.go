package kv

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// A world is two instances with real bytes, and the slow model of what a row of
// their cache holds. The tests move bytes by the plan and compare with a loop over
// (component, layer, head, row).

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
	// A small difference is within a few low bits yet: spread it over the byte.
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return byte(h >> 56)
}

// drawModel draws a model: a cache of heads or of latents, and some of what models
// have beside it.
func drawModel(t *rapid.T) Model {
	all := seq(0, rapid.IntRange(1, 6).Draw(t, "layers"))
	m := Model{ID: "m", Revision: "1"}
	heads := rapid.SampledFrom([]int{1, 2, 3, 4, 6, 8}).Draw(t, "heads")
	some := func(name string) []int {
		out := []int{all[0]}
		for _, l := range all[1:] {
			if rapid.Bool().Draw(t, name+" on a layer") {
				out = append(out, l)
			}
		}
		return out
	}
	add := func(c Component) {
		c.DType = UINT8
		c.HeadBytes = uint64(rapid.IntRange(1, 5).Draw(t, c.Name+" head bytes"))
		m.Components = append(m.Components, c)
	}
	has := func(what string) bool { return rapid.IntRange(0, 3).Draw(t, what) == 0 }
	if rapid.Bool().Draw(t, "latent") {
		add(Component{Name: "latent", Kind: Paged, Layers: all, Heads: 1})
		if has("index") {
			add(Component{Name: "index", Kind: Paged, Layers: some("index"), Heads: 1})
		}
	} else {
		add(Component{Name: "k", Kind: Paged, Layers: all, Heads: heads})
		add(Component{Name: "v", Kind: Paged, Layers: all, Heads: heads, Tensor: m.Components[0].Tensor})
		if has("k and v in one tensor") {
			m.Components[0].Tensor, m.Components[1].Tensor = "kv", "kv"
		}
	}
	if has("windows") {
		window := uint64(rapid.IntRange(1, 60).Draw(t, "window"))
		layers := some("swa")
		for _, name := range []string{"swa.k", "swa.v"} {
			add(Component{Name: name, Kind: Paged, Layers: layers, Heads: 2 * heads, Window: window})
		}
		if has("another window") {
			add(Component{Name: "local", Kind: Paged, Layers: some("local"), Heads: heads, Window: window + 7})
		}
	}
	if has("compressed rows") {
		for _, q := range []uint32{4, 8}[rapid.IntRange(0, 1).Draw(t, "first ratio"):] {
			layers := some("compressed")
			add(Component{Name: fmt.Sprintf("c%d", q), Kind: Paged, Layers: layers, Heads: 1, RowTokens: q})
			add(Component{Name: fmt.Sprintf("c%d.open", q), Kind: Slot, Layers: layers, Heads: 1, RowTokens: q, SlotRows: q})
		}
	}
	if has("state") {
		add(Component{Name: "ssm", Kind: Slot, Layers: some("ssm"), Heads: heads})
		rows, layers := uint32(rapid.IntRange(1, 3).Draw(t, "kernel")), some("conv")
		for n, name := range []string{"conv.q", "conv.k", "conv.v"} {
			add(Component{Name: name, Kind: Slot, Layers: layers, Heads: heads * (1 + n/2), SlotRows: rows, Tensor: "conv"})
		}
	}
	return m
}

// withDraft is the model with a draft model beside it, or not.
func withDraft(t *rapid.T, m Model, who string) Model {
	m.Components = slices.Clone(m.Components)
	if rapid.IntRange(0, 2).Draw(t, who+" has a draft model") > 0 {
		return m
	}
	for _, name := range []string{"draft.k", "draft.v"} {
		m.Components = append(m.Components, Component{
			Name: name, Kind: Paged, Layers: []int{100}, Heads: m.Components[0].Heads, HeadBytes: 3, DType: UINT8, Optional: true})
	}
	return m
}

// drawInstance draws a way to serve the model: one that a Deployment describes, or
// one with all freedom of strides.
func drawInstance(t *rapid.T, m Model, who string, page uint32, tokens uint64) *Instance {
	m = withDraft(t, m, who)
	var tps []int
	for tp := 1; tp <= 8; tp++ {
		if !slices.ContainsFunc(m.Components, func(c Component) bool { _, ok := HeadsOf(c.Heads, tp, 0); return !ok }) {
			tps = append(tps, tp)
		}
	}
	d := Deployment{
		Model: m, PageTokens: page, Layout: drawLayout(t, who), MetaRows: 4, MetaRowBytes: 24, Slots: 5,
		TP: rapid.SampledFrom(tps).Draw(t, who+" tp"), DP: rapid.IntRange(1, 2).Draw(t, who+" dp"),
		CP:        rapid.SampledFrom([]int{1, 1, 1, 2, 3, 5}).Draw(t, who+" cp"),
		Split:     Split(rapid.IntRange(0, 2).Draw(t, who+" split")),
		PageAlign: rapid.SampledFrom([]uint64{0, 0, 1, 16, 7}).Draw(t, who+" align"),
	}
	if rapid.Bool().Draw(t, who+" dp attention") {
		d.DPAttention, d.TP = true, d.TP*d.DP
	}
	all := d.layers()
	d.PP = rapid.IntRange(1, min(3, len(all))).Draw(t, who+" pp")
	cuts := rapid.Permutation(interior(len(all))).Draw(t, who+" cuts")[:d.PP-1]
	slices.Sort(cuts)
	last := 0
	for _, c := range append(cuts, len(all)) {
		d.PPLayers, last = append(d.PPLayers, c-last), c
	}
	pages := uint32(tokens/uint64(page)) + 4
	i, reasons := d.Instance(pages)
	if len(reasons) > 0 {
		t.Fatalf("%s: %v", who, reasons)
	}
	if rapid.Bool().Draw(t, who+" lies as a deployment") {
		return i
	}
	style := drawStyle(t, who)
	for n := range i.Engines {
		style.lay(i, &i.Engines[n])
	}
	if reasons := i.Validate(); len(reasons) > 0 {
		t.Fatalf("%s: %v", who, reasons)
	}
	return i
}

// drawLayout draws an order.
func drawLayout(t *rapid.T, who string) Layout {
	l := Layout(strings.Join(rapid.Permutation([]string{"layer", "page", "part", "row", "head"}).Draw(t, who+" order"), ","))
	if _, err := l.axes(); err != nil {
		return rapid.SampledFrom([]Layout{NHD, HND}).Draw(t, who+" layout")
	}
	return l
}

// drawPage draws a page size that holds whole rows of the model: mostly one that
// people use, sometimes any.
func drawPage(t *rapid.T, m Model, who string) uint32 {
	page := rapid.SampledFrom([]uint32{1, 2, 3, 4, 5, 7, 8, 16, 64, rapid.Uint32Range(1, 64).Draw(t, who+" any page")}).Draw(t, who+" page")
	for _, c := range m.Components {
		if c.rowTokens() > 1 {
			page = max(8, page-page%8)
		}
	}
	return page
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

// lay lays out anew what a rank holds.
func (y style) lay(i *Instance, e *Engine) {
	e.RegionBytes = make([]uint64, y.regions)
	var strideOfAll uint64
	pages := uint32(0)
	for k := range e.Shards {
		s := &e.Shards[k]
		c := i.Model.component(s.Component)
		n, rows := uint64(s.Heads.High-s.Heads.Low), uint64(s.pageRows(c))
		if y.headMajor {
			s.RowStride = c.HeadBytes + y.tokenPad
			s.HeadStride = s.RowStride*rows + y.headPad
			s.PageStride = s.HeadStride*n + y.pagePad
		} else {
			s.HeadStride = c.HeadBytes + y.headPad
			s.RowStride = s.HeadStride*n + y.tokenPad
			s.PageStride = s.RowStride*rows + y.pagePad
		}
		strideOfAll += s.PageStride * uint64(len(s.Layers))
		pages = max(pages, s.fewest())
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
			e.RegionBytes[region] += s.PageStride*uint64(t.Pages) + y.gap
			region = (region + 1) % y.regions
		}
	}
	if y.interleaved {
		e.RegionBytes[0] = strideOfAll * uint64(pages)
	}
	last := y.regions - 1
	e.Meta = MetaRows{Region: uint32(last), Offset: e.RegionBytes[last] + y.metaPad, RowBytes: y.metaBytes, Rows: uint32(y.metaRows)}
	e.RegionBytes[last] += y.metaPad + y.metaBytes*y.metaRows
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

// owner is the CP rank that keeps a row of a request of so many tokens, the slow
// way; -1: all do.
func (i *Instance) owner(row uint64, rowTokens, page uint32, tokens uint64) int {
	switch i.Split {
	case Interleaved:
		return int(row % uint64(i.CP))
	case PageRanges:
		// Pages are dealt out one by one, in order, until each rank has its number.
		all := int((tokens + uint64(page) - 1) / uint64(page))
		at := int(row * uint64(rowTokens) / uint64(page))
		for c := range i.CP {
			mine := all / i.CP
			if c < all%i.CP {
				mine++
			}
			if at < mine {
				return c
			}
			at -= mine
		}
		panic("a row behind the last page")
	}
	return -1
}

// floor is the start of the page of a token.
func (i *Instance) floor(token uint64, page uint32) uint64 {
	stripe := uint64(page)
	if i.Split == Interleaved {
		stripe *= uint64(i.CP)
	}
	return token / stripe * stripe
}

// rows visits every row of a request that an engine keeps from token `from` on (a
// window starts later), the slow way.
func (i *Instance) rows(e *Engine, at *Placement, from, to uint64, visit func(c *Component, layer, head int, row uint64, region uint32, at uint64)) {
	for n := range e.Shards {
		s := &e.Shards[n]
		c := i.Model.component(s.Component)
		each := func(page uint32, within, row uint64) {
			for _, t := range s.Layers {
				for h := s.Heads.Low; h < s.Heads.High; h++ {
					visit(c, t.Layer, h, row, t.Region,
						t.Offset+uint64(page)*s.PageStride+within*s.RowStride+uint64(h-s.Heads.Low)*s.HeadStride)
				}
			}
		}
		if c.Kind == Slot {
			if q := max(1, c.RowTokens); q == 1 || to%uint64(q) != 0 {
				for row := range uint64(max(1, c.SlotRows)) {
					each(at.Slot, row, row)
				}
			}
			continue
		}
		table, q := at.Table(c.Window), uint64(max(1, c.RowTokens))
		pageRows := uint64(s.PageTokens) / q
		start := from
		if c.Window > 0 {
			if to > c.Window && to-c.Window > start {
				start = to - c.Window
			}
			start = i.floor(start, s.PageTokens)
		}
		for row := range to / q {
			if from == to || (row+1)*q <= start {
				continue
			}
			owner := i.owner(row, uint32(q), s.PageTokens, to)
			if owner >= 0 && owner != e.Rank.CP {
				continue
			}
			place := row
			if i.Split == Interleaved {
				place = row / uint64(i.CP)
			}
			first := table.First / q
			if i.Split == Interleaved {
				first /= uint64(i.CP)
			}
			each(table.Pages[(place-first)/pageRows], place%pageRows, row)
		}
	}
}

// place draws where a rank keeps a request: pages shuffled, or in some order.
func (i *Instance) place(t *rapid.T, who string, r Rank, prefix, length uint64) Placement {
	var p Placement
	for _, pool := range i.Pools(r) {
		first, n := pool.Need(prefix, length)
		all := countTo(int(pool.Pages))
		switch rapid.IntRange(0, 3).Draw(t, who+" order of pages") {
		case 0:
			slices.Reverse(all)
		case 1:
		default:
			all = rapid.Permutation(all).Draw(t, who+" pages")
		}
		p.Tables = append(p.Tables, PoolTable{pool.Window, PageTable{first, all[:n]}})
	}
	if slots, has := i.Slots(r); has {
		p.Slot = rapid.Uint32Range(0, slots-1).Draw(t, who+" slot")
	}
	p.MetaRow = rapid.Uint32Range(0, 3).Draw(t, who+" metadata row")
	return p
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
