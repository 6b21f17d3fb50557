package pairing

import "time"

// backoff is when something unacknowledged is said again: after wait, which
// doubles each time.
type backoff struct {
	at   time.Time // zero: not
	wait time.Duration
}

// reset makes the next wait the shortest one.
func (b *backoff) reset() { *b = backoff{} }

// next arms the timer. jitter is a random number, or 0 for none: of each wait the
// half is fixed and the half chance, so that two sides do not stay in step.
func (b *backoff) next(now time.Time, least, most time.Duration, jitter uint64) {
	b.wait = min(max(2*b.wait, least), most)
	b.at = now.Add(spread(b.wait, jitter))
}

// spread is a duration from d/2 to d.
func spread(d time.Duration, jitter uint64) time.Duration {
	half := d / 2
	return d - half + time.Duration(jitter%uint64(half+1))
}
