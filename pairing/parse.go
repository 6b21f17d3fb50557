package pairing

import (
	"fmt"
	"strconv"

	"kvferry/kv"
	"kvferry/messages"
)

// Bounds of one description: far beyond any engine, and small enough that what
// follows from a description of one part costs no more memory than the part.
const (
	maxName       = 256     // bytes of an instance, component, provider or model name
	maxSize       = 1 << 14 // ranks of an instance in one direction, and in all
	maxComponents = 1 << 8
	maxLayers     = 1 << 14
	maxHeads      = 1 << 14
	maxRegions    = 1 << 14
	maxKeys       = 16      // providers of one region
	maxOpaque     = 4 << 10 // bytes of a region key
)

// parser reads a description. The first value that is out of bounds is err; from
// then on nothing more is looked at.
type parser struct {
	err    error
	layers uint64 // of all components so far: a span of a few bytes is many layers
}

// Parse reads a description off the wire. Counts are checked before anything is
// allocated for them, and every number is within the bounds of its Go type. The
// error is a *FieldError. Whether the parts of the description fit together,
// and with those of other ranks, is what kv.Instance.Validate says.
func Parse(w *messages.EngineDescription) (Described, error) {
	p := &parser{}
	d := Described{
		Engine: p.engine(w.GetEngine()),
		Role:   p.role(w.GetRole()),
		DP:     p.size("dp_size", w.GetDpSize()),
		PP:     p.size("pp_size", w.GetPpSize()),
		CP:     p.size("cp_size", w.GetCpSize()),
		TP:     p.size("tp_size", w.GetTpSize()),
		Split:  kv.Split(w.GetCpSplit()),
	}
	p.within("cp_split", uint64(w.GetCpSplit()), uint64(kv.Copies), uint64(kv.Interleaved))
	p.within("sizes", uint64(d.DP)*uint64(d.PP)*uint64(d.CP)*uint64(d.TP), 1, maxSize)
	r := d.Engine.Rank
	for _, s := range [...]struct {
		name       string
		rank, size int
	}{{"engine.dp", r.DP, d.DP}, {"engine.pp", r.PP, d.PP}, {"engine.cp", r.CP, d.CP}, {"engine.tp", r.TP, d.TP}} {
		if p.err == nil && s.rank >= s.size {
			p.fail(s.name, strconv.Itoa(s.rank), fmt.Sprintf("below the size %d", s.size))
		}
	}
	d.Model = p.model(w.GetModel())
	d.Kv.Rank = r
	d.Regions = p.regions(w.GetRegions())
	for _, g := range d.Regions {
		d.Kv.RegionBytes = append(d.Kv.RegionBytes, g.GetBytes())
	}
	d.Kv.Shards = p.shards(w.GetShards(), len(d.Regions))
	if m := w.GetMeta(); m != nil {
		if m.GetRows() > 0 {
			p.region("meta.region", m.GetRegion(), len(d.Regions))
		}
		d.Kv.Meta = kv.MetaRows{Region: m.GetRegion(), Offset: m.GetOffset(), RowBytes: m.GetRowBytes(), Rows: m.GetRows()}
	}
	if p.err != nil {
		return Described{}, p.err
	}
	return d, nil
}

func (p *parser) fail(field, got, want string) {
	if p.err == nil {
		p.err = &FieldError{Field: field, Got: got, Want: want}
	}
}

// within reports whether got is from lo to hi.
func (p *parser) within(field string, got, lo, hi uint64) bool {
	if p.err == nil && (got < lo || got > hi) {
		p.fail(field, strconv.FormatUint(got, 10), fmt.Sprintf("%d to %d", lo, hi))
	}
	return p.err == nil
}

func (p *parser) size(field string, n uint32) int {
	p.within(field, uint64(n), 1, maxSize)
	return int(n)
}

func (p *parser) name(field, s string, least int) string {
	if p.err == nil && (len(s) < least || len(s) > maxName) {
		p.fail(field, fmt.Sprintf("%d bytes long", len(s)), fmt.Sprintf("%d to %d", least, maxName))
	}
	return s
}

func (p *parser) region(field string, n uint32, regions int) {
	if p.err == nil && uint64(n) >= uint64(regions) {
		p.fail(field, strconv.FormatUint(uint64(n), 10), fmt.Sprintf("below the %d regions", regions))
	}
}

func (p *parser) engine(e *messages.EngineRef) messages.Engine {
	p.name("engine.instance", e.GetInstance(), 1)
	for _, r := range [...]struct {
		name string
		n    uint32
	}{{"engine.dp", e.GetDp()}, {"engine.pp", e.GetPp()}, {"engine.cp", e.GetCp()}, {"engine.tp", e.GetTp()}} {
		p.within(r.name, uint64(r.n), 0, maxSize-1)
	}
	if p.err == nil && e.GetIncarnation() == 0 {
		p.fail("engine.incarnation", "0", "one that was drawn")
	}
	return e.Engine()
}

func (p *parser) role(r messages.Role) messages.Role {
	if r != messages.Role_ROLE_PREFILL && r != messages.Role_ROLE_DECODE {
		p.fail("role", strconv.Itoa(int(r)), "1 (prefill) or 2 (decode)")
	}
	return r
}

func (p *parser) model(w *messages.Model) kv.Model {
	m := kv.Model{ID: p.name("model.id", w.GetId(), 0), Revision: p.name("model.revision", w.GetRevision(), 0)}
	if !p.within("model.components", uint64(len(w.GetComponents())), 1, maxComponents) {
		return m
	}
	m.Components = make([]kv.Component, 0, len(w.GetComponents()))
	for n, c := range w.GetComponents() {
		at := fmt.Sprintf("model.components[%d]", n)
		p.name(at+".name", c.GetName(), 1)
		p.within(at+".heads", uint64(c.GetHeads()), 1, maxHeads)
		if c.GetKind() != uint32(kv.Paged) && c.GetKind() != uint32(kv.Slot) {
			p.fail(at+".kind", strconv.FormatUint(uint64(c.GetKind()), 10), "1 (paged) or 2 (slot)")
		}
		if c.GetDtype() > 255 || kv.DType(c.GetDtype()).Bytes() == 0 {
			p.fail(at+".dtype", strconv.FormatUint(uint64(c.GetDtype()), 10), "a known element type")
		}
		m.Components = append(m.Components, kv.Component{
			Name: c.GetName(), Kind: kv.Kind(c.GetKind()), Layers: p.expand(at+".layers", c.GetLayers()),
			Heads: int(c.GetHeads()), HeadBytes: c.GetHeadBytes(), DType: kv.DType(c.GetDtype()), Optional: c.GetOptional(),
			RowTokens: c.GetRowTokens(), Window: c.GetWindow(), SlotRows: c.GetSlotRows(),
		})
		if p.err != nil {
			return m
		}
	}
	return m
}

// expand makes ascending layers of spans. The count of all is checked before one
// is written down.
func (p *parser) expand(field string, spans []*messages.Span) []int {
	total, next := uint64(0), uint64(0)
	for n, s := range spans {
		at := fmt.Sprintf("%s[%d]", field, n)
		if !p.within(at+".count", uint64(s.GetCount()), 1, maxLayers) ||
			!p.within(at+".first", uint64(s.GetFirst()), next, maxLayers-1) {
			return nil
		}
		last := uint64(s.GetFirst())
		if s.GetCount() > 1 {
			if !p.within(at+".step", uint64(s.GetStep()), 1, maxLayers) {
				return nil
			}
			last += uint64(s.GetCount()-1) * uint64(s.GetStep()) // below 2^29
		}
		if !p.within(at+" last layer", last, 0, maxLayers-1) {
			return nil
		}
		next = last + 1
		total += uint64(s.GetCount())
	}
	p.layers += total
	if !p.within(field, total, 1, maxLayers) || !p.within("model layers of all components", p.layers, 1, maxLayers) {
		return nil
	}
	layers := make([]int, 0, total)
	for _, s := range spans {
		for k := range s.GetCount() {
			layers = append(layers, int(s.GetFirst()+k*s.GetStep()))
		}
	}
	return layers
}

func (p *parser) regions(ws []*messages.Region) []*messages.Region {
	if !p.within("regions", uint64(len(ws)), 0, maxRegions) {
		return nil
	}
	for n, r := range ws {
		at := fmt.Sprintf("regions[%d]", n)
		p.within(at+".keys", uint64(len(r.GetKeys())), 0, maxKeys)
		for k, key := range r.GetKeys() {
			if p.err != nil {
				return nil
			}
			p.name(fmt.Sprintf("%s.keys[%d].provider", at, k), key.GetProvider(), 1)
			p.within(fmt.Sprintf("%s.keys[%d].opaque", at, k), uint64(len(key.GetOpaque())), 0, maxOpaque)
		}
	}
	return ws
}

func (p *parser) shards(ws []*messages.Shard, regions int) []kv.Shard {
	if !p.within("shards", uint64(len(ws)), 0, maxComponents) {
		return nil
	}
	var shards []kv.Shard
	for n, w := range ws {
		at := fmt.Sprintf("shards[%d]", n)
		p.name(at+".component", w.GetComponent(), 1)
		p.within(at+".head_high", uint64(w.GetHeadHigh()), 1, maxHeads)
		p.within(at+".head_low", uint64(w.GetHeadLow()), 0, uint64(max(w.GetHeadHigh(), 1)-1))
		if !p.within(at+".layers", uint64(len(w.GetLayers())), 0, maxLayers) {
			return nil
		}
		s := kv.Shard{
			Component: w.GetComponent(), Heads: kv.HeadRange{Low: int(w.GetHeadLow()), High: int(w.GetHeadHigh())},
			PageTokens: w.GetPageTokens(), PageStride: w.GetPageStride(),
			RowStride: w.GetRowStride(), HeadStride: w.GetHeadStride(),
		}
		for k, t := range w.GetLayers() {
			p.within(fmt.Sprintf("%s.layers[%d].layer", at, k), uint64(t.GetLayer()), 0, maxLayers-1)
			p.region(fmt.Sprintf("%s.layers[%d].region", at, k), t.GetRegion(), regions)
			if p.err != nil {
				return nil
			}
			s.Layers = append(s.Layers, kv.LayerTensor{
				Layer: int(t.GetLayer()), Region: t.GetRegion(), Offset: t.GetOffset(), Pages: t.GetPages(),
			})
		}
		shards = append(shards, s)
	}
	return shards
}
