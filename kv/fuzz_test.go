package kv

import (
	"encoding/binary"
	"slices"
	"testing"
)

// reader reads numbers from what a fuzzer makes up; zeros at the end.
type reader struct{ b []byte }

func (r *reader) u8() byte {
	if len(r.b) == 0 {
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) u32() uint32 {
	var v [4]byte
	for i := range v {
		v[i] = r.u8()
	}
	return binary.LittleEndian.Uint32(v[:])
}

// number is mostly small, and sometimes as hostile as a number can be.
func (r *reader) number(small byte) uint64 {
	v := r.u8()
	switch v {
	case 0xff:
		return uint64(r.u32())<<32 | uint64(r.u32())
	case 0xfe:
		return 1<<64 - 1 - uint64(r.u8())
	case 0xfd:
		return 1<<uint(r.u8()%64) + uint64(r.u8())
	}
	return uint64(v % small)
}

// instance reads an instance: a sound one, in which some numbers are replaced.
func (r *reader) instance(d *Deployment) *Instance {
	i, reasons := d.Instance(8)
	if len(reasons) > 0 {
		return nil
	}
	for range r.u8() % 4 {
		e := &i.Engines[int(r.u8())%len(i.Engines)]
		var s *Shard
		if len(e.Shards) > 0 {
			s = &e.Shards[int(r.u8())%len(e.Shards)]
		} else {
			s = &Shard{}
		}
		v := r.number(10)
		c := &i.Model.Components[int(v%uint64(len(i.Model.Components)))]
		field := r.u8()
		if field < 200 {
			field %= 20
		}
		switch field {
		case 0:
			s.Heads.Low = int(v)
		case 1:
			s.Heads.High = int(v)
		case 2:
			s.PageStride = v
		case 3:
			s.RowStride = v
		case 4:
			s.HeadStride = v
		case 5:
			s.PageTokens = uint32(v)
		case 6:
			s.Component = c.Name
		case 7:
			s.Layers[int(r.u8())%len(s.Layers)].Layer = int(v)
		case 8:
			s.Layers[int(r.u8())%len(s.Layers)].Offset = v
		case 9:
			s.Layers[int(r.u8())%len(s.Layers)].Pages = uint32(v)
		case 10:
			s.Layers[int(r.u8())%len(s.Layers)].Region = uint32(v)
		case 11:
			e.RegionBytes[0] = v
		case 12:
			e.Meta = MetaRows{uint32(r.number(3)), r.number(200), v, uint32(r.number(4))}
		case 13:
			e.Rank.TP = int(v)
		case 14:
			i.DP, i.PP = int(v), int(r.number(4))
		case 15:
			i.TP, i.CP = int(v), int(r.number(4))
		case 16:
			e.Shards = append(e.Shards, *s)
		case 17:
			i.Engines = append(i.Engines, *e)
		case 18:
			c := &i.Model.Components[int(r.u8())%len(i.Model.Components)]
			c.Heads, c.HeadBytes = int(v), r.number(9)
		case 19:
			c := &i.Model.Components[int(r.u8())%len(i.Model.Components)]
			c.Layers = append([]int{int(v)}, c.Layers...)
		case 200:
			c.Window = r.number(40)
		case 201:
			c.RowTokens = uint32(r.number(10))
		case 202:
			c.SlotRows = uint32(r.number(6))
		case 203:
			c.Kind = Kind(r.number(4))
		case 204:
			i.Split = Split(r.number(4))
		case 205:
			i.CP, i.TP = i.TP, i.CP
		case 206:
			c.Optional = !c.Optional
		}
	}
	return i
}

// fuzzed is the deployments that a fuzzer begins with: keys and values alone, or
// everything that models have beside them, its tokens split over CP ranks or not.
func fuzzed(base uint8, prefillTP, decodeTP int) (prefill, decode *Deployment) {
	if base%4 == 0 {
		return attentionOf(3, 4, prefillTP, 1, 2), attentionOf(3, 4, decodeTP)
	}
	all := func(tp int) *Deployment {
		d := declared(tp, 8,
			Component{Name: "k", Heads: 4, HeadBytes: 2, Layers: []int{0, 1, 2}},
			Component{Name: "swa", Heads: 2, HeadBytes: 3, Layers: []int{0, 2}, Window: 9},
			Component{Name: "c4", Heads: 1, HeadBytes: 2, Layers: []int{1}, RowTokens: 4},
			Component{Name: "c4.open", Kind: Slot, Heads: 1, HeadBytes: 1, Layers: []int{1}, RowTokens: 4, SlotRows: 4},
			Component{Name: "conv.q", Kind: Slot, Heads: 2, HeadBytes: 1, SlotRows: 3, Tensor: "conv"},
			Component{Name: "conv.v", Kind: Slot, Heads: 4, HeadBytes: 1, SlotRows: 3, Tensor: "conv"})
		d.MetaRows, d.MetaRowBytes, d.Slots = 1, 8, 2
		return d
	}
	prefill, decode = all(prefillTP), all(decodeTP)
	switch base % 4 {
	case 1:
		prefill.PP = 2
	case 2:
		return prefill.withSplit(2, PageRanges), decode.withSplit(2, Interleaved)
	case 3:
		return prefill.withSplit(3, Interleaved), decode.withSplit(2, PageRanges)
	}
	return prefill, decode
}

// FuzzMatch: whatever comes off the wire is refused by name or can be planned
// with, and then every row lies within its region and no two rows share a byte.
func FuzzMatch(f *testing.F) {
	f.Add([]byte{0}, uint16(0), uint16(9), uint8(0))
	f.Add([]byte{1, 0, 0, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 2}, uint16(3), uint16(9), uint8(0))
	f.Add([]byte{3, 0, 1, 0xfe, 1, 8, 2, 1, 0xfd, 20, 1, 9, 0, 3, 5, 12}, uint16(1), uint16(12), uint8(0))
	// A shard of a component that is unsound itself, in a region that is none.
	f.Add([]byte("000200020000b"), uint16(245), uint16(56), uint8(0))
	for base := range uint8(4) {
		f.Add([]byte{0}, uint16(5), uint16(30), base)
		for field := byte(200); field <= 206; field++ { // one new number on prefill, and the same on decode
			one := []byte{1, 0, 0, 1, field, 5}
			f.Add(slices.Concat([]byte{1}, one, []byte{1}, one), uint16(0), uint16(30), base)
			f.Add(slices.Concat([]byte{0}, []byte{1, 0, 0, 3, field, 0xff, 1, 2, 3, 4, 5, 6, 7, 8}), uint16(9), uint16(31), base)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, prefix, length uint16, base uint8) {
		r := reader{b}
		plain, other := fuzzed(base, 1+int(r.u8()%2), 1)
		p := r.instance(plain)
		if r.u8()%2 == 1 {
			_, other = fuzzed(base, 1, 2)
		}
		d := r.instance(other)
		if p == nil || d == nil {
			return
		}
		fit := Match(p, d)
		p.AppendCanonical(nil)
		if !fit.Compatible() {
			for _, reason := range fit.Reasons() {
				if reason.Field == "" || reason.Text == "" {
					t.Fatalf("a reason that says nothing: %+v", reason)
				}
			}
			if fit.Candidates(Route{}, Rank{}) != nil {
				t.Fatal("writers of instances that do not fit")
			}
			return
		}
		fit.Warnings()
		checkRows(t, fit, uint64(prefix), uint64(length)%64)
	})
}

// checkRows plans every pair of the first DP ranks and looks at every row.
func checkRows(t *testing.T, fit *Fit, prefix, length uint64) {
	for _, receiver := range fit.Receivers(Route{}) {
		written := make(map[where]bool)
		n, _ := fit.decode.index(receiver)
		for w, sender := range fit.Senders(Route{}) {
			pair, err := fit.Pair(Route{}, sender, receiver, prefix, length)
			if err != nil {
				return
			}
			target := fit.decode.firstPages(receiver, prefix, length)
			targets, err := pair.Targets(&target)
			if err != nil {
				return
			}
			for _, r := range targets {
				if err := r.nests(); err != nil {
					t.Fatal(err)
				}
			}
			source := fit.prefill.firstPages(sender, 0, length)
			copies, err := pair.Copies(Chunk{To: length, Source: source, Last: true}, &target)
			if err != nil {
				return
			}
			bytes := 0
			for _, c := range copies {
				c.expand(func(s, d uint64) {
					if bytes += int(min(c.Bytes, 4096)); bytes > 1<<20 {
						return // more than can be looked at one by one
					}
					if s+c.Bytes > fit.prefill.Engines[w].RegionBytes[c.Source.Region] || d+c.Bytes > fit.decode.Engines[n].RegionBytes[c.Target.Region] {
						t.Fatalf("row from %d to %d is outside: %+v", s, d, c)
					}
					for b := range min(c.Bytes, 4096) {
						at := where{c.Target.Region, d + b}
						if written[at] {
							t.Fatalf("byte %v is written twice: %+v", at, c)
						}
						written[at] = true
					}
				})
			}
		}
	}
}

// firstPages is a placement in the first pages of every pool.
func (i *Instance) firstPages(r Rank, prefix, length uint64) Placement {
	var p Placement
	for _, pool := range i.Pools(r) {
		first, n := pool.Need(prefix, length)
		p.Tables = append(p.Tables, PoolTable{pool.Window, PageTable{first, countTo(n)}})
	}
	return p
}

func countTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}
