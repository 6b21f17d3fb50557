package transfer

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvferry/kv"
)

// pairsOf expands runs to pairs of units.
func pairsOf(runs []kv.PairRun) [][2]uint32 {
	var out [][2]uint32
	for _, r := range runs {
		for i := range r.Count {
			out = append(out, [2]uint32{r.Source + i*r.SourceStep, r.Target + i*r.TargetStep})
		}
	}
	return out
}

// Split copies move the same units in the same order, and no write is larger
// than the limit unless it is a single unit.
func TestSplitKeepsEveryUnit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var copies []kv.Copy
		type unit struct {
			layer int
			pair  [2]uint32
		}
		var want []unit
		for layer := range rapid.IntRange(0, 6).Draw(t, "copies") {
			c := kv.Copy{Layer: layer, Bytes: rapid.Uint64Range(1, 9).Draw(t, "bytes"), Count: [2]uint32{
				rapid.Uint32Range(1, 3).Draw(t, "count 0"), rapid.Uint32Range(1, 3).Draw(t, "count 1")}}
			for range rapid.IntRange(1, 4).Draw(t, "runs") {
				c.Runs = append(c.Runs, kv.PairRun{
					Source: rapid.Uint32Range(0, 99).Draw(t, "source"), Target: rapid.Uint32Range(0, 99).Draw(t, "target"),
					Count: rapid.Uint32Range(1, 9).Draw(t, "count"), SourceStep: 1, TargetStep: rapid.Uint32Range(1, 3).Draw(t, "step"),
				})
			}
			for _, p := range pairsOf(c.Runs) {
				want = append(want, unit{layer, p})
			}
			copies = append(copies, c)
		}
		before := slices.Clone(copies)
		most := rapid.Uint64Range(1, 200).Draw(t, "most")
		var got []unit
		for _, write := range split(copies, most) {
			n := 0
			for _, c := range write {
				for _, p := range pairsOf(c.Runs) {
					got = append(got, unit{c.Layer, p})
					n++
				}
			}
			if bytes := copyBytes(write); n == 0 || bytes > most && n > 1 {
				t.Fatalf("a write has %d units and %d bytes, the limit is %d", n, bytes, most)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for i := range copies {
			if !slices.Equal(copies[i].Runs, before[i].Runs) {
				t.Fatal("split changed the runs that it was given")
			}
		}
	})
}
