package actors

import (
	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/messages"
	"kvferry/transfer"
)

// OnLink tells the rooms what happened to a node, and reports whether m was such
// a message.
func (e *Engine) OnLink(c actor.Context, m any) bool {
	switch m := m.(type) {
	case *PairUp:
		e.onPairUp(c, m)
	case *PairWaiting:
		if e.ours(m.Prefill, m.Decode) {
			e.waiting[e.peerOf(m.Prefill, m.Decode)] = true
		}
	case *PairUnfit:
		e.onPairUnfit(c, m)
	case *PairDown:
		e.onPairDown(c, m)
	case *EngineLost:
		if m.Engine == e.Self { // another incarnation takes its place
			e.Env.Log.Error("engine replaced; it ends", zap.Stringer("engine", e.Self), zap.String("cause", m.Cause.GetText()))
			c.Stop(c.Self())
			break
		}
		e.EachRoom(func(r *RoomBase) { e.lost(c, r, m) })
	case *LinkUp:
		e.eachAt(c, m.Node, func(engines []messages.Engine) transfer.Event {
			return transfer.NewGeneration{Engines: engines, Number: m.Generation.Number}
		})
	case *LinkSuspect:
		if e.suspects[m.Node] = m.Suspect; !m.Suspect {
			delete(e.suspects, m.Node)
		}
		e.eachAt(c, m.Node, func(engines []messages.Engine) transfer.Event {
			return transfer.Suspect{Engines: engines, Suspect: m.Suspect}
		})
	case *LinkFenced:
		e.eachAt(c, m.Node, func(engines []messages.Engine) transfer.Event {
			return transfer.Fenced{Engines: engines, Generation: m.Generation, Open: m.Open}
		})
	case *LinkLost:
		delete(e.suspects, m.Node)
	case *LinkDown: // the rooms learn it by their writes, and by the next LinkUp
	default:
		return false
	}
	return true
}

// eachAt tells every room that has engines on the node.
func (e *Engine) eachAt(c actor.Context, node messages.Node, event func([]messages.Engine) transfer.Event) {
	e.EachRoom(func(r *RoomBase) {
		if engines := enginesAt(r.Pairing, node, e.Self); len(engines) > 0 {
			e.Tell(c, r, event(engines))
		}
	})
}

// enginesAt is the members of a pairing on a node, self excepted.
func enginesAt(p *messages.Pairing, node messages.Node, self messages.Engine) []messages.Engine {
	if p == nil {
		return nil
	}
	var at []messages.Engine
	for _, side := range [][]messages.Member{p.PrefillEngine, p.DecodeEngine} {
		for _, m := range side {
			if m.Node == node && m.Engine != self {
				at = append(at, m.Engine)
			}
		}
	}
	return at
}

// ours says whether a pair of instances is of this engine's: a node may have
// engines of several.
func (e *Engine) ours(prefill, decode string) bool {
	if e.Role == messages.Role_ROLE_PREFILL {
		return prefill == e.Self.Instance
	}
	return decode == e.Self.Instance
}

// peerOf is the instance on the other side.
func (e *Engine) peerOf(prefill, decode string) string {
	if e.Role == messages.Role_ROLE_PREFILL {
		return decode
	}
	return prefill
}

func (e *Engine) onPairUp(c actor.Context, m *PairUp) {
	if !e.ours(m.Pairing.Prefill, m.Pairing.Decode) {
		return
	}
	peer := e.peerOf(m.Pairing.Prefill, m.Pairing.Decode)
	e.Pairs[peer] = m.Pairing
	delete(e.waiting, peer)
	e.EachRoom(func(r *RoomBase) {
		if r.Peer == peer && r.Pairing == nil {
			e.Pair(c, r)
		}
	})
}

// Pair gives a room its pairing, if there is one now, and what the room has to
// know of its nodes.
func (e *Engine) Pair(c actor.Context, r *RoomBase) {
	p := e.Pairs[r.Peer]
	if p == nil || r.Pairing != nil || e.Role == messages.Role_ROLE_DECODE && e.waiting[r.Peer] {
		return
	}
	r.Pairing = p
	e.Tell(c, r, transfer.Paired{Pairing: p})
	for node := range e.suspects {
		if engines := enginesAt(p, node, e.Self); len(engines) > 0 {
			e.Tell(c, r, transfer.Suspect{Engines: engines, Suspect: true})
		}
	}
}

// onPairUnfit ends the rooms that wait for a pairing that will not come.
func (e *Engine) onPairUnfit(c actor.Context, m *PairUnfit) {
	if !e.ours(m.Prefill, m.Decode) {
		return
	}
	peer := e.peerOf(m.Prefill, m.Decode)
	if m.Cause == nil {
		delete(e.unfit, peer)
		return
	}
	e.unfit[peer] = m.Cause
	e.EachRoom(func(r *RoomBase) {
		if r.Peer == peer && r.Pairing == nil {
			e.Tell(c, r, transfer.Abort{Cause: m.Cause})
		}
	})
}

// Unfit is why no room with a peer instance is ever paired; nil: that is not known.
func (e *Engine) Unfit(peer string) *messages.Cause { return e.unfit[peer] }

func (e *Engine) onPairDown(c actor.Context, m *PairDown) {
	if !e.ours(m.Prefill, m.Decode) {
		return
	}
	peer := e.peerOf(m.Prefill, m.Decode)
	delete(e.Pairs, peer)
	delete(e.waiting, peer)
	e.EachRoom(func(r *RoomBase) {
		if r.Peer == peer {
			e.Tell(c, r, transfer.Unpaired{Instance: peer, Cause: m.Cause})
		}
	})
}

func (e *Engine) lost(c actor.Context, r *RoomBase, m *EngineLost) {
	if r.Pairing == nil {
		return
	}
	member, ok := r.Pairing.Member(m.Engine.Instance == r.Pairing.Prefill, m.Engine.Rank)
	if ok && member.Engine == m.Engine {
		e.Tell(c, r, transfer.PeerLost{Engine: m.Engine, Cause: m.Cause})
	}
}
