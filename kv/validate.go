package kv

import (
	"fmt"
	"math/bits"
	"strconv"
	"unicode"
)

// Limits of what an instance may say. They are far beyond any engine and keep
// every product of two numbers within 64 bits where it must be.
const (
	maxEngines    = 1 << 14
	maxTensors    = 1 << 20 // of all engines: a layer of a component in a rank
	maxComponents = 1 << 8
	maxLayers     = 1 << 14 // layer numbers are below it
	maxHeads      = 1 << 14
	maxHeadBytes  = 1 << 32
	maxPageTokens = 1 << 16
	maxSlotRows   = 1 << 16
	maxRegion     = 1 << 56 // bytes

	// maxName is the characters of a component's name: names stand in what people read.
	maxName = 256

	// maxReasons bounds what a malformed instance makes us say. Behind it the
	// reasons only repeat themselves.
	maxReasons = 64
)

// printable reports whether a name can stand in a line of text and cannot pretend to
// be another.
func printable(name string) bool {
	n := 0
	for _, r := range name {
		if n++; n > maxName || r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// validator collects what is wrong with one instance.
type validator struct {
	i       *Instance
	reasons []Reason
	faults  int               // found, also those beyond maxReasons
	sound   bool              // the model is
	size    map[uint64]uint32 // page size of the instance, by window
	sizeOf  map[uint64]Rank
	meta    uint64 // bytes of a metadata row, 0 before the first
	metaOf  Rank
}

// Validate says everything that is wrong with the instance by itself: sizes that
// do not fit, ranks or layers that are missing or there twice, memory that is
// beyond its region or that two tensors share. A valid instance can be planned
// with: no number in it overflows, and no row of it is outside of its region.
func (i *Instance) Validate() []Reason {
	v := &validator{i: i, size: map[uint64]uint32{}, sizeOf: map[uint64]Rank{}}
	v.model()
	v.sound = v.faults == 0
	if v.sizes() {
		for n := range i.Engines {
			v.engine(&i.Engines[n])
		}
		v.metaRows()
	}
	return sortReasons(v.reasons)
}

// ValidateRank is Validate of what one rank says, in an instance that may lack the
// others: what an engine can be told before anybody pairs with it.
func (i *Instance) ValidateRank(r Rank) []Reason {
	v := &validator{i: i, size: map[uint64]uint32{}, sizeOf: map[uint64]Rank{}}
	v.model()
	v.sound = v.faults == 0
	if !v.directions() {
		return sortReasons(v.reasons)
	}
	e := i.engine(r)
	if _, ok := i.index(r); !ok || e == nil {
		v.refuse("rank", "", r.String(), "rank %v is not there, or beyond dp %d pp %d cp %d tp %d", r, i.DP, i.PP, i.CP, i.TP)
		return v.reasons
	}
	v.engine(e)
	v.metaRow(e)
	return sortReasons(v.reasons)
}

// refuse notes a reason. got is the value that the side has.
func (v *validator) refuse(field, component, got, format string, a ...any) {
	v.faults++
	if len(v.reasons) < maxReasons {
		v.reasons = append(v.reasons, Reason{Field: field, Component: component, value: got, Text: fmt.Sprintf(format, a...)})
	}
}

// within refuses a number that is not from lo to hi.
func (v *validator) within(field, component, where string, got, lo, hi int) bool {
	if lo <= got && got <= hi {
		return true
	}
	v.refuse(field, component, strconv.Itoa(got), "%s: %s is %d, want %d to %d", where, field, got, lo, hi)
	return false
}

func (v *validator) model() {
	cs := v.i.Model.Components
	if !v.within("components", "", "model", len(cs), 1, maxComponents) {
		return
	}
	seen := make(map[string]bool, len(cs))
	for n := range cs {
		c := &cs[n]
		where := fmt.Sprintf("component %q", c.Name)
		switch {
		case c.Name == "":
			v.refuse("name", "", "", "component %d has no name", n)
		case !printable(c.Name):
			v.refuse("name", "", "", "component %d is called %q, want 1 to %d printable characters", n, c.Name, maxName)
		}
		if seen[c.Name] {
			v.refuse("components", c.Name, "twice", "component %q is declared twice", c.Name)
		}
		seen[c.Name] = true
		v.rowsOf(where, c)
		if c.DType.Bytes() == 0 {
			v.refuse("dtype", c.Name, c.DType.String(), "%s: dtype is %v, want one of %s", where, c.DType, dtypeNames())
		}
		if size := c.DType.Bytes(); size > 0 && c.HeadBytes%size != 0 {
			v.refuse("head_bytes", c.Name, strconv.FormatUint(c.HeadBytes, 10), "%s: head_bytes is %d, want a multiple of the %d bytes of a %v", where, c.HeadBytes, size, c.DType)
		}
		v.within("heads", c.Name, where, c.Heads, 1, maxHeads)
		if c.HeadBytes < 1 || c.HeadBytes > maxHeadBytes {
			v.refuse("head_bytes", c.Name, strconv.FormatUint(c.HeadBytes, 10), "%s: head_bytes is %d, want 1 to %d", where, c.HeadBytes, uint64(maxHeadBytes))
		}
		v.within("layers", c.Name, where, len(c.Layers), 1, maxLayers)
		v.ascending(c.Name, where, len(c.Layers), func(n int) int { return c.Layers[n] })
	}
}

// rowsOf checks what a component has one row of.
func (v *validator) rowsOf(where string, c *Component) {
	refuse := func(field string, got uint64, format string, a ...any) {
		v.refuse(field, c.Name, strconv.FormatUint(got, 10), "%s: "+format, append([]any{where}, a...)...)
	}
	if c.RowTokens > maxPageTokens {
		refuse("row_tokens", uint64(c.RowTokens), "row_tokens is %d, want at most %d", c.RowTokens, maxPageTokens)
	}
	switch c.Kind {
	case Paged:
		if c.SlotRows > 0 {
			refuse("slot_rows", uint64(c.SlotRows), "slot_rows is %d, and a paged component has no slots: want 0", c.SlotRows)
		}
		if c.Window > maxTokens {
			refuse("window", c.Window, "window is %d tokens, want at most %d", c.Window, uint64(maxTokens))
		}
	case Slot:
		if c.SlotRows > maxSlotRows {
			refuse("slot_rows", uint64(c.SlotRows), "slot_rows is %d, want at most %d", c.SlotRows, maxSlotRows)
		}
		if c.Window > 0 {
			refuse("window", c.Window, "window is %d tokens, and a slot component has no tokens: want 0", c.Window)
		}
	default:
		v.refuse("kind", c.Name, c.Kind.String(), "%s: kind is %v, want paged or slot", where, c.Kind)
	}
}

// ascending refuses layers that are out of range, out of order, or there twice.
// The first one says enough.
func (v *validator) ascending(component, where string, n int, layer func(int) int) bool {
	for k := range n {
		l := layer(k)
		if !v.within("layers", component, where+": layer", l, 0, maxLayers-1) {
			return false
		}
		if k > 0 && layer(k-1) == l {
			v.refuse("layers", component, strconv.Itoa(l), "%s: layer %d is there twice", where, l)
			return false
		}
		if k > 0 && layer(k-1) > l {
			v.refuse("layers", component, strconv.Itoa(l), "%s: layer %d stands behind layer %d, want them ascending", where, l, layer(k-1))
			return false
		}
	}
	return true
}

// directions checks the sizes of the instance and how tokens are split.
func (v *validator) directions() bool {
	i := v.i
	ok := true
	for _, s := range []struct {
		name string
		size int
	}{{"dp", i.DP}, {"pp", i.PP}, {"cp", i.CP}, {"tp", i.TP}} {
		ok = v.within(s.name, "", "parallel", s.size, 1, maxEngines) && ok
	}
	if i.Split > Interleaved {
		v.refuse("cp_split", "", i.Split.String(), "parallel: cp_split is %v, want copies, pages or tokens", i.Split)
		return false
	}
	return ok
}

// sizes checks that there is exactly one engine for each rank, in roster order.
func (v *validator) sizes() bool {
	if !v.directions() {
		return false
	}
	i := v.i
	want := uint64(i.DP) * uint64(i.PP) * uint64(i.CP) * uint64(i.TP) // each is below 2^15
	if want > maxEngines || uint64(len(i.Engines)) != want {
		v.refuse("engines", "", strconv.Itoa(len(i.Engines)), "%d engines, want dp %d x pp %d x cp %d x tp %d = %d, at most %d",
			len(i.Engines), i.DP, i.PP, i.CP, i.TP, want, maxEngines)
		return false
	}
	tensors := 0
	for n := range i.Engines {
		for k := range i.Engines[n].Shards {
			tensors += len(i.Engines[n].Shards[k].Layers)
		}
	}
	if tensors > maxTensors {
		v.refuse("engines", "", strconv.Itoa(tensors), "the engines hold %d tensors (layers of a component) together, want at most %d", tensors, maxTensors)
		return false
	}
	for n := range i.Engines {
		got := i.Engines[n].Rank
		at := Rank{DP: n / (i.PP * i.CP * i.TP), PP: n / (i.CP * i.TP) % i.PP, CP: n / i.TP % i.CP, TP: n % i.TP}
		if got == at {
			continue
		}
		if n > 0 && got == i.Engines[n-1].Rank {
			v.refuse("rank", "", got.String(), "rank %v is there twice", got)
		} else if got.Compare(at) > 0 {
			v.refuse("rank", "", got.String(), "rank %v is missing, or out of roster order: %v stands in its place", at, got)
		} else {
			v.refuse("rank", "", got.String(), "rank %v stands where %v belongs: it is there twice or out of roster order", got, at)
		}
		return false
	}
	return true
}

// engine checks what one rank holds.
func (v *validator) engine(e *Engine) {
	before := v.faults
	seen := make(map[string]bool, len(e.Shards))
	for n, bytes := range e.RegionBytes {
		if bytes > maxRegion {
			v.refuse("region_bytes", "", strconv.FormatUint(bytes, 10), "rank %v: region %d has %d bytes, want at most %d", e.Rank, n, bytes, uint64(maxRegion))
		}
	}
	for n := range e.Shards {
		s := &e.Shards[n]
		c := v.i.Model.component(s.Component)
		if c == nil {
			v.refuse("components", s.Component, "not declared", "rank %v holds %q, which the model does not declare", e.Rank, s.Component)
			continue
		}
		if seen[s.Component] {
			v.refuse("components", s.Component, "twice", "rank %v has component %q twice, want one shard", e.Rank, s.Component)
		}
		seen[s.Component] = true
		v.shard(e, s, c)
	}
	// Whether tensors overlap is a question only if each is what it should be.
	if v.sound && v.faults == before {
		v.overlaps(e)
	}
}

// metaRows checks the metadata rows of all engines against one another.
func (v *validator) metaRows() {
	for n := range v.i.Engines {
		v.metaRow(&v.i.Engines[n])
	}
	// Half of the stage with rows would leave some receivers without a writer.
	for dp := range v.i.DP {
		hi := (dp + 1) * v.i.perDP()
		last := v.i.Engines[hi-v.i.CP*v.i.TP : hi]
		for n := range last {
			if (last[n].Meta.Rows > 0) != (v.i.Engines[len(v.i.Engines)-1].Meta.Rows > 0) {
				v.refuse("meta_rows", "", strconv.FormatUint(uint64(last[n].Meta.Rows), 10),
					"rank %v has %d metadata rows, rank %v has %d: want rows on all ranks of the last stage or on none",
					last[n].Rank, last[n].Meta.Rows, v.i.Engines[len(v.i.Engines)-1].Rank, v.i.Engines[len(v.i.Engines)-1].Meta.Rows)
			}
		}
	}
}

// metaRow checks the metadata rows of an engine.
func (v *validator) metaRow(e *Engine) {
	m := &e.Meta
	if m.Rows == 0 {
		return
	}
	if m.RowBytes == 0 {
		v.refuse("meta_row_bytes", "", "0", "rank %v: metadata rows have 0 bytes, want at least 1", e.Rank)
		return
	}
	end, ok := extent(m.Offset, m.Rows, m.RowBytes, m.RowBytes)
	v.inside(e, "", func() string { return "metadata rows" }, m.Region, m.Offset, end, ok)
	if v.meta == 0 {
		v.meta, v.metaOf = m.RowBytes, e.Rank
	}
	if v.meta != m.RowBytes {
		v.refuse("meta_row_bytes", "", strconv.FormatUint(m.RowBytes, 10),
			"rank %v has metadata rows of %d bytes, rank %v of %d: want one size in an instance", e.Rank, m.RowBytes, v.metaOf, v.meta)
	}
}

// extent is the end of rows of width bytes: one at each of count strides from
// offset; false if it is beyond 64 bits.
func extent(offset uint64, count uint32, stride, width uint64) (uint64, bool) {
	if count == 0 {
		return offset, true
	}
	hi, lo := bits.Mul64(uint64(count-1), stride)
	a, c1 := bits.Add64(offset, lo, 0)
	b, c2 := bits.Add64(a, width, 0)
	return b, hi == 0 && c1 == 0 && c2 == 0
}

// inside refuses memory that is beyond its region.
func (v *validator) inside(e *Engine, component string, what func() string, region uint32, offset, end uint64, fits bool) {
	if uint64(region) >= uint64(len(e.RegionBytes)) {
		v.refuse("region", component, strconv.FormatUint(uint64(region), 10), "rank %v: %s are in region %d, want below the %d regions of the engine",
			e.Rank, what(), region, len(e.RegionBytes))
		return
	}
	if size := e.RegionBytes[region]; !fits || end > size {
		ends := strconv.FormatUint(end, 10)
		if !fits {
			ends = "beyond 2^64"
		}
		v.refuse("offset", component, strconv.FormatUint(offset, 10), "rank %v: %s begin at byte %d and end at %s, want within the %d bytes of region %d",
			e.Rank, what(), offset, ends, size, region)
	}
}
