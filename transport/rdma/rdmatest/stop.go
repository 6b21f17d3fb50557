package rdmatest

import (
	"runtime"
	"testing"

	"kvferry/transport/rdma"
)

const (
	poison = 0x5A // what the source holds after it was given back
	clean  = 0x11 // what the source holds before
)

// stream posts writes of all of from to to under a tag, until the window is full
// or there are n.
func (w *world) stream(number uint64, tag rdma.Tag, g rdma.GrantID, from, to region, n int) (ws []*rdma.Write) {
	w.t.Helper()
	for range n {
		write := w.write(tag, g, contiguous(from, 0, to, 0, from.Descriptor.Bytes))
		if err := w.a.p.Post(w.a.session(number), []*rdma.Write{write}); err != nil {
			break
		}
		ws = append(ws, write)
	}
	if len(ws) == 0 {
		w.t.Fatal("not one write was taken")
	}
	return ws
}

// afterSomeBytes returns at another moment of a transfer in each round: sooner or
// later after the first byte has come.
func afterSomeBytes(to region, round int) {
	b := to.Memory.Bytes()
	for at, spins := round*len(b)/rounds, 0; b[at] == canary && spins < 1<<20; spins++ {
		runtime.Gosched()
	}
}

const rounds = 8

func nothingLandsAfterRevoked(t *testing.T, w *world) {
	const size = 16 << 20
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	from.fill(clean)
	refused := 0
	for round := range rounds {
		to.fill(canary)
		g := w.grant(w.b, whole(to))
		ws := w.stream(number, 1, g, from, to, 4)
		afterSomeBytes(to, round)
		if !w.b.revoke(g) {
			t.Skip("the provider needs a fence to close a grant")
		}
		counted, _ := arrivals(w.b.seen())
		to.fill(canary)
		for _, c := range w.a.awaitWrites(ws) {
			switch c.Outcome {
			case rdma.Refused:
				refused++
			case rdma.Landed:
			default:
				t.Errorf("round %d: write %d is %s: %v", round, c.ID, c.Outcome, c.Err)
			}
		}
		if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
			t.Fatalf("round %d: byte %d landed after Revoked", round, i)
		}
		after, _ := arrivals(w.b.seen())
		for key, n := range after {
			if key.grant == g && counted[key] != n {
				t.Errorf("round %d: %d arrivals came after Revoked", round, n-counted[key])
			}
		}
	}
	if refused == 0 {
		t.Error("every write landed before the revoke: the test proves nothing")
	}
}

func revokeIsAlwaysAnswered(t *testing.T, w *world) {
	if !w.b.revoke(w.grantID()) {
		t.Error("a grant that is not known is answered open")
	}
	to := w.register(w.b, 4096)
	g := w.grant(w.b, whole(to))
	w.b.p.Revoke(g)
	w.b.p.Revoke(g)
	is := func(ev rdma.Event) bool { r, ok := ev.(rdma.Revoked); return ok && r.Grant == g }
	w.b.await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
}

// quiesce asks and waits; it returns the answer and how many events came before.
func (n *node) quiesce(tag rdma.Tag) (answer rdma.Quiesced, at int) {
	n.t.Helper()
	from := len(n.seen())
	n.p.Quiesce(tag)
	n.await("quiesced", func(evs []rdma.Event) bool {
		for i, ev := range evs[from:] {
			if q, ok := ev.(rdma.Quiesced); ok && q.Tag == tag {
				answer, at = q, from+i
				return true
			}
		}
		return false
	})
	return answer, at
}

func nothingIsReadAfterQuiesced(t *testing.T, w *world) {
	const size = 16 << 20
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	other, otherTo := w.register(w.a, 1<<20), w.register(w.b, 1<<20)
	g, otherGrant := w.grant(w.b, whole(to)), w.grant(w.b, whole(otherTo))
	other.fill(clean)
	for round := range rounds {
		from.fill(clean)
		to.fill(canary)
		tag := rdma.Tag(100 + round)
		ws := w.stream(number, tag, g, from, to, 4)
		rest := w.stream(number, 7, otherGrant, other, otherTo, 16)
		afterSomeBytes(to, round)
		q, at := w.a.quiesce(tag)
		from.fill(poison)
		unknown := false
		for _, ev := range w.a.seen()[:at] {
			if c, ok := ev.(rdma.Completed); ok && c.Tag == tag {
				unknown = unknown || c.Outcome == rdma.Unknown
			}
		}
		outcomes := w.a.awaitWrites(ws)
		if done := count(w.a.seen()[:at], func(ev rdma.Event) bool { c, ok := ev.(rdma.Completed); return ok && c.Tag == tag }); done != len(ws) {
			t.Errorf("round %d: %d of %d writes had completed before Quiesced", round, done, len(ws))
		}
		if unknown != (len(q.Unknown) == 1) || unknown && q.Unknown[0] != w.a.session(number) {
			t.Errorf("round %d: Quiesced says unknown on %v, the completions say %v: %v", round, q.Unknown, unknown, outcomes)
		}
		for id, c := range w.a.awaitWrites(rest) {
			if c.Outcome != rdma.Landed {
				t.Errorf("round %d: write %d of another tag is %s: %v", round, id, c.Outcome, c.Err)
			}
		}
		w.neverPoisoned(number, to, otherGrant, other, otherTo)
	}
}

// neverPoisoned lets what may be on its way arrive, by a fence of both sides and a
// new generation, and looks for bytes that were read too late.
func (w *world) neverPoisoned(number uint64, to region, g rdma.GrantID, from, flushed region) {
	w.t.Helper()
	w.a.mustLand(number, w.write(9999, g, contiguous(from, 0, flushed, 0, from.Descriptor.Bytes)))
	w.noPoison(to)
}

func quiesceIsAlwaysAnswered(t *testing.T, w *world) {
	if q, _ := w.a.quiesce(77); len(q.Unknown) != 0 {
		t.Errorf("a tag that was never posted is unknown on %v", q.Unknown)
	}
	const size = 8 << 20
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	g := w.grant(w.b, whole(to))
	w.a.mustLand(number, w.write(3, g, contiguous(from, 0, to, 0, size)))
	if q, _ := w.a.quiesce(3); len(q.Unknown) != 0 {
		t.Errorf("a tag of which all landed is unknown on %v", q.Unknown)
	}
	ws := w.stream(number, 4, g, from, to, 8)
	w.a.p.Quiesce(4)
	w.a.p.Quiesce(4)
	is := func(ev rdma.Event) bool { q, ok := ev.(rdma.Quiesced); return ok && q.Tag == 4 }
	w.a.await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
	w.a.awaitWrites(ws)
}
