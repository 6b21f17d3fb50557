package actors

import (
	"fmt"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/messages"
)

// SpawnEngine starts the actor of an engine. (node -> engines)
type SpawnEngine struct {
	Engine messages.Engine
	Props  *actor.Props
	Reply  func(*actor.PID, error)
}

// StopEngine detaches an engine. Done is called when its actor, and all that it
// had in flight, is gone. (node -> engines)
type StopEngine struct {
	Engine messages.Engine
	Done   func()
}

// DrainEngines drains every engine of the node. (node -> engines)
type DrainEngines struct{ Done func() }

// Engines is the supervisor of the engine actors of a node: it finds the engine
// that a message is for, and tells all of them what happens to nodes. When one
// dies, it has the transport end what that one had in flight.
type Engines struct {
	env       *Env
	transport *actor.PID
	registry  *actor.PID
	peer      func(messages.Node) *actor.PID

	// Owned by Receive.
	engines map[string]*engineEntry // by name
}

type engineEntry struct {
	engine messages.Engine
	pid    *actor.PID
	done   []func()
}

// NewEngines is the Props of the supervisor of engines.
func NewEngines(env *Env, transport, registry *actor.PID, peer func(messages.Node) *actor.PID) *actor.Props {
	return env.Props(func() actor.Actor {
		return &Engines{env: env, transport: transport, registry: registry, peer: peer, engines: map[string]*engineEntry{}}
	})
}

// Receive is called by the actor system.
func (e *Engines) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *SpawnEngine:
		e.onSpawnEngine(c, m)
	case *StopEngine:
		e.onStopEngine(c, m)
	case *DrainEngines:
		e.onDrainEngines(c, m)
	case *FromPeer:
		e.onFromPeer(c, m)
	case *PairUp, *PairWaiting, *PairDown, *EngineLost, *LinkUp, *LinkDown, *LinkSuspect, *LinkFenced, *LinkLost:
		e.forward(c, m)
	case *actor.Terminated:
		e.onTerminated(c, m)
	case *actor.Started, *actor.Stopping, *actor.Stopped, *actor.Restarting:
	default:
		e.env.Unexpected(c)
	}
}

func (e *Engines) onSpawnEngine(c actor.Context, m *SpawnEngine) {
	name := EngineName(m.Engine)
	if old := e.engines[name]; old != nil {
		m.Reply(nil, fmt.Errorf("engine %s is attached to this node already, as %s", m.Engine, old.engine))
		return
	}
	pid, err := c.SpawnNamed(m.Props, name)
	if err != nil {
		m.Reply(nil, fmt.Errorf("engine %s: %w", m.Engine, err))
		return
	}
	e.engines[name] = &engineEntry{engine: m.Engine, pid: pid}
	m.Reply(pid, nil)
}

func (e *Engines) onStopEngine(c actor.Context, m *StopEngine) {
	entry := e.engines[EngineName(m.Engine)]
	if entry == nil || entry.engine != m.Engine {
		m.Done()
		return
	}
	entry.done = append(entry.done, m.Done)
	c.Stop(entry.pid)
}

func (e *Engines) onDrainEngines(c actor.Context, m *DrainEngines) {
	var left atomic.Int64 // the engines answer from their own actors
	left.Store(int64(len(e.engines)) + 1)
	done := func() {
		if left.Add(-1) == 0 {
			m.Done()
		}
	}
	e.forward(c, &DrainEngine{Done: done})
	done()
}

// onFromPeer routes a room message by the engine that it is for.
func (e *Engines) onFromPeer(c actor.Context, m *FromPeer) {
	room, ok := m.Body.(*messages.Room)
	if !ok {
		e.env.Unexpected(c)
		return
	}
	to := room.GetTo().Engine()
	if entry := e.engines[EngineName(to)]; entry != nil {
		c.Send(entry.pid, m)
		return
	}
	if _, ok := room.Unwrap().(*messages.Answer); ok {
		return // answers are never answered
	}
	c.Send(e.peer(m.Node), &ToPeer{Node: m.Node, Body: messages.NewRoom(room.ID(), to, room.GetFrom().Engine(), &messages.Answer{
		Field: "to", Got: to.String(), Want: "an engine that is attached to this node",
	})})
}

func (e *Engines) forward(c actor.Context, m any) {
	for _, entry := range e.engines { // each to its own actor: the order between them is nobody's
		c.Send(entry.pid, m)
	}
}

// onTerminated is the detach of an engine, wished or not: what it had in flight
// is ended by the transport, which then forgets its memory.
func (e *Engines) onTerminated(c actor.Context, m *actor.Terminated) {
	for name, entry := range e.engines {
		if !entry.pid.Equal(m.Who) {
			continue
		}
		delete(e.engines, name)
		c.Send(e.registry, &DetachEngine{Engine: entry.engine, Cause: &messages.Cause{
			Kind: messages.CauseKind_CAUSE_DETACHED, Text: "engine " + entry.engine.String() + " is gone", Origin: entry.engine.String(),
		}})
		c.Send(e.transport, &EndOwner{Owner: entry.pid, Done: func(open int) {
			if open > 0 {
				e.env.Log.Error("engine ended with grants that nothing closed", zap.Stringer("engine", entry.engine), zap.Int("grants", open))
			}
			for _, done := range entry.done {
				done()
			}
		}})
	}
}
