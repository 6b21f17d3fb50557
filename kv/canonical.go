package kv

import "encoding/binary"

// encoder appends values in one unambiguous form: integers as 8 bytes, big
// endian; strings and lists behind their length.
type encoder []byte

func (e *encoder) u64(v uint64) { *e = binary.BigEndian.AppendUint64(*e, v) }
func (e *encoder) int(v int)    { e.u64(uint64(v)) }

func (e *encoder) str(s string) {
	e.int(len(s))
	*e = append(*e, s...)
}

func (e *encoder) flag(b bool) {
	if b {
		e.u64(1)
	} else {
		e.u64(0)
	}
}

func (e *encoder) ints(vs []int) {
	e.int(len(vs))
	for _, v := range vs {
		e.int(v)
	}
}

func (e *encoder) rank(r Rank) {
	e.int(r.DP)
	e.int(r.PP)
	e.int(r.CP)
	e.int(r.TP)
}

// AppendCanonical appends everything that the instance says to b, in a form
// that is equal only for equal instances: what a roster hash is made from.
func (i *Instance) AppendCanonical(b []byte) []byte {
	e := encoder(b)
	e.str("kvferry instance 2")
	e.str(i.Model.ID)
	e.str(i.Model.Revision)
	e.int(len(i.Model.Components))
	for _, c := range i.Model.Components {
		e.str(c.Name)
		e.u64(uint64(c.Kind))
		e.ints(c.Layers)
		e.int(c.Heads)
		e.u64(c.HeadBytes)
		e.u64(uint64(c.DType))
		e.flag(c.Optional)
		e.u64(uint64(c.rowTokens()))
		e.u64(c.Window)
		e.u64(uint64(c.slotRows()))
	}
	e.int(i.DP)
	e.int(i.PP)
	e.int(i.CP)
	e.int(i.TP)
	e.u64(uint64(i.Split))
	e.int(len(i.Engines))
	for n := range i.Engines {
		e.engine(&i.Engines[n])
	}
	return e
}

func (e *encoder) engine(g *Engine) {
	e.rank(g.Rank)
	e.int(len(g.Shards))
	for _, s := range g.Shards {
		e.str(s.Component)
		e.int(len(s.Layers))
		for _, t := range s.Layers {
			e.int(t.Layer)
			e.u64(uint64(t.Region))
			e.u64(t.Offset)
			e.u64(uint64(t.Pages))
		}
		e.int(s.Heads.Low)
		e.int(s.Heads.High)
		e.u64(uint64(s.PageTokens))
		e.u64(s.PageStride)
		e.u64(s.RowStride)
		e.u64(s.HeadStride)
	}
	e.u64(uint64(g.Meta.Region))
	e.u64(g.Meta.Offset)
	e.u64(g.Meta.RowBytes)
	e.u64(uint64(g.Meta.Rows))
	e.int(len(g.RegionBytes))
	for _, n := range g.RegionBytes {
		e.u64(n)
	}
}
