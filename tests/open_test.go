package tests

import (
	"context"
	"testing"
	"time"

	"kvferry/actors"
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

// What a caller says of its room is not taken for another caller's room of the
// same id: neither by one that came second and stopped waiting, nor by one whose
// room ended long ago.
func TestCallersSpeakForTheirOwnRoomAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		const room, tokens = 1, 512
		opened := func() (*node.Send, *node.Receive) {
			s, r := o.open(room, tokens), o.recv(room, tokens)
			s.Chunk(256)
			return s, r
		}
		ends := func(when string, s *node.Send, r *node.Receive) {
			t.Helper()
			s.Chunk(tokens)
			for _, wait := range []func(context.Context) (node.Result, error){s.Wait, r.Wait} {
				if got, err := wait(w.ctx(time.Minute)); err != nil || !got.Complete {
					t.Errorf("%s: the room ended with %+v, %v, want complete", when, got, err)
				}
			}
			for _, e := range []interface {
				Holding(context.Context) (actors.Holding, error)
			}{o.p.prefill, o.d.decode} {
				if h, err := e.Holding(w.ctx(time.Minute)); err != nil || h.PagesFree == h.PagesTotal {
					t.Errorf("%s: the caller has not freed its pages and all %d are free, %v", when, h.PagesTotal, err)
				}
			}
		}

		s1, r1 := opened()
		holder{o.a, o.p.prefill.ID()}.hold(2 * time.Second)
		holder{o.b, o.d.decode.ID()}.hold(2 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := o.p.prefill.Open(ctx, node.SendRequest{Room: room, Tokens: tokens}); err == nil {
			t.Error("prefill opened the room twice")
		}
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := o.d.decode.Receive(ctx, node.ReceiveRequest{Room: room, Prefill: "p", Length: tokens}); err == nil {
			t.Error("decode opened the room twice")
		}
		ends("second caller", s1, r1)
		s1.Free()
		r1.Free()
		time.Sleep(time.Hour) // the room is forgotten, and its id may be used again

		s2, r2 := opened()
		s1.Chunk(tokens)
		s1.Abort("late")
		r1.Abort("late")
		s1.Free()
		r1.Free()
		ends("old caller", s2, r2)
		s1.Free()
		r1.Free()
		ends("old caller, after the end", s2, r2)
		s2.Free()
		r2.Free()
	})
}
