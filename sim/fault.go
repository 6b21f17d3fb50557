package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transfer"
)

// faultKind is one way in which a day goes wrong.
type faultKind uint8

const (
	cutControlWay faultKind = iota // one way between two hosts, actors' messages
	cutDataWay                     // one way, the card's packets
	cutGossipWay                   // one way, gossip
	partition                      // some hosts from the others, all of it
	cutHost                        // one host from all, actors' messages and gossip
	crash                          // a process dies; another begins at the same address
	pause                          // a process is stopped, and goes on
	clockJump                      // a host's clock jumps
	dropSession                    // a connection breaks by itself
	strayFence                     // somebody asks for a fence
	abortRoom                      // a caller gives up
	preempt                        // a request begins again while the attempt before is open
	lostPieces                     // packets are lost: writes end as unknown, and have not landed
	lostAcks                       // answers are lost: writes end as unknown, and have landed
	latePieces                     // writes end as unknown, and land later
	slowHost                       // a receiver takes long
	holdPages                      // callers free late, so pools are full
	otherVersion                   // a process comes back that speaks another protocol version
	cutLink                        // one link of several, all of it, both ways
	nicLoss                        // a host's network card loses its link: sessions break
	oldMessages                    // messages come once more, seconds later
	callerErrors                   // callers say chunks that cannot be
	faultKinds
)

func (k faultKind) String() string {
	return [...]string{
		"cut control", "cut data", "cut gossip", "partition", "cut host", "crash", "pause", "clock jump", "drop session", "stray fence", "abort",
		"preempt", "lost writes", "lost acks", "late writes", "slow receiver", "full pools", "other version", "cut link", "nic loss", "old messages",
		"caller errors",
	}[k]
}

// has says whether a kind of fault may happen on this day.
func (p *plan) has(k faultKind) bool { return slices.Contains(p.kinds, k) }

// always are the kinds that are there all the time, not once.
func (k faultKind) always() bool {
	switch k {
	case lostPieces, lostAcks, latePieces, slowHost, holdPages, oldMessages, callerErrors:
		return true
	}
	return false
}

// apart says whether a pair of nodes may have no connection by it, so that one of them
// does not hear how a room ended.
func (k faultKind) apart() bool {
	switch k {
	case cutControlWay, cutGossipWay, partition, cutHost, crash, pause, clockJump, otherVersion, cutLink,
		cutDataWay, nicLoss, dropSession, strayFence, lostPieces, lostAcks, latePieces: // their sessions end
		return true
	}
	return false
}

// faults draws what goes wrong, and when.
func (w *world) faults() {
	w.plan.slowReceiver = -1
	var once []faultKind
	for _, k := range w.plan.kinds {
		w.covered.faults[k]++
		if !k.always() {
			once = append(once, k)
		}
		if k == slowHost {
			w.plan.slowReceiver = w.chance(len(w.hosts))
		}
	}
	if len(once) == 0 {
		return
	}
	for n := range w.plan.faults {
		k := once[w.chance(len(once))]
		at := time.Duration(w.rng.Int64N(int64(w.plan.calmAt - 100*time.Millisecond)))
		a, b, d := w.chance(len(w.hosts)), w.chance(len(w.hosts)), w.between(50*time.Millisecond, 4*time.Second)
		w.result.Faults++
		if w.options.Keep != nil && !w.options.Keep(n) {
			continue
		}
		w.after(at, func() {
			if !w.calm {
				w.strike(n, k, w.hosts[a], w.hosts[b], d)
			}
		})
	}
}

// fate is what becomes of a piece of a write.
type fate uint8

const (
	arrives fate = iota
	pieceLost
	ackLost
	pieceLate
)

func (w *world) fateOf() fate {
	if w.calm {
		return arrives
	}
	n := w.chance(100)
	for _, f := range []struct {
		kind faultKind
		fate fate
		rate int
	}{{lostPieces, pieceLost, 6}, {lostAcks, ackLost, 6}, {latePieces, pieceLate, 8}} {
		if w.plan.has(f.kind) {
			if n < f.rate {
				return f.fate
			}
			n -= f.rate
		}
	}
	return arrives
}

// strike has one fault happen.
func (w *world) strike(n int, k faultKind, a, b *host, d time.Duration) {
	w.tell("", "", "", "fault %d: %s, %s and %s, %v", n, k, a.name, b.name, d)
	w.note('!', uint64(n), uint64(k))
	way := map[faultKind]plane{cutControlWay: control, cutDataWay: data, cutGossipWay: gossip}
	switch k {
	case cutControlWay, cutDataWay, cutGossipWay:
		if a != b {
			w.setCut(way[k], a, b, true)
			w.after(d, func() { w.setCut(way[k], a, b, false) })
		}
	case partition:
		side := func(h *host) bool { return (h.index+a.index)%2 == 0 }
		w.cutAll(func(x, y *host, _ plane) bool { return side(x) != side(y) }, d)
	case cutHost:
		w.cutAll(func(x, y *host, p plane) bool { return p != data && (x == a || y == a) }, d)
	case cutLink:
		w.cutAll(func(x, y *host, _ plane) bool { return x == a && y == b || x == b && y == a }, d)
	case nicLoss:
		w.cutAll(func(x, y *host, p plane) bool { return p == data && (x == a || y == a) }, d)
		if a.now != nil {
			for _, s := range slices.Clone(a.now.card.sessions) {
				s.disconnect(errors.New("the port is down"))
			}
		}
	case crash, otherVersion:
		if a.now == nil {
			return
		}
		a.now.crash()
		if k == otherVersion {
			a.version = [2]uint32{messages.ProtocolVersion + 1, messages.ProtocolVersion + 1}
		}
		w.after(d/4, func() {
			if a.now == nil {
				w.start(a)
			}
		})
	case pause:
		if a.now != nil {
			a.now.stop()
			p := a.now
			w.after(d, p.resume)
		}
	case clockJump:
		a.clock.skip += d
	case dropSession:
		if p := a.now; p != nil && len(p.card.sessions) > 0 {
			s := p.card.sessions[n%len(p.card.sessions)]
			if s.up {
				s.disconnect(fmt.Errorf("a fault"))
			}
		}
	case strayFence:
		if p := a.now; p != nil && len(p.links) > 0 {
			l := p.links[n%len(p.links)]
			p.do(func() { p.step(l, pairing.FenceWanted{Reason: "a fault"}) })
		}
	case abortRoom:
		if r := w.someRoom(a, n); r != nil {
			r.engine.p.do(func() {
				r.step(transfer.Abort{Cause: r.engine.cause(messages.CauseKind_CAUSE_ABORTED, "the caller gave up")})
			})
		}
	case preempt:
		if r := w.someRoom(a, n); r != nil && r.leg != nil && !r.leg.request.over && r.id.Attempt == r.leg.request.attempt && int(r.id.Attempt) < attemptsMost {
			r.leg.request.begin()
		}
	}
}

// someRoom is a room of a host whose caller waits for it.
func (w *world) someRoom(h *host, n int) *room {
	if h.now == nil {
		return nil
	}
	e := h.now.engines[n%len(h.now.engines)]
	for _, r := range e.rooms {
		if r.leg != nil && !r.leg.ended && r.machine != nil {
			return r
		}
	}
	return nil
}

// cutAll cuts all ways that are such, for a while.
func (w *world) cutAll(such func(x, y *host, p plane) bool, d time.Duration) {
	each := func(cut bool) {
		for _, x := range w.hosts {
			for _, y := range w.hosts {
				for p := range planes {
					if x != y && such(x, y, p) {
						w.setCut(p, x, y, cut)
					}
				}
			}
		}
	}
	each(true)
	w.after(d, func() { each(false) })
}

// stop is SIGSTOP, or a garbage collector that takes long.
func (p *process) stop() {
	if !p.dead && !p.stopped {
		p.stopped = true
		p.w.reconsider()
	}
}

// resume has it go on: what came meanwhile is first.
func (p *process) resume() {
	if p.dead || !p.stopped {
		return
	}
	p.stopped = false
	p.w.tell(p.id.Name, "", "", "goes on")
	for _, what := range p.backlog {
		p.soon(what)
	}
	p.backlog = nil
	p.w.reconsider()
}

// makeCalm ends the faults: nothing is cut, lost or late, and every host runs.
func (w *world) makeCalm() {
	if w.failed != nil {
		return
	}
	w.calm = true
	w.tell("", "", "", "the faults are over")
	for p := range planes {
		for way := range w.plan.cut[p] {
			delete(w.plan.cut[p], way)
		}
	}
	for _, h := range w.hosts {
		if h.version[0] != messages.ProtocolVersionMin {
			h.version = [2]uint32{messages.ProtocolVersionMin, messages.ProtocolVersion}
			if h.now != nil {
				h.now.crash()
			}
		}
		if h.now == nil {
			w.start(h)
		} else {
			h.now.resume()
		}
	}
	w.reconsider()
}
