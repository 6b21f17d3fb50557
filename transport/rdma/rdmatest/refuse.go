package rdmatest

import (
	"errors"
	"fmt"
	"testing"

	"kvferry/transport/rdma"
)

// refused posts a write and checks that the receiver refuses it and that nothing
// of it lands. The regions that to is told may not change.
func (w *World) refused(what string, number uint64, write *rdma.Write, to ...Region) {
	w.t.Helper()
	stale := func(ev rdma.Event) bool { s, ok := ev.(rdma.Stale); return ok && s.Peer == "a" && s.Reason != "" }
	before := count(w.B.Seen(), stale)
	w.A.Post(number, write)
	c := w.A.AwaitWrites([]*rdma.Write{write})[write.ID]
	if c.Outcome != rdma.Refused {
		w.t.Errorf("%s: got %s (%v), want refused", what, c.Outcome, c.Err)
	}
	for _, r := range to {
		if i := isAll(r.Memory.Bytes(), canary); i >= 0 {
			w.t.Errorf("%s: byte %d was written", what, i)
		}
	}
	w.B.Await(what+" counted as stale", func(evs []rdma.Event) bool { return count(evs, stale) > before })
}

func outsideIsRefused(t *testing.T, w *World) {
	const size = 1 << 20
	number := w.Connect()
	from, to, other := w.Register(w.A, size), w.Register(w.B, size), w.Register(w.B, size)
	Randomize(from, 1)
	to.Fill(canary)
	other.Fill(canary)
	// Rows of 100 at 1000, 1300, ...; units of 1000 bytes, pages 2, 4 and 6.
	rows := rdma.Range{
		Region: to.Region, Offset: 1000, UnitStride: 1000, Bytes: 100, Count: [2]uint32{1, 3}, Stride: [2]uint64{0, 300},
		Runs: []rdma.Run{{First: 2, Count: 3, Step: 2}},
	}
	g := w.Grant(w.B, rows)
	copyTo := func(offset, bytes uint64) rdma.Copy { return Contiguous(from, 0, to, offset, bytes) }
	good := rdma.Copy{
		Source: rdma.Place{Region: from.Region, UnitStride: 300, Stride: [2]uint64{0, 100}},
		Target: rdma.Place{Region: to.Region, Offset: 1000, UnitStride: 1000, Stride: [2]uint64{0, 300}},
		Bytes:  100, Count: [2]uint32{1, 3}, Runs: []rdma.PairRun{{Source: 0, Target: 2, Count: 3, SourceStep: 1, TargetStep: 2}},
	}
	spoil := func(f func(*rdma.Copy)) rdma.Copy {
		c := good
		c.Runs = []rdma.PairRun{good.Runs[0]}
		f(&c)
		return c
	}
	for what, c := range map[string]rdma.Copy{
		"a byte before":         copyTo(2999, 10),
		"a byte behind":         copyTo(3091, 10),
		"between rows":          copyTo(3150, 10),
		"a unit between":        copyTo(4000, 100),
		"the unit after":        copyTo(9000, 100),
		"another region":        Contiguous(from, 0, other, 3000, 10),
		"no region":             Contiguous(from, 0, Region{}, 3000, 10),
		"far beyond the region": copyTo(1<<40, 10),
		"one row too many":      spoil(func(c *rdma.Copy) { c.Count[1] = 4 }),
		"one unit too many":     spoil(func(c *rdma.Copy) { c.Runs[0].Count = 4 }),
		"another step":          spoil(func(c *rdma.Copy) { c.Runs[0].TargetStep = 1 }),
		"longer rows":           spoil(func(c *rdma.Copy) { c.Bytes = 101 }),
	} {
		w.refused(what, number, w.Write(1, g, c), to, other)
		w.refused(what+", behind a good copy", number, w.Write(1, g, copyTo(3000, 1), c), other)
		to.Fill(canary)
	}
	w.refused("a grant that was never given", number, w.Write(1, w.grantID(), copyTo(3000, 10)), to)
	foreign := w.grantID()
	if err := w.B.P.Grant(rdma.Grant{ID: foreign, Peer: "c", Ranges: []rdma.Range{rows}}); err != nil {
		t.Fatal(err)
	}
	w.refused("a grant of another peer", number, w.Write(1, foreign, copyTo(3000, 10)), to)
	w.A.MustLand(number, w.Write(1, g, good))
	to.Fill(canary)
	w.B.Revoke(g)
	w.refused("a revoked grant", number, w.Write(1, g, good), to)
}

func grantsAreChecked(t *testing.T, w *World) {
	const size = 4096
	to := w.Register(w.B, size)
	id := w.Grant(w.B, Whole(to))
	if err := w.B.P.Grant(rdma.Grant{ID: id, Peer: "a", Ranges: []rdma.Range{Whole(to)}}); !errors.Is(err, rdma.ErrExists) {
		t.Errorf("the same id again: got %v, want ErrExists", err)
	}
	long, unknown, tangled := Whole(to), Whole(to), Whole(to)
	long.Bytes++
	unknown.Region += 1000
	tangled.Bytes, tangled.Count, tangled.Stride = 100, [2]uint32{1, 2}, [2]uint64{0, 99}
	for i, r := range []rdma.Range{long, unknown, tangled} {
		id := w.grantID()
		var re *rdma.RangeError
		if err := w.B.P.Grant(rdma.Grant{ID: id, Peer: "a", Ranges: []rdma.Range{Whole(to), r}}); !errors.As(err, &re) {
			t.Errorf("range %d: got %v, want *RangeError", i, err)
		}
		if !w.B.Revoke(id) {
			t.Errorf("range %d: a grant that was not installed is open", i)
		}
	}
}

func postTakesAllOrNothing(t *testing.T, w *World) {
	const size = 1 << 20
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	to.Fill(canary)
	g := w.Grant(w.B, Whole(to))
	good := func() *rdma.Write { return w.Write(1, g, Contiguous(from, 0, to, 0, 10)) }
	if err := w.A.P.Post(w.A.Session(1), []*rdma.Write{good()}); !errors.Is(err, rdma.ErrNotConnected) {
		t.Errorf("before Connect: got %v, want ErrNotConnected", err)
	}
	number := w.Connect()
	if err := w.A.P.Post(w.A.Session(number+1), []*rdma.Write{good()}); !errors.Is(err, rdma.ErrNotConnected) {
		t.Errorf("another generation: got %v, want ErrNotConnected", err)
	}
	for what, bad := range map[string]*rdma.Write{
		"no copies":         w.Write(1, g),
		"beyond the source": w.Write(1, g, Contiguous(from, size-9, to, 0, 10)),
		"no source":         w.Write(1, g, Contiguous(Region{}, 0, to, 0, 10)),
		"no bytes":          w.Write(1, g, Contiguous(from, 0, to, 0, 0)),
		"beyond 64 bits":    w.Write(1, g, Contiguous(from, 0, to, 1<<63, 1<<63)),
		"no runs":           w.Write(1, g, rdma.Copy{Source: rdma.Place{Region: from.Region}, Bytes: 1, Count: [2]uint32{1, 1}}),
	} {
		var re *rdma.RangeError
		if err := w.A.P.Post(w.A.Session(number), []*rdma.Write{good(), bad}); !errors.As(err, &re) {
			t.Errorf("%s: got %v, want *RangeError", what, err)
		} else if re.Field == "" {
			t.Errorf("%s: %v does not name the field", what, err)
		}
	}
	if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
		t.Errorf("byte %d of a refused batch landed", i)
	}
	last := good()
	w.A.MustLand(number, last)
	for _, c := range w.A.completions() {
		if c.ID != last.ID {
			t.Errorf("write %d of a refused batch completed", c.ID)
		}
	}
}

func fullEnds(t *testing.T, w *World) {
	const size, most = 8 << 20, 1 << 14
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	g := w.Grant(w.B, Whole(to))
	var ws []*rdma.Write
	err := error(nil)
	for len(ws) < most && err == nil {
		write := w.Write(1, g, Contiguous(from, 0, to, 0, size))
		if err = w.A.P.Post(w.A.Session(number), []*rdma.Write{write}); err == nil {
			ws = append(ws, write)
		}
	}
	if !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("after %d writes: got %v, want ErrFull", len(ws), err)
	}
	last := w.Write(1, g, Contiguous(from, 0, to, 0, 8))
	w.A.Post(number, last) // waits for a completion as often as it is full
	w.A.P.Quiesce(1)
	w.A.AwaitWrites(append(ws, last))
}

func regionsInUseStay(t *testing.T, w *World) {
	const size = 1 << 20
	number := w.Connect()
	from, to, unused := w.Register(w.A, size), w.Register(w.B, size), w.Register(w.B, size)
	g := w.Grant(w.B, Whole(to))
	if err := w.B.P.Deregister(to.Region); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a granted region: got %v, want ErrBusy", err)
	}
	if err := w.B.P.Deregister(unused.Region); err != nil {
		t.Errorf("an unused region: %v", err)
	}
	if err := w.B.P.Deregister(unused.Region); err == nil {
		t.Error("a region was deregistered twice")
	}
	w.A.MustLand(number, w.Write(1, g, Contiguous(from, 0, to, 0, size)))
	if err := w.A.P.Deregister(from.Region); err != nil {
		t.Errorf("a source after its writes: %v", err)
	}
	w.B.Revoke(g)
	if err := w.B.P.Deregister(to.Region); err != nil {
		t.Errorf("a region after its grants closed: %v", err)
	}
	again := w.Register(w.B, size)
	if again.Region == to.Region || again.Region == unused.Region || again.Region == 0 {
		t.Errorf("region id %d was used before, or is 0", again.Region)
	}
	const large = 32 << 20 // so that Deregister comes long before the end
	busy, busyTo := w.Register(w.A, large), w.Register(w.B, large)
	g = w.Grant(w.B, Whole(busyTo))
	var ws []*rdma.Write
	for range 8 {
		ws = append(ws, w.Write(2, g, Contiguous(busy, 0, busyTo, 0, large)))
	}
	w.A.Post(number, ws...)
	err := w.A.P.Deregister(busy.Region)
	if done := len(w.A.completions()); err == nil && done < len(ws) {
		t.Error(fmt.Errorf("a source was deregistered with %d of %d writes completed", done, len(ws)))
	}
	w.A.AwaitWrites(ws)
}
