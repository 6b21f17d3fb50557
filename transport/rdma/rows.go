package rdma

// Rows lists the rows of a copy in order: run after run, unit after unit, then by
// the outer and the inner count. Rows that follow each other without a gap on both
// sides come as one. It allocates nothing.
//
//	rows := rdma.RowsOf(&c)
//	for rows.Next() {
//		copy(target[rows.Target:][:rows.Bytes], source[rows.Source:][:rows.Bytes])
//	}
type Rows struct {
	Source, Target uint64 // offsets in their regions
	Bytes          uint64

	copy  *Copy
	bytes uint64 // of a row, joined
	count [2]uint32

	run, unit uint32 // of the row that comes next
	i, j      uint32
}

// RowsOf starts at the first row of a copy that passed Check.
func RowsOf(c *Copy) Rows {
	r := Rows{copy: c, bytes: c.Bytes, count: c.Count}
	if c.Source.Stride[1] == r.bytes && c.Target.Stride[1] == r.bytes {
		r.bytes *= uint64(r.count[1])
		r.count[1] = 1
	}
	if r.count[1] == 1 && c.Source.Stride[0] == r.bytes && c.Target.Stride[0] == r.bytes {
		r.bytes *= uint64(r.count[0])
		r.count[0] = 1
	}
	return r
}

// Next goes to the next row and reports false when there is none.
func (r *Rows) Next() bool {
	if int(r.run) == len(r.copy.Runs) {
		return false
	}
	r.Source, r.Target = r.offsets()
	r.Bytes = r.bytes
	for r.step(); int(r.run) < len(r.copy.Runs); r.step() {
		source, target := r.offsets()
		if source != r.Source+r.Bytes || target != r.Target+r.Bytes {
			break
		}
		r.Bytes += r.bytes
	}
	return true
}

func (r *Rows) offsets() (source, target uint64) {
	c := r.copy
	run := &c.Runs[r.run]
	inner := func(p *Place, unit uint64) uint64 {
		return p.Offset + unit*p.UnitStride + uint64(r.i)*p.Stride[0] + uint64(r.j)*p.Stride[1]
	}
	source = inner(&c.Source, uint64(run.Source)+uint64(r.unit)*uint64(run.SourceStep))
	target = inner(&c.Target, uint64(run.Target)+uint64(r.unit)*uint64(run.TargetStep))
	return source, target
}

func (r *Rows) step() {
	if r.j++; r.j < r.count[1] {
		return
	}
	r.j = 0
	if r.i++; r.i < r.count[0] {
		return
	}
	r.i = 0
	if r.unit++; r.unit < r.copy.Runs[r.run].Count {
		return
	}
	r.unit = 0
	r.run++
}
