package main

import (
	"cmp"
	"slices"

	"kvferry/kv"
)

// record is rows of bytes from one tensor to another, offsets from their starts.
type record struct {
	SrcOffset uint64 `json:"src_offset"`
	DstOffset uint64 `json:"dst_offset"`
	Rows      uint64 `json:"rows"`
	RowBytes  uint64 `json:"row_bytes"`
	SrcStride uint64 `json:"src_stride"` // 0 if there is one row
	DstStride uint64 `json:"dst_stride"`
}

// request is one request between the first DP ranks of two deployments that fit.
type request struct {
	fit            *kv.Fit
	prefix, length uint64
	source, target map[kv.Rank]*kv.Placement
}

// sent is what a writer sends to a receiver of one layer of one component.
type sent struct {
	writer, receiver kv.Rank
	component        string
	layer            int
	records          []record
}

// like answers whether o is the same but for its layer.
func (s *sent) like(o *sent) bool {
	return s.writer == o.writer && s.receiver == o.receiver && s.component == o.component && slices.Equal(s.records, o.records)
}

// each visits what is sent, by writer, receiver, component and layer.
func (r *request) each(visit func(sent) error) error {
	route := kv.Route{}
	by := make(map[kv.Rank][]*kv.Pair) // writers
	for _, to := range r.fit.Receivers(route) {
		pairs, err := r.fit.Pairs(route, to, r.prefix, r.length)
		if err != nil {
			return err
		}
		for _, p := range pairs {
			if len(p.Boxes) > 0 {
				by[p.Writer] = append(by[p.Writer], p)
			}
		}
	}
	for _, w := range r.fit.Senders(route) {
		for _, p := range by[w] {
			all, err := r.pair(p)
			if err != nil {
				return err
			}
			for _, s := range all {
				if err := visit(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pair makes the records of a pair, tensor by tensor. The tokens are taken run by
// run: within a run pages stand one after another on both sides, so that rows
// that go on from page to page become one record.
func (r *request) pair(p *kv.Pair) ([]sent, error) {
	var out []sent
	from, to := engine(r.fit.Prefill(), p.Writer), engine(r.fit.Decode(), p.Receiver)
	at := make(map[string]map[int]int) // where a component and layer stand in out
	for _, b := range p.Boxes {
		if at[b.Component] == nil {
			at[b.Component] = make(map[int]int)
		}
		for _, layer := range b.Layers {
			if _, has := at[b.Component][layer]; !has {
				at[b.Component][layer] = len(out)
				out = append(out, sent{writer: p.Writer, receiver: p.Receiver, component: b.Component, layer: layer})
			}
		}
	}
	for _, c := range r.runs(p) {
		copies, err := p.Copies(c, r.target[p.Receiver])
		if err != nil {
			return nil, err
		}
		fresh := make([][]record, len(out))
		for i := range copies {
			if copies[i].Component == "" {
				continue // the metadata row is KVFerry's own
			}
			n := at[copies[i].Component][copies[i].Layer]
			fresh[n] = append(fresh[n], recordsOf(&copies[i], tensor(from, &out[n]), tensor(to, &out[n]))...)
		}
		for n := range fresh {
			steps := stepsOf(p, &out[n], from, to, r.fit)
			out[n].records = append(out[n].records, merge(fresh[n], steps)...)
		}
	}
	return out, nil
}

// runs cuts the tokens where either list of pages does not go on with the next
// page: those of the components that keep all tokens.
func (r *request) runs(p *kv.Pair) []kv.Chunk {
	source, target := r.source[p.Writer], r.target[p.Receiver]
	from, ok := r.fit.Prefill().Pool(p.Writer, 0)
	to, ok2 := r.fit.Decode().Pool(p.Receiver, 0)
	whole := kv.Chunk{To: r.length, Source: *source, Last: true}
	if !ok || !ok2 || r.prefix == r.length {
		return []kv.Chunk{whole}
	}
	next := func(at *kv.Placement, stripe, token uint64) bool {
		t := at.Table(0)
		n := int64(token-t.First) / int64(stripe)
		if token%stripe != 0 || token <= t.First || n >= int64(len(t.Pages)) {
			return true // inside a page, or none of this rank
		}
		return t.Pages[n] == t.Pages[n-1]+1
	}
	var out []kv.Chunk
	for begin := uint64(0); begin < r.length; {
		end := max(begin, r.prefix)
		for {
			// The next border of either side.
			end = min(end-end%from.Stripe()+from.Stripe(), end-end%to.Stripe()+to.Stripe())
			if end >= r.length {
				end = r.length
				break
			}
			if !next(source, from.Stripe(), end) || !next(target, to.Stripe(), end) {
				break
			}
		}
		out = append(out, kv.Chunk{From: begin, To: end, Source: *source, Last: end == r.length})
		begin = end
	}
	return out
}

func engine(i *kv.Instance, r kv.Rank) *kv.Engine {
	n := slices.IndexFunc(i.Engines, func(e kv.Engine) bool { return e.Rank == r })
	return &i.Engines[n]
}

// shard is what the engine holds of a component that it sends or takes.
func shard(e *kv.Engine, component string) *kv.Shard {
	n := slices.IndexFunc(e.Shards, func(s kv.Shard) bool { return s.Component == component })
	return &e.Shards[n]
}

// tensor is where the tensor of what is sent begins in its region.
func tensor(e *kv.Engine, s *sent) uint64 {
	layers := shard(e, s.component).Layers
	n := slices.IndexFunc(layers, func(t kv.LayerTensor) bool { return t.Layer == s.layer })
	return layers[n].Offset
}

// recordsOf writes a copy out page by page. A page in which rows repeat in two
// directions is several records, as few as it can be.
func recordsOf(c *kv.Copy, source, target uint64) []record {
	var out []record
	outer, inner := 0, 1
	if c.Count[0] > c.Count[1] {
		outer, inner = 1, 0
	}
	for _, run := range c.Runs {
		for n := range run.Count {
			s := c.Source.Offset - source + uint64(run.Source+n*run.SourceStep)*c.Source.UnitStride
			t := c.Target.Offset - target + uint64(run.Target+n*run.TargetStep)*c.Target.UnitStride
			for k := range uint64(c.Count[outer]) {
				rec := record{
					SrcOffset: s + k*c.Source.Stride[outer], DstOffset: t + k*c.Target.Stride[outer],
					Rows: uint64(c.Count[inner]), RowBytes: c.Bytes,
				}
				if rec.Rows > 1 {
					rec.SrcStride, rec.DstStride = c.Source.Stride[inner], c.Target.Stride[inner]
				}
				out = append(out, rec)
			}
		}
	}
	return out
}

// steps is how far one row is from the next in a tensor of both sides, also over
// the border of two pages; 0 if it is not the same everywhere. width is the bytes
// of all heads of a row.
type steps struct{ source, target, width uint64 }

func stepsOf(p *kv.Pair, s *sent, from, to *kv.Engine, fit *kv.Fit) steps {
	var st steps
	for _, b := range p.Boxes {
		if b.Component == s.component && slices.Contains(b.Layers, s.layer) {
			st.width = uint64(b.Heads.High-b.Heads.Low) * b.RowBytes
		}
	}
	even := func(e *kv.Engine, m kv.Model) uint64 {
		sh := shard(e, s.component)
		n := slices.IndexFunc(m.Components, func(c kv.Component) bool { return c.Name == s.component })
		rows := uint64(sh.PageTokens) / uint64(max(1, m.Components[n].RowTokens)) // 0 of a slot
		if rows == 1 {
			return sh.PageStride
		}
		if sh.RowStride*rows == sh.PageStride {
			return sh.RowStride
		}
		return 0
	}
	st.source, st.target = even(from, fit.Prefill().Model), even(to, fit.Decode().Model)
	return st
}

// merge joins records of consecutive pages: those that go on without a gap, and
// those whose tokens go on with the same steps.
func merge(records []record, st steps) []record {
	slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(a.SrcOffset, b.SrcOffset) })
	var out []record
	for _, r := range records {
		if n := len(out) - 1; n < 0 || !out[n].join(&r, st) {
			out = append(out, r)
		}
	}
	return out
}

func (r *record) join(o *record, st steps) bool {
	if r.Rows == 1 && o.Rows == 1 && r.SrcOffset+r.RowBytes == o.SrcOffset && r.DstOffset+r.RowBytes == o.DstOffset {
		r.RowBytes += o.RowBytes
		return true
	}
	regular := func(x *record) bool {
		return x.RowBytes == st.width && (x.Rows == 1 || x.SrcStride == st.source && x.DstStride == st.target)
	}
	if st.source == 0 || st.target == 0 || !regular(r) || !regular(o) ||
		o.SrcOffset != r.SrcOffset+r.Rows*st.source || o.DstOffset != r.DstOffset+r.Rows*st.target {
		return false
	}
	r.Rows += o.Rows
	r.SrcStride, r.DstStride = st.source, st.target
	return true
}

// expanded is the records as they are, or one for each row.
func expanded(records []record, expand bool) []record {
	if !expand {
		return records
	}
	var out []record
	for _, r := range records {
		for n := range r.Rows {
			out = append(out, record{SrcOffset: r.SrcOffset + n*r.SrcStride, DstOffset: r.DstOffset + n*r.DstStride, Rows: 1, RowBytes: r.RowBytes})
		}
	}
	return out
}
