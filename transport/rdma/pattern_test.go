package rdma

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

const testRegion = 4096 // small, so that rows often meet the end

// drawRange draws a range that mostly nests, in a region of testRegion bytes that
// it may leave.
func drawRange(t *rapid.T, name string) Range {
	r := Range{Region: RegionID(rapid.IntRange(1, 2).Draw(t, name+" region"))}
	r.Bytes = rapid.Uint64Range(1, 12).Draw(t, name+" bytes")
	gap := func(what string) uint64 {
		return rapid.SampledFrom([]uint64{0, 0, 1, 3, 8}).Draw(t, name+" "+what)
	}
	extent := r.Bytes
	for d := 1; d >= 0; d-- {
		r.Count[d] = rapid.Uint32Range(1, 4).Draw(t, name+" count")
		r.Stride[d] = extent + gap("gap")
		extent = uint64(r.Count[d]-1)*r.Stride[d] + extent
	}
	r.UnitStride = extent + gap("unit gap")
	r.Offset = rapid.Uint64Range(0, 200).Draw(t, name+" offset")
	r.Runs = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Run {
		return Run{
			First: rapid.Uint32Range(0, 20).Draw(t, "first"),
			Count: rapid.Uint32Range(1, 6).Draw(t, "count"),
			Step:  rapid.Uint32Range(1, 3).Draw(t, "step"),
		}
	}), 1, 4).Draw(t, name+" runs")
	return r
}

// eachRow is the obvious slow expansion.
func eachRow(r *Range, f func(offset uint64)) {
	for _, run := range r.Runs {
		for u := range uint64(run.Count) {
			for i := range uint64(r.Count[0]) {
				for j := range uint64(r.Count[1]) {
					f(r.Offset + (uint64(run.First)+u*uint64(run.Step))*r.UnitStride + i*r.Stride[0] + j*r.Stride[1])
				}
			}
		}
	}
}

func TestRangeCheckAgreesWithExpansion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRange(t, "range")
		length := rapid.Uint64Range(1, 1200).Draw(t, "length")
		if rapid.Bool().Draw(t, "spoil") {
			d := rapid.IntRange(0, 2).Draw(t, "which")
			v := rapid.Uint64Range(0, 20).Draw(t, "stride")
			if d == 2 {
				r.UnitStride = v
			} else {
				r.Stride[d] = v
			}
		}
		inside, touched := true, map[uint64]uint64{}
		eachRow(&r, func(o uint64) {
			inside = inside && o+r.Bytes <= length
			for b := o; b < o+r.Bytes; b++ {
				touched[b]++
			}
		})
		err := r.Check("r", length)
		if err == nil && !inside {
			t.Fatalf("%+v leaves %d bytes and was taken", r, length)
		}
		var re *RangeError
		if err != nil && !errors.As(err, &re) {
			t.Fatalf("got %T, want *RangeError", err)
		}
		if err == nil && len(r.Runs) == 1 {
			for b, n := range touched {
				if n > 1 {
					t.Fatalf("%+v was taken although byte %d is in %d rows", r, b, n)
				}
			}
		}
		if err != nil && inside && nestsSlowly(&r) {
			t.Fatalf("%+v was refused: %v", r, err)
		}
	})
}

func nestsSlowly(r *Range) bool {
	units := uint64(0)
	for _, run := range r.Runs {
		units += uint64(run.Count)
	}
	e1 := r.Bytes
	e0 := uint64(r.Count[1]-1)*r.Stride[1] + e1
	e := uint64(r.Count[0]-1)*r.Stride[0] + e0
	return (r.Count[1] == 1 || e1 <= r.Stride[1]) && (r.Count[0] == 1 || e0 <= r.Stride[0]) && (units == 1 || e <= r.UnitStride)
}

func TestCheckRefusesOverflowAndNamesTheField(t *testing.T) {
	one := []Run{{0, 1, 1}}
	good := Range{Bytes: 8, Count: [2]uint32{1, 1}, Runs: one}
	for _, c := range []struct {
		field string
		spoil func(*Range)
	}{
		{"r", func(r *Range) { r.Offset = math.MaxUint64 - 3 }},
		{"r", func(r *Range) { r.Offset = 57 }},
		{"r", func(r *Range) { r.UnitStride = math.MaxUint64 / 2; r.Runs = []Run{{0, 3, 1}} }},
		{"r", func(r *Range) { r.Count = [2]uint32{math.MaxUint32, 1}; r.Stride[0] = math.MaxUint64 / 3 }},
		{"r.bytes", func(r *Range) { r.Bytes = 0 }},
		{"r.count", func(r *Range) { r.Count[1] = 0 }},
		{"r.runs", func(r *Range) { r.Runs = nil }},
		{"r.runs[1].count", func(r *Range) { r.Runs = []Run{{0, 1, 1}, {1, 0, 1}} }},
		{"r.runs[0].step", func(r *Range) { r.Runs = []Run{{0, 2, 0}} }},
		{"r.runs[0]", func(r *Range) { r.Runs = []Run{{5, math.MaxUint32, 2}} }},
		{"r.stride[1]", func(r *Range) { r.Count[1], r.Stride[1] = 2, 7 }},
		{"r.stride[0]", func(r *Range) { r.Count, r.Stride = [2]uint32{2, 2}, [2]uint64{15, 8} }},
		{"r.unit_stride", func(r *Range) { r.UnitStride = 7; r.Runs = []Run{{0, 2, 1}} }},
	} {
		r := good
		c.spoil(&r)
		var re *RangeError
		if err := r.Check("r", 64); !errors.As(err, &re) || re.Field != c.field {
			t.Errorf("%+v: got %v, want a *RangeError of %s", r, err, c.field)
		}
	}
	if err := good.Check("r", 8); err != nil {
		t.Error(err)
	}
}

// drawCopy draws a copy whose target is often near a range's own pattern.
func drawCopy(t *rapid.T, like *Range) Copy {
	r := drawRange(t, "copy")
	if like != nil && rapid.IntRange(0, 3).Draw(t, "like") > 0 {
		runs := r.Runs
		r = *like
		if rapid.Bool().Draw(t, "other runs") {
			r.Runs = runs
		}
		switch rapid.IntRange(0, 9).Draw(t, "part") {
		case 5, 6:
			r.Count[rapid.IntRange(0, 1).Draw(t, "which")]++ // just too many
		case 7:
			d := rapid.IntRange(0, 1).Draw(t, "which")
			r.Stride[d] *= 2
			r.Count[d] = (r.Count[d] + 1) / 2
		case 8:
			r.Bytes = 1
			r.Stride[1] = 1
			r.Count[1] = rapid.Uint32Range(1, 6).Draw(t, "within a row")
			if rapid.Bool().Draw(t, "twice") {
				r.Count[0], r.Stride[0] = rapid.Uint32Range(1, 4).Draw(t, "and again"), rapid.Uint64Range(1, 3).Draw(t, "by")
			}
		case 9:
			r.Runs = []Run{{r.Runs[0].First, r.Runs[0].Count + 1, r.Runs[0].Step}}
		case 1:
			r.Bytes = rapid.Uint64Range(1, r.Bytes).Draw(t, "fewer bytes")
			r.Offset += rapid.Uint64Range(0, 3).Draw(t, "shift")
		case 2:
			r.Count[0], r.Count[1] = rapid.Uint32Range(1, r.Count[0]).Draw(t, "c0"), rapid.Uint32Range(1, r.Count[1]).Draw(t, "c1")
		case 3:
			r.Count[0], r.Count[1] = r.Count[1], r.Count[0]
			r.Stride[0], r.Stride[1] = r.Stride[1], r.Stride[0]
		case 4:
			r.Offset += r.UnitStride * rapid.Uint64Range(0, 2).Draw(t, "units")
		}
	}
	c := Copy{Target: Place{r.Region, r.Offset, r.UnitStride, r.Stride}, Bytes: r.Bytes, Count: r.Count}
	for _, run := range r.Runs {
		c.Runs = append(c.Runs, PairRun{Source: run.First, Target: run.First, Count: run.Count, SourceStep: run.Step, TargetStep: run.Step})
	}
	return c
}

func targetOf(c *Copy) Range {
	r := Range{Region: c.Target.Region, Offset: c.Target.Offset, UnitStride: c.Target.UnitStride, Bytes: c.Bytes, Count: c.Count, Stride: c.Target.Stride}
	for _, run := range c.Runs {
		r.Runs = append(r.Runs, Run{run.Target, run.Count, run.TargetStep})
	}
	return r
}

func TestPermitAgreesWithByteSets(t *testing.T) {
	yes, no := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		g := Grant{}
		for range rapid.IntRange(1, 4).Draw(t, "ranges") {
			r := drawRange(t, "range")
			if n := len(g.Ranges); n > 0 && rapid.Bool().Draw(t, "same shape") {
				old := g.Ranges[n-1]
				old.Offset += rapid.Uint64Range(0, 40).Draw(t, "offset")
				if rapid.Bool().Draw(t, "same runs") {
					r.Runs = old.Runs
				}
				old.Runs = r.Runs
				r = old
			}
			g.Ranges = append(g.Ranges, r)
		}
		p, err := Compile(&g, func(RegionID) (uint64, bool) { return testRegion, true })
		if err != nil {
			return
		}
		for range 20 {
			c := drawCopy(t, &g.Ranges[rapid.IntRange(0, len(g.Ranges)-1).Draw(t, "which")])
			if c.Check("c", Unbounded, Unbounded) != nil {
				continue
			}
			if sameAnswer(t, &g, p, &c) {
				yes++
			} else {
				no++
			}
		}
	})
	if yes == 0 || no == 0 {
		t.Errorf("%d were inside and %d outside: the test draws too little", yes, no)
	}
}

// sameAnswer compares the permit's answer for a copy with that of the byte set.
func sameAnswer(t *rapid.T, g *Grant, p *Permit, c *Copy) bool {
	bytes := map[RegionID]map[uint64]bool{1: {}, 2: {}}
	rowsOf := map[RegionID]map[uint64]uint64{1: {}, 2: {}} // longest row of a range, by start
	for i := range g.Ranges {
		r := &g.Ranges[i]
		eachRow(r, func(o uint64) {
			rowsOf[r.Region][o] = max(rowsOf[r.Region][o], r.Bytes)
			for b := o; b < o+r.Bytes; b++ {
				bytes[r.Region][b] = true
			}
		})
	}
	inBytes, inRows := true, true
	target := targetOf(c)
	eachRow(&target, func(o uint64) {
		one := false
		for start, n := range rowsOf[c.Target.Region] {
			one = one || o >= start && o+c.Bytes <= start+n
		}
		inRows = inRows && one
		for b := o; b < o+c.Bytes; b++ {
			inBytes = inBytes && bytes[c.Target.Region][b]
		}
	})
	err := p.Covers("c", c)
	if err2 := p.CoversRange("c", &target); (err == nil) != (err2 == nil) {
		t.Fatalf("as a copy %v, as a range %v", err, err2)
	}
	if err == nil && !inBytes {
		t.Fatalf("%+v is outside of %+v and was taken", *c, g.Ranges)
	}
	if err != nil && inRows {
		t.Fatalf("%+v is inside of %+v: %v", *c, g.Ranges, err)
	}
	return err == nil
}

func TestRowsAgreeWithExpansion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCopy(t, nil)
		c.Source = c.Target
		if rapid.Bool().Draw(t, "other source") {
			o := drawCopy(t, nil)
			c.Source = o.Target
		}
		if rapid.Bool().Draw(t, "dense") {
			c.Source.Stride = [2]uint64{uint64(c.Count[1]) * c.Bytes, c.Bytes}
			c.Target.Stride = c.Source.Stride
			c.Source.UnitStride = uint64(c.Count[0]) * c.Source.Stride[0]
			c.Target.UnitStride = c.Source.UnitStride
		}
		type row struct{ s, t, n uint64 }
		var want []row
		for _, run := range c.Runs {
			for u := range uint64(run.Count) {
				for i := range uint64(c.Count[0]) {
					for j := range uint64(c.Count[1]) {
						s := c.Source.Offset + (uint64(run.Source)+u*uint64(run.SourceStep))*c.Source.UnitStride + i*c.Source.Stride[0] + j*c.Source.Stride[1]
						d := c.Target.Offset + (uint64(run.Target)+u*uint64(run.TargetStep))*c.Target.UnitStride + i*c.Target.Stride[0] + j*c.Target.Stride[1]
						if n := len(want); n > 0 && want[n-1].s+want[n-1].n == s && want[n-1].t+want[n-1].n == d {
							want[n-1].n += c.Bytes
						} else {
							want = append(want, row{s, d, c.Bytes})
						}
					}
				}
			}
		}
		rows := RowsOf(&c)
		for i := 0; rows.Next(); i++ {
			if i >= len(want) || (row{rows.Source, rows.Target, rows.Bytes}) != want[i] {
				t.Fatalf("row %d is %d->%d+%d, want %+v", i, rows.Source, rows.Target, rows.Bytes, want)
			}
			if i == len(want)-1 {
				want = nil
				break
			}
		}
		if want != nil || rows.Next() {
			t.Fatalf("rows are missing or too many: %+v", want)
		}
	})
}

func TestRowsAndCoversDoNotAllocate(t *testing.T) {
	c := Copy{
		Source: Place{1, 0, 1 << 16, [2]uint64{2048, 0}}, Target: Place{2, 0, 1 << 16, [2]uint64{4096, 0}},
		Bytes: 1024, Count: [2]uint32{16, 1}, Runs: []PairRun{{0, 0, 1000, 1, 1}, {2000, 3000, 1000, 2, 2}},
	}
	r := targetOf(&c)
	p, err := Compile(&Grant{Ranges: []Range{r}}, func(RegionID) (uint64, bool) { return 1 << 30, true })
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		if err := p.Covers("c", &c); err != nil {
			t.Fatal(err)
		}
		total := uint64(0)
		for rows := RowsOf(&c); rows.Next(); {
			total += rows.Bytes
		}
		if total != c.Rows()*c.Bytes {
			t.Fatal(total)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCovers asks for a random page at a time of a grant of 80 layers.
func BenchmarkCovers(b *testing.B) {
	const pages, page = 4096, 65536
	runs := make([]Run, pages)
	for i := range runs {
		runs[i] = Run{uint32(i*2654435761) % (1 << 16) / 2 * 2, 1, 1}
	}
	var g Grant
	for layer := range uint64(160) {
		g.Ranges = append(g.Ranges, Range{Region: 1, Offset: layer << 32, UnitStride: page, Bytes: page, Count: [2]uint32{1, 1}, Runs: runs})
	}
	p, err := Compile(&g, func(RegionID) (uint64, bool) { return 1 << 46, true })
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		r := g.Ranges[n%160]
		r.Runs = runs[n%pages : n%pages+1]
		if err := p.CoversRange("r", &r); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func TestPermitFindsInterleavedUnitsAcrossTheStride(t *testing.T) {
	runs := []Run{{0, 10, 1}}
	one := [2]uint32{1, 1}
	var g Grant
	for _, offset := range []uint64{25, 55, 80} { // the last ends in the next stride
		g.Ranges = append(g.Ranges, Range{Region: 1, Offset: offset, UnitStride: 100, Bytes: 30, Count: one, Runs: runs})
	}
	p, err := Compile(&g, func(RegionID) (uint64, bool) { return 1 << 20, true })
	if err != nil {
		t.Fatal(err)
	}
	if !p.families[0].residue {
		t.Fatal("interleaved ranges are not searched as such")
	}
	for _, r := range g.Ranges {
		r.Offset, r.Bytes = r.Offset+29, 1
		if err := p.CoversRange("r", &r); err != nil {
			t.Error(err)
		}
		if r.Runs = []Run{{10, 1, 1}}; p.CoversRange("r", &r) == nil {
			t.Errorf("the unit after the last of %+v was taken", r)
		}
	}
}
