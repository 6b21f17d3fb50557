package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

var (
	errQuiesced  = errors.New("verbs: the tag was quiesced")
	errRevoked   = errors.New("verbs: the grant was revoked")
	errFenced    = errors.New("verbs: the session was fenced")
	errClosed    = errors.New("verbs: the provider was closed")
	errNoConnect = errors.New("verbs: the peer did not connect, or its queue pairs were not ready, in time")
	errNoGrant   = errors.New("verbs: the receiver gave no such grant")
)

// state is how far a session is.
type state uint8

const (
	connecting state = iota
	up
	down   // disconnected, not fenced
	ending // being fenced
)

// session is one generation with a peer: a channel, the stripes that are there, and the
// writes posted to it.
//
// A stripe that fails takes what was on it along: its own end is destroyed, and once
// the peer says that the other end is, too, what was unknown goes by another stripe.
// The session ends with its last stripe, with its channel, or with an error that is not
// the path's.
type session struct {
	// Fixed by Connect.
	rdma.Connection
	id       rdma.SessionID
	provider *Provider
	endpoint *control.Endpoint // of the peer, of who dials
	context  context.Context   // done when the session leaves connecting and up
	cancel   context.CancelFunc
	done     chan struct{}  // closed when its writes have completed and its stripes are destroyed, or hang
	running  sync.WaitGroup // what uses the channel
	stripes  []*stripe      // guarded by provider.mu; those that are not destroyed

	// Guarded by provider.mu.
	state    state
	why      error // it is down or ending
	timeout  *time.Timer
	channel  *channel
	rails    int    // of the peer
	wanted   []want // of who dials
	pending  int    // offers without an answer
	offering bool   // some are being made
	offers   map[uint32]*stripe
	refusal  error  // the first
	last     uint32 // stripe
	accepted int    // writes that have not completed

	// What it writes.
	queue  rdma.RoundRobin[*write] // that have something to cut
	live   map[uint64]*write       // accepted and not completed, by sequence
	newest uint64                  // sequence
	memory map[rdma.RegionID]*remoteRegion
	grants map[rdma.GrantID]*target
	asked  map[rdma.GrantID][]*write // whose grant has not come

	limbo map[uint32]*limbo    // stripes of which the peer has yet to destroy its end
	owing map[*grant]time.Time // revoked, of which arrivals are still to come, and since when

	// What it told.
	told map[rdma.RegionID]bool
}

// want is a stripe that there should be.
type want struct {
	pair
	stripe  *stripe // nil: it was lost, or refused
	offered bool    // and the offer has no answer yet
	due     time.Time
	pause   time.Duration
	settled time.Time // since when the stripe is there
}

func newSession(p *Provider, c rdma.Connection) *session {
	return &session{
		Connection: c, id: c.Session, provider: p, done: make(chan struct{}), live: map[uint64]*write{},
		memory: map[rdma.RegionID]*remoteRegion{}, grants: map[rdma.GrantID]*target{},
		asked: map[rdma.GrantID][]*write{}, told: map[rdma.RegionID]bool{}, limbo: map[uint32]*limbo{}, owing: map[*grant]time.Time{},
		offers: map[uint32]*stripe{},
	}
}

// Connect starts a session.
func (p *Provider) Connect(c rdma.Connection) error {
	if len(c.Self) > nameMax || len(c.Session.Peer) > nameMax {
		return fmt.Errorf("verbs: names have %d and %d bytes, want at most %d", len(c.Self), len(c.Session.Peer), nameMax)
	}
	s := newSession(p, c)
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
	if c.Dial {
		e, err := readEndpoint(c.Endpoint)
		if err != nil {
			return err
		}
		pairs, err := pairRails(p.rails(), e.GetRails(), p.config.QueuePairs)
		if err != nil {
			return err
		}
		s.endpoint, s.rails = e, len(e.GetRails())
		for _, x := range pairs {
			s.wanted = append(s.wanted, want{pair: x, pause: restoreFirst})
		}
	}
	s.context, s.cancel = context.WithCancel(context.Background())
	p.sessions[c.Session.Peer] = s
	s.timeout = time.AfterFunc(p.config.HandshakeTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.state == connecting {
			s.leaveLocked(down, errNoConnect)
		}
	})
	if c.Dial {
		s.running.Go(func() {
			if err := s.dial(); err != nil {
				s.fail(fmt.Errorf("verbs: connect to %s: %w", s.endpoint.GetAddress(), err))
			}
		})
	}
	p.running.Go(s.reap)
	return nil
}

// attachLocked gives a session its channel.
func (s *session) attachLocked(sock *net.TCPConn) error {
	if err := sock.SetDeadline(time.Time{}); err != nil {
		return err
	}
	s.channel = newChannel(sock, s.id.Generation, s.Dial)
	s.running.Go(func() {
		if err := s.channel.run(s.context); err != nil {
			s.fail(fmt.Errorf("verbs: channel: write: %w", err))
		}
	})
	s.running.Go(s.read)
	s.running.Go(s.watch)
	s.tellLocked(&control.Frame{Body: &control.Frame_Hail{Hail: &control.Hail{Rails: uint32(len(s.provider.cards))}}})
	if s.Dial {
		s.pending = len(s.wanted)
		s.running.Go(func() {
			for i := range s.wanted {
				s.offer(i)
			}
		})
	}
	return nil
}

// read takes the peer's messages.
func (s *session) read() {
	for {
		f, err := s.channel.next()
		if err == nil {
			err = s.on(f)
		}
		if err != nil {
			s.fail(fmt.Errorf("verbs: channel: %w", err))
			return
		}
	}
}

// tellLocked queues a message to the peer.
func (s *session) tellLocked(f *control.Frame) {
	if s.state > up {
		return
	}
	if err := s.channel.tell(f); err != nil {
		s.leaveLocked(down, fmt.Errorf("verbs: channel: %w", err))
	}
}

// upLocked: the session carries writes.
func (s *session) upLocked() {
	s.state = up
	s.timeout.Stop()
	p := s.provider
	p.events.Push(rdma.Connected{Session: s.id})
	for _, e := range p.grants { // the order is nobody's
		if e.Peer == s.id.Peer && !e.revoked {
			s.tellGrantLocked(e)
		}
	}
}

// tellGrantLocked tells the peer of a grant, and before that of its memory.
func (s *session) tellGrantLocked(e *grant) {
	e.told, e.owed, e.arrived = s, nil, map[uint32]uint64{}
	for i := range e.Ranges {
		id := e.Ranges[i].Region
		if !s.told[id] {
			s.told[id] = true
			s.tellLocked(&control.Frame{Body: &control.Frame_Region{Region: s.provider.memory[id].wire()}})
		}
	}
	s.tellLocked(&control.Frame{Body: &control.Frame_Grant{Grant: e.wire}})
}

// fail takes the session down.
func (s *session) fail(err error) {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.leaveLocked(down, err)
}

// leaveLocked ends connecting or up: what waits is woken and ends, the stripes are
// destroyed, and reap does the rest.
func (s *session) leaveLocked(to state, why error) {
	if s.state > up {
		s.state = max(s.state, to)
		return
	}
	s.timeout.Stop()
	if s.channel != nil {
		_ = s.channel.tell(&control.Frame{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: why.Error()}}})
		_ = s.channel.sock.SetReadDeadline(time.Unix(1, 0))
		_ = s.channel.sock.SetWriteDeadline(time.Now().Add(byeTimeout))
	}
	s.state, s.why = to, why
	for _, st := range s.stripes {
		st.strikeLocked(why)
	}
	s.cancel()
}

// byeTimeout is how long the last words to the peer may take: they fit the socket's
// buffer, unless the peer is stuck.
const byeTimeout = 200 * time.Millisecond

// reap waits for the end of the session and completes what is left of it.
func (s *session) reap() {
	<-s.context.Done()
	p := s.provider
	gone := make(chan struct{}) // closed when the devices have nothing of it any more
	go func() {
		s.running.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.channel != nil {
			_ = s.channel.sock.Close()
		}
		for _, st := range s.offers {
			st.discardLocked(s.why)
		}
		clear(s.offers)
		for len(s.stripes) > 0 { // none is added any more
			ended := s.stripes[0].ended
			p.mu.Unlock()
			<-ended
			p.mu.Lock()
		}
		close(gone)
	}()
	patience := time.NewTimer(p.config.DestroyTimeout)
	defer patience.Stop()
	hangs := false
	select {
	case <-gone:
	case <-patience.C:
		hangs = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.queue.DropAll()
	clear(s.asked)
	s.completeRestLocked()
	if hangs {
		p.hung[s.id.Peer]++
		p.config.Log(Warn, fmt.Sprintf("session with %s: the device does not let go of its queue pairs (%d are known); what was granted to the peer stays closed to others until it does", s.id.Peer, len(s.stripes)))
		go s.wait(gone)
	} else {
		p.endedLocked(s)
	}
	if s.state == down {
		p.events.Push(rdma.Disconnected{Session: s.id, Err: s.why})
	}
	close(s.done)
}

// wait goes on with a session whose stripes were not destroyed in time, when they are.
func (s *session) wait(gone <-chan struct{}) {
	<-gone
	p := s.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung[s.id.Peer]--; p.hung[s.id.Peer] == 0 {
		delete(p.hung, s.id.Peer)
	}
	s.completeRestLocked()
	p.endedLocked(s)
}

// completeRestLocked completes the writes of a session that is over, in the order in
// which they were posted: what never left may be posted again, the rest is unknown.
// What a queue pair that does not go may still read is not completed.
func (s *session) completeRestLocked() {
	for _, n := range slices.SortedFunc(maps.Keys(s.live), cmp.Compare[uint64]) {
		w := s.live[n]
		if slices.ContainsFunc(s.stripes, func(st *stripe) bool { return st.reads(w) }) {
			continue
		}
		switch {
		case !w.begun:
			s.completeLocked(w, rdma.NotPosted, s.why)
		case w.inFlight == 0 && w.lost == 0 && len(w.spans) == 0:
			s.completeLocked(w, rdma.Landed, nil)
		default:
			s.completeLocked(w, rdma.Unknown, s.why)
		}
	}
}

// watch looks at deadlines: of chains, of ends that the peer is to destroy, and of
// stripes that are to be offered again.
func (s *session) watch() {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.context.Done():
			return
		}
		s.look(time.Now())
	}
}

func (s *session) look(now time.Time) {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.overdueLocked(now)
	offers := s.dueLocked(now)
	if len(offers) == 0 {
		return
	}
	s.offering = true
	s.running.Go(func() { // a device that hangs holds up no deadline
		for _, i := range offers {
			s.offer(i)
		}
		s.provider.mu.Lock()
		defer s.provider.mu.Unlock()
		s.offering = false
	})
}

// overdueLocked loses stripes, or the session, of which a deadline is over.
func (s *session) overdueLocked(now time.Time) {
	cfg := &s.provider.config
	for _, st := range s.stripes {
		switch idle := now.Sub(st.moved) > cfg.StallTimeout; {
		case st.ending && st.started && len(st.chunks) > 0 && now.Sub(st.lost) > cfg.drain+cfg.DestroyTimeout:
			s.leaveLocked(down, fmt.Errorf("verbs: %s: a queue pair that was lost, with writes on it, was not destroyed within %v: %w", st.card.name(), cfg.drain+cfg.DestroyTimeout, st.why))
		case len(st.chunks) > 0 && idle:
			st.strikeLocked(fmt.Errorf("verbs: %s: nothing completed within %v", st.card.name(), cfg.StallTimeout))
		case st.live && st.sent == st.credit && idle: // all that was sent has landed
			st.strikeLocked(fmt.Errorf("verbs: %s: the peer posted no receive within %v", st.card.name(), cfg.StallTimeout))
		}
	}
	for _, st := range s.offers { // one is enough
		if s.state == up && now.Sub(st.offered) > cfg.HandshakeTimeout {
			s.leaveLocked(down, fmt.Errorf("verbs: the peer was offered a stripe, and did not answer within %v", cfg.HandshakeTimeout))
			break
		}
	}
	for _, x := range s.limbo { // one is enough
		if now.Sub(x.since) > cfg.GoneTimeout {
			s.leaveLocked(down, fmt.Errorf("verbs: a stripe was lost, and the peer did not say within %v that its end is destroyed: %w", cfg.GoneTimeout, x.why))
			break
		}
	}
	for e, since := range s.owing { // one is enough
		if now.Sub(since) > cfg.GoneTimeout {
			s.leaveLocked(down, fmt.Errorf("verbs: the peer has ended its writes under grant %s, and the device did not tell of all that landed within %v", e.ID, cfg.GoneTimeout))
			break
		}
	}
}

// dueLocked is which stripes are to be offered now. Those before them are through.
func (s *session) dueLocked(now time.Time) (offers []int) {
	if s.state != up || s.offering {
		return nil
	}
	for i := range s.wanted {
		x := &s.wanted[i]
		switch {
		case x.stripe != nil:
			if x.pause > restoreFirst && now.Sub(x.settled) > restoreMost {
				x.pause = restoreFirst
			}
		case !x.offered && now.After(x.due) && s.provider.cards[x.from].down == "":
			x.offered = true
			offers = append(offers, i)
			s.pending++
		}
	}
	return offers
}

// putOffLocked: the stripe is not there, and is offered again after a while.
func (w *want) putOffLocked(now time.Time) {
	w.stripe, w.offered = nil, false
	w.due = now.Add(w.pause/2 + rand.N(w.pause))
	w.pause = min(2*w.pause, restoreMost)
}
