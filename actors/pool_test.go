package actors

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The pool against a bitmap: every page has at most one owner, nothing is lost,
// and a run is used whole where there is one.
func TestPoolGivesEachPageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint32Range(0, 64).Draw(t, "total")
		p := NewPool(total)
		taken := make([]bool, total)
		var held [][]uint32
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				p.Give(rapid.Permutation(held[i]).Draw(t, "order"))
				for _, page := range held[i] {
					taken[page] = false
				}
				held = slices.Delete(held, i, i+1)
				continue
			}
			n := rapid.Uint32Range(0, 20).Draw(t, "n")
			free := uint32(0)
			for _, b := range taken {
				if !b {
					free++
				}
			}
			pages, ok := p.Take(n)
			if ok != (n <= free) || p.Free() != free-uint32(len(pages)) {
				t.Fatalf("take %d of %d free: ok %v, %d pages, %d left", n, free, ok, len(pages), p.Free())
			}
			if ok && uint32(len(pages)) != n {
				t.Fatalf("took %d pages, want %d", len(pages), n)
			}
			for _, page := range pages {
				if taken[page] {
					t.Fatalf("page %d has two owners", page)
				}
				taken[page] = true
			}
			if len(pages) > 0 {
				held = append(held, pages)
			}
		}
	})
}

func TestPoolPrefersOneRun(t *testing.T) {
	p := NewPool(10)
	a, _ := p.Take(3)
	if _, ok := p.Take(2); !ok {
		t.Fatal("no pages")
	}
	p.Give(a) // free: 0-2, 5-9
	got, _ := p.Take(4)
	if want := []uint32{5, 6, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPoolPanicsOnAPageWithTwoOwners(t *testing.T) {
	for name, pages := range map[string][]uint32{"free already": {3}, "not in the pool": {10}, "twice": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(10)
			p.Take(2)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p.Give(pages)
		})
	}
}
