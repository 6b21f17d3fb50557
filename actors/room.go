package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/messages"
	"kvferry/transfer"
)

// RoomEffects is what a room's machine wants done, in order. (room -> its engine)
type RoomEffects struct {
	Room    messages.RoomID
	Effects []transfer.Effect
}

// RoomEvent is one event for a room's machine. (engine -> room)
type RoomEvent struct{ Event transfer.Event }

// Room drives the machine of one room: events in, effects to the engine actor,
// which is its parent and carries them out. So the engine knows all that a room
// has in flight, in the order in which it was asked for, and can end it when
// this actor dies.
type Room struct {
	// Fixed by NewRoom.
	env   *Env
	id    messages.RoomID
	begin func(now time.Time) (transfer.Machine, []transfer.Effect, error)

	// Owned by Receive.
	machine transfer.Machine
	timer   *Timer
}

// NewRoom is the Props of a room's actor. begin makes the machine; it is called
// once, in the actor, so that what it panics on is the room's death alone.
func NewRoom(env *Env, id messages.RoomID, begin func(now time.Time) (transfer.Machine, []transfer.Effect, error)) *actor.Props {
	return env.RoomProps(func() actor.Actor { return &Room{env: env, id: id, begin: begin} })
}

// Receive is called by the actor system.
func (r *Room) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		r.onStarted(c)
	case *RoomEvent:
		r.onEvent(c, m)
	case *Tick:
		r.onTick(c, m)
	case *actor.Stopping:
		r.onStopping()
	case *actor.Stopped, *actor.Restarting:
	default:
		r.env.Unexpected(c)
	}
}

func (r *Room) onStarted(c actor.Context) {
	r.timer = NewTimer(r.env, c)
	machine, effects, err := r.begin(r.env.Clock.Now())
	if err != nil {
		panic(err) // the engine checked what the caller gave; the rest is our fault
	}
	r.machine = machine
	r.carry(c, effects)
}

func (r *Room) onEvent(c actor.Context, m *RoomEvent) {
	r.carry(c, r.machine.Step(r.env.Clock.Now(), m.Event))
}

func (r *Room) onTick(c actor.Context, m *Tick) {
	if m.Live() {
		r.carry(c, r.machine.Step(r.env.Clock.Now(), transfer.Tick{}))
	}
}

func (r *Room) onStopping() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// carry hands effects to the engine and sets the timer for the next deadline.
func (r *Room) carry(c actor.Context, effects []transfer.Effect) {
	if len(effects) > 0 {
		c.Send(c.Parent(), &RoomEffects{Room: r.id, Effects: effects})
	}
	r.timer.At(r.machine.Deadline())
}
