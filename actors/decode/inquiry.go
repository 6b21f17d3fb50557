package decode

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
)

// Two full pools must never wait for each other: prefill's, full of rooms that
// wait for pages here, and this one, full of rooms that wait for pages there. So
// rooms that prefill has not announced may hold only a share of this pool. When
// the queue stands before that share, the engine asks prefill about those that
// wait: who is announced goes first, into the rest.

const (
	// inquiryEvery is how often prefill is asked about a room: far above a round
	// trip, and soon enough that a pool does not stand idle for long.
	inquiryEvery = 200 * time.Millisecond

	// inquiriesMax is about how many rooms it is asked at once. The first in the
	// queue are those that prefill, with a queue of about the same order, has.
	inquiriesMax = 64
)

// inquiry is what is known of a room that waits.
type inquiry struct {
	due       time.Time
	announced bool
}

func (a *Actor) announced(id messages.RoomID) bool {
	q := a.inquiries[id]
	return q != nil && q.announced
}

// openAnnounced opens the first room in the queue that prefill has announced and
// that fits. False: there is none.
func (a *Actor) openAnnounced(c actor.Context) bool {
	var next *actors.OpenReceive
	a.waiting.Each(func(m *actors.OpenReceive) bool {
		if a.announced(m.Room) {
			next = m
		}
		return next == nil
	})
	return next != nil && a.open(c, next)
}

// inquire asks about the first rooms of a queue that stands before the share, and
// returns when it is to be called again; the zero time when it does not stand.
func (a *Actor) inquire(c actor.Context) time.Time {
	head, ok := a.waiting.Head()
	if !ok || a.mayHold(head) {
		return time.Time{}
	}
	now := a.Env.Clock.Now()
	var next time.Time
	asked := 0
	a.waiting.Each(func(m *actors.OpenReceive) bool {
		q := a.inquiries[m.Room]
		if q == nil {
			q = &inquiry{due: now}
			a.inquiries[m.Room] = q
		}
		if !q.announced && !now.Before(q.due) {
			q.due = now.Add(inquiryEvery)
			a.ask(c, m)
		}
		if !q.announced {
			next = earlier(next, q.due)
		}
		asked++
		return asked < inquiriesMax
	})
	return next
}

// ask asks the first engine that computes the room.
func (a *Actor) ask(c actor.Context, m *actors.OpenReceive) {
	p := a.Pairs[m.Prefill]
	if p == nil {
		return // not paired: it is asked again
	}
	senders := p.Fit.Senders(kv.Route{PrefillDP: m.PrefillDP, DecodeDP: a.Self.Rank.DP, Room: m.Room.Room})
	if len(senders) == 0 {
		return
	}
	if member, ok := p.Member(true, senders[0]); ok {
		a.Send(c, &actors.RoomBase{ID: m.Room, Pairing: p}, member.Engine, &messages.Inquire{})
	}
}

func (a *Actor) onInquired(c actor.Context, id messages.RoomID, m *messages.Inquired) {
	if q := a.inquiries[id]; q != nil && m.GetKnown() && !q.announced {
		q.announced = true
		a.serve(c)
	}
}

// earlier is the earlier of two times, of which either may be never.
func earlier(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}
