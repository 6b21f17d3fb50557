package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transfer"
)

// messageCount counts the messages that the actors of a node receive while it is on,
// by the kind of actor and what the message says.
type messageCount struct {
	on atomic.Bool

	mu     sync.Mutex
	counts map[string]uint64
}

// middleware counts in front of each actor.
func (m *messageCount) middleware(next actor.ReceiverFunc) actor.ReceiverFunc {
	return func(c actor.ReceiverContext, e *actor.MessageEnvelope) {
		if m.on.Load() {
			m.add(actorKind(c.Self().Id) + " <- " + describeMessage(e.Message))
		}
		next(c, e)
	}
}

func (m *messageCount) add(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[key]++
}

// take is what was counted since the last time.
func (m *messageCount) take() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := m.counts
	m.counts = make(map[string]uint64)
	return counts
}

// actorKind is what an actor is, by its place in the tree.
func actorKind(id string) string {
	parts := strings.Split(id, "/")
	switch {
	case len(parts) < 2:
		return "root"
	case parts[1] == actors.PeersName && len(parts) > 2:
		return "peer"
	case parts[1] == actors.EnginesName && len(parts) > 3:
		return "room"
	case parts[1] == actors.EnginesName && len(parts) > 2:
		return "engine"
	}
	return parts[1]
}

// describeMessage is the type of a message, and what is in it.
func describeMessage(m any) string {
	switch m := m.(type) {
	case *messages.Envelope:
		if r := m.GetRoom(); r != nil {
			return "Envelope " + typeName(r.Unwrap())
		}
		return "Envelope " + strings.TrimPrefix(typeName(m.GetBody()), "Envelope_")
	case *actors.ToPeer:
		return "ToPeer " + bodyName(m.Body)
	case *actors.FromPeer:
		return "FromPeer " + bodyName(m.Body)
	case *actors.RoomEvent:
		if r, ok := m.Event.(transfer.Received); ok {
			return "RoomEvent Received " + typeName(r.Body)
		}
		return "RoomEvent " + typeName(m.Event)
	case *actors.RoomEffects:
		var names []string
		for _, e := range m.Effects {
			if s, ok := e.(transfer.Send); ok {
				names = append(names, "Send "+typeName(s.Body))
			} else {
				names = append(names, typeName(e))
			}
		}
		return "RoomEffects " + strings.Join(names, ", ")
	}
	return typeName(m)
}

func bodyName(body any) string {
	if r, ok := body.(*messages.Room); ok {
		return typeName(r.Unwrap())
	}
	return typeName(body)
}

// typeName is the name of a type without its package.
func typeName(v any) string {
	name := fmt.Sprintf("%T", v)
	return name[strings.LastIndexByte(name, '.')+1:]
}
