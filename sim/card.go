package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transport/rdma"
)

// cardKind is how a network card places bytes, and so what a revoke can do.
type cardKind uint8

const (
	checked cardKind = iota // the receiver places them: a revoke closes at once (tcp)
	remote                  // the sender's card does: a revoke asks the peer, or a fence closes (verbs)
	stuck                   // a process stopped inside a copy keeps a grant open, whatever is fenced (shm)
	cardKinds
)

func (k cardKind) String() string { return [...]string{"checked", "remote", "stuck"}[k] }

var errDown = errors.New("no connection")

const (
	cardWindow  = 3                      // writes of a session that are taken
	cardStripes = 2                      // that a write is spread over
	cardRetry   = 300 * time.Millisecond // until a packet that nobody answers is given up
	cardDial    = 2 * time.Second        // until a session is made
)

// card is the provider of a process, and the hardware below it, which goes on when the
// process is stopped.
type card struct {
	p        *process
	w        *world
	sessions []*session
	leaked   []*session // that a planted fault has not fenced
	grants   map[rdma.GrantID]*grant
	tags     map[*room]*tag
}

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
}

// write is a write from when it was posted until it completes.
type write struct {
	room    *room
	id      rdma.WriteID
	grant   rdma.GrantID
	session *session
	pieces  []*piece
	left    int // pieces without an answer
	began   bool
	refused bool
	done    bool
}

// piece is what goes over one stripe.
type piece struct {
	write  *write
	stripe uint32
	copies []kv.Copy
	bytes  []byte // once it has left
	n      uint64
}

// grant is a grant of this side.
type grant struct {
	id       rdma.GrantID
	room     *room
	writer   messages.Node
	mask     []uint64 // of the engine's memory: which bytes it covers
	revoked  bool
	released bool // the room has let go of its pages
	closed   bool
	frozen   time.Duration   // a stopped process keeps it open until then; stuck
	since    rdma.Generation // of that process
	asked    bool            // the peer was asked to end its writes
}

// tag is the writes of a room.
type tag struct {
	flying  int
	unknown []rdma.Generation
	asked   bool
}

func newCard(p *process) *card {
	return &card{p: p, w: p.w, grants: map[rdma.GrantID]*grant{}, tags: map[*room]*tag{}}
}

func (c *card) session(peer messages.Node) *session {
	for _, s := range c.sessions {
		if s.peer == peer {
			return s
		}
	}
	return nil
}

// life is the process of a node's incarnation, dead ones included.
func (w *world) life(n messages.Node) *process {
	for _, p := range w.lives {
		if p.id == n {
			return p
		}
	}
	panic(fmt.Sprintf("sim: no node %s", n))
}

// connect makes a session, when both sides have asked for the same.
func (c *card) connect(peer messages.Node, e pairing.Connect) {
	if old := c.session(peer); old != nil {
		c.w.fail("connect-before-fence", "%s connects generation %d with %s, and %d is not fenced", c.p.id, e.Generation.Number, peer, old.gen.Number)
		return
	}
	s := &session{card: c, peer: peer, gen: e.Generation}
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

// post takes a write, or keeps it until there is room.
func (c *card) post(r *room, peer messages.Node, id rdma.WriteID, g rdma.GrantID, copies []kv.Copy) {
	x := &write{room: r, id: id, grant: g}
	s := c.session(peer)
	if s == nil || !s.up || s.broken || s.fencing {
		x.notTaken()
		return
	}
	x.session = s
	stripes := 1 + c.w.chance(cardStripes)
	for i := range min(stripes, len(copies)) {
		q := &piece{write: x, stripe: uint32(i)}
		for k := i; k < len(copies); k += stripes {
			q.copies = append(q.copies, copies[k])
		}
		x.pieces = append(x.pieces, q)
	}
	x.left = len(x.pieces)
	c.tag(r).flying++
	if len(s.writes) >= cardWindow {
		s.queue = append(s.queue, x)
		return
	}
	s.begin(x)
}

func (c *card) tag(r *room) *tag {
	t := c.tags[r]
	if t == nil {
		t = &tag{}
		c.tags[r] = t
	}
	return t
}

func (s *session) begin(x *write) {
	s.writes = append(s.writes, x)
	for _, q := range x.pieces {
		s.card.w.after(s.card.w.latency(), func() { s.leave(q) })
	}
}

// notTaken gives a write back.
func (x *write) notTaken() {
	p := x.room.engine.p
	p.soon(func() { x.room.onNotTaken(x.id, errDown) })
	if x.session != nil {
		p.card.ended(x, rdma.NotPosted)
	}
}

// leave reads the sources of a piece, and sends it.
func (s *session) leave(q *piece) {
	x, w := q.write, s.card.w
	if x.done || s.over || s.broken || s.card.p.dead {
		return
	}
	other := w.life(s.peer)
	if t := other.card.session(s.card.p.id); w.plan.card == remote && t != nil && t.gen == s.gen && !t.told[x.grant] {
		w.after(w.latency(), func() { s.answered(x, rdma.Refused) }) // there is no such grant
		return
	}
	x.began = true
	e := x.room.engine
	if !e.holds(x.room) {
		w.fail("read-after-free", "%s reads pages of room %s that were given back", e.id, x.room.id)
		return
	}
	for i := range q.copies {
		eachRow(&q.copies[i], func(from, _, n uint64) { q.bytes = append(q.bytes, e.memory[from:from+n]...) })
	}
	q.n = uint64(len(q.bytes))
	fate := w.fateOf()
	if w.isCut(data, s.card.p.host, other.host) {
		fate = pieceLost
	}
	w.note('w', uint64(s.card.p.host.index), uint64(x.id), uint64(fate))
	switch fate {
	case pieceLost:
		w.covered.add(coverLostPiece)
		w.after(cardRetry, func() { s.giveUp(x) })
	case pieceLate:
		w.covered.add(coverLatePiece)
		w.after(w.between(cardRetry, 2500*time.Millisecond), func() { w.land(q, s, other, func(rdma.Outcome) {}) })
		w.after(cardRetry, func() { s.giveUp(x) })
	case ackLost:
		w.covered.add(coverLostAck)
		w.after(w.latency(), func() { w.land(q, s, other, func(rdma.Outcome) {}) })
		w.after(cardRetry, func() { s.giveUp(x) })
	default:
		d := w.latency()
		if w.plan.slowReceiver == other.host.index && !w.calm {
			d += w.between(0, 100*time.Millisecond)
		}
		w.after(d, func() {
			w.land(q, s, other, func(o rdma.Outcome) {
				if w.isCut(data, other.host, s.card.p.host) {
					w.after(cardRetry, func() { s.giveUp(x) })
					return
				}
				w.after(w.latency(), func() { s.answered(x, o) })
			})
		})
	}
}

// giveUp is a packet that nobody answered.
func (s *session) giveUp(x *write) {
	if !x.done && !s.over {
		s.disconnect(errors.New("retries exceeded"))
	}
}

// land places a piece at the receiver, if its card still lets it in.
func (w *world) land(q *piece, s *session, other *process, answer func(rdma.Outcome)) {
	c := other.card
	t := c.session(s.card.p.id)
	for _, x := range c.leaked {
		if x.peer == s.card.p.id && x.gen == s.gen {
			t = x
		}
	}
	if w.bug("sessions-by-name") && t == nil {
		for _, x := range c.sessions {
			if x.peer.Name == s.card.p.id.Name {
				t = x
			}
		}
	}
	g := c.grants[q.write.grant]
	if other.stopped && !other.dead && w.plan.card != remote { // it places them when it goes on
		w.after(50*time.Millisecond, func() { w.land(q, s, other, answer) })
		return
	}
	frozen := g != nil && w.now < g.frozen && s.gen == g.since
	if other.dead || !frozen && (t == nil || t.gen != s.gen && !w.bug("sessions-by-name") || t.over) {
		w.after(cardRetry, func() { s.giveUp(q.write) })
		return
	}
	// What the receiver places itself, it does not for a grant that is not in force.
	if !frozen && w.plan.card != remote && (g == nil || g.revoked) {
		answer(rdma.Refused)
		return
	}
	if w.bug("arrival-before-bytes") {
		w.after(20*time.Millisecond, func() { w.place(q, other, g) })
	} else {
		w.place(q, other, g)
	}
	w.after(0, func() {
		answer(rdma.Landed)
		if g != nil && !g.closed && t != nil && !t.over {
			c.p.do(func() {
				c.p.soon(func() {
					g.room.onArrived(g.id, s.gen, rdma.Arrival{Stripe: q.stripe, Count: 1}, q.n)
				})
			})
		}
	})
}

// place writes bytes, and checks that it may.
func (w *world) place(q *piece, other *process, g *grant) {
	switch {
	case g == nil:
		w.fail("no-grant", "a write of %s lands at %s under a grant that is not there", q.write.room.id, other.id)
		return
	case g.closed, g.released, g.room.letGo:
		w.fail("after-close", "a byte of room %s lands at %s after its grant was closed", q.write.room.id, other.id)
		return
	case g.writer != q.write.session.card.p.id:
		w.fail("foreign-grant", "%s writes under a grant of %s", q.write.session.card.p.id, g.writer)
		return
	case g.room.id != q.write.room.id:
		w.fail("wrong-room", "room %s writes into pages of room %s", q.write.room.id, g.room.id)
		return
	}
	e, at := g.room.engine, 0
	for i := range q.copies {
		eachRow(&q.copies[i], func(_, to, n uint64) {
			for k := range n {
				if b := to + k; b/64 >= uint64(len(g.mask)) || g.mask[b/64]&(1<<(b%64)) == 0 {
					w.fail("outside", "a byte of room %s lands at %d of %s, outside its grant", q.write.room.id, b, e.id)
					return
				}
			}
			copy(e.memory[to:to+n], q.bytes[at:])
			at += int(n)
		})
	}
}

// eachRow visits the rows of a copy.
func eachRow(c *kv.Copy, visit func(from, to, n uint64)) {
	for _, run := range c.Runs {
		for k := range run.Count {
			s := c.Source.Offset + uint64(run.Source+k*run.SourceStep)*c.Source.UnitStride
			t := c.Target.Offset + uint64(run.Target+k*run.TargetStep)*c.Target.UnitStride
			for i := range uint64(c.Count[0]) {
				for j := range uint64(c.Count[1]) {
					visit(s+i*c.Source.Stride[0]+j*c.Source.Stride[1], t+i*c.Target.Stride[0]+j*c.Target.Stride[1], c.Bytes)
				}
			}
		}
	}
}

// answered takes the end of one piece.
func (s *session) answered(x *write, o rdma.Outcome) {
	if x.done || s.over || s.broken || s.card.p.dead {
		return
	}
	x.refused = x.refused || o == rdma.Refused
	if x.left--; x.left > 0 {
		return
	}
	if x.refused {
		s.complete(x, rdma.Refused)
		return
	}
	s.complete(x, rdma.Landed)
}

// complete ends a write, once.
func (s *session) complete(x *write, o rdma.Outcome) {
	if x.done {
		return
	}
	x.done = true
	if o == rdma.Landed || !s.card.w.bug("window-leak") {
		s.writes = slices.DeleteFunc(s.writes, func(y *write) bool { return y == x })
	}
	ev := completion{id: x.id, gen: s.gen, peer: s.peer, outcome: o}
	if o == rdma.Landed {
		for _, q := range x.pieces {
			ev.arrivals = append(ev.arrivals, rdma.Arrival{Stripe: q.stripe, Count: 1})
		}
	} else {
		ev.err = errDown
	}
	p := s.card.p
	p.do(func() { p.soon(func() { x.room.onWritten(ev) }) })
	p.card.ended(x, o) // what it tells comes behind
	for len(s.queue) > 0 && len(s.writes) < cardWindow && s.up && !s.broken && !s.fencing {
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.begin(next)
	}
	s.card.closeIfEnded(s.peer, x.grant)
}

type completion struct {
	id       rdma.WriteID
	gen      rdma.Generation
	peer     messages.Node
	outcome  rdma.Outcome
	err      error
	arrivals []rdma.Arrival
}

// ended counts a write off its room.
func (c *card) ended(x *write, o rdma.Outcome) {
	t := c.tags[x.room]
	t.flying--
	if g := x.session.gen; o == rdma.Unknown && !x.session.over && !slices.Contains(t.unknown, g) {
		t.unknown = append(t.unknown, g)
	}
	if t.flying == 0 && t.asked {
		c.quiesced(x.room)
	}
}

// quiesce ends the writes of a room: what has not left does not.
func (c *card) quiesce(r *room) {
	t := c.tags[r]
	if t == nil {
		c.p.soon(func() { r.onQuiesced(nil) })
		return
	}
	t.asked = true
	for _, s := range c.sessions {
		for _, x := range slices.Clone(s.queue) {
			if x.room == r {
				s.queue = slices.DeleteFunc(s.queue, func(y *write) bool { return y == x })
				x.notTaken()
			}
		}
		for _, x := range slices.Clone(s.writes) {
			if x.room == r && !x.began {
				s.complete(x, rdma.NotPosted)
			}
		}
	}
	if t.asked && (t.flying == 0 || c.w.bug("drained-is-quiet")) {
		c.quiesced(r)
	}
}

func (c *card) quiesced(r *room) {
	t := c.tags[r]
	t.asked = false
	unknown := slices.Clone(t.unknown)
	if c.w.bug("unknown-is-quiet") {
		unknown = nil
	}
	if len(t.unknown) == 0 {
		delete(c.tags, r)
	}
	c.p.do(func() { c.p.soon(func() { r.onQuiesced(unknown) }) })
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

// left is the grants of a peer that a revoke has left open.
func (c *card) left(peer messages.Node) (open []rdma.OpenGrant) {
	for _, g := range c.sorted() {
		if g.writer == peer && g.revoked && !g.closed {
			open = append(open, rdma.OpenGrant{Grant: g.id, Reason: "it was left open"})
		}
	}
	return open
}

// sorted is the grants in the order in which they were drawn.
func (c *card) sorted() []*grant {
	all := make([]*grant, 0, len(c.grants))
	for _, g := range c.grants {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *grant) int { return slices.Compare(a.id[:], b.id[:]) })
	return all
}

// install puts a grant in force.
func (c *card) install(r *room, id rdma.GrantID, writer messages.Node, ranges []kv.Range) {
	g := &grant{id: id, room: r, writer: writer, mask: make([]uint64, (len(r.engine.memory)+63)/64)}
	for i := range ranges {
		x := &ranges[i]
		for _, run := range x.Runs {
			for n := range run.Count {
				at := x.Offset + uint64(run.First+n*run.Step)*x.UnitStride
				for i := range uint64(x.Count[0]) {
					for j := range uint64(x.Count[1]) {
						row := at + i*x.Stride[0] + j*x.Stride[1]
						for b := row; b < row+x.Bytes; b++ {
							g.mask[b/64] |= 1 << (b % 64)
						}
					}
				}
			}
		}
	}
	c.grants[id] = g
	if s := c.session(writer); s != nil && s.up {
		s.told[id] = true
	}
	c.p.soon(func() { r.onGrantInstalled(id) })
}

// revoke ends a grant, as far as this kind of card can.
func (c *card) revoke(id rdma.GrantID) {
	g := c.grants[id]
	if g == nil {
		panic("a grant is revoked that is not there")
	}
	if g.revoked {
		return
	}
	g.revoked = true
	s := c.session(g.writer)
	if c.w.bug("revoke-does-nothing") {
		g.revoked = false
		c.p.soon(func() { g.room.onRevoked(id, true) })
		return
	}
	switch {
	case c.w.plan.card == stuck && s != nil && !c.w.calm && c.w.chance(4) == 0:
		c.w.covered.add(coverStuckGrant)
		g.since = s.gen
		g.frozen = c.w.now + c.w.between(200*time.Millisecond, 3*time.Second)
		c.w.after(g.frozen-c.w.now, func() {
			if !c.p.dead && !g.closed {
				c.close(g)
				c.p.do(func() { c.p.soon(func() { g.room.onRevoked(id, true) }) })
			}
		})
		c.p.soon(func() { g.room.onRevoked(id, false) })
	case c.w.plan.card == remote && s != nil && !s.over && !c.w.bug("revoke-lies"):
		c.p.soon(func() { g.room.onRevoked(id, false) })
		g.asked = true
		c.ask(g, s)
	default:
		c.close(g)
		c.p.soon(func() { g.room.onRevoked(id, true) })
	}
}

func (c *card) close(g *grant) {
	g.closed = true
	delete(c.grants, g.id)
	g.room.grantClosed(g.id)
}

// ask has the peer's card end its writes under a grant; it answers when nothing of them
// is on the way.
func (c *card) ask(g *grant, s *session) {
	w := c.w
	other := w.life(g.writer)
	if w.isCut(data, c.p.host, other.host) {
		w.after(cardRetry, func() { // the connection says it again
			if !g.closed && !s.over && !s.broken && !c.p.dead {
				c.ask(g, s)
			}
		})
		return
	}
	w.after(w.latency(), func() {
		t := other.card.session(c.p.id)
		if other.dead || t == nil || t.gen != s.gen || t.broken {
			return
		}
		delete(s.told, g.id)
		for _, x := range slices.Clone(t.writes) {
			if x.grant == g.id && !x.began {
				t.complete(x, rdma.Refused)
			}
		}
		for _, x := range slices.Clone(t.queue) {
			if x.grant == g.id {
				t.queue = slices.DeleteFunc(t.queue, func(y *write) bool { return y == x })
				t.writes = append(t.writes, x)
				t.complete(x, rdma.Refused)
			}
		}
		other.card.closeIfEnded(c.p.id, g.id)
	})
}

// closeIfEnded answers a revoke of the peer when no write under the grant is left here,
// and none was unknown: that one a fence has to end.
func (c *card) closeIfEnded(peer messages.Node, id rdma.GrantID) {
	w := c.w
	if w.plan.card != remote {
		return
	}
	owner := w.life(peer)
	g := owner.card.grants[id]
	t := c.session(peer)
	if g == nil || !g.asked || t == nil || t.broken || t.fencing || owner.dead {
		return
	}
	if s := owner.card.session(c.p.id); s == nil || s.told[id] {
		return // it has not heard of the revoke yet
	}
	if slices.ContainsFunc(t.writes, func(x *write) bool { return x.grant == id }) || slices.ContainsFunc(t.queue, func(x *write) bool { return x.grant == id }) {
		return
	}
	if w.isCut(data, c.p.host, owner.host) {
		w.after(cardRetry, func() { c.closeIfEnded(peer, id) })
		return
	}
	w.after(w.latency(), func() {
		s := owner.card.session(c.p.id)
		if owner.dead || g.closed || s == nil || s.gen != t.gen || s.over {
			return
		}
		owner.card.close(g)
		owner.do(func() { owner.soon(func() { g.room.onRevoked(id, true) }) })
	})
}

// die is the end of the process: the memory is nobody's, and its peers notice.
func (c *card) die() {
	for _, s := range c.sessions {
		s.over = true
		s.hint()
	}
}
