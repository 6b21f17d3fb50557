package shm

import (
	"encoding/binary"
	"fmt"

	"kvferry/transport/rdma"
)

// A description is what a grant says, in the table's arena. Little endian:
//
//	lists u32, ranges u32
//	each list of runs: runs u32, then first, count, step u32 of each
//	each range: region, offset, unit stride, bytes u64, count 2 x u32, stride 2 x u64, list u32
//
// Ranges that share their runs share a list.
const (
	describedBytes      = 8
	describedListBytes  = 4
	describedRunBytes   = 12
	describedRangeBytes = 60
)

// lists numbers the lists of runs of a grant, in the order in which they appear.
type lists struct {
	runs  [][]rdma.Run
	of    []uint32 // by range
	bytes uint64   // of the whole description
}

func listsOf(g *rdma.Grant) lists {
	type key struct {
		runs *rdma.Run
		n    int
	}
	l := lists{of: make([]uint32, len(g.Ranges)), bytes: describedBytes + uint64(len(g.Ranges))*describedRangeBytes}
	seen := map[key]uint32{}
	for i := range g.Ranges {
		runs := g.Ranges[i].Runs
		k := key{&runs[0], len(runs)}
		n, ok := seen[k]
		if !ok {
			n = uint32(len(l.runs))
			seen[k] = n
			l.runs = append(l.runs, runs)
			l.bytes += describedListBytes + uint64(len(runs))*describedRunBytes
		}
		l.of[i] = n
	}
	return l
}

// describe writes a description to b, which has room for it.
func (l *lists) describe(b []byte, g *rdma.Grant) {
	le := binary.LittleEndian
	u32 := func(v uint32) { le.PutUint32(b, v); b = b[4:] }
	u64 := func(v uint64) { le.PutUint64(b, v); b = b[8:] }
	u32(uint32(len(l.runs)))
	u32(uint32(len(g.Ranges)))
	for _, runs := range l.runs {
		u32(uint32(len(runs)))
		for _, r := range runs {
			u32(r.First)
			u32(r.Count)
			u32(r.Step)
		}
	}
	for i := range g.Ranges {
		r := &g.Ranges[i]
		u64(uint64(r.Region))
		u64(r.Offset)
		u64(r.UnitStride)
		u64(r.Bytes)
		u32(r.Count[0])
		u32(r.Count[1])
		u64(r.Stride[0])
		u64(r.Stride[1])
		u32(l.of[i])
	}
}

// parseRanges reads a description. What it says is checked by rdma.Compile.
func parseRanges(b []byte) ([]rdma.Range, error) {
	le := binary.LittleEndian
	short := func(n uint64) bool { return uint64(len(b)) < n }
	u32 := func() uint32 { v := le.Uint32(b); b = b[4:]; return v }
	u64 := func() uint64 { v := le.Uint64(b); b = b[8:]; return v }
	total := len(b)
	if short(describedBytes) {
		return nil, fmt.Errorf("description of %d bytes, want at least %d", total, describedBytes)
	}
	nLists, nRanges := uint64(u32()), uint64(u32())
	if short(nLists*describedListBytes + nRanges*describedRangeBytes) {
		return nil, fmt.Errorf("description of %d bytes has %d lists and %d ranges", total, nLists, nRanges)
	}
	runs := make([][]rdma.Run, nLists)
	for i := range runs {
		if short(describedListBytes) {
			return nil, fmt.Errorf("description of %d bytes ends at list %d", total, i)
		}
		n := uint64(u32())
		if n == 0 || short(n*describedRunBytes) {
			return nil, fmt.Errorf("list %d of a description of %d bytes has %d runs", i, total, n)
		}
		runs[i] = make([]rdma.Run, n)
		for k := range runs[i] {
			runs[i][k] = rdma.Run{First: u32(), Count: u32(), Step: u32()}
		}
	}
	if uint64(len(b)) != nRanges*describedRangeBytes {
		return nil, fmt.Errorf("description of %d bytes has %d for %d ranges", total, len(b), nRanges)
	}
	ranges := make([]rdma.Range, nRanges)
	for i := range ranges {
		r := &ranges[i]
		r.Region, r.Offset, r.UnitStride, r.Bytes = rdma.RegionID(u64()), u64(), u64(), u64()
		r.Count = [2]uint32{u32(), u32()}
		r.Stride = [2]uint64{u64(), u64()}
		list := uint64(u32())
		if list >= nLists {
			return nil, fmt.Errorf("range %d names list %d of %d", i, list, nLists)
		}
		r.Runs = runs[list]
	}
	return ranges, nil
}
