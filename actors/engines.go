package actors

import (
	"fmt"
	"sync"
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
	Gone   func() // called once, when its actor is gone: nobody answers any more
}

// StopEngine detaches an engine. Done is called when its actor, and all that it
// had in flight, is gone, but for open grants that nothing could close: their
// memory may still be written. (node -> engines)
type StopEngine struct {
	Engine messages.Engine
	Done   func(open int)
}

// DrainEngines drains every engine of the node. (node -> engines)
type DrainEngines struct{ Done func() }

// engineEnded tells that nothing of an engine is in flight any more.
type engineEnded struct {
	entry *engineEntry
	open  int // grants that nothing closed
}

// Engines is the supervisor of the engine actors of a node: it finds the engine
// that a message is for, and tells all of them what happens to nodes. When one
// dies, it has the transport end what that one had in flight. Until that is done
// the place of the engine is taken, and it is still on its roster.
type Engines struct {
	env       *Env
	self      messages.Node
	transport *actor.PID
	registry  *actor.PID
	peer      func(messages.Node) *actor.PID

	// Owned by Receive.
	engines map[messages.Engine]*engineEntry // by place
}

type engineEntry struct {
	engine  messages.Engine
	pid     *actor.PID
	gone    func()
	ended   bool           // its actor is gone; what it had in flight may not be
	done    []func(int)    // who waits for the end of that
	drained []func()       // who waits for its last room
	next    []*SpawnEngine // that wait for the place
}

// place is what only one engine of a node may be: the rank of an instance.
func place(e messages.Engine) messages.Engine {
	e.Incarnation = 0
	return e
}

// NewEngines is the Props of the supervisor of engines.
func NewEngines(env *Env, self messages.Node, transport, registry *actor.PID, peer func(messages.Node) *actor.PID) *actor.Props {
	return env.Props(func() actor.Actor {
		return &Engines{env: env, self: self, transport: transport, registry: registry, peer: peer, engines: map[messages.Engine]*engineEntry{}}
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
	case *engineEnded:
		e.onEngineEnded(c, m)
	case *FromPeer:
		e.onFromPeer(c, m)
	case *PairUp, *PairWaiting, *PairUnfit, *PairDown, *EngineLost, *LinkUp, *LinkDown, *LinkSuspect, *LinkFenced, *LinkLost:
		e.forward(c, m)
	case *actor.Terminated:
		e.onTerminated(c, m)
	case *actor.Started, *actor.Stopping, *actor.Stopped, *actor.Restarting:
	default:
		e.env.Unexpected(c)
	}
}

func (e *Engines) onSpawnEngine(c actor.Context, m *SpawnEngine) {
	if old := e.engines[place(m.Engine)]; old != nil {
		if old.ended {
			old.next = append(old.next, m)
			return
		}
		m.Reply(nil, fmt.Errorf("engine %s is attached to this node already, as %s", m.Engine, old.engine))
		return
	}
	pid, err := c.SpawnNamed(m.Props, EngineActorName(m.Engine))
	if err != nil {
		m.Reply(nil, fmt.Errorf("engine %s: %w", m.Engine, err))
		return
	}
	e.engines[place(m.Engine)] = &engineEntry{engine: m.Engine, pid: pid, gone: m.Gone}
	m.Reply(pid, nil)
}

func (e *Engines) onStopEngine(c actor.Context, m *StopEngine) {
	entry := e.engines[place(m.Engine)]
	if entry == nil || entry.engine != m.Engine {
		m.Done(0)
		return
	}
	if entry.done = append(entry.done, m.Done); !entry.ended {
		c.Stop(entry.pid)
	}
}

// onDrainEngines waits for the last room of each engine, or for its end.
func (e *Engines) onDrainEngines(c actor.Context, m *DrainEngines) {
	var left atomic.Int64 // the engines answer from their own actors
	left.Store(int64(len(e.engines)) + 1)
	one := func() {
		if left.Add(-1) == 0 {
			m.Done()
		}
	}
	for _, entry := range e.engines {
		once := sync.OnceFunc(one)
		if entry.ended {
			once()
			continue
		}
		entry.drained = append(entry.drained, once)
		c.Send(entry.pid, &DrainEngine{Done: once})
	}
	one()
}

// onFromPeer routes a room message by the engine that it is for.
func (e *Engines) onFromPeer(c actor.Context, m *FromPeer) {
	room, ok := m.Body.(*messages.Room)
	if !ok {
		e.env.Unexpected(c)
		return
	}
	to := room.GetTo().Engine()
	if entry := e.engines[place(to)]; entry != nil && !entry.ended {
		c.Send(entry.pid, m)
		return
	}
	if _, ok := room.Unwrap().(*messages.Answer); ok {
		return // answers are never answered
	}
	answer := messages.NewRoom(room.ID(), to, room.GetFrom().Engine(), &messages.Answer{
		Field: "to", Got: to.String(), Want: "an engine that is attached to this node",
	})
	if m.Node == e.self {
		c.Send(c.Self(), &FromPeer{Node: e.self, Body: answer})
		return
	}
	c.Send(e.peer(m.Node), &ToPeer{Node: m.Node, Body: answer})
}

func (e *Engines) forward(c actor.Context, m any) {
	for _, entry := range e.engines { // each to its own actor: the order between them is nobody's
		if !entry.ended {
			c.Send(entry.pid, m)
		}
	}
}

// onTerminated is the end of an engine's actor, wished or not: what it had in
// flight is ended by the transport, which then forgets its memory.
func (e *Engines) onTerminated(c actor.Context, m *actor.Terminated) {
	for _, entry := range e.engines {
		if !entry.pid.Equal(m.Who) || entry.ended {
			continue
		}
		entry.ended = true
		entry.gone()
		for _, drained := range entry.drained {
			drained()
		}
		self, root := c.Self(), e.env.System.Root
		c.Send(e.transport, &EndOwner{Owner: entry.pid, Done: func(open int) {
			root.Send(self, &engineEnded{entry: entry, open: open})
		}})
	}
}

// onEngineEnded takes the engine out of its roster: now another may take its
// place.
func (e *Engines) onEngineEnded(c actor.Context, m *engineEnded) {
	entry := m.entry
	if m.open > 0 {
		e.env.Log.Error("engine ended with grants that nothing closed", zap.Stringer("engine", entry.engine), zap.Int("grants", m.open))
	}
	delete(e.engines, place(entry.engine))
	c.Send(e.registry, &DetachEngine{Engine: entry.engine, Cause: &messages.Cause{
		Kind: messages.CauseKind_CAUSE_DETACHED, Text: "engine " + entry.engine.String() + " was detached", Origin: entry.engine.String(),
	}})
	for _, done := range entry.done {
		done(m.open)
	}
	for _, next := range entry.next {
		e.onSpawnEngine(c, next)
	}
}
