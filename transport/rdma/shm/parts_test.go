package shm

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/memcopy"
)

// However a write is cut into chunks, its rows are those of rdma.Rows.
func TestChunksAreTheRowsOfTheWrite(t *testing.T) {
	const regionBytes = 64 << 20
	from, to := make([]byte, regionBytes), make([]byte, regionBytes)
	grant := &known{ids: []rdma.RegionID{5}, regions: []*mapping{{bytes: to}}}
	rapid.Check(t, func(t *rapid.T) {
		w := &write{Write: &rdma.Write{}, grant: grant}
		type span struct{ source, target, bytes uint64 }
		var want []span
		for range rapid.IntRange(1, 4).Draw(t, "copies") {
			bytes := rapid.SampledFrom([]uint64{1, 100, 4096, 70_000, chunkBytes, chunkBytes + 1, 3*chunkBytes + 5}).Draw(t, "bytes")
			c := rdma.Copy{
				Source: rdma.Place{UnitStride: bytes + rapid.Uint64Range(0, 1).Draw(t, "gap")}, Target: rdma.Place{Region: 5, UnitStride: bytes},
				Bytes: bytes, Count: [2]uint32{1, 1},
			}
			for range rapid.IntRange(1, 4).Draw(t, "runs") {
				c.Runs = append(c.Runs, rdma.PairRun{
					Source: rapid.Uint32Range(0, 8).Draw(t, "source"), Target: rapid.Uint32Range(0, 8).Draw(t, "target"),
					Count: rapid.Uint32Range(1, 20).Draw(t, "count"), SourceStep: 1, TargetStep: rapid.Uint32Range(1, 2).Draw(t, "step"),
				})
			}
			w.Copies = append(w.Copies, c)
			w.sources = append(w.sources, from)
			for r := rdma.RowsOf(&c); r.Next(); {
				want = append(want, span{r.Source, r.Target, r.Bytes})
			}
		}
		w.start(grant)
		offset := func(p unsafe.Pointer, of []byte) uint64 { return uint64(uintptr(p) - uintptr(unsafe.Pointer(&of[0]))) }
		var rows [chunkRows]memcopy.Row
		for len(want) > 0 {
			n, bytes := w.gather(&rows)
			if n == 0 || bytes > chunkBytes {
				t.Fatalf("a chunk of %d rows and %d bytes, with %d rows left", n, bytes, len(want))
			}
			for _, r := range rows[:n] {
				x := &want[0]
				if got := (span{offset(r.Source, from), offset(r.Target, to), r.Bytes}); got.source != x.source || got.target != x.target || got.bytes > x.bytes {
					t.Fatalf("got %+v, want %+v", got, *x)
				}
				x.source, x.target, x.bytes = x.source+r.Bytes, x.target+r.Bytes, x.bytes-r.Bytes
				if x.bytes == 0 {
					want = want[1:]
				}
			}
		}
		if w.left != 0 || w.ahead() != nil {
			t.Fatalf("%d bytes are left", w.left)
		}
	})
}

func TestAnArenaNeverGivesAByteTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64 * arenaAlign
		a := newArena(128, size)
		taken := map[uint64]span{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "take") {
				if s, ok := a.take(rapid.Uint64Range(1, 20*arenaAlign).Draw(t, "bytes")); ok {
					for _, o := range taken {
						if s.offset < o.offset+o.bytes && o.offset < s.offset+s.bytes {
							t.Fatalf("%v is given while %v is taken", s, o)
						}
					}
					taken[s.offset] = s
				}
				continue
			}
			if len(taken) > 0 {
				at := rapid.SampledFrom(slices.Sorted(maps.Keys(taken))).Draw(t, "give")
				a.give(taken[at])
				delete(taken, at)
			}
		}
		for _, s := range taken {
			a.give(s)
		}
		if len(a.free) != 1 || a.free[0] != (span{128, size}) {
			t.Fatalf("free are %v, want all of it in one", a.free)
		}
	})
}

func TestATableFindsWhatIsInForceAndNothingElse(t *testing.T) {
	tab, err := newTable()
	if err != nil {
		t.Fatal(err)
	}
	defer tab.release()
	m, err := openView(int(tab.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer m.release()
	rng := rand.New(rand.NewPCG(5, 6))
	in := map[rdma.GrantID]word{}
	g := rdma.Grant{Ranges: []rdma.Range{wholeOf(1, 10)}}
	shared := listsOf(&g)
	var old []word
	for i := range 3 * grantsMax {
		var id rdma.GrantID
		for k := range 4 { // few bits differ, so that many begin at the same place
			id[k*4] = byte(rng.Uint32())
		}
		switch w, ok := in[id]; {
		case ok:
			tab.clear(w)
			tab.free(w)
			delete(in, id)
			old = append(old, w)
		case len(in) < grantsMax:
			g.ID = id
			w, err := tab.install(&grant{Grant: g, lists: shared})
			if err != nil {
				t.Fatal(err)
			}
			in[id] = w
		}
		if i%1000 != 0 {
			continue
		}
		for id, w := range in {
			if got := m.find(id); got != w || !m.holds(w) {
				t.Fatalf("grant %s: found %x, want %x", id, got, w)
			}
			break
		}
	}
	for id, w := range in {
		if got := m.find(id); got != w {
			t.Fatalf("grant %s: found %x, want %x", id, got, w)
		}
	}
	for _, w := range old {
		if m.holds(w) {
			t.Fatalf("word %x is back", w)
		}
	}
	if got := m.find(rdma.GrantID{15: 1}); got != 0 {
		t.Errorf("found %x for a grant that was never there", got)
	}
	t.Logf("%d grants, the farthest %d from its place", len(in), tab.reach)
	for len(in) < grantsMax {
		g.ID = rdma.GrantID{1: byte(len(in)), 2: byte(len(in) >> 8), 15: 2}
		w, err := tab.install(&grant{Grant: g, lists: shared})
		if err != nil {
			t.Fatal(err)
		}
		in[g.ID] = w
	}
	if _, err := tab.install(&grant{Grant: g, lists: shared}); err == nil {
		t.Error("a grant too many was taken")
	}
}

func drawGrant(t *rapid.T) rdma.Grant {
	u64, u32 := rapid.Uint64(), rapid.Uint32()
	var lists [][]rdma.Run
	for range rapid.IntRange(1, 3).Draw(t, "lists") {
		lists = append(lists, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rdma.Run {
			return rdma.Run{First: u32.Draw(t, "first"), Count: u32.Draw(t, "count"), Step: u32.Draw(t, "step")}
		}), 1, 5).Draw(t, "runs"))
	}
	var g rdma.Grant
	for range rapid.IntRange(0, 5).Draw(t, "ranges") {
		g.Ranges = append(g.Ranges, rdma.Range{
			Region: rdma.RegionID(u64.Draw(t, "region")), Offset: u64.Draw(t, "offset"), UnitStride: u64.Draw(t, "unit"), Bytes: u64.Draw(t, "bytes"),
			Count: [2]uint32{u32.Draw(t, "outer"), u32.Draw(t, "inner")}, Stride: [2]uint64{u64.Draw(t, "outer"), u64.Draw(t, "inner")},
			Runs: rapid.SampledFrom(lists).Draw(t, "list"),
		})
	}
	return g
}

func TestADescriptionSaysWhatTheGrantSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGrant(t)
		l := listsOf(&g)
		b := make([]byte, l.bytes)
		l.describe(b, &g)
		got, err := parseRanges(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(g.Ranges) || len(got) > 0 && !reflect.DeepEqual(got, g.Ranges) {
			t.Fatalf("got %+v, want %+v", got, g.Ranges)
		}
		if len(b) > 0 {
			if _, err := parseRanges(b[:len(b)-1]); err == nil {
				t.Fatal("a description that was cut is read")
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	g := rdma.Grant{Ranges: []rdma.Range{wholeOf(1, 10), wholeOf(2, 20)}}
	l := listsOf(&g)
	b := make([]byte, l.bytes)
	l.describe(b, &g)
	f.Add(b)
	f.Add((&hello{from: "a", to: "b", generation: generation(3)}).encode())
	f.Add(encodeRegions([]handed{{1, 2}, {3, 4}}))
	f.Add(encodeGone(4))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ranges, err := parseRanges(b); err == nil {
			g := rdma.Grant{Ranges: ranges}
			_, _ = rdma.Compile(&g, func(rdma.RegionID) (uint64, bool) { return 1 << 20, true })
		}
		if h, err := parseHello(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("hello %+v is written as %x, was %x", h, h.encode(), b)
		}
		if k, rest, err := parseMessage(b); err == nil {
			if rs, err := parseRegions(rest); err == nil && k == kindRegions && !bytes.Equal(encodeRegions(rs), b) {
				t.Errorf("regions %+v are written as %x, were %x", rs, encodeRegions(rs), b)
			}
			if id, err := parseGone(rest); err == nil && k == kindGone && !bytes.Equal(encodeGone(id), b) {
				t.Errorf("gone %d is written as %x, was %x", id, encodeGone(id), b)
			}
		}
		_, _ = descriptors(b)
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{WindowWrites: -1}, {WindowWrites: 1 << 21}, {HandshakeTimeout: -1}, {CopyTimeout: 1}} {
		if p, err := Listen(c); err == nil {
			p.Close()
			t.Errorf("%+v is taken", c)
		}
	}
	if got := fmt.Sprint(refusal(200)); got == "" {
		t.Error("a refusal without a text")
	}
}
