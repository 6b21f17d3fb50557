package tests

import (
	"context"
	"testing"
	"time"

	"kvferry/node"
)

// The caller's context ends while the engine is busy: it opens the room, is
// told to abort it, and keeps its pages for a caller that has gone.
func TestOpenWhoseContextEndsLeaksNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		holder{o.a, o.p.prefill.ID()}.hold(2 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := o.p.prefill.Open(ctx, node.SendRequest{Room: 2, Tokens: 512})
		t.Log(err)
		time.Sleep(5 * time.Minute)
		h, _ := o.p.prefill.Holding(w.ctx(time.Minute))
		if h.PagesFree != h.PagesTotal {
			t.Errorf("nobody has a room, and %d of %d pages are free: %+v", h.PagesFree, h.PagesTotal, h)
		}
	})
}
