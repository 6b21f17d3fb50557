package sim

import (
	"fmt"
	"time"
)

// Line is one thing that happened.
type Line struct {
	At   time.Duration `json:"-"`
	Ms   float64       `json:"ms"`
	Who  string        `json:"who"`            // a node, an engine, or "" for the world
	Peer string        `json:"peer,omitempty"` // the other side
	Room string        `json:"room,omitempty"`
	What string        `json:"what"`
}

// Violation is an invariant that did not hold.
type Violation struct {
	Rule string        `json:"rule"` // short, the same for one kind
	Text string        `json:"text"`
	At   time.Duration `json:"-"`
}

func (v *Violation) Error() string { return fmt.Sprintf("%s: %s (at %v)", v.Rule, v.Text, v.At) }

// tell adds a line to the story, when somebody reads it.
func (w *world) tell(who, peer, room, format string, args ...any) {
	if w.options.Story == nil {
		return
	}
	w.options.Story(Line{
		At: w.now, Ms: float64(w.now.Microseconds()) / 1000, Who: who, Peer: peer, Room: room, What: fmt.Sprintf(format, args...),
	})
}

// fail notes the first violation; the world then stops.
func (w *world) fail(rule, format string, args ...any) {
	if w.failed != nil {
		return
	}
	w.failed = &Violation{Rule: rule, Text: fmt.Sprintf(format, args...), At: w.now}
	w.tell("", "", "", "VIOLATION %s: %s", rule, w.failed.Text)
}

// note mixes what happened into the digest of the day.
func (w *world) note(kind byte, numbers ...uint64) {
	h := w.digest ^ uint64(kind)
	h = (h ^ uint64(w.now)) * 1099511628211
	for _, n := range numbers {
		h = (h ^ n) * 1099511628211
		h ^= h >> 29
	}
	w.digest = h
}
