package main

import (
	"slices"
	"syscall"
	"time"
)

// sample is one room, or one request, that ended.
type sample struct {
	end  time.Time
	took time.Duration
}

// steadySamples is how many samples it takes to leave the beginning and the end of a
// round out: with fewer, one more or less changes the rate.
const steadySamples = 100

// roomFiguresOf is the rate and the times of what ended in the last four fifths before
// stop, when the loop was in its stride; of few samples, of all from beginning to end.
func roomFiguresOf(samples []sample, began, stop time.Time) roomFigures {
	from := began.Add(stop.Sub(began) / 5)
	var took []time.Duration
	for _, s := range samples {
		if s.end.After(from) && !s.end.After(stop) {
			took = append(took, s.took)
		}
	}
	span := stop.Sub(from)
	if len(took) < steadySamples {
		took, span = nil, 0
		for _, s := range samples {
			took, span = append(took, s.took), max(span, s.end.Sub(began))
		}
	}
	slices.Sort(took)
	f := roomFigures{P50: percentile(took, 50), P99: percentile(took, 99)}
	if span > 0 {
		f.PerS = float64(len(took)) / span.Seconds()
	}
	return f
}

// usedCPU is the time of processors that this process has used.
func usedCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are right
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
