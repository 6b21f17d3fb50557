package decode

import (
	"fmt"
	"maps"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// onRoomGone handles the end of a receiver. If its actor died, its grants are
// closed before its pages are anybody's, and then a successor tells the others.
func (a *Actor) onRoomGone(c actor.Context, m *actors.RoomGone) {
	base := a.ByActor(m.Actor)
	if base == nil {
		return
	}
	r := a.rooms[base.ID]
	if r.Closed {
		a.forget(c, r)
		return
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.grants), compareGrants) {
		c.Send(a.Transport, &actors.RevokeGrant{Owner: c.Self(), Room: r.ID, Grant: id})
	}
	a.closed(c, r)
}

func compareGrants(x, y rdma.GrantID) int { return slices.Compare(x[:], y[:]) }

func (a *Actor) onGrantRevoked(c actor.Context, m *actors.GrantRevoked) {
	r := a.rooms[m.Room]
	if r == nil {
		return
	}
	if g := r.grants[m.Grant]; g != nil {
		if g.open = !m.Closed; m.Closed {
			delete(r.grants, m.Grant)
		} else if r.PID == nil {
			c.Send(a.Peer(g.writer), &actors.FenceLink{Node: g.writer, Reason: fmt.Sprintf("the actor of room %s failed", r.ID)})
		}
	}
	a.Tell(c, r.RoomBase, transfer.Revoked{Grant: m.Grant, Closed: m.Closed})
	a.closed(c, r)
}

// onLinkFenced closes the grants that a revoke had left open.
func (a *Actor) onLinkFenced(c actor.Context, m *actors.LinkFenced) {
	a.EachRoom(func(base *actors.RoomBase) {
		r := a.rooms[base.ID]
		for id, g := range r.grants {
			stays := slices.ContainsFunc(m.Open, func(o rdma.OpenGrant) bool { return o.Grant == id })
			if g.writer == m.Node && g.open && !stays {
				delete(r.grants, id)
			}
		}
		a.closed(c, r)
	})
}

// closed goes on with a room whose actor died, once its last grant is closed.
func (a *Actor) closed(c actor.Context, r *room) {
	if r.PID != nil || r.Closed || len(r.grants) > 0 {
		return
	}
	cause := a.Cause(messages.CauseKind_CAUSE_ACTOR_DIED, "the room's actor failed; its log entry has the reason")
	record := a.Records.Get(a.Env.Clock.Now(), r.ID)
	switch {
	case record != nil: // it was decided before; the record answers for it
		r.Finish(record, r.bytes, 0)
	case r.voted:
		r.Finish(&messages.Outcome{Cause: a.Cause(messages.CauseKind_CAUSE_UNKNOWN_OUTCOME,
			"the room's actor failed after its vote; the decider knows how the room ended")}, r.bytes, 0)
	default:
		r.Finish(&messages.Outcome{Cause: cause}, r.bytes, 0)
	}
	if r.holds {
		a.release(c, r)
	}
	if a.Remove(r.RoomBase); record != nil || r.voted || r.successor {
		r.Closed = true
		a.forget(c, r)
		return
	}
	r.successor = true
	a.spawn(c, r, cause)
}

// forget removes a room that has nothing in flight.
func (a *Actor) forget(c actor.Context, r *room) {
	if r.holds {
		a.release(c, r)
	}
	delete(a.rooms, r.ID)
	a.Remove(r.RoomBase)
	a.serve(c)
}
