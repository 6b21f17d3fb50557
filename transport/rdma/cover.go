package rdma

import (
	"fmt"
	"sort"
)

// box is the rows of a part that a family of rows has touched so far: their
// largest index in each direction, and the end within the row.
type box struct {
	unit uint64
	at   [2]uint64
	end  uint64
}

// locate finds the row of the part that holds b bytes at address a.
func (p *part) locate(a, b uint64) (box, bool) {
	if a < p.offset {
		return box{}, false
	}
	var x box
	rel := a - p.offset
	if p.units != nil {
		x.unit = rel / p.unit
		rel -= x.unit * p.unit
		if p.units.follow(x.unit, 1, 0) == 0 {
			return box{}, false
		}
	}
	if rel >= p.extent {
		return box{}, false
	}
	for d := range 2 {
		if p.count[d] > 1 {
			x.at[d] = min(rel/p.stride[d], p.count[d]-1)
			rel -= x.at[d] * p.stride[d]
		}
	}
	if b > p.bytes || rel > p.bytes-b {
		return box{}, false
	}
	x.end = rel + b
	return x, true
}

// reach is how many of n steps of stride bytes the box can be repeated in before
// it leaves the part's rows, 1 at least. If it can in all, the box grows.
func (p *part) reach(x *box, n, stride uint64) uint64 {
	if n == 1 || stride == 0 {
		return n
	}
	if m := (p.bytes-x.end)/stride + 1; m >= n {
		x.end += (n - 1) * stride
		return n
	}
	best := uint64(1)
	for d := range 2 {
		if p.count[d] == 1 || stride%p.stride[d] != 0 {
			continue
		}
		k := stride / p.stride[d]
		m := (p.count[d]-1-x.at[d])/k + 1
		if m >= n {
			x.at[d] += (n - 1) * k
			return n
		}
		best = max(best, m)
	}
	return max(best, (p.bytes-x.end)/stride+1)
}

// rows is the pattern of one unit of a copy or range.
type rows struct {
	bytes  uint64
	count  [2]uint64
	stride [2]uint64
}

// blocks is how many of n units of rows, step bytes apart from address a, lie in
// the part. 0 also when that takes a row by row look to find out.
func (p *part) blocks(a uint64, r *rows, n, step uint64) uint64 {
	x, ok := p.locate(a, r.bytes)
	if !ok || p.reach(&x, r.count[1], r.stride[1]) < r.count[1] || p.reach(&x, r.count[0], r.stride[0]) < r.count[0] {
		return 0
	}
	within := p.reach(&x, n, step)
	if p.units != nil && within < n && step%p.unit == 0 {
		return max(within, p.units.follow(x.unit, n, step/p.unit))
	}
	return within
}

// blocks asks the parts that may hold address a, the hint first. It returns the
// part that answered.
func (p *Permit) blocks(region RegionID, a uint64, r *rows, n, step uint64, hint *part) (uint64, *part) {
	if hint != nil {
		if m := hint.blocks(a, r, n, step); m > 0 {
			return m, hint
		}
	}
	first := sort.Search(len(p.families), func(i int) bool { return p.families[i].region >= region })
	for i := first; i < len(p.families) && p.families[i].region == region; i++ {
		f := &p.families[i]
		if !f.residue {
			if m, at := f.blocks(a, a, r, n, step); m > 0 {
				return m, at
			}
			continue
		}
		at := a % f.unit
		if m, part := f.blocks(at, a, r, n, step); m > 0 {
			return m, part
		}
		// A unit may begin near the end of one stride and end in the next.
		if m, part := f.blocks(at+f.unit, a, r, n, step); m > 0 {
			return m, part
		}
	}
	return 0, nil
}

func (f *family) blocks(key, a uint64, r *rows, n, step uint64) (uint64, *part) {
	i := sort.Search(len(f.starts), func(i int) bool { return f.starts[i] > key }) - 1
	for ; i >= 0 && f.ends[i] > key; i-- {
		if m := f.parts[i].blocks(a, r, n, step); m > 0 {
			return m, &f.parts[i]
		}
	}
	return 0, nil
}

// Covers answers nil if every row of a copy's target lies inside one row of one
// range (rows of a range that touch count as one), else a *RangeError that names
// field and the first address outside. The copy has passed Check.
func (p *Permit) Covers(field string, c *Copy) error {
	r := rows{c.Bytes, [2]uint64{uint64(c.Count[0]), uint64(c.Count[1])}, c.Target.Stride}
	var hint *part
	for _, run := range c.Runs {
		first := c.Target.Offset + uint64(run.Target)*c.Target.UnitStride
		bad, ok := p.covers(c.Target.Region, first, &r, uint64(run.Count), uint64(run.TargetStep)*c.Target.UnitStride, &hint)
		if !ok {
			return outside(field, c.Target.Region, bad, c.Bytes)
		}
	}
	return nil
}

// CoversRange is Covers for rows given as a range that has passed CheckRows.
func (p *Permit) CoversRange(field string, t *Range) error {
	r := rows{t.Bytes, [2]uint64{uint64(t.Count[0]), uint64(t.Count[1])}, t.Stride}
	var hint *part
	for _, run := range t.Runs {
		first := t.Offset + uint64(run.First)*t.UnitStride
		bad, ok := p.covers(t.Region, first, &r, uint64(run.Count), uint64(run.Step)*t.UnitStride, &hint)
		if !ok {
			return outside(field, t.Region, bad, t.Bytes)
		}
	}
	return nil
}

func outside(field string, region RegionID, address, bytes uint64) error {
	return &RangeError{Field: field, Region: region, Got: address, Want: bytes, Text: fmt.Sprintf("a row of %d bytes is outside of the grant", bytes)}
}

// covers goes through n units, as many at a time as one part holds.
func (p *Permit) covers(region RegionID, a uint64, r *rows, n, step uint64, hint **part) (bad uint64, ok bool) {
	for n > 0 {
		m, part := p.blocks(region, a, r, n, step, *hint)
		if m == 0 {
			if bad, ok := p.eachRow(region, a, r); !ok {
				return bad, false
			}
			m = 1
		} else {
			*hint = part
		}
		n -= m
		a += m * step
	}
	return 0, true
}

// eachRow looks at the rows of one unit whose pattern is not that of a range: as
// many at a time as are evenly spaced in one part.
func (p *Permit) eachRow(region RegionID, a uint64, r *rows) (bad uint64, ok bool) {
	one := rows{r.bytes, [2]uint64{1, 1}, [2]uint64{}}
	var hint *part
	for i := range r.count[0] {
		for j := uint64(0); j < r.count[1]; {
			at := a + i*r.stride[0] + j*r.stride[1]
			m, part := p.blocks(region, at, &one, r.count[1]-j, r.stride[1], hint)
			if m == 0 {
				return at, false
			}
			hint = part
			j += m
		}
	}
	return 0, true
}
