package rdma

import (
	"errors"
	"math"
	"testing"
	"time"
)

// A stride of 0 stays inside any region, however often it is repeated: what cannot
// be counted is refused, of copies and of ranges alike.
func TestPatternsThatCannotBeCountedAreRefused(t *testing.T) {
	for name, p := range map[string]struct {
		bytes uint64
		count [2]uint32
		units uint32
	}{
		"rows wrap to 0":          {4, [2]uint32{1 << 31, 1 << 31}, 4},
		"bytes wrap":              {1 << 10, [2]uint32{1 << 30, 1 << 30}, 1},
		"bytes need the 64th bit": {1 << 3, [2]uint32{1 << 30, 1 << 30}, 1},
		"rows wrap past 0":        {1, [2]uint32{math.MaxUint32, math.MaxUint32}, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var outside *RangeError
			c := Copy{Bytes: p.bytes, Count: p.count, Runs: []PairRun{{Count: p.units}}}
			if err := c.Check("copy", 4096, Unbounded); !errors.As(err, &outside) {
				t.Errorf("copy: got %v, want a RangeError", err)
			}
			w := Write{Copies: []Copy{c}}
			if err := w.Check(func(RegionID) (uint64, bool) { return 4096, true }); !errors.As(err, &outside) {
				t.Errorf("write: got %v, want a RangeError", err)
			}
			r := Range{Bytes: p.bytes, Count: p.count, Runs: []Run{{Count: p.units}}}
			if err := r.CheckRows("rows", 4096); !errors.As(err, &outside) {
				t.Errorf("rows: got %v, want a RangeError", err)
			}
		})
	}
}

// The runs that ranges share are checked once: a peer that tells of a grant may not make
// this side work for each of its ranges times each of its runs.
func TestRunsThatAreSharedAreCheckedOnce(t *testing.T) {
	grant := func(ranges, runs int) *Grant {
		g := &Grant{}
		shared := make([]Run, runs)
		for i := range shared {
			shared[i] = Run{First: uint32(2 * i), Count: 1, Step: 1}
		}
		for i := range ranges {
			g.Ranges = append(g.Ranges, Range{Region: 1, Offset: uint64(i), UnitStride: 1 << 20, Bytes: 1, Count: [2]uint32{1, 1}, Runs: shared})
		}
		return g
	}
	cost := func(g *Grant) time.Duration {
		best := time.Duration(math.MaxInt64)
		for range 3 {
			start := time.Now()
			if _, err := Compile(g, func(RegionID) (uint64, bool) { return 1 << 40, true }); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	// 4,000 times 500 as many runs would show: what is right is one set more.
	few, many := cost(grant(4000, 16)), cost(grant(4000, 8000))
	if many > 50*few {
		t.Errorf("4,000 ranges take %v with 16 runs, %v with 8,000", few, many)
	}
}
