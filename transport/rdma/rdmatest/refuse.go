package rdmatest

import (
	"errors"
	"fmt"
	"testing"

	"kvferry/transport/rdma"
)

// refused posts a write and checks that the receiver refuses it and that nothing
// of it lands. The regions that to is told may not change.
func (w *world) refused(what string, number uint64, write *rdma.Write, to ...region) {
	w.t.Helper()
	stale := func(ev rdma.Event) bool { s, ok := ev.(rdma.Stale); return ok && s.Peer == "a" && s.Reason != "" }
	before := count(w.b.seen(), stale)
	w.a.post(number, write)
	c := w.a.awaitWrites([]*rdma.Write{write})[write.ID]
	if c.Outcome != rdma.Refused {
		w.t.Errorf("%s: got %s (%v), want refused", what, c.Outcome, c.Err)
	}
	for _, r := range to {
		if i := isAll(r.Memory.Bytes(), canary); i >= 0 {
			w.t.Errorf("%s: byte %d was written", what, i)
		}
	}
	w.b.await(what+" counted as stale", func(evs []rdma.Event) bool { return count(evs, stale) > before })
}

func outsideIsRefused(t *testing.T, w *world) {
	const size = 1 << 20
	number := w.connect()
	from, to, other := w.register(w.a, size), w.register(w.b, size), w.register(w.b, size)
	randomize(from, 1)
	to.fill(canary)
	other.fill(canary)
	// Rows of 100 at 1000, 1300, ...; units of 1000 bytes, pages 2, 4 and 6.
	rows := rdma.Range{
		Region: to.Region, Offset: 1000, UnitStride: 1000, Bytes: 100, Count: [2]uint32{1, 3}, Stride: [2]uint64{0, 300},
		Runs: []rdma.Run{{First: 2, Count: 3, Step: 2}},
	}
	g := w.grant(w.b, rows)
	copyTo := func(offset, bytes uint64) rdma.Copy { return contiguous(from, 0, to, offset, bytes) }
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
		"another region":        contiguous(from, 0, other, 3000, 10),
		"no region":             contiguous(from, 0, region{}, 3000, 10),
		"far beyond the region": copyTo(1<<40, 10),
		"one row too many":      spoil(func(c *rdma.Copy) { c.Count[1] = 4 }),
		"one unit too many":     spoil(func(c *rdma.Copy) { c.Runs[0].Count = 4 }),
		"another step":          spoil(func(c *rdma.Copy) { c.Runs[0].TargetStep = 1 }),
		"longer rows":           spoil(func(c *rdma.Copy) { c.Bytes = 101 }),
	} {
		w.refused(what, number, w.write(1, g, c), to, other)
		w.refused(what+", behind a good copy", number, w.write(1, g, copyTo(3000, 1), c), other)
		to.fill(canary)
	}
	w.refused("a grant that was never given", number, w.write(1, w.grantID(), copyTo(3000, 10)), to)
	foreign := w.grantID()
	if err := w.b.p.Grant(rdma.Grant{ID: foreign, Peer: "c", Ranges: []rdma.Range{rows}}); err != nil {
		t.Fatal(err)
	}
	w.refused("a grant of another peer", number, w.write(1, foreign, copyTo(3000, 10)), to)
	w.a.mustLand(number, w.write(1, g, good))
	to.fill(canary)
	if w.b.revoke(g) {
		w.refused("a revoked grant", number, w.write(1, g, good), to)
	}
}

func grantsAreChecked(t *testing.T, w *world) {
	const size = 4096
	to := w.register(w.b, size)
	id := w.grant(w.b, whole(to))
	if err := w.b.p.Grant(rdma.Grant{ID: id, Peer: "a", Ranges: []rdma.Range{whole(to)}}); !errors.Is(err, rdma.ErrExists) {
		t.Errorf("the same id again: got %v, want ErrExists", err)
	}
	long, unknown, tangled := whole(to), whole(to), whole(to)
	long.Bytes++
	unknown.Region += 1000
	tangled.Bytes, tangled.Count, tangled.Stride = 100, [2]uint32{1, 2}, [2]uint64{0, 99}
	for i, r := range []rdma.Range{long, unknown, tangled} {
		id := w.grantID()
		var re *rdma.RangeError
		if err := w.b.p.Grant(rdma.Grant{ID: id, Peer: "a", Ranges: []rdma.Range{whole(to), r}}); !errors.As(err, &re) {
			t.Errorf("range %d: got %v, want *RangeError", i, err)
		}
		if !w.b.revoke(id) {
			t.Errorf("range %d: a grant that was not installed is open", i)
		}
	}
}

func postTakesAllOrNothing(t *testing.T, w *world) {
	const size = 1 << 20
	from, to := w.register(w.a, size), w.register(w.b, size)
	to.fill(canary)
	g := w.grant(w.b, whole(to))
	good := func() *rdma.Write { return w.write(1, g, contiguous(from, 0, to, 0, 10)) }
	if err := w.a.p.Post(w.a.session(1), []*rdma.Write{good()}); !errors.Is(err, rdma.ErrNotConnected) {
		t.Errorf("before Connect: got %v, want ErrNotConnected", err)
	}
	number := w.connect()
	if err := w.a.p.Post(w.a.session(number+1), []*rdma.Write{good()}); !errors.Is(err, rdma.ErrNotConnected) {
		t.Errorf("another generation: got %v, want ErrNotConnected", err)
	}
	for what, bad := range map[string]*rdma.Write{
		"no copies":         w.write(1, g),
		"beyond the source": w.write(1, g, contiguous(from, size-9, to, 0, 10)),
		"no source":         w.write(1, g, contiguous(region{}, 0, to, 0, 10)),
		"no bytes":          w.write(1, g, contiguous(from, 0, to, 0, 0)),
		"beyond 64 bits":    w.write(1, g, contiguous(from, 0, to, 1<<63, 1<<63)),
		"no runs":           w.write(1, g, rdma.Copy{Source: rdma.Place{Region: from.Region}, Bytes: 1, Count: [2]uint32{1, 1}}),
	} {
		var re *rdma.RangeError
		if err := w.a.p.Post(w.a.session(number), []*rdma.Write{good(), bad}); !errors.As(err, &re) {
			t.Errorf("%s: got %v, want *RangeError", what, err)
		} else if re.Field == "" {
			t.Errorf("%s: %v does not name the field", what, err)
		}
	}
	if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
		t.Errorf("byte %d of a refused batch landed", i)
	}
	last := good()
	w.a.mustLand(number, last)
	for _, c := range w.a.completions() {
		if c.ID != last.ID {
			t.Errorf("write %d of a refused batch completed", c.ID)
		}
	}
}

func fullEnds(t *testing.T, w *world) {
	const size, most = 8 << 20, 1 << 14
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	g := w.grant(w.b, whole(to))
	var ws []*rdma.Write
	err := error(nil)
	for len(ws) < most && err == nil {
		write := w.write(1, g, contiguous(from, 0, to, 0, size))
		if err = w.a.p.Post(w.a.session(number), []*rdma.Write{write}); err == nil {
			ws = append(ws, write)
		}
	}
	if !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("after %d writes: got %v, want ErrFull", len(ws), err)
	}
	last := w.write(1, g, contiguous(from, 0, to, 0, 8))
	w.a.post(number, last) // waits for a completion as often as it is full
	w.a.p.Quiesce(1)
	w.a.awaitWrites(append(ws, last))
}

func regionsInUseStay(t *testing.T, w *world) {
	const size = 1 << 20
	number := w.connect()
	from, to, unused := w.register(w.a, size), w.register(w.b, size), w.register(w.b, size)
	g := w.grant(w.b, whole(to))
	if err := w.b.p.Deregister(to.Region); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a granted region: got %v, want ErrBusy", err)
	}
	if err := w.b.p.Deregister(unused.Region); err != nil {
		t.Errorf("an unused region: %v", err)
	}
	if err := w.b.p.Deregister(unused.Region); err == nil {
		t.Error("a region was deregistered twice")
	}
	w.a.mustLand(number, w.write(1, g, contiguous(from, 0, to, 0, size)))
	if err := w.a.p.Deregister(from.Region); err != nil {
		t.Errorf("a source after its writes: %v", err)
	}
	if w.b.revoke(g) {
		if err := w.b.p.Deregister(to.Region); err != nil {
			t.Errorf("a region after its grants closed: %v", err)
		}
	}
	again := w.register(w.b, size)
	if again.Region == to.Region || again.Region == unused.Region || again.Region == 0 {
		t.Errorf("region id %d was used before, or is 0", again.Region)
	}
	const large = 32 << 20 // so that Deregister comes long before the end
	busy, busyTo := w.register(w.a, large), w.register(w.b, large)
	g = w.grant(w.b, whole(busyTo))
	var ws []*rdma.Write
	for range 32 {
		ws = append(ws, w.write(2, g, contiguous(busy, 0, busyTo, 0, large)))
	}
	w.a.post(number, ws...)
	err := w.a.p.Deregister(busy.Region)
	if done := len(w.a.completions()); err == nil && done < len(ws) {
		t.Error(fmt.Errorf("a source was deregistered with %d of %d writes completed", done, len(ws)))
	}
	w.a.awaitWrites(ws)
}
