package rdma

import (
	"errors"
	"math"
	"testing"
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
