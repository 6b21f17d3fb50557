package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Many plays the seeds from first to first+n-1 on all processors, and calls each with the
// results, in the order of the seeds, from one goroutine. It ends early with the context, or
// when each says false. digest is of all days that each was told of.
func Many(ctx context.Context, first, n uint64, o Options, each func(Result) bool) (digest uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const ahead = 1024 // results that wait for one before them
	var next atomic.Uint64
	room := make(chan struct{}, ahead)
	done := make(chan Result, ahead)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				k := next.Add(1) - 1
				if k >= n || ctx.Err() != nil {
					return
				}
				done <- Run(first+k, o)
			}
		})
	}
	go func() {
		workers.Wait()
		close(done)
	}()
	digest = 14695981039346656037
	waiting, at := map[uint64]Result{}, first
	for r := range done {
		waiting[r.Seed] = r
		for {
			r, ok := waiting[at]
			if !ok {
				break
			}
			delete(waiting, at)
			at++
			<-room
			digest = (digest ^ r.Digest) * 1099511628211
			if ctx.Err() == nil && !each(r) {
				cancel()
			}
		}
	}
	return digest
}

// Shrink leaves out faults of a day that fails, as long as the same rule is broken, and
// returns those that are left, by number, and how the day goes with them alone.
func Shrink(seed uint64, o Options) (left []int, r Result) {
	o.Story = nil
	play := func(keep map[int]bool) Result {
		p := o
		p.Keep = func(n int) bool { return keep[n] }
		return Run(seed, p)
	}
	r = Run(seed, o)
	if r.Failed == nil {
		return nil, r
	}
	rule, keep := r.Failed.Rule, map[int]bool{}
	for n := range r.Faults {
		keep[n] = true
	}
	for again := true; again; {
		again = false
		for n := range r.Faults {
			if !keep[n] {
				continue
			}
			delete(keep, n)
			if t := play(keep); t.Failed != nil && t.Failed.Rule == rule {
				r, again = t, true
				continue
			}
			keep[n] = true
		}
	}
	for n := range r.Faults {
		if keep[n] {
			left = append(left, n)
		}
	}
	return left, play(keep)
}
