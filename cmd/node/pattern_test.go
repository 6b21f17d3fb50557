package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"kvferry/kv"
)

// slowRow is the pattern as its comment says it, byte by byte.
func slowRow(n int, seed uint64) []byte {
	var out []byte
	for w := uint64(0); len(out) < n; w++ {
		out = binary.LittleEndian.AppendUint64(out, seed+w*patternStep)
	}
	return out[:n]
}

func TestRowsAreAsTheSlowVersionWritesThemAndWrongBytesAreCountedExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 300), rapid.Map(rapid.IntRange(0, 9), func(n int) int { return 32 * n })).Draw(t, "bytes")
		seed := rapid.Uint64().Draw(t, "seed")
		b := make([]byte, n)
		fillRow(b, seed)
		if want := slowRow(n, seed); string(b) != string(want) {
			t.Fatalf("row of %d bytes\n got %x\nwant %x", n, b, want)
		}
		wrong := make(map[int]bool)
		for range rapid.IntRange(0, 5).Draw(t, "flips") {
			if n > 0 {
				wrong[rapid.IntRange(0, n-1).Draw(t, "at")] = true
			}
		}
		for at := range wrong {
			b[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "xor"))
		}
		if got := wrongInRow(b, seed); got != uint64(len(wrong)) {
			t.Fatalf("%d wrong bytes, want %d", got, len(wrong))
		}
	})
}

// newCache is the cache of an engine with memory of its own.
func newCache(i *kv.Instance, n int) *cache {
	e := &i.Engines[n]
	return &cache{instance: i, rank: e.Rank, meta: e.Meta, regions: [][]byte{make([]byte, e.RegionBytes[0])}}
}

// drawCache is an engine of a drawn deployment, with a table of its pages.
func drawCache(t *rapid.T) (*cache, kv.PageTable, kv.Pool) {
	heads := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "heads")
	d := &kv.Deployment{
		Model: kv.Model{ID: "m", Components: []kv.Component{
			{Name: "k", Kind: kv.Paged, Layers: []int{0, 1, 2}, Heads: heads, HeadBytes: uint64(rapid.IntRange(8, 20).Draw(t, "k bytes")), DType: kv.INT8},
			{Name: "v", Kind: kv.Paged, Layers: []int{0, 1, 2}, Heads: heads, HeadBytes: uint64(rapid.IntRange(8, 20).Draw(t, "v bytes")), DType: kv.INT8},
		}},
		TP: rapid.SampledFrom([]int{1, heads}).Draw(t, "tp"), PP: 1, DP: 1,
		PageTokens: uint32(rapid.IntRange(1, 7).Draw(t, "page")),
		Layout:     rapid.SampledFrom([]kv.Layout{kv.NHD, kv.HND}).Draw(t, "layout"),
		MetaRows:   2, MetaRowBytes: 40,
	}
	const pages = 9
	i, reasons := d.Instance(pages)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	n := rapid.IntRange(0, len(i.Engines)-1).Draw(t, "rank")
	all := []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8}
	table := kv.PageTable{
		First: uint64(rapid.IntRange(0, 3).Draw(t, "first")) * uint64(d.PageTokens),
		Pages: rapid.Permutation(all).Draw(t, "pages")[:rapid.IntRange(1, pages).Draw(t, "count")],
	}
	c := newCache(i, n)
	fillCanaries(c.regions[0])
	return c, table, i.Pools(c.rank)[0]
}

// slowFill fills as the layout is documented, looking for nothing clever.
func slowFill(c *cache, memory []byte, room uint64, table kv.PageTable, from, to uint64) {
	for _, s := range c.instance.Engines[c.rank.TP].Shards {
		for _, l := range s.Layers {
			for token := from; token < to; token++ {
				for head := s.Heads.Low; head < s.Heads.High; head++ {
					page := table.Pages[(token-table.First)/uint64(s.PageTokens)]
					at := l.Offset + uint64(page)*s.PageStride + token%uint64(s.PageTokens)*s.RowStride + uint64(head-s.Heads.Low)*s.HeadStride
					n := min(s.HeadStride, s.RowStride)
					copy(memory[at:at+n], slowRow(int(n), patternSeed(patternBase(room, s.Component, l.Layer), head, token)))
				}
			}
		}
	}
}

func TestPagesAreFilledAndCheckedAsTheSlowVersionDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, table, pool := drawCache(t)
		held := kv.AllTokens(table, 0)
		end := table.First + uint64(len(table.Pages))*pool.Stripe()
		from := rapid.Uint64Range(table.First, end-1).Draw(t, "from")
		to := rapid.Uint64Range(from, end).Draw(t, "to")
		want := append([]byte(nil), c.regions[0]...)
		slowFill(c, want, 7, table, from, to)
		c.fill(7, &held, from, to)
		if string(c.regions[0]) != string(want) {
			t.Fatalf("tokens [%d,%d) of %+v are not filled as the slow version does", from, to, table)
		}
		var d damage
		c.check(&d, 7, &held, from, to)
		c.checkUnwritten(&d, &held, table.First, from)
		c.checkUnwritten(&d, &held, to, end)
		if d.bytes != 0 {
			t.Fatalf("%d bytes wrong in memory that is right, the first: %s", d.bytes, d.first)
		}
		// A byte anywhere is found: by the room's check, by that of what lies beside
		// it, or by that of the pages of nobody.
		at := rapid.Uint64Range(0, c.meta.Offset-1).Draw(t, "spoiled")
		c.regions[0][at] ^= byte(rapid.IntRange(1, 255).Draw(t, "xor"))
		c.check(&d, 7, &held, from, to)
		c.checkUnwritten(&d, &held, table.First, from)
		c.checkUnwritten(&d, &held, to, end)
		used := make(map[uint32]bool)
		for _, p := range table.Pages {
			used[p] = true
		}
		for p := range pool.Pages {
			if !used[p] {
				c.page(pool, p, d.untouched)
			}
		}
		if d.bytes != 1 {
			t.Fatalf("one byte at %d is wrong, %d were found", at, d.bytes)
		}
	})
}

func TestTheCheckSeesRowsThatBelongElsewhere(t *testing.T) {
	wrongPlaces := map[string]func(place) (uint64, place){
		"k and v swapped": func(p place) (uint64, place) {
			p.component = map[string]string{"k": "v", "v": "k"}[p.component]
			return 1, p
		},
		"a layer on":   func(p place) (uint64, place) { p.layer++; return 1, p },
		"a head on":    func(p place) (uint64, place) { p.head++; return 1, p },
		"a token on":   func(p place) (uint64, place) { p.row++; return 1, p },
		"a page on":    func(p place) (uint64, place) { p.row += 16; return 1, p },
		"a room on":    func(p place) (uint64, place) { return 2, p },
		"the next row": func(p place) (uint64, place) { p.row, p.head = p.row+1, p.head-1; return 1, p },
	}
	d := &kv.Deployment{
		Model: kv.Model{ID: "m", Components: []kv.Component{
			{Name: "k", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 4, HeadBytes: 64, DType: kv.BF16},
			{Name: "v", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 4, HeadBytes: 64, DType: kv.BF16},
		}},
		TP: 1, PP: 1, DP: 1, PageTokens: 16, Layout: kv.NHD,
	}
	i, _ := d.Instance(4)
	held := kv.AllTokens(kv.PageTable{Pages: []uint32{2, 0, 3, 1}}, 0)
	for name, from := range wrongPlaces {
		t.Run(name, func(t *testing.T) {
			c := newCache(i, 0)
			rows := uint64(0)
			c.rows(1, &held, 0, 64, func(_ uint64, p place, row []byte) {
				room, q := from(p)
				fillRow(row, patternSeed(patternBase(room, q.component, q.layer), q.head, q.row))
				rows++
			})
			var found damage
			c.check(&found, 1, &held, 0, 64)
			// One byte in 256 is the same by chance.
			if bytes := rows * 64; found.bytes < bytes*98/100 {
				t.Fatalf("%d of %d bytes were found wrong", found.bytes, bytes)
			}
		})
	}
}

func TestCanariesAreCountedExactly(t *testing.T) {
	b := make([]byte, 3*len(canaries)+5)
	fillCanaries(b)
	if n := wrongCanaries(b); n != 0 {
		t.Fatalf("%d wrong in fresh canaries", n)
	}
	for _, at := range []int{0, len(canaries) - 1, len(canaries), len(b) - 1} {
		b[at]++
	}
	if n := wrongCanaries(b); n != 4 {
		t.Fatalf("got %d, want 4", n)
	}
}

func BenchmarkPattern(b *testing.B) {
	m, _ := kv.LookupModel("llama-3.1-8b")
	d := &kv.Deployment{Model: m, TP: 1, PP: 1, DP: 1, PageTokens: 16, Layout: kv.NHD}
	i, _ := d.Instance(32)
	c := newCache(i, 0)
	pages := make([]uint32, 32)
	for n, p := range rand.New(rand.NewPCG(1, 2)).Perm(32) {
		pages[n] = uint32(p)
	}
	held := kv.AllTokens(kv.PageTable{Pages: pages}, 0)
	var found damage
	for name, f := range map[string]func(){
		"fill":    func() { c.fill(1, &held, 0, 512) },
		"check":   func() { c.check(&found, 1, &held, 0, 512) },
		"restore": func() { fillCanaries(c.regions[0]) },
	} {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			b.SetBytes(int64(len(c.regions[0])))
			for b.Loop() {
				f()
			}
		})
	}
}
