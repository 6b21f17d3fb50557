package sim

import (
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
	"slices"
	"time"
)

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
	arrived := func() {
		if g != nil && !g.closed && t != nil && !t.over {
			c.p.do(func() {
				c.p.soon(func() {
					g.room.onArrived(g.id, s.gen, rdma.Arrival{Stripe: q.lane.number, Count: 1}, q.n)
				})
			})
		}
	}
	if w.bug("arrival-before-bytes") {
		w.after(20*time.Millisecond, func() { w.place(q, other, g) })
		w.after(0, func() { answer(rdma.Landed); arrived() })
		return
	}
	w.place(q, other, g)
	behind := t != nil && slices.ContainsFunc(t.owed, func(o *owed) bool { return o.piece.lane == q.lane })
	if t == nil || g == nil || !behind && (w.calm || w.chance(6) > 0) {
		w.after(0, func() { answer(rdma.Landed); arrived() })
		return
	}
	// The sender hears that it has landed before the receiver does. Until then nobody
	// may rely on the bytes.
	w.covered.add(coverLateArrival)
	o := &owed{grant: g, piece: q, tell: arrived}
	t.owed = append(t.owed, o)
	w.after(0, func() { answer(rdma.Landed) })
	w.after(w.between(time.Millisecond, 60*time.Millisecond), func() { t.pay(o) })
}

// owed is what has landed, and is not told yet.
type owed struct {
	grant *grant
	piece *piece
	tell  func()
}

// pay tells it.
func (s *session) pay(o *owed) {
	if i := slices.Index(s.owed, o); i >= 0 && !s.card.p.dead {
		for _, before := range slices.Clone(s.owed[:i]) { // a stripe is in order
			if before.piece.lane == o.piece.lane {
				s.pay(before)
			}
		}
		s.owed = slices.DeleteFunc(s.owed, func(x *owed) bool { return x == o })
		o.tell()
	}
}

// settle takes what is owed before a fence destroys the session. What the peer's card has
// placed may be lost with its arrival, and then so is all behind it.
func (s *session) settle() {
	w := s.card.w
	lost := map[*lane]bool{}
	for _, o := range slices.Clone(s.owed) {
		lane := o.piece.lane
		if lost[lane] = lost[lane] || w.plan.card == remote && w.chance(2) == 0; lost[lane] {
			w.covered.add(coverLostArrival)
			w.vanish(o)
			continue
		}
		s.pay(o)
	}
	s.owed = nil
}

// vanish takes back bytes whose arrival is never told, as far as they are the room's.
func (w *world) vanish(o *owed) {
	if o.grant.closed || o.grant.released || o.grant.room.letGo {
		return
	}
	e := o.grant.room.engine
	for i := range o.piece.copies {
		eachRow(&o.piece.copies[i], func(_, to, n uint64) { e.poison(e.memory[to : to+n]) })
	}
}

// owes says whether something of a room has landed and was not told yet.
func (s *session) owes(r *room) bool {
	return slices.ContainsFunc(s.owed, func(o *owed) bool { return o.grant.room == r })
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
	if s := owner.card.session(c.p.id); s == nil || s.told[id] || t.unsure[id] {
		return // it has not heard of the revoke yet, or a fence has to end it
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
		for _, o := range slices.Clone(s.owed) { // it says how many there are
			if o.grant == g {
				s.pay(o)
			}
		}
		owner.card.close(g)
		owner.do(func() { owner.soon(func() { g.room.onRevoked(id, true) }) })
	})
}
