// Package prefill is the actor of a prefill engine: it owns the engine's source
// pages and has a child per room, the sender. It carries out what senders ask
// for, and is the only one that gives a page back to the pool.
package prefill

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// room is what the engine holds for one sender.
//
// Invariant: at is taken from the pools from when the caller was told of it until
// both have let go: the caller, which computes into it, and
// the machine, whose writes read them (if its actor died: until the transport
// said that the room is quiesced).
type room struct {
	*actors.RoomBase
	tag rdma.Tag

	opened    bool // the caller has opened it; else a grant came first
	handle    actors.Handle
	tokens    uint64 // of the request, once opened
	computed  uint64 // tokens that chunks have covered
	at        kv.Placement
	holds     bool   // at is taken
	freed     bool   // the caller does not write into it any more
	bytes     uint64 // landed
	copies    uint64 // planned
	voted     bool   // Done was sent: this side says failed no more
	successor bool   // of an actor that died; it only tells the others
	unknown   []rdma.Generation
	granted   []messages.Engine // whose grant was heard
	decodeDP  int               // of who was heard
}

// holding is what is taken from the pools for a room.
type holding struct {
	handle actors.Handle // whose it is
	at     kv.Placement
}

// Actor is one prefill engine.
type Actor struct {
	*actors.Engine

	// Owned by Receive.
	serving  bool
	rooms    map[messages.RoomID]*room
	held     map[messages.RoomID]holding // of rooms that are unpinned, the callers' alone
	pools    *actors.Pools
	waiting  actors.Waiting[*actors.OpenSend]
	unopened int // rooms that only a grant has opened
	timer    *actors.Timer
}

// New is the Props of a prefill engine's actor.
func New(config actors.EngineConfig) (*actor.Props, error) {
	engine, err := actors.NewEngine(config, messages.Role_ROLE_PREFILL)
	if err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	return engine.Env.Props(func() actor.Actor {
		return &Actor{
			Engine: engine,
			rooms:  map[messages.RoomID]*room{},
			held:   map[messages.RoomID]holding{},
			pools:  actors.NewPools(engine.Layout, engine.Self.Rank, engine.Kv.Meta.Rows),
		}
	}), nil
}

// Receive is called by the actor system.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.timer = actors.NewTimer(a.Env, c)
		a.Start(c)
	case *actors.MemoryRegistered:
		a.OnMemoryRegistered(c, m)
	case *actors.EngineAttached:
		a.serving = a.OnAttached(c, m)
	case *actors.OpenSend:
		a.onOpenSend(c, m)
	case *actors.SendChunk:
		a.onSendChunk(c, m)
	case *actors.AbortRoom:
		a.onAbortRoom(c, m)
	case *actors.FreePages:
		a.onFreePages(c, m)
	case *actors.FromPeer:
		a.onFromPeer(c, m)
	case *actors.RoomEffects:
		a.onRoomEffects(c, m)
	case *actors.WriteDone:
		a.onWriteDone(c, m)
	case *actors.WriteNotTaken:
		a.TellID(c, m.Room, transfer.NotTaken{Write: m.Write, Err: m.Err})
	case *actors.RoomQuiesced:
		a.onRoomQuiesced(c, m)
	case *actors.Tick:
		a.onTick(c, m)
	case *actors.DrainEngine:
		a.OnDrain(m, a.waiting.Len())
	case *actors.Inspect:
		m.Reply(a.inspect())
	case *actors.RoomGone:
		a.onRoomGone(c, m)
	case *actor.Terminated:
		a.OnTerminated(c, m)
	case *actor.Stopping:
		a.onStopping()
	case *actor.Stopped, *actor.Restarting:
	default:
		if !a.OnLink(c, m) {
			a.Env.Unexpected(c)
		}
	}
}

// onOpenSend opens a room, or lets the caller wait for pages.
func (a *Actor) onOpenSend(c actor.Context, m *actors.OpenSend) {
	if m.Wait == 0 {
		m.Wait = a.Limits.Wait
	}
	if err := a.admit(m); err != nil {
		m.Opened(nil, err)
		return
	}
	a.supersedeEarlier(c, m.Room)
	a.waiting.Add(m, a.Env.Clock.Now().Add(m.Wait))
	a.serve(c)
}

// supersedeEarlier ends an earlier attempt, open or waiting.
func (a *Actor) supersedeEarlier(c actor.Context, id messages.RoomID) {
	if r := a.Earlier(id); r != nil {
		a.supersede(c, r)
	}
	for _, w := range a.waiting.Remove(func(w *actors.OpenSend) bool {
		return w.Room.Room == id.Room && w.Room.Attempt < id.Attempt
	}) {
		a.refuse(c, w, a.Superseded(w.Room, id.Attempt).Cause)
	}
}

// admit says why a room cannot be opened now or ever.
func (a *Actor) admit(m *actors.OpenSend) error {
	id := m.Room
	refuse := func(kind messages.CauseKind, format string, args ...any) error {
		return &actors.RefusedError{Room: id, Kind: kind, Text: fmt.Sprintf(format, args...)}
	}
	if !a.serving || a.Draining() {
		return refuse(messages.CauseKind_CAUSE_DETACHED, "engine %s takes no rooms: it is not attached, or its node is leaving", a.Self)
	}
	if m.Tokens == 0 {
		return refuse(messages.CauseKind_CAUSE_BAD_CHUNK, "tokens is 0, want at least 1")
	}
	if m.Tokens > transfer.LengthMost {
		return refuse(messages.CauseKind_CAUSE_BAD_CHUNK, "tokens is %d, want at most %d", m.Tokens, uint64(transfer.LengthMost))
	}
	if why := a.pools.TooLarge(0, m.Tokens); why != "" {
		return refuse(messages.CauseKind_CAUSE_NO_CAPACITY, "%s", why)
	}
	if a.waiting.Len() >= a.Limits.Waiting {
		return refuse(messages.CauseKind_CAUSE_NO_CAPACITY, "%d callers wait for pages already, the limit is %d", a.waiting.Len(), a.Limits.Waiting)
	}
	if r := a.rooms[id]; r != nil && r.opened {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "room %s is open already", id)
	}
	if _, held := a.held[id]; held {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "the pages of room %s were not freed", id)
	}
	if a.waits(id) {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "room %s waits for pages already", id)
	}
	return a.EndedError(id)
}

func (a *Actor) waits(id messages.RoomID) bool {
	return a.waiting.Has(func(m *actors.OpenSend) bool { return m.Room == id })
}

// serve opens rooms for those who wait, in order, as far as the pool goes. A room
// whose earlier attempt has not ended keeps nobody else waiting.
func (a *Actor) serve(c actor.Context) {
	for {
		m, ok := a.waiting.First(func(m *actors.OpenSend) bool { return a.Earlier(m.Room) == nil })
		if !ok || a.Open() >= a.Limits.Rooms && a.rooms[m.Room] == nil {
			break
		}
		if err := a.EndedError(m.Room); err != nil { // it has ended meanwhile, before it began here
			a.dequeue(m)
			m.Opened(nil, err)
			continue
		}
		if !a.open(c, m) {
			break
		}
	}
	a.timer.At(a.waiting.Due())
	a.Drained(a.waiting.Len())
}

func (a *Actor) dequeue(m *actors.OpenSend) {
	a.waiting.Remove(func(w *actors.OpenSend) bool { return w == m })
}

// refuse ends the waiting of a caller that is out of the queue.
func (a *Actor) refuse(_ actor.Context, w *actors.OpenSend, cause *messages.Cause) {
	a.Records.Put(a.Env.Clock.Now(), w.Room, "", &messages.Outcome{Cause: cause})
	w.Opened(nil, &actors.RefusedError{Room: w.Room, Kind: cause.Kind, Text: cause.Text})
}

// open takes pages for a room and tells its machine and its caller. False: there
// are not enough.
func (a *Actor) open(c actor.Context, m *actors.OpenSend) bool {
	at, ok := a.pools.Take(0, m.Tokens)
	if !ok {
		return false
	}
	r := a.rooms[m.Room]
	known := r != nil
	if !known {
		r = a.begin(c, m.Room, true, m.Wait)
	} else {
		a.unopened--
	}
	a.dequeue(m)
	r.opened, r.handle, r.tokens, r.RoomBase.Ended = true, m.Handle, m.Tokens, m.Ended
	r.at, r.holds = at, true
	if known {
		a.Tell(c, r.RoomBase, transfer.Open{Wait: m.Wait})
	}
	m.Opened(&actors.Opened{At: at}, nil)
	return true
}

// onSendChunk gives the machine what one prefill step finished.
func (a *Actor) onSendChunk(c actor.Context, m *actors.SendChunk) {
	r := a.rooms[m.Room]
	if r == nil || r.handle != m.Handle || !r.holds {
		return // the caller's room has ended, and it was told
	}
	bad := ""
	switch {
	case r.computed == r.tokens:
		bad = fmt.Sprintf("chunk ends at token %d, want none: all %d tokens are sent already", m.To, r.tokens)
	case m.To <= r.computed || m.To > r.tokens:
		bad = fmt.Sprintf("chunk ends at token %d, want more than %d and at most %d", m.To, r.computed, r.tokens)
	case !m.Whole && m.Layers < 1:
		bad = fmt.Sprintf("chunk has the layers below %d, want at least 1", m.Layers)
	}
	if bad != "" {
		a.Tell(c, r.RoomBase, transfer.Abort{Cause: a.Cause(messages.CauseKind_CAUSE_BAD_CHUNK, bad)})
		return
	}
	chunk := transfer.Chunk{From: r.computed, To: m.To, Layers: m.Layers, Source: r.at, Last: m.To == r.tokens}
	if m.Whole {
		r.computed = m.To
		if chunk.Last {
			a.StampMeta(r.at.MetaRow, r.ID)
		}
	}
	a.Tell(c, r.RoomBase, chunk)
}

func (a *Actor) onAbortRoom(c actor.Context, m *actors.AbortRoom) {
	cause := a.Cause(messages.CauseKind_CAUSE_ABORTED, m.Reason)
	waited := a.waiting.Remove(func(w *actors.OpenSend) bool { return w.Handle == m.Handle })
	for _, w := range waited {
		a.refuse(c, w, cause)
	}
	// A room that a grant has opened is of whoever waits for pages for it.
	if r := a.rooms[m.Room]; r != nil && (r.handle == m.Handle || len(waited) > 0) {
		a.Tell(c, r.RoomBase, transfer.Abort{Cause: cause})
	}
	a.serve(c)
}

func (a *Actor) onTick(c actor.Context, m *actors.Tick) {
	if !m.Live() {
		return
	}
	for _, w := range a.waiting.Expired(a.Env.Clock.Now()) {
		cause := a.Cause(messages.CauseKind_CAUSE_NO_CAPACITY, fmt.Sprintf(
			"waited %v for the pages of %d tokens: %s", w.Wait, w.Tokens, a.pools.Free()))
		if r := a.rooms[w.Room]; r != nil {
			a.Tell(c, r.RoomBase, transfer.Abort{Cause: cause})
		}
		a.refuse(c, w, cause)
	}
	a.serve(c)
}

func (a *Actor) inspect() actors.Holding {
	h := a.Hold(a.pools, a.waiting.Len())
	h.Held = len(a.held)
	return h
}

func (a *Actor) onStopping() {
	a.timer.Stop()
	a.Stop()
	for _, w := range a.waiting.Remove(func(*actors.OpenSend) bool { return true }) {
		w.Opened(nil, &actors.RefusedError{Room: w.Room, Kind: messages.CauseKind_CAUSE_DETACHED, Text: "the engine is being detached"})
	}
}
