package actors

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// StopOnPanic is how KVFerry's actors supervise: the child that panicked stops,
// after its own children, and never comes back empty under the same name, for it
// may have had writes in flight. Its parent sees *actor.Terminated, fences what
// the child had, and then decides what to spawn.
var StopOnPanic actor.SupervisorStrategy = stopOnPanic{}

type stopOnPanic struct{}

// HandleFailure stops the child, and publishes it for metrics.
func (stopOnPanic) HandleFailure(system *actor.ActorSystem, supervisor actor.Supervisor, child *actor.PID,
	_ *actor.RestartStatistics, reason, _ any) {
	system.EventStream.Publish(&actor.SupervisorEvent{Child: child, Reason: reason, Directive: actor.StopDirective})
	supervisor.StopChildren(child)
}

// cell is one instance of an actor. It logs a panic with its stack, which the runtime
// does not, and passes it on to the supervisor. A panic of an actor that is stopping
// already ends here: passed on, it would keep the runtime from finishing the stop, and
// the parent would wait for its Terminated for ever.
//
// It does so around the actor itself, not as a middleware of the runtime, which would
// wrap each message once more.
type cell struct {
	env      *Env
	actor    actor.Actor
	stopping bool // owned by Receive
}

// Receive is called by the actor system.
func (k *cell) Receive(c actor.Context) {
	if _, ok := c.Message().(*actor.Stopping); ok {
		k.stopping = true
	}
	defer k.crashed(c)
	k.actor.Receive(c)
}

// crashed is deferred by Receive.
func (k *cell) crashed(c actor.Context) {
	r := recover()
	if r == nil {
		return
	}
	k.env.Log.Error("actor panicked",
		zap.String("pid", c.Self().GetId()),
		zap.String("message", fmt.Sprintf("%T", c.Message())),
		zap.Bool("stopping", k.stopping),
		zap.Any("reason", r),
		zap.StackSkip("stack", 1))
	if !k.stopping {
		panic(r)
	}
}
