package kv

// Row is one row of one head in the memory of an engine.
type Row struct {
	Component *Component
	Layer     int
	Head      int
	Row       uint64 // of the request; of a Slot component, of the slot
	Region    uint32
	Offset    uint64 // where its HeadBytes bytes begin
}

// EachRow visits the rows of Paged components that are complete when the tokens
// before to are computed, and were not when those before from were: as far as the
// rank keeps them, and the placement has a page for them. It goes tensor by tensor
// and row by row: it is for filling and comparing memory, not for moving it.
func (i *Instance) EachRow(r Rank, at *Placement, from, to uint64, visit func(Row)) {
	e := i.engine(r)
	if e == nil {
		return
	}
	pools := i.Pools(r)
	for n := range e.Shards {
		s := &e.Shards[n]
		c := i.Model.component(s.Component)
		table := at.Table(c.Window)
		if c.Kind != Paged || len(table.Pages) == 0 {
			continue
		}
		l := lane{poolOf(pools, c.Window), s.pageRows(c)}
		turns, mine := l.turns()
		q := uint64(c.rowTokens())
		lo := max(from, table.First) / q
		hi := min(to, table.First+uint64(len(table.Pages))*l.Stripe()) / q
		for _, tensor := range s.Layers {
			for row := lo; row < hi; row++ {
				if row%turns == mine {
					local := l.local(row)
					page := table.Pages[local/uint64(l.pageRows)-table.First/l.Stripe()]
					s.each(c, tensor, page, uint32(local%uint64(l.pageRows)), row, visit)
				}
			}
		}
	}
}

// EachState visits the rows of the Slot components that a request of a length has,
// in a slot of the rank.
func (i *Instance) EachState(r Rank, slot uint32, length uint64, visit func(Row)) {
	e := i.engine(r)
	if e == nil {
		return
	}
	for n := range e.Shards {
		s := &e.Shards[n]
		c := i.Model.component(s.Component)
		if c.Kind != Slot || !c.needed(length) {
			continue
		}
		for _, tensor := range s.Layers {
			for row := range c.slotRows() {
				s.each(c, tensor, slot, row, uint64(row), visit)
			}
		}
	}
}

// each visits a row of a page in all heads of a tensor of the shard.
func (s *Shard) each(c *Component, t LayerTensor, page, within uint32, row uint64, visit func(Row)) {
	for h := s.Heads.Low; h < s.Heads.High; h++ {
		visit(Row{c, t.Layer, h, row, t.Region, s.RowOffset(t, page, within, h)})
	}
}

// RequestBytes is what a request takes in the engines of one DP rank of an instance
// together, of which the tokens [prefix, length) are wanted: what decode engines
// are sent, if the pages of both sides are alike.
func (i *Instance) RequestBytes(prefix, length uint64) uint64 {
	n := uint64(0)
	for k := range min(i.perDP(), len(i.Engines)) {
		e := &i.Engines[k]
		pools := i.Pools(e.Rank)
		for k := range e.Shards {
			s := &e.Shards[k]
			c := i.Model.component(s.Component)
			count := uint64(0)
			switch {
			case c.Kind == Slot && c.needed(length):
				count = uint64(c.slotRows())
			case c.Kind == Paged && prefix < length:
				l := lane{poolOf(pools, c.Window), s.pageRows(c)}
				lo, hi := l.keeps(c.rowTokens(), prefix, length)
				turns, _ := l.turns()
				count = (hi - lo + turns - 1) / turns
			}
			n += count * c.HeadBytes * uint64(s.Heads.High-s.Heads.Low) * uint64(len(s.Layers))
		}
	}
	return n
}
