package verbs

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"net"
	"time"

	"kvferry/transport/rdma"
)

var (
	errOver   = errors.New("verbs: connection refused: its generation is over")
	errNotYet = errors.New("the peer has not called Connect")
)

// accept takes channels until the listener is closed.
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
		if len(p.greeting) >= handshakesMax {
			p.dropOldestLocked()
		}
		p.accepted++
		p.greeting[sock] = p.accepted
		p.mu.Unlock()
		p.running.Go(func() { p.greet(sock) })
	}
}

// dropOldestLocked closes the oldest connection that has not said hello: an honest one
// says it within moments.
func (p *Provider) dropOldestLocked() {
	var oldest *net.TCPConn
	for sock, n := range p.greeting {
		if oldest == nil || n < p.greeting[oldest] {
			oldest = sock
		}
	}
	delete(p.greeting, oldest)
	_ = oldest.Close() // its greet ends
}

// greet reads the hello, answers it, and gives the connection to its session.
func (p *Provider) greet(sock *net.TCPConn) {
	err := sock.SetDeadline(time.Now().Add(p.config.HandshakeTimeout))
	var h hello
	if err == nil {
		h, err = readHello(sock)
	}
	if err == nil {
		err = tune(sock)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.greeting, sock)
	if err == nil {
		err = p.routeLocked(h, sock)
	}
	if err == nil {
		return
	}
	answer := byte(0)
	reason := "verbs: connection refused: no proper hello"
	switch {
	case errors.Is(err, errNotYet):
		answer, reason = answerNotYet, ""
	case errors.Is(err, errVersion):
		answer, reason = answerVersion, "verbs: connection refused: another version of the channel"
	case errors.Is(err, errOver):
		answer, reason = answerOver, errOver.Error()
	}
	if answer != 0 {
		_, _ = sock.Write([]byte{answer}) // one byte into an empty buffer
	}
	_ = sock.Close()
	if !p.closed && reason != "" {
		p.events.Push(rdma.Stale{Peer: h.from, Reason: reason})
	}
}

// routeLocked gives a connection to the session of its hello.
func (p *Provider) routeLocked(h hello, sock *net.TCPConn) error {
	proves := func(g rdma.Generation) bool {
		want := proof(g, h.from, h.to)
		return hmac.Equal(want[:], h.proof[:])
	}
	s := p.sessions[h.from]
	switch {
	case p.closed:
		return errClosed
	case s != nil && s.id.Generation.Number == h.number && proves(s.id.Generation):
		if s.Dial || s.Self != h.to || s.state != connecting || s.channel != nil {
			return errOver
		}
		if _, err := sock.Write([]byte{answerWelcome}); err != nil {
			return err
		}
		return s.attachLocked(sock)
	case p.fences.EndedSuch(h.from, h.number, proves), s != nil && s.id.Generation.Number > h.number:
		return errOver
	}
	return errNotYet
}

// dial makes the channel of a session. It dials again while the peer has not called
// Connect.
func (s *session) dial() error {
	cfg := &s.provider.config
	until := time.Now().Add(cfg.HandshakeTimeout)
	for pause := redialFirst; ; pause = min(2*pause, redialMost) {
		err := s.dialOnce(until)
		if !errors.Is(err, errNotYet) || time.Until(until) < pause {
			return err
		}
		select {
		case <-time.After(pause):
		case <-s.context.Done():
			return s.context.Err()
		}
	}
}

func (s *session) dialOnce(until time.Time) error {
	cfg := &s.provider.config
	d := net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: -1} // tune sets it
	c, err := d.DialContext(s.context, "tcp", s.endpoint.GetAddress())
	if err != nil {
		return err
	}
	sock := c.(*net.TCPConn)
	stop := context.AfterFunc(s.context, func() { _ = sock.Close() }) // a fence does not wait for the peer
	if err := s.greet(sock, until); err != nil {
		stop()
		_ = sock.Close()
		return err
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	if !stop() || s.state != connecting {
		_ = sock.Close()
		return s.why
	}
	return s.attachLocked(sock)
}

// greet says hello and waits for the answer.
func (s *session) greet(sock *net.TCPConn, until time.Time) error {
	if err := sock.SetDeadline(until); err != nil {
		return err
	}
	if err := tune(sock); err != nil {
		return err
	}
	h := hello{from: s.Self, to: s.id.Peer, number: s.id.Generation.Number, proof: proof(s.id.Generation, s.Self, s.id.Peer)}
	if _, err := sock.Write(h.encode()); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := sock.Read(answer[:]); err != nil {
		return fmt.Errorf("the peer closed the connection, or never answered it: %w", err)
	}
	switch answer[0] {
	case answerWelcome:
		return nil
	case answerNotYet:
		return errNotYet
	case answerOver:
		return errors.New("the peer says that the generation is over")
	case answerVersion:
		return fmt.Errorf("the peer does not speak version %d of the channel: is it of another release?", helloVersion)
	}
	return fmt.Errorf("the peer answers %d, want %d to %d", answer[0], answerWelcome, answerVersion)
}
