package kv

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPagesFor(t *testing.T) {
	for _, tc := range []struct {
		size     uint32
		from, to uint64
		first    uint64
		n        int
	}{
		{16, 0, 1, 0, 1}, {16, 0, 16, 0, 1}, {16, 0, 17, 0, 2}, {16, 15, 17, 0, 2},
		{16, 16, 17, 16, 1}, {16, 40, 40, 32, 0}, {1, 3, 7, 3, 4}, {7, 6, 15, 0, 3},
	} {
		if first, n := PagesFor(tc.size, tc.from, tc.to); first != tc.first || n != tc.n {
			t.Errorf("pages of %d for [%d,%d): from token %d, %d pages; want %d, %d", tc.size, tc.from, tc.to, first, n, tc.first, tc.n)
		}
	}
}

func TestPackedPagesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.SliceOf(rapid.OneOf(rapid.Uint32Range(0, 30), rapid.Uint32())).Draw(t, "pages")
		back, err := UnpackPages(PackPages(pages), len(pages))
		if err != nil || !slices.Equal(back, pages) {
			t.Fatalf("%v packs as %v and comes back as %v (%v)", pages, PackPages(pages), back, err)
		}
		if len(pages) > 0 {
			if _, err := UnpackPages(PackPages(pages), len(pages)-1); err == nil {
				t.Fatalf("%d pages pass a limit of %d", len(pages), len(pages)-1)
			}
		}
	})
}

func TestConsecutivePagesAreOneRun(t *testing.T) {
	got := PackPages([]uint32{9, 3, 4, 5, 6, 40, 41})
	want := []Run{{9, 1, 1}, {3, 4, 1}, {40, 2, 1}}
	if !slices.Equal(got, want) {
		t.Errorf("packed as %v, want %v", got, want)
	}
}

func TestUnpackRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		runs []Run
		want string
	}{
		{"no pages in a run", []Run{{First: 1}}, "count 0"},
		{"one page many times", []Run{{First: 1, Count: 2}}, "step 0"},
		{"beyond 32 bits", []Run{{First: math.MaxUint32, Count: 2, Step: 1}}, "ends at page"},
		{"far beyond", []Run{{First: 1, Count: math.MaxUint32, Step: math.MaxUint32}}, "ends at page"},
		{"more than the limit", []Run{{First: 0, Count: 1 << 31, Step: 1}}, "at most 100"},
		{"more than the limit together", slices.Repeat([]Run{{First: 0, Count: 60, Step: 1}}, 2), "at least 120 pages"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := UnpackPages(tc.runs, 100); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestRepeatedPage(t *testing.T) {
	for _, tc := range []struct {
		pages []uint32
		page  uint32
		twice bool
	}{
		{nil, 0, false}, {[]uint32{0}, 0, false}, {[]uint32{3, 1, 3}, 3, true}, {[]uint32{1, 2, 3}, 0, false},
		{[]uint32{math.MaxUint32, 7, math.MaxUint32}, math.MaxUint32, true}, {[]uint32{math.MaxUint32, 7, 8}, 0, false},
	} {
		if page, twice := repeatedPage(tc.pages); page != tc.page || twice != tc.twice {
			t.Errorf("%v: page %d twice %v, want %d %v", tc.pages, page, twice, tc.page, tc.twice)
		}
	}
}

func FuzzUnpackPages(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0})
	f.Add(slices.Repeat([]byte{0xff}, 24))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{b}
		var runs []Run
		for len(r.b) >= 12 {
			runs = append(runs, Run{r.u32(), r.u32(), r.u32()})
		}
		pages, err := UnpackPages(runs, 4096)
		if err != nil {
			return
		}
		if len(pages) > 4096 {
			t.Fatalf("%d pages, want at most 4096", len(pages))
		}
		again, err := UnpackPages(PackPages(pages), len(pages))
		if err != nil || !slices.Equal(again, pages) {
			t.Fatalf("%v comes back as %v (%v)", pages, again, err)
		}
	})
}

// TestEachRowIsTheSlowLoop: what others use to fill and to compare memory visits
// what the slow loop of these tests does.
func TestEachRowIsTheSlowLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		i := drawInstance(t, m, "side", drawPage(t, m, "side"), 60)
		e := &i.Engines[rapid.IntRange(0, len(i.Engines)-1).Draw(t, "engine")]
		length := uint64(rapid.IntRange(1, 60).Draw(t, "length"))
		at := i.place(t, "side", e.Rank, 0, length)
		type place struct {
			component   string
			layer, head int
			row         uint64
		}
		want := make(map[place]where)
		i.rows(e, &at, 0, length, func(c *Component, layer, head int, row uint64, region uint32, at uint64) {
			want[place{c.Name, layer, head, row}] = where{region, at}
		})
		visit := func(r Row) {
			p := place{r.Component.Name, r.Layer, r.Head, r.Row}
			if w, ok := want[p]; !ok || w != (where{r.Region, r.Offset}) {
				t.Fatalf("%+v is visited at region %d offset %d, want %v (%v)", p, r.Region, r.Offset, w, ok)
			}
			delete(want, p)
		}
		cut := uint64(rapid.IntRange(0, int(length)).Draw(t, "cut"))
		i.EachRow(e.Rank, &at, 0, cut, visit)
		i.EachRow(e.Rank, &at, cut, length, visit)
		i.EachState(e.Rank, at.Slot, length, visit)
		if len(want) > 0 {
			t.Fatalf("not visited: %v", want)
		}
	})
}
