package shm

import (
	"errors"
	"fmt"
	"net"
	"time"

	"kvferry/transport/rdma"
)

// greeting is a connection whose peer is known, and what it said.
type greeting struct {
	hello
	sock    socket
	process *process
}

func (g *greeting) close() {
	_ = g.sock.conn.Close()
	g.process.close()
}

// parked is a connection that said hello before this side called Connect.
type parked struct {
	greeting
	timer *time.Timer
}

// accept takes connections until the listener is closed.
func (p *Provider) accept() {
	for {
		conn, err := p.listener.AcceptUnix()
		if err != nil {
			select {
			case <-p.stop.Done():
				return
			case <-time.After(acceptPause): // no file descriptor is left, most likely
				continue
			}
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			_ = conn.Close()
			continue
		}
		p.makeRoomLocked()
		p.accepted++
		p.greeting[conn] = p.accepted
		p.mu.Unlock()
		p.running.Go(func() { p.greet(conn) })
	}
}

// makeRoomLocked closes the oldest connections without a session when there are too
// many: an honest one says hello and is taken within moments, so who is old is idle.
func (p *Provider) makeRoomLocked() {
	if len(p.greeting) >= handshakesMax {
		var oldest *net.UnixConn
		for conn, n := range p.greeting {
			if oldest == nil || n < p.greeting[oldest] {
				oldest = conn
			}
		}
		delete(p.greeting, oldest)
		_ = oldest.Close() // its greet ends
	}
	if len(p.parked) >= handshakesMax {
		first := p.parked[0]
		p.dropParkedLocked(func(x *parked) bool { return x == first })
	}
}

// greet reads the hello and gives the connection to its session.
func (p *Provider) greet(conn *net.UnixConn) {
	g, err := greet(conn, time.Now().Add(p.config.HandshakeTimeout))
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.greeting, conn)
	if err != nil {
		_ = conn.Close()
	} else if err = p.routeLocked(g); err != nil {
		g.close()
	}
	if err != nil && !p.closed {
		p.events.Push(rdma.Stale{Peer: g.from, Reason: refusalOf(err)})
	}
}

// greet finds out who is there. With an error the connection is the caller's.
func greet(conn *net.UnixConn, deadline time.Time) (g greeting, err error) {
	if g.sock, g.process, err = identify(conn, deadline); err != nil {
		return g, err
	}
	var b [messageBytes]byte
	n, fds, err := g.sock.await(b[:])
	if err == nil && len(fds) > 0 {
		closeAll(fds)
		err = fmt.Errorf("hello with %d descriptors", len(fds))
	}
	if err == nil {
		g.hello, err = parseHello(b[:n])
	}
	if err != nil {
		g.process.close()
	}
	return g, err
}

var (
	errOver     = errors.New("shm: connection refused: its generation is over")
	errNotAsked = errors.New("shm: connection refused: the session does not wait for it")
)

// refusalOf is the reason that is counted, one of few.
func refusalOf(err error) string {
	var unreachable *UnreachableError
	switch {
	case errors.Is(err, errOver), errors.Is(err, errNotAsked):
		return err.Error()
	case errors.As(err, &unreachable):
		return "shm: connection refused: " + unreachable.Reason
	}
	return "shm: connection refused: no proper hello"
}

// routeLocked gives a connection to the session of its hello, or keeps it for the
// Connect that is to come. With an error nothing more is read from it.
func (p *Provider) routeLocked(g greeting) error {
	id := rdma.SessionID{Peer: g.from, Generation: g.generation}
	s := p.sessions[g.from]
	switch {
	case p.closed:
		return errClosed
	case p.fences.Ended(id):
		return errOver
	case s != nil && s.id == id:
		return s.adoptLocked(g)
	case s != nil && s.id.Generation.Number > g.generation.Number:
		return errOver
	}
	x := &parked{greeting: g}
	x.timer = time.AfterFunc(p.config.HandshakeTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dropParkedLocked(func(o *parked) bool { return o == x })
	})
	p.parked = append(p.parked, x)
	return nil
}

// adoptLocked takes the connection that the peer dialled for this session.
func (s *session) adoptLocked(g greeting) error {
	if s.Dial || s.Self != g.to || s.state != connecting || s.taken {
		return errNotAsked
	}
	s.taken = true
	s.running.Go(func() {
		if err := s.answer(g.sock, g.process); err != nil {
			s.fail(fmt.Errorf("shm: connection of %s: %w", s.id.Peer, err))
		}
	})
	return nil
}

// unparkLocked gives a session the connection that came before it.
func (p *Provider) unparkLocked(s *session) {
	waiting := p.parked
	p.parked = nil
	for _, x := range waiting {
		if (rdma.SessionID{Peer: x.from, Generation: x.generation}) != s.id {
			p.parked = append(p.parked, x)
			continue
		}
		x.timer.Stop()
		if err := s.adoptLocked(x.greeting); err != nil {
			x.close()
			p.events.Push(rdma.Stale{Peer: x.from, Reason: refusalOf(err)})
		}
	}
}

// dropParkedLocked closes parked connections.
func (p *Provider) dropParkedLocked(which func(*parked) bool) {
	kept := p.parked[:0]
	for _, x := range p.parked {
		if !which(x) {
			kept = append(kept, x)
			continue
		}
		x.timer.Stop()
		x.close()
	}
	clear(p.parked[len(kept):])
	p.parked = kept
}
