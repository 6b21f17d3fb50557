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

	// inquiriesMax is about how many rooms it is asked at once. If more wait, they
	// take turns, inquiryPause apart.
	inquiriesMax = 64
	inquiryPause = 20 * time.Millisecond
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

// openBehind opens the first room behind the head of the queue that fits: one that
// prefill has announced or, if the head alone is larger than the share and only
// waits for its announcement, any that the share has room for. False: there is
// none.
func (a *Actor) openBehind(c actor.Context, head *actors.OpenReceive) bool {
	large := !a.inShare(head, nil)
	opened := false
	a.waiting.Each(func(m *actors.OpenReceive) bool {
		if m != head && a.mayBegin(m) && (large || a.announced(m.Room)) && a.EndedError(m.Room) == nil {
			opened = a.open(c, m)
		}
		return !opened
	})
	return opened
}

// inquire asks about the rooms of a queue that stands before the share, and
// returns when it is to be called again; the zero time when it does not stand.
func (a *Actor) inquire(c actor.Context) time.Time {
	head, ok := a.waiting.First(a.mayBegin)
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
		if q.announced {
			return true
		}
		if !now.Before(q.due) && asked < inquiriesMax && a.ask(c, m) {
			asked++
			q.due = now.Add(inquiryEvery)
		}
		if due := q.due; now.Before(due) {
			next = earlier(next, due)
		} else {
			next = earlier(next, now.Add(inquiryPause))
		}
		return true
	})
	return next
}

// ask asks the first engine that computes the room. False: nobody is known.
func (a *Actor) ask(c actor.Context, m *actors.OpenReceive) bool {
	p := a.Pairs[m.Prefill]
	if p == nil {
		return false
	}
	senders := p.Fit.Senders(kv.Route{PrefillDP: m.PrefillDP, DecodeDP: a.Self.Rank.DP, Room: m.Room.Room})
	if len(senders) == 0 {
		return false
	}
	member, ok := p.Member(true, senders[0])
	if ok {
		a.Send(c, &actors.RoomBase{ID: m.Room, Pairing: p}, member.Engine, &messages.Inquire{})
	}
	return ok
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
