// Package times is read by TestTimesAreFound, and never built.
package times

import "time"

const patience = 3 * time.Second

const (
	count = 7
	rest  = time.Minute
)

func wait() { time.Sleep(5*time.Second + count + patience + rest) }
