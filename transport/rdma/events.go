package rdma

import (
	"context"
	"sync"
)

const (
	// staleMax bounds the Stale events that wait for Poll: a peer that sends
	// garbage must not fill the memory of this side. More are dropped.
	staleMax = 1024
)

// Events is the queue between the goroutines of a provider and Poll. The zero
// value is not ready: use NewEvents.
type Events struct {
	ready chan struct{} // holds 1 while something waits, or the queue is closed

	mu      sync.Mutex
	waiting []Event
	taken   uint64                // events that Poll took before waiting[0]
	arrived map[arrivalKey]uint64 // number of the waiting Arrived of this key
	stale   int                   // Stale events in waiting
	closed  bool
}

type arrivalKey struct {
	grant      GrantID
	generation Generation
	stripe     uint32
}

// NewEvents is an empty queue.
func NewEvents() *Events {
	return &Events{ready: make(chan struct{}, 1), arrived: map[arrivalKey]uint64{}}
}

// Push appends an event. An Arrived is added to the one of the same grant,
// generation and stripe if that still waits. After Close it does nothing.
func (q *Events) Push(ev Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	switch ev := ev.(type) {
	case Arrived:
		key := arrivalKey{ev.Grant, ev.Generation, ev.Stripe}
		if n, ok := q.arrived[key]; ok {
			old := q.waiting[n-q.taken].(Arrived)
			old.Count += ev.Count
			old.Bytes += ev.Bytes
			q.waiting[n-q.taken] = old
			return
		}
		q.arrived[key] = q.taken + uint64(len(q.waiting))
	case Stale:
		if q.stale == staleMax {
			return
		}
		q.stale++
	}
	q.waiting = append(q.waiting, ev)
	q.signal()
}

func (q *Events) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Poll is Provider.Poll.
func (q *Events) Poll(ctx context.Context, evs []Event) (int, error) {
	for {
		n, err := q.take(evs)
		if n > 0 || err != nil || len(evs) == 0 {
			return n, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (q *Events) take(evs []Event) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := copy(evs, q.waiting)
	for i, ev := range q.waiting[:n] {
		switch ev := ev.(type) {
		case Arrived:
			delete(q.arrived, arrivalKey{ev.Grant, ev.Generation, ev.Stripe})
		case Stale:
			q.stale--
		}
		q.waiting[i] = nil
	}
	q.taken += uint64(n)
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
		if q.closed && n == 0 {
			return 0, ErrClosed
		}
	}
	if len(q.waiting) > 0 || q.closed {
		q.signal()
	}
	return n, nil
}

// Close lets Poll end once it took what waits.
func (q *Events) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}
