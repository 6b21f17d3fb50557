package tests

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/kv"
	"kvferry/node"
)

// pair is two instances of small engines: prefill TP 2 on two nodes, token-major
// pages of 16; decode TP 1, head-major pages of 8.
type pair struct {
	w       *world
	prefill []*engine
	decode  *engine
	nodes   []*member
}

func newPair(w *world) *pair {
	p := &pair{w: w}
	from := layout(w.t, smallModel(), 2, 1, 16, kv.NHD, 64)
	to := layout(w.t, smallModel(), 1, 1, 8, kv.HND, 128)
	for tp := range 2 {
		m := w.start(fmt.Sprintf("prefill-%d", tp), fmt.Sprintf("10.0.0.%d", tp+1))
		p.nodes = append(p.nodes, m)
		p.prefill = append(p.prefill, w.attach(m, "p", from, kv.Rank{TP: tp}, true))
	}
	m := w.start("decode-0", "10.0.0.3")
	p.nodes = append(p.nodes, m)
	p.decode = w.attach(m, "d", to, kv.Rank{}, false)
	return p
}

func (p *pair) wait() {
	p.w.t.Helper()
	for _, m := range p.nodes {
		if m.down {
			continue
		}
		if err := m.WaitPaired(p.w.ctx(30*time.Second), "p", "d"); err != nil {
			p.w.t.Fatal(err)
		}
	}
}

// ask is one room of a test.
type ask struct {
	room    uint64
	attempt uint32
	prefix  uint64
	length  uint64
	wait    time.Duration
}

// send runs the prefill leg on every rank: opened rank by rank, as the ranks of
// one engine do in step, then filled and sent in chunks that cut pages.
func (p *pair) send(q ask) []node.Result {
	results := make([]node.Result, len(p.prefill))
	sends := make([]*node.Send, len(p.prefill))
	for i, e := range p.prefill {
		s, err := e.prefill.Open(p.w.ctx(5*time.Minute), node.SendRequest{Room: q.room, Attempt: q.attempt, Tokens: q.length, Wait: q.wait})
		if err != nil {
			results[i] = node.Result{Cause: err.Error()}
			continue
		}
		sends[i] = s
	}
	for i, s := range sends {
		for from := uint64(0); s != nil && from < q.length; {
			to := min(from+21, q.length)
			p.prefill[i].fill(q.room, s.Place(), from, to)
			s.Chunk(to)
			from = to
		}
	}
	for i, s := range sends {
		if s == nil {
			continue
		}
		var err error
		defer s.Free()
		if results[i], err = s.Wait(p.w.ctx(5 * time.Minute)); err != nil {
			p.w.t.Errorf("room %d: send: %v", q.room, err)
		}
	}
	return results
}

func (p *pair) receive(q ask) node.Result {
	r, err := p.decode.decode.Receive(p.w.ctx(5*time.Minute), node.ReceiveRequest{
		Room: q.room, Attempt: q.attempt, Prefill: "p", Prefix: q.prefix, Length: q.length, Wait: q.wait,
	})
	if err != nil {
		return node.Result{Cause: err.Error()}
	}
	result, err := r.Wait(p.w.ctx(5 * time.Minute))
	if err != nil {
		p.w.t.Errorf("room %d: receive: %v", q.room, err)
	}
	if result.Complete {
		p.decode.check(q.room, r.Place(), q.prefix, q.length)
	}
	r.Free()
	return result
}

// carry runs both legs of a room, the one that is named first first.
func (p *pair) carry(q ask, prefillFirst bool) (sent []node.Result, received node.Result) {
	got := make(chan node.Result)
	begin := func() { go func() { got <- p.receive(q) }() }
	if !prefillFirst {
		begin()
		time.Sleep(100 * time.Millisecond)
		return p.send(q), <-got
	}
	go func() { time.Sleep(100 * time.Millisecond); begin() }()
	sent = p.send(q)
	return sent, <-got
}

// sendTo is carry without waiting for the decode leg: its node may die.
func (p *pair) sendTo(q ask) ([]node.Result, error) {
	r, err := p.decode.decode.Receive(p.w.ctx(time.Minute), node.ReceiveRequest{
		Room: q.room, Attempt: q.attempt, Prefill: "p", Prefix: q.prefix, Length: q.length, Wait: q.wait,
	})
	if err == nil {
		defer r.Free()
	}
	return p.send(q), err
}

// atRest requires that nothing is held but what tests hold on purpose.
func (p *pair) atRest() {
	p.w.t.Helper()
	time.Sleep(3 * time.Minute) // virtual: rooms linger to tell who does not answer
	for _, e := range append([]*engine{p.decode}, p.prefill...) {
		if e == nil {
			continue
		}
		var err error
		var h = struct{ free, total, rows, rowsTotal uint32 }{}
		var rooms int
		if e.prefill != nil {
			got, e := e.prefill.Holding(p.w.ctx(time.Second))
			err, rooms = e, got.Rooms
			h.free, h.total, h.rows, h.rowsTotal = got.PagesFree, got.PagesTotal, got.RowsFree, got.RowsTotal
		} else {
			got, e := e.decode.Holding(p.w.ctx(time.Second))
			err, rooms = e, got.Rooms
			h.free, h.total, h.rows, h.rowsTotal = got.PagesFree, got.PagesTotal, got.RowsFree, got.RowsTotal
		}
		if err != nil {
			continue // its node is gone
		}
		if h.free != h.total || h.rows != h.rowsTotal || rooms != 0 {
			p.w.t.Errorf("not at rest: %d of %d pages and %d of %d rows are free, %d rooms are open", h.free, h.total, h.rows, h.rowsTotal, rooms)
		}
	}
}

func (p *pair) complete(sent []node.Result, received node.Result) {
	p.w.t.Helper()
	for i, s := range sent {
		if !s.Complete {
			p.w.t.Errorf("prefill rank %d: %s", i, s.Cause)
		}
	}
	if !received.Complete {
		p.w.t.Errorf("decode: %s", received.Cause)
	}
}

func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f(t, w)
		w.close()
	})
}

func TestRoomsArriveInEitherOrder(t *testing.T) {
	for _, prefillFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("prefill first %v", prefillFirst), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				p := newPair(w)
				p.wait()
				p.complete(p.carry(ask{room: 7, length: 100}, prefillFirst))
				p.complete(p.carry(ask{room: 8, prefix: 37, length: 93}, prefillFirst))
				sent, received := p.carry(ask{room: 9, prefix: 64, length: 64}, prefillFirst) // all cached: only the metadata row
				p.complete(sent, received)
				if sent[0].Excused == sent[1].Excused {
					t.Errorf("excused are %v and %v, want all but the one that wrote the metadata row", sent[0].Excused, sent[1].Excused)
				}
				p.atRest()
			})
		})
	}
}

func TestSendsBeforePairingAreQueued(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w) // and no wait: nobody has said hello yet
		p.complete(p.carry(ask{room: 1, length: 50}, true))
		p.atRest()
	})
}

func TestManyRoomsShareTwoSmallPools(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		const rooms = 40 // of 256 tokens: the prefill pool holds four at once
		done := make(chan bool)
		for i := range rooms {
			go func() {
				sent, received := p.carry(ask{room: uint64(100 + i), length: 256, wait: 4 * time.Minute}, i%2 == 0)
				p.complete(sent, received)
				done <- true
			}()
		}
		for range rooms {
			<-done
		}
		p.atRest()
	})
}

func TestDeadDecodeNodeEndsItsRoomsWithThatReason(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		ended := make(chan node.Result)
		for _, e := range p.prefill {
			s, err := e.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: 5, Tokens: 100})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				r, _ := s.Wait(w.ctx(time.Minute))
				s.Free()
				ended <- r
			}()
			e.fill(5, s.Place(), 0, 50)
			s.Chunk(50)
		}
		if _, err := p.decode.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 5, Prefill: "p", Length: 100}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.crash(p.nodes[2])
		p.decode = nil
		since := time.Now()
		for range p.prefill {
			r := <-ended
			if r.Complete || !strings.Contains(r.Cause, "decode-0") {
				t.Errorf("ended with %+v, want a cause that names decode-0", r)
			}
		}
		if took := time.Since(since); took > 5*time.Second {
			t.Errorf("took %v, want at most 5s", took)
		}
		p.atRest()
	})
}

func TestDeadPrefillRankFailsItsRoomsAndTheOthersGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		r, err := p.decode.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 5, Prefill: "p", Length: 100})
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.prefill[0].prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: 5, Tokens: 100})
		if err != nil {
			t.Fatal(err)
		}
		s.Chunk(100)
		time.Sleep(time.Second)
		w.crash(p.nodes[1])
		got, err := r.Wait(w.ctx(10 * time.Second))
		r.Free()
		s.Free()
		if err != nil || got.Complete || !strings.Contains(got.Cause, "prefill-1") {
			t.Errorf("decode ended with %+v, %v; want a cause that names prefill-1", got, err)
		}
		if got, err := s.Wait(w.ctx(10 * time.Second)); err != nil || got.Complete || !strings.Contains(got.Cause, "prefill-1") {
			t.Errorf("prefill ended with %+v, %v; want a cause that names prefill-1", got, err)
		}
		p.prefill = p.prefill[:1]
		p.atRest()

		// Another life of the rank, at the same address: everything works again.
		m := w.start("prefill-1", "10.0.0.2")
		p.nodes[1] = m
		p.prefill = append(p.prefill, w.attach(m, "p", layout(t, smallModel(), 2, 1, 16, kv.NHD, 64), kv.Rank{TP: 1}, true))
		p.wait()
		p.complete(p.carry(ask{room: 6, length: 70}, false))
		p.atRest()
	})
}

func TestPartitionFailsRoomsAndHeals(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		p.complete(p.carry(ask{room: 1, length: 64}, true))
		w.net.Split([]string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})
		w.data.Cut("10.0.0.1", "10.0.0.3")
		w.data.Cut("10.0.0.2", "10.0.0.3")
		got := p.receive(ask{room: 2, length: 64, wait: 20 * time.Second})
		if got.Complete || got.Cause == "" {
			t.Errorf("a room across the partition: %+v", got)
		}
		time.Sleep(2 * time.Minute) // longer than gossip remembers the dead
		w.net.HealAll()
		w.data.Heal("10.0.0.1", "10.0.0.3")
		w.data.Heal("10.0.0.2", "10.0.0.3")
		p.wait()
		p.complete(p.carry(ask{room: 3, length: 64}, false))
		p.atRest()
	})
}

func TestAbortOnEitherSideReachesTheOther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		for i, side := range []string{"prefill", "decode"} {
			room := uint64(10 + i)
			r, err := p.decode.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: room, Prefill: "p", Length: 100})
			if err != nil {
				t.Fatal(err)
			}
			var sends []*node.Send
			for _, e := range p.prefill {
				s, err := e.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: room, Tokens: 100})
				if err != nil {
					t.Fatal(err)
				}
				s.Chunk(40)
				sends = append(sends, s)
			}
			time.Sleep(time.Second)
			if side == "prefill" {
				sends[1].Abort("the client went away")
			} else {
				r.Abort("the client went away")
			}
			got, err := r.Wait(w.ctx(10 * time.Second))
			r.Free()
			if err != nil || got.Complete || !strings.Contains(got.Cause, "the client went away") {
				t.Errorf("%s aborts: decode hears %+v, %v", side, got, err)
			}
			for _, s := range sends {
				s.Free()
				if got, err := s.Wait(w.ctx(10 * time.Second)); err != nil || got.Complete || !strings.Contains(got.Cause, "the client went away") {
					t.Errorf("%s aborts: prefill hears %+v, %v", side, got, err)
				}
			}
		}
		p.atRest()
	})
}

func TestALaterAttemptSupersedes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		r, err := p.decode.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 4, Prefill: "p", Length: 64})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p.complete(p.carry(ask{room: 4, attempt: 1, length: 64}, false))
		got, err := r.Wait(w.ctx(10 * time.Second))
		r.Free()
		if err != nil || got.Complete || !strings.Contains(got.Cause, "attempt") {
			t.Errorf("the first attempt ended with %+v, %v", got, err)
		}
		p.atRest()
	})
}

func TestMismatchedDeploymentsAreRefusedBeforeTheFirstRequest(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		other := smallModel()
		other.Components[0].HeadBytes = 64
		a, b := w.start("a", "10.0.0.1"), w.start("b", "10.0.0.2")
		w.attach(a, "p", layout(t, smallModel(), 1, 1, 16, kv.NHD, 8), kv.Rank{}, true)
		w.attach(b, "d", layout(t, other, 1, 1, 16, kv.NHD, 8), kv.Rank{}, false)
		err := b.WaitPaired(w.ctx(10*time.Second), "p", "d")
		if err == nil || !strings.Contains(err.Error(), "head_bytes") || !strings.Contains(err.Error(), "64") {
			t.Errorf("got %v, want the field and both values", err)
		}
	})
}

// An engine may compute into its pages after the room has failed elsewhere: they
// are nobody else's before it says that it stopped.
func TestPagesStayTheCallersUntilTheyAreFreed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		const all = 64 * 16 // tokens: every page of the prefill pool
		r, err := p.decode.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Prefix: all / 2, Length: all})
		if err != nil {
			t.Fatal(err)
		}
		var sends []*node.Send
		for _, e := range p.prefill {
			s, err := e.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: 1, Tokens: all})
			if err != nil {
				t.Fatal(err)
			}
			s.Chunk(100)
			sends = append(sends, s)
		}
		time.Sleep(time.Second)
		r.Abort("the client went away")
		for _, s := range sends {
			if got, err := s.Wait(w.ctx(10 * time.Second)); err != nil || got.Complete {
				t.Fatalf("prefill ended with %+v, %v", got, err)
			}
		}
		time.Sleep(2 * time.Minute) // the room is forgotten; its pages are not
		q := node.SendRequest{Room: 2, Tokens: 1, Wait: time.Second}
		if s, err := p.prefill[0].prefill.Open(w.ctx(time.Minute), q); err == nil {
			t.Fatalf("pages %v were given away while their engine may compute into them", s.Pages().Pages)
		}
		for _, s := range sends {
			s.Free()
		}
		r.Free()
		p.complete(p.carry(ask{room: 3, length: all}, true))
		p.atRest()
	})
}
