package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"unsafe"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// stripe is one end of a queue pair of a session. A poster cuts chunks and posts them,
// a reaper takes what completes; both end when the stripe is lost, and the reaper then
// destroys it.
type stripe struct {
	*session
	number  uint32 // in the session
	card    *card
	rail    int // of the peer
	gid     GID // that this end uses
	mtu     int
	psn     uint32
	queue   queue
	size    queueSize
	request uint64 // bytes of a request at most
	chain   chain  // the poster's
	short   *chunk // the poster's: of which not all was posted

	// records is memory for the records of arrivals: receives entries that the peer
	// writes, then sends entries that this side reads.
	records    *rdma.Memory
	registered registration
	ring       uint64 // address of the peer's entries for this end
	ringKey    uint32
	ringSize   uint64

	wakes  chan struct{} // holds 1 when the poster may have something to do
	dying  chan struct{} // closed when it is lost
	posted chan struct{} // closed when the poster has ended
	ended  chan struct{} // closed when it is destroyed

	using     sync.Mutex // held by calls of others than the two
	destroyed bool       // guarded by using

	// The reaper's.
	arrived  uint64 // receives that arrivals have taken
	refilled uint64 // receives that were posted
	flushed  uint64 // receives that came back without an arrival

	// Guarded by provider.mu.
	link     *link
	joined   bool // it has left the first state: the peer's packets are taken
	live     bool
	started  bool // it has a poster and a reaper
	ending   bool
	peerGone bool   // the peer's end is destroyed
	peerHas  uint64 // arrivals that the peer has counted, once that is so
	landed   uint64 // chunks of this side
	why      error
	lost     time.Time
	offered  time.Time
	chunks   []*chunk  // on the way, oldest first
	onWay    uint64    // bytes of them
	moved    time.Time // when the oldest became that
	used     int       // requests that wait for their completion
	sent     uint64    // arrivals that this side has sent
	credit   uint64    // receives that the peer has posted
	ids      uint64
	full     bool  // the device says so; until something completes
	want     *want // of who dials
}

// newStripe makes an end of a stripe. The device may refuse the size: it is asked for
// less until it does not.
func (s *session) newStripe(number uint32, c *card, rail int) (*stripe, error) {
	p := s.provider
	p.mu.Lock()
	gid, down := c.choice.GID, c.down
	p.mu.Unlock()
	if down != "" {
		return nil, fmt.Errorf("%s is down: %s", c.name(), down)
	}
	st := &stripe{
		session: s, number: number, card: c, rail: rail, gid: gid, mtu: c.limits.MTU, psn: rand.Uint32() & 0xffffff,
		wakes: make(chan struct{}, 1), dying: make(chan struct{}), posted: make(chan struct{}), ended: make(chan struct{}),
	}
	st.request = uint64(chunkBytesMax)
	if m := uint64(c.limits.MaxMsg); m > 0 {
		st.request = min(st.request, m)
	}
	want := sizeOf(c.limits)
	for {
		q, err := c.nic.queue(want)
		if err == nil {
			st.queue, st.size = q, q.size()
			break
		}
		var failed *CallError
		tooMuch := errors.As(err, &failed) && (failed.Err == syscall.ENOMEM || failed.Err == syscall.EINVAL)
		if !tooMuch || want.Sends <= sendsMin {
			return nil, err
		}
		want.Sends = max(want.Sends/2, sendsMin)
		want.Pieces = max(want.Pieces/2, 1)
		want.Chain = max(want.Sends/chainDivisor, 2)
	}
	records := (st.size.Receives + st.size.Sends) * recordBytes
	var err error
	if st.records, err = rdma.NewMemory("verbs-records", uint64(records)); err == nil {
		st.registered, err = c.nic.register(window{addr: st.recordsAddr(), bytes: uint64(records), dmabuf: -1}, access{remote: true})
	}
	if err != nil {
		st.discard(err)
		return nil, err
	}
	if st.size.Sends < st.size.Chain {
		err := fmt.Errorf("verbs: a queue pair of %s holds %d requests, want at least %d: one with data and one that tells", c.name(), st.size.Sends, st.size.Chain)
		st.discard(err)
		return nil, err
	}
	st.chain.rows = make([]row, 0, st.size.Chain)
	st.chain.pieces = make([]piece, 0, st.size.Chain*st.size.Pieces)
	return st, nil
}

// sizeOf is what is asked of a device for a queue pair.
func sizeOf(l Limits) queueSize {
	most := func(want, limit int) int {
		if limit > 0 {
			return min(want, limit)
		}
		return want
	}
	q := queueSize{
		Sends: most(sendsWanted, l.MaxQPWR), Receives: most(receivesWanted, l.MaxQPWR), Pieces: most(piecesWanted, l.MaxSGE),
	}
	if l.MaxCQE > 0 && q.Sends+q.Receives > l.MaxCQE {
		q.Receives = max(min(q.Receives, l.MaxCQE/4), 1)
		q.Sends = max(min(q.Sends, l.MaxCQE-q.Receives), 2)
	}
	q.Chain = max(q.Sends/chainDivisor, 2)
	return q
}

// discard ends a stripe that nothing runs of.
func (st *stripe) discard(why error) {
	st.provider.mu.Lock()
	defer st.provider.mu.Unlock()
	st.discardLocked(why)
}

// discardLocked ends a stripe that nothing runs of. The device is not waited for here:
// the end of the session does that.
func (st *stripe) discardLocked(why error) {
	st.ending, st.why = true, why
	close(st.dying)
	close(st.posted)
	st.stripes = append(st.stripes, st)
	go st.destroy()
}

// describe is what the peer has to know of this end.
func (st *stripe) describe() *control.QueuePair {
	_, ringKey := st.registered.keys()
	return &control.QueuePair{
		Number: st.queue.number(), Psn: st.psn, Lid: uint32(st.card.choice.Port.LID), Gid: slices.Clone(st.gid.Addr[:]), Mtu: uint32(st.mtu),
		Receives: uint32(st.size.Receives), Ring: st.recordsAddr(), RingKey: ringKey,
	}
}

func (st *stripe) recordsAddr() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(st.records.Bytes()))))
}

// meet checks what the peer tells of its end, and keeps it.
func (st *stripe) meet(q *control.QueuePair) (*link, error) {
	switch {
	case len(q.GetGid()) != 16, q.GetNumber() > 0xffffff, q.GetPsn() > 0xffffff, q.GetLid() > 0xffff:
		return nil, fmt.Errorf("stripe %d: the peer's queue pair is malformed: number %#x, PSN %#x, LID %#x, a GID of %d bytes",
			st.number, q.GetNumber(), q.GetPsn(), q.GetLid(), len(q.GetGid()))
	case q.GetReceives() == 0 || q.GetReceives() > 1<<20:
		return nil, fmt.Errorf("stripe %d: the peer has %d receives, want 1 to %d", st.number, q.GetReceives(), 1<<20)
	case mtuCode(min(st.mtu, int(q.GetMtu()))) == 0:
		return nil, fmt.Errorf("stripe %d: MTUs are %d and %d, want 256, 512, 1024, 2048 or 4096", st.number, st.mtu, q.GetMtu())
	}
	st.ring, st.ringKey, st.ringSize = q.GetRing(), q.GetRingKey(), uint64(q.GetReceives())
	cfg := &st.provider.config
	return &link{
		Port: st.card.port, Local: st.gid, Remote: [16]byte(q.GetGid()), RemoteLID: uint16(q.GetLid()), Ethernet: st.card.ethernet,
		MTU: min(st.mtu, int(q.GetMtu())), RemoteNumber: q.GetNumber(), LocalPSN: st.psn, RemotePSN: q.GetPsn(),
		Timeout: uint8(cfg.Timeout), Retries: uint8(cfg.Retries), RNRRetries: rnrRetries,
		TrafficClass: uint8(cfg.TrafficClass), ServiceLevel: uint8(cfg.ServiceLevel),
	}, nil
}

// join brings this end to where it takes the peer's packets, with all receives posted.
func (st *stripe) join(l *link) error {
	if err := st.queue.accept(l); err != nil {
		return fmt.Errorf("%w%s", err, routeHint(err))
	}
	n, err := st.queue.receive(st.size.Receives)
	st.refilled = uint64(n)
	return err
}

// routeHint says what an error of a connection that is being made means on RoCE.
func routeHint(err error) string {
	switch {
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return ": the peer's address is not reached from this port's interface; is there a route, does it answer ARP?"
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENODEV):
		return ": the port's address may have changed just now"
	}
	return ""
}

// startLocked adds a stripe to its session. An error is that the session is over, or that
// the port is not what it was: what a device tells of it reaches stripes that are added.
func (st *stripe) startLocked() error {
	s, now := st.session, &st.card.choice.GID
	switch {
	case s.state > up:
		return s.why
	case st.card.down != "":
		return fmt.Errorf("%s went down meanwhile: %s", st.card.name(), st.card.down)
	case st.gid.Index != now.Index || st.gid.Addr != now.Addr:
		return fmt.Errorf("the address of %s is %s, and was %s", st.card.name(), now, st.gid)
	}
	st.started = true
	s.stripes = append(s.stripes, st)
	go st.post()
	go st.reap()
	return nil
}

// strikeLocked loses the stripe.
func (st *stripe) strikeLocked(why error) {
	if st.ending {
		return
	}
	st.ending, st.live, st.why, st.lost = true, false, why, time.Now()
	close(st.dying)
	st.queue.wake()
	st.wakeLocked() // what was to go by it, goes by others
}

// wakeLocked tells the posters of a session that there may be something to do.
func (s *session) wakeLocked() {
	for _, st := range s.stripes {
		st.wakeUp()
	}
}

func (st *stripe) wakeUp() {
	select {
	case st.wakes <- struct{}{}:
	default:
	}
}
