package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

var (
	errQuiesced  = errors.New("tcp: the tag was quiesced")
	errRevoked   = errors.New("tcp: the grant was revoked while a frame came in")
	errFenced    = errors.New("tcp: the session was fenced")
	errClosed    = errors.New("tcp: the provider was closed")
	errNoConnect = errors.New("tcp: the peer did not connect in time")
	errRefused   = errors.New("tcp: the receiver refused it")
)

// state is how far a session is.
type state uint8

const (
	connecting state = iota
	up
	down   // disconnected, not fenced
	ending // being fenced
)

// session is one generation with a peer: its connections, and the writes posted to
// it. One failing connection takes it down.
type session struct {
	// Fixed by Connect.
	rdma.Connection
	id       rdma.SessionID
	provider *Provider
	context  context.Context // done when the session leaves connecting and up
	cancel   context.CancelFunc
	done     chan struct{} // closed when nothing of it runs and its writes have completed
	running  sync.WaitGroup

	// Guarded by provider.mu.
	state    state
	why      error // it is down or ending
	timeout  *time.Timer
	conns    []*conn // by stripe, nil where there is none yet
	attached int
	accepted int // writes that have not completed

	// mu guards what the connections share to send. provider.mu may be held when it
	// is taken, never the other way round.
	mu    sync.Mutex
	queue rdma.RoundRobin[*write] // that have something to cut
	live  map[uint64]*write       // accepted and not ended, by sequence
	last  uint64                  // sequence
}

// write is a write that was accepted.
type write struct {
	// What a frame tells of it. The frame may outlive the write's completion, after
	// which the Write is the caller's again.
	id  rdma.WriteID
	tag rdma.Tag

	*rdma.Write
	sequence uint64
	sources  [][]byte // the memory of each copy's source

	// Guarded by session.mu.
	at       cursor
	begun    bool // a frame was cut
	cut      bool // all frames were
	ended    bool // it has completed, or is about to
	refused  bool // a frame was
	inFlight int  // frames without an ack
	landed   []uint64
}

// Connect starts a session.
func (p *Provider) Connect(c rdma.Connection) error {
	if len(c.Self) > nameMax || len(c.Session.Peer) > nameMax {
		return fmt.Errorf("tcp: names have %d and %d bytes, want at most %d", len(c.Self), len(c.Session.Peer), nameMax)
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
	s := &session{Connection: c, id: c.Session, provider: p, done: make(chan struct{}), live: map[uint64]*write{}}
	s.context, s.cancel = context.WithCancel(context.Background())
	p.sessions[c.Session.Peer] = s
	p.running.Go(s.reap)
	if c.Dial {
		s.conns = make([]*conn, p.config.Connections)
		for i := range s.conns {
			s.running.Go(func() { s.dial(uint32(i)) })
		}
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

// attachLocked gives a session one of its connections; the last brings it up.
func (s *session) attachLocked(stripe uint32, sock *net.TCPConn) error {
	if s.state != connecting {
		return fmt.Errorf("the session does not wait for connections: %w", s.why)
	}
	if s.conns[stripe] != nil {
		return errNotAsked
	}
	c, err := newConn(s, stripe, sock)
	if err != nil {
		return err
	}
	s.conns[stripe] = c
	if s.attached++; s.attached < len(s.conns) {
		return nil
	}
	if !s.Dial {
		s.timeout.Stop()
		for _, c := range s.conns {
			if err := writeWelcome(c.sock); err != nil { // a few bytes into an empty buffer
				s.leaveLocked(down, fmt.Errorf("tcp: welcome: %w", err))
				return nil
			}
		}
	}
	s.state = up
	for _, c := range s.conns {
		s.running.Go(c.write)
		s.running.Go(c.read)
	}
	s.provider.events.Push(rdma.Connected{Session: s.id})
	return nil
}

// fail takes the session down because of one of its connections.
func (s *session) fail(err error) {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.leaveLocked(down, err)
}

// leaveLocked ends connecting or up: what waits for a socket is woken and ends, and
// reap does the rest. To close a socket here would wait for the system calls that
// are executing.
func (s *session) leaveLocked(to state, why error) {
	if s.state == ending || s.state == down {
		s.state = max(s.state, to)
		return
	}
	s.state, s.why = to, why
	if s.timeout != nil {
		s.timeout.Stop()
	}
	for _, c := range s.conns {
		if c != nil {
			_ = c.sock.SetDeadline(time.Unix(1, 0))
		}
	}
	s.cancel()
}

// reap waits for the end of the session and completes what is left of it.
func (s *session) reap() {
	<-s.context.Done()
	s.running.Wait()
	for _, c := range s.conns { // nothing attaches any more
		if c != nil {
			// What the kernel still holds need not arrive: its writes are unknown.
			_ = c.sock.SetLinger(0)
			_ = c.sock.Close()
		}
	}
	s.mu.Lock()
	rest := s.endLocked(func(*write) bool { return true })
	s.queue.DropAll()
	s.mu.Unlock()
	p := s.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	p.completeAllLocked(s, rest, s.why)
	if s.state == down {
		p.events.Push(rdma.Disconnected{Session: s.id, Err: s.why})
	}
	close(s.done)
}

// endLocked marks writes as ended, in the order in which they were posted.
func (s *session) endLocked(which func(*write) bool) (ended []*write) {
	for _, n := range slices.SortedFunc(maps.Keys(s.live), cmp.Compare[uint64]) {
		if w := s.live[n]; which(w) {
			w.ended = true
			delete(s.live, n)
			ended = append(ended, w)
		}
	}
	return ended
}

// completeAllLocked completes writes that were marked as ended before they were
// done: what never left may be posted again, the rest is unknown.
func (p *Provider) completeAllLocked(s *session, ws []*write, why error) {
	for _, w := range ws {
		o := rdma.NotPosted
		if w.begun {
			o = rdma.Unknown
		}
		p.completeLocked(s, w, o, why)
	}
}

// completeLocked tells how a write ended. Nothing reads its source any more.
func (p *Provider) completeLocked(s *session, w *write, o rdma.Outcome, why error) {
	p.regions.UseSources(w.Write, -1)
	s.accepted--
	ev := rdma.Completed{Session: s.id, ID: w.ID, Tag: w.Tag, Outcome: o, Err: why, Bytes: w.Bytes()}
	if o == rdma.Landed || o == rdma.Unknown {
		for stripe, n := range w.landed {
			if n > 0 {
				ev.Arrivals = append(ev.Arrivals, rdma.Arrival{Stripe: uint32(stripe), Count: n})
			}
		}
	}
	p.events.Push(ev)
	due, quiesced := p.tags.Completed(w.Tag, s.id, o)
	for range due {
		p.events.Push(quiesced)
	}
}

// Post gives writes to a session.
func (p *Provider) Post(id rdma.SessionID, ws []*rdma.Write) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[id.Peer]
	if s == nil || s.id != id || s.state != up {
		return rdma.ErrNotConnected
	}
	if len(ws) > p.config.WindowWrites {
		return &rdma.RangeError{Field: "writes", Got: uint64(len(ws)), Want: uint64(p.config.WindowWrites), Text: "the window never takes so many at once"}
	}
	if err := rdma.CheckWrites(ws, p.regions.Length); err != nil {
		return err
	}
	if s.accepted+len(ws) > p.config.WindowWrites {
		return rdma.ErrFull
	}
	s.accepted += len(ws)
	s.mu.Lock()
	for _, w := range ws {
		p.regions.UseSources(w, 1)
		p.tags.Posted(w.Tag)
		s.last++
		x := &write{id: w.ID, tag: w.Tag, Write: w, sequence: s.last, landed: make([]uint64, len(s.conns)), sources: make([][]byte, len(w.Copies))}
		for i := range w.Copies {
			x.sources[i] = p.regions.Bytes(w.Copies[i].Source.Region)
		}
		s.live[x.sequence] = x
		s.queue.Push(w.Tag, x)
	}
	s.mu.Unlock()
	for _, c := range s.conns {
		c.wakeUp()
	}
	return nil
}

// Quiesce ends every write under a tag. It waits, not here, for system calls that
// are reading a source; the rest of such a frame is padded by its writer, whenever
// the peer lets it.
func (p *Provider) Quiesce(tag rdma.Tag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type part struct {
		s  *session
		ws []*write
	}
	var parts []part
	var busy []abandon
	for _, s := range p.sessions { // writes are unordered, so the order of sessions is nobody's
		if s.state != up {
			continue // reap is about to complete what there is
		}
		s.mu.Lock()
		s.queue.Drop(tag)
		var ws []*write
		if p.tags.InFlight(tag) > 0 { // else it is not worth a look at all writes
			ws = s.endLocked(func(w *write) bool { return w.Tag == tag })
		}
		for _, c := range s.conns {
			if c != nil && c.sending != nil && c.sending.tag == tag {
				busy = append(busy, abandon{c, c.number})
			}
		}
		s.mu.Unlock()
		if len(ws) > 0 {
			parts = append(parts, part{s, ws})
		}
	}
	finish := func() {
		for _, x := range parts {
			p.completeAllLocked(x.s, x.ws, errQuiesced)
		}
		if ev, now := p.tags.Quiesce(tag); now {
			p.events.Push(ev)
		}
	}
	if len(busy) == 0 {
		finish()
		return
	}
	for _, x := range parts {
		x.s.running.Add(1) // its end waits for these completions
	}
	p.running.Go(func() {
		for _, x := range busy {
			x.now()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		finish()
		for _, x := range parts {
			x.s.running.Done()
		}
	})
}

// abandon names a frame whose source may not be read any more.
type abandon struct {
	conn  *conn
	frame uint64
}

// now returns when no system call reads the frame's source, and none will.
func (a abandon) now() {
	a.conn.reading.Lock()
	defer a.conn.reading.Unlock()
	if a.conn.frame == a.frame {
		a.conn.abandoned = true
	}
}
