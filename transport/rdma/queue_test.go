package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestEventsComeInOrderAndArrivalsAreAddedUp(t *testing.T) {
	q := NewEvents()
	arrived := func(stripe uint32) Arrived { return Arrived{Arrival: Arrival{stripe, 1}, Bytes: 10} }
	q.Push(arrived(0))
	q.Push(Stale{Reason: "x"})
	q.Push(arrived(0))
	q.Push(arrived(1))
	evs := make([]Event, 2)
	n, err := q.Poll(t.Context(), evs)
	if n != 2 || err != nil || evs[0] != (Arrived{Arrival: Arrival{0, 2}, Bytes: 20}) || evs[1] != (Stale{Reason: "x"}) {
		t.Fatalf("got %d %v %v", n, evs, err)
	}
	q.Push(arrived(0)) // the earlier one was taken
	q.Push(arrived(1))
	q.Close()
	evs = make([]Event, 8)
	n, err = q.Poll(t.Context(), evs)
	if n != 2 || err != nil || evs[0] != (Arrived{Arrival: Arrival{1, 2}, Bytes: 20}) || evs[1] != arrived(0) {
		t.Fatalf("got %d %v %v", n, evs[:n], err)
	}
	for range 2 {
		if n, err = q.Poll(t.Context(), evs); n != 0 || !errors.Is(err, ErrClosed) {
			t.Fatalf("got %d %v, want ErrClosed", n, err)
		}
	}
}

func TestPollEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if n, err := NewEvents().Poll(ctx, make([]Event, 1)); n != 0 || !errors.Is(err, why) {
		t.Errorf("got %d %v", n, err)
	}
}

func TestStaleEventsAreBounded(t *testing.T) {
	q := NewEvents()
	for range 2 * staleMax {
		q.Push(Stale{})
	}
	if n, _ := q.Poll(t.Context(), make([]Event, 2*staleMax)); n != staleMax {
		t.Errorf("got %d, want %d", n, staleMax)
	}
}

func TestRoundRobinGivesTagsTurns(t *testing.T) {
	var q RoundRobin[string]
	for i := range 3 {
		q.Push(1, fmt.Sprint("a", i))
	}
	q.Push(2, "b0")
	q.Push(3, "c0")
	var got []string
	for range 3 {
		v, _ := q.Front()
		got = append(got, v)
		q.Pop()
	}
	got = append(got, q.Drop(1)...)
	if want := []string{"a0", "b0", "c0", "a1", "a2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, ok := q.Front(); ok || q.Len() != 0 {
		t.Errorf("%d are left", q.Len())
	}
	q.Push(4, "d0")
	q.Push(5, "e0")
	q.Rotate()
	if got := q.DropAll(); !slices.Equal(got, []string{"e0", "d0"}) || q.Len() != 0 {
		t.Errorf("got %v", got)
	}
}

func TestTagsRememberUnknownUntilToldAndFenced(t *testing.T) {
	fences := NewFences()
	tags := NewTags(fences)
	s := SessionID{Peer: "p", Generation: Generation{Number: 1}}
	if ev, now := tags.Quiesce(7); !now || len(ev.Unknown) != 0 {
		t.Fatal("a tag that was never posted is quiet")
	}
	tags.Posted(7)
	tags.Posted(7)
	if _, now := tags.Quiesce(7); now {
		t.Fatal("two are in flight")
	}
	if due, _ := tags.Completed(7, s, Unknown); due != 0 {
		t.Fatal("one is in flight")
	}
	due, ev := tags.Completed(7, s, Landed)
	if due != 1 || !slices.Equal(ev.Unknown, []SessionID{s}) {
		t.Fatalf("got %d %v", due, ev)
	}
	if ev, now := tags.Quiesce(7); !now || len(ev.Unknown) != 1 {
		t.Fatal("it is told again until the fence")
	}
	fences.End(s)
	tags.Fenced()
	if len(tags.tags) != 0 {
		t.Fatalf("%d tags are left", len(tags.tags))
	}
}

func TestFencesAdmitOnlyWhatIsNewer(t *testing.T) {
	f := NewFences()
	s := func(number, low uint64) SessionID {
		return SessionID{"p", Generation{Number: number, Low: low}}
	}
	live := s(4, 0)
	f.End(s(5, 1))
	for _, c := range []struct {
		session SessionID
		live    *SessionID
		want    error
	}{
		{s(4, 9), nil, ErrFenced},
		{s(5, 1), nil, ErrFenced},
		{s(5, 2), nil, nil},
		{s(6, 0), nil, nil},
		{s(6, 0), &live, ErrFenceFirst},
		{SessionID{Peer: "q"}, nil, nil},
	} {
		if err := f.Admit(c.session, c.live); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%v: got %v, want %v", c.session, err, c.want)
		}
	}
}

func TestRegionsInUseStay(t *testing.T) {
	m, err := NewMemory("regions", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r := NewRegions()
	id := r.Add(m)
	r.Use(id, 1)
	if err := r.Remove(id); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	r.Use(id, -1)
	if err := r.Remove(id); err != nil {
		t.Error(err)
	}
	var re *RangeError
	if err := r.Remove(id); !errors.As(err, &re) {
		t.Errorf("got %v, want *RangeError", err)
	}
}
