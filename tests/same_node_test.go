package tests

import (
	"strings"
	"testing"
	"time"

	"kvferry/kv"
)

// A node does not talk to itself: a pair with engines of both sides on one node is
// refused before the first request, and says why.
func TestBothSidesOnOneNodeAreRefusedWithTheReason(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.start("a", "10.0.0.1")
		w.attach(m, "p", layout(t, smallModel(), 1, 1, 16, kv.NHD, 8), kv.Rank{}, true)
		w.attach(m, "d", layout(t, smallModel(), 1, 1, 16, kv.NHD, 8), kv.Rank{}, false)
		err := m.WaitPaired(w.ctx(10*time.Second), "p", "d")
		if err == nil || !strings.Contains(err.Error(), "same node") || !strings.Contains(err.Error(), "a#") {
			t.Errorf("got %v, want that they are on the same node, and which", err)
		}
	})
}
