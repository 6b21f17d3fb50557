package transfer

import (
	"slices"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// topic is what a message that is repeated is about.
type topic uint8

const (
	topicGrant topic = iota
	topicExcused
	topicDeclined
	topicKnown
	topicDone
	topicMissing
	topicLanded
	topicFailed
	topicOutcome
	topicQuiet
)

// outKey names a message that is repeated until it is acknowledged.
type outKey struct {
	to    messages.Engine
	topic topic
	grant rdma.GrantID // of topics that are about one grant
}

// pending is one message that is not acknowledged.
type pending struct {
	outKey
	bodies func(now time.Time) []any // a grant has parts, and says the time that remains
	due    time.Time
	pause  time.Duration // until the next resend after due
}

// outbox repeats messages until they are acknowledged.
//
// Invariants:
//
//  1. No two entries have one key.
//  2. Nothing is due for a suspect peer, nor for one that is gone.
type outbox struct {
	first, most time.Duration
	entries     []*pending
	suspect     map[messages.Engine]bool
	gone        map[messages.Engine]bool
}

func newOutbox(l *Limits) outbox {
	return outbox{
		first: l.ResendFirst, most: l.ResendMost,
		suspect: map[messages.Engine]bool{}, gone: map[messages.Engine]bool{},
	}
}

// put sends a message now, and again until done. An older one of the same key is
// replaced.
func (o *outbox) put(now time.Time, k outKey, bodies func(now time.Time) []any) []Effect {
	if o.gone[k.to] {
		return nil
	}
	o.done(k)
	p := &pending{outKey: k, bodies: bodies}
	o.entries = append(o.entries, p)
	return o.send(now, p, o.first)
}

func (o *outbox) send(now time.Time, p *pending, pause time.Duration) []Effect {
	p.due, p.pause = now.Add(pause), min(2*pause, o.most)
	var out []Effect
	for _, body := range p.bodies(now) {
		out = append(out, Send{To: p.to, Body: body})
	}
	return out
}

// done takes an acknowledgement and reports whether it was waited for.
func (o *outbox) done(k outKey) bool {
	i := slices.IndexFunc(o.entries, func(p *pending) bool { return p.outKey == k })
	if i < 0 {
		return false
	}
	o.entries = slices.Delete(o.entries, i, i+1)
	return true
}

// drop takes out what keep does not keep.
func (o *outbox) drop(keep func(outKey) bool) {
	o.entries = slices.DeleteFunc(o.entries, func(p *pending) bool { return !keep(p.outKey) })
}

// lost gives up a peer for good.
func (o *outbox) lost(peer messages.Engine) {
	o.gone[peer] = true
	o.drop(func(k outKey) bool { return k.to != peer })
}

// setSuspect stops resends to a peer, or lets them go on at once.
func (o *outbox) setSuspect(now time.Time, peer messages.Engine, suspect bool) {
	if !suspect {
		delete(o.suspect, peer)
		o.again(now, peer)
		return
	}
	o.suspect[peer] = true
}

// again makes everything for a peer due now: the pair has a new generation, or
// is suspect no more.
func (o *outbox) again(now time.Time, peer messages.Engine) {
	for _, p := range o.entries {
		if p.to == peer {
			p.due, p.pause = now, o.first
		}
	}
}

// resend sends what is due.
func (o *outbox) resend(now time.Time) []Effect {
	var out []Effect
	for _, p := range o.entries {
		if !o.suspect[p.to] && !now.Before(p.due) {
			out = append(out, o.send(now, p, p.pause)...)
		}
	}
	return out
}

// next is when the next resend is due; the zero time for never.
func (o *outbox) next() time.Time {
	var at time.Time
	for _, p := range o.entries {
		if !o.suspect[p.to] {
			at = earliest(at, p.due)
		}
	}
	return at
}

// waits reports whether a message is not acknowledged yet.
func (o *outbox) waits(k outKey) bool {
	return slices.ContainsFunc(o.entries, func(p *pending) bool { return p.outKey == k })
}

// has reports whether anything about a topic is not acknowledged.
func (o *outbox) has(t topic) bool {
	return slices.ContainsFunc(o.entries, func(p *pending) bool { return p.topic == t })
}

// one is the bodies of a message that has one and never changes.
func one(body any) func(time.Time) []any {
	return func(time.Time) []any { return []any{body} }
}
