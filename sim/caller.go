package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transfer"
)

// request is what the router of a serving stack sends: a prefill leg to each prefill
// engine and a decode leg to each decode engine, and again as another attempt when it
// has failed.
type request struct {
	w        *world
	number   uint64
	attempt  uint32
	length   uint64
	prefix   uint64
	cuts     []uint64 // where chunks end
	legs     []*leg   // of this attempt
	over     bool
	mistaken bool // its caller was wrong in this attempt
	mustLand bool // nothing is wrong any more: it completes
}

// leg is the caller of a room at one engine.
type leg struct {
	request        *request
	id             messages.RoomID
	prefill        bool
	host           *host
	rank           kv.Rank
	engine         *engine
	room           *room
	prefix, length uint64
	next           int // chunk
	ended          bool
	complete       bool
}

const attemptsMost = 3

// callers has requests come.
func (w *world) callers() {
	for n := range w.plan.requests {
		r := w.newRequest(uint64(n + 1))
		w.after(300*time.Millisecond+time.Duration(w.rng.Int64N(int64(w.plan.busyFor))), r.begin)
	}
}

func (w *world) newRequest(number uint64) *request {
	r := &request{w: w, number: number, length: 1 + uint64(w.chance(tokensMost))}
	if w.chance(3) == 0 {
		r.prefix = uint64(w.chance(int(r.length) + 1))
	}
	for at := uint64(0); at < r.length; {
		at = min(r.length, at+1+uint64(w.chance(int(r.length))))
		r.cuts = append(r.cuts, at)
	}
	return r
}

// begin is the next attempt.
func (r *request) begin() {
	w := r.w
	r.attempt++
	r.legs, r.mistaken = nil, false
	w.result.Rooms++
	id := messages.RoomID{Room: r.number, Attempt: r.attempt}
	w.tell("", "", id.String(), "begins: %d tokens, of which %d are there", r.length, r.prefix)
	for _, h := range w.hosts {
		for _, at := range h.engines {
			l := &leg{request: r, id: id, prefill: at.prefill, host: h, rank: at.rank, length: r.length}
			if !at.prefill {
				l.prefix = r.prefix
			}
			r.legs = append(r.legs, l)
			w.after(time.Duration(w.chance(30))*time.Millisecond, l.open)
		}
	}
}

// open asks the engine that is there now.
func (l *leg) open() {
	if l.ended || l.id.Attempt != l.request.attempt {
		l.end(false)
		return
	}
	p := l.host.now
	if p == nil || p.stopped {
		l.end(false)
		return
	}
	for _, e := range p.engines {
		if e.id.Rank == l.rank && e.prefill == l.prefill {
			l.engine = e
		}
	}
	l.engine.open(l)
}

// opened: the pages are there.
func (l *leg) opened() {
	if l.prefill {
		l.compute()
	}
}

// compute fills the next chunk, a little later, and says so; then the one after.
func (l *leg) compute() {
	w := l.request.w
	w.after(time.Duration(w.chance(40))*time.Millisecond, func() {
		l.engine.p.do(func() {
			r := l.room
			if l.ended || r == nil || !r.holding || r.freed || l.next >= len(l.request.cuts) {
				return
			}
			c := transfer.Chunk{To: l.request.cuts[l.next], Source: r.place, Last: l.next == len(l.request.cuts)-1}
			if l.next > 0 {
				c.From = l.request.cuts[l.next-1]
			}
			write := func() {
				l.engine.eachRow(r.place, c.From, c.To, func(row kv.Row, b []byte) { fill(b, l.id, row) })
				if c.Last {
					l.engine.eachState(r.place, l.length, func(row kv.Row, b []byte) { fill(b, l.id, row) })
					l.engine.stampMeta(r.place.MetaRow, l.id)
				}
			}
			l.next++
			if !w.calm && w.plan.has(callerErrors) && w.chance(8) == 0 {
				c = l.mistaken(c)
			}
			if w.bug("before-computed") && w.chance(4) == 0 {
				r.step(c)
				w.after(5*time.Millisecond, func() {
					if r.holding {
						write()
					}
				})
			} else {
				write()
				r.step(c)
			}
			l.compute()
		})
	})
}

// mistaken is what a caller that is wrong says: a chunk that leaves a gap, or is there
// already, or ends the request early or late. No such room may complete with what was
// never said.
func (l *leg) mistaken(c transfer.Chunk) transfer.Chunk {
	w := l.request.w
	w.covered.add(coverMistake)
	l.request.mistaken = true
	switch w.chance(4) {
	case 0:
		c.From++
	case 1:
		c.From -= min(c.From, 1+uint64(w.chance(3)))
	case 2:
		c.To += 1 + uint64(w.chance(3))
	default:
		c.Last = !c.Last
	}
	w.tell(l.host.name, "", l.id.String(), "its caller says tokens %d to %d, last %v, by mistake", c.From, c.To, c.Last)
	return c
}

// fill is what prefill computes: it differs by room, attempt and place, and has none of
// the bytes that memory holds where nothing is.
func fill(b []byte, id messages.RoomID, r kv.Row) {
	for i := range b {
		b[i] = byte(id.Room*31+uint64(id.Attempt)*17+uint64(len(r.Component.Name))*7+uint64(r.Layer)*61+uint64(r.Head)*13+r.Row*5+uint64(i)*3) & 0x7F
	}
}

// refused is the answer to a leg that was not opened.
func (l *leg) refused(why *messages.Cause) {
	l.request.w.tell(l.host.name, "", l.id.String(), "refused: %s", why.GetText())
	l.end(false)
}

func (l *leg) engineDied() { l.end(false) }

// finished is how the room ended, for its caller. It frees the pages when it has read
// them.
func (l *leg) finished(f transfer.Finish) {
	w := l.request.w
	r, p := l.room, l.engine.p
	hold := time.Duration(w.chance(20)) * time.Millisecond
	if !w.calm && w.plan.has(holdPages) {
		hold = w.between(0, 2*time.Second)
	}
	w.after(hold, func() { p.do(func() { l.free(r) }) })
	l.end(f.Outcome.GetComplete())
}

// free gives the pages back, and looks once more at what they hold.
func (l *leg) free(r *room) {
	if !l.prefill && l.complete {
		r.check("when it is freed")
	}
	r.free()
}

// end is the end of a leg, and with the last one of the attempt.
func (l *leg) end(complete bool) {
	if l.ended {
		return
	}
	l.ended, l.complete = true, complete
	r := l.request
	if l.id.Attempt != r.attempt || slices.ContainsFunc(r.legs, func(x *leg) bool { return !x.ended }) {
		return
	}
	w := r.w
	whole := !slices.ContainsFunc(r.legs, func(x *leg) bool { return !x.complete })
	if whole {
		w.result.Complete++
	}
	switch {
	case whole:
		r.over = true
	case r.mustLand || w.plan.mild():
		w.fail("not-complete", "room %d failed although nothing is wrong", r.number)
	case int(r.attempt) < attemptsMost && !w.calm:
		w.after(w.between(10*time.Millisecond, 400*time.Millisecond), r.begin)
	default:
		r.over = true
	}
}

// truth is what is known of one room, from outside.
type truth struct {
	w        *world
	id       messages.RoomID
	complete string // who said so
	failed   string
}

func (w *world) truth(id messages.RoomID) *truth {
	t := w.truths[id]
	if t == nil {
		t = &truth{w: w, id: id}
		w.truths[id] = t
	}
	return t
}

// heard checks that a room has one outcome, and that a complete one has the right bytes.
func (t *truth) heard(r *room, f transfer.Finish) {
	switch {
	case f.Outcome.GetCause().GetKind() == messages.CauseKind_CAUSE_UNKNOWN_OUTCOME:
		if !slices.ContainsFunc(t.w.plan.kinds, faultKind.apart) {
			t.w.fail("unknown-outcome", "%s does not know how room %s ended, and no connection has ended", r.who(), t.id)
		}
		return
	case f.Excused, r.engine.prefill && !r.granted:
		return
	case f.Outcome.GetComplete():
		t.complete = r.who()
	default:
		t.failed = fmt.Sprintf("%s (%s)", r.who(), f.Outcome.GetCause().GetText())
	}
	if t.complete != "" && t.failed != "" {
		t.w.fail("two-outcomes", "room %s is complete at %s, and failed at %s", t.id, t.complete, t.failed)
	}
	if f.Outcome.GetComplete() && !r.engine.prefill {
		r.check("when it completes")
		for _, s := range r.engine.p.card.sessions {
			if s.owes(r) {
				t.w.fail("not-arrived", "room %s completes at %s before all that landed is told", t.id, r.who())
			}
		}
	}
}

// check compares what a receiver holds with what prefill computed.
func (r *room) check(when string) {
	w := r.engine.p.w
	if r.leg == nil || !r.holding {
		return
	}
	want := make([]byte, 8)
	same := func(row kv.Row, b []byte) {
		fill(want[:len(b)], r.id, row)
		if !bytes.Equal(b, want[:len(b)]) {
			w.fail("wrong-bytes", "%s, %s of room %s: %s of layer %d, head %d, row %d is %x, want %x",
				when, r.who(), r.id, row.Component.Name, row.Layer, row.Head, row.Row, b, want[:len(b)])
		}
	}
	r.engine.eachRow(r.place, r.leg.prefix, r.leg.length, same)
	r.engine.eachState(r.place, r.leg.length, same)
	w.covered.add(coverChecked)
}
