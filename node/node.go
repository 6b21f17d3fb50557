// Package node is one node of a cluster, assembled: gossip, remoting, providers
// and the actors between them. cmd/node starts it from flags; a serving stack
// starts it inside its own program, and attaches its engines to it:
//
//	n, err := node.Start(ctx, node.Config{Name: "prefill-0", Join: seeds})
//	...
//	engine, err := n.AttachPrefill(ctx, node.EngineConfig{...})
//	room, err := engine.Open(ctx, node.SendRequest{Room: 42, Tokens: 8192})
//	... compute into room.Place() ...
//	room.Chunk(8192)
//	result, err := room.Wait(ctx)
//	room.Free() // nobody computes into its pages any more
package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/actors/peers"
	"kvferry/actors/registry"
	"kvferry/actors/transport"
	"kvferry/cluster"
	"kvferry/messages"
	"kvferry/node/remoting"
)

// Node is a running node.
type Node struct {
	config Config
	self   messages.Node
	env    *actors.Env
	lanes  *actors.Lanes
	gossip *cluster.Gossip
	asked  atomic.Pointer[cluster.Gossip] // the same, for actors
	remote *remoting.Remote               // nil in a host's system

	peerDown func(address string) // tells remoting; may be nil

	root      *actor.PID
	engines   *actor.PID
	registry  *actor.PID
	peers     *actor.PID
	transport *actor.PID

	started      time.Time
	incarnations atomic.Uint64
	end          sync.Once
	done         chan struct{} // closed when the node has stopped or failed
	closing      sync.Once
	closed       error // of the Close that closed it
	err          error // set before done is closed
}

// ErrStopped is what a node that was closed answers.
var ErrStopped = errors.New("node: stopped")

// Start starts a node and returns when it listens. It does not wait for others:
// they are found for as long as it runs. When ctx ends, nothing happens to a node
// that has started: Close ends it.
func Start(ctx context.Context, c Config) (*Node, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	n := &Node{config: c, done: make(chan struct{})}
	n.started = c.Embed.Clock.Now()
	n.self = messages.Node{Name: c.Name, Incarnation: n.newIncarnation()}
	if err := n.start(ctx); err != nil {
		return nil, fmt.Errorf("node %s: %w", c.Name, errors.Join(err, n.release(ctx)))
	}
	c.Log.Info("node started", zap.Stringer("node", n.self), zap.String("gossip", n.GossipAddress()),
		zap.String("actors", n.env.System.Address()))
	return n, nil
}

func (n *Node) start(ctx context.Context) error {
	names, err := actors.NewNames(n.config.Embed.Prefix)
	if err != nil {
		return err
	}
	system, err := n.system(names)
	if err != nil {
		return err
	}
	n.lanes = actors.NewLanes(n.config.Embed.Clock)
	n.env = &actors.Env{
		System: system, Clock: n.config.Embed.Clock, Names: names, Base: n.config.Embed.Base, Lanes: n.lanes,
		Log: n.config.Log.With(zap.String("node", n.config.Name)),
	}
	n.transport = actors.PID(system.Address(), names.Transport())
	n.registry = actors.PID(system.Address(), names.Registry())
	n.peers = actors.PID(system.Address(), names.Peers())
	n.engines = actors.PID(system.Address(), names.Engines())
	if err := n.spawn(ctx); err != nil {
		return err
	}
	return n.join()
}

// system is the host's, or one of the node's own with hardened remoting.
func (n *Node) system(names actors.Names) (*actor.ActorSystem, error) {
	if n.config.Embed.System != nil {
		n.peerDown = n.config.Embed.PeerDown
		return n.config.Embed.System, nil
	}
	host, _, err := splitBind(n.config.Bind)
	if err != nil {
		return nil, err
	}
	system := remoting.NewSystem(n.config.Log)
	n.remote, err = remoting.Start(system, remoting.Config{
		Bind:       net.JoinHostPort(host, strconv.Itoa(n.config.ActorPort)),
		Advertise:  n.config.advertisedHost(),
		PeerPrefix: names.PeerPrefix(),
	}, n.config.Log)
	if err != nil {
		return nil, err
	}
	n.peerDown = n.remote.PeerDown
	return system, nil
}

// spawn starts the tree of actors.
func (n *Node) spawn(ctx context.Context) error {
	providers, err := n.providers()
	if err != nil {
		return err
	}
	defer func() { // the transport actor takes them over
		if n.root == nil {
			for _, p := range providers {
				_ = p.Close() // nothing was asked of it yet
			}
		}
	}()
	transportProps, err := transport.New(n.env, n.self, providers)
	if err != nil {
		return err
	}
	peerProps, err := peers.New(peers.Config{
		Env: n.env, Self: n.self, Cluster: n.config.Cluster, Endpoints: endpoints(providers), Limits: n.config.Links, Started: n.started,
		Registry: n.registry, Engines: n.engines, Transport: n.transport, Doubt: n.doubt,
	})
	if err != nil {
		return err
	}
	registryProps := registry.New(registry.Config{
		Env: n.env, Self: n.self, Limits: n.config.Links, Started: n.started, Engines: n.engines, Peer: n.peer,
	})
	started := make(chan error, 1)
	root, err := n.env.System.Root.SpawnNamed(newRoot(n.env, []child{
		{actors.TransportName, transportProps},
		{actors.RegistryName, registryProps},
		{actors.PeersName, peerProps},
		{actors.EnginesName, actors.NewEngines(n.env, n.self, n.transport, n.registry, n.peer)},
	}, func(err error) { started <- err }, n.fail), n.env.Names.Root())
	if err != nil {
		return fmt.Errorf("spawn %s: %w", n.env.Names.Root(), err) // root may be another node's
	}
	n.root = root
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join starts gossip, which tells the peers who comes and goes.
func (n *Node) join() error {
	g, err := cluster.Start(context.Background(), cluster.Config{
		Name: n.self.Name, Incarnation: n.self.Incarnation, Address: n.env.System.Address(),
		Bind: n.config.Bind, Advertise: n.config.Advertise, Seeds: n.config.Join, Label: n.config.Cluster,
		VersionMin: messages.ProtocolVersionMin, VersionMax: messages.ProtocolVersion,
		Key: n.config.GossipKey, Timing: n.config.Timing, Log: n.config.Log, Transport: n.config.Embed.Gossip,
	}, n.heard)
	n.gossip = g
	n.asked.Store(g)
	return err
}

// doubt has gossip ask a node whose link is suspect, and tells the peers if it does not
// answer. It does not block.
func (n *Node) doubt(node messages.Node) {
	g := n.asked.Load()
	if g == nil {
		return
	}
	g.Ask(node.Name, node.Incarnation, func(m cluster.Member) {
		if n.peerDown != nil { // a connection that hangs would hold up what is said next
			n.peerDown(m.Address)
		}
		n.env.System.Root.Send(n.peers, &actors.NodeSilent{Node: node, Cause: &messages.Cause{
			Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: fmt.Sprintf("node %s: silent: neither its actors nor its gossip answer", node), Origin: n.self.String(),
		}})
	})
}

// heard passes on what gossip tells. It does not block.
func (n *Node) heard(e cluster.Event) {
	switch e := e.(type) {
	case cluster.Up:
		n.env.System.Root.Send(n.peers, &actors.NodeUp{Node: nodeOf(e.Member), Address: e.Member.Address})
	case cluster.Down:
		node := nodeOf(e.Member)
		// Remoting itself would take seconds to notice, or for ever. What replaced the
		// node at its address is not cut off.
		if n.peerDown != nil && e.Reason != cluster.Replaced {
			n.peerDown(e.Member.Address)
		}
		n.env.System.Root.Send(n.peers, &actors.NodeDown{Node: node, Cause: &messages.Cause{
			Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: fmt.Sprintf("node %s: %s", node, e.Reason), Origin: n.self.String(),
		}})
	}
}

func nodeOf(m cluster.Member) messages.Node {
	return messages.Node{Name: m.Name, Incarnation: m.Incarnation}
}

// peer is the actor that talks to a node.
func (n *Node) peer(node messages.Node) *actor.PID {
	return actors.PID(n.env.System.Address(), n.env.Names.Peer(peers.Name(node)))
}

// newIncarnation differs from every one before, of this process and of others:
// the time in its upper bits, chance and a count below.
func (n *Node) newIncarnation() uint64 {
	return uint64(time.Now().UnixMilli())<<20 | rand.Uint64N(1<<12)<<8 | n.incarnations.Add(1)&0xff
}

// Self is this process life of the node.
func (n *Node) Self() messages.Node { return n.self }

// GossipAddress is where the gossip of the node is reached: what others join.
func (n *Node) GossipAddress() string { return n.gossip.Self().Gossip }

// Members is who is there, this node included.
func (n *Node) Members() []cluster.Member { return n.gossip.Members() }

// Done is closed when the node has stopped, by Close or because it failed.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is why the node has stopped: ErrStopped after Close. nil while it runs.
func (n *Node) Err() error {
	select {
	case <-n.done:
		return n.err
	default:
		return nil
	}
}

// fail ends a node of which an actor failed. Its actors are stopping: that fences
// all it had in flight.
func (n *Node) fail(err error) {
	n.end.Do(func() {
		n.err = fmt.Errorf("node %s: %w", n.self, err)
		n.config.Log.Error("node failed", zap.Error(n.err))
		close(n.done)
	})
}
