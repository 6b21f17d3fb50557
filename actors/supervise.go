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

// cell is one instance of an actor, and whether it is on its way out.
type cell struct {
	actor.Actor
	stopping bool // owned by Receive
}

// crashLog logs a panic with its stack, which the runtime does not, and passes it
// on to the supervisor. A panic of an actor that is stopping already ends here:
// passed on, it would keep the runtime from finishing the stop, and the parent
// would wait for its Terminated for ever.
func (e *Env) crashLog(next actor.ReceiverFunc) actor.ReceiverFunc {
	return func(c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
		self, wrapped := c.Actor().(*cell)
		if _, ok := envelope.Message.(*actor.Stopping); ok && wrapped {
			self.stopping = true
		}
		defer func() {
			r := recover()
			if r == nil {
				return
			}
			stopping := wrapped && self.stopping
			e.Log.Error("actor panicked",
				zap.String("pid", c.Self().GetId()),
				zap.String("message", fmt.Sprintf("%T", envelope.Message)),
				zap.Bool("stopping", stopping),
				zap.Any("reason", r),
				zap.StackSkip("stack", 1))
			if !stopping {
				panic(r)
			}
		}()
		next(c, envelope)
	}
}
