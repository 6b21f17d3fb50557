// Package peers is the actors that talk to other nodes: a supervisor, and a child
// for each process life of a node, which is the only sender and the only target
// of messages between the two.
package peers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transport/rdma"
)

// Config is what the peers of a node are made with.
type Config struct {
	Env       *actors.Env
	Self      messages.Node
	Cluster   string
	Endpoints []*messages.Endpoint // of this node's providers, in order of preference
	Limits    pairing.Limits
	Started   time.Time     // of this process life; numbers count from it
	Nonce     func() uint64 // nil: from the system's source of chance

	// Doubt is told whose link has become suspect, to have gossip ask that node at once;
	// if it does not answer, NodeSilent is sent here. It does not block. nil: nobody asks.
	Doubt func(messages.Node)

	Registry  *actor.PID
	Engines   *actor.PID
	Transport *actor.PID
}

// Name names the actor for one process life of a node.
func Name(n messages.Node) string { return n.Name + "-" + strconv.FormatUint(n.Incarnation, 16) }

// Supervisor spawns a peer for each node that gossip shows, and stops it when
// gossip says that the node is gone.
type Supervisor struct {
	config Config

	// Owned by Receive.
	peers    map[messages.Node]*entry
	unfenced map[messages.Node][]rdma.Generation
	leaving  bool
	left     []func()
}

// entry is the actor for one process life of a node.
type entry struct {
	pid     *actor.PID
	address string
	gone    bool           // gossip says so: it is not spawned again
	again   *actors.NodeUp // gossip showed it again before its actor had ended
}

// What a peer tells its supervisor, so that its successor knows what is not
// fenced if it dies.
type (
	connected struct {
		node       messages.Node
		generation rdma.Generation
	}
	fenced struct {
		node       messages.Node
		generation rdma.Generation
	}
)

// peerGone is the end of a peer's actor. Terminated overtakes what the peer had
// told its supervisor; this, which the supervisor sends to itself, does not.
type peerGone struct{ who *actor.PID }

// New is the Props of the supervisor.
func New(c Config) (*actor.Props, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("peers: no endpoint is given, want at least one")
	}
	c.Limits = c.Limits.Resolve()
	return c.Env.Props(func() actor.Actor {
		return &Supervisor{config: c, peers: map[messages.Node]*entry{}, unfenced: map[messages.Node][]rdma.Generation{}}
	}), nil
}

// Receive is called by the actor system.
func (s *Supervisor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actors.NodeUp:
		s.onNodeUp(c, m)
	case *actors.NodeDown:
		s.onNodeDown(c, m)
	case *actors.NodeSilent:
		if e := s.peers[m.Node]; e != nil { // it begins anew, and is heard again if it lives
			c.Send(e.pid, m)
		}
	case *connected:
		s.unfenced[m.node] = append(s.unfenced[m.node], m.generation)
	case *fenced:
		s.onFenced(m)
	case *actors.SessionFenced:
		s.onSessionFenced(c, m)
	case *actors.LeavePeers:
		s.onLeavePeers(c, m)
	case *peerGone:
		s.onPeerGone(c, m)
	case *actor.Terminated:
		c.Send(c.Self(), &peerGone{who: m.Who}) // behind what the peer had told before
	case *actor.Stopping:
		s.leaving = true // who ends from here on is not begun anew
	case *actor.Started, *actor.Stopped, *actor.Restarting:
	default:
		s.config.Env.Unexpected(c)
	}
}

func (s *Supervisor) onNodeUp(c actor.Context, m *actors.NodeUp) {
	if s.leaving || m.Node == s.config.Self {
		return
	}
	if e := s.peers[m.Node]; e != nil {
		if e.gone {
			e.again = m
		}
		return
	}
	props := newPeer(s.config, m.Node, m.Address, slices.Clone(s.unfenced[m.Node]))
	pid, err := c.SpawnNamed(props, Name(m.Node))
	if err != nil {
		s.config.Env.Log.Error("spawn peer", zap.Stringer("node", m.Node), zap.Error(err))
		return
	}
	s.peers[m.Node] = &entry{pid: pid, address: m.Address}
}

func (s *Supervisor) onFenced(m *fenced) {
	left := slices.DeleteFunc(s.unfenced[m.node], func(g rdma.Generation) bool { return g == m.generation })
	if s.unfenced[m.node] = left; len(left) == 0 {
		delete(s.unfenced, m.node)
	}
}

// onSessionFenced: what a peer left that died, and after which none comes.
func (s *Supervisor) onSessionFenced(c actor.Context, m *actors.SessionFenced) {
	s.onFenced(&fenced{node: m.Node, generation: m.Generation})
	told := &actors.LinkFenced{Node: m.Node, Generation: m.Generation, Open: m.Open}
	c.Send(s.config.Registry, told)
	c.Send(s.config.Engines, told)
}

func (s *Supervisor) onNodeDown(c actor.Context, m *actors.NodeDown) {
	if e := s.peers[m.Node]; e != nil {
		e.gone, e.again = true, nil
		c.Send(e.pid, m)
	}
}

// onPeerGone: a peer that ended by itself while gossip still shows the node (it
// said goodbye, or its actor failed) begins anew: nothing is blacklisted for good.
// What it had is lost, and the others were told; if its actor failed they are
// told here.
func (s *Supervisor) onPeerGone(c actor.Context, m *peerGone) {
	for node, e := range s.peers {
		if !e.pid.Equal(m.who) {
			continue
		}
		delete(s.peers, node)
		lost := &actors.LinkLost{Node: node, Cause: &messages.Cause{
			Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: fmt.Sprintf("the link with node %s ended", node), Origin: s.config.Self.String(),
		}}
		c.Send(s.config.Registry, lost) // for the second time, unless its actor failed
		c.Send(s.config.Engines, lost)
		switch again := e.again; {
		case again != nil:
			s.onNodeUp(c, again)
		case !e.gone && !s.leaving:
			s.onNodeUp(c, &actors.NodeUp{Node: node, Address: e.address})
		default: // nobody comes after it who would fence
			for _, g := range s.unfenced[node] {
				c.Send(s.config.Transport, &actors.FenceSession{Node: node, Generation: g, Reply: c.Self()})
			}
		}
	}
	s.leftIfAlone()
}

func (s *Supervisor) onLeavePeers(c actor.Context, m *actors.LeavePeers) {
	s.leaving = true
	s.left = append(s.left, m.Done)
	for _, e := range s.peers { // each to its own actor: the order between them is nobody's
		c.Send(e.pid, m)
	}
	s.leftIfAlone()
}

func (s *Supervisor) leftIfAlone() {
	if !s.leaving || len(s.peers) > 0 {
		return
	}
	for _, done := range s.left {
		done()
	}
	s.left = nil
}
