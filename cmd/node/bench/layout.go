package bench

import (
	"fmt"
	"iter"
	"math/rand/v2"

	"kvferry/transport/rdma"
)

// Rows says how rows lie in the two pools.
type Rows string

const (
	// Scattered: in no order on both sides.
	Scattered Rows = "scattered"
	// Strided: as between instances of different TP. A page of the receiver has rows
	// of twice as many heads, of which the sender has half: rows that follow one
	// another there are two strides apart here. Pages are in no order.
	Strided Rows = "strided"
	// Contiguous, Gathered and Spread: in order on both sides, on the receiver's side
	// alone, on the sender's side alone.
	Contiguous Rows = "contiguous"
	Gathered   Rows = "gathered"
	Spread     Rows = "spread"
)

// Spec says which rows are written. Both processes lay them out alike.
type Spec struct {
	Rows  Rows
	Block uint64 // bytes of a row
	Batch int    // rows of a write
	Pool  uint64 // bytes of the pool of each side
}

// batchOf is the rows of a write, given what was asked for: 0 is BatchBytes.
func batchOf(block uint64, asked int) int {
	if asked > 0 {
		return asked
	}
	return int(max(1, BatchBytes/block))
}

// layout is the rows of a Spec: units of rows, in the order in which they are
// written. A unit is a page; where rows are scattered it is one row.
type layout struct {
	Spec
	perUnit          int // rows
	source, target   side
	units            int // of a write
	writes           int // that the pools have room for; what is left over is not used
	sources, targets []uint32
}

// side is the bytes from one unit to the next and from one row of a unit to the next.
type side struct{ unit, row uint64 }

// geometry is the units of a Spec, without their order.
func (s *Spec) geometry() *layout {
	if s.Rows != Strided {
		return &layout{Spec: *s, perUnit: 1, source: side{unit: s.Block}, target: side{unit: s.Block}}
	}
	return &layout{
		Spec: *s, perUnit: int(pageBytes / (2 * s.Block)),
		source: side{pageBytes / 2, s.Block}, target: side{pageBytes, 2 * s.Block},
	}
}

// FieldError is a field of a Spec that cannot be, or not with the others.
type FieldError struct {
	Field string // block, batch or pool
	Got   uint64
	Want  string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s is %d, want %s", e.Field, e.Got, e.Want) }

// check is a *FieldError, or nil.
func (s *Spec) check() error {
	if s.Block < BlockMin || s.Block > BlockMax || s.Block%8 != 0 {
		return &FieldError{"block", s.Block, fmt.Sprintf("a multiple of 8 bytes from %d to %d", BlockMin, BlockMax)}
	}
	if s.Rows == Strided && pageBytes%(2*s.Block) != 0 {
		return &FieldError{"block", s.Block, fmt.Sprintf("a number of bytes of which twice as much divides %d, where rows are strided", pageBytes)}
	}
	l := s.geometry()
	if most := s.Pool / s.Block; s.Batch < 1 || uint64(s.Batch) > most {
		return &FieldError{"batch", uint64(s.Batch), fmt.Sprintf("1 to the %d blocks of the pool", most)}
	}
	if s.Batch%l.perUnit != 0 {
		return &FieldError{"batch", uint64(s.Batch), fmt.Sprintf("a multiple of the %d blocks of a page", l.perUnit)}
	}
	least := writesMin * uint64(s.Batch/l.perUnit) * l.target.unit
	most := min(PoolMax, unitsMax*l.source.unit)
	if s.Pool < least || s.Pool > most {
		return &FieldError{"pool", s.Pool, fmt.Sprintf("at least the %d bytes of %d batches, and at most %d", least, writesMin, most)}
	}
	return nil
}

// newLayout lays out a Spec.
func newLayout(s Spec) (*layout, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	l := s.geometry()
	l.units = s.Batch / l.perUnit
	l.writes = int(s.Pool / l.target.unit / uint64(l.units))
	n := l.writes * l.units
	l.sources = numbers(n, s.Pool/l.source.unit, s.Rows != Contiguous && s.Rows != Spread, 1)
	l.targets = numbers(n, s.Pool/l.target.unit, s.Rows != Contiguous && s.Rows != Gathered, 2)
	return l, nil
}

// numbers is n of the units 0 to limit, in order or not.
func numbers(n int, limit uint64, shuffled bool, seed uint64) []uint32 {
	all := make([]uint32, limit)
	for i := range all {
		all[i] = uint32(i)
	}
	if shuffled {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all[:n]
}

// writeBytes is the payload of a write.
func (l *layout) writeBytes() uint64 { return uint64(l.Batch) * l.Block }

// rows is where the rows of a write lie: source, then target.
func (l *layout) rows(write int) iter.Seq2[uint64, uint64] {
	return func(yield func(source, target uint64) bool) {
		for u := write * l.units; u < (write+1)*l.units; u++ {
			source, target := uint64(l.sources[u])*l.source.unit, uint64(l.targets[u])*l.target.unit
			for range l.perUnit {
				if !yield(source, target) {
					return
				}
				source += l.source.row
				target += l.target.row
			}
		}
	}
}

// row is where row i of all writes lies.
func (l *layout) row(i int) (source, target uint64) {
	u, k := i/l.perUnit, uint64(i%l.perUnit)
	return uint64(l.sources[u])*l.source.unit + k*l.source.row, uint64(l.targets[u])*l.target.unit + k*l.target.row
}

// copyOf is a write as providers take it.
func (l *layout) copyOf(write int, source, target rdma.RegionID) rdma.Copy {
	c := rdma.Copy{
		Source: rdma.Place{Region: source, UnitStride: l.source.unit, Stride: [2]uint64{l.source.row}},
		Target: rdma.Place{Region: target, UnitStride: l.target.unit, Stride: [2]uint64{l.target.row}},
		Bytes:  l.Block, Count: [2]uint32{uint32(l.perUnit), 1}, Runs: make([]rdma.PairRun, l.units),
	}
	for i := range c.Runs {
		u := write*l.units + i
		c.Runs[i] = rdma.PairRun{Source: l.sources[u], Target: l.targets[u], Count: 1}
	}
	return c
}
