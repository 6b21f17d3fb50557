package mem

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

var (
	errQuiesced = errors.New("mem: the tag was quiesced")
	errFenced   = errors.New("mem: the session was fenced")
	errTimeout  = errors.New("mem: the peer did not connect in time")
)

// state is how far a session is.
type state uint8

const (
	connecting state = iota
	up
	down   // disconnected, not fenced
	ending // being fenced
)

// session is one side of a generation. Its worker sends; the worker of the other
// side's session lands here.
type session struct {
	// Fixed by Connect.
	rdma.Connection
	id    rdma.SessionID
	owner *Provider
	wake  chan struct{} // holds 1 when there may be work
	stop  chan struct{} // closed when the session leaves up
	done  chan struct{} // closed when the worker has ended, or never was
	gone  chan struct{} // closed when the fence is complete

	// Guarded by the network's mutex.
	state    state
	peer     *session // once up
	why      error    // why it is down
	timeout  *time.Timer
	queue    rdma.RoundRobin[*write]
	current  *write // with the worker
	accepted int

	// landing is held by who copies into this side under this generation, a chunk
	// at a time.
	landing sync.Mutex
	fenced  bool        // guarded by landing: nothing lands any more
	late    []*lateCopy // guarded by landing: on their way
}

// Connect starts a session. The side that comes first waits for the other.
func (p *Provider) Connect(c rdma.Connection) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return rdma.ErrClosed
	}
	var live *rdma.SessionID
	if old := p.sessions[c.Session.Peer]; old != nil {
		live = &old.id
	}
	if err := p.fences.Admit(c.Session, live); err != nil {
		return err
	}
	s := &session{
		Connection: c, id: c.Session, owner: p,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), gone: make(chan struct{}),
	}
	p.sessions[c.Session.Peer] = s
	s.timeout = time.AfterFunc(p.net.config.ConnectTimeout, func() {
		p.net.mu.Lock()
		defer p.net.mu.Unlock()
		if s.state == connecting {
			s.breakLocked(errTimeout)
		}
	})
	p.net.meetLocked(s)
	return nil
}

// meetLocked connects two sessions that look for each other.
func (n *Network) meetLocked(s *session) {
	p := s.owner
	if s.Dial {
		target := n.providers[string(s.Endpoint)]
		switch {
		case target == nil:
			s.breakLocked(fmt.Errorf("mem: no provider at %q", s.Endpoint))
		case n.cut[linkOf(p.name, target.name)]:
			s.breakLocked(fmt.Errorf("mem: the link between %s and %s is cut", p.name, target.name))
		case target.fences.Ended(rdma.SessionID{Peer: s.Self, Generation: s.id.Generation}):
			s.breakLocked(errors.New("mem: the peer closed the connection: its generation is over"))
		default:
			o := target.sessions[s.Self]
			switch {
			case o == nil:
			case matches(s, o):
				join(s, o)
			case o.id.Generation.Number > s.id.Generation.Number:
				s.breakLocked(fmt.Errorf("mem: the peer closed the connection: it is at generation %s", o.id.Generation))
			}
		}
		return
	}
	for _, q := range n.providers { // at most one of them dials this session
		if o := q.sessions[s.Self]; o != nil && o.Dial && string(o.Endpoint) == p.endpoint && matches(o, s) {
			join(o, s)
			return
		}
	}
}

// matches answers whether a dialer and a listener mean each other.
func matches(dialer, listener *session) bool {
	return dialer.state == connecting && listener.state == connecting && dialer.Dial && !listener.Dial &&
		dialer.id.Generation == listener.id.Generation &&
		dialer.id.Peer == listener.Self && listener.id.Peer == dialer.Self
}

func join(a, b *session) {
	a.peer, b.peer = b, a
	for _, s := range []*session{a, b} {
		s.state = up
		s.timeout.Stop()
		s.owner.events.Push(rdma.Connected{Session: s.id})
		s.owner.running.Go(s.work)
	}
}

func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// breakLocked takes a session down that was not asked to end, and its other side.
// A worker that runs tells it when the writes have completed.
func (s *session) breakLocked(err error) {
	if s.state != connecting && s.state != up {
		return
	}
	was := s.state
	s.state, s.why = down, err
	s.timeout.Stop()
	close(s.stop)
	if was == connecting {
		close(s.done)
		s.owner.events.Push(rdma.Disconnected{Session: s.id, Err: err})
		return
	}
	s.peer.breakLocked(fmt.Errorf("mem: the peer is gone: %w", err))
}

// Fence ends a session.
func (p *Provider) Fence(id rdma.SessionID) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.fences.End(id)
	p.tags.Fenced()
	s := p.sessions[id.Peer]
	if s == nil || p.closed || !p.fences.Ended(s.id) {
		p.events.Push(rdma.Fenced{Session: id})
		return
	}
	p.endLocked(s, func() { p.events.Push(rdma.Fenced{Session: id}) })
}

// endLocked ends a session for good and calls then, if it is not nil, once nothing
// of it moves any more. It waits for the worker, which waits for no peer.
func (p *Provider) endLocked(s *session, then func()) {
	first := s.state != ending
	if first {
		peer := s.peer
		if s.state == connecting {
			close(s.done)
		}
		if s.state != down {
			close(s.stop)
		}
		s.state, s.why = ending, errFenced
		s.timeout.Stop()
		if peer != nil {
			peer.breakLocked(errors.New("mem: the peer fenced the session"))
		}
	}
	p.running.Go(func() {
		if first {
			s.stopLanding()
			<-s.done
		} else {
			<-s.gone
		}
		p.net.mu.Lock()
		defer p.net.mu.Unlock()
		if first {
			p.fences.End(s.id)
			if p.sessions[s.id.Peer] == s {
				delete(p.sessions, s.id.Peer)
			}
			close(s.gone)
		}
		if then != nil {
			then()
		}
	})
}

// stopLanding waits for the chunk that is being copied here, and lets none follow.
func (s *session) stopLanding() {
	s.landing.Lock()
	defer s.landing.Unlock()
	s.fenced = true
	for _, l := range s.late {
		l.timer.Stop()
	}
	s.late = nil
}
