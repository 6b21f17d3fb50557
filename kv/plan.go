package kv

import (
	"fmt"
	"slices"
)

// Chunk is the tokens [From, To) that one step of prefill finished, or some layers
// of them, and where the request is. The chunks of a request go on from one
// another, and so do the layers of a chunk.
type Chunk struct {
	From, To uint64
	Layers   LayerRange // of From to To; the zero value is all
	Source   Placement  // where the writer keeps the request
	// Last: To is the length, so that the state of the request goes along, and with
	// the last layers the metadata row.
	Last bool
	// More: other layers of the same tokens follow.
	More bool
}

// LayerRange is the layers [Low, High) by their numbers. The zero value is all.
type LayerRange struct{ Low, High int }

// of is the part of ascending tensors that the range has.
func (l LayerRange) of(tensors []tensorPair) []tensorPair {
	if l == (LayerRange{}) {
		return tensors
	}
	by := func(t tensorPair, layer int) int { return t.layer - layer }
	lo, _ := slices.BinarySearchFunc(tensors, l.Low, by)
	hi, _ := slices.BinarySearchFunc(tensors, l.High, by)
	return tensors[lo:max(lo, hi)]
}

// Targets are the destination ranges that the receiver grants to this writer. at
// is where the receiver keeps the request: in each pool exactly the pages of Need.
func (p *Pair) Targets(at *Placement) ([]Range, error) {
	if err := p.checkTarget(at); err != nil {
		return nil, err
	}
	for _, t := range at.Tables {
		if page, twice := repeatedPage(t.Pages); twice {
			return nil, fmt.Errorf("decode pages: page %d is there twice", page)
		}
	}
	groups := make([][]targetGroup, len(p.tracks))
	for i := range p.tracks {
		t := &p.tracks[i]
		groups[i] = targetGroups(t.rows.count, t.target.walk(t.rows, at.Table(t.window)))
	}
	slot := []targetGroup{{runs: []Run{{First: at.Slot, Count: 1, Step: 1}}}}
	out := make([]Range, 0, p.records(func(track int) int { return len(groups[track]) }))
	for i := range p.moves {
		m := &p.moves[i]
		box := &p.Boxes[m.box]
		of := slot
		if m.track != slotTrack {
			of = groups[m.track]
		}
		for _, g := range of {
			count := max(g.rows, m.rows)
			r := rowsOf(count, uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.target, m.target)
			for _, t := range m.tensors {
				out = append(out, Range{
					Component: box.Component, Layer: t.layer,
					Region: t.target.region, Offset: t.target.offset + uint64(g.target)*m.target.row, UnitStride: m.target.page,
					Bytes: r.bytes, Count: r.count, Stride: r.target, Runs: g.runs,
				})
			}
		}
	}
	if p.sendsMeta() {
		m := p.targetMeta
		out = append(out, Range{
			Region: m.Region, Offset: m.Offset, UnitStride: m.RowBytes, Bytes: m.RowBytes,
			Count: [2]uint32{1, 1}, Runs: []Run{{First: at.MetaRow, Count: 1, Step: 1}},
		})
	}
	return out, nil
}

// records is how many ranges or copies the plan has, given the groups of each
// track.
func (p *Pair) records(groups func(track int) int) int {
	n := 1
	for i := range p.moves {
		of := 1
		if t := p.moves[i].track; t != slotTrack {
			of = groups(t)
		}
		n += of * len(p.moves[i].tensors)
	}
	return n
}

// sendsMeta answers whether the pair has a metadata row. The elected writer of a
// pair of instances that keep none sends nothing.
func (p *Pair) sendsMeta() bool { return p.Meta && p.targetMeta.Rows > 0 }

// sendsSlot answers whether the pair has state.
func (p *Pair) sendsSlot() bool {
	return slices.ContainsFunc(p.moves, func(m move) bool { return m.track == slotTrack })
}

// checkTarget checks where the receiver keeps the request. Within the pages and
// slots of a valid instance every row is inside of its region.
func (p *Pair) checkTarget(at *Placement) error {
	if err := at.check(Decode, p.targetPools, p.Prefix, p.Length); err != nil {
		return err
	}
	if p.sendsSlot() && at.Slot >= p.targetSlots {
		return fmt.Errorf("decode slot is %d, want below %d", at.Slot, p.targetSlots)
	}
	if p.sendsMeta() && at.MetaRow >= p.targetMeta.Rows {
		return fmt.Errorf("decode metadata row is %d, want below %d", at.MetaRow, p.targetMeta.Rows)
	}
	return nil
}

// check answers whether a placement has tables for the pools of a rank, and no
// others, with exactly what each needs of [prefix, length), in pages that are there.
func (p *Placement) check(side Side, pools []Pool, prefix, length uint64) error {
	for i, t := range p.Tables {
		if i > 0 && p.Tables[i-1].Window >= t.Window {
			return fmt.Errorf("%s pages: window %d stands behind window %d, want them ascending", side, t.Window, p.Tables[i-1].Window)
		}
		if !slices.ContainsFunc(pools, func(q Pool) bool { return q.Window == t.Window }) && len(t.Pages) > 0 {
			return fmt.Errorf("%s pages: got %d pages of window %d, and the engine has no component with that window", side, len(t.Pages), t.Window)
		}
	}
	for _, pool := range pools {
		t := p.Table(pool.Window)
		if err := pool.Check(side, t, prefix, length); err != nil {
			return err
		}
		if err := below(side, t.Pages, pool.Pages); err != nil {
			return err
		}
	}
	return nil
}

// below refuses pages that not every tensor of a pool has.
func below(side Side, pages []uint32, limit uint32) error {
	if len(pages) == 0 {
		return nil
	}
	if top := slices.Max(pages); top >= limit {
		return fmt.Errorf("%s page is %d, want below the %d pages of the pool", side, top, limit)
	}
	return nil
}

// targetGroup is the pages of the target of which the same rows are written.
type targetGroup struct {
	target, rows uint32
	runs         []Run
}

// targetGroups cuts count rows at the target's page borders: of a sequence without
// gaps these are a first page that begins inside, whole pages, and a last page
// that ends inside.
func targetGroups(count uint64, w walk) []targetGroup {
	type pages struct {
		target, rows uint32
		list         []uint32
	}
	var groups []pages
	for left := count; left > 0; {
		n := w.left()
		if uint64(n) > left {
			n = uint32(left)
		}
		take := uint64(1)
		if n == w.size && w.step == 1 { // whole pages
			take = left / uint64(n)
		}
		at := slices.IndexFunc(groups, func(g pages) bool { return g.target == w.row && g.rows == n })
		if at < 0 {
			at = len(groups)
			groups = append(groups, pages{target: w.row, rows: n})
		}
		groups[at].list = append(groups[at].list, w.pages[w.page:w.page+take]...)
		left -= take * uint64(n)
		if take > 1 {
			w.page += take - 1
		}
		w.skip(n)
	}
	out := make([]targetGroup, len(groups))
	for i, g := range groups {
		out[i] = targetGroup{g.target, g.rows, PackPages(g.list)}
	}
	return out
}

// Copies are what a chunk moves: its rows that are complete with it, and were not
// before it, of those that the pair sends; with Last the state too, and at the end
// the metadata row. target is what Targets was given. Every row of every copy lies
// inside a tensor of both sides, and inside the ranges of Targets.
func (p *Pair) Copies(c Chunk, target *Placement) ([]Copy, error) {
	if c.From > c.To {
		return nil, fmt.Errorf("chunk begins at token %d and ends at %d", c.From, c.To)
	}
	if c.To > p.Length {
		return nil, fmt.Errorf("chunk ends at token %d, want at most %d, the length of the request", c.To, p.Length)
	}
	if c.Last && c.To < p.Length {
		return nil, fmt.Errorf("the last chunk ends at token %d, want %d, the length of the request", c.To, p.Length)
	}
	if c.Layers.Low < 0 || c.Layers.Low > c.Layers.High {
		return nil, fmt.Errorf("chunk begins at layer %d and ends at %d", c.Layers.Low, c.Layers.High)
	}
	if err := p.checkTarget(target); err != nil {
		return nil, err
	}
	groups := make([][]group, len(p.tracks))
	for i := range p.tracks {
		t := &p.tracks[i]
		q := uint64(t.rowTokens)
		r := t.rows.within(c.From/q, c.To/q)
		if r.count == 0 {
			continue
		}
		table := c.Source.Table(t.window)
		if err := t.checkSource(table, r); err != nil {
			return nil, err
		}
		groups[i] = cut(r.count, t.source.walk(r, table), t.target.walk(r, target.Table(t.window)))
	}
	out := make([]Copy, 0, p.records(func(track int) int { return len(groups[track]) }))
	if c.Last && p.sendsSlot() && c.Source.Slot >= p.sourceSlots {
		return nil, fmt.Errorf("prefill slot is %d, want below %d", c.Source.Slot, p.sourceSlots)
	}
	slot := []group{{runs: []PairRun{{Source: c.Source.Slot, Target: target.Slot, Count: 1, SourceStep: 1, TargetStep: 1}}}}
	for i := range p.moves {
		m := &p.moves[i]
		switch {
		case m.track != slotTrack:
			out = p.copies(out, m, groups[m.track], c.Layers)
		case c.Last:
			out = p.copies(out, m, slot, c.Layers)
		}
	}
	if c.Last && !c.More && p.sendsMeta() {
		s, t := p.sourceMeta, p.targetMeta
		if c.Source.MetaRow >= s.Rows {
			return nil, fmt.Errorf("prefill metadata row is %d, want below %d", c.Source.MetaRow, s.Rows)
		}
		out = append(out, Copy{
			Source: Place{Region: s.Region, Offset: s.Offset, UnitStride: s.RowBytes},
			Target: Place{Region: t.Region, Offset: t.Offset, UnitStride: t.RowBytes},
			Bytes:  t.RowBytes, Count: [2]uint32{1, 1},
			Runs: []PairRun{{Source: c.Source.MetaRow, Target: target.MetaRow, Count: 1, SourceStep: 1, TargetStep: 1}},
		})
	}
	return out, nil
}

// checkSource answers whether the table of the writer has the pages of the rows.
func (t *track) checkSource(table PageTable, r rows) error {
	stripe, q := t.source.Stripe(), uint64(t.rowTokens)
	if table.First%stripe != 0 {
		return fmt.Errorf("prefill pages: first token is %d, want a multiple of the %d tokens of a page", table.First, stripe)
	}
	first, last := r.start*q/stripe, (r.start+(r.count-1)*r.step)*q/stripe
	if table.First > first*stripe {
		return fmt.Errorf("prefill pages: first token is %d, want at most %d", table.First, first*stripe)
	}
	from := table.First / stripe
	if have := uint64(len(table.Pages)); from+have <= last {
		return fmt.Errorf("prefill pages: got %d pages from token %d, want %d for tokens up to %d", have, table.First, last-from+1, (last+1)*stripe)
	}
	return below(Prefill, table.Pages[first-from:last-from+1], t.source.Pages)
}

// copies appends one copy for each tensor pair of a move, and group.
func (p *Pair) copies(out []Copy, m *move, groups []group, layers LayerRange) []Copy {
	box := &p.Boxes[m.box]
	tensors := layers.of(m.tensors)
	for n := range groups {
		g := &groups[n]
		r := rowsOf(max(g.rows, m.rows), uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.source, m.target)
		for _, t := range tensors {
			out = append(out, Copy{
				Component: box.Component, Layer: t.layer,
				Source: Place{t.source.region, t.source.offset + uint64(g.source)*m.source.row, m.source.page, r.source},
				Target: Place{t.target.region, t.target.offset + uint64(g.target)*m.target.row, m.target.page, r.target},
				Bytes:  r.bytes, Count: r.count, Runs: g.runs,
			})
		}
	}
	return out
}
