package kv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fit is the answer to whether two instances work together, and what follows
// from it for every room: who sends, who receives, what. It never changes.
type Fit struct {
	prefill, decode *Instance
	reasons         []Reason
	components      []Component   // that both sides have, in the order of prefill
	held            [][][]holding // by prefill DP rank, component, and part of the rows
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
	f.compareLayers(p, d)
	if p.Heads != d.Heads {
		f.refuse("heads", name, strconv.Itoa(p.Heads), strconv.Itoa(d.Heads),
			"heads of %s differ: prefill has %d, decode %d: give the heads of the whole model, not of one rank, on both sides", name, p.Heads, d.Heads)
	}
	if p.rowTokens() != d.rowTokens() {
		f.refuse("row_tokens", name, strconv.Itoa(int(p.rowTokens())), strconv.Itoa(int(d.rowTokens())),
			"row_tokens of %s differ: prefill has one row for %d tokens, decode for %d: both engines must compress it alike", name, p.rowTokens(), d.rowTokens())
	}
	if p.Window != d.Window {
		f.refuse("window", name, strconv.FormatUint(p.Window, 10), strconv.FormatUint(d.Window, 10),
			"window of %s differs: prefill keeps %s, decode %s: give the window of the model on both sides", name, windowText(p.Window), windowText(d.Window))
	}
	if p.slotRows() != d.slotRows() {
		f.refuse("slot_rows", name, strconv.Itoa(int(p.slotRows())), strconv.Itoa(int(d.slotRows())),
			"slot_rows of %s differ: prefill has %d rows in a slot, decode %d: both engines must keep the same state", name, p.slotRows(), d.slotRows())
	}
	if p.HeadBytes != d.HeadBytes {
		f.refuse("head_bytes", name, strconv.FormatUint(p.HeadBytes, 10), strconv.FormatUint(d.HeadBytes, 10),
			"head_bytes of %s differ: prefill has %d bytes for one row of one head, decode %d: check the head size and the cache dtype of both",
			name, p.HeadBytes, d.HeadBytes)
	}
	if p.DType != d.DType {
		f.refuse("dtype", name, p.DType.String(), d.DType.String(),
			"dtype of %s differs: prefill caches %s, decode %s: start both with the same cache dtype", name, p.DType, d.DType)
	}
}

// compareLayers refuses layers of a component that only one side has.
func (f *Fit) compareLayers(p, d *Component) {
	for _, c := range []struct {
		less, more *Component
		side       Side
		other      *Instance
	}{{d, p, Decode, f.prefill}, {p, d, Prefill, f.decode}} {
		var extra []int
		for _, l := range c.more.Layers {
			if _, has := slices.BinarySearch(c.less.Layers, l); !has { // ascending, as Validate wants
				extra = append(extra, l)
			}
		}
		if len(extra) > 0 {
			f.lacking(c.side, "layers", p.Name, FormatLayers(p.Layers), FormatLayers(d.Layers),
				"layers "+FormatLayers(c.less.Layers), FormatLayers(extra),
				c.other.holders(p.Name, Box{Layers: extra, Heads: HeadRange{0, c.more.Heads}}),
				fmt.Sprintf("start %s with all %d layers", c.side, len(c.more.Layers)))
		}
	}
}

// lacking refuses what a side lacks of a component: it holds has, and who of the
// other side has more.
func (f *Fit) lacking(side Side, field, component, prefill, decode, has, more, who, fix string) {
	other, verb := Prefill, "sends"
	if side == Prefill {
		other, verb = Decode, "needs"
	}
	by := other.String()
	if who != "" {
		by += " " + who
	}
	f.refuse(field, component, prefill, decode, "%s holds %s of `%s`, %s %s %s: %s, or check that both load the same model",
		side, has, component, by, verb, more, fix)
}

// windowText is a window as a sentence has it.
func windowText(tokens uint64) string {
	if tokens == 0 {
		return "all tokens"
	}
	return fmt.Sprintf("the last %d tokens", tokens)
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
	f.held = make([][][]holding, f.prefill.DP)
	for dp := range f.prefill.DP {
		f.held[dp] = make([][]holding, len(f.components))
		for n := range f.components {
			c := f.prefill.Model.component(f.components[n].Name)
			f.held[dp][n] = f.coverOne(Prefill, f.prefill, f.decode, dp, c)
		}
	}
	for dp := range f.decode.DP {
		for n := range f.components {
			f.coverOne(Decode, f.decode, f.prefill, dp, f.decode.Model.component(f.components[n].Name))
		}
	}
}

// coverOne finds the holders of a component in one DP rank of a side, by the parts
// of the rows that its CP ranks hold, and refuses the holes.
func (f *Fit) coverOne(side Side, i, other *Instance, dp int, c *Component) []holding {
	out := make([]holding, i.parts(c))
	for part := range out {
		out[part] = i.holdings(dp, c, part)
		for _, hole := range out[part].holes() {
			if len(f.reasons) >= maxReasons {
				return out
			}
			f.uncovered(side, other, out[part], i.placeOf(dp, part, len(out)), c, hole)
		}
	}
	return out
}

// placeOf names a part of an instance, as far as it has more than one.
func (i *Instance) placeOf(dp, part, parts int) string {
	var out string
	if i.DP > 1 {
		out += fmt.Sprintf(" (dp %d)", dp)
	}
	if parts > 1 {
		out += fmt.Sprintf(" (cp %d)", part)
	}
	return out
}

// uncovered refuses a hole in a component: layers and heads that nobody of a side
// holds and the other side has.
func (f *Fit) uncovered(side Side, other *Instance, held holding, place string, c *Component, hole Box) {
	layers := held.layers()
	field, more := "layers", FormatLayers(hole.Layers)
	has := "layers " + FormatLayers(layers)
	fix := fmt.Sprintf("start %s with all %d layers", side, len(c.Layers))
	switch {
	case len(layers) == 0:
		has, more = "nothing", "layers "+more
	case hole.Heads.High-hole.Heads.Low < c.Heads:
		field, more = "heads", hole.Heads.String()
		has = fmt.Sprintf("heads %s of layers %s", held.headsOf(hole.Layers[0]), FormatLayers(hole.Layers))
		fix = fmt.Sprintf("start %s with ranks that hold all %d heads", side, c.Heads)
	}
	prefill, decode := has, more
	if side == Decode {
		prefill, decode = more, has
	}
	f.lacking(side, field, c.Name, prefill, decode, has+place, more, other.holders(c.Name, hole), fix)
}

// layers are those that somebody holds something of.
func (h holding) layers() []int {
	var out []int
	for _, class := range h {
		if slices.ContainsFunc(class.spans, func(s span) bool { return len(s.holders) > 0 }) {
			out = append(out, class.layers...)
		}
	}
	slices.Sort(out)
	return out
}

// headsOf are the heads of a layer that somebody holds, as text.
func (h holding) headsOf(layer int) string {
	var out []string
	for _, class := range h {
		if !slices.Contains(class.layers, layer) {
			continue
		}
		for _, s := range class.spans {
			if len(s.holders) > 0 {
				out = append(out, s.heads.String())
			}
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

// holders says which ranks of the first DP rank hold something of a hole of the
// other side: "stage 3 (tp 0-7)".
func (i *Instance) holders(component string, hole Box) string {
	tps := make(map[int][]int)
	var stages []int
	for n := range i.Engines {
		e := &i.Engines[n]
		s := e.shard(component)
		if e.Rank.DP > 0 || s == nil || len(s.layersIn(hole.Layers)) == 0 {
			continue
		}
		if _, ok := s.Heads.intersect(hole.Heads); !ok {
			continue
		}
		stages, tps[e.Rank.PP] = insertSorted(stages, e.Rank.PP), insertSorted(tps[e.Rank.PP], e.Rank.TP)
	}
	out := make([]string, len(stages))
	for n, pp := range stages {
		out[n] = fmt.Sprintf("stage %d (tp %s)", pp, FormatLayers(tps[pp]))
	}
	return strings.Join(out, ", ")
}
