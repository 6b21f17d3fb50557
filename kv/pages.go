package kv

import (
	"fmt"
	"math"
	"slices"
)

// PagesFor answers which pages hold the tokens [from, to): first is the token
// that the first of them begins with, n is how many they are. pageTokens is at
// least 1; from == to needs no page.
func PagesFor(pageTokens uint32, from, to uint64) (first uint64, n int) {
	p := uint64(pageTokens)
	first = from - from%p
	if from >= to {
		return first, 0
	}
	return first, int((to-1)/p - from/p + 1)
}

// PackPages packs a list of pages into runs of one step. Only ascending runs are
// made; a list in no order costs one run for one or two pages.
func PackPages(pages []uint32) []Run {
	var runs []Run
	for _, p := range pages {
		n := len(runs)
		if n > 0 && extend(&runs[n-1], p) {
			continue
		}
		// Two pages at some distance are no run if the second begins one.
		if n > 0 {
			if r := &runs[n-1]; r.Count == 2 && r.Step != 1 && uint64(r.First)+uint64(r.Step)+1 == uint64(p) {
				last := r.First + r.Step
				r.Count, r.Step = 1, 1
				runs = append(runs, Run{First: last, Count: 2, Step: 1})
				continue
			}
		}
		runs = append(runs, Run{First: p, Count: 1, Step: 1})
	}
	return runs
}

// extend adds page p to a run if it goes on with it.
func extend(r *Run, p uint32) bool {
	last := uint64(r.First) + uint64(r.Count-1)*uint64(r.Step)
	if uint64(p) <= last || r.Count == math.MaxUint32 {
		return false
	}
	step := uint32(uint64(p) - last)
	if r.Count == 1 {
		r.Step = step
	}
	if r.Step != step {
		return false
	}
	r.Count++
	return true
}

// UnpackPages is the inverse of PackPages for runs that came off the wire: at
// most limit pages, nothing allocated before that is known.
func UnpackPages(runs []Run, limit int) ([]uint32, error) {
	total := uint64(0)
	for i, r := range runs {
		if r.Count == 0 {
			return nil, fmt.Errorf("pages: run %d has count 0, want at least 1", i)
		}
		if r.Count > 1 && r.Step == 0 {
			return nil, fmt.Errorf("pages: run %d names page %d %d times (step 0)", i, r.First, r.Count)
		}
		if last := uint64(r.First) + uint64(r.Count-1)*uint64(r.Step); last > math.MaxUint32 {
			return nil, fmt.Errorf("pages: run %d ends at page %d, want at most %d", i, last, uint32(math.MaxUint32))
		}
		total += uint64(r.Count)
		if limit < 0 || total > uint64(limit) {
			return nil, fmt.Errorf("pages: runs name at least %d pages, want at most %d", total, max(limit, 0))
		}
	}
	pages := make([]uint32, 0, total)
	for _, r := range runs {
		for i := range r.Count {
			pages = append(pages, r.First+i*r.Step)
		}
	}
	return pages, nil
}

// repeatedPage finds a page that stands twice in a list.
func repeatedPage(pages []uint32) (uint32, bool) {
	if len(pages) == 0 {
		return 0, false
	}
	top := slices.Max(pages)
	if words := uint64(top)/64 + 1; words <= 4*uint64(len(pages))+64 {
		seen := make([]uint64, words)
		for _, p := range pages {
			if seen[p/64]&(1<<(p%64)) != 0 {
				return p, true
			}
			seen[p/64] |= 1 << (p % 64)
		}
		return 0, false
	}
	// Few pages of a large pool: sorting is cheaper than a map of the pool.
	sorted := slices.Sorted(slices.Values(pages))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return sorted[i], true
		}
	}
	return 0, false
}
