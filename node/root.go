package node

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
)

// child is one of the actors under the root.
type child struct {
	name  string
	props *actor.Props
}

// root is the actor above all others of the node. It only supervises: when one
// of its children dies, the node as it was is over, because the others have lost
// what they agreed on with it. The node then stops whole, which fences all that
// it had in flight, and whoever runs it starts another incarnation.
type root struct {
	env      *actors.Env
	children []child
	started  func(error)
	failed   func(error)

	// Owned by Receive.
	names    map[string]string // of children, by PID
	stopping bool
}

// newRoot is the Props of the root. started is called once; failed at most once,
// after it.
func newRoot(env *actors.Env, children []child, started, failed func(error)) *actor.Props {
	return env.TopProps(func() actor.Actor {
		return &root{env: env, children: children, started: started, failed: failed, names: map[string]string{}}
	})
}

// Receive is called by the actor system.
func (r *root) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		r.onStarted(c)
	case *actor.Terminated:
		r.onTerminated(c, m)
	case *actor.Stopping:
		r.stopping = true
	case *actor.Stopped, *actor.Restarting:
	default:
		r.env.Unexpected(c)
	}
}

func (r *root) onStarted(c actor.Context) {
	for _, child := range r.children {
		pid, err := c.SpawnNamed(child.props, child.name)
		if err != nil {
			r.started(fmt.Errorf("spawn %s: %w", child.name, err))
			c.Stop(c.Self())
			return
		}
		r.names[pid.GetId()] = child.name
	}
	r.started(nil)
}

func (r *root) onTerminated(c actor.Context, m *actor.Terminated) {
	if r.stopping {
		return
	}
	r.stopping = true
	r.failed(fmt.Errorf("the actor %s failed; its log entry has the reason", r.names[m.Who.GetId()]))
	c.Stop(c.Self())
}
