package tcp

import "kvferry/transport/rdma"

// cursor is how far a write has been cut into frames: the next row is row (i, j)
// of a unit of a run of a copy, from its byte on.
type cursor struct {
	copy, run  int
	unit, i, j uint32
	byte       uint64
}

// cutter fills one frame from a write: its body, and the source of its payload.
type cutter struct {
	write   *rdma.Write
	sources [][]byte // the memory of each copy's source
	at      *cursor
	frame   *body
	payload *iovecs
	left    uint64 // bytes that the frame still takes
	open    int    // the copy whose whole units the last piece has, -1 for none
}

// cut puts as much of the write into an empty frame as it takes, at most bytes, and
// moves the cursor. It reports whether the write is done.
func cut(w *rdma.Write, sources [][]byte, at *cursor, frame *body, payload *iovecs, bytes uint64) (done bool) {
	frame.grant = w.Grant
	c := cutter{write: w, sources: sources, at: at, frame: frame, payload: payload, left: bytes, open: -1}
	for at.copy < len(w.Copies) {
		if !c.step() {
			break
		}
	}
	// Runs may have moved while they grew: now they are where they stay.
	runs := frame.runs
	for i := range frame.pieces {
		n := len(frame.pieces[i].Runs)
		frame.pieces[i].Runs = runs[:n:n]
		runs = runs[n:]
	}
	return at.copy == len(w.Copies)
}

// step takes the largest part at the cursor that fits, and reports false when the
// frame is full.
func (c *cutter) step() bool {
	cp := &c.write.Copies[c.at.copy]
	run := &cp.Runs[c.at.run]
	if len(c.frame.runs) == runsMax || c.frame.rows == rowsMax {
		return false
	}
	rows := rowsMax - c.frame.rows
	inner := uint64(cp.Count[1])
	block := inner * uint64(cp.Count[0])
	if c.at.i == 0 && c.at.j == 0 && c.at.byte == 0 {
		if k := min(c.left/(block*cp.Bytes), rows/block, uint64(run.Count-c.at.unit)); k > 0 {
			return c.units(cp, run, k)
		}
	}
	if len(c.frame.pieces) > 0 && c.left < sliverBytes || len(c.frame.pieces) == piecesMax {
		return false
	}
	switch {
	case c.at.j == 0 && c.at.byte == 0 && c.left >= inner*cp.Bytes && rows >= inner:
		k := min(c.left/(inner*cp.Bytes), rows/inner, uint64(cp.Count[0]-c.at.i))
		c.part(cp, run, [2]uint32{uint32(k), cp.Count[1]}, cp.Bytes)
		c.at.i += uint32(k)
	case c.at.byte == 0 && c.left >= cp.Bytes:
		k := min(c.left/cp.Bytes, rows, inner-uint64(c.at.j))
		c.part(cp, run, [2]uint32{1, uint32(k)}, cp.Bytes)
		c.at.j += uint32(k)
	default:
		n := min(c.left, cp.Bytes-c.at.byte)
		c.part(cp, run, [2]uint32{1, 1}, n)
		if c.at.byte += n; c.at.byte == cp.Bytes {
			c.at.byte = 0
			c.at.j++
		}
	}
	c.carry(cp, run)
	return true
}

// carry moves the cursor from the end of one level to the next.
func (c *cutter) carry(cp *rdma.Copy, run *rdma.PairRun) {
	at := c.at
	if at.j == cp.Count[1] {
		at.j = 0
		at.i++
	}
	if at.i == cp.Count[0] {
		at.i = 0
		at.unit++
	}
	if at.unit == run.Count {
		at.unit = 0
		at.run++
	}
	if at.run == len(cp.Runs) {
		at.run = 0
		at.copy++
	}
}

// units takes k whole units, as a run of the copy's piece. It reports false when
// there is no room for another piece.
func (c *cutter) units(cp *rdma.Copy, run *rdma.PairRun, k uint64) bool {
	f := c.frame
	if c.open != c.at.copy {
		if len(f.pieces) == piecesMax {
			return false
		}
		t := &cp.Target
		f.pieces = append(f.pieces, rdma.Range{
			Region: t.Region, Offset: t.Offset, UnitStride: t.UnitStride, Bytes: cp.Bytes, Count: cp.Count, Stride: t.Stride,
		})
		c.open = c.at.copy
	}
	c.run(rdma.Run{First: run.Target + c.at.unit*run.TargetStep, Count: uint32(k), Step: run.TargetStep})
	first := uint64(run.Source) + uint64(c.at.unit)*uint64(run.SourceStep)
	c.payload.addRows(c.sources[c.at.copy], &cp.Source, cp.Count, cp.Bytes, first, k, uint64(run.SourceStep))
	c.count(k*uint64(cp.Count[0])*uint64(cp.Count[1]), cp.Bytes)
	c.at.unit += uint32(k)
	c.carry(cp, run)
	return true
}

// part takes some rows, or a part of one, of the unit at the cursor, as a piece of
// its own.
func (c *cutter) part(cp *rdma.Copy, run *rdma.PairRun, count [2]uint32, bytes uint64) {
	at := func(p *rdma.Place, unit uint64) uint64 {
		return p.Offset + unit*p.UnitStride + uint64(c.at.i)*p.Stride[0] + uint64(c.at.j)*p.Stride[1] + c.at.byte
	}
	source := rdma.Place{
		Offset: at(&cp.Source, uint64(run.Source)+uint64(c.at.unit)*uint64(run.SourceStep)),
		Stride: cp.Source.Stride,
	}
	c.frame.pieces = append(c.frame.pieces, rdma.Range{
		Region: cp.Target.Region, Bytes: bytes, Count: count, Stride: cp.Target.Stride,
		Offset: at(&cp.Target, uint64(run.Target)+uint64(c.at.unit)*uint64(run.TargetStep)),
	})
	c.open = -1
	c.run(rdma.Run{First: 0, Count: 1, Step: 1})
	c.payload.addRows(c.sources[c.at.copy], &source, count, bytes, 0, 1, 1)
	c.count(uint64(count[0])*uint64(count[1]), bytes)
}

// run appends to the last piece.
func (c *cutter) run(r rdma.Run) {
	f := c.frame
	p := &f.pieces[len(f.pieces)-1]
	f.runs = append(f.runs, r)
	p.Runs = f.runs[len(f.runs)-1-len(p.Runs):]
}

func (c *cutter) count(rows, bytes uint64) {
	c.frame.rows += rows
	c.frame.bytes += rows * bytes
	c.left -= rows * bytes
}
