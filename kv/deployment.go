package kv

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
)

// Deployment is how a model is served, as people write it: from it follows what
// every rank holds, and where.
type Deployment struct {
	Model      Model
	TP, PP, DP int // at least 1
	CP         int // 0 is 1
	// Split says how CP ranks share the tokens. Prefill: Copies or PageRanges. Decode
	// context parallelism is Interleaved.
	Split Split
	// DPAttention: the DP ranks share the TP ranks, as in DP attention. Each has
	// TP/DP of them, and there are TP in all. Otherwise there are TP of each DP rank.
	DPAttention  bool
	PPLayers     []int  // layers of each stage; none: as even as possible, the earlier stages take the rest
	PageTokens   uint32 // at least 1
	PageAlign    uint64 // a page of a tensor begins at a multiple of so many bytes from its first; 0 and 1: no padding
	Layout       Layout
	Slots        uint32 // of each rank, if the model has Slot components; 0: as many as metadata rows, at least 1
	MetaRows     uint32 // metadata rows of each rank, 0 for none
	MetaRowBytes uint64 // of one of them
}

// cp is the CP size, at least 1.
func (d *Deployment) cp() int { return max(1, d.CP) }

// attentionTP is the TP size within a DP rank.
func (d *Deployment) attentionTP() int {
	if d.DPAttention {
		return d.TP / d.DP
	}
	return d.TP
}

// Malformed is everything by which this is no deployment at all: a number below
// 1, stages that are not cut as they are counted, a component twice. Field is
// where the file says it.
func (d *Deployment) Malformed() []Reason {
	v := &validator{i: &Instance{Model: d.Model}}
	below := func(field string, n int) {
		if n < 1 {
			v.refuse(field, "", strconv.Itoa(n), "%s is %d, want at least 1", field, n)
		}
	}
	below("parallel.tp", d.TP)
	below("parallel.pp", d.PP)
	below("parallel.dp", d.DP)
	if d.CP < 0 {
		below("parallel.cp", d.CP)
	}
	if d.Split > Interleaved {
		v.refuse("parallel.cp_split", "", d.Split.String(), "cp_split is %v, want copies, pages or tokens", d.Split)
	}
	if d.DPAttention && d.TP > 0 && d.DP > 0 && d.TP%d.DP > 0 {
		v.refuse("parallel.dp", "", strconv.Itoa(d.DP), "dp attention: tp %d does not divide over dp %d: use a dp that divides tp", d.TP, d.DP)
	}
	below("page_tokens", int(d.PageTokens))
	if _, err := d.Layout.axes(); err != nil {
		v.refuse("layout", "", string(d.Layout), "%v", err)
	}
	if d.PageAlign > maxRegion {
		v.refuse("page_align", "", strconv.FormatUint(d.PageAlign, 10), "page_align is %d bytes, want at most %d", d.PageAlign, uint64(maxRegion))
	}
	v.model()
	v.tensors()
	layers := d.layers()
	if len(v.reasons) > 0 {
		return sortReasons(v.reasons)
	}
	if d.PP > len(layers) {
		v.refuse("parallel.pp", "", strconv.Itoa(d.PP), "pp is %d stages, want at most the %d layers of the model", d.PP, len(layers))
	}
	if len(d.PPLayers) > 0 {
		d.stages(v, len(layers))
	}
	return sortReasons(v.reasons)
}

// stages checks pp_layers against the stages and the layers.
func (d *Deployment) stages(v *validator, layers int) {
	if len(d.PPLayers) != d.PP {
		v.refuse("pp_layers", "", strconv.Itoa(len(d.PPLayers)), "pp_layers has %d entries, want %d (pp)", len(d.PPLayers), d.PP)
	}
	sum, sound := uint64(0), true
	for n, l := range d.PPLayers {
		if l < 1 {
			sound = false
			v.refuse("pp_layers", "", strconv.Itoa(l), "pp_layers: stage %d has %d layers, want at least 1", n, l)
			continue
		}
		sum += min(uint64(l), 1<<32) // no file has enough entries to overflow
	}
	if sound && sum != uint64(layers) {
		v.refuse("pp_layers", "", strconv.FormatUint(sum, 10), "pp_layers sum to %d layers, want the %d of the model", sum, layers)
	}
}

// layers are the layers that the stages divide: those that any component has, but
// for optional ones, ascending. A draft model's layers beyond them are the last
// stage's.
func (d *Deployment) layers() []int {
	for _, optional := range []bool{false, true} {
		var all []int
		for _, c := range d.Model.Components {
			if c.Optional == optional {
				all = append(all, c.Layers...)
			}
		}
		if len(all) > 0 {
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
	return nil
}

// tensors refuses components that cannot lie in one tensor.
func (v *validator) tensors() {
	first := make(map[string]*Component)
	for n := range v.i.Model.Components {
		c := &v.i.Model.Components[n]
		if c.Tensor == "" {
			continue
		}
		o := first[c.Tensor]
		if o == nil {
			first[c.Tensor] = c
			continue
		}
		if c.Kind != o.Kind || c.Window != o.Window || c.rowTokens() != o.rowTokens() || c.slotRows() != o.slotRows() ||
			c.Layout != o.Layout || c.PageAlign != o.PageAlign || !slices.Equal(c.Layers, o.Layers) {
			v.refuse("tensor", c.Name, c.Tensor,
				"%s and %s are both in tensor %q: want the same kind, layers, window, row_tokens, slot_rows, layout and page_align", o.Name, c.Name, c.Tensor)
		}
	}
	for n := range v.i.Model.Components {
		c := &v.i.Model.Components[n]
		if c.Layout != "" {
			if _, err := c.Layout.axes(); err != nil {
				v.refuse("layout", c.Name, string(c.Layout), "component %q: %v", c.Name, err)
			}
		}
		if c.PageAlign > maxRegion {
			v.refuse("page_align", c.Name, strconv.FormatUint(c.PageAlign, 10), "component %q: page_align is %d bytes, want at most %d", c.Name, c.PageAlign, uint64(maxRegion))
		}
	}
}

// SplitLayers is the layers of each of pp stages: as even as possible, the
// earlier stages take the rest. pp is at least 1.
func SplitLayers(layers, pp int) []int {
	out := make([]int, pp)
	for n := range out {
		lo, hi := share(layers, pp, n)
		out[n] = hi - lo
	}
	return out
}

// share is the part [lo, hi) of total that the n-th of parts gets: as even as
// possible, the earlier ones take the rest. So pages are cut over CP ranks, too.
func share[T int | uint64](total, parts, n T) (lo, hi T) {
	each, rest := total/parts, total%parts
	lo = n*each + min(n, rest)
	hi = lo + each
	if n < rest {
		hi++
	}
	return lo, hi
}

// HeadsOf is what rank of tp ranks holds of so many heads: its part of them where
// tp divides heads, one that it shares with its neighbours where heads divides
// tp. Otherwise there is no such deployment: false.
func HeadsOf(heads, tp, rank int) (HeadRange, bool) {
	switch {
	case heads < 1 || tp < 1:
		return HeadRange{}, false
	case heads%tp == 0:
		return HeadRange{rank * (heads / tp), (rank + 1) * (heads / tp)}, true
	case tp%heads == 0:
		h := rank / (tp / heads)
		return HeadRange{h, h + 1}, true
	}
	return HeadRange{}, false
}

// Instance is the instance that is deployed, with so many pages in each paged
// tensor, or every reason why it cannot work. Each rank has one region: its tensors
// one after another, in the order of the model's components, then the metadata
// rows.
func (d *Deployment) Instance(pages uint32) (*Instance, []Reason) {
	if rs := d.Malformed(); len(rs) > 0 {
		return nil, rs
	}
	v := &validator{}
	for _, c := range d.Model.Components {
		if _, ok := HeadsOf(c.Heads, d.attentionTP(), 0); !ok {
			v.refuse("heads", c.Name, fmt.Sprintf("%d heads, tp %d", c.Heads, d.attentionTP()),
				"%s has %d heads, which do not go over tp %d: use a tp that divides %d or a multiple of %d", c.Name, c.Heads, d.attentionTP(), c.Heads, c.Heads)
		}
	}
	if n := mulCapped(mulCapped(uint64(d.attentionTP()), uint64(d.PP)), mulCapped(uint64(d.DP), uint64(d.cp()))); n > maxEngines {
		v.refuse("parallel", "", strconv.FormatUint(n, 10), "tp %d x pp %d x dp %d x cp %d are more than %d engines", d.attentionTP(), d.PP, d.DP, d.cp(), maxEngines)
	}
	tensors := uint64(0)
	for _, c := range d.Model.Components {
		tensors += uint64(len(c.Layers)) * uint64(min(d.attentionTP(), maxEngines)) * uint64(min(d.DP, maxEngines)) * uint64(min(d.cp(), maxEngines))
	}
	if tensors > maxTensors {
		v.refuse("parallel", "", strconv.FormatUint(tensors, 10), "the engines would hold %d tensors (layers of a component) together, want at most %d", tensors, maxTensors)
	}
	if len(v.reasons) > 0 {
		return nil, sortReasons(v.reasons)
	}
	i := &Instance{Model: d.Model, DP: d.DP, PP: d.PP, CP: d.cp(), TP: d.attentionTP(), Split: d.Split}
	layers, cuts := d.layers(), d.PPLayers
	if len(cuts) == 0 {
		cuts = SplitLayers(len(layers), d.PP)
	}
	for dp := range d.DP {
		lo := 0
		for pp, n := range cuts {
			stage := layers[lo : lo+n]
			lo += n
			for cp := range i.CP {
				for tp := range i.TP {
					i.Engines = append(i.Engines, d.engine(Rank{DP: dp, PP: pp, CP: cp, TP: tp}, layers, stage, pages))
				}
			}
		}
	}
	for n := range i.Engines {
		if e := &i.Engines[n]; e.RegionBytes[0] > maxRegion {
			v.refuse("pages", "", strconv.FormatUint(uint64(pages), 10), "%d pages of every tensor of rank %v are more than %d bytes: use fewer", pages, e.Rank, uint64(maxRegion))
			return nil, v.reasons
		}
	}
	if rs := i.Validate(); len(rs) > 0 {
		return nil, rs
	}
	return i, nil
}

// MatchDeployments is Match of what the deployments come to, with so many pages
// in each tensor of both sides: every reason why one cannot work by itself, and
// why the two do not work together.
func MatchDeployments(prefill, decode *Deployment, prefillPages, decodePages uint32) *Fit {
	p, whyP := prefill.Instance(prefillPages)
	d, whyD := decode.Instance(decodePages)
	if len(whyP) == 0 && len(whyD) == 0 {
		return Match(p, d)
	}
	f := &Fit{prefill: &Instance{Model: prefill.Model}, decode: &Instance{Model: decode.Model}}
	for _, r := range whyP {
		f.reasons = append(f.reasons, r.At(Prefill))
	}
	for _, r := range whyD {
		f.reasons = append(f.reasons, r.At(Decode))
	}
	f.compareModels()
	f.reasons = sortReasons(f.reasons)
	return f
}

// engine lays out one rank that serves these layers, the stage, of the main ones. Sizes beyond 64 bits are
// capped, for Validate to refuse.
func (d *Deployment) engine(r Rank, main, stage []int, pages uint32) Engine {
	e := Engine{Rank: r}
	at := uint64(0)
	for n := range d.Model.Components {
		c := &d.Model.Components[n]
		if c.Tensor != "" && slices.ContainsFunc(d.Model.Components[:n], func(o Component) bool { return o.Tensor == c.Tensor }) {
			continue // laid out with the first of its tensor
		}
		layers := c.layersOf(main, stage, r.PP == d.PP-1)
		if len(layers) == 0 {
			continue
		}
		t := tensor{}
		for k := n; k < len(d.Model.Components); k++ {
			if o := &d.Model.Components[k]; k == n || c.Tensor != "" && o.Tensor == c.Tensor {
				t.components, t.shards = append(t.components, o), append(t.shards, d.shard(o, r))
			}
		}
		axes, _ := cmp.Or(c.Layout, d.Layout).axes() // Malformed has refused another
		if c.Kind == Slot {
			at = t.layOut(axes, layers, d.slots(), cmp.Or(c.PageAlign, 1), at)
		} else {
			at = t.layOut(axes, layers, pages, cmp.Or(c.PageAlign, d.PageAlign), at)
		}
		e.Shards = append(e.Shards, t.shards...)
	}
	if d.MetaRows > 0 {
		e.Meta = MetaRows{Offset: at, RowBytes: d.MetaRowBytes, Rows: d.MetaRows}
		at = addCapped(at, mulCapped(d.MetaRowBytes, uint64(d.MetaRows)))
	}
	e.RegionBytes = []uint64{at}
	return e
}

// layersOf is the layers that a rank of a stage has of a component: those of the
// stage, and in the last one those that no stage has. It walks the stage where it can:
// there may be as many stages as layers.
func (c *Component) layersOf(main, stage []int, last bool) (layers []int) {
	if !last {
		for _, l := range stage {
			if _, has := slices.BinarySearch(c.Layers, l); has {
				layers = append(layers, l)
			}
		}
		return layers
	}
	for _, l := range c.Layers {
		_, here := slices.BinarySearch(stage, l)
		if _, staged := slices.BinarySearch(main, l); here || !staged {
			layers = append(layers, l)
		}
	}
	return layers
}

// slots is the slots of a rank.
func (d *Deployment) slots() uint32 {
	if d.Slots > 0 {
		return d.Slots
	}
	return max(1, d.MetaRows)
}

// shard is a component's part of a rank, but for where it lies.
func (d *Deployment) shard(c *Component, r Rank) Shard {
	heads, _ := HeadsOf(c.Heads, d.attentionTP(), r.TP)
	s := Shard{Component: c.Name, Heads: heads}
	if c.Kind == Paged {
		s.PageTokens = d.PageTokens
	}
	return s
}

// mulCapped and addCapped are the product and the sum, or 2^64-1 if that is less.
func mulCapped(a, b uint64) uint64 {
	if hi, lo := bits.Mul64(a, b); hi == 0 {
		return lo
	}
	return 1<<64 - 1
}

func addCapped(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return 1<<64 - 1
}
