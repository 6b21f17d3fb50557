// Package bench measures how fast this machine moves the bytes of KV caches, by
// providers of transport/rdma and by loops that do nothing but move: its ceilings.
// A run takes both in turn, round by round, so that what slows the machine meanwhile
// slows both. It prints nothing.
//
// Memory is as engines have it: pools that are much larger than the caches, in which
// the rows of a request lie in no order. 1 GB is 1e9 bytes.
package bench

import (
	"context"
	"slices"
	"syscall"
	"time"
)

// Rate is what one measurement moved.
type Rate struct {
	Bytes   uint64
	Elapsed time.Duration
	CPU     time.Duration // user and system, of every process that took part
}

// GBPerS is the throughput.
func (r Rate) GBPerS() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Bytes) / 1e9 / r.Elapsed.Seconds()
}

// cpuPerGB is the seconds of processors that a GB took.
func (r Rate) cpuPerGB() float64 {
	if r.Bytes == 0 {
		return 0
	}
	return r.CPU.Seconds() / (float64(r.Bytes) / 1e9)
}

// Median is the middle of some numbers, or between the two in the middle; 0 of none.
func Median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}

// subject is something that is measured, once a round.
type subject struct {
	name string
	// run moves writes for as long as d, and at least so many of them.
	run   func(ctx context.Context, d time.Duration, least int) (Rate, error)
	pass  int // writes that touch everything once
	rates []Rate
}

func (s *subject) median(of func(Rate) float64) float64 {
	all := make([]float64, len(s.rates))
	for i, r := range s.rates {
		all[i] = of(r)
	}
	return Median(all)
}

func (s *subject) gbPerS() float64 { return s.median(Rate.GBPerS) }

// takeTurns measures each subject once a round, every other round from the last to
// the first: then a machine that gets slower, or faster, favours nobody. Before the
// first round each moves everything once: page tables and socket buffers are made.
func takeTurns(ctx context.Context, subjects []*subject, rounds int, d time.Duration) error {
	for _, s := range subjects {
		if _, err := s.run(ctx, 0, s.pass); err != nil {
			return err
		}
	}
	order := slices.Clone(subjects)
	for range rounds {
		for _, s := range order {
			r, err := s.run(ctx, d, 1)
			if err != nil {
				return err
			}
			s.rates = append(s.rates, r)
		}
		slices.Reverse(order)
	}
	return nil
}

// best is the fastest of some subjects.
func best(of []*subject) *subject {
	return slices.MaxFunc(of, func(a, b *subject) int {
		switch x, y := a.gbPerS(), b.gbPerS(); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

// because is why a measurement has failed: when ctx is done, what was ended by it says
// all kinds of things.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is no such error for arguments that are right
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
