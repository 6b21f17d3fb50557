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
func (w *World) stream(number uint64, tag rdma.Tag, g rdma.GrantID, from, to Region, n int) (ws []*rdma.Write) {
	w.t.Helper()
	for range n {
		write := w.Write(tag, g, Contiguous(from, 0, to, 0, from.Descriptor.Bytes))
		if err := w.A.P.Post(w.A.Session(number), []*rdma.Write{write}); err != nil {
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
func afterSomeBytes(to Region, round int) {
	b := to.Memory.Bytes()
	for at, spins := round*len(b)/Rounds, 0; b[at] == canary && spins < 1<<20; spins++ {
		runtime.Gosched()
	}
}

// Rounds is how often what is to stop is stopped, each time later. A machine that is
// emulated sets less.
var Rounds = 8

func nothingLandsAfterRevoked(t *testing.T, w *World) {
	const size = 16 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	from.Fill(clean)
	refused := 0
	for round := range Rounds {
		to.Fill(canary)
		g := w.Grant(w.B, Whole(to))
		ws := w.stream(number, 1, g, from, to, 4)
		afterSomeBytes(to, round)
		w.B.Revoke(g)
		counted, _ := arrivals(w.B.Seen())
		to.Fill(canary)
		for _, c := range w.A.AwaitWrites(ws) {
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
		after, _ := arrivals(w.B.Seen())
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

func revokeIsAlwaysAnswered(t *testing.T, w *World) {
	if !w.B.Revoke(w.grantID()) {
		t.Error("a grant that is not known is answered open")
	}
	to := w.Register(w.B, 4096)
	g := w.Grant(w.B, Whole(to))
	w.B.P.Revoke(g)
	w.B.P.Revoke(g)
	is := func(ev rdma.Event) bool { r, ok := ev.(rdma.Revoked); return ok && r.Grant == g }
	w.B.Await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
}

// quiesce asks and waits; it returns the answer and how many events came before.
func (n *Node) quiesce(tag rdma.Tag) (answer rdma.Quiesced, at int) {
	n.t.Helper()
	from := len(n.Seen())
	n.P.Quiesce(tag)
	n.Await("quiesced", func(evs []rdma.Event) bool {
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

func nothingIsReadAfterQuiesced(t *testing.T, w *World) {
	const size = 16 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	other, otherTo := w.Register(w.A, 1<<20), w.Register(w.B, 1<<20)
	g, otherGrant := w.Grant(w.B, Whole(to)), w.Grant(w.B, Whole(otherTo))
	other.Fill(clean)
	for round := range Rounds {
		from.Fill(clean)
		to.Fill(canary)
		tag := rdma.Tag(100 + round)
		ws := w.stream(number, tag, g, from, to, 4)
		rest := w.stream(number, 7, otherGrant, other, otherTo, 16)
		afterSomeBytes(to, round)
		q, at := w.A.quiesce(tag)
		from.Fill(poison)
		unknown := false
		for _, ev := range w.A.Seen()[:at] {
			if c, ok := ev.(rdma.Completed); ok && c.Tag == tag {
				unknown = unknown || c.Outcome == rdma.Unknown
			}
		}
		outcomes := w.A.AwaitWrites(ws)
		if done := count(w.A.Seen()[:at], func(ev rdma.Event) bool { c, ok := ev.(rdma.Completed); return ok && c.Tag == tag }); done != len(ws) {
			t.Errorf("round %d: %d of %d writes had completed before Quiesced", round, done, len(ws))
		}
		if unknown != (len(q.Unknown) == 1) || unknown && q.Unknown[0] != w.A.Session(number) {
			t.Errorf("round %d: Quiesced says unknown on %v, the completions say %v: %v", round, q.Unknown, unknown, outcomes)
		}
		for id, c := range w.A.AwaitWrites(rest) {
			if c.Outcome != rdma.Landed {
				t.Errorf("round %d: write %d of another tag is %s: %v", round, id, c.Outcome, c.Err)
			}
		}
		w.neverPoisoned(number, to, otherGrant, other, otherTo)
	}
}

// neverPoisoned lets what may be on its way arrive, by a fence of both sides and a
// new generation, and looks for bytes that were read too late.
func (w *World) neverPoisoned(number uint64, to Region, g rdma.GrantID, from, flushed Region) {
	w.t.Helper()
	w.A.MustLand(number, w.Write(9999, g, Contiguous(from, 0, flushed, 0, from.Descriptor.Bytes)))
	w.noPoison(to)
}

func quiesceIsAlwaysAnswered(t *testing.T, w *World) {
	if q, _ := w.A.quiesce(77); len(q.Unknown) != 0 {
		t.Errorf("a tag that was never posted is unknown on %v", q.Unknown)
	}
	const size = 8 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	g := w.Grant(w.B, Whole(to))
	w.A.MustLand(number, w.Write(3, g, Contiguous(from, 0, to, 0, size)))
	if q, _ := w.A.quiesce(3); len(q.Unknown) != 0 {
		t.Errorf("a tag of which all landed is unknown on %v", q.Unknown)
	}
	ws := w.stream(number, 4, g, from, to, 8)
	w.A.P.Quiesce(4)
	w.A.P.Quiesce(4)
	is := func(ev rdma.Event) bool { q, ok := ev.(rdma.Quiesced); return ok && q.Tag == 4 }
	w.A.Await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
	w.A.AwaitWrites(ws)
}
