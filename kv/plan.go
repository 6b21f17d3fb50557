package kv

import (
	"fmt"
	"slices"
)

// Chunk is the tokens [From, To) that one step of prefill finished, and where
// they are.
type Chunk struct {
	From, To   uint64
	Source     PageTable // covers the tokens of the chunk that are sent; may cover more
	SourceMeta uint32    // row of the metadata, with Last
	Last       bool      // the metadata row goes along
}

// Targets are the destination ranges that the receiver grants to this writer.
// pages are exactly those that hold [Prefix, Length), from the start of the page
// that holds Prefix; metaRow is the row of the room's metadata.
func (p *Pair) Targets(pages PageTable, metaRow uint32) ([]Range, error) {
	if err := p.checkTarget(pages, metaRow); err != nil {
		return nil, err
	}
	if page, twice := repeatedPage(pages.Pages); twice {
		return nil, fmt.Errorf("decode pages: page %d is there twice", page)
	}
	groups := p.targetGroups(pages.Pages)
	out := make([]Range, 0, p.records(len(groups)))
	for i := range p.moves {
		m := &p.moves[i]
		box := &p.Boxes[m.box]
		for _, g := range groups {
			rows := rowsOf(g.tokens, uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.target, m.target)
			for _, t := range m.tensors {
				out = append(out, Range{
					Component: box.Component, Layer: t.layer,
					Region: t.target.region, Offset: t.target.offset + uint64(g.target)*m.target.token, UnitStride: m.target.page,
					Bytes: rows.bytes, Count: rows.count, Stride: rows.target, Runs: g.runs,
				})
			}
		}
	}
	if p.sendsMeta() {
		m := p.targetMeta
		out = append(out, Range{
			Region: m.Region, Offset: m.Offset, UnitStride: m.RowBytes, Bytes: m.RowBytes,
			Count: [2]uint32{1, 1}, Runs: []Run{{First: metaRow, Count: 1, Step: 1}},
		})
	}
	return out, nil
}

// records is how many ranges or copies the plan has for so many groups.
func (p *Pair) records(groups int) int {
	n := 1
	for i := range p.moves {
		n += groups * len(p.moves[i].tensors)
	}
	return n
}

// sendsMeta answers whether the pair has a metadata row. The elected writer of a
// pair of instances that keep none sends nothing.
func (p *Pair) sendsMeta() bool { return p.Meta && p.targetMeta.Rows > 0 }

func (p *Pair) checkTarget(pages PageTable, metaRow uint32) error {
	if err := pages.check(Decode, p.targetTokens, p.Prefix, p.Length, true); err != nil {
		return err
	}
	if p.sendsMeta() && metaRow >= p.targetMeta.Rows {
		return fmt.Errorf("decode metadata row is %d, want below %d", metaRow, p.targetMeta.Rows)
	}
	if len(p.moves) == 0 {
		return nil
	}
	return below(Decode, pages.Pages, p.targetPages)
}

// below refuses pages that not every tensor of the plan has. Within the pages of
// a valid instance every row is inside of its region.
func below(side Side, pages []uint32, limit uint32) error {
	if len(pages) == 0 {
		return nil
	}
	if top := slices.Max(pages); top >= limit {
		return fmt.Errorf("%s page is %d, want below the %d pages of the pool", side, top, limit)
	}
	return nil
}

// targetGroup is the pages of the target of which the same tokens are written.
type targetGroup struct {
	target, tokens uint32
	runs           []Run
}

// targetGroups cuts [Prefix, Length) at the target's page borders: a first page
// that begins inside, whole pages, a last page that ends inside.
func (p *Pair) targetGroups(pages []uint32) []targetGroup {
	if len(pages) == 0 || len(p.moves) == 0 {
		return nil
	}
	size := uint64(p.targetTokens)
	begin, end := p.Prefix%size, (p.Length-1)%size+1
	if len(pages) == 1 {
		return []targetGroup{{uint32(begin), uint32(end - begin), PackPages(pages)}}
	}
	var out []targetGroup
	if begin > 0 {
		out = append(out, targetGroup{uint32(begin), uint32(size - begin), PackPages(pages[:1])})
		pages = pages[1:]
	}
	tail := pages[len(pages)-1:]
	if end < size {
		pages = pages[:len(pages)-1]
	}
	if len(pages) > 0 {
		out = append(out, targetGroup{0, uint32(size), PackPages(pages)})
	}
	if end < size {
		out = append(out, targetGroup{0, uint32(end), PackPages(tail)})
	}
	return out
}

// Copies are what a chunk moves: the rows of its tokens, clipped to
// [Prefix, Length), and with Last the metadata row. target and targetMeta are
// what Targets was given. Every row of every copy lies inside a tensor of both
// sides, and inside the ranges of Targets.
func (p *Pair) Copies(c Chunk, target PageTable, targetMeta uint32) ([]Copy, error) {
	if c.From > c.To {
		return nil, fmt.Errorf("chunk begins at token %d and ends at %d", c.From, c.To)
	}
	if err := p.checkTarget(target, targetMeta); err != nil {
		return nil, err
	}
	var out []Copy
	if from, to := max(c.From, p.Prefix), min(c.To, p.Length); from < to && len(p.moves) > 0 {
		if err := c.Source.check(Prefill, p.sourceTokens, from, to, false); err != nil {
			return nil, err
		}
		first, n := PagesFor(p.sourceTokens, from, to)
		skip := int((first - c.Source.First) / uint64(p.sourceTokens))
		if err := below(Prefill, c.Source.Pages[skip:skip+n], p.sourcePages); err != nil {
			return nil, err
		}
		out = p.rows(cut(from, to, c.Source, target, p.sourceTokens, p.targetTokens))
	}
	if c.Last && p.sendsMeta() {
		s, t := p.sourceMeta, p.targetMeta
		if c.SourceMeta >= s.Rows {
			return nil, fmt.Errorf("prefill metadata row is %d, want below %d", c.SourceMeta, s.Rows)
		}
		out = append(out, Copy{
			Source: Place{Region: s.Region, Offset: s.Offset, UnitStride: s.RowBytes},
			Target: Place{Region: t.Region, Offset: t.Offset, UnitStride: t.RowBytes},
			Bytes:  t.RowBytes, Count: [2]uint32{1, 1},
			Runs: []PairRun{{Source: c.SourceMeta, Target: targetMeta, Count: 1, SourceStep: 1, TargetStep: 1}},
		})
	}
	return out, nil
}

// rows makes one copy for each tensor pair and group.
func (p *Pair) rows(groups []group) []Copy {
	out := make([]Copy, 0, p.records(len(groups)))
	for i := range p.moves {
		m := &p.moves[i]
		box := &p.Boxes[m.box]
		for n := range groups {
			g := &groups[n]
			rows := rowsOf(g.tokens, uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.source, m.target)
			for _, t := range m.tensors {
				out = append(out, Copy{
					Component: box.Component, Layer: t.layer,
					Source: Place{t.source.region, t.source.offset + uint64(g.source)*m.source.token, m.source.page, rows.source},
					Target: Place{t.target.region, t.target.offset + uint64(g.target)*m.target.token, m.target.page, rows.target},
					Bytes:  rows.bytes, Count: rows.count, Runs: g.runs,
				})
			}
		}
	}
	return out
}
