package actors_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kvferry/actors"
	"kvferry/kv"
)

// mixed is an engine with two pools of pages, slots and metadata rows.
func mixed(t testing.TB) (*kv.Instance, kv.Rank) {
	t.Helper()
	d := kv.Deployment{
		Model: kv.Model{ID: "m", Components: []kv.Component{
			{Name: "k", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 1, HeadBytes: 4, DType: kv.UINT8},
			{Name: "swa", Kind: kv.Paged, Layers: []int{1}, Heads: 1, HeadBytes: 4, DType: kv.UINT8, Window: 20},
			{Name: "ssm", Kind: kv.Slot, Layers: []int{0}, Heads: 1, HeadBytes: 4, DType: kv.UINT8},
		}},
		TP: 1, PP: 1, DP: 1, PageTokens: 8, Layout: kv.NHD, Slots: 3, MetaRows: 4, MetaRowBytes: 32,
	}
	i, reasons := d.Instance(16)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	return i, kv.Rank{}
}

// A room gets all that it needs or nothing, no two rooms share a page, a slot or a
// row, and what is given back can be taken again.
func TestPoolsGiveWhatARoomNeedsOrNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i, rank := mixed(&testing.T{})
		p := actors.NewPools(i, rank, 4)
		pools := i.Pools(rank)
		type room struct {
			prefix, length uint64
			at             kv.Placement
		}
		var rooms []room
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(rooms) > 0 && rapid.Bool().Draw(t, "give") {
				n := rapid.IntRange(0, len(rooms)-1).Draw(t, "which")
				p.Give(rooms[n].at)
				rooms = slices.Delete(rooms, n, n+1)
				continue
			}
			length := uint64(rapid.IntRange(1, 128).Draw(t, "length"))
			prefix := uint64(rapid.IntRange(0, int(length)).Draw(t, "prefix"))
			free, _ := p.Pages()
			at, ok := p.Take(prefix, length)
			if !ok {
				if now, _ := p.Pages(); now != free {
					t.Fatalf("nothing was given, and %d of %d pages are free", now, free)
				}
				continue
			}
			rooms = append(rooms, room{prefix, length, at})
		}
		pages := make(map[[2]uint64]bool)
		slots, rows := make(map[uint32]bool), make(map[uint32]bool)
		for _, r := range rooms {
			for k, pool := range pools {
				if err := pool.Check(kv.Decode, r.at.Table(pool.Window), r.prefix, r.length); err != nil || r.at.Tables[k].Window != pool.Window {
					t.Fatalf("tokens [%d,%d): %v", r.prefix, r.length, err)
				}
				for _, page := range r.at.Tables[k].Pages {
					if key := [2]uint64{pool.Window, uint64(page)}; pages[key] {
						t.Fatalf("page %d of window %d has two rooms", page, pool.Window)
					} else {
						pages[key] = true
					}
				}
			}
			if slots[r.at.Slot] || rows[r.at.MetaRow] {
				t.Fatalf("slot %d or row %d has two rooms", r.at.Slot, r.at.MetaRow)
			}
			slots[r.at.Slot], rows[r.at.MetaRow] = true, true
			p.Give(r.at)
		}
		if free, total := p.Pages(); free != total || total != 32 {
			t.Fatalf("%d of %d pages are free at the end, want 32 of 32", free, total)
		}
	})
}

func TestPoolsSayWhatNeverFits(t *testing.T) {
	i, rank := mixed(t)
	p := actors.NewPools(i, rank, 4)
	for _, tc := range []struct {
		prefix, length uint64
		want           string
	}{
		{0, 128, ""}, {128, 128, ""}, {64, 190, ""},
		{0, 129, "tokens 0 to 129 need 17 pages of 8 tokens, the pool has 16"},
	} {
		if got := p.TooLarge(tc.prefix, tc.length); got != tc.want {
			t.Errorf("tokens [%d,%d): got %q, want %q", tc.prefix, tc.length, got, tc.want)
		}
	}
	if got := actors.NewPools(i, rank, 0).TooLarge(0, 1); !strings.Contains(got, "no metadata row") {
		t.Errorf("an engine without rows: got %q", got)
	}
}

// The share of rooms that the other side does not know yet is kept in each pool, in
// slots and in rows.
func TestPoolsKeepTheShareOfEach(t *testing.T) {
	i, rank := mixed(t)
	p := actors.NewPools(i, rank, 4)
	half := p.Claim(0, 64) // 8 of 16 pages of k, 4 of 16 of the window, one slot, one row
	if !p.Within(half, nil, 50) || p.Within(p.Claim(0, 65), nil, 50) {
		t.Error("8 of 16 pages are half of the pool, 9 are not")
	}
	if small := p.Claim(0, 8); p.Within(small, half, 50) {
		t.Error("9 of 16 pages are within the half of the pool")
	} else if one := p.Claim(8, 8); p.Within(one, small, 50) {
		t.Error("2 of 3 slots are within the half of them")
	} else if p.Within(one, nil, 30) {
		t.Error("one of 3 slots is within 30 % of them")
	}
	if back := half.Add(half).Sub(half); !slices.Equal(back, half) {
		t.Errorf("a claim added and taken off: %v, want %v", back, half)
	}
}
