package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/node"
)

// Two ranks of one decode instance on one node.
func TestRanksOfOneInstanceMayShareANode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a", "10.0.0.1"), w.start("b", "10.0.0.2")
		pl := layout(t, smallModel(), 1, 1, 16, kv.NHD, 64)
		dl := layout(t, smallModel(), 2, 1, 8, kv.HND, 128)
		p := w.attach(a, "p", pl, kv.Rank{}, true)
		var ds []*engine
		for tp := range 2 {
			ds = append(ds, w.attach(b, "d", dl, kv.Rank{TP: tp}, false))
		}
		if err := b.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
			t.Fatal(err)
		}
		var rs []*node.Receive
		for _, d := range ds {
			r, err := d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 64})
			if err != nil {
				t.Fatal(err)
			}
			rs = append(rs, r)
		}
		s, err := p.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: 1, Tokens: 64})
		if err != nil {
			t.Fatal(err)
		}
		p.fill(1, s.Place(), 0, 64)
		s.Chunk(64)
		since := time.Now()
		got, err := s.Wait(w.ctx(5 * time.Minute))
		t.Logf("send %+v %v after %v", got, err, time.Since(since))
		if !got.Complete {
			t.Error("not complete")
		}
		for _, r := range rs {
			got, err := r.Wait(w.ctx(5 * time.Minute))
			t.Logf("receive %+v %v after %v", got, err, time.Since(since))
		}
	})
}

// Two prefill instances on one node.
func TestTwoInstancesMayShareNodes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.start("a", "10.0.0.1"), w.start("b", "10.0.0.2")
		pl := layout(t, smallModel(), 1, 1, 16, kv.NHD, 64)
		dl := layout(t, smallModel(), 1, 1, 8, kv.HND, 128)
		d := w.attach(b, "d", dl, kv.Rank{}, false)
		p := w.attach(a, "p", pl, kv.Rank{}, true)
		q := w.attach(a, "q", pl, kv.Rank{}, true)
		for _, n := range []string{"p", "q"} {
			if err := a.WaitPaired(w.ctx(30*time.Second), n, "d"); err != nil {
				t.Fatal(err)
			}
		}
		for i, e := range []*engine{p, q} {
			room := uint64(i + 1)
			r, err := d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: room, Prefill: []string{"p", "q"}[i], Length: 64})
			if err != nil {
				t.Fatal(err)
			}
			s, err := e.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: room, Tokens: 64})
			if err != nil {
				t.Fatal(err)
			}
			e.fill(room, s.Place(), 0, 64)
			s.Chunk(64)
			got, err := s.Wait(w.ctx(5 * time.Minute))
			if !got.Complete {
				t.Errorf("instance %d: %+v %v", i, got, err)
			}
			r.Wait(w.ctx(time.Minute))
			r.Free()
		}
	})
}

type one struct {
	w      *world
	a, b   *member
	p, d   *engine
	pl, dl *kv.Instance
}

// newOne: prefill 64 pages of 16, decode 128 pages of 8: 1024 tokens each.
func newOne(w *world) *one {
	o := &one{w: w, a: w.start("a", "10.0.0.1"), b: w.start("b", "10.0.0.2")}
	o.pl = layout(w.t, smallModel(), 1, 1, 16, kv.NHD, 64)
	o.dl = layout(w.t, smallModel(), 1, 1, 8, kv.HND, 128)
	o.p = w.attach(o.a, "p", o.pl, kv.Rank{}, true)
	o.d = w.attach(o.b, "d", o.dl, kv.Rank{}, false)
	for _, m := range []*member{o.a, o.b} {
		if err := m.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
			w.t.Fatal(err)
		}
	}
	return o
}

func (o *one) open(room uint64, tokens uint64) *node.Send {
	o.w.t.Helper()
	s, err := o.p.prefill.Open(o.w.ctx(10*time.Minute), node.SendRequest{Room: room, Tokens: tokens})
	if err != nil {
		o.w.t.Fatal(err)
	}
	return s
}

func (o *one) recv(room uint64, length uint64) *node.Receive {
	o.w.t.Helper()
	r, err := o.d.decode.Receive(o.w.ctx(10*time.Minute), node.ReceiveRequest{Room: room, Prefill: "p", Length: length})
	if err != nil {
		o.w.t.Fatal(err)
	}
	return r
}

// A failed room's source pages go to the next room while its caller computes.
func TestSourcePagesOfAFailedRoomAreNotReusedUnderItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		r1 := o.recv(1, 512)
		s1 := o.open(1, 512)
		o.p.fill(1, s1.Place(), 0, 100)
		s1.Chunk(100)
		time.Sleep(time.Second)
		r1.Abort("client went away") // prefill's caller does not know yet: it computes
		time.Sleep(time.Second)
		r2 := o.recv(2, 512)
		s2 := o.open(2, 512)
		o.p.fill(2, s2.Place(), 0, 512)
		o.p.fill(1, s1.Place(), 100, 200) // the step that was under way for room 1
		s1.Chunk(200)
		s2.Chunk(512)
		got, _ := r2.Wait(w.ctx(time.Minute))
		if got.Complete {
			o.d.check(2, r2.Place(), 0, 512)
		}
		r2.Free()
	})
}

// A later attempt whose earlier one lingers blocks the whole engine.
func TestAnEndedAttemptKeepsNobodyWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		// prefill instance "x" is not there (yet): the room waits for it.
		r, err := o.d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 4, Prefill: "x", Length: 64, Wait: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		r.Abort("client went away")
		if got, err := r.Wait(w.ctx(time.Second)); err != nil {
			t.Fatal(got, err)
		}
		go o.d.decode.Receive(w.ctx(9*time.Minute), node.ReceiveRequest{Room: 4, Attempt: 1, Prefill: "p", Length: 64, Wait: 9 * time.Minute})
		time.Sleep(time.Second)
		since := time.Now()
		_, err = o.d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 5, Prefill: "p", Length: 64, Wait: 5 * time.Minute})
		if err != nil || time.Since(since) > time.Second {
			h, _ := o.d.decode.Holding(w.ctx(time.Second))
			t.Errorf("an unrelated room: %v after %v; %+v", err, time.Since(since), h)
		}
		time.Sleep(12 * time.Minute)
	})
}

// Two attempts in the queue: the later one never supersedes the earlier.
func TestALaterAttemptSupersedesOneThatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		big := o.open(1, 1024)
		opened := make(chan string, 2)
		for attempt := range uint32(2) {
			go func() {
				s, err := o.p.prefill.Open(w.ctx(10*time.Minute), node.SendRequest{Room: 2, Attempt: attempt, Tokens: 64, Wait: 5 * time.Minute})
				if s != nil {
					time.AfterFunc(20*time.Second, func() { s.Abort("x") })
				}
				opened <- fmt.Sprint(attempt, " ", err)
			}()
			time.Sleep(time.Second)
		}
		big.Abort("enough")
		big.Free()
		since := time.Now()
		for range 2 {
			select {
			case m := <-opened:
				t.Log(m, time.Since(since))
			case <-time.After(10 * time.Second):
				t.Error("the later attempt waits for the earlier one, which nobody ends")
				time.Sleep(10 * time.Minute)
				return
			}
		}
	})
}

// An Open that waits for pages while its room, known by a grant, fails: the
// caller is never told the end.
func TestRoomThatFailedWhileItsCallerWaitedForPagesIsNotOpened(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("acknowledgements lost ", cut), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				o := newOne(w)
				big := o.open(1, 1024)
				r := o.recv(2, 64)
				time.Sleep(time.Second) // the grant comes to prefill
				var s *node.Send
				opened := make(chan error, 1)
				go func() {
					var err error
					s, err = o.p.prefill.Open(w.ctx(10*time.Minute), node.SendRequest{Room: 2, Tokens: 64, Wait: 2 * time.Minute})
					opened <- err
				}()
				time.Sleep(time.Second)
				if cut {
					w.net.CutOneWay("10.0.0.1", "10.0.0.2")
				}
				r.Abort("client went away")
				time.Sleep(500 * time.Millisecond)
				big.Abort("enough")
				big.Free()
				err := <-opened
				t.Log("open:", err)
				if err != nil {
					w.net.HealAll()
					return
				}
				w.net.HealAll()
				since := time.Now()
				got, err := s.Wait(w.ctx(5 * time.Minute))
				t.Errorf("a room that decode aborted was opened; its caller was told %+v, %v after %v", got, err, time.Since(since))
			})
		})
	}
}

// Abort of a room that waits for pages and is known by a grant.
func TestAbortOfAWaitingRoomThatAGrantOpened(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		big := o.open(1, 1024)
		r := o.recv(2, 512)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := o.p.prefill.Open(ctx, node.SendRequest{Room: 2, Tokens: 512, Wait: 5 * time.Minute})
		t.Log(err)
		got, _ := r.Wait(w.ctx(time.Minute))
		t.Log(got)
		time.Sleep(time.Second)
		big.Abort("enough")
		big.Free()
		time.Sleep(10 * time.Second)
		h, _ := o.p.prefill.Holding(w.ctx(time.Second))
		t.Logf("%+v", h)
		if h.Rooms != 0 || h.PagesFree != h.PagesTotal || h.Waiting != 0 {
			t.Errorf("everybody gave up, and prefill holds %+v", h)
		}
	})
}

// Detach twice; the second returns before anything is ended. Re-attach meanwhile.
func TestAttachAgainWaitsForTheEndOfTheOldEngine(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		plant, killed := killOnce(engineActor("d-dp0-pp0-cp0-tp0"), func(m any) bool {
			_, ok := m.(*actors.GrantArrived)
			return ok
		})
		w.config = func(host string, c *node.Config) {
			plant(c)
			if host == "10.0.0.2" {
				c.Embed.Providers[0] = slowRevoke(c.Embed.Providers[0])
			}
		}
		o := newOne(w)
		o.recv(1, 64)
		s := o.open(1, 64)
		o.p.fill(1, s.Place(), 0, 64)
		s.Chunk(32)
		time.Sleep(5 * time.Millisecond)
		if !killed.Load() {
			t.Fatal("not killed")
		}
		o.d = w.attach(o.b, "d", o.dl, kv.Rank{}, false)
		if err := o.b.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		r := o.recv(2, 64)
		s = o.open(2, 64)
		o.p.fill(2, s.Place(), 0, 64)
		s.Chunk(64)
		got, err := r.Wait(w.ctx(5 * time.Minute))
		if !got.Complete {
			t.Errorf("a room after the engine was attached again: %+v, %v", got, err)
		}
		r.Free()
	})
}

func TestDetachOfADeadEngineWaitsForItsGrants(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var slow *slowRevoker
		w.config = func(host string, c *node.Config) {
			if host == "10.0.0.2" {
				slow = slowRevoke(c.Embed.Providers[0])
				c.Embed.Providers[0] = slow
			}
		}
		o := newOne(w)
		o.recv(1, 64)
		s := o.open(1, 64)
		o.p.fill(1, s.Place(), 0, 64)
		s.Chunk(32)
		time.Sleep(5 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if err := o.d.decode.Detach(ctx); err == nil {
			t.Fatal("the first Detach returned")
		}
		if err := o.d.decode.Detach(w.ctx(time.Minute)); err == nil && slow.pending() > 0 {
			t.Errorf("Detach returned while %d grants are not closed", slow.pending())
		}
		time.Sleep(10 * time.Second)
	})
}

// Callers of an engine that is gone.
func TestCallsOnADetachedEngineAreAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		if err := o.p.prefill.Detach(w.ctx(time.Minute)); err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		_, err := o.p.prefill.Open(w.ctx(time.Hour), node.SendRequest{Room: 2, Tokens: 512})
		t.Log(err)
		if time.Since(since) > time.Minute {
			t.Errorf("Open on a detached engine took %v: %v", time.Since(since), err)
		}
	})
}

// Close with a waiter that expires while no room is open.
func TestDrainEndsWithALastWaiterThatExpires(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		s := o.open(1, 1024)
		r := o.recv(1, 1024)
		o.p.fill(1, s.Place(), 0, 1024)
		s.Chunk(1024)
		if got, err := r.Wait(w.ctx(time.Minute)); !got.Complete {
			t.Fatal(got, err)
		}
		go o.d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 2, Prefill: "p", Length: 64, Wait: 10 * time.Second})
		time.Sleep(time.Second)
		since := time.Now()
		if err := o.b.Close(w.ctx(5 * time.Minute)); err != nil {
			t.Errorf("close: %v after %v", err, time.Since(since))
		}
		o.b.down = true
	})
}

// Close whose context ends during the drain.
func TestCloseNeverReturnsWhileTheProviderRuns(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		closed := make(chan struct{})
		w.config = func(host string, c *node.Config) {
			if host == "10.0.0.2" {
				c.Embed.Providers[0] = &watchClose{Provider: c.Embed.Providers[0], closed: closed}
			}
		}
		o := newOne(w)
		o.recv(1, 64)
		err := o.b.Close(w.ctx(time.Second))
		t.Log(err)
		select {
		case <-closed:
		default:
			t.Error("Close returned before the provider was closed")
		}
		o.b.down = true
		time.Sleep(time.Minute)
	})
}

// An engine that dies while the node drains.
func TestDrainEndsWithAnEngineThatDies(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		plant, killed := killOnce(engineActor("d-dp0-pp0-cp0-tp0"), func(m any) bool {
			_, ok := m.(*actors.AbortRoom)
			return ok
		})
		w.config = func(host string, c *node.Config) { plant(c) }
		o := newOne(w)
		r := o.recv(1, 64)
		go func() { time.Sleep(time.Second); r.Abort("x") }()
		since := time.Now()
		if err := o.b.Close(w.ctx(2 * time.Minute)); err != nil {
			t.Errorf("close: %v after %v", err, time.Since(since))
		}
		o.b.down = true
		if !killed.Load() {
			t.Fatal("not killed")
		}
	})
}

// Abort, then Free, of a room that completes all the same.
func TestFreeBeforeTheOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		r := o.recv(1, 64)
		s := o.open(1, 64)
		o.p.fill(1, s.Place(), 0, 64)
		r.Free() // the caller has gone: whatever comes, it wants none of it
		s.Chunk(64)
		got, _ := s.Wait(w.ctx(time.Minute))
		time.Sleep(time.Minute)
		h, _ := o.d.decode.Holding(w.ctx(time.Second))
		if h.PagesFree != h.PagesTotal {
			t.Errorf("complete %v, and %d of %d pages are free", got.Complete, h.PagesFree, h.PagesTotal)
		}
	})
}

// The same room and attempt again, while its pages are held.
func TestSameRoomIsRefusedWhileItsPagesAreHeld(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		var rs []*node.Receive
		for i := range 2 {
			r, err := o.d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 64})
			if err != nil && i == 1 {
				rs[0].Free()
				return // refused: right
			}
			s := o.open(1, 64)
			o.p.fill(1, s.Place(), 0, 64)
			s.Chunk(64)
			if got, err := r.Wait(w.ctx(time.Minute)); !got.Complete {
				t.Error(i, got, err)
			}
			rs = append(rs, r)
			time.Sleep(3 * time.Minute) // the record is forgotten; decode computes
		}
		rs[0].Free()
		rs[1].Free()
		time.Sleep(time.Second)
		h, _ := o.d.decode.Holding(w.ctx(time.Second))
		if h.PagesFree != h.PagesTotal {
			t.Errorf("%d of %d pages are free", h.PagesFree, h.PagesTotal)
		}
	})
}

// Bad requests.
func TestBadRequestsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		for _, q := range []node.ReceiveRequest{
			{Room: 1, Prefill: "", Length: 64},
			{Room: 2, Prefill: "p", Prefix: 1 << 62, Length: 1 << 62},
			{Room: 3, Prefill: "nobody", PrefillDP: -1, Length: 64},
		} {
			r, err := o.d.decode.Receive(w.ctx(time.Minute), q)
			if err != nil {
				continue
			}
			got, err := r.Wait(w.ctx(time.Minute))
			t.Errorf("%+v: opened, then %+v %v", q, got, err)
		}
	})
}

// Two large rooms, each alone in a pool.
func TestTwoFullPoolsDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		since := time.Now()
		done := make(chan node.Result)
		recv := func(room uint64) {
			r, err := o.d.decode.Receive(w.ctx(10*time.Minute), node.ReceiveRequest{Room: room, Prefill: "p", Length: 1024, Wait: 5 * time.Minute})
			if err != nil {
				done <- node.Result{Cause: err.Error()}
				return
			}
			got, _ := r.Wait(w.ctx(10 * time.Minute))
			r.Free()
			done <- got
		}
		send := func(room uint64) {
			s, err := o.p.prefill.Open(w.ctx(10*time.Minute), node.SendRequest{Room: room, Tokens: 1024, Wait: 5 * time.Minute})
			if err != nil {
				done <- node.Result{Cause: err.Error()}
				return
			}
			s.Chunk(1024)
			got, _ := s.Wait(w.ctx(10 * time.Minute))
			s.Free()
			done <- got
		}
		go recv(1)
		go send(2)
		time.Sleep(time.Second)
		go send(1)
		go recv(2)
		for range 4 {
			got := <-done
			if !got.Complete || time.Since(since) > time.Minute {
				t.Errorf("%v after %v: %s", got.Complete, time.Since(since), got.Cause)
			}
		}
	})
}

// 64 rooms of a dead prefill in front of the queue.
func TestInquiriesReachTheWholeQueue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		recv := func(room uint64, prefill string, out chan error) {
			_, err := o.d.decode.Receive(w.ctx(10*time.Minute), node.ReceiveRequest{Room: room, Prefill: prefill, Length: 96 * 8 / 2, Wait: 5 * time.Minute})
			if out != nil {
				out <- err
			}
		}
		for i := range 70 {
			go recv(uint64(100+i), "elsewhere", nil)
		}
		time.Sleep(time.Second)
		o.open(1, 64*4)
		out := make(chan error, 1)
		go func() {
			_, err := o.d.decode.Receive(w.ctx(10*time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 64 * 4, Wait: 5 * time.Minute})
			out <- err
		}()
		select {
		case err := <-out:
			t.Log(err)
		case <-time.After(20 * time.Second):
			h, _ := o.d.decode.Holding(w.ctx(time.Second))
			t.Errorf("a room that prefill has announced gets no pages: %+v", h)
		}
		time.Sleep(12 * time.Minute)
	})
}

// Decode aborts a room that waits in its queue; prefill is not told.
func TestDroppedWaitingDecodeRoomIsDeclined(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		x := o.open(1, 512)
		r := o.recv(1, 1024) // holds the pool
		s := o.open(2, 512)
		defer x.Abort("x")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		o.d.decode.Receive(ctx, node.ReceiveRequest{Room: 2, Prefill: "p", Length: 512, Wait: 5 * time.Minute})
		since := time.Now()
		got, err := s.Wait(w.ctx(10 * time.Minute))
		t.Log(got, err)
		if time.Since(since) > 5*time.Second {
			t.Errorf("prefill heard after %v: %s", time.Since(since), got.Cause)
		}
		r.Abort("x")
	})
}
