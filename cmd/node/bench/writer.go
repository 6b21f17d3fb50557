package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kvferry/transport/rdma"
)

// writer posts the writes of a layout to a provider, around and around, and keeps the
// provider busy.
type writer struct {
	layout   *layout
	provider rdma.Provider
	session  rdma.SessionID
	far      far
	usage    usage
	landed   *uint64 // bytes of all writers of the provider

	writes  []*rdma.Write
	waiting []bool // which of them are not complete
	window  int
	next    int // write
	evs     [64]rdma.Event
}

func (s *sender) writer(l *layout) *writer {
	w := &writer{
		layout: l, provider: s.provider, session: s.session, far: s.far, usage: s.usage, landed: &s.landed,
		waiting: make([]bool, l.writes), window: int(min(windowWrites, max(writesMin, windowBytes/l.writeBytes()))),
	}
	for i := range l.writes {
		w.writes = append(w.writes, &rdma.Write{
			ID: rdma.WriteID(i), Tag: 1, Grant: s.grant, Copies: []rdma.Copy{l.copyOf(i, s.region, s.target)},
		})
	}
	return w
}

// run is one measurement: what it wrote is checked afterwards.
func (w *writer) run(ctx context.Context, d time.Duration, least int) (Rate, error) {
	if _, err := w.far.ask(order{Do: doClear, Spec: w.layout.Spec}); err != nil {
		return Rate{}, err
	}
	before, err := w.usage()
	if err != nil {
		return Rate{}, err
	}
	first, start := w.next, time.Now()
	n, err := w.write(ctx, start, d, least)
	if err != nil {
		return Rate{}, fmt.Errorf("%s: %w", w.provider.Name(), err)
	}
	r := Rate{Bytes: uint64(n) * w.layout.writeBytes(), Elapsed: time.Since(start)}
	after, err := w.usage()
	if err != nil {
		return Rate{}, err
	}
	r.CPU = after - before
	*w.landed += r.Bytes
	a, err := w.far.ask(order{Do: doCheck, Spec: w.layout.Spec, First: first, Landed: n, Bytes: *w.landed})
	if err == nil && a.Wrong > 0 {
		err = &WrongBytesError{Spec: w.layout.Spec, Wrong: a.Wrong, Checked: a.Checked}
	}
	if err != nil {
		return Rate{}, fmt.Errorf("%s: %w", w.provider.Name(), err)
	}
	return r, nil
}

// write posts writes for as long as d, and at least so many of them, and waits until
// they have landed. It returns how many they were.
func (w *writer) write(ctx context.Context, start time.Time, d time.Duration, least int) (int, error) {
	posted, landed := 0, 0
	for {
		over := posted >= least && time.Since(start) >= d
		if over && landed == posted {
			return landed, nil
		}
		for !over && posted-landed < w.window && !w.waiting[w.next] {
			err := w.provider.Post(w.session, w.writes[w.next:w.next+1])
			if errors.Is(err, rdma.ErrFull) && posted > landed {
				break
			}
			if err != nil {
				return landed, err
			}
			w.waiting[w.next] = true
			w.next = (w.next + 1) % len(w.writes)
			posted++
			over = posted >= least && time.Since(start) >= d
		}
		n, err := w.complete(ctx)
		if err != nil {
			return landed, err
		}
		landed += n
	}
}

// complete waits for events, and counts the writes that have landed.
func (w *writer) complete(ctx context.Context) (landed int, err error) {
	n, err := w.provider.Poll(ctx, w.evs[:])
	for _, ev := range w.evs[:n] {
		switch ev := ev.(type) {
		case rdma.Completed:
			if ev.Outcome != rdma.Landed {
				return landed, fmt.Errorf("a write is %s: %w", ev.Outcome, ev.Err)
			}
			w.waiting[ev.ID] = false
			landed++
		case rdma.Disconnected:
			return landed, fmt.Errorf("the session was lost: %w", ev.Err)
		}
	}
	return landed, err
}
