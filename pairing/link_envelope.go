package pairing

import (
	"fmt"
	"strconv"

	"kvferry/messages"
)

// numbers is what a Link knows of the two number streams of the pair.
type numbers struct {
	sent  uint64 // the last number given
	taken uint64 // the highest number taken

	// greeted: a handshake has shown, by fresh nonces, that this life of the peer
	// talks to this Link. Before it nothing but the handshake is taken: what comes
	// may be left over from an earlier Link.
	greeted bool
	version uint32 // that both speak, once greeted

	strangers []stranger // oldest first
}

// stranger is a sender or target that did not fit, and the highest number of it
// that was answered.
type stranger struct {
	from, to messages.Node
	number   uint64
}

// transmit sends a body to a node: the peer, or a stranger that is answered.
func (l *Link) transmit(to messages.Node, body any) uint64 {
	l.sent++
	e := &messages.Envelope{From: l.c.Self.Ref(), To: to.Ref(), Version: l.version, Number: l.sent}
	if !l.greeted {
		e.Version = l.c.VersionMax
	}
	wrap(e, body)
	l.emit(Transmit{Envelope: e})
	return l.sent
}

func wrap(e *messages.Envelope, body any) {
	switch b := body.(type) {
	case *messages.Hello:
		e.Body = &messages.Envelope_Hello{Hello: b}
	case *messages.HelloAck:
		e.Body = &messages.Envelope_HelloAck{HelloAck: b}
	case *messages.Ping:
		e.Body = &messages.Envelope_Ping{Ping: b}
	case *messages.Pong:
		e.Body = &messages.Envelope_Pong{Pong: b}
	case *messages.Bye:
		e.Body = &messages.Envelope_Bye{Bye: b}
	case *messages.ByeAck:
		e.Body = &messages.Envelope_ByeAck{ByeAck: b}
	case *messages.NotFit:
		e.Body = &messages.Envelope_NotFit{NotFit: b}
	case *messages.Catalog:
		e.Body = &messages.Envelope_Catalog{Catalog: b}
	case *messages.CatalogAck:
		e.Body = &messages.Envelope_CatalogAck{CatalogAck: b}
	case *messages.Readiness:
		e.Body = &messages.Envelope_Readiness{Readiness: b}
	case *messages.ReadinessAck:
		e.Body = &messages.Envelope_ReadinessAck{ReadinessAck: b}
	case *messages.Room:
		e.Body = &messages.Envelope_Room{Room: b}
	default:
		panic(fmt.Sprintf("pairing: %T is no body of an envelope", body))
	}
}

// unwrap is the body to hand on, nil for one of the Link's own or of a later
// version.
func unwrap(e *messages.Envelope) any {
	switch b := e.GetBody().(type) {
	case *messages.Envelope_Catalog:
		return b.Catalog
	case *messages.Envelope_CatalogAck:
		return b.CatalogAck
	case *messages.Envelope_Readiness:
		return b.Readiness
	case *messages.Envelope_ReadinessAck:
		return b.ReadinessAck
	case *messages.Envelope_Room:
		return b.Room
	}
	return nil
}

func (l *Link) onSubmit(body any) {
	switch {
	case l.phase == ended:
		l.emit(NotSent{Body: body, Reason: "the peer is lost, or this side left"})
	case !l.greeted:
		l.emit(NotSent{Body: body, Reason: "no hello was exchanged yet"})
	default:
		l.transmit(l.c.Peer, body)
	}
}

// onEnvelope takes what fits. What does not fit changes nothing.
func (l *Link) onEnvelope(e *messages.Envelope) {
	from, to := e.GetFrom().Node(), e.GetTo().Node()
	if from != l.c.Peer || to != l.c.Self {
		l.onStranger(e, from, to)
		return
	}
	// A hint only: whoever forgot its numbers goes on above what was heard of it.
	l.sent = max(l.sent, e.GetPing().GetNumberSeen(), e.GetHello().GetNumberSeen(), e.GetHelloAck().GetNumberSeen())
	if e.GetNumber() <= l.taken || l.phase == ended && e.GetBye() == nil {
		return
	}
	switch b := e.GetBody().(type) {
	case *messages.Envelope_Hello:
		l.taken = max(e.GetNumber(), b.Hello.GetNumberAbove())
		l.onHello(e.GetNumber(), b.Hello)
	case *messages.Envelope_HelloAck:
		l.taken = e.GetNumber()
		l.onHelloAck(e.GetNumber(), b.HelloAck)
	case *messages.Envelope_NotFit:
		l.taken = e.GetNumber()
		l.onNotFit(b.NotFit)
	default:
		if !l.greeted && !l.confirms(e.GetPing()) {
			return
		}
		l.taken = e.GetNumber()
		if e.GetVersion() != l.version {
			l.notFit(e.GetNumber(), "version", fmt.Sprint(e.GetVersion()), fmt.Sprint(l.version))
			return
		}
		l.onGreeted(e)
	}
}

// onGreeted takes what comes after the handshake.
func (l *Link) onGreeted(e *messages.Envelope) {
	l.heard = l.heard || !l.deaf(e.GetPing())
	switch b := e.GetBody().(type) {
	case *messages.Envelope_Ping:
		l.onPing(b.Ping)
	case *messages.Envelope_Pong:
		l.onPong(b.Pong)
	case *messages.Envelope_Bye:
		l.onBye(b.Bye)
	case *messages.Envelope_ByeAck:
		if !l.leaveAt.IsZero() && l.phase != ended {
			l.left(true)
		}
	default:
		body := unwrap(e)
		if body == nil {
			l.notFit(e.GetNumber(), "body", fmt.Sprintf("%T", e.GetBody()), "one of this version")
			return
		}
		l.emit(Deliver{Body: body})
	}
}

// onStranger answers, once, what another life sent, or sent to another life.
func (l *Link) onStranger(e *messages.Envelope, from, to messages.Node) {
	if e.GetNotFit() != nil || l.phase == ended {
		return
	}
	s := stranger{from: from, to: to, number: e.GetNumber()}
	for i, o := range l.strangers {
		if o.from == from && o.to == to {
			if o.number >= s.number {
				return
			}
			l.strangers = append(l.strangers[:i:i], l.strangers[i+1:]...)
			break
		}
	}
	l.strangers = append(l.strangers, s)
	if len(l.strangers) > l.c.Limits.Strangers {
		l.strangers = l.strangers[1:]
	}
	field, got, want := "to", to, l.c.Self
	if to == l.c.Self {
		field, got, want = "from", from, l.c.Peer
	}
	l.transmit(from, &messages.NotFit{Number: s.number, Field: field, Got: got.String(), Want: want.String()})
}

func (l *Link) notFit(number uint64, field, got, want string) {
	l.transmit(l.c.Peer, &messages.NotFit{Number: number, Field: field, Got: got, Want: want})
}

// refuse tells the peer, and people, why the two do not come together.
func (l *Link) refuse(number uint64, field, got, want string) {
	l.notFit(number, field, got, want)
	l.tellMisfit(Misfit{Ours: true, Field: field, Got: got, Want: want})
}

func (l *Link) tellMisfit(m Misfit) {
	last := &l.misfits[0]
	if !m.Ours {
		last = &l.misfits[1]
	}
	if m != *last {
		*last = m
		l.emit(m)
	}
}

// onNotFit takes the answer to a hello or to an answered hello; what else did not
// fit is repeated, or not, by whoever sent it.
func (l *Link) onNotFit(n *messages.NotFit) {
	if n.GetNumber() != l.handshake {
		return
	}
	switch l.phase {
	case proposing, answering:
		deep := n.GetField() == "cluster" || n.GetField() == "version" || n.GetField() == "providers"
		if deep {
			l.tellMisfit(Misfit{Field: n.GetField(), Got: n.GetGot(), Want: n.GetWant()})
		}
		l.drop(l.cause(messages.CauseKind_CAUSE_PROTOCOL, "the peer answered that "+n.GetField()+" does not fit: got "+n.GetGot()+", want "+n.GetWant()))
		if deep {
			// Only a restart of either side changes it.
			l.redialAt = l.now.Add(spread(l.c.Limits.RedialMax, l.c.Nonce()))
		}
	}
}

func (l *Link) cause(kind messages.CauseKind, text string) *messages.Cause {
	return &messages.Cause{Kind: kind, Text: "node " + l.c.Peer.String() + ": " + text, Origin: l.c.Self.String()}
}

func versions(low, high uint32) string {
	return strconv.FormatUint(uint64(low), 10) + " to " + strconv.FormatUint(uint64(high), 10)
}
