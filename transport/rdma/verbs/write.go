package verbs

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// write is a write that was accepted. provider.mu guards it.
type write struct {
	*rdma.Write
	sequence uint64
	target   *target // its grant, nil until the peer has told of it
	sources  []*region
	targets  []*remoteRegion // by copy
	local    uint64          // cards that are near to its sources
	remote   uint64          // rails that are near to its targets

	spans    []span // that no chunk has yet
	begun    bool   // a chunk was cut
	inFlight int    // chunks on stripes
	lost     int    // chunks in limbo
	stop     error  // nothing more of it is cut, and why
	landed   []rdma.Arrival
}

// span is a part of a write: so many bytes from the cursor on.
type span struct {
	at    cursor
	bytes uint64
}

// target is a grant of the peer.
type target struct {
	id        rdma.GrantID
	immediate uint32
	permit    *rdma.Permit
	writes    int  // that have not completed
	revoked   bool // the peer waits for their end
	landed    map[uint32]uint64
}

// chunk is a part of a write on a stripe: a chain of requests, and the record behind it.
type chunk struct {
	write    *write
	span     span
	id       uint64 // of its requests; the last has id+1
	requests int
}

// limbo is what was unknown on a stripe whose own end is destroyed, and the peer's not.
type limbo struct {
	chunks []chunk
	landed uint64 // chunks that the peer has to have counted
	since  time.Time
	why    error
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
	for _, x := range ws {
		p.regions.UseSources(x, 1)
		p.tags.Posted(x.Tag)
		s.newest++
		w := &write{Write: x, sequence: s.newest, local: p.allCards(), sources: make([]*region, len(x.Copies))}
		for i := range x.Copies {
			w.sources[i] = p.memory[x.Copies[i].Source.Region]
			w.local &= w.sources[i].near
		}
		if w.local == 0 {
			w.local = p.allCards()
		}
		w.spans = []span{{bytes: x.Bytes()}}
		s.live[w.sequence] = w
		if t := s.grants[x.Grant]; t != nil {
			s.targetLocked(w, t)
			continue
		}
		if s.asked[x.Grant] == nil {
			s.tellLocked(&control.Frame{Body: &control.Frame_Ask{Ask: &control.Ask{Id: x.Grant[:]}}})
		}
		s.asked[x.Grant] = append(s.asked[x.Grant], w)
	}
	s.wakeLocked()
	return nil
}

// Reasons of writes that this side refuses in the receiver's name, which counts them.
const (
	refusedOutside = 1
	refusedNoGrant = 2
	refusedRevoked = 3
)

var refusals = map[uint32]string{
	refusedOutside: "verbs: a write leaves the ranges of its grant",
	refusedNoGrant: "verbs: a write has a grant that is not the peer's",
	refusedRevoked: "verbs: a write has a grant that was revoked",
}

// targetLocked gives a write its grant, and queues it, if the grant covers it. Honest
// peers check for each other: with the key of a region a device writes wherever it is
// told to.
func (s *session) targetLocked(w *write, t *target) {
	t.writes++
	w.target = t
	if t.revoked {
		s.refuseLocked(w, refusedRevoked, errRevoked)
		return
	}
	w.targets = make([]*remoteRegion, len(w.Copies))
	w.remote = 1<<s.rails - 1
	for i := range w.Copies {
		c := &w.Copies[i]
		if err := t.permit.Covers("target", c); err != nil {
			s.refuseLocked(w, refusedOutside, err)
			return
		}
		w.targets[i] = s.memory[c.Target.Region]
		w.remote &= w.targets[i].near
	}
	if w.remote == 0 {
		w.remote = 1<<s.rails - 1
	}
	s.queue.Push(w.Tag, w)
}

// refuseLocked ends a write of which nothing was posted.
func (s *session) refuseLocked(w *write, reason uint32, why error) {
	s.tellLocked(&control.Frame{Body: &control.Frame_Refused{Refused: &control.Refused{Reason: reason}}})
	s.completeLocked(w, rdma.Refused, why)
}

// mayCarry reports whether a stripe is as near as any that there is to both ends of a
// write.
func (s *session) mayCarry(st *stripe, w *write) bool {
	distance := func(x *stripe) int {
		d := 0
		if w.local&(1<<x.card.index) == 0 {
			d += 2
		}
		if w.remote&(1<<x.rail) == 0 {
			d++
		}
		return d
	}
	own := distance(st)
	if own == 0 {
		return true
	}
	for _, x := range s.stripes {
		if x.live && distance(x) < own {
			return false
		}
	}
	return true
}

// cutLocked cuts the next chunk for a stripe into its chain, nil when there is none or
// the stripe has no room.
func (s *session) cutLocked(st *stripe) *chunk {
	if !st.live || st.ending || st.full || s.state != up || st.sent == st.credit || st.size.Sends-st.used < st.size.Chain || st.onWay >= stripeWindow {
		return nil
	}
	for range s.queue.Len() { // each tag at least once
		w, ok := s.queue.Front()
		if !ok {
			return nil
		}
		if w.stop != nil || len(w.spans) == 0 {
			s.queue.Pop()
			continue
		}
		if !s.mayCarry(st, w) {
			s.queue.Rotate()
			continue
		}
		part := &w.spans[len(w.spans)-1]
		before := *part
		b := bounds{
			card: st.card.index, rail: st.rail, pieces: st.size.Pieces, request: st.request,
			rows: st.size.Chain - 1, bytes: min(part.bytes, uint64(s.provider.config.ChunkBytes)),
		}
		n := st.chain.cut(w.Copies, w.sources, w.targets, &part.at, b)
		if part.bytes -= n; part.bytes == 0 {
			w.spans = w.spans[:len(w.spans)-1]
		}
		if len(w.spans) == 0 {
			s.queue.Pop()
		} else {
			s.queue.Rotate()
		}
		before.bytes = n
		w.begun = true
		w.inFlight++
		return st.takeLocked(w, before)
	}
	return nil
}

// endChunkLocked takes a chunk off its write, which completes with the last.
func (s *session) endChunkLocked(c *chunk, stripe uint32) {
	w := c.write
	w.inFlight--
	i := slices.IndexFunc(w.landed, func(a rdma.Arrival) bool { return a.Stripe == stripe })
	if i < 0 {
		i = len(w.landed)
		w.landed = append(w.landed, rdma.Arrival{Stripe: stripe})
	}
	w.landed[i].Count++
	w.target.landed[stripe]++
	s.settleLocked(w)
}

// settleLocked completes a write when nothing of it is on the way, or will be.
func (s *session) settleLocked(w *write) {
	if w.inFlight > 0 || s.live[w.sequence] != w || s.state > up { // then completeRestLocked does it
		return
	}
	switch {
	case w.stop != nil && w.lost > 0 && !errors.Is(w.stop, errRevoked):
		s.completeLocked(w, rdma.Unknown, w.stop)
	case w.lost > 0:
	case len(w.spans) == 0:
		s.completeLocked(w, rdma.Landed, nil)
	case w.stop == nil:
	case !w.begun && !errors.Is(w.stop, errRevoked):
		s.completeLocked(w, rdma.NotPosted, w.stop)
	default: // all that was posted has landed, and nothing more will
		s.completeLocked(w, rdma.Refused, w.stop)
	}
}

// completeLocked tells how a write ended. Nothing reads its source any more.
func (s *session) completeLocked(w *write, o rdma.Outcome, why error) {
	p := s.provider
	delete(s.live, w.sequence)
	w.spans = nil
	p.regions.UseSources(w.Write, -1)
	s.accepted--
	ev := rdma.Completed{Session: s.id, ID: w.ID, Tag: w.Tag, Outcome: o, Err: why, Bytes: w.Bytes()}
	if o == rdma.Landed || o == rdma.Unknown {
		ev.Arrivals = w.landed
	}
	p.events.Push(ev)
	due, quiesced := p.tags.Completed(w.Tag, s.id, o)
	for range due {
		p.events.Push(quiesced)
	}
	if t := w.target; t != nil {
		t.writes--
		s.closeLocked(t)
	}
}

// closeLocked answers a revoke of the peer, once the last write has completed.
func (s *session) closeLocked(t *target) {
	if !t.revoked || t.writes > 0 || s.grants[t.id] != t {
		return
	}
	for _, x := range s.limbo {
		if slices.ContainsFunc(x.chunks, func(c chunk) bool { return c.write.target == t }) {
			return // the peer's end of that stripe may still place it
		}
	}
	delete(s.grants, t.id)
	w := &control.Closed{Id: t.id[:]}
	for stripe, n := range t.landed { // a set: the order is nobody's
		w.Arrivals = append(w.Arrivals, &control.Arrivals{Stripe: stripe, Count: n})
	}
	s.tellLocked(&control.Frame{Body: &control.Frame_Closed{Closed: w}})
}

// Quiesce ends every write under a tag: what no chunk has is not cut any more, and the
// chunks on the way complete, or their stripe is given up.
func (p *Provider) Quiesce(tag rdma.Tag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tags.InFlight(tag) > 0 {
		for _, s := range p.sessions { // writes are unordered, so the order of sessions is nobody's
			if s.state != up {
				continue // reap is about to complete what there is
			}
			s.queue.Drop(tag)
			s.stopLocked(errQuiesced, func(w *write) bool { return w.Tag == tag })
		}
	}
	if ev, now := p.tags.Quiesce(tag); now {
		p.events.Push(ev)
	}
}

// stopLocked ends writes in the order in which they were posted.
func (s *session) stopLocked(why error, which func(*write) bool) {
	var ws []*write
	for _, w := range s.live {
		if which(w) && (w.stop == nil || why == errQuiesced) {
			ws = append(ws, w)
		}
	}
	slices.SortFunc(ws, func(a, b *write) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, w := range ws {
		w.stop = why
		if w.target == nil {
			s.forgetAskedLocked(w)
		}
		s.settleLocked(w)
	}
}

// forgetAskedLocked takes a write out of those that wait for a grant. That it was asked
// for stays known until the answer.
func (s *session) forgetAskedLocked(w *write) {
	s.asked[w.Grant] = slices.DeleteFunc(s.asked[w.Grant], func(x *write) bool { return x == w })
}
