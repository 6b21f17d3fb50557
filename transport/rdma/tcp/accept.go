package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"kvferry/transport/rdma"
)

// parked is a connection that said hello before this side called Connect.
type parked struct {
	hello
	sock  *net.TCPConn
	timer *time.Timer
}

// accept takes connections until the listener is closed.
func (p *Provider) accept() {
	for {
		sock, err := p.listener.AcceptTCP()
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
			_ = sock.Close()
			continue
		}
		p.makeRoomLocked()
		p.accepted++
		p.greeting[sock] = p.accepted
		p.mu.Unlock()
		p.running.Go(func() { p.greet(sock) })
	}
}

// makeRoomLocked closes the oldest connections without a session when there are too
// many: an honest one says hello and is taken within moments, so who is old is idle.
func (p *Provider) makeRoomLocked() {
	if len(p.greeting) >= handshakesMax {
		var oldest *net.TCPConn
		for sock, n := range p.greeting {
			if oldest == nil || n < p.greeting[oldest] {
				oldest = sock
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
func (p *Provider) greet(sock *net.TCPConn) {
	err := sock.SetDeadline(time.Now().Add(p.config.HandshakeTimeout))
	var h hello
	if err == nil {
		h, err = readHello(sock)
	}
	if err == nil {
		err = tune(sock, &p.config)
	}
	if err == nil {
		err = sock.SetDeadline(time.Time{})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.greeting, sock)
	if err == nil {
		err = p.routeLocked(h, sock)
	}
	if err != nil {
		_ = sock.Close()
		if !p.closed {
			p.events.Push(rdma.Stale{Peer: h.from, Reason: refusal(err)})
		}
	}
}

var (
	errOver     = errors.New("tcp: connection refused: its generation is over")
	errNotAsked = errors.New("tcp: connection refused: the session does not wait for it")
)

// refusal is the reason that is counted, one of few.
func refusal(err error) string {
	if errors.Is(err, errOver) || errors.Is(err, errNotAsked) {
		return err.Error()
	}
	return "tcp: connection refused: no proper hello"
}

// routeLocked gives a connection to the session of its hello, or keeps it for the
// Connect that is to come. With an error nothing more is read from it.
func (p *Provider) routeLocked(h hello, sock *net.TCPConn) error {
	id := rdma.SessionID{Peer: h.from, Generation: h.generation}
	s := p.sessions[h.from]
	switch {
	case p.closed:
		return errClosed
	case p.fences.Ended(id):
		return errOver
	case s != nil && s.id == id:
		return s.adoptLocked(h, sock)
	case s != nil && s.id.Generation.Number > h.generation.Number:
		return errOver
	}
	x := &parked{hello: h, sock: sock}
	x.timer = time.AfterFunc(p.config.HandshakeTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dropParkedLocked(func(o *parked) bool { return o == x })
	})
	p.parked = append(p.parked, x)
	return nil
}

// adoptLocked takes a connection that the peer dialled for this session.
func (s *session) adoptLocked(h hello, sock *net.TCPConn) error {
	if s.Dial || s.Self != h.to || s.state != connecting {
		return errNotAsked
	}
	if s.conns == nil {
		s.conns = make([]*conn, h.stripes)
	}
	if len(s.conns) != int(h.stripes) {
		return errNotAsked
	}
	return s.attachLocked(uint32(h.stripe), sock)
}

// unparkLocked gives a session the connections that came before it.
func (p *Provider) unparkLocked(s *session) {
	waiting := p.parked
	p.parked = nil
	for _, x := range waiting {
		if (rdma.SessionID{Peer: x.from, Generation: x.generation}) != s.id {
			p.parked = append(p.parked, x)
			continue
		}
		x.timer.Stop()
		if err := s.adoptLocked(x.hello, x.sock); err != nil {
			_ = x.sock.Close()
			p.events.Push(rdma.Stale{Peer: x.from, Reason: refusal(err)})
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
		_ = x.sock.Close()
	}
	clear(p.parked[len(kept):])
	p.parked = kept
}

// dial makes one connection of a session.
func (s *session) dial(stripe uint32) {
	if err := s.dialStripe(stripe); err != nil {
		s.fail(fmt.Errorf("tcp: stripe %d: connect to %s: %w", stripe, s.Endpoint, err))
	}
}

func (s *session) dialStripe(stripe uint32) error {
	cfg := &s.provider.config
	d := net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: -1} // tune sets it
	c, err := d.DialContext(s.context, "tcp", string(s.Endpoint))
	if err != nil {
		return err
	}
	sock := c.(*net.TCPConn)
	stop := context.AfterFunc(s.context, func() { _ = sock.Close() })
	if err := s.greet(sock, stripe); err != nil {
		stop()
		_ = sock.Close()
		return err
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	if !stop() {
		return fmt.Errorf("the session ended: %w", s.why)
	}
	if err := s.attachLocked(stripe, sock); err != nil {
		_ = sock.Close()
		return err
	}
	return nil
}

// greet says hello and waits for the welcome.
func (s *session) greet(sock *net.TCPConn, stripe uint32) error {
	cfg := &s.provider.config
	if err := sock.SetDeadline(time.Now().Add(cfg.HandshakeTimeout)); err != nil {
		return err
	}
	if err := tune(sock, cfg); err != nil {
		return err
	}
	h := hello{from: s.Self, to: s.id.Peer, generation: s.id.Generation, stripe: uint16(stripe), stripes: uint16(len(s.conns))}
	if _, err := sock.Write(h.encode()); err != nil {
		return err
	}
	if err := readWelcome(sock); err != nil {
		return err
	}
	return sock.SetDeadline(time.Time{})
}
