package prefill

import (
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// begin makes a room and its actor.
func (a *Actor) begin(c actor.Context, id messages.RoomID, announced bool, wait time.Duration) *room {
	r := &room{RoomBase: &actors.RoomBase{ID: id}, tag: rdma.Tag(a.Env.NextID())}
	a.rooms[id] = r
	if !announced {
		a.unopened++
	}
	a.spawn(c, r, announced, wait)
	return r
}

// spawn starts the actor of a room.
func (a *Actor) spawn(c actor.Context, r *room, announced bool, wait time.Duration) {
	config := transfer.SenderConfig{Self: a.Self, Room: r.ID, Limits: a.EngineConfig.Rooms, Announced: announced, Wait: wait}
	a.Add(c, r.RoomBase, actors.NewRoom(a.Env, r.ID, func(now time.Time) (transfer.Machine, []transfer.Effect, error) {
		m, effects := transfer.NewSender(now, config)
		return m, effects, nil
	}))
}

// supersede ends a room because a later attempt of it began.
func (a *Actor) supersede(c actor.Context, r *actors.RoomBase) {
	a.Tell(c, r, transfer.Abort{Cause: a.Superseded(r.ID, r.ID.Attempt+1).Cause})
}

func (a *Actor) onFromPeer(c actor.Context, m *actors.FromPeer) {
	in, ok := a.Arrive(c, m, transfer.Opens, func(r *actors.RoomBase) { a.supersede(c, r) })
	if !ok {
		return
	}
	if _, ok := in.Body.(*messages.Inquire); ok {
		r := a.rooms[in.ID]
		a.Send(c, &actors.RoomBase{ID: in.ID}, in.From, &messages.Inquired{Known: r != nil && r.opened})
		return
	}
	if _, ok := in.Body.(*messages.Inquired); ok {
		return // not for prefill
	}
	if in.Room == nil {
		if a.unopened >= a.Limits.UnopenedRooms || a.Open() >= a.Limits.Rooms {
			return // not acknowledged: it comes again, and there may be room then
		}
		in.Room = a.begin(c, in.ID, false, 0).RoomBase
	}
	if in.Room.Peer == "" && in.From.Instance != a.Self.Instance {
		in.Room.Peer = in.From.Instance
		a.Pair(c, in.Room)
	}
	a.rooms[in.ID].hear(in)
	a.Tell(c, in.Room, transfer.Received{From: in.From, Body: in.Body})
}

// hear keeps who granted, for a successor.
func (r *room) hear(in actors.Arrival) {
	r.decodeDP = in.From.Rank.DP
	if _, ok := in.Body.(*messages.Grant); ok && !slices.Contains(r.granted, in.From) {
		r.granted = append(r.granted, in.From)
	}
}

// onRoomEffects carries out what a sender asks for, in order.
func (a *Actor) onRoomEffects(c actor.Context, m *actors.RoomEffects) {
	r := a.rooms[m.Room]
	if r == nil {
		return // of an actor that died; what it had in flight is ended already
	}
	for _, effect := range m.Effects {
		switch e := effect.(type) {
		case transfer.Send:
			if _, ok := e.Body.(*messages.Done); ok {
				r.voted = true // perhaps not yet for all, but never again for none
			}
			a.Send(c, r.RoomBase, e.To, e.Body)
		case transfer.Post:
			a.post(c, r, e)
		case transfer.Quiesce:
			c.Send(a.Transport, &actors.QuiesceRoom{Owner: c.Self(), Room: r.ID, Tag: r.tag})
		case transfer.Fence:
			a.Fence(c, r.RoomBase, e)
		case transfer.UnpinSources:
			a.unpin(c, r)
		case transfer.Record:
			a.Records.Put(a.Env.Clock.Now(), r.ID, r.Peer, e.Outcome)
		case transfer.Tombstone:
			a.Records.Put(a.Env.Clock.Now(), r.ID, r.Peer, e.Outcome)
		case transfer.Finish:
			r.Excused = e.Excused
			r.Finish(e.Outcome, r.bytes, r.copies)
		case transfer.Closed:
			r.Closed = true
			c.Poison(r.PID)
		default:
			panic(fmt.Sprintf("prefill: room %s: a sender asked for %T", r.ID, e))
		}
	}
}

func (a *Actor) post(c actor.Context, r *room, e transfer.Post) {
	regions, node, ok := a.RegionsOf(r.RoomBase, e.To)
	if !ok {
		panic(fmt.Sprintf("prefill: room %s: write %d to %s, which is not in the pairing", r.ID, e.Write, e.To))
	}
	r.copies += uint64(len(e.Copies))
	c.Send(a.Transport, &actors.PostWrite{
		Owner: c.Self(), Room: r.ID, Tag: r.tag, Node: node, Write: e.Write, Grant: e.Grant,
		Source: a.Regions, Target: regions, Copies: e.Copies,
	})
}

func (a *Actor) onWriteDone(c actor.Context, m *actors.WriteDone) {
	r := a.rooms[m.Room]
	if r == nil {
		return
	}
	if m.Outcome == rdma.Landed {
		r.bytes += m.Bytes
	}
	a.Tell(c, r.RoomBase, transfer.Written{
		Write: m.Write, Generation: m.Generation, Outcome: m.Outcome, Err: m.Err, Arrivals: m.Arrivals,
	})
}

func (a *Actor) onRoomQuiesced(c actor.Context, m *actors.RoomQuiesced) {
	r := a.rooms[m.Room]
	if r == nil || r.tag != m.Tag {
		return
	}
	r.unknown = append(r.unknown, m.Unknown...)
	if r.PID != nil {
		a.Tell(c, r.RoomBase, transfer.Quiesced{Unknown: slices.Clone(r.unknown)})
		return
	}
	// The room's actor is gone, and now its writes are too.
	a.unpin(c, r)
	if r.Closed || r.voted || r.successor || r.Pairing == nil {
		a.forget(c, r)
		return
	}
	r.successor = true
	a.Remove(r.RoomBase)
	a.spawn(c, r, true, 0)
	a.Tell(c, r.RoomBase, transfer.Succeed{
		Pairing: r.Pairing, DecodeDP: r.decodeDP, Granted: r.granted, Unknown: slices.Clone(r.unknown), Cause: a.diedCause(),
	})
}

// onRoomGone handles the end of a sender. Whether its machine had finished or
// its actor died, nothing of it is forgotten before its writes are quiesced. If
// it died, a successor then tells the others.
func (a *Actor) onRoomGone(c actor.Context, m *actors.RoomGone) {
	base := a.ByActor(m.Actor)
	if base == nil {
		return
	}
	r := a.rooms[base.ID]
	if !r.Closed {
		cause := a.diedCause()
		if r.voted {
			cause = a.Cause(messages.CauseKind_CAUSE_UNKNOWN_OUTCOME,
				"the room's actor failed after its vote; the decider knows how the room ended")
		}
		r.Finish(&messages.Outcome{Cause: cause}, r.bytes, r.copies)
	}
	c.Send(a.Transport, &actors.QuiesceRoom{Owner: c.Self(), Room: r.ID, Tag: r.tag})
}

func (a *Actor) diedCause() *messages.Cause {
	return a.Cause(messages.CauseKind_CAUSE_ACTOR_DIED, "the room's actor failed; its log entry has the reason")
}

// unpin ends the room's own hold on its pages, once: they are the caller's until
// it frees them.
func (a *Actor) unpin(c actor.Context, r *room) {
	if !r.holds {
		return
	}
	h := holding{r.handle, r.at}
	if r.holds = false; r.freed {
		a.give(c, h)
		return
	}
	a.held[r.ID] = h
}

func (a *Actor) onFreePages(c actor.Context, m *actors.FreePages) {
	if h := a.held[m.Room]; h.handle == m.Handle {
		delete(a.held, m.Room)
		a.give(c, h)
	} else if r := a.rooms[m.Room]; r != nil && r.handle == m.Handle {
		r.freed = true
	}
}

func (a *Actor) give(c actor.Context, h holding) {
	a.pools.Give(h.at)
	a.serve(c)
}

// forget removes a room that has nothing in flight.
func (a *Actor) forget(c actor.Context, r *room) {
	if !r.opened {
		a.unopened--
	}
	delete(a.rooms, r.ID)
	a.Remove(r.RoomBase)
	a.serve(c)
}
