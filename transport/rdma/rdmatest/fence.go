package rdmatest

import (
	"bytes"
	"errors"
	"testing"

	"kvferry/transport/rdma"
)

func nothingLandsAfterFenced(t *testing.T, w *world) {
	const size = 16 << 20
	from, to := w.register(w.a, size), w.register(w.b, size)
	from.fill(clean)
	g := w.grant(w.b, whole(to))
	for round := range rounds {
		number := w.connect()
		to.fill(canary)
		ws := w.stream(number, 1, g, from, to, 6)
		afterSomeBytes(to, round)
		w.b.fence(number)
		told := len(w.b.seen())
		to.fill(canary)
		disconnected := func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.a.session(number)
		}
		w.a.await("disconnected", func(evs []rdma.Event) bool { return count(evs, disconnected) == 1 })
		for _, ev := range w.a.seen()[lastIndex(w.a.seen(), disconnected):] {
			if _, ok := ev.(rdma.Completed); ok {
				t.Errorf("round %d: a write completed after Disconnected", round)
			}
		}
		w.a.awaitWrites(ws)
		w.a.fence(number)
		if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
			t.Fatalf("round %d: byte %d landed after Fenced", round, i)
		}
		for _, ev := range w.b.seen()[told:] {
			if a, ok := ev.(rdma.Arrived); ok && a.Generation == w.b.session(number).Generation {
				t.Errorf("round %d: %+v came after Fenced", round, a)
			}
		}
	}
}

func lastIndex(evs []rdma.Event, is func(rdma.Event) bool) int {
	for i := len(evs) - 1; i >= 0; i-- {
		if is(evs[i]) {
			return i
		}
	}
	return 0
}

func nothingIsReadAfterFenced(t *testing.T, w *world) {
	const size = 16 << 20
	from, to := w.register(w.a, size), w.register(w.b, size)
	other, otherTo := w.register(w.a, 1<<20), w.register(w.b, 1<<20)
	g, otherGrant := w.grant(w.b, whole(to)), w.grant(w.b, whole(otherTo))
	for round := range rounds {
		number := w.connect()
		from.fill(clean)
		to.fill(canary)
		ws := w.stream(number, 1, g, from, to, 6)
		afterSomeBytes(to, round)
		w.a.fence(number)
		from.fill(poison)
		evs := w.a.seen()
		fenced := lastIndex(evs, func(ev rdma.Event) bool { _, ok := ev.(rdma.Fenced); return ok })
		if done := count(evs[:fenced], func(ev rdma.Event) bool { c, ok := ev.(rdma.Completed); return ok && c.Session == w.a.session(number) }); done != len(ws) {
			t.Errorf("round %d: %d of %d writes had completed before Fenced", round, done, len(ws))
		}
		w.a.awaitWrites(ws)
		if err := w.a.p.Post(w.a.session(number), ws); !errors.Is(err, rdma.ErrNotConnected) {
			t.Errorf("round %d: Post after Fenced: got %v, want ErrNotConnected", round, err)
		}
		w.b.fence(number)
		w.neverPoisoned(w.connect(), to, otherGrant, other, otherTo)
		w.a.fence(w.session)
		w.b.fence(w.session)
	}
}

func fenceIsAlwaysAnswered(t *testing.T, w *world) {
	w.a.fence(1) // never known
	w.session = 1
	number := w.connect()
	w.a.p.Fence(w.a.session(number))
	w.a.p.Fence(w.a.session(number))
	is := func(ev rdma.Event) bool {
		f, ok := ev.(rdma.Fenced)
		return ok && f.Session == w.a.session(number) && len(f.Open) == 0
	}
	w.a.await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
	// The other side hears of it, and fences too.
	w.b.await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.b.session(number) && d.Err != nil
		}) == 1
	})
	w.b.fence(number)
	// While one side still connects.
	if err := w.a.connect(number+1, w.b); err != nil {
		t.Fatal(err)
	}
	w.a.fence(number + 1)
	w.a.fence(number + 1)
}

func postedAgain(t *testing.T, w *world) {
	const size = 8 << 20
	from, to := w.register(w.a, size), w.register(w.b, size)
	randomize(from, 5)
	to.fill(canary)
	g := w.grant(w.b, whole(to))
	number := w.connect()
	ws := w.stream(number, 1, g, from, to, 4)
	afterSomeBytes(to, 2)
	w.b.fence(number)
	w.a.fence(number)
	for id, c := range w.a.awaitWrites(ws) {
		if c.Outcome == rdma.Refused {
			t.Errorf("write %d is refused: it could not be posted again", id)
		}
	}
	to.fill(canary)
	w.a.mustLand(w.connect(), w.write(1, g, contiguous(from, 0, to, 0, size)))
	if !bytes.Equal(to.Memory.Bytes(), from.Memory.Bytes()) {
		t.Error("what was posted again differs from its source")
	}
}
