// Package actors holds what all actors of a node share: the environment that
// they are made in, their names, and what happens when one of them panics.
package actors

import (
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/transport/rdma"
)

// Clock is where actors get the time from, so that a simulation can own it.
type Clock interface {
	// Now is the present, with a monotonic reading where there is one.
	Now() time.Time
	// AfterFunc calls f once, after d, in a goroutine of its own or in the
	// simulation's loop. After cancel returned f is not started any more; it may
	// still be running.
	AfterFunc(d time.Duration, f func()) (cancel func())
}

// RealClock is the machine's clock.
type RealClock struct{}

var _ Clock = RealClock{}

// Now is time.Now.
func (RealClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (RealClock) AfterFunc(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}

// Env is what every actor of one node is made with. The system belongs to the
// host program: from here it is never shut down and its Root never changed.
// An Env is shared by pointer and its fields do not change after the first Props.
type Env struct {
	System *actor.ActorSystem
	Clock  Clock
	Log    *zap.Logger

	// Names is the tree's place in the system; the zero value is "kvferry".
	Names Names

	// Base is applied to all Props before their own options: a simulation puts
	// its dispatcher, mailbox and fault-injecting middleware here. A panic of such a
	// middleware stops the actor without the log entry; of an actor that is stopping
	// already it must have none. nil in production.
	Base []actor.PropsOption

	// Lanes run the actors. nil: a goroutine for each mailbox that has something to do,
	// as the runtime does.
	Lanes *Lanes

	// GrantID draws the id of a grant. nil: from the system's source of chance,
	// so that nobody can guess one.
	GrantID func() rdma.GrantID

	ids atomic.Uint64
}

// NewGrantID draws the id of a grant.
func (e *Env) NewGrantID() rdma.GrantID {
	if e.GrantID != nil {
		return e.GrantID()
	}
	var id rdma.GrantID
	rand.Read(id[:]) // never fails: crypto/rand stops the program instead
	return id
}

// NextID is unique within this Env, never 0. An answer meant for an earlier
// instance of an actor is therefore never taken for one of the present.
func (e *Env) NextID() uint64 { return e.ids.Add(1) }

// Props makes the properties of a child actor. A panic in it is logged with its
// stack and stops it, and its parent sees *actor.Terminated; so do panics of its
// own children. Options given here win over Base.
//
// The actor is wrapped: Context.Actor is not the producer's value, and a
// HandleFailure method of it is not asked.
func (e *Env) Props(producer actor.Producer, options ...actor.PropsOption) *actor.Props {
	if e.Lanes != nil {
		return e.props(producer, e.Lanes, options)
	}
	return e.props(producer, goroutines, options)
}

// RoomProps is Props for the actor of a room: it runs in the goroutine of whoever
// sends to it, which nearly always is its engine, so that an event of a room costs a
// call and not a switch. It must send to its parent and not call into others.
func (e *Env) RoomProps(producer actor.Producer) *actor.Props { return e.props(producer, inline, nil) }

var (
	goroutines = actor.NewDefaultDispatcher(lanesThroughput)
	inline     = actor.NewSynchronizedDispatcher(lanesThroughput)
)

func (e *Env) props(producer actor.Producer, dispatcher actor.Dispatcher, options []actor.PropsOption) *actor.Props {
	all := []actor.PropsOption{
		actor.WithMailbox(newMailbox),
		actor.WithDispatcher(dispatcher),
		actor.WithSupervisor(StopOnPanic),
	}
	all = append(all, e.Base...)
	all = append(all, options...)
	return actor.PropsFromProducer(func() actor.Actor { return &cell{env: e, actor: producer()} }, all...)
}

// TopProps is Props for an actor that is spawned from the system's Root, which
// has no parent: without the guardian that this adds, the runtime would restart
// it, empty, after a panic. A child cannot be spawned with TopProps.
func (e *Env) TopProps(producer actor.Producer, options ...actor.PropsOption) *actor.Props {
	return e.Props(producer, append([]actor.PropsOption{actor.WithGuardian(StopOnPanic)}, options...)...)
}

// Timer delivers a *Tick to its actor. It belongs to that actor's Receive. Ticks
// of a stopped or re-armed timer are told apart by generation, so that one which
// is already in the mailbox does no harm.
type Timer struct {
	env        *Env
	self       *actor.PID
	generation uint64
	cancel     func()    // nil: not armed
	due        time.Time // of At; zero: armed by Start, or not at all
}

// Tick is what a Timer sends. Handle it only when it is Live.
type Tick struct {
	// T is the timer that it comes from, to tell several of one actor apart.
	T          *Timer
	generation uint64
}

// NewTimer makes a timer for the actor of c. It is not armed.
func NewTimer(e *Env, c actor.Context) *Timer { return &Timer{env: e, self: c.Self()} }

// Start arms the timer for one tick after d, and forgets what it was armed for.
func (t *Timer) Start(d time.Duration) {
	t.Stop()
	tick := &Tick{T: t, generation: t.generation}
	self, root := t.self, t.env.System.Root
	t.cancel = t.env.Clock.AfterFunc(d, func() { root.Send(self, tick) })
}

// Stop disarms the timer; no tick of it is Live any more. Call it in Stopping.
func (t *Timer) Stop() {
	t.generation++
	if t.cancel != nil {
		t.cancel()
	}
	t.cancel, t.due = nil, time.Time{}
}

// At arms the timer for a tick at due, or at once when that has passed; the zero time
// disarms it. One that is armed for an earlier time stays: deadlines mostly move on, and
// a tick that comes early finds nothing due and ends with the next call of At.
func (t *Timer) At(due time.Time) {
	switch {
	case due.IsZero():
		t.Stop()
	case t.cancel != nil && !t.due.IsZero() && !due.Before(t.due):
	default:
		t.Start(max(0, due.Sub(t.env.Clock.Now())))
		t.due = due
	}
}

// Live says, once, whether the tick is of its timer's present arming, which it
// ends.
func (k *Tick) Live() bool {
	if k.generation != k.T.generation || k.T.cancel == nil {
		return false
	}
	k.T.cancel, k.T.due = nil, time.Time{}
	return true
}
