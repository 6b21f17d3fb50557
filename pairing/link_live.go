package pairing

import (
	"time"

	"kvferry/messages"
)

// liveness is whether the peer answers.
type liveness struct {
	pings  uint64    // sequence of the last ping
	pingAt time.Time // when both agree on a generation: the end of this interval
	heard  bool      // something came in this interval
	asked  bool      // a ping was sent before it
	told   [2]uint64 // our last numbers when this interval began, and the one before it
	missed int       // intervals, or hellos, without an answer
	good   int       // while suspect: intervals with one

	probeAt   time.Time // limit of the probe; zero: none
	probePing uint64    // pongs from here on answer it
}

// ping asks the peer, and says which generation we believe in.
func (l *Link) ping() {
	l.pings++
	l.asked = true
	l.transmit(l.c.Peer, &messages.Ping{Sequence: l.pings, Generation: messages.GenerationWire(l.gen), NumberSeen: l.taken})
}

// onPingDue ends an interval. A peer from which something came is not asked,
// unless it is suspect.
func (l *Link) onPingDue() {
	switch {
	case l.heard:
		l.missed = 0
		if l.good++; l.suspect && l.good >= l.c.Limits.TrustAfter {
			l.setSuspect(false)
		}
	case l.asked:
		l.good = 0
		l.unanswered()
	}
	l.told = [2]uint64{l.sent, l.told[0]}
	quiet := !l.heard
	l.heard, l.asked = false, false
	if quiet || l.suspect {
		l.ping()
	}
	l.pingAt = l.now.Add(l.c.Limits.PingEvery)
}

// unanswered counts one question that got no answer.
func (l *Link) unanswered() {
	if l.missed++; l.missed >= l.c.Limits.SuspectAfter && l.greeted {
		l.setSuspect(true)
	}
}

func (l *Link) setSuspect(s bool) {
	if s != l.suspect {
		l.suspect, l.good = s, 0
		l.emit(SuspectChanged{Suspect: s})
	}
}

// deaf says whether a ping shows that the peer does not hear us: what was sent an
// interval ago has not come. Such a ping is no sign that the pair is well.
func (l *Link) deaf(p *messages.Ping) bool { return p != nil && p.GetNumberSeen() < l.told[1] }

// onPing answers. A peer that believes in another generation than ours has moved
// on: numbers put its ping behind all that it said about ours.
func (l *Link) onPing(p *messages.Ping) {
	if l.confirms(p) {
		l.confirm()
	} else if l.agreed() && p.GetGeneration().Rdma() != l.gen {
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "it gave up the generation"))
	}
	l.transmit(l.c.Peer, &messages.Pong{Sequence: p.GetSequence(), Generation: messages.GenerationWire(l.gen)})
}

func (l *Link) onPong(p *messages.Pong) {
	if !l.probeAt.IsZero() && p.GetSequence() >= l.probePing {
		l.probed(true)
	}
	if l.agreed() && p.GetSequence() >= l.firstPing && p.GetGeneration().Rdma() != l.gen {
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "it gave up the generation"))
	}
}

// onProbe asks at once. Before the first handshake, its end is the answer.
func (l *Link) onProbe() {
	if l.phase == ended {
		l.emit(Probed{Alive: false})
		return
	}
	if !l.probeAt.IsZero() {
		return // the one under way answers both
	}
	l.probeAt = l.now.Add(l.c.Limits.ProbeTimeout)
	l.probePing = l.pings + 1
	if l.greeted {
		l.ping()
	}
}

func (l *Link) probed(alive bool) {
	l.probeAt = time.Time{}
	l.emit(Probed{Alive: alive})
}

// lose ends the Link: this life of the peer is over.
func (l *Link) lose(cause *messages.Cause, closeAt time.Time) {
	if l.phase == ended {
		l.closeAt = earlier(l.closeAt, closeAt)
		return
	}
	if !l.leaveAt.IsZero() {
		l.emit(Left{Acknowledged: false})
	}
	l.emit(Lost{Cause: cause})
	l.end(cause, closeAt)
}

// end drops everything; Closed follows when the fences have returned.
func (l *Link) end(cause *messages.Cause, closeAt time.Time) {
	if !l.probeAt.IsZero() {
		l.probed(false)
	}
	l.pending = nil
	l.drop(cause)
	l.phase = ended
	l.closeAt = closeAt
}

// onBye takes the peer's goodbye, and says so as often as it comes.
func (l *Link) onBye(b *messages.Bye) {
	l.transmit(l.c.Peer, &messages.ByeAck{})
	switch {
	case l.phase == ended:
	case !l.leaveAt.IsZero():
		l.left(true) // both leave
	default:
		text := "left"
		if b.GetReason() != "" {
			text += ": " + b.GetReason()
		}
		l.lose(l.cause(messages.CauseKind_CAUSE_PEER_LOST, text), l.now.Add(l.c.Limits.Linger))
	}
}

// onLeave says goodbye, if there is somebody to say it to.
func (l *Link) onLeave(reason string) {
	if !l.leaveAt.IsZero() {
		return
	}
	l.leaving = reason
	l.leaveAt = l.now.Add(l.c.Limits.LeaveTimeout)
	if l.phase == ended {
		l.emit(Left{Acknowledged: false}) // nobody is there to say it to
		l.closeAt = l.now
		return
	}
	l.pending = nil
	if l.phase == proposing || l.phase == answering {
		l.drop(l.cause(messages.CauseKind_CAUSE_PEER_LOST, "this node leaves"))
	}
	if !l.greeted {
		l.left(false)
		return
	}
	l.resend.reset()
	l.sayBye()
}

func (l *Link) sayBye() {
	l.transmit(l.c.Peer, &messages.Bye{Reason: l.leaving})
	l.resend.next(l.now, l.c.Limits.ResendMin, l.c.Limits.ResendMax, l.c.Nonce())
}

// left ends our side. A peer that is still there may say Bye too, which is
// acknowledged a little longer.
func (l *Link) left(acknowledged bool) {
	l.emit(Left{Acknowledged: acknowledged})
	l.end(l.cause(messages.CauseKind_CAUSE_PEER_LOST, "this node leaves"), l.now)
}
