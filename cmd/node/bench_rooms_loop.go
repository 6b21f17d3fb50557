package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/node"
)

// errRoundOver ends the waiting of rooms at prefill when decode takes no more.
var errRoundOver = errors.New("the round is over")

// failure keeps the first thing that went wrong in a round, and ends it.
type failure struct {
	once sync.Once
	err  error
	end  context.CancelCauseFunc
}

func (f *failure) set(err error) {
	f.once.Do(func() {
		f.err = err
		f.end(err)
	})
}

// receive is the loop at decode: as many callers as rooms are wanted in flight, each
// of which asks for the next room when its own has completed. Rooms are numbered on
// both sides alike, in the order in which they begin.
func (n *roomsNode) receive(ctx context.Context, o *roomsOrder) (*roomsAnswer, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var (
		failed  = failure{end: end}
		next    atomic.Uint64
		callers sync.WaitGroup
		samples = make([][]sample, o.InFlight)
	)
	next.Store(o.First)
	began := time.Now()
	stop := began.Add(o.Duration)
	for i := range samples {
		callers.Go(func() {
			for first := true; ctx.Err() == nil && (first || time.Now().Before(stop)); first = false {
				s, err := n.receiveRoom(ctx, next.Add(1)-1, o)
				if err != nil {
					failed.set(err)
					return
				}
				samples[i] = append(samples[i], s)
			}
		})
	}
	callers.Wait()
	used := n.used()
	if failed.err != nil {
		return nil, failed.err
	}
	var all []sample
	for _, s := range samples {
		all = append(all, s...)
	}
	return &roomsAnswer{Next: next.Load(), Rooms: len(all), Figures: roomFiguresOf(all, began, stop), CPU: used}, nil
}

func (n *roomsNode) receiveRoom(ctx context.Context, id uint64, o *roomsOrder) (sample, error) {
	began := time.Now()
	room, err := n.open(ctx, id, o.Tokens)
	if err != nil {
		return sample{}, fmt.Errorf("room %d: %w", id, err)
	}
	result, err := room.Wait(ctx)
	end := time.Now()
	if err := roomFailed(id, result, err); err != nil {
		return sample{}, err
	}
	if o.Check {
		var d damage
		at := room.Place()
		n.cache.check(&d, id, &at, 0, o.Tokens)
		if d.bytes > 0 {
			return sample{}, fmt.Errorf("room %d: %d bytes are wrong, the first: %s", id, d.bytes, d.first)
		}
	}
	room.Free()
	return sample{end, end.Sub(began)}, nil
}

// send is the loop at prefill: some more callers than at decode. It ends when it is
// told before which room: those that follow have no receiver and are aborted.
func (n *roomsNode) send(ctx context.Context, o *roomsOrder) (*roomsAnswer, error) {
	over, end := context.WithCancelCause(ctx)
	defer end(nil)
	var (
		failed  = failure{end: end}
		next    atomic.Uint64
		until   atomic.Uint64
		callers sync.WaitGroup
	)
	next.Store(o.First)
	until.Store(math.MaxUint64)
	for range o.InFlight + aheadOf(o.InFlight) {
		callers.Go(func() {
			for {
				id := next.Add(1) - 1
				if id >= until.Load() {
					return
				}
				if err := n.sendRoom(ctx, over, id, until.Load, o); err != nil {
					until.Store(0)
					failed.set(err)
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		callers.Wait()
		close(ended)
	}()
	var used time.Duration
	select {
	case stop := <-n.orders:
		used = n.used() // not for those that are given up now
		until.Store(stop.Until)
		end(errRoundOver)
	case <-ended: // a room failed
	case <-ctx.Done():
		failed.set(context.Cause(ctx))
	}
	<-ended
	if failed.err != nil && !errors.Is(failed.err, errRoundOver) {
		return nil, failed.err
	}
	return &roomsAnswer{Next: next.Load(), CPU: used}, nil
}

// sendRoom plays one room. over ends when the round does: then rooms from until on
// are given up.
func (n *roomsNode) sendRoom(ctx, over context.Context, id uint64, until func() uint64, o *roomsOrder) error {
	s, err := n.prefill.Open(ctx, node.SendRequest{Room: id, Tokens: o.Tokens})
	if err != nil {
		return fmt.Errorf("room %d: %w", id, err)
	}
	if o.Check {
		at := s.Place()
		n.cache.fill(id, &at, 0, o.Tokens)
	}
	s.Chunk(o.Tokens)
	result, err := s.Wait(over)
	if err != nil && ctx.Err() == nil {
		if id >= until() {
			s.Abort(errRoundOver.Error())
		}
		result, err = s.Wait(ctx)
	}
	s.Free()
	if id >= until() {
		return nil
	}
	return roomFailed(id, result, err)
}

// roomFailed is why a room that has ended did not complete; nil: it did.
func roomFailed(id uint64, r node.Result, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("room %d: %w", id, err)
	case !r.Complete:
		return fmt.Errorf("room %d failed: %s", id, r.Cause)
	}
	return nil
}
