package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"kvferry/transport/rdma"
)

// dial makes the connection of a session.
func (s *session) dial() {
	if err := s.dialPeer(); err != nil {
		s.fail(fmt.Errorf("shm: connect to %s: %w", s.id.Peer, unwelcome(err)))
	}
}

// unwelcome says what the end of a handshake means.
func unwelcome(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the peer closed the connection")
	}
	return err
}

// dialPeer says hello, takes what the listener hands over, and attaches.
func (s *session) dialPeer() error {
	peer, err := s.provider.endpoint.reach(s.Endpoint)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(s.provider.config.HandshakeTimeout)
	d := net.Dialer{Deadline: deadline}
	c, err := d.DialContext(s.context, "unixpacket", peer.socket)
	if err != nil {
		return err
	}
	conn := c.(*net.UnixConn)
	stop := context.AfterFunc(s.context, func() { _ = conn.Close() })
	defer stop()
	sock, process, err := identify(conn, deadline)
	if err != nil {
		_ = conn.Close()
		return err
	}
	out := newOutbound(sock)
	h := hello{from: s.Self, to: s.id.Peer, generation: s.id.Generation}
	if err = sock.send(h.encode()); err == nil {
		err = out.open(kindWelcome)
	}
	if err == nil {
		err = s.offer(sock, process, kindAttach, out)
	} else {
		_ = conn.Close()
		process.close()
	}
	if err != nil {
		out.release()
	}
	return err
}

// answer is the listener's side: it hands over, and takes what the dialer attaches.
func (s *session) answer(sock socket, process *process) error {
	if err := s.offer(sock, process, kindWelcome, nil); err != nil {
		return err
	}
	out := newOutbound(sock)
	err := out.open(kindAttach)
	if err == nil {
		s.provider.mu.Lock()
		defer s.provider.mu.Unlock()
		if err = s.upLocked(out); err == nil {
			return nil
		}
	}
	out.release()
	return unwelcome(err)
}

// identify finds the peer's process. With an error the connection is the caller's.
func identify(conn *net.UnixConn, deadline time.Time) (socket, *process, error) {
	sock, err := newSocket(conn)
	if err != nil {
		return sock, nil, err
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return sock, nil, err
	}
	process, err := processOf(conn)
	return sock, process, err
}

// offer hands the peer what it needs to write here; the connection and the process
// are then the session's, or closed with an error. With out the session comes up.
func (s *session) offer(sock socket, process *process, k kind, out *outbound) error {
	p := s.provider
	in, err := p.newInbound(s.id, sock, process)
	if err != nil {
		_ = sock.conn.Close()
		process.close()
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state != connecting {
		_ = sock.conn.Close()
		in.releaseLocked()
		return s.why
	}
	s.in = in
	p.inbound[s.id.Peer] = append(p.inbound[s.id.Peer], in)
	if err := in.offerLocked(k); err != nil {
		return err // what was handed over ends with the session's fence
	}
	if out == nil {
		return nil
	}
	return s.upLocked(out)
}

// upLocked begins to carry writes, once both sides have handed over.
func (s *session) upLocked(out *outbound) error {
	if s.state != connecting {
		return s.why
	}
	if err := s.in.sock.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	s.state, s.out = up, out
	if s.timeout != nil {
		s.timeout.Stop()
	}
	s.running.Go(s.read)
	s.running.Go(s.watch)
	s.running.Go(s.hear)
	s.running.Go(newCopier(s).run)
	s.provider.events.Push(rdma.Connected{Session: s.id})
	return nil
}
