package verbs

import (
	"fmt"
	"slices"
	"time"

	"kvferry/transport/rdma/verbs/control"
)

// goneLocked: this end is destroyed. What was on it goes by another stripe once the
// peer's end is, too.
func (st *stripe) goneLocked() {
	s := st.session
	s.stripes = slices.DeleteFunc(s.stripes, func(x *stripe) bool { return x == st })
	if s.state > up {
		return
	}
	now := time.Now()
	if st.want != nil && st.want.stripe == st {
		st.want.putOffLocked(now)
	}
	if st.started {
		s.provider.config.Log(Warn, fmt.Sprintf("session with %s: stripe %d by %s is lost: %v", s.id.Peer, st.number, st.card.name(), st.why))
	}
	s.tellLocked(&control.Frame{Body: &control.Frame_Gone{Gone: &control.Gone{Stripe: st.number, Reason: st.why.Error(), Arrived: st.arrived}}})
	x := &limbo{since: now, why: st.why, landed: st.landed}
	for _, c := range st.chunks {
		c.write.inFlight--
		c.write.lost++
		x.chunks = append(x.chunks, *c)
	}
	if st.started { // else the peer may have no end of it
		s.limbo[st.number] = x
	}
	if st.peerGone {
		s.backLocked(st.number, st.peerHas)
	}
	for _, c := range x.chunks {
		s.settleLocked(c.write) // one that was stopped does not wait
	}
	s.lastLocked(st.why)
}

// lastLocked ends a session that has no stripe, and waits for none.
func (s *session) lastLocked(why error) {
	if s.state == up && s.pending == 0 && !slices.ContainsFunc(s.stripes, func(x *stripe) bool { return !x.ending }) {
		s.leaveLocked(down, fmt.Errorf("its last stripe was lost: %w", why))
	}
}

// backLocked: neither end of a stripe is there any more, so what was unknown on it is
// not: it goes again, by another. What has landed and the peer's device did not tell of is
// never told of: the session ends, and the fence has the writers write again.
func (s *session) backLocked(stripe uint32, arrived uint64) {
	x := s.limbo[stripe]
	if x == nil {
		return
	}
	delete(s.limbo, stripe)
	if arrived < x.landed {
		s.leaveLocked(down, fmt.Errorf("verbs: the peer was told of %d arrivals of %d that have landed on a stripe that is lost: %w", arrived, x.landed, x.why))
		return
	}
	for _, c := range x.chunks {
		c.write.lost--
		s.againLocked(&c)
		if t := c.write.target; t.revoked {
			s.closeLocked(t)
		}
	}
	s.wakeLocked()
}

// againLocked gives a write a chunk back.
func (s *session) againLocked(c *chunk) {
	w := c.write
	if s.live[w.sequence] != w {
		return // it has completed
	}
	w.spans = append(w.spans, c.span)
	if w.stop == nil && len(w.spans) == 1 {
		s.queue.Push(w.Tag, w)
	}
	s.settleLocked(w)
}
