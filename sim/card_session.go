package sim

import (
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transport/rdma"
	"slices"
	"time"
)

// session is one generation with a peer.
type session struct {
	card    *card
	peer    messages.Node
	gen     rdma.Generation
	up      bool
	told    map[rdma.GrantID]bool // grants of this side that the peer's card knows
	broken  bool                  // disconnected
	fencing bool
	over    bool     // fenced: nothing moves any more
	writes  []*write // taken, in order
	queue   []*write // that wait
	owed    []*owed
	lanes   [cardStripes]*lane
	stripes uint32                // there were so far
	unsure  map[rdma.GrantID]bool // grants of the peer under which a write was unknown
}

func (c *card) session(peer messages.Node) *session {
	for _, s := range c.sessions {
		if s.peer == peer {
			return s
		}
	}
	return nil
}

// connect makes a session, when both sides have asked for the same.
func (c *card) connect(peer messages.Node, e pairing.Connect) {
	if old := c.session(peer); old != nil {
		c.w.fail("connect-before-fence", "%s connects generation %d with %s, and %d is not fenced", c.p.id, e.Generation.Number, peer, old.gen.Number)
		return
	}
	s := &session{card: c, peer: peer, gen: e.Generation, unsure: map[rdma.GrantID]bool{}}
	c.sessions = append(c.sessions, s)
	until := c.w.now + cardDial
	if e.Dial {
		c.w.after(c.w.latency(), func() { s.dial(until) })
		return
	}
	c.w.after(cardDial, func() {
		if !s.up && !s.over && !s.broken {
			s.disconnect(errDown)
		}
	})
}

func (s *session) dial(until time.Duration) {
	w := s.card.w
	if s.over || s.fencing || s.card.p.dead {
		return
	}
	other := w.life(s.peer)
	if !other.dead && !other.stopped && !w.isCut(data, s.card.p.host, other.host) && !w.isCut(data, other.host, s.card.p.host) {
		if t := other.card.session(s.card.p.id); t != nil && t.gen == s.gen && !t.fencing && !t.broken && !t.over {
			for _, x := range []*session{s, t} {
				x.up, x.told = true, map[rdma.GrantID]bool{}
				for _, g := range x.card.grants { // a set
					if g.writer == x.peer && !g.revoked {
						x.told[g.id] = true
					}
				}
				w.after(w.latency(), func() { x.card.p.do(func() { x.tell(pairing.Connected{Generation: x.gen}) }) })
			}
			return
		}
	}
	if w.now >= until {
		s.disconnect(errDown)
		return
	}
	w.after(50*time.Millisecond, func() { s.dial(until) })
}

// tell tells the peer's actor.
func (s *session) tell(ev pairing.LinkEvent) {
	if l := s.card.p.link(s.peer); l != nil {
		s.card.p.step(l, ev)
	}
}

// disconnect ends a session by itself. The other side notices, now or later.
func (s *session) disconnect(why error) {
	if s.broken || s.over {
		return
	}
	w := s.card.w
	s.broken = true
	w.covered.add(coverDisconnect)
	w.tell(s.card.p.id.Name, s.peer.Name, "", "session %d breaks: %v", s.gen.Number, why)
	s.finish()
	p := s.card.p
	p.do(func() { p.soon(func() { s.tell(pairing.Disconnected{Generation: s.gen, Err: why}) }) })
	s.hint()
}

// hint has the peer's card notice that this side is gone: by a packet, or by its own
// retries.
func (s *session) hint() {
	w := s.card.w
	other := w.life(s.peer)
	d := w.latency()
	if w.isCut(data, s.card.p.host, other.host) || w.chance(4) == 0 {
		d = w.between(cardRetry, 4*cardRetry)
	}
	w.after(d, func() {
		if t := other.card.session(s.card.p.id); !other.dead && t != nil && t.gen == s.gen && t.up {
			t.disconnect(errDown)
		}
	})
}

// finish completes what the session has: what never left may be posted again.
func (s *session) finish() {
	for _, x := range slices.Clone(s.writes) {
		if x.began {
			s.complete(x, rdma.Unknown)
		} else {
			s.complete(x, rdma.NotPosted)
		}
	}
	for _, x := range s.queue {
		x.notTaken()
	}
	s.queue = nil
}

// fence ends a generation at this side. It needs nobody.
func (c *card) fence(peer messages.Node, g rdma.Generation) {
	s := c.session(peer)
	if s == nil || s.gen != g { // it moves nothing; what is open, is
		c.p.soon(func() { c.answerFence(peer, g, c.left(peer)) })
		return
	}
	l := c.p.link(peer)
	if c.w.bug("gossip-is-fence") && l != nil && l.gone || c.w.bug("fence-does-nothing") { // what is on the way goes on
		c.sessions = slices.DeleteFunc(c.sessions, func(x *session) bool { return x == s })
		c.leaked = append(c.leaked, s)
		c.p.soon(func() { c.fenced(peer, g) })
		return
	}
	s.fencing = true
	early := c.w.bug("fence-early")
	if early {
		c.p.soon(func() { c.fenced(peer, g) })
	}
	d := c.w.between(100*time.Microsecond, 5*time.Millisecond)
	if early {
		d = c.w.between(time.Millisecond, 500*time.Millisecond)
	}
	if !c.w.calm && c.w.chance(20) == 0 {
		c.w.covered.add(coverSlowFence)
		d = c.w.between(100*time.Millisecond, 1500*time.Millisecond)
	}
	c.w.after(d, func() {
		if c.p.dead || s.over {
			return
		}
		s.finish()
		s.settle()
		s.over = true
		c.sessions = slices.DeleteFunc(c.sessions, func(x *session) bool { return x == s })
		for r, t := range c.tags { // each by itself
			t.unknown = slices.DeleteFunc(t.unknown, func(x rdma.Generation) bool { return x == g })
			if t.flying == 0 && len(t.unknown) == 0 && !t.asked {
				delete(c.tags, r)
			}
		}
		s.hint()
		if !early {
			c.p.do(func() { c.p.soon(func() { c.fenced(peer, g) }) })
		}
	})
}

// fenced tells what a fence left open.
func (c *card) fenced(peer messages.Node, gen rdma.Generation) {
	var open []rdma.OpenGrant
	for _, g := range c.sorted() {
		if g.writer != peer || !g.revoked || g.closed {
			continue
		}
		if c.w.now < g.frozen {
			open = append(open, rdma.OpenGrant{Grant: g.id, Reason: "a process is stopped inside a copy"})
			continue
		}
		c.close(g)
		if !c.w.bug("fence-closes-silently") {
			c.p.soon(func() { g.room.onRevoked(g.id, true) })
		}
	}
	c.answerFence(peer, gen, open)
}

func (c *card) answerFence(peer messages.Node, gen rdma.Generation, open []rdma.OpenGrant) {
	if l := c.p.link(peer); l != nil {
		c.p.step(l, pairing.Fenced{Generation: gen, Open: open})
	}
}
