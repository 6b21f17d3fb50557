package transport

import (
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// session is the newest generation with a node.
type session struct {
	node       messages.Node
	provider   *provider
	id         rdma.SessionID
	up         bool
	reply      *actor.PID              // peers/<node>
	queue      rdma.RoundRobin[*write] // writes that the window had no room for
	generation rdma.Generation
}

func (a *Actor) onConnectSession(c actor.Context, m *actors.ConnectSession) {
	fail := func(err error) {
		c.Send(m.Reply, &actors.SessionDown{Node: m.Node, Generation: m.Generation, Err: err})
	}
	p := a.provider(m.Provider)
	if p == nil {
		fail(fmt.Errorf("connect to %s: provider is %q, want one of this node's", m.Node, m.Provider))
		return
	}
	s := &session{
		node: m.Node, provider: p, reply: m.Reply, generation: m.Generation,
		id: rdma.SessionID{Peer: m.Node.String(), Generation: m.Generation},
	}
	if old := a.sessions[s.id.Peer]; old != nil {
		fail(fmt.Errorf("connect to %s: %w: generation %s", m.Node, rdma.ErrFenceFirst, old.generation))
		return
	}
	a.sessions[s.id.Peer] = s
	err := p.Connect(rdma.Connection{Session: s.id, Self: a.self.String(), Dial: m.Dial, Endpoint: m.Endpoint})
	if err != nil {
		fail(fmt.Errorf("connect to %s: %w", m.Node, err))
	}
}

func (a *Actor) connected(c actor.Context, ev rdma.Connected) {
	if s := a.sessionOf(ev.Session); s != nil {
		s.up = true
		c.Send(s.reply, &actors.SessionUp{Node: s.node, Generation: s.generation})
	}
}

func (a *Actor) disconnected(c actor.Context, ev rdma.Disconnected) {
	if s := a.sessionOf(ev.Session); s != nil {
		s.up = false
		a.dropQueue(c, s, ev.Err)
		c.Send(s.reply, &actors.SessionDown{Node: s.node, Generation: s.generation, Err: ev.Err})
	}
}

func (a *Actor) onFenceSession(c actor.Context, m *actors.FenceSession) {
	id := rdma.SessionID{Peer: m.Node.String(), Generation: m.Generation}
	s := a.sessionOf(id)
	if s == nil { // never made here, or fenced already: nothing moves but what is open
		c.Send(m.Reply, &actors.SessionFenced{Node: m.Node, Generation: m.Generation, Open: a.openGrants(m.Node)})
		return
	}
	s.up, s.reply = false, m.Reply
	a.dropQueue(c, s, errFenced)
	s.provider.Fence(id)
}

func (a *Actor) fenced(c actor.Context, ev rdma.Fenced) {
	s := a.sessionOf(ev.Session)
	if s == nil {
		return
	}
	open := a.fencedGrants(c, s.provider, s.node, ev.Open)
	delete(a.sessions, s.id.Peer)
	c.Send(s.reply, &actors.SessionFenced{Node: s.node, Generation: s.generation, Open: open})
}

// sessionOf is the session that an event of a provider speaks of, nil when it is
// an older one.
func (a *Actor) sessionOf(id rdma.SessionID) *session {
	if s := a.sessions[id.Peer]; s != nil && s.id == id {
		return s
	}
	return nil
}
