package remoting

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// gate stands before everything that leaves for another node. Once its door is shut
// nothing passes, and nothing is inside: the framework's end races with its senders.
type gate struct {
	system *actor.ActorSystem
	door   *door
	max    int // bytes of one message
	log    *zap.Logger
}

// before puts the gate before what the framework resolves a foreign PID to.
func (g *gate) before(resolve actor.AddressResolver) actor.AddressResolver {
	return func(pid *actor.PID) (actor.Process, bool) {
		p, ok := resolve(pid)
		return gated{p, g}, ok
	}
}

// gated is the process behind one foreign PID.
type gated struct {
	actor.Process
	gate *gate
}

// SendUserMessage sends what can cross. The rest becomes a dead letter.
func (p gated) SendUserMessage(to *actor.PID, message any) {
	_, content, sender := actor.UnwrapEnvelope(message)
	m, ok := content.(proto.Message)
	if !ok {
		p.refuse(to, content, sender, "not a protobuf message")
		return
	}
	if size := proto.Size(m); size > p.gate.max {
		p.refuse(to, content, sender, fmt.Sprintf("got %d bytes, want at most %d", size, p.gate.max))
		return
	}
	if !p.gate.door.enter() {
		p.dead(to, content, sender)
		return
	}
	defer p.gate.door.leave()
	p.Process.SendUserMessage(to, message)
}

// SendSystemMessage sends what watching consists of. Nothing else may cross.
func (p gated) SendSystemMessage(to *actor.PID, message any) {
	switch message.(type) {
	case *actor.Watch, *actor.Unwatch, *actor.Terminated:
	default:
		p.refuse(to, message, nil, "only the node of an actor stops it")
		return
	}
	if !p.gate.door.enter() {
		p.dead(to, message, nil)
		return
	}
	defer p.gate.door.leave()
	p.Process.SendSystemMessage(to, message)
}

// Stop is refused.
func (p gated) Stop(to *actor.PID) { p.SendSystemMessage(to, &actor.Stop{}) }

// refuse is for what our own code should not have sent.
func (p gated) refuse(to *actor.PID, message any, sender *actor.PID, why string) {
	p.gate.log.Error("message cannot leave the node", zap.String("type", fmt.Sprintf("%T", message)),
		zap.String("to", to.GetAddress()+"/"+to.GetId()), zap.String("why", why))
	p.dead(to, message, sender)
}

func (p gated) dead(to *actor.PID, message any, sender *actor.PID) {
	p.gate.system.EventStream.Publish(&actor.DeadLetterEvent{PID: to, Message: message, Sender: sender})
}
