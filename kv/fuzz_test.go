package kv

import (
	"encoding/binary"
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
		switch r.u8() % 20 {
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
			s.Component = i.Model.Components[int(v%uint64(len(i.Model.Components)))].Name
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
		}
	}
	return i
}

// FuzzMatch: whatever comes off the wire is refused by name or can be planned
// with, and then every row lies within its region and no two rows share a byte.
func FuzzMatch(f *testing.F) {
	f.Add([]byte{0}, uint16(0), uint16(9))
	f.Add([]byte{1, 0, 0, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 2}, uint16(3), uint16(9))
	f.Add([]byte{3, 0, 1, 0xfe, 1, 8, 2, 1, 0xfd, 20, 1, 9, 0, 3, 5, 12}, uint16(1), uint16(12))
	// A shard of a component that is unsound itself, in a region that is none.
	f.Add([]byte("000200020000b"), uint16(245), uint16(56))
	f.Fuzz(func(t *testing.T, b []byte, prefix, length uint16) {
		r := reader{b}
		p := r.instance(attentionOf(3, 4, 1+int(r.u8()%2), 1, 2))
		d := r.instance(attentionOf(3, 4, 1+int(r.u8()%2)))
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
			for _, c := range copies {
				c.expand(func(s, d uint64) {
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
