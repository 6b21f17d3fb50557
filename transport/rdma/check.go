package rdma

import (
	"fmt"
	"math"
	"math/bits"
)

// Unbounded is the length of a region of which only the other side knows the
// length. What is checked against it is still free of overflow.
const Unbounded = math.MaxInt64

// Limits of the form of a range or a copy. They keep every sum of counts in 64
// bits, whoever sent them.
const (
	runsMax   = 1 << 26 // 64 Mi runs: a pool of one page each
	copiesMax = 1 << 20 // of one write

	// unitMax leaves the last number of 32 bits out, so that a count of all units
	// fits too.
	unitMax = math.MaxUint32 - 1
)

// end is one past the last byte of a strided pattern, false when it does not fit
// in 64 bits.
func end(offset, unitStride, lastUnit uint64, count [2]uint32, stride [2]uint64, bytes uint64) (uint64, bool) {
	sum, ok := offset, true
	add := func(x uint64) {
		s, carry := bits.Add64(sum, x, 0)
		ok = ok && carry == 0
		sum = s
	}
	mul := func(a, b uint64) uint64 {
		hi, lo := bits.Mul64(a, b)
		ok = ok && hi == 0
		return lo
	}
	add(mul(lastUnit, unitStride))
	add(mul(uint64(count[0]-1), stride[0]))
	add(mul(uint64(count[1]-1), stride[1]))
	add(bytes)
	return sum, ok
}

// checker collects the context of one check.
type checker struct {
	field  string
	region RegionID
}

func (c *checker) fail(part, text string, got, want uint64) *RangeError {
	return &RangeError{Field: c.field + part, Region: c.region, Got: got, Want: want, Text: text}
}

// pattern checks what a range and a side of a copy have in common.
func (c *checker) pattern(bytes uint64, count [2]uint32, runs int) *RangeError {
	switch {
	case bytes == 0 || bytes > math.MaxInt64:
		return c.fail(".bytes", "a row has at least 1 byte", bytes, math.MaxInt64)
	case count[0] == 0 || count[1] == 0:
		return c.fail(".count", "counts are at least 1", 0, math.MaxUint32)
	case runs == 0 || runs > runsMax:
		return c.fail(".runs", "there is at least 1 run", uint64(runs), runsMax)
	}
	return nil
}

// lastOf is the largest unit of a run.
func (c *checker) lastOf(i int, first, count, step uint32) (uint64, *RangeError) {
	if count == 0 {
		return 0, c.fail(fmt.Sprintf(".runs[%d].count", i), "a run has at least 1 unit", 0, math.MaxUint32)
	}
	last := uint64(first) + uint64(count-1)*uint64(step)
	if last > unitMax {
		return 0, c.fail(fmt.Sprintf(".runs[%d]", i), "the last unit is too large", last, unitMax)
	}
	return last, nil
}

// volume checks that what a pattern expands to is counted in 63 bits: without it a
// stride of 0 allows more rows than can be counted, inside any region.
func (c *checker) volume(units uint64, count [2]uint32, bytes uint64) *RangeError {
	total := units // below 2^58: runsMax runs of 2^32 units
	for _, n := range [...]uint64{uint64(count[0]), uint64(count[1]), bytes} {
		hi, lo := bits.Mul64(total, n)
		if total = lo; hi != 0 || lo > math.MaxInt64 {
			return c.fail("", "it expands to too many bytes", math.MaxUint64, math.MaxInt64)
		}
	}
	return nil
}

func (c *checker) within(offset, unitStride, lastUnit uint64, count [2]uint32, stride [2]uint64, bytes, length uint64) *RangeError {
	e, ok := end(offset, unitStride, lastUnit, count, stride, bytes)
	if !ok {
		return c.fail("", "it ends beyond 64 bits", math.MaxUint64, length)
	}
	if e > length {
		return c.fail("", "it leaves the region", e, length)
	}
	return nil
}

// Check refuses a range that is malformed, whose rows do not nest, or that leaves
// a region of length bytes: with a *RangeError that names field or a part of it.
func (r *Range) Check(field string, length uint64) error {
	if err := r.check(field, length); err != nil {
		return err
	}
	return nil
}

func (r *Range) check(field string, length uint64) *RangeError {
	c := checker{field, r.Region}
	if err := c.pattern(r.Bytes, r.Count, len(r.Runs)); err != nil {
		return err
	}
	s, err := c.sum(r.Runs, true)
	if err != nil {
		return err
	}
	return c.fits(r, s, length)
}

// fits checks a range of which the pattern and the runs were checked.
func (c *checker) fits(r *Range, s runsSum, length uint64) *RangeError {
	if err := c.rows(r, s, length); err != nil {
		return err
	}
	return c.nests(r, s.units)
}

// runsSum is what is to be known of runs to check a range that has them.
type runsSum struct {
	top   uint64 // the largest unit
	units uint64 // of all runs
}

// sum checks runs. steps: those of more than one unit have to go on.
func (c *checker) sum(runs []Run, steps bool) (s runsSum, err *RangeError) {
	for i, run := range runs {
		last, err := c.lastOf(i, run.First, run.Count, run.Step)
		if err != nil {
			return s, err
		}
		if steps && run.Count > 1 && run.Step == 0 {
			return s, c.fail(fmt.Sprintf(".runs[%d].step", i), "a step is at least 1", 0, math.MaxUint32)
		}
		s.top, s.units = max(s.top, last), s.units+uint64(run.Count)
	}
	return s, nil
}

// CheckRows is Check for the target of a copy given as a range: its rows need not
// nest. A grant's ranges have to.
func (r *Range) CheckRows(field string, length uint64) error {
	c := checker{field, r.Region}
	if err := c.pattern(r.Bytes, r.Count, len(r.Runs)); err != nil {
		return err
	}
	s, err := c.sum(r.Runs, false)
	if err != nil {
		return err
	}
	if err := c.rows(r, s, length); err != nil {
		return err
	}
	return nil
}

func (c *checker) rows(r *Range, s runsSum, length uint64) *RangeError {
	if err := c.volume(s.units, r.Count, r.Bytes); err != nil {
		return err
	}
	return c.within(r.Offset, r.UnitStride, s.top, r.Count, r.Stride, r.Bytes, length)
}

// nests checks the strides from the inside out. The extremes were found free of
// overflow, so these sums are.
func (c *checker) nests(r *Range, units uint64) *RangeError {
	extent := r.Bytes
	if r.Count[1] > 1 && extent > r.Stride[1] {
		return c.fail(".stride[1]", "rows overlap: the stride is smaller than the row", extent, r.Stride[1])
	}
	extent += uint64(r.Count[1]-1) * r.Stride[1]
	if r.Count[0] > 1 && extent > r.Stride[0] {
		return c.fail(".stride[0]", "rows do not nest: the stride is smaller than what lies within", extent, r.Stride[0])
	}
	extent += uint64(r.Count[0]-1) * r.Stride[0]
	if units > 1 && extent > r.UnitStride {
		return c.fail(".unit_stride", "units do not nest: the stride is smaller than a unit", extent, r.UnitStride)
	}
	return nil
}

// Check refuses a copy that is malformed or leaves its regions, whose lengths are
// given: with a *RangeError that names field or a part of it.
func (c *Copy) Check(field string, source, target uint64) error {
	s := checker{field + ".source", c.Source.Region}
	t := checker{field + ".target", c.Target.Region}
	if err := s.pattern(c.Bytes, c.Count, len(c.Runs)); err != nil {
		return err
	}
	sourceTop, targetTop, units := uint64(0), uint64(0), uint64(0)
	for i, run := range c.Runs {
		last, err := s.lastOf(i, run.Source, run.Count, run.SourceStep)
		if err != nil {
			return err
		}
		sourceTop = max(sourceTop, last)
		if last, err = t.lastOf(i, run.Target, run.Count, run.TargetStep); err != nil {
			return err
		}
		targetTop = max(targetTop, last)
		units += uint64(run.Count)
	}
	if err := s.volume(units, c.Count, c.Bytes); err != nil {
		return err
	}
	if err := s.within(c.Source.Offset, c.Source.UnitStride, sourceTop, c.Count, c.Source.Stride, c.Bytes, source); err != nil {
		return err
	}
	if err := t.within(c.Target.Offset, c.Target.UnitStride, targetTop, c.Count, c.Target.Stride, c.Bytes, target); err != nil {
		return err
	}
	return nil
}

// at puts an element of a list in front of the field that an error names. The name is
// made here and not before the check: nearly all that is checked is right.
func at(list string, i int, err error) error {
	if e, ok := err.(*RangeError); ok {
		e.Field = fmt.Sprintf("%s[%d]%s", list, i, e.Field)
	}
	return err
}

// CheckWrites refuses a list of writes of which one is malformed, as Check does.
func CheckWrites(ws []*Write, length func(RegionID) (uint64, bool)) error {
	for i, w := range ws {
		if err := w.Check(length); err != nil {
			return at("writes", i, err)
		}
	}
	return nil
}

// Check refuses a write without bytes, or with a copy that is malformed or whose
// source leaves its region. length answers how long a region of this side is,
// false when there is none. The length of the target's region is the receiver's
// knowledge: its grant decides.
func (w *Write) Check(length func(RegionID) (uint64, bool)) error {
	if len(w.Copies) == 0 || len(w.Copies) > copiesMax {
		return &RangeError{Field: ".copies", Got: uint64(len(w.Copies)), Want: copiesMax, Text: "a write has at least 1 copy"}
	}
	var total uint64
	for i := range w.Copies {
		c := &w.Copies[i]
		n, ok := length(c.Source.Region)
		if !ok {
			return &RangeError{Field: fmt.Sprintf(".copies[%d].source", i), Region: c.Source.Region, Text: "the region is not registered"}
		}
		if err := c.Check("", n, Unbounded); err != nil {
			return at(".copies", i, err)
		}
		hi, bytes := bits.Mul64(c.Rows(), c.Bytes)
		sum, carry := bits.Add64(total, bytes, 0)
		if total = sum; hi != 0 || carry != 0 || total > math.MaxInt64 {
			return &RangeError{Field: ".copies", Got: math.MaxUint64, Want: math.MaxInt64, Text: "the write has too many bytes"}
		}
	}
	return nil
}
