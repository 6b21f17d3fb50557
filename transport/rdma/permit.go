package rdma

import (
	"cmp"
	"slices"
)

// Permit is a grant made ready to answer whether rows lie inside of its ranges.
// It takes memory by the number of ranges and of distinct runs, never by the
// number of rows. It does not change, so many goroutines may ask it.
type Permit struct {
	families []family // by region, then unit stride
}

// part is one range with its dimensions joined where rows touch.
type part struct {
	offset uint64
	unit   uint64   // stride; 0 where the range has one unit, which offset includes
	units  *unitSet // nil where the range has one unit
	extent uint64   // of one unit
	bytes  uint64   // of one row
	count  [2]uint64
	stride [2]uint64
}

// family is the parts of one region and unit stride. They are searched by where
// they begin: in the region, or in their unit if they are interleaved that way.
type family struct {
	region  RegionID
	unit    uint64
	residue bool     // starts are modulo unit
	starts  []uint64 // ascending
	ends    []uint64 // ends[i] is the largest end of parts[:i+1]
	parts   []part
}

// Compile checks the ranges of a grant and makes a Permit of it. length answers
// how long a region is, false when there is none. Errors are *RangeError.
func Compile(g *Grant, length func(RegionID) (uint64, bool)) (*Permit, error) {
	p := &Permit{}
	type key struct {
		runs *Run
		n    int
	}
	type shared struct {
		units *unitSet
		sum   runsSum
	}
	sets := map[key]*shared{} // ranges of one grant share their runs, which are checked once
	byKind := map[[2]uint64]int{}
	for i := range g.Ranges {
		r := &g.Ranges[i]
		n, ok := length(r.Region)
		if !ok {
			return nil, at("ranges", i, &RangeError{Region: r.Region, Text: "the region is not registered"})
		}
		c := checker{"", r.Region}
		if err := c.pattern(r.Bytes, r.Count, len(r.Runs)); err != nil {
			return nil, at("ranges", i, err)
		}
		k := key{&r.Runs[0], len(r.Runs)}
		if sets[k] == nil {
			sum, err := c.sum(r.Runs, true)
			if err != nil {
				return nil, at("ranges", i, err)
			}
			sets[k] = &shared{newUnitSet(r.Runs), sum}
		}
		if err := c.fits(r, sets[k].sum, n); err != nil {
			return nil, at("ranges", i, err)
		}
		one := newPart(r, sets[k].units)
		kind := [2]uint64{uint64(r.Region), one.unit}
		at, ok := byKind[kind]
		if !ok {
			at = len(p.families)
			byKind[kind] = at
			p.families = append(p.families, family{region: r.Region, unit: one.unit})
		}
		p.families[at].parts = append(p.families[at].parts, one)
	}
	for i := range p.families {
		p.families[i].index()
	}
	slices.SortFunc(p.families, func(a, b family) int {
		return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.unit, b.unit))
	})
	return p, nil
}

func newPart(r *Range, units *unitSet) part {
	p := part{offset: r.Offset, unit: r.UnitStride, units: units, bytes: r.Bytes}
	if first, last := units.bounds(); first == last {
		p.offset += uint64(first) * r.UnitStride
		p.unit, p.units = 0, nil
	}
	p.count = [2]uint64{uint64(r.Count[0]), uint64(r.Count[1])}
	p.stride = r.Stride
	p.extent = (p.count[0]-1)*p.stride[0] + (p.count[1]-1)*p.stride[1] + p.bytes
	if p.count[1] > 1 && p.stride[1] == p.bytes { // rows without a gap are one row
		p.bytes *= p.count[1]
		p.count[1] = 1
	}
	if p.count[1] > 1 && p.count[0] > 1 && p.stride[0] == p.count[1]*p.stride[1] {
		p.count = [2]uint64{1, p.count[0] * p.count[1]} // one direction, evenly
	}
	if p.count[1] == 1 && p.count[0] > 1 && p.stride[0] == p.bytes {
		p.bytes *= p.count[0]
		p.count[0] = 1
	}
	return p
}

// end is one past the last byte of the part in its region.
func (p *part) end() uint64 {
	if p.units == nil {
		return p.offset + p.extent
	}
	_, last := p.units.bounds()
	return p.offset + uint64(last)*p.unit + p.extent
}

// begin is the first byte of the part in its region.
func (p *part) begin() uint64 {
	if p.units == nil {
		return p.offset
	}
	first, _ := p.units.bounds()
	return p.offset + uint64(first)*p.unit
}

// index chooses the order in which fewer parts have to be looked at. Tensors that
// follow each other in a region are told apart by where they begin; tensors that
// are interleaved page by page only by where they begin within a page.
func (f *family) index() {
	absolute := *f
	absolute.sortBy(func(p *part) (uint64, uint64) { return p.begin(), p.end() })
	if f.unit == 0 || len(f.parts) == 1 {
		*f = absolute
		return
	}
	interleaved := *f
	interleaved.residue = true
	interleaved.sortBy(func(p *part) (uint64, uint64) { return p.offset % f.unit, p.offset%f.unit + p.extent })
	if *f = absolute; interleaved.cost() < absolute.cost() {
		*f = interleaved
	}
}

func (f *family) sortBy(span func(*part) (start, end uint64)) {
	f.parts = slices.Clone(f.parts)
	slices.SortStableFunc(f.parts, func(a, b part) int {
		x, _ := span(&a)
		y, _ := span(&b)
		return cmp.Compare(x, y)
	})
	f.starts, f.ends = make([]uint64, len(f.parts)), make([]uint64, len(f.parts))
	top := uint64(0)
	for i := range f.parts {
		start, end := span(&f.parts[i])
		top = max(top, end)
		f.starts[i], f.ends[i] = start, top
	}
}

// cost is how many parts a search at each part's start would look at.
func (f *family) cost() int {
	n := 0
	for i := range f.parts {
		for k := i; k >= 0 && f.ends[k] > f.starts[i]; k-- {
			n++
		}
	}
	return n
}
