package kv

import (
	"crypto/sha256"
	"slices"
)

// Digest is the hash of the logical plan: both roster generations, the two
// engines, boxes, tokens and destination ranges. Both sides compute the same;
// source pages and chunks are no part of it.
func (p *Pair) Digest(prefillRoster, decodeRoster [32]byte, targets []Range) [32]byte {
	e := make(encoder, 0, p.digestBytes(targets))
	e.str("kvferry plan 2")
	e = append(e, prefillRoster[:]...)
	e = append(e, decodeRoster[:]...)
	e.rank(p.Writer)
	e.rank(p.Receiver)
	e.u64(p.Prefix)
	e.u64(p.Length)
	e.flag(p.Meta)
	e.int(len(p.Boxes))
	for _, b := range p.Boxes {
		e.str(b.Component)
		e.ints(b.Layers)
		e.int(b.Heads.Low)
		e.int(b.Heads.High)
		e.u64(b.RowBytes)
		e.u64(b.Start)
		e.u64(b.Step)
		e.u64(b.Rows)
	}
	e.ranges(targets)
	return sha256.Sum256(e)
}

// digestBytes is about how long the canonical form is.
func (p *Pair) digestBytes(targets []Range) int {
	n := 256
	for i := range p.Boxes {
		n += 72 + len(p.Boxes[i].Component) + 8*len(p.Boxes[i].Layers)
	}
	var last *Run
	for i := range targets {
		n += 96 + len(targets[i].Component)
		if runs := targets[i].Runs; len(runs) > 0 && &runs[0] != last {
			last = &runs[0]
			n += 16 * len(runs)
		}
	}
	return n
}

// ranges appends ranges; runs that several share are said once. Whether they
// share memory makes no difference, only whether they are equal.
func (e *encoder) ranges(rs []Range) {
	var tables [][]Run
	e.int(len(rs))
	for _, r := range rs {
		e.str(r.Component)
		e.int(r.Layer)
		e.u64(uint64(r.Region))
		e.u64(r.Offset)
		e.u64(r.UnitStride)
		e.u64(r.Bytes)
		e.u64(uint64(r.Count[0])<<32 | uint64(r.Count[1]))
		e.u64(r.Stride[0])
		e.u64(r.Stride[1])
		n := slices.IndexFunc(tables, func(t []Run) bool { return sameRuns(t, r.Runs) })
		if n >= 0 {
			e.int(n)
			continue
		}
		e.int(len(tables))
		tables = append(tables, r.Runs)
		e.int(len(r.Runs))
		for _, run := range r.Runs {
			e.u64(uint64(run.First)<<32 | uint64(run.Count))
			e.u64(uint64(run.Step))
		}
	}
}

// sameRuns is slices.Equal, without a look at what is the same memory.
func sameRuns(a, b []Run) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b)
}
