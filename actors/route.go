package actors

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/messages"
	"kvferry/transfer"
)

// Arrival is what Arrive made of a message.
type Arrival struct {
	ID   messages.RoomID
	From messages.Engine
	Body any
	Room *RoomBase // nil: the message may open this room
}

// Arrive takes a room message that came from a node, and reports true when the
// engine is to act on it: for an open room, or for one that it may open. All
// else is answered here or dropped. A message of a later attempt ends the
// earlier one, by supersede, and comes again: it is not acknowledged.
func (e *Engine) Arrive(c actor.Context, m *FromPeer, opens func(body any) bool, supersede func(*RoomBase)) (Arrival, bool) {
	wire, ok := m.Body.(*messages.Room)
	if !ok {
		e.drop("not a room message", zap.String("type", fmt.Sprintf("%T", m.Body)))
		return Arrival{}, false
	}
	a := Arrival{ID: wire.ID(), From: wire.GetFrom().Engine(), Body: wire.Unwrap()}
	if a.Body == nil {
		e.drop("a room message without a body that this version knows")
		return a, false
	}
	if to := wire.GetTo().Engine(); to != e.Self {
		e.misfit(c, m.Node, a, "to", to.String(), e.Self.String())
		return a, false
	}
	if a.Room = e.rooms[a.ID]; a.Room == nil && !inquiry(a.Body) {
		if record := e.Records.Get(e.Env.Clock.Now(), a.ID); record != nil {
			e.answer(c, m.Node, a, record)
			return a, false
		}
	}
	if !e.known(c, m.Node, a) {
		return a, false
	}
	if a.Room != nil || inquiry(a.Body) {
		return a, true
	}
	if newest, ok := e.newest(a.ID.Room); ok && newest != a.ID.Attempt {
		return a, e.otherAttempt(c, m.Node, a, newest, opens, supersede)
	}
	if opens(a.Body) {
		return a, true
	}
	e.answer(c, m.Node, a, nil)
	return a, false
}

// inquiry says whether a message is about what an engine knows, not for a room.
func inquiry(body any) bool {
	switch body.(type) {
	case *messages.Inquire, *messages.Inquired:
		return true
	}
	return false
}

// known checks that the message is from an engine of a peer, where that peer
// lives.
func (e *Engine) known(c actor.Context, node messages.Node, a Arrival) bool {
	var p *messages.Pairing
	if a.Room != nil {
		p = a.Room.Pairing
	}
	if p == nil {
		p = e.pairOf(a.From.Instance)
	}
	if p == nil {
		return false // not paired here yet: it is repeated until it is
	}
	member, ok := p.Member(a.From.Instance == p.Prefill, a.From.Rank)
	if !ok || member.Node != node || member.Engine != a.From {
		e.misfit(c, node, a, "from", fmt.Sprintf("%s on %s", a.From, node), fmt.Sprintf("%s on %s", member.Engine, member.Node))
		return false
	}
	return true
}

// pairOf is a pairing that this instance takes part in.
func (e *Engine) pairOf(instance string) *messages.Pairing {
	if p := e.Pairs[instance]; p != nil {
		return p
	}
	if instance != e.Self.Instance {
		return nil
	}
	// A sibling: any pairing has it. The lowest name, so that it is always the
	// same one.
	var best *messages.Pairing
	for _, p := range e.Pairs {
		if best == nil || p.Prefill+"/"+p.Decode < best.Prefill+"/"+best.Decode {
			best = p
		}
	}
	return best
}

// newest is the newest attempt of a room that is open or remembered.
func (e *Engine) newest(room uint64) (uint32, bool) {
	if attempt, ok := e.attempts[room]; ok {
		return attempt, true
	}
	return e.Records.Newest(room)
}

// otherAttempt handles a message of another attempt than the newest: an earlier
// one is over; a later one supersedes, and opens once the earlier has ended.
func (e *Engine) otherAttempt(c actor.Context, node messages.Node, a Arrival, newest uint32, opens func(any) bool, supersede func(*RoomBase)) bool {
	if a.ID.Attempt < newest {
		e.answer(c, node, a, e.Superseded(a.ID, newest))
		return false
	}
	if r := e.Earlier(a.ID); r != nil {
		supersede(r)
		return false
	}
	return opens(a.Body)
}

// Superseded is the outcome of an attempt after which a later one began.
func (e *Engine) Superseded(id messages.RoomID, by uint32) *messages.Outcome {
	return &messages.Outcome{Cause: &messages.Cause{
		Kind:   messages.CauseKind_CAUSE_SUPERSEDED,
		Text:   fmt.Sprintf("attempt %d of room %d is over: attempt %d has begun", id.Attempt, id.Room, by),
		Origin: e.Self.String(),
	}}
}

// answer answers for a room without an actor.
func (e *Engine) answer(c actor.Context, node messages.Node, a Arrival, record *messages.Outcome) {
	if reply := transfer.AnswerFor(record, a.Body); reply != nil {
		e.reply(c, node, messages.NewRoom(a.ID, e.Self, a.From, reply))
	}
}

// misfit answers, once, what did not fit. Answers are never answered.
func (e *Engine) misfit(c actor.Context, node messages.Node, a Arrival, field, got, want string) {
	e.drop("the "+field+" of a room message does not fit", zap.String("got", got), zap.String("want", want))
	if _, ok := a.Body.(*messages.Answer); ok {
		return
	}
	e.reply(c, node, messages.NewRoom(a.ID, e.Self, a.From, &messages.Answer{Field: field, Got: got, Want: want}))
}
