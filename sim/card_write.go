package sim

import (
	"errors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
	"slices"
	"time"
)

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
	lane   *lane
	copies []kv.Copy
	bytes  []byte // once it has left
	n      uint64
	landed bool // and answered
}

// lane is one stripe. It is in order: behind what is lost nothing is answered any more.
type lane struct {
	number uint32
	after  time.Duration // nothing lands before
	dead   bool          // what leaves from now on does not arrive

	unanswered bool // an answer was lost, so all behind it are
}

// lane is the stripe of an index, made anew where it was lost.
func (s *session) lane(i int) *lane {
	if s.lanes[i] == nil {
		s.lanes[i] = &lane{number: s.stripes}
		s.stripes++
	}
	return s.lanes[i]
}

// tag is the writes of a room.
type tag struct {
	flying  int
	unknown []rdma.Generation
	asked   bool
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
		q := &piece{write: x}
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
	for i, q := range x.pieces {
		q.lane = s.lane(i)
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
		w.after(w.latency(), func() { s.answered(q, rdma.Refused) }) // there is no such grant
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
	if w.isCut(data, s.card.p.host, other.host) || q.lane.dead && fate == arrives {
		fate = pieceLost
	}
	q.lane.dead = q.lane.dead || fate != arrives && w.plan.card == remote
	due := func(d time.Duration) time.Duration {
		if w.plan.card == remote {
			q.lane.after = max(q.lane.after, w.now+d)
			d = q.lane.after - w.now
		}
		return d
	}
	w.note('w', uint64(s.card.p.host.index), uint64(x.id), uint64(fate))
	switch fate {
	case pieceLost:
		w.covered.add(coverLostPiece)
		w.after(cardRetry, func() { s.giveUp(x) })
	case pieceLate:
		w.covered.add(coverLatePiece)
		w.after(due(w.between(cardRetry, 2500*time.Millisecond)), func() { w.land(q, s, other, func(rdma.Outcome) {}) })
		w.after(cardRetry, func() { s.giveUp(x) })
	case ackLost:
		w.covered.add(coverLostAck)
		w.after(due(w.latency()), func() { w.land(q, s, other, func(rdma.Outcome) {}) })
		w.after(cardRetry, func() { s.giveUp(x) })
	default:
		d := w.latency()
		if w.plan.slowReceiver == other.host.index && !w.calm {
			d += w.between(0, 100*time.Millisecond)
		}
		w.after(due(d), func() {
			w.land(q, s, other, func(o rdma.Outcome) {
				if q.lane.unanswered || w.isCut(data, other.host, s.card.p.host) {
					q.lane.unanswered = w.plan.card == remote
					w.after(cardRetry, func() { s.giveUp(x) })
					return
				}
				w.after(w.latency(), func() { s.answered(q, o) })
			})
		})
	}
}

// giveUp is a packet that nobody answered.
func (s *session) giveUp(x *write) {
	w := s.card.w
	if !x.done && !s.over && !s.broken && w.plan.card == remote && !w.calm && w.chance(3) == 0 { // one queue pair of several
		w.covered.add(coverUnknown)
		s.loseLanes(x)
		return
	}
	if !x.done && !s.over {
		s.disconnect(errors.New("retries exceeded"))
	}
}

// answered takes the end of one piece.
func (s *session) answered(q *piece, o rdma.Outcome) {
	x := q.write
	if x.done || s.over || s.broken || s.card.p.dead {
		return
	}
	q.landed = o == rdma.Landed
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
	if o != rdma.Landed {
		ev.err = errDown
	}
	if o == rdma.Landed || o == rdma.Unknown && !s.card.w.bug("partial-forgotten") {
		for _, q := range x.pieces {
			if q.landed {
				ev.arrivals = append(ev.arrivals, rdma.Arrival{Stripe: q.lane.number, Count: 1})
			}
		}
	}
	if o == rdma.Unknown {
		s.unsure[x.grant] = true
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

// loseLanes gives up the stripes of a write, and all that is on them. The others go on.
func (s *session) loseLanes(x *write) {
	for i, l := range s.lanes {
		if slices.ContainsFunc(x.pieces, func(q *piece) bool { return q.lane == l }) {
			s.lanes[i] = nil
		}
	}
	for _, y := range slices.Clone(s.writes) {
		if y.began && slices.ContainsFunc(y.pieces, func(q *piece) bool { return !q.landed && !slices.Contains(s.lanes[:], q.lane) }) {
			s.complete(y, rdma.Unknown)
		}
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
	if len(t.unknown) == 0 || r.ending {
		delete(c.tags, r)
	}
	c.p.do(func() { c.p.soon(func() { r.onQuiesced(unknown) }) })
}
