package pairing

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"kvferry/kv"
	"kvferry/messages"
)

// cached is a model with one of everything that is cached.
func cached() kv.Model {
	return kv.Model{ID: "m", Components: []kv.Component{
		{Name: "k", Kind: kv.Paged, Layers: []int{0, 1, 2}, Heads: 4, HeadBytes: 8, DType: kv.BF16},
		{Name: "swa.k", Kind: kv.Paged, Layers: []int{0, 2}, Heads: 2, HeadBytes: 4, DType: kv.BF16, Window: 9},
		{Name: "c4", Kind: kv.Paged, Layers: []int{1}, Heads: 1, HeadBytes: 6, DType: kv.FP8E4M3, RowTokens: 4},
		{Name: "c4.open", Kind: kv.Slot, Layers: []int{1}, Heads: 1, HeadBytes: 4, DType: kv.F32, RowTokens: 4, SlotRows: 4},
		{Name: "conv.q", Kind: kv.Slot, Layers: []int{0}, Heads: 2, HeadBytes: 2, DType: kv.BF16, SlotRows: 3, Tensor: "conv"},
		{Name: "conv.v", Kind: kv.Slot, Layers: []int{0}, Heads: 4, HeadBytes: 2, DType: kv.BF16, SlotRows: 3, Tensor: "conv"},
		{Name: "draft.k", Kind: kv.Paged, Layers: []int{9}, Heads: 2, HeadBytes: 4, DType: kv.BF16, Optional: true},
	}}
}

// descriptions are the ranks of a deployment as they come off the wire.
func descriptions(t testing.TB, d kv.Deployment, role messages.Role) [][]byte {
	t.Helper()
	d.Model, d.PageTokens, d.Layout, d.Slots, d.MetaRows, d.MetaRowBytes = cached(), 8, kv.NHD, 2, 2, 64
	i, reasons := d.Instance(8)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	var out [][]byte
	for n := range i.Engines {
		e := Described{
			Engine: messages.Engine{Instance: "i", Rank: i.Engines[n].Rank, Incarnation: 1}, Role: role, Model: i.Model,
			DP: i.DP, PP: i.PP, CP: i.CP, TP: i.TP, Split: i.Split, Kv: i.Engines[n],
		}
		for _, bytes := range e.Kv.RegionBytes {
			e.Regions = append(e.Regions, &messages.Region{Bytes: bytes, Keys: []*messages.RegionKey{{Provider: "mem", Region: 1}}})
		}
		b, err := proto.Marshal(Describe(e))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// assembled is the instance of the ranks that parse, as a roster makes it.
func assembled(ranks ...[]byte) *kv.Instance {
	var i *kv.Instance
	for _, b := range ranks {
		var w messages.EngineDescription
		if proto.Unmarshal(b, &w) != nil {
			continue
		}
		d, err := Parse(&w)
		if err != nil {
			continue
		}
		if i == nil {
			i = &kv.Instance{Model: d.Model, DP: d.DP, PP: d.PP, CP: d.CP, TP: d.TP, Split: d.Split}
		}
		i.Engines = append(i.Engines, d.Kv)
	}
	return i
}

// FuzzDescribedPair: two prefill ranks and two decode ranks that come off the wire
// are refused by field, or planned with: no answer is a panic.
func FuzzDescribedPair(f *testing.F) {
	for _, sides := range [][2]kv.Deployment{
		{{TP: 2, PP: 1, DP: 1}, {TP: 1, PP: 1, DP: 1}},
		{{TP: 1, PP: 2, DP: 1}, {TP: 2, PP: 1, DP: 1}},
		{{TP: 1, PP: 1, DP: 1, CP: 2, Split: kv.PageRanges}, {TP: 1, PP: 1, DP: 1, CP: 2, Split: kv.Interleaved}},
		{{TP: 1, PP: 1, DP: 1, CP: 2, Split: kv.Interleaved}, {TP: 1, PP: 1, DP: 2}},
	} {
		p := descriptions(f, sides[0], messages.Role_ROLE_PREFILL)
		d := descriptions(f, sides[1], messages.Role_ROLE_DECODE)
		p, d = append(p, nil), append(d, nil) // where there is one rank
		if fit := kv.Match(assembled(p...), assembled(d...)); !fit.Compatible() {
			f.Fatalf("what the fuzzer begins with does not fit: %v", fit.Reasons())
		}
		f.Add(p[0], p[1], d[0], d[1], uint8(3), uint8(30))
	}
	f.Fuzz(func(t *testing.T, p0, p1, d0, d1 []byte, prefix, length uint8) {
		p, d := assembled(p0, p1), assembled(d0, d1)
		if p == nil || d == nil {
			return
		}
		fit := kv.Match(p, d)
		if !fit.Compatible() {
			for _, r := range fit.Reasons() {
				if r.Field == "" || r.Text == "" {
					t.Fatalf("a reason that says nothing: %+v", r)
				}
			}
			return
		}
		for dp := range d.DP {
			route := kv.Route{DecodeDP: dp, Room: uint64(length)}
			for _, receiver := range fit.Receivers(route) {
				for _, writer := range fit.Writers(route, receiver, uint64(prefix), uint64(length)) {
					if err := plan(fit, route, writer, receiver, uint64(prefix), uint64(length)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

// plan plans a request in the first pages of both sides. It may be refused for what
// the pools hold; a copy beyond its region may not come out of it.
func plan(fit *kv.Fit, route kv.Route, writer, receiver kv.Rank, prefix, length uint64) error {
	pair, err := fit.Pair(route, writer, receiver, prefix, length)
	if err != nil {
		return nil
	}
	target := firstPages(fit.Decode(), receiver, prefix, length)
	targets, err := pair.Targets(&target)
	if err != nil {
		return nil
	}
	pair.Digest([32]byte{}, [32]byte{}, targets)
	copies, err := pair.Copies(kv.Chunk{To: length, Source: firstPages(fit.Prefill(), writer, 0, length), Last: true}, &target)
	if err != nil {
		return nil
	}
	regions := func(i *kv.Instance, r kv.Rank) []uint64 {
		for n := range i.Engines {
			if i.Engines[n].Rank == r {
				return i.Engines[n].RegionBytes
			}
		}
		return nil
	}
	from, to := regions(fit.Prefill(), writer), regions(fit.Decode(), receiver)
	for _, c := range copies {
		for _, r := range c.Runs {
			last := func(p kv.Place, first, step uint32) uint64 {
				return p.Offset + uint64(first+(r.Count-1)*step)*p.UnitStride +
					uint64(c.Count[0]-1)*p.Stride[0] + uint64(c.Count[1]-1)*p.Stride[1] + c.Bytes
			}
			if s, d := last(c.Source, r.Source, r.SourceStep), last(c.Target, r.Target, r.TargetStep); s > from[c.Source.Region] || d > to[c.Target.Region] {
				return fmt.Errorf("a copy ends at bytes %d and %d of regions of %d and %d: %+v", s, d, from[c.Source.Region], to[c.Target.Region], c)
			}
		}
	}
	return nil
}

// firstPages is a placement in the first pages of every pool.
func firstPages(i *kv.Instance, r kv.Rank, prefix, length uint64) kv.Placement {
	var p kv.Placement
	for _, pool := range i.Pools(r) {
		first, n := pool.Need(prefix, length)
		t := kv.PoolTable{Window: pool.Window, PageTable: kv.PageTable{First: first}}
		for page := range n {
			t.Pages = append(t.Pages, uint32(page))
		}
		p.Tables = append(p.Tables, t)
	}
	return p
}
