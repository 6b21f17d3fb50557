package bench

import (
	"strings"
	"testing"

	"kvferry/transport/rdma"
)

// TestLayoutsWriteEachRowOnce: no two rows of a layout overlap on either side, all lie
// in the pools, and a provider is given exactly these.
func TestLayoutsWriteEachRowOnce(t *testing.T) {
	for _, rows := range []Rows{Scattered, Strided, Contiguous, Gathered, Spread} {
		spec := Spec{Rows: rows, Block: 2 << 10, Batch: 64, Pool: 1<<20 + 12345}
		l, err := newLayout(spec)
		if err != nil {
			t.Fatal(err)
		}
		sources, targets := make([]bool, spec.Pool), make([]bool, spec.Pool)
		take := func(memory []bool, at uint64) {
			for i := range spec.Block {
				if memory[at+i] {
					t.Fatalf("%s: byte %d is of two rows", rows, at+i)
				}
				memory[at+i] = true
			}
		}
		n := 0
		for w := range l.writes {
			c := l.copyOf(w, 1, 2)
			given := c.Runs
			unit, k := 0, 0
			for source, target := range l.rows(w) {
				take(sources, source)
				take(targets, target)
				if s, at := l.row(n); s != source || at != target {
					t.Fatalf("%s: row %d is at %d and %d, want %d and %d", rows, n, s, at, source, target)
				}
				r := given[unit]
				if s := uint64(r.Source)*c.Source.UnitStride + uint64(k)*c.Source.Stride[0]; s != source {
					t.Fatalf("%s: row %d is copied from %d, want %d", rows, n, s, source)
				}
				if at := uint64(r.Target)*c.Target.UnitStride + uint64(k)*c.Target.Stride[0]; at != target {
					t.Fatalf("%s: row %d is copied to %d, want %d", rows, n, at, target)
				}
				if k++; k == int(c.Count[0]) {
					unit, k = unit+1, 0
				}
				n++
			}
			if write := (&rdma.Write{Copies: []rdma.Copy{c}}).Bytes(); write != l.writeBytes() {
				t.Fatalf("%s: a write has %d bytes, want %d", rows, write, l.writeBytes())
			}
		}
		if n != l.writes*spec.Batch || l.writes < writesMin {
			t.Errorf("%s: %d rows in %d writes", rows, n, l.writes)
		}
	}
}

func TestSpecsThatCannotBe(t *testing.T) {
	good := Spec{Rows: Strided, Block: 2 << 10, Batch: 64, Pool: 1 << 20}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Spec){
		"block is 12,":          func(s *Spec) { s.Block = 12 },
		"block is 65536,":       func(s *Spec) { s.Block = pageBytes },
		"block is 134217728,":   func(s *Spec) { s.Block = 2 * BlockMax },
		"batch is 0,":           func(s *Spec) { s.Batch = 0 },
		"batch is 17,":          func(s *Spec) { s.Batch = 17 },
		"batch is 8192,":        func(s *Spec) { s.Batch = 8192 },
		"pool is 262144,":       func(s *Spec) { s.Pool = 256 << 10 },
		"pool is 1099511627776": func(s *Spec) { s.Pool = 1 << 40 },
	} {
		s := good
		change(&s)
		if err := s.check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
