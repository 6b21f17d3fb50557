package bench

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"unsafe"
)

// sample is rows of a layout whose bytes are looked at after a measurement. They are
// cleared before, so that what lies there has been written since.
type sample struct {
	layout *layout
	rows   []int // of all writes
}

func newSample(l *layout) *sample {
	all := l.writes * l.Batch
	s := &sample{layout: l, rows: make([]int, min(all, int(sampleBytes/l.Block)+1))}
	rng := rand.New(rand.NewPCG(3, 0))
	for i := range s.rows {
		s.rows[i] = rng.IntN(all) // some twice, which does no harm
	}
	return s
}

func (s *sample) clear(target []byte) {
	for _, i := range s.rows {
		_, at := s.layout.row(i)
		clear(target[at:][:s.layout.Block])
	}
}

// check counts the bytes of the sample that are wrong, when n writes have landed from
// write first on, around and around: the rows of these have the bytes of their
// source, the others are as they were cleared.
func (s *sample) check(target []byte, first, n int) (checked, wrong uint64) {
	for _, i := range s.rows {
		behind := (i/s.layout.Batch - first%s.layout.writes + s.layout.writes) % s.layout.writes
		source, at := s.layout.row(i)
		row := target[at:][:s.layout.Block]
		for k := uint64(0); k < s.layout.Block; k += 8 {
			want := uint64(0)
			if behind < n {
				want = wordOf(source + k)
			}
			wrong += wrongBytes(*(*uint64)(unsafe.Pointer(&row[k])), want)
		}
		checked += s.layout.Block
	}
	return checked, wrong
}

func wrongBytes(got, want uint64) uint64 {
	n := uint64(0)
	for x := got ^ want; x != 0; n++ {
		x &^= 0xff << (bits.TrailingZeros64(x) &^ 7)
	}
	return n
}

// WrongBytesError says that a provider has put down other bytes than it was given.
type WrongBytesError struct {
	Spec           Spec
	Wrong, Checked uint64
}

func (e *WrongBytesError) Error() string {
	return fmt.Sprintf("%d of %d bytes that were looked at are wrong (%s rows of %d bytes)", e.Wrong, e.Checked, e.Spec.Rows, e.Spec.Block)
}
