package decode

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// holding is what is taken from the pools for a room.
type holding struct {
	handle actors.Handle // whose it is
	at     kv.Placement
}

// room is what the engine holds for one receiver.
//
// Invariants:
//
//  1. hold is taken from the pools until both have let go: the caller, and the
//     machine (if its actor died: when every grant of grants is closed).
//  2. grants lists every grant that was asked for and is not known to be closed.
type room struct {
	*actors.RoomBase
	ask         *actors.OpenReceive
	hold        holding
	holds       bool
	announced   bool
	voted       bool // Landed was sent: this side says failed no more
	freed       bool // the caller does not touch the pages any more
	quarantined bool
	successor   bool // of an actor that died; it only tells the others
	grants      map[rdma.GrantID]*grant
	bytes       uint64 // arrived
}

// grant is one grant of a room.
type grant struct {
	writer messages.Node
	open   bool // a revoke left it open: a fence of the writer closes it
}

// begin makes a room and its actor.
func (a *Actor) begin(c actor.Context, m *actors.OpenReceive, h holding) *room {
	r := &room{
		RoomBase: &actors.RoomBase{ID: m.Room, Peer: m.Prefill, Ended: m.Ended},
		ask:      m, hold: h, holds: true,
		grants: map[rdma.GrantID]*grant{}, announced: a.announced(m.Room),
	}
	if !r.announced {
		a.unannounced = a.unannounced.Add(a.pools.Claim(m.Prefix, m.Length))
	}
	a.rooms[m.Room] = r
	a.spawn(c, r, nil)
	return r
}

// decline makes a room that holds nothing and only tells the others that it was
// dropped before its grant.
func (a *Actor) decline(c actor.Context, m *actors.OpenReceive, cause *messages.Cause) {
	ask := *m
	ask.Prefix = ask.Length // it has no pages
	r := &room{
		RoomBase: &actors.RoomBase{ID: m.Room, Peer: m.Prefill}, ask: &ask,
		announced: true, successor: true, grants: map[rdma.GrantID]*grant{},
	}
	a.rooms[m.Room] = r
	a.spawn(c, r, cause)
}

// spawn starts the actor of a room. With a cause the machine gives up at once: it
// is the successor of one that died, and has only to tell the others.
func (a *Actor) spawn(c actor.Context, r *room, giveUp *messages.Cause) {
	config := transfer.ReceiverConfig{
		Self: a.Self, Room: r.ID, Limits: a.EngineConfig.Rooms,
		Prefill: r.ask.Prefill, PrefillDP: r.ask.PrefillDP,
		Prefix: r.ask.Prefix, Length: r.ask.Length,
		At: r.hold.at, Wait: r.ask.Wait, NewGrantID: a.Env.NewGrantID,
	}
	a.Add(c, r.RoomBase, actors.NewRoom(a.Env, r.ID, func(now time.Time) (transfer.Machine, []transfer.Effect, error) {
		m, effects, err := transfer.NewReceiver(now, config)
		if err == nil && giveUp != nil {
			effects = append(effects, m.Step(now, transfer.Abort{Cause: giveUp})...)
		}
		return m, effects, err
	}))
	if r.Pairing != nil { // of the one before, whose writers are to be told
		a.Tell(c, r.RoomBase, transfer.Paired{Pairing: r.Pairing})
	} else {
		a.Pair(c, r.RoomBase)
	}
	for _, early := range a.votes.Take(a.Env.Clock.Now(), r.ID) {
		a.Tell(c, r.RoomBase, early)
	}
}

// supersede ends a room because a later attempt of it began.
func (a *Actor) supersede(c actor.Context, r *actors.RoomBase) {
	a.Tell(c, r, transfer.Abort{Cause: a.Superseded(r.ID, r.ID.Attempt+1).Cause})
}

// opens: a receiver is opened by its caller alone; but what siblings say to the
// decider, and the decider of a room that has failed, may come before that.
func opens(body any) bool {
	switch b := body.(type) {
	case *messages.Landed, *messages.Failed:
		return true
	case *messages.Outcome:
		return !b.GetComplete()
	}
	return false
}

func (a *Actor) onFromPeer(c actor.Context, m *actors.FromPeer) {
	in, ok := a.Arrive(c, m, opens, func(r *actors.RoomBase) { a.supersede(c, r) })
	if !ok {
		return
	}
	if answer, ok := in.Body.(*messages.Inquired); ok {
		a.onInquired(c, in.ID, answer)
		return
	}
	if in.Room != nil {
		a.Tell(c, in.Room, transfer.Received{From: in.From, Body: in.Body})
		return
	}
	if o, ok := in.Body.(*messages.Outcome); ok {
		if in.From.Instance == a.Self.Instance { // its caller hears it when it comes
			a.Records.Put(a.Env.Clock.Now(), in.ID, in.From.Instance, o)
			a.Send(c, &actors.RoomBase{ID: in.ID}, in.From, &messages.OutcomeAck{})
		}
		return
	}
	if ack := a.votes.Keep(a.Env.Clock.Now(), in.ID, in.From, in.Body); ack != nil {
		a.Send(c, &actors.RoomBase{ID: in.ID}, in.From, ack)
	}
}

// onRoomEffects carries out what a receiver asks for, in order.
func (a *Actor) onRoomEffects(c actor.Context, m *actors.RoomEffects) {
	r := a.rooms[m.Room]
	if r == nil {
		return
	}
	for _, effect := range m.Effects {
		switch e := effect.(type) {
		case transfer.Send:
			a.send(c, r, e)
		case transfer.InstallGrant:
			a.installGrant(c, r, e)
		case transfer.Revoke:
			c.Send(a.Transport, &actors.RevokeGrant{Owner: c.Self(), Room: r.ID, Grant: e.Grant})
		case transfer.Fence:
			a.Fence(c, r.RoomBase, e)
		case transfer.ReadMeta:
			id, _ := a.Engine.ReadMeta(e.Row)
			a.Tell(c, r.RoomBase, transfer.MetaRead{Room: id})
		case transfer.Announced:
			a.announce(c, r)
		case transfer.Record:
			a.Records.Put(a.Env.Clock.Now(), r.ID, r.Peer, e.Outcome)
			r.Outcome = e.Outcome
		case transfer.Tombstone:
			a.Records.Put(a.Env.Clock.Now(), r.ID, r.Peer, e.Outcome)
		case transfer.Finish:
			a.finish(r, e.Outcome)
		case transfer.ReleasePages:
			if !r.successor { // which holds none
				a.release(c, r)
			}
		case transfer.Quarantine:
			r.quarantined = true
			a.Env.Log.Warn("pages are quarantined until their grants can be closed",
				zap.Stringer("room", r.ID), zap.Int("pages", actors.PagesOf(r.hold.at)), zap.String("reason", e.Reason))
		case transfer.Closed:
			r.Closed = true
			c.Poison(r.PID)
		default:
			panic(fmt.Sprintf("decode: room %s: a receiver asked for %T", r.ID, e))
		}
	}
}

func (a *Actor) send(c actor.Context, r *room, e transfer.Send) {
	if _, ok := e.Body.(*messages.Landed); ok {
		r.voted = true
	}
	a.Send(c, r.RoomBase, e.To, e.Body)
}

func (a *Actor) installGrant(c actor.Context, r *room, e transfer.InstallGrant) {
	_, node, ok := a.RegionsOf(r.RoomBase, e.Writer)
	if !ok {
		panic(fmt.Sprintf("decode: room %s: grant to %s, which is not in the pairing", r.ID, e.Writer))
	}
	r.grants[e.Grant] = &grant{writer: node}
	c.Send(a.Transport, &actors.InstallGrant{
		Owner: c.Self(), Room: r.ID, Grant: e.Grant, Writer: node, Regions: a.Regions, Ranges: e.Ranges,
	})
}

func (a *Actor) onGrantArrived(c actor.Context, m *actors.GrantArrived) {
	if r := a.rooms[m.Room]; r != nil {
		r.bytes += m.Bytes
	}
	a.TellID(c, m.Room, transfer.Arrived{Grant: m.Grant, Generation: m.Generation, Arrival: m.Arrival, Bytes: m.Bytes})
}

func (a *Actor) announce(c actor.Context, r *room) {
	if !r.announced {
		r.announced = true
		a.unannounced = a.unannounced.Sub(a.pools.Claim(r.ask.Prefix, r.ask.Length))
		a.serve(c)
	}
}

// finish tells the caller. Of a complete room the pages are the caller's from
// here on: the machine has closed every grant before.
func (a *Actor) finish(r *room, o *messages.Outcome) {
	r.Finish(o, r.bytes, 0)
}

// release ends the room's own hold on its pages: they are the caller's until it
// frees them.
func (a *Actor) release(c actor.Context, r *room) {
	if !r.holds {
		panic(fmt.Sprintf("decode: room %s releases its pages twice", r.ID))
	}
	r.holds, r.quarantined = false, false
	a.announce(c, r)
	if !r.freed {
		a.held[r.ID] = r.hold
		return
	}
	a.give(c, r.hold)
}

func (a *Actor) onFreePages(c actor.Context, m *actors.FreePages) {
	if h := a.held[m.Room]; h.handle == m.Handle {
		delete(a.held, m.Room)
		a.give(c, h)
	} else if r := a.rooms[m.Room]; r != nil && r.ask.Handle == m.Handle {
		r.freed = true
	}
}

func (a *Actor) give(c actor.Context, h holding) {
	a.pools.Give(h.at)
	a.serve(c)
}
