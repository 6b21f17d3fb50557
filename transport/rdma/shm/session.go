package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/rdma"
)

var (
	errFenced    = errors.New("shm: the session was fenced")
	errClosed    = errors.New("shm: the provider was closed")
	errNoConnect = errors.New("shm: the peer did not connect in time")
	errExited    = errors.New("shm: the peer's process has ended")
	errCut       = errors.New("shm: the session ended before all of it landed")
	errPeerOver  = errors.New("shm: the peer fenced the session before all of it landed")
)

// state is how far a session is.
type state uint8

const (
	connecting state = iota
	up
	down   // disconnected, not fenced
	ending // being fenced
)

// session is one generation with a peer, and the writes posted to it.
type session struct {
	// Fixed by Connect.
	rdma.Connection
	id       rdma.SessionID
	provider *Provider
	context  context.Context // done when the session leaves connecting and up
	cancel   context.CancelFunc
	wake     chan struct{} // holds 1 when the copier may have something to do
	done     chan struct{} // closed when nothing of it runs and its writes have completed
	settled  chan struct{} // closed when its fence is complete
	running  sync.WaitGroup

	leaving atomic.Bool // context is done: what the copier asks before each copy

	// Guarded by provider.mu.
	state   state
	why     error // it is down or ending
	timeout *time.Timer
	taken   bool      // a connection was taken, or is being dialled
	in      *inbound  // nil until the peer is offered it
	out     *outbound // nil until up
	queue   rdma.RoundRobin[*write]
	live    []*write // accepted and not completed, in the order in which they came
	current *write   // with the copier
}

// Connect starts a session. That the two cannot share memory is told by Disconnected,
// with an *UnreachableError.
func (p *Provider) Connect(c rdma.Connection) error {
	if len(c.Self) > nameMax || len(c.Session.Peer) > nameMax {
		return fmt.Errorf("shm: names have %d and %d bytes, want at most %d", len(c.Self), len(c.Session.Peer), nameMax)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
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
		Connection: c, id: c.Session, provider: p,
		wake: make(chan struct{}, 1), done: make(chan struct{}), settled: make(chan struct{}),
	}
	s.context, s.cancel = context.WithCancel(context.Background())
	p.sessions[c.Session.Peer] = s
	p.running.Go(s.reap)
	if c.Dial {
		s.taken = true
		s.running.Go(s.dial)
		return nil
	}
	s.timeout = time.AfterFunc(p.config.HandshakeTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.state == connecting {
			s.leaveLocked(down, errNoConnect)
		}
	})
	p.unparkLocked(s)
	return nil
}

// read takes the peer's messages, and its end.
func (s *session) read() {
	var err error
	if e := s.out.sock.raw.Read(func(uintptr) bool {
		err = s.out.receive()
		if s.out.some.Load() {
			s.wakeUp()
		}
		return err != nil
	}); e != nil {
		return // the session left
	}
	s.broke(err)
}

// broke takes the session down because of its socket.
func (s *session) broke(err error) {
	switch {
	case errors.Is(err, errMalformed):
		s.provider.events.Push(rdma.Stale{Peer: s.id.Peer, Reason: "shm: malformed message"})
	case errors.Is(err, io.EOF):
		err = errors.New("the peer closed the connection")
	}
	s.fail(fmt.Errorf("shm: %w", err))
}

// watch waits for the end of the peer's process.
func (s *session) watch() {
	if s.in.process.await() == nil {
		s.fail(errExited)
	}
}

// hear waits for the bell and tells what has arrived.
func (s *session) hear() {
	for s.in.board.sleep(s.leaving.Load) {
		s.provider.mu.Lock()
		s.in.drainLocked()
		s.provider.mu.Unlock()
	}
}

func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// fail takes the session down.
func (s *session) fail(err error) {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.leaveLocked(down, err)
}

// leaveLocked ends connecting or up: what waits is woken and ends, and reap does the
// rest.
func (s *session) leaveLocked(to state, why error) {
	if s.state == ending || s.state == down {
		s.state = max(s.state, to)
		return
	}
	s.state, s.why = to, why
	if s.timeout != nil {
		s.timeout.Stop()
	}
	s.leaving.Store(true)
	if s.in != nil {
		past := time.Unix(1, 0)
		_ = s.in.sock.conn.SetDeadline(past)
		_ = s.in.process.pidfd.SetReadDeadline(past)
		s.in.board.ring() // its own: hear looks up
	}
	s.cancel()
}

// endLocked is the beginning of a fence: no copy begins any more, on either side.
func (s *session) endLocked(why error) {
	s.leaveLocked(ending, why)
	if s.in != nil {
		s.in.endLocked()
	}
}

// reap waits for the end of the session and completes what is left of it.
func (s *session) reap() {
	<-s.context.Done()
	s.running.Wait()
	p := s.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.in != nil {
		_ = s.in.sock.conn.Close()
	}
	for len(s.live) > 0 {
		w := s.live[0]
		p.completeLocked(s, w, w.fate(), s.why)
	}
	s.queue.DropAll()
	if s.out != nil {
		s.out.release()
	}
	if s.state == down {
		p.events.Push(rdma.Disconnected{Session: s.id, Err: s.why})
	}
	close(s.done)
}

// Fence ends a session. It waits, not here, for copies that are going on: of this
// side until they are over, of the peer for as long as copies take.
func (p *Provider) Fence(id rdma.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fences.End(id)
	p.tags.Fenced()
	p.dropParkedLocked(func(x *parked) bool {
		return p.fences.Ended(rdma.SessionID{Peer: x.from, Generation: x.generation})
	})
	s := p.sessions[id.Peer]
	if s == nil || p.closed || !p.fences.Ended(s.id) {
		p.events.Push(rdma.Fenced{Session: id, Open: p.openLocked(id.Peer)})
		return
	}
	first := s.state != ending
	s.endLocked(errFenced)
	p.running.Go(func() {
		if first {
			p.settle(s)
		}
		<-s.settled
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events.Push(rdma.Fenced{Session: id, Open: p.openLocked(id.Peer)})
	})
}

// settle is the rest of a fence.
func (p *Provider) settle(s *session) {
	<-s.done
	if s.in != nil {
		p.awaitCopy(func() bool { return s.in.heldLocked() == nil })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-s.settled:
		return // Close and Fence came together
	default:
	}
	p.fences.End(s.id)
	if p.sessions[s.id.Peer] == s {
		delete(p.sessions, s.id.Peer)
	}
	switch {
	case s.in == nil:
	case !s.in.settleLocked():
		p.dropInboundLocked(s.in)
	case !p.closed:
		p.running.Go(func() { p.watch(s.in) })
	}
	p.closeRevokedLocked(s.id.Peer)
	close(s.settled)
}
