package rdmatest

import (
	"bytes"
	"errors"
	"testing"

	"kvferry/transport/rdma"
)

func nothingLandsAfterFenced(t *testing.T, w *World) {
	const size = 16 << 20
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	from.Fill(clean)
	g := w.Grant(w.B, Whole(to))
	for round := range Rounds {
		number := w.Connect()
		to.Fill(canary)
		ws := w.stream(number, 1, g, from, to, 6)
		afterSomeBytes(to, round)
		w.B.Fence(number)
		told := len(w.B.Seen())
		to.Fill(canary)
		disconnected := func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.A.Session(number)
		}
		w.A.Await("disconnected", func(evs []rdma.Event) bool { return count(evs, disconnected) == 1 })
		for _, ev := range w.A.Seen()[lastIndex(w.A.Seen(), disconnected):] {
			if _, ok := ev.(rdma.Completed); ok {
				t.Errorf("round %d: a write completed after Disconnected", round)
			}
		}
		w.A.AwaitWrites(ws)
		w.A.Fence(number)
		if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
			t.Fatalf("round %d: byte %d landed after Fenced", round, i)
		}
		for _, ev := range w.B.Seen()[told:] {
			if a, ok := ev.(rdma.Arrived); ok && a.Generation == w.B.Session(number).Generation {
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

func nothingIsReadAfterFenced(t *testing.T, w *World) {
	const size = 16 << 20
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	other, otherTo := w.Register(w.A, 1<<20), w.Register(w.B, 1<<20)
	g, otherGrant := w.Grant(w.B, Whole(to)), w.Grant(w.B, Whole(otherTo))
	for round := range Rounds {
		number := w.Connect()
		from.Fill(clean)
		to.Fill(canary)
		ws := w.stream(number, 1, g, from, to, 6)
		afterSomeBytes(to, round)
		w.A.Fence(number)
		from.Fill(poison)
		evs := w.A.Seen()
		fenced := lastIndex(evs, func(ev rdma.Event) bool { _, ok := ev.(rdma.Fenced); return ok })
		if done := count(evs[:fenced], func(ev rdma.Event) bool { c, ok := ev.(rdma.Completed); return ok && c.Session == w.A.Session(number) }); done != len(ws) {
			t.Errorf("round %d: %d of %d writes had completed before Fenced", round, done, len(ws))
		}
		w.A.AwaitWrites(ws)
		if err := w.A.P.Post(w.A.Session(number), ws); !errors.Is(err, rdma.ErrNotConnected) {
			t.Errorf("round %d: Post after Fenced: got %v, want ErrNotConnected", round, err)
		}
		w.B.Fence(number)
		w.neverPoisoned(w.Connect(), to, otherGrant, other, otherTo)
		w.A.Fence(w.session)
		w.B.Fence(w.session)
	}
}

func fenceIsAlwaysAnswered(t *testing.T, w *World) {
	w.A.Fence(1) // never known
	w.session = 1
	number := w.Connect()
	w.A.P.Fence(w.A.Session(number))
	w.A.P.Fence(w.A.Session(number))
	is := func(ev rdma.Event) bool {
		f, ok := ev.(rdma.Fenced)
		return ok && f.Session == w.A.Session(number) && len(f.Open) == 0
	}
	w.A.Await("two answers", func(evs []rdma.Event) bool { return count(evs, is) == 2 })
	// The other side hears of it, and fences too.
	w.B.Await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.B.Session(number) && d.Err != nil
		}) == 1
	})
	w.B.Fence(number)
	// While one side still connects.
	if err := w.A.Connect(number+1, w.B); err != nil {
		t.Fatal(err)
	}
	w.A.Fence(number + 1)
	w.A.Fence(number + 1)
}

func postedAgain(t *testing.T, w *World) {
	const size = 8 << 20
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	Randomize(from, 5)
	to.Fill(canary)
	g := w.Grant(w.B, Whole(to))
	number := w.Connect()
	ws := w.stream(number, 1, g, from, to, 4)
	afterSomeBytes(to, 2)
	w.B.Fence(number)
	w.A.Fence(number)
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome == rdma.Refused {
			t.Errorf("write %d is refused: it could not be posted again", id)
		}
	}
	to.Fill(canary)
	w.A.MustLand(w.Connect(), w.Write(1, g, Contiguous(from, 0, to, 0, size)))
	if !bytes.Equal(to.Memory.Bytes(), from.Memory.Bytes()) {
		t.Error("what was posted again differs from its source")
	}
}
