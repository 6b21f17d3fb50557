package fabric

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/proto"
)

// MessageMax is the largest message that a Node takes, in bytes, as the real
// remoting does; a larger one becomes a dead letter.
const MessageMax = 256 << 10

// Node is an actor system attached to a Net in place of remoting.
type Node struct {
	system  *actor.ActorSystem
	address string
	net     *Net

	dropped atomic.Int64

	mu      sync.Mutex
	down    bool
	watched map[string]map[string]*actor.PID // by watchee address/id, watchers by id
}

// Attach gives system the address (host:port) and routes all foreign PIDs over
// the network. Attach before anything is spawned. Whoever was attached there is
// gone, and who had a connection to it is told.
func (n *Net) Attach(system *actor.ActorSystem, address string) *Node {
	d := &Node{system: system, address: address, net: n, watched: map[string]map[string]*actor.PID{}}
	n.mu.Lock()
	old := n.nodes[address]
	n.mu.Unlock()
	if old != nil {
		old.detach(true)
	}
	system.ProcessRegistry.Address = address
	system.ProcessRegistry.RegisterAddressResolver(func(*actor.PID) (actor.Process, bool) { return process{d}, true })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[address] = d
	return d
}

// Address is host:port, what PIDs carry.
func (d *Node) Address() string { return d.address }

// System is the actor system that is attached.
func (d *Node) System() *actor.ActorSystem { return d.system }

// Dropped is how many messages the firewall of the network did not let in here.
func (d *Node) Dropped() int64 { return d.dropped.Load() }

// admits says whether the firewall lets a message in; nil is one of those that
// watching consists of.
func (n *Net) admits(m proto.Message, target string) bool {
	n.mu.Lock()
	prefix := n.prefix
	n.mu.Unlock()
	ours := m == nil || strings.HasPrefix(string(proto.MessageName(m)), "kvferry.v1.")
	return prefix == "" || ours && strings.HasPrefix(target, prefix)
}

// PeerDown says that the node at this address is gone, or is another one now: who
// watches an actor there sees it terminated, and the next message connects anew.
func (d *Node) PeerDown(address string) {
	d.mu.Lock()
	if d.down {
		d.mu.Unlock()
		return
	}
	type pair struct{ watcher, watchee *actor.PID }
	var all []pair
	for key, watchers := range d.watched {
		at, id, _ := strings.Cut(key, "/")
		if at != address {
			continue
		}
		for _, w := range watchers {
			all = append(all, pair{w, actor.NewPID(at, id)})
		}
		delete(d.watched, key)
	}
	d.mu.Unlock()
	d.net.drop(route{d.address, address})
	d.system.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
	for _, p := range all {
		d.local(p.watcher, &actor.Terminated{Who: p.watchee, Why: actor.TerminatedReason_AddressTerminated})
	}
}

// Close detaches the node; who had a connection to it is told. Later messages to
// other nodes become dead letters.
func (d *Node) Close() error {
	d.detach(true)
	return nil
}

// detach takes the node off the network.
func (d *Node) detach(tell bool) {
	d.mu.Lock()
	d.down = true
	d.mu.Unlock()
	n := d.net
	n.mu.Lock()
	if n.nodes[d.address] == d {
		delete(n.nodes, d.address)
	}
	var lost []*Node
	for r := range n.links {
		if r.to == d.address {
			if peer := n.nodes[r.from]; peer != nil {
				lost = append(lost, peer)
			}
		}
		if r.from == d.address {
			delete(n.links, r)
		}
	}
	delay := n.delayLocked()
	n.mu.Unlock()
	if !tell {
		return
	}
	for _, peer := range lost {
		time.AfterFunc(delay, func() { peer.PeerDown(d.address) })
	}
}

// up says whether the node is on the network.
func (d *Node) up() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.down
}

func (d *Node) local(to *actor.PID, message any) {
	if p, ok := d.system.ProcessRegistry.GetLocal(to.Id); ok {
		p.SendSystemMessage(to, message)
	}
}

// process is what every foreign PID resolves to.
type process struct{ node *Node }

// SendUserMessage sends a copy. What cannot cross becomes a dead letter.
func (p process) SendUserMessage(to *actor.PID, message any) {
	header, content, sender := actor.UnwrapEnvelope(message)
	m, ok := content.(proto.Message)
	if !ok || proto.Size(m) > MessageMax || !p.node.up() {
		p.node.system.EventStream.Publish(&actor.DeadLetterEvent{PID: to, Message: content, Sender: sender})
		return
	}
	m = proto.Clone(m)
	var headers map[string]string
	if header != nil && header.Length() > 0 {
		headers = header.ToMap()
	}
	if sender != nil {
		sender = actor.NewPID(sender.Address, sender.Id)
	}
	id := to.Id
	p.node.net.send(p.node, to.Address, func(d *Node) {
		if !d.net.admits(m, id) {
			d.dropped.Add(1)
			return
		}
		local := actor.NewPID(d.address, id)
		if sender == nil && headers == nil {
			d.system.Root.Send(local, m)
			return
		}
		d.system.Root.Send(local, &actor.MessageEnvelope{Header: headers, Message: m, Sender: sender})
	})
}

// SendSystemMessage sends a watch, and what answers it.
func (p process) SendSystemMessage(to *actor.PID, message any) {
	d := p.node
	key := to.Address + "/" + to.Id
	switch m := message.(type) {
	case *actor.Watch:
		d.mu.Lock()
		if d.watched[key] == nil {
			d.watched[key] = map[string]*actor.PID{}
		}
		d.watched[key][m.Watcher.Id] = m.Watcher
		d.mu.Unlock()
		message = &actor.Watch{Watcher: actor.NewPID(d.address, m.Watcher.Id)}
	case *actor.Unwatch:
		d.mu.Lock()
		delete(d.watched[key], m.Watcher.Id)
		d.mu.Unlock()
		message = &actor.Unwatch{Watcher: actor.NewPID(d.address, m.Watcher.Id)}
	case *actor.Terminated:
		message = &actor.Terminated{Who: actor.NewPID(d.address, m.Who.Id), Why: m.Why}
	default:
		// Stop and its like: the firewall of the other side drops them.
		d.system.EventStream.Publish(&actor.DeadLetterEvent{PID: to, Message: message})
		return
	}
	id := to.Id
	d.net.send(d, to.Address, func(at *Node) {
		if !at.net.admits(nil, id) {
			at.dropped.Add(1)
			return
		}
		at.deliverSystem(id, message)
	})
}

// deliverSystem delivers one system message from another node.
func (d *Node) deliverSystem(id string, message any) {
	if m, ok := message.(*actor.Terminated); ok {
		key := m.Who.Address + "/" + m.Who.Id
		d.mu.Lock()
		delete(d.watched[key], id)
		if len(d.watched[key]) == 0 {
			delete(d.watched, key)
		}
		d.mu.Unlock()
	}
	// Nobody there is the dead letter process, which answers a Watch.
	process, _ := d.system.ProcessRegistry.GetLocal(id)
	process.SendSystemMessage(actor.NewPID(d.address, id), message)
}

// Stop cannot cross nodes.
func (p process) Stop(to *actor.PID) { p.SendSystemMessage(to, &actor.Stop{}) }
