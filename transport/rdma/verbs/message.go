package verbs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

var (
	errHail      = errors.New("the peer begins with something else than how many rails it has")
	errNotItsTo  = errors.New("the peer says what only the other side may")
	errAllFailed = errors.New("verbs: no stripe could be made")
)

// Limits of what a peer may tell.
const (
	regionsMost = 1 << 16
	grantsMost  = 1 << slotBits
)

// on takes a message of the peer. An error ends the session.
func (s *session) on(f *control.Frame) error {
	switch b := f.GetBody().(type) {
	case *control.Frame_Offer:
		return s.onOffer(b.Offer)
	case *control.Frame_Answer:
		return s.onAnswer(b.Answer)
	case *control.Frame_Ready:
		return s.onReady(b.Ready)
	}
	p := s.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state > up {
		return s.why
	}
	if h, ok := f.GetBody().(*control.Frame_Hail); ok {
		return s.onHailLocked(h.Hail)
	}
	if s.rails == 0 {
		return errHail
	}
	switch b := f.GetBody().(type) {
	case *control.Frame_Up:
		return s.onUpLocked()
	case *control.Frame_Gone:
		s.onGoneLocked(b.Gone)
	case *control.Frame_Region:
		return s.onRegionLocked(b.Region)
	case *control.Frame_Grant:
		return s.onGrantLocked(b.Grant)
	case *control.Frame_Revoke:
		return s.onRevokeLocked(b.Revoke)
	case *control.Frame_Closed:
		return s.onClosedLocked(b.Closed)
	case *control.Frame_Ask:
		return s.onAskLocked(b.Ask)
	case *control.Frame_None:
		return s.onNoneLocked(b.None)
	case *control.Frame_Refused:
		reason := refusals[b.Refused.GetReason()]
		if reason == "" {
			return fmt.Errorf("the peer refused a write for reason %d, want one of %d", b.Refused.GetReason(), len(refusals))
		}
		p.events.Push(rdma.Stale{Peer: s.id.Peer, Reason: reason})
	case *control.Frame_Credits:
		return s.onCreditsLocked(b.Credits)
	case *control.Frame_Bye:
		return fmt.Errorf("the peer ended the session: %s", clean(b.Bye.GetReason()))
	default:
		return fmt.Errorf("the peer says %T, which is no message", b)
	}
	return nil
}

// clean makes a text of the peer's fit for logs.
func clean(s string) string {
	if len(s) > reasonMost {
		s = s[:reasonMost] + "..."
	}
	return fmt.Sprintf("%q", s)
}

const reasonMost = 500

func (s *session) onHailLocked(h *control.Hail) error {
	n := int(h.GetRails())
	switch {
	case n < 1 || n > cardsMax:
		return fmt.Errorf("the peer has %d rails, want 1 to %d", n, cardsMax)
	case s.rails != 0 && s.rails != n:
		return fmt.Errorf("the peer has %d rails, its endpoint says %d", n, s.rails)
	}
	s.rails = n
	return nil
}

// offer proposes a stripe that there should be.
func (s *session) offer(i int) {
	p := s.provider
	p.mu.Lock()
	s.last++
	number, x := s.last, &s.wanted[i]
	p.mu.Unlock()
	st, err := s.newStripe(number, p.cards[x.from], x.to)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state > up {
		if err == nil {
			st.discardLocked(s.why)
		}
		return
	}
	if err != nil {
		s.refusedLocked(x, err)
		return
	}
	st.want, st.offered = x, time.Now()
	s.offers[number] = st
	s.tellLocked(&control.Frame{Body: &control.Frame_Offer{Offer: &control.Offer{
		Stripe: number, From: uint32(x.from), To: uint32(x.to), QueuePair: st.describe(),
	}}})
}

// refusedLocked: a stripe cannot be made now.
func (s *session) refusedLocked(x *want, err error) {
	s.pending--
	if s.refusal == nil {
		s.refusal = err
	}
	s.provider.config.Log(Warn, fmt.Sprintf("session with %s: no stripe from %s to its rail %d: %v", s.id.Peer, s.provider.cards[x.from].name(), x.to, err))
	x.putOffLocked(time.Now())
	s.offeredLocked()
	s.lastLocked(err)
}

// offeredLocked: an offer is over. With the last one of the handshake the session is up
// if it has a stripe.
func (s *session) offeredLocked() {
	if s.pending > 0 || s.state != connecting {
		return
	}
	if !slices.ContainsFunc(s.stripes, func(st *stripe) bool { return st.live }) {
		why := s.refusal
		for _, st := range s.stripes {
			why = errors.Join(why, st.why)
		}
		s.leaveLocked(down, fmt.Errorf("%w: %w", errAllFailed, why))
		return
	}
	s.tellLocked(&control.Frame{Body: &control.Frame_Up{Up: &control.Up{}}})
	if s.state == connecting {
		s.upLocked()
		s.wakeLocked()
	}
}

// onOffer makes the other end of a stripe.
func (s *session) onOffer(o *control.Offer) error {
	p := s.provider
	p.mu.Lock()
	state, rails, last, n := s.state, s.rails, s.last, len(s.stripes)
	s.last = max(last, o.GetStripe())
	p.mu.Unlock()
	switch {
	case s.Dial:
		return errNotItsTo
	case rails == 0:
		return errHail
	case o.GetStripe() <= last || int(o.GetFrom()) >= rails || int(o.GetTo()) >= len(p.cards):
		return fmt.Errorf("the peer offers stripe %d from rail %d to %d after stripe %d; it has %d rails, this side %d",
			o.GetStripe(), o.GetFrom(), o.GetTo(), last, rails, len(p.cards))
	case state > up:
		return nil
	}
	var err error
	if n >= stripesMax {
		err = fmt.Errorf("there are %d stripes, want at most %d", n, stripesMax)
	}
	var st *stripe
	if err == nil {
		st, err = s.answer(o)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		if err = st.startLocked(); err != nil {
			st.discardLocked(err)
		}
	}
	a := &control.Answer{Stripe: o.GetStripe()}
	if err != nil {
		a.Refused = err.Error()
	} else {
		a.QueuePair = st.describe()
	}
	s.tellLocked(&control.Frame{Body: &control.Frame_Answer{Answer: a}})
	return nil
}

func (s *session) answer(o *control.Offer) (*stripe, error) {
	st, err := s.newStripe(o.GetStripe(), s.provider.cards[o.GetTo()], int(o.GetFrom()))
	if err != nil {
		return nil, err
	}
	if st.link, err = st.meet(o.GetQueuePair()); err == nil {
		err = st.join(st.link)
	}
	if err != nil {
		st.discard(err)
		return nil, err
	}
	st.joined, st.credit = true, st.ringSize
	return st, nil
}

// onAnswer joins the two ends, or gives the stripe up for a while.
func (s *session) onAnswer(a *control.Answer) error {
	p := s.provider
	p.mu.Lock()
	st := s.offers[a.GetStripe()]
	delete(s.offers, a.GetStripe())
	p.mu.Unlock()
	if st == nil {
		return fmt.Errorf("the peer answers stripe %d, which was not offered", a.GetStripe())
	}
	err := st.connect(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	x := st.want
	if err == nil {
		err = st.startLocked()
	}
	if err != nil {
		st.discardLocked(err)
		if s.state <= up {
			s.refusedLocked(x, err)
		}
		return nil
	}
	x.stripe, x.offered, x.settled = st, false, time.Now()
	st.live = true
	s.pending--
	s.tellLocked(&control.Frame{Body: &control.Frame_Ready{Ready: &control.Ready{Stripe: st.number}}})
	if s.state == up {
		p.config.Log(Info, fmt.Sprintf("session with %s: stripe %d by %s is there", s.id.Peer, st.number, st.card.name()))
		st.wakeUp()
	}
	s.offeredLocked()
	return nil
}

// connect brings the dialer's end to where it sends.
func (st *stripe) connect(a *control.Answer) (err error) {
	if r := a.GetRefused(); r != "" {
		return fmt.Errorf("the peer has no end for it: %s", clean(r))
	}
	if st.link, err = st.meet(a.GetQueuePair()); err != nil {
		return err
	}
	if err = st.join(st.link); err != nil {
		return err
	}
	st.joined, st.credit = true, st.ringSize
	return st.queue.send(st.link)
}

// onReady: the dialer's end takes packets, so this one may send.
func (s *session) onReady(r *control.Ready) error {
	if s.Dial {
		return errNotItsTo
	}
	p := s.provider
	p.mu.Lock()
	st := s.stripeLocked(r.GetStripe())
	over := st == nil || st.ending // lost meanwhile, or never joined
	p.mu.Unlock()
	if over {
		return nil
	}
	if err := st.use(func() error { return st.queue.send(st.link) }); err != nil {
		st.strike(err)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !st.ending {
		st.live = true
		st.wakeUp()
	}
	return nil
}

func (s *session) stripeLocked(number uint32) *stripe {
	i := slices.IndexFunc(s.stripes, func(st *stripe) bool { return st.number == number })
	if i < 0 {
		return nil
	}
	return s.stripes[i]
}

func (s *session) onUpLocked() error {
	if s.Dial || s.state != connecting {
		return errNotItsTo
	}
	s.upLocked()
	s.wakeLocked()
	return nil
}

func (s *session) onGoneLocked(g *control.Gone) {
	if st := s.stripeLocked(g.GetStripe()); st != nil {
		st.peerGone, st.peerHas = true, g.GetArrived()
		st.strikeLocked(fmt.Errorf("verbs: the peer lost it: %s", clean(g.GetReason())))
		return
	}
	s.backLocked(g.GetStripe(), g.GetArrived())
}

func (s *session) onRegionLocked(w *control.Region) error {
	r, err := readRegion(w, s.rails)
	if err != nil {
		return err
	}
	id := rdma.RegionID(w.GetId())
	switch {
	case s.memory[id] != nil: // grants were checked against it
		return fmt.Errorf("the peer tells of region %d, which it has told before", id)
	case len(s.memory) >= regionsMost:
		return fmt.Errorf("the peer tells of more than %d regions", regionsMost)
	}
	s.memory[id] = r
	return nil
}

func (s *session) onGrantLocked(w *control.Grant) error {
	g, err := readGrant(w)
	if err != nil {
		return err
	}
	if s.grants[g.ID] != nil { // told, and asked for
		return nil
	}
	if len(s.grants) >= grantsMost {
		return fmt.Errorf("the peer gives more than %d grants", grantsMost)
	}
	permit, err := rdma.Compile(&g, func(id rdma.RegionID) (uint64, bool) {
		r := s.memory[id]
		if r == nil {
			return 0, false
		}
		return r.bytes, true
	})
	if err != nil {
		return fmt.Errorf("grant %s: %w", g.ID, err)
	}
	t := &target{id: g.ID, immediate: w.GetImmediate(), permit: permit, landed: map[uint32]uint64{}}
	s.grants[g.ID] = t
	waiting := s.asked[g.ID]
	delete(s.asked, g.ID)
	for _, x := range waiting {
		s.targetLocked(x, t)
	}
	if len(waiting) > 0 {
		s.wakeLocked()
	}
	return nil
}

// onRevokeLocked ends the writes under a grant. What is on the way completes first.
func (s *session) onRevokeLocked(r *control.Revoke) error {
	id, err := readID(r.GetId())
	if err != nil {
		return err
	}
	t := s.grants[id]
	if t == nil { // nothing was ever posted under it here
		s.tellLocked(&control.Frame{Body: &control.Frame_Closed{Closed: &control.Closed{Id: id[:]}}})
		return nil
	}
	t.revoked = true
	t.writes++ // until all are stopped
	s.stopLocked(errRevoked, func(w *write) bool { return w.target == t })
	t.writes--
	s.closeLocked(t)
	return nil
}

// onClosedLocked: the peer has ended its writes under a revoked grant.
func (s *session) onClosedLocked(c *control.Closed) error {
	id, err := readID(c.GetId())
	if err != nil {
		return err
	}
	e := s.provider.grants[id]
	if e == nil || e.told != s || !e.revoked {
		return nil // closed otherwise, or not asked for
	}
	e.owed = map[uint32]uint64{}
	for _, a := range c.GetArrivals() {
		e.owed[a.GetStripe()] = a.GetCount()
	}
	s.owing[e] = time.Now()
	s.provider.closeGrantLocked(e)
	return nil
}

func (s *session) onAskLocked(a *control.Ask) error {
	id, err := readID(a.GetId())
	if err != nil {
		return err
	}
	e := s.provider.grants[id]
	if e == nil || e.Peer != s.id.Peer || e.revoked {
		s.provider.events.Push(rdma.Stale{Peer: s.id.Peer, Reason: refusals[refusedNoGrant]})
		s.tellLocked(&control.Frame{Body: &control.Frame_None{None: &control.None{Id: id[:]}}})
		return nil
	}
	// It was told, unless that was meanwhile; what is on the way already is the answer.
	if e.told != s {
		s.tellGrantLocked(e)
	}
	return nil
}

func (s *session) onNoneLocked(n *control.None) error {
	id, err := readID(n.GetId())
	if err != nil {
		return err
	}
	waiting := s.asked[id]
	delete(s.asked, id)
	for _, w := range waiting {
		s.completeLocked(w, rdma.Refused, errNoGrant)
	}
	return nil
}

func (s *session) onCreditsLocked(c *control.Credits) error {
	st := s.stripeLocked(c.GetStripe())
	if st == nil {
		return nil // lost meanwhile
	}
	if c.GetPosted() < st.credit || c.GetPosted() > st.sent+st.ringSize {
		return fmt.Errorf("the peer says that it posted %d receives on stripe %d, before %d; %d arrivals were sent, and it has %d", c.GetPosted(), st.number, st.credit, st.sent, st.ringSize)
	}
	st.credit = c.GetPosted()
	st.wakeUp()
	return nil
}
