package actors

import (
	"slices"
	"time"
)

// Waiting is the callers that wait for pages, in the order in which they came.
// Nobody overtakes: a large request is not starved by small ones.
type Waiting[T any] struct {
	entries []waiting[T]
}

type waiting[T any] struct {
	value T
	until time.Time
}

// Len is how many wait.
func (w *Waiting[T]) Len() int { return len(w.entries) }

// Add puts a caller at the end.
func (w *Waiting[T]) Add(v T, until time.Time) {
	w.entries = append(w.entries, waiting[T]{v, until})
}

// First is the first in the queue that may go.
func (w *Waiting[T]) First(may func(T) bool) (T, bool) {
	for _, e := range w.entries {
		if may(e.value) {
			return e.value, true
		}
	}
	var none T
	return none, false
}

// Has says whether one of those that wait is it.
func (w *Waiting[T]) Has(is func(T) bool) bool {
	return slices.ContainsFunc(w.entries, func(e waiting[T]) bool { return is(e.value) })
}

// Each calls f with those that wait, in order, until f says false.
func (w *Waiting[T]) Each(f func(T) bool) {
	for _, e := range w.entries {
		if !f(e.value) {
			return
		}
	}
}

// Remove takes out those for which gone is true, and returns them.
func (w *Waiting[T]) Remove(gone func(T) bool) []T {
	var out []T
	kept := w.entries[:0]
	for _, e := range w.entries {
		if gone(e.value) {
			out = append(out, e.value)
		} else {
			kept = append(kept, e)
		}
	}
	clear(w.entries[len(kept):])
	w.entries = kept
	return out
}

// Expired takes out those whose time is over at now, and returns them.
func (w *Waiting[T]) Expired(now time.Time) []T {
	var out []T
	kept := w.entries[:0]
	for _, e := range w.entries {
		if now.Before(e.until) {
			kept = append(kept, e)
		} else {
			out = append(out, e.value)
		}
	}
	clear(w.entries[len(kept):])
	w.entries = kept
	return out
}

// Due is when the next one's time is over; the zero time when nobody waits.
func (w *Waiting[T]) Due() time.Time {
	var due time.Time
	for _, e := range w.entries {
		if due.IsZero() || e.until.Before(due) {
			due = e.until
		}
	}
	return due
}
