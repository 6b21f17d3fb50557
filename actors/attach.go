package actors

import (
	"fmt"
	"maps"
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/messages"
	"kvferry/pairing"
)

// RefusedError is a room that an engine did not open.
type RefusedError struct {
	Room messages.RoomID
	Kind messages.CauseKind
	Text string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("room %s: %s", e.Room, e.Text) }

// Inspect asks an engine what it holds. (node -> engine)
type Inspect struct{ Reply func(Holding) }

// Holding is what an engine holds now. In rest, everything but Records is 0 or
// as it was at the start.
type Holding struct {
	Engine      messages.Engine
	Prefill     bool
	PagesTotal  uint32 // of all pools
	PagesFree   uint32
	SlotsTotal  uint32 // of state; 0: it keeps none
	SlotsFree   uint32
	RowsTotal   uint32
	RowsFree    uint32
	Rooms       int
	Waiting     int
	Held        int // rooms that ended, whose pages their callers have not freed
	Quarantined int // pages that no fence could free yet
	Unannounced int // decode: pages of rooms that prefill has not announced
	Records     int
	Pairs       []string // peer instances
}

// InspectTransport asks the transport actor what is in flight. (node -> transport)
type InspectTransport struct{ Reply func(InFlight) }

// InFlight is what the transport actor keeps. In rest, all but Sessions and
// Engines is 0.
type InFlight struct {
	Sessions int
	Engines  int // with registered memory
	Writes   int // posted and not completed
	Queued   int // that wait for a window
	Grants   int // in force, or left open by a revoke
	Rooms    int // whose writes were not quiesced yet
}

// DrainEngine has an engine refuse new rooms; Done is called when its last room
// has ended. (node -> engine)
type DrainEngine struct{ Done func() }

// OnDrain begins to drain. waiting is how many callers wait for pages.
func (e *Engine) OnDrain(m *DrainEngine, waiting int) {
	e.draining = true
	e.drained = append(e.drained, m.Done)
	e.Drained(waiting)
}

// Draining says whether the engine takes no new rooms.
func (e *Engine) Draining() bool { return e.draining }

// Drained tells those who asked once nothing is open any more.
func (e *Engine) Drained(waiting int) {
	if !e.draining || e.Open() > 0 || waiting > 0 {
		return
	}
	for _, done := range e.drained {
		done()
	}
	e.drained = nil
}

// EngineName names the place of an engine.
func EngineName(e messages.Engine) string {
	r := e.Rank
	return fmt.Sprintf("%s-dp%d-pp%d-cp%d-tp%d", e.Instance, r.DP, r.PP, r.CP, r.TP)
}

// EngineActorName names the actor of one attachment of an engine: what comes late
// for the one before does not reach it.
func EngineActorName(e messages.Engine) string {
	return fmt.Sprintf("%s-%x", EngineName(e), e.Incarnation)
}

// OnMemoryRegistered offers the engine to the registry, now that its memory can
// be reached: nobody is told of an engine whose pool is not registered.
func (e *Engine) OnMemoryRegistered(c actor.Context, m *MemoryRegistered) {
	if m.Err != nil {
		e.refuse(c, m.Err)
		return
	}
	e.Regions = m.Regions
	c.Send(e.Registry, &AttachEngine{
		Reply: c.Self(),
		Description: pairing.Describe(pairing.Described{
			Engine: e.Self, Role: e.Role, Model: e.Layout.Model,
			DP: e.Layout.DP, PP: e.Layout.PP, CP: e.Layout.CP, TP: e.Layout.TP, Split: e.Layout.Split,
			Kv: *e.Kv, Regions: m.Regions,
		}),
	})
}

// OnAttached takes the registry's answer, and reports whether the engine serves.
func (e *Engine) OnAttached(c actor.Context, m *EngineAttached) bool {
	if m.Err != nil {
		e.refuse(c, m.Err)
		return false
	}
	fields := []zap.Field{zap.Stringer("engine", e.Self)}
	for _, p := range e.Layout.Pools(e.Self.Rank) {
		of := ""
		if p.Window > 0 {
			of = fmt.Sprintf("_window_%d", p.Window)
		}
		fields = append(fields, zap.Uint32("pages"+of, p.Pages), zap.Uint32("page_tokens"+of, p.PageTokens))
	}
	if slots, has := e.Layout.Slots(e.Self.Rank); has {
		fields = append(fields, zap.Uint32("slots", slots))
	}
	e.Env.Log.Info("engine attached", fields...)
	e.attached(nil)
	return true
}

func (e *Engine) refuse(c actor.Context, err error) {
	e.attached(err)
	c.Stop(c.Self())
}

// attached answers whoever attached the engine, once.
func (e *Engine) attached(err error) {
	if e.Attached != nil {
		e.Attached(err)
		e.Attached = nil
	}
}

// Stop tells the callers. What the engine has in flight is ended by the supervisor
// of engines, which then takes it out of its roster.
func (e *Engine) Stop() {
	e.stopping = true
	cause := e.Cause(messages.CauseKind_CAUSE_DETACHED, fmt.Sprintf("engine %s was detached", e.Self))
	e.attached(fmt.Errorf("engine %s was stopped", e.Self))
	e.EachRoom(func(r *RoomBase) { r.Finish(&messages.Outcome{Cause: cause}, 0, 0) })
}

// EndedError is why a room cannot be opened any more: it has ended here, or a
// later attempt has begun. nil: it can.
func (e *Engine) EndedError(id messages.RoomID) error {
	if o := e.Records.Get(e.Env.Clock.Now(), id); o != nil {
		kind, text := messages.CauseKind_CAUSE_PROTOCOL, "it has completed"
		if o.GetCause() != nil {
			kind, text = o.Cause.Kind, o.Cause.Text
		}
		return &RefusedError{Room: id, Kind: kind, Text: "it has ended: " + text}
	}
	if newest, ok := e.newest(id.Room); ok && newest > id.Attempt {
		return &RefusedError{Room: id, Kind: messages.CauseKind_CAUSE_SUPERSEDED, Text: e.Superseded(id, newest).Cause.Text}
	}
	return nil
}

// Cause is a cause that this engine is the origin of.
func (e *Engine) Cause(kind messages.CauseKind, text string) *messages.Cause {
	return &messages.Cause{Kind: kind, Text: text, Origin: e.Self.String()}
}

// Hold is the part of Holding that both kinds of engine share.
func (e *Engine) Hold(p *Pools, waiting int) Holding {
	h := Holding{
		Engine: e.Self, Prefill: e.Role == messages.Role_ROLE_PREFILL,
		RowsTotal: p.rows.Total(), RowsFree: p.rows.Free(),
		Rooms: e.Open(), Waiting: waiting, Records: e.Records.Len(),
	}
	h.PagesFree, h.PagesTotal = p.Pages()
	if p.slots != nil {
		h.SlotsTotal, h.SlotsFree = p.slots.Total(), p.slots.Free()
	}
	h.Pairs = slices.Sorted(maps.Keys(e.Pairs))
	return h
}
