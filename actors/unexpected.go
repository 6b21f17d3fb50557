package actors

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// Unexpected logs a message that an actor has no case for. It is a fault of
// ours, but not one to die of.
func (e *Env) Unexpected(c actor.Context) {
	e.Log.Error("unexpected message", zap.String("pid", c.Self().GetId()), zap.String("type", fmt.Sprintf("%T", c.Message())))
}
