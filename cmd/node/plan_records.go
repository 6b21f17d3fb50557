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
	source, target kv.PageTable
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
	for _, w := range r.fit.Senders(route) {
		for _, to := range r.fit.Receivers(route) {
			p, err := r.fit.Pair(route, w, to, r.prefix, r.length)
			if err != nil {
				return err
			}
			if len(p.Boxes) == 0 {
				continue
			}
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
	for _, c := range r.runs(from.PageTokens(), to.PageTokens()) {
		copies, err := p.Copies(c, r.target, 0)
		if err != nil {
			return nil, err
		}
		fresh := make([][]record, len(out))
		for i := range copies {
			n := at[copies[i].Component][copies[i].Layer]
			fresh[n] = append(fresh[n], recordsOf(&copies[i], tensor(from, &out[n]), tensor(to, &out[n]))...)
		}
		for n := range fresh {
			steps := stepsOf(p, &out[n], from, to)
			out[n].records = append(out[n].records, merge(fresh[n], steps)...)
		}
	}
	return out, nil
}

// runs cuts the tokens where either list of pages does not go on with the next
// page.
func (r *request) runs(sourceSize, targetSize uint32) []kv.Chunk {
	var out []kv.Chunk
	next := func(t kv.PageTable, size uint32, token uint64) bool {
		if token%uint64(size) != 0 {
			return true // inside a page
		}
		n := (token - t.First) / uint64(size)
		return t.Pages[n] == t.Pages[n-1]+1
	}
	for begin := r.prefix; begin < r.length; {
		end := begin
		for {
			// The next border of either side.
			end = min(end-end%uint64(sourceSize)+uint64(sourceSize), end-end%uint64(targetSize)+uint64(targetSize))
			if end >= r.length {
				end = r.length
				break
			}
			if !next(r.source, sourceSize, end) || !next(r.target, targetSize, end) {
				break
			}
		}
		out = append(out, kv.Chunk{From: begin, To: end, Source: r.source})
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

// steps is how far one token is from the next in a tensor of both sides, also
// over the border of two pages; 0 if it is not the same everywhere. width is the
// bytes of a token that is one row.
type steps struct{ source, target, width uint64 }

func stepsOf(p *kv.Pair, s *sent, from, to *kv.Engine) steps {
	var st steps
	for _, b := range p.Boxes {
		if b.Component == s.component && slices.Contains(b.Layers, s.layer) {
			st.width = uint64(b.Heads.High-b.Heads.Low) * b.RowBytes
		}
	}
	even := func(e *kv.Engine) uint64 {
		sh := shard(e, s.component)
		if sh.PageTokens == 1 {
			return sh.PageStride
		}
		if sh.TokenStride*uint64(sh.PageTokens) == sh.PageStride {
			return sh.TokenStride
		}
		return 0
	}
	st.source, st.target = even(from), even(to)
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
