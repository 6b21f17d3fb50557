package sim

import "time"

// epoch is where every clock begins.
var epoch = time.Unix(1_000_000, 0)

// clock is that of a host, which only goes forward, as a monotonic one does: at a rate of
// its own, and with jumps when the host was suspended.
type clock struct {
	ppm  int64         // faster than the world, in millionths
	skip time.Duration // jumps so far
}

// read is what it shows at a time of the world.
func (c *clock) read(now time.Duration) time.Time {
	return epoch.Add(now + time.Duration(int64(now)*c.ppm/1_000_000) + c.skip)
}

// when is the first time of the world, not before now, at which it shows t.
func (c *clock) when(now time.Duration, t time.Time) time.Duration {
	if !c.read(now).Before(t) {
		return now
	}
	want := t.Sub(epoch) - c.skip
	at := max(now, time.Duration(int64(want)*1_000_000/(1_000_000+c.ppm)))
	for c.read(at).Before(t) {
		at += max(time.Microsecond, t.Sub(c.read(at))*9/10)
	}
	return at
}
