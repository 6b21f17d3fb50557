package kv

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// Pairs are the pairs of every candidate, as Pair makes them one by one.
func TestPairsAreThoseOfTheCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		for _, r := range s.fit.Receivers(s.route) {
			got, err := s.fit.Pairs(s.route, r, s.prefix, s.length)
			if err != nil {
				t.Fatal(err)
			}
			candidates := s.fit.Candidates(s.route, r)
			if len(got) != len(candidates) {
				t.Fatalf("receiver %v has %d pairs, want those of %v", r, len(got), candidates)
			}
			for n, w := range candidates {
				want, err := s.fit.Pair(s.route, w, r, s.prefix, s.length)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got[n], want) {
					t.Fatalf("pair of %v and %v is %+v, want %+v", w, r, got[n], want)
				}
			}
		}
		if _, err := s.fit.Pairs(Route{PrefillDP: 1 << 20}, Rank{}, s.prefix, s.length); err == nil {
			t.Fatal("a DP rank beyond the size is taken")
		}
		if _, err := s.fit.Pairs(s.route, s.fit.Receivers(s.route)[0], 2, 1); err == nil {
			t.Fatal("a prefix beyond the length is taken")
		}
	})
}
