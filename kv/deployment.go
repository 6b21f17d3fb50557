package kv

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
)

// Layout is the order of rows within a page.
type Layout uint8

const (
	NHD Layout = iota + 1 // page, token, head
	HND                   // page, head, token
)

func (l Layout) String() string {
	switch l {
	case NHD:
		return "nhd"
	case HND:
		return "hnd"
	}
	return fmt.Sprintf("layout %d", uint8(l))
}

// ParseLayout reads a layout by its name.
func ParseLayout(s string) (Layout, error) {
	switch s {
	case "nhd":
		return NHD, nil
	case "hnd":
		return HND, nil
	}
	return 0, fmt.Errorf("layout is %q, want nhd or hnd", s)
}

// Deployment is how a model is served, as people write it: from it follows what
// every rank holds, and where.
type Deployment struct {
	Model        Model
	TP, PP, DP   int    // at least 1
	PPLayers     []int  // layers of each stage; none: as even as possible, the earlier stages take the rest
	PageTokens   uint32 // at least 1
	Layout       Layout
	MetaRows     uint32 // metadata rows of each rank, 0 for none
	MetaRowBytes uint64 // of one of them
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
	below("page_tokens", int(d.PageTokens))
	if d.Layout != NHD && d.Layout != HND {
		v.refuse("layout", "", d.Layout.String(), "layout is %v, want nhd or hnd", d.Layout)
	}
	v.model()
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

// layers are the layers of the model: those that any component has, ascending.
func (d *Deployment) layers() []int {
	var all []int
	for _, c := range d.Model.Components {
		all = append(all, c.Layers...)
	}
	slices.Sort(all)
	return slices.Compact(all)
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
func share(total, parts, n int) (lo, hi int) {
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

// Instance is the instance that is deployed, with so many pages in each tensor,
// or every reason why it cannot work. Each rank has one region: its tensors one
// after another by component and layer, page p of one at p pages from its start,
// then the metadata rows.
func (d *Deployment) Instance(pages uint32) (*Instance, []Reason) {
	if rs := d.Malformed(); len(rs) > 0 {
		return nil, rs
	}
	v := &validator{}
	for _, c := range d.Model.Components {
		if _, ok := HeadsOf(c.Heads, d.TP, 0); !ok {
			v.refuse("heads", c.Name, fmt.Sprintf("%d heads, tp %d", c.Heads, d.TP),
				"%s has %d heads, which do not go over tp %d: use a tp that divides %d or a multiple of %d", c.Name, c.Heads, d.TP, c.Heads, c.Heads)
		}
	}
	if n := mulCapped(mulCapped(uint64(d.TP), uint64(d.PP)), uint64(d.DP)); n > maxEngines {
		v.refuse("parallel", "", strconv.FormatUint(n, 10), "tp %d x pp %d x dp %d are more than %d engines", d.TP, d.PP, d.DP, maxEngines)
	}
	if len(v.reasons) > 0 {
		return nil, sortReasons(v.reasons)
	}
	i := &Instance{Model: d.Model, DP: d.DP, PP: d.PP, CP: 1, TP: d.TP}
	layers, cuts := d.layers(), d.PPLayers
	if len(cuts) == 0 {
		cuts = SplitLayers(len(layers), d.PP)
	}
	for dp := range d.DP {
		lo := 0
		for pp, n := range cuts {
			stage := layers[lo : lo+n]
			lo += n
			for tp := range d.TP {
				i.Engines = append(i.Engines, d.engine(Rank{DP: dp, PP: pp, TP: tp}, stage, pages))
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

// engine lays out one rank that serves these layers. Sizes beyond 64 bits are
// capped, for Validate to refuse.
func (d *Deployment) engine(r Rank, stage []int, pages uint32) Engine {
	e := Engine{Rank: r}
	at := uint64(0)
	for n := range d.Model.Components {
		c := &d.Model.Components[n]
		heads, _ := HeadsOf(c.Heads, d.TP, r.TP)
		s := Shard{Component: c.Name, Heads: heads, PageTokens: d.PageTokens}
		count := uint64(heads.High - heads.Low)
		s.TokenStride, s.HeadStride = mulCapped(count, c.HeadBytes), c.HeadBytes
		if d.Layout == HND {
			s.TokenStride, s.HeadStride = c.HeadBytes, mulCapped(uint64(d.PageTokens), c.HeadBytes)
		}
		s.PageStride = mulCapped(mulCapped(count, c.HeadBytes), uint64(d.PageTokens))
		for _, l := range stage {
			if _, has := slices.BinarySearch(c.Layers, l); !has {
				continue
			}
			s.Layers = append(s.Layers, LayerTensor{Layer: l, Offset: at, Pages: pages})
			at = addCapped(at, mulCapped(s.PageStride, uint64(pages)))
		}
		if len(s.Layers) > 0 {
			e.Shards = append(e.Shards, s)
		}
	}
	if d.MetaRows > 0 {
		e.Meta = MetaRows{Offset: at, RowBytes: d.MetaRowBytes, Rows: d.MetaRows}
		at = addCapped(at, mulCapped(d.MetaRowBytes, uint64(d.MetaRows)))
	}
	e.RegionBytes = []uint64{at}
	return e
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
