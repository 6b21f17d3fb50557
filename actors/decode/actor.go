// Package decode is the actor of a decode engine: it owns the engine's pages and
// has a child per room, the receiver. It carries out what receivers ask for, and
// is the only one that gives a page back to the pool.
package decode

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transfer"
)

// Actor is one decode engine.
type Actor struct {
	*actors.Engine

	// Owned by Receive.
	serving     bool
	rooms       map[messages.RoomID]*room
	held        map[messages.RoomID]holding // of rooms that are released, the callers' alone
	pools       *actors.Pools
	waiting     actors.Waiting[*actors.OpenReceive]
	unannounced actors.Claim                 // of the rooms that prefill has not announced
	inquiries   map[messages.RoomID]*inquiry // about rooms that wait behind the share
	votes       *transfer.EarlyVotes
	timer       *actors.Timer
}

// New is the Props of a decode engine's actor.
func New(config actors.EngineConfig) (*actor.Props, error) {
	engine, err := actors.NewEngine(config, messages.Role_ROLE_DECODE)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return engine.Env.Props(func() actor.Actor {
		return &Actor{
			Engine:    engine,
			rooms:     map[messages.RoomID]*room{},
			held:      map[messages.RoomID]holding{},
			inquiries: map[messages.RoomID]*inquiry{},
			pools:     actors.NewPools(engine.Layout, engine.Self.Rank, engine.Kv.Meta.Rows),
			votes:     transfer.NewEarlyVotes(engine.EngineConfig.Rooms),
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
	case *actors.OpenReceive:
		a.onOpenReceive(c, m)
	case *actors.AbortRoom:
		a.onAbortRoom(c, m)
	case *actors.FreePages:
		a.onFreePages(c, m)
	case *actors.FromPeer:
		a.onFromPeer(c, m)
	case *actors.RoomEffects:
		a.onRoomEffects(c, m)
	case *actors.GrantInstalled:
		a.TellID(c, m.Room, transfer.GrantInstalled{Grant: m.Grant, Err: m.Err})
	case *actors.GrantArrived:
		a.onGrantArrived(c, m)
	case *actors.GrantRevoked:
		a.onGrantRevoked(c, m)
	case *actors.LinkFenced:
		a.OnLink(c, m)
		a.onLinkFenced(c, m)
	case *actors.PairUnfit:
		a.OnLink(c, m)
		a.onPairUnfit(c, m)
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

// onOpenReceive opens a room, or lets the caller wait for pages.
func (a *Actor) onOpenReceive(c actor.Context, m *actors.OpenReceive) {
	if m.Wait == 0 {
		m.Wait = a.Limits.Wait
	}
	if err := a.admit(m); err != nil {
		m.Opened(nil, err)
		return
	}
	a.supersedeEarlier(c, m.Room)
	if cause := a.noCapacity(m); cause != nil {
		a.refuse(c, m, cause)
		return
	}
	a.waiting.Add(m, a.Env.Clock.Now().Add(m.Wait))
	a.serve(c)
}

// supersedeEarlier ends an earlier attempt, open or waiting.
func (a *Actor) supersedeEarlier(c actor.Context, id messages.RoomID) {
	if r := a.Earlier(id); r != nil {
		a.supersede(c, r)
	}
	for _, w := range a.waiting.Remove(func(w *actors.OpenReceive) bool {
		return w.Room.Room == id.Room && w.Room.Attempt < id.Attempt
	}) {
		a.refuse(c, w, a.Superseded(w.Room, id.Attempt).Cause)
	}
}

// admit says why a caller has no claim to a room.
func (a *Actor) admit(m *actors.OpenReceive) error {
	id := m.Room
	refuse := func(kind messages.CauseKind, format string, args ...any) error {
		return &actors.RefusedError{Room: id, Kind: kind, Text: fmt.Sprintf(format, args...)}
	}
	if !a.serving || a.Draining() {
		return refuse(messages.CauseKind_CAUSE_DETACHED, "engine %s takes no rooms: it is not attached, or its node is leaving", a.Self)
	}
	if m.Prefill == "" || m.PrefillDP < 0 {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "prefill is %q dp %d, want the name of an instance and a dp rank of at least 0", m.Prefill, m.PrefillDP)
	}
	if m.Length > transfer.LengthMost {
		return refuse(messages.CauseKind_CAUSE_BAD_CHUNK, "length is %d, want at most %d", m.Length, uint64(transfer.LengthMost))
	}
	if m.Length == 0 || m.Prefix > m.Length {
		return refuse(messages.CauseKind_CAUSE_BAD_CHUNK, "prefix is %d and length %d, want a length of at least 1 and a prefix of at most the length", m.Prefix, m.Length)
	}
	if why := a.Unfit(m.Prefill); why != nil {
		return refuse(why.Kind, "%s", why.Text)
	}
	if p := a.Pairs[m.Prefill]; p != nil && m.PrefillDP >= p.Fit.Prefill().DP {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "prefill dp rank is %d, instance %s has %d", m.PrefillDP, m.Prefill, p.Fit.Prefill().DP)
	}
	if _, held := a.held[id]; held {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "the pages of room %s were not freed", id)
	}
	if a.rooms[id] != nil || a.waits(id) {
		return refuse(messages.CauseKind_CAUSE_PROTOCOL, "room %s is open already", id)
	}
	return a.EndedError(id)
}

// noCapacity says why a room that may be opened cannot even wait for pages.
func (a *Actor) noCapacity(m *actors.OpenReceive) *messages.Cause {
	refuse := func(format string, args ...any) *messages.Cause {
		return a.Cause(messages.CauseKind_CAUSE_NO_CAPACITY, fmt.Sprintf(format, args...))
	}
	if why := a.pools.TooLarge(m.Prefix, m.Length); why != "" {
		return refuse("%s", why)
	}
	if a.waiting.Len() >= a.Limits.Waiting {
		return refuse("%d callers wait for pages already, the limit is %d", a.waiting.Len(), a.Limits.Waiting)
	}
	return nil
}

func (a *Actor) waits(id messages.RoomID) bool {
	return a.waiting.Has(func(m *actors.OpenReceive) bool { return m.Room == id })
}

// refuse answers a caller that is not, or no more, in the queue. Prefill may have
// the room already: a receiver without pages declines it.
func (a *Actor) refuse(c actor.Context, w *actors.OpenReceive, cause *messages.Cause) {
	delete(a.inquiries, w.Room)
	w.Opened(nil, &actors.RefusedError{Room: w.Room, Kind: cause.Kind, Text: cause.Text})
	if a.Pairs[w.Prefill] == nil || a.Open() >= a.Limits.Rooms || a.rooms[w.Room] != nil ||
		a.Draining() || cause.Kind == messages.CauseKind_CAUSE_SUPERSEDED { // the later attempt tells the writers itself
		a.Records.Put(a.Env.Clock.Now(), w.Room, w.Prefill, &messages.Outcome{Cause: cause})
		return
	}
	a.decline(c, w, cause)
}

// serve opens rooms for those who wait, in order, as far as the pool goes. A room
// whose earlier attempt has not ended keeps nobody else waiting.
func (a *Actor) serve(c actor.Context) {
	for a.Open() < a.Limits.Rooms {
		m, ok := a.waiting.First(a.mayBegin)
		if !ok {
			break
		}
		if err := a.EndedError(m.Room); err != nil { // it has ended meanwhile, before it began here
			a.dequeue(m)
			m.Opened(nil, err)
			continue
		}
		if a.open(c, m) {
			continue
		}
		if a.mayHold(m) || !a.openBehind(c, m) {
			break
		}
	}
	a.timer.At(earlier(a.waiting.Due(), a.inquire(c)))
	a.Drained(a.waiting.Len())
}

func (a *Actor) mayBegin(m *actors.OpenReceive) bool { return a.Earlier(m.Room) == nil }

func (a *Actor) dequeue(m *actors.OpenReceive) {
	a.waiting.Remove(func(w *actors.OpenReceive) bool { return w == m })
	delete(a.inquiries, m.Room)
}

// open takes pages for a room, begins it and takes it out of the queue. False:
// there are not enough pages, or too many are held by rooms that prefill does not
// know yet.
func (a *Actor) open(c actor.Context, m *actors.OpenReceive) bool {
	if !a.mayHold(m) {
		return false
	}
	at, ok := a.pools.Take(m.Prefix, m.Length)
	if !ok {
		return false
	}
	a.ClearMeta(at.MetaRow)
	a.begin(c, m, holding{handle: m.Handle, at: at})
	a.dequeue(m)
	m.Opened(&actors.Opened{At: at}, nil)
	return true
}

// inShare answers whether a room, beside others that prefill has not announced, is
// within the share of the pools that those may hold.
func (a *Actor) inShare(m *actors.OpenReceive, beside actors.Claim) bool {
	return a.pools.Within(a.pools.Claim(m.Prefix, m.Length), beside, a.Limits.UnannouncedShare)
}

// mayHold keeps that share. A room that is larger alone waits for its
// announcement.
func (a *Actor) mayHold(m *actors.OpenReceive) bool {
	return a.announced(m.Room) || a.inShare(m, a.unannounced)
}

// onPairUnfit refuses those that wait for pages for a room that is never paired.
func (a *Actor) onPairUnfit(c actor.Context, m *actors.PairUnfit) {
	for _, w := range a.waiting.Remove(func(w *actors.OpenReceive) bool { return a.Unfit(w.Prefill) != nil }) {
		a.refuse(c, w, a.Unfit(w.Prefill))
	}
	a.serve(c)
}

func (a *Actor) onAbortRoom(c actor.Context, m *actors.AbortRoom) {
	cause := a.Cause(messages.CauseKind_CAUSE_ABORTED, m.Reason)
	if r := a.rooms[m.Room]; r != nil && r.ask.Handle == m.Handle {
		a.Tell(c, r.RoomBase, transfer.Abort{Cause: cause})
		return
	}
	for _, w := range a.waiting.Remove(func(w *actors.OpenReceive) bool { return w.Handle == m.Handle }) {
		a.refuse(c, w, cause)
	}
	a.serve(c)
}

func (a *Actor) onTick(c actor.Context, m *actors.Tick) {
	if !m.Live() {
		return
	}
	for _, w := range a.waiting.Expired(a.Env.Clock.Now()) {
		a.refuse(c, w, a.Cause(messages.CauseKind_CAUSE_NO_CAPACITY, fmt.Sprintf(
			"waited %v for the pages of tokens %d to %d: %s, and prefill has yet to announce %d rooms",
			w.Wait, w.Prefix, w.Length, a.pools.Free(), a.unannouncedRooms())))
	}
	a.serve(c)
}

func (a *Actor) inspect() actors.Holding {
	h := a.Hold(a.pools, a.waiting.Len())
	h.Held = len(a.held)
	for _, r := range a.rooms {
		if r.quarantined {
			h.Quarantined += actors.PagesOf(r.hold.at)
		}
		if !r.announced {
			h.Unannounced += actors.PagesOf(r.hold.at)
		}
	}
	return h
}

func (a *Actor) unannouncedRooms() int {
	n := 0
	for _, r := range a.rooms {
		if !r.announced {
			n++
		}
	}
	return n
}

func (a *Actor) onStopping() {
	a.timer.Stop()
	a.Stop()
	for _, w := range a.waiting.Remove(func(*actors.OpenReceive) bool { return true }) {
		w.Opened(nil, &actors.RefusedError{Room: w.Room, Kind: messages.CauseKind_CAUSE_DETACHED, Text: "the engine is being detached"})
	}
}
