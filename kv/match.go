package kv

import (
	"fmt"
	"slices"
	"strconv"
)

// Fit is the answer to whether two instances work together, and what follows
// from it for every room: who sends, who receives, what. It never changes.
type Fit struct {
	prefill, decode *Instance
	reasons         []Reason
	components      []Component // that both sides have, in the order of prefill
	held            [][]holding // by prefill DP rank and component
}

// Match answers whether a prefill and a decode instance work together, with
// every reason why not, in an order of their own. Both sides of a pair get the
// same answer. The instances may come off the wire; they are not changed and must
// not be changed afterwards.
func Match(prefill, decode *Instance) *Fit {
	f := &Fit{prefill: prefill, decode: decode}
	for _, r := range prefill.Validate() {
		f.reasons = append(f.reasons, r.At(Prefill))
	}
	for _, r := range decode.Validate() {
		f.reasons = append(f.reasons, r.At(Decode))
	}
	whole := len(f.reasons) == 0
	f.compareModels()
	if whole {
		f.compareMeta()
		f.cover()
	}
	f.reasons = sortReasons(f.reasons)
	return f
}

// Compatible answers whether the two instances work together.
func (f *Fit) Compatible() bool { return len(f.reasons) == 0 }

// Reasons are all causes why the instances do not work together.
func (f *Fit) Reasons() []Reason { return f.reasons }

// Prefill is the prefill instance that was matched.
func (f *Fit) Prefill() *Instance { return f.prefill }

// Decode is the decode instance that was matched.
func (f *Fit) Decode() *Instance { return f.decode }

func (f *Fit) refuse(field, component, prefill, decode, format string, a ...any) {
	f.reasons = append(f.reasons, Reason{
		Field: field, Component: component, Prefill: prefill, Decode: decode,
		Text: fmt.Sprintf(format, a...),
	})
}

// compareModels compares what the two sides declare, field by field.
func (f *Fit) compareModels() {
	p, d := &f.prefill.Model, &f.decode.Model
	if p.ID != d.ID {
		f.refuse("id", "", p.ID, d.ID,
			"model id differs: prefill serves %q, decode %q: start both with the same model", p.ID, d.ID)
	}
	if p.Revision != d.Revision {
		f.refuse("revision", "", p.Revision, d.Revision,
			"model revision differs: prefill has %q, decode %q: load the same revision on both sides, or leave it out on both", p.Revision, d.Revision)
	}
	for i := range p.Components {
		c := &p.Components[i]
		if o := d.component(c.Name); o != nil {
			f.compareComponents(c, o)
			f.components = append(f.components, *c)
		} else if !c.Optional {
			f.missing(c.Name, Prefill, Decode)
		}
	}
	for i := range d.Components {
		if c := &d.Components[i]; p.component(c.Name) == nil && !c.Optional {
			f.missing(c.Name, Decode, Prefill)
		}
	}
}

// missing refuses a component that only one side has.
func (f *Fit) missing(name string, has, hasNot Side) {
	values := map[Side]string{has: "declared", hasNot: "missing"}
	f.refuse("components", name, values[Prefill], values[Decode],
		"%s has component %s, %s has not: serve the same model with the same cache on both sides, or mark %s optional on %s",
		has, name, hasNot, name, has)
}

// component finds a component by name, nil for none.
func (m *Model) component(name string) *Component {
	for i := range m.Components {
		if m.Components[i].Name == name {
			return &m.Components[i]
		}
	}
	return nil
}

func (f *Fit) compareComponents(p, d *Component) {
	name := p.Name
	if p.Kind != d.Kind {
		f.refuse("kind", name, p.Kind.String(), d.Kind.String(),
			"kind of %s differs: prefill %s, decode %s: both engines must cache it alike", name, p.Kind, d.Kind)
	}
	if !slices.Equal(p.Layers, d.Layers) {
		pl, dl := FormatLayers(p.Layers), FormatLayers(d.Layers)
		f.refuse("layers", name, pl, dl,
			"layers of %s differ: prefill has %s (%d), decode %s (%d): check that both load the same model with all its layers",
			name, pl, len(p.Layers), dl, len(d.Layers))
	}
	if p.Heads != d.Heads {
		f.refuse("heads", name, strconv.Itoa(p.Heads), strconv.Itoa(d.Heads),
			"heads of %s differ: prefill has %d, decode %d: give the heads of the whole model, not of one rank, on both sides", name, p.Heads, d.Heads)
	}
	if p.HeadBytes != d.HeadBytes {
		f.refuse("head_bytes", name, strconv.FormatUint(p.HeadBytes, 10), strconv.FormatUint(d.HeadBytes, 10),
			"head_bytes of %s differ: prefill has %d bytes for one token of one head, decode %d: check the head size and the cache dtype of both",
			name, p.HeadBytes, d.HeadBytes)
	}
	if p.DType != d.DType {
		f.refuse("dtype", name, p.DType.String(), d.DType.String(),
			"dtype of %s differs: prefill caches %s, decode %s: start both with the same cache dtype", name, p.DType, d.DType)
	}
}

// compareMeta compares the metadata rows: each receiver gets one from a rank of
// the last prefill stage.
func (f *Fit) compareMeta() {
	p, d := f.prefill.metaBytes(true), f.decode.metaBytes(false)
	for n := range f.decode.Engines {
		if e := &f.decode.Engines[n]; d > 0 && e.Meta.Rows == 0 {
			f.refuse("meta_rows", "", "", "0", "decode rank %v has no metadata rows, other decode ranks have: register them on every decode rank", e.Rank)
			break
		}
	}
	if p == d {
		return
	}
	f.refuse("meta_row_bytes", "", strconv.FormatUint(p, 10), strconv.FormatUint(d, 10),
		"metadata rows differ: prefill (last stage) has rows of %d bytes, decode of %d: register the same metadata row on both sides", p, d)
}

// metaBytes is the size of the metadata rows of the instance, 0 for none. last:
// only the last stage has to have them. Validate has seen to it that they agree.
func (i *Instance) metaBytes(last bool) uint64 {
	for n := range i.Engines {
		e := &i.Engines[n]
		if (!last || e.Rank.PP == i.PP-1) && e.Meta.Rows > 0 {
			return e.Meta.RowBytes
		}
	}
	return 0
}

// cover finds the holders of every component, and refuses what somebody needs
// and nobody holds.
func (f *Fit) cover() {
	f.held = make([][]holding, f.prefill.DP)
	for dp := range f.prefill.DP {
		f.held[dp] = make([]holding, len(f.components))
		for n := range f.components {
			c := f.prefill.Model.component(f.components[n].Name)
			f.held[dp][n] = f.prefill.holdings(dp, c)
			f.uncovered(Prefill, dp, c, f.held[dp][n])
		}
	}
	for dp := range f.decode.DP {
		for n := range f.components {
			c := f.decode.Model.component(f.components[n].Name)
			f.uncovered(Decode, dp, c, f.decode.holdings(dp, c))
		}
	}
}

// uncovered refuses the holes that one DP rank of a side leaves in a component.
func (f *Fit) uncovered(side Side, dp int, c *Component, h holding) {
	for _, hole := range h.holes() {
		if len(f.reasons) >= maxReasons {
			return
		}
		field, layers := "layers", FormatLayers(hole.Layers)
		if hole.Heads.High-hole.Heads.Low < c.Heads {
			field = "heads"
		}
		what := fmt.Sprintf("layers %s heads %s", layers, hole.Heads)
		if side == Prefill {
			f.refuse(field, c.Name, "none of "+what, what,
				"no prefill engine of dp %d holds layers %s, heads %s of %s, which decode needs: start prefill with all layers and heads of the model",
				dp, layers, hole.Heads, c.Name)
			continue
		}
		f.refuse(field, c.Name, what, "none of "+what,
			"no decode engine of dp %d holds layers %s, heads %s of %s, which prefill sends: start decode with all layers and heads of the model",
			dp, layers, hole.Heads, c.Name)
	}
}
