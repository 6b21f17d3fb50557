package tests

import (
	"testing"
	"time"
)

// Nodes that leave at the same time do not wait for each other.
func TestNodesLeaveTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		p.complete(p.carry(ask{room: 1, length: 50}, true))
		time.Sleep(time.Second)
		since := time.Now()
		closed := make(chan error)
		for _, m := range p.nodes {
			m.down = true
			go func() { closed <- m.Close(w.ctx(20 * time.Second)) }()
		}
		for range p.nodes {
			if err := <-closed; err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if took := time.Since(since); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
