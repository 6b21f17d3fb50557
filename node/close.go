package node

import (
	"context"
	"errors"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
)

// Close leaves the cluster in order: no new rooms; the open ones end, or are
// ended when ctx is over; goodbye to every peer; then gossip, the actors and
// remoting. It returns when nothing of the node moves any more. An error says
// what did not go in order; the node has stopped all the same. A second Close waits
// for the first and returns the same.
func (n *Node) Close(ctx context.Context) error {
	n.closing.Do(func() { n.closed = n.close(ctx) })
	return n.closed
}

func (n *Node) close(ctx context.Context) error {
	var errs []error
	if n.Err() == nil {
		errs = append(errs, n.drain(ctx), n.goodbye(ctx))
	}
	errs = append(errs, n.release(ctx))
	n.end.Do(func() {
		n.err = ErrStopped
		close(n.done)
	})
	n.config.Log.Info("node stopped", zap.Stringer("node", n.self))
	return errors.Join(errs...)
}

// drain waits for the last room to end.
func (n *Node) drain(ctx context.Context) error {
	_, err := ask(ctx, n, n.engines, func(reply func(struct{})) any {
		return &actors.DrainEngines{Done: func() { reply(struct{}{}) }}
	})
	return err
}

// goodbye tells the peers, so that they do not take the end for a crash.
func (n *Node) goodbye(ctx context.Context) error {
	_, err := ask(ctx, n, n.peers, func(reply func(struct{})) any {
		return &actors.LeavePeers{Reason: "the node is leaving", Done: func() { reply(struct{}{}) }}
	})
	return err
}

// release stops what was started, the last first, and can be called on a node
// that was started in part.
func (n *Node) release(ctx context.Context) error {
	var errs []error
	if n.gossip != nil {
		if ctx.Err() == nil { // else the goodbye has no time: the others see a crash
			errs = append(errs, n.gossip.Leave(ctx))
		}
		errs = append(errs, n.gossip.Close())
	}
	if n.root != nil {
		errs = append(errs, n.stopActors())
	}
	if n.lanes != nil {
		n.lanes.Close()
	}
	if n.remote != nil {
		errs = append(errs, n.remote.Close())
	}
	return errors.Join(errs...)
}

// stopActors stops the tree, whatever the caller's context says: the transport
// actor closes the providers, and only after that no byte moves. The future ends
// by itself, in 10 s.
func (n *Node) stopActors() error {
	err := n.env.System.Root.StopFuture(n.root).Wait()
	if errors.Is(err, actor.ErrDeadLetter) {
		return nil // it had stopped already
	}
	return err
}
