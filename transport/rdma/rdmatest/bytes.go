package rdmatest

import (
	"bytes"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

const canary = 0xC5

// slowly performs a copy row by row, as the doc of Copy says.
func slowly(c *rdma.Copy, source, target []byte) {
	at := func(p *rdma.Place, unit, i, j uint64) uint64 {
		return p.Offset + unit*p.UnitStride + i*p.Stride[0] + j*p.Stride[1]
	}
	for _, run := range c.Runs {
		for u := range uint64(run.Count) {
			for i := range uint64(c.Count[0]) {
				for j := range uint64(c.Count[1]) {
					s := at(&c.Source, uint64(run.Source)+u*uint64(run.SourceStep), i, j)
					d := at(&c.Target, uint64(run.Target)+u*uint64(run.TargetStep), i, j)
					copy(target[d:d+c.Bytes], source[s:s+c.Bytes])
				}
			}
		}
	}
}

// drawPlace lays rows out so that they nest; gaps leave canaries between them.
func drawPlace(t *rapid.T, r Region, bytes uint64, count [2]uint32) rdma.Place {
	gap := func() uint64 { return rapid.SampledFrom([]uint64{0, 0, 1, 64, 1000}).Draw(t, "gap") }
	p := rdma.Place{Region: r.Region, Offset: rapid.Uint64Range(0, 300).Draw(t, "offset")}
	extent := bytes
	for d := 1; d >= 0; d-- {
		p.Stride[d] = extent + gap()
		extent += uint64(count[d]-1) * p.Stride[d]
	}
	p.UnitStride = extent + gap()
	return p
}

// drawCopy draws a copy of which target rows do not overlap, and the range that it
// fills exactly.
func drawCopy(t *rapid.T, from, to Region) (rdma.Copy, rdma.Range) {
	c := rdma.Copy{Bytes: rapid.SampledFrom([]uint64{1, 7, 64, 1024, 4096, 30000}).Draw(t, "bytes")}
	c.Count = [2]uint32{rapid.Uint32Range(1, 4).Draw(t, "outer"), rapid.Uint32Range(1, 4).Draw(t, "inner")}
	c.Source, c.Target = drawPlace(t, from, c.Bytes, c.Count), drawPlace(t, to, c.Bytes, c.Count)
	r := rdma.Range{
		Region: to.Region, Offset: c.Target.Offset, UnitStride: c.Target.UnitStride,
		Bytes: c.Bytes, Count: c.Count, Stride: c.Target.Stride,
	}
	next := uint32(0)
	for range rapid.IntRange(1, 4).Draw(t, "runs") {
		run := rdma.PairRun{
			Source: rapid.Uint32Range(0, 8).Draw(t, "source"), SourceStep: rapid.Uint32Range(1, 2).Draw(t, "source step"),
			Target: next + rapid.Uint32Range(0, 1).Draw(t, "skip"), TargetStep: rapid.Uint32Range(1, 2).Draw(t, "target step"),
			Count: rapid.Uint32Range(1, 3).Draw(t, "count"),
		}
		next = run.Target + (run.Count-1)*run.TargetStep + 1
		c.Runs = append(c.Runs, run)
		r.Runs = append(r.Runs, rdma.Run{First: run.Target, Count: run.Count, Step: run.TargetStep})
	}
	return c, r
}

// Randomize fills a region from a seed.
func Randomize(r Region, seed uint64) {
	all := r.Memory.Bytes()
	for i := range all {
		seed = seed*6364136223846793005 + 1442695040888963407
		all[i] = byte(seed >> 56)
	}
}

func bytesAreExact(t *testing.T, w *World) {
	const size = 32 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	Randomize(from, 1)
	want := make([]byte, size)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(t, "copies")
		write := w.Write(1, rdma.GrantID{})
		var ranges []rdma.Range
		shift := uint64(0)
		for range n {
			c, r := drawCopy(t, from, to)
			c.Target.Offset += shift // copies do not overlap either
			r.Offset += shift
			top := uint64(0)
			for _, run := range c.Runs {
				top = max(top, uint64(run.Target)+uint64(run.Count)*uint64(run.TargetStep))
			}
			shift = c.Target.Offset + (top+1)*c.Target.UnitStride
			if shift > size || (30*c.Source.UnitStride+c.Source.Offset) > size {
				t.Skip("larger than the regions")
			}
			write.Copies, ranges = append(write.Copies, c), append(ranges, r)
		}
		used := to.Memory.Bytes()[:min(size, shift+4096)]
		for i := range used {
			used[i] = canary
		}
		expect := want[:len(used)]
		copy(expect, used)
		for i := range write.Copies {
			slowly(&write.Copies[i], from.Memory.Bytes(), expect)
		}
		write.Grant = w.Grant(w.B, ranges...)
		w.A.MustLand(number, write)
		if !bytes.Equal(used, expect) {
			i := 0
			for used[i] == expect[i] {
				i++
			}
			t.Fatalf("byte %d is %x, want %x: %+v", i, used[i], expect[i], write.Copies)
		}
		w.B.Revoke(write.Grant)
	})
}

func bothDirections(t *testing.T, w *World) {
	const size, writes = 4 << 20, 24
	number := w.Connect()
	type side struct {
		n        *Node
		from, to Region
		ws       []*rdma.Write
	}
	sides := []*side{{n: w.A, from: w.Register(w.A, size), to: w.Register(w.B, size)}, {n: w.B, from: w.Register(w.B, size), to: w.Register(w.A, size)}}
	for i, s := range sides {
		Randomize(s.from, uint64(i+1))
		g := w.Grant([]*Node{w.B, w.A}[i], Whole(s.to))
		for k := range uint64(writes) {
			at := k * (size / writes)
			s.ws = append(s.ws, w.Write(rdma.Tag(k%3), g, Contiguous(s.from, at, s.to, at, size/writes)))
		}
	}
	for k := range writes {
		for _, s := range sides {
			s.n.Post(number, s.ws[k])
		}
	}
	for _, s := range sides {
		for id, c := range s.n.AwaitWrites(s.ws) {
			if c.Outcome != rdma.Landed {
				t.Fatalf("%s: write %d is %s: %v", s.n.name, id, c.Outcome, c.Err)
			}
		}
		n := size / writes * writes
		if !bytes.Equal(s.from.Memory.Bytes()[:n], s.to.Memory.Bytes()[:n]) {
			t.Errorf("what %s wrote differs", s.n.name)
		}
	}
}

// arrivalKey is what arrivals are counted by.
type arrivalKey struct {
	grant      rdma.GrantID
	generation rdma.Generation
	stripe     uint32
}

// arrivals sums what the receiver was told, in arrivals and bytes.
func arrivals(evs []rdma.Event) (counts map[arrivalKey]uint64, bytes uint64) {
	counts = map[arrivalKey]uint64{}
	for _, ev := range evs {
		if a, ok := ev.(rdma.Arrived); ok {
			counts[arrivalKey{a.Grant, a.Generation, a.Stripe}] += a.Count
			bytes += a.Bytes
		}
	}
	return counts, bytes
}

func arrivalsAddUp(t *testing.T, w *World) {
	const size = 64 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	grants := []rdma.GrantID{w.Grant(w.B, Whole(to)), w.Grant(w.B, Whole(to)), w.Grant(w.B, Whole(to))}
	var ws []*rdma.Write
	total := uint64(0)
	for i := range uint64(40) {
		n := []uint64{1, 4096, 1 << 20, 9 << 20}[i%4]
		write := w.Write(rdma.Tag(i%5), grants[i%3], Contiguous(from, i*1000, to, i*1000, n))
		total += write.Bytes()
		ws = append(ws, write)
		w.A.Post(number, write)
	}
	want := map[arrivalKey]uint64{}
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome != rdma.Landed || len(c.Arrivals) == 0 {
			t.Fatalf("write %d is %s with arrivals %v: %v", id, c.Outcome, c.Arrivals, c.Err)
		}
		for _, a := range c.Arrivals {
			want[arrivalKey{ws[id-ws[0].ID].Grant, w.B.Session(number).Generation, a.Stripe}] += a.Count
		}
	}
	w.B.Await("all arrivals", func(evs []rdma.Event) bool { _, n := arrivals(evs); return n >= total })
	for _, g := range grants {
		w.B.Revoke(g)
	}
	if got, n := arrivals(w.B.Seen()); !maps.Equal(got, want) || n != total {
		t.Errorf("the receiver counted %v, %d bytes; the sender %v, %d bytes", got, n, want, total)
	}
}

// tagsTakeTurns posts much under one tag, then little under another.
func tagsTakeTurns(t *testing.T, w *World) {
	const size = 8 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	g := w.Grant(w.B, Whole(to))
	var ws []*rdma.Write
	for range 32 {
		ws = append(ws, w.Write(1, g, Contiguous(from, 0, to, 0, size)))
	}
	little := w.Write(2, g, Contiguous(from, 0, to, 0, 8))
	ws = append(ws, little)
	w.A.Post(number, ws...) // at once, so that none of them has a start
	w.A.AwaitWrites(ws)
	before := 0
	for _, c := range w.A.completions() {
		if c.ID == little.ID {
			break
		}
		before++
	}
	if before > len(ws)/2 {
		t.Errorf("a write of 8 bytes waited for %d of %d writes of another tag", before, len(ws))
	}
}
