package verbs

import (
	"encoding/binary"
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

// takeLocked makes a chunk of what was cut into the chain, and puts the record of its
// arrival behind it.
func (st *stripe) takeLocked(w *write, part span) *chunk {
	local, _ := st.registered.keys()
	// An entry of this side is used again when its chunk has completed: there are as
	// many as requests. One of the peer's, when it has posted its receive again.
	own := uint64(st.size.Receives)*recordBytes + st.sent%uint64(st.size.Sends)*recordBytes
	record := st.records.Bytes()[own:][:recordBytes]
	binary.LittleEndian.PutUint64(record[0:], part.bytes)
	binary.LittleEndian.PutUint64(record[8:], st.sent+1) // never 0, which entries are at first
	x := &st.chain
	x.pieces = append(x.pieces, piece{st.recordsAddr() + own, recordBytes, local})
	x.rows = append(x.rows, row{
		pieces: x.pieces[len(x.pieces)-1:], remote: st.ring + st.sent%st.ringSize*recordBytes, rkey: st.ringKey,
	})
	st.sent++
	st.ids += 2
	c := &chunk{write: w, span: part, id: st.ids, requests: len(x.rows)}
	if len(st.chunks) == 0 {
		st.moved = time.Now()
	}
	st.used += c.requests
	st.onWay += part.bytes
	st.chunks = append(st.chunks, c)
	return c
}

// post cuts chunks and posts them, until the stripe is lost.
func (st *stripe) post() {
	defer close(st.posted)
	p := st.provider
	for {
		p.mu.Lock()
		c := st.cutLocked(st)
		p.mu.Unlock()
		if c != nil {
			immediate := c.write.target.immediate
			if n, err := st.queue.write(st.chain.rows, c.id, &immediate); err != nil {
				st.notPosted(c, n, err)
			}
			continue
		}
		select {
		case <-st.wakes:
			continue
		case <-st.dying:
		}
		p.mu.Lock()
		joined := st.joined
		p.mu.Unlock()
		if joined {
			if err := st.queue.fail(); err != nil {
				p.config.Log(Warn, err.Error())
			} else if c := st.short; c != nil {
				// What is posted now comes back at once, behind all that was before.
				_, _ = st.queue.write(st.chain.rows[len(st.chain.rows)-1:], c.id, nil)
			}
		}
		return
	}
}

// notPosted: n requests of a chunk were posted, the last one not. A queue that is full,
// though by the count it is not, gets the chunk again when something has completed.
func (st *stripe) notPosted(c *chunk, n int, err error) {
	st.provider.mu.Lock()
	defer st.provider.mu.Unlock()
	if n == 0 {
		full := errors.Is(err, syscall.ENOMEM) && len(st.chunks) > 1
		if full && !st.ending {
			st.untakeLocked(c)
			return
		}
		c.requests = 0 // nothing of it is there
	}
	// What was posted of it may land, and its end tells nobody. With the queue pair in
	// error nothing more does, and the chunk is of those that are lost.
	if n > 0 {
		st.short = c
	}
	st.strikeLocked(fmt.Errorf("%w: %d requests of a chain were posted, and not its end", err, n))
}

// untakeLocked takes back the newest chunk.
func (st *stripe) untakeLocked(c *chunk) {
	st.chunks = st.chunks[:len(st.chunks)-1]
	st.used -= c.requests
	st.onWay -= c.span.bytes
	st.sent--
	st.full = true // until something completes
	c.write.inFlight--
	st.againLocked(c)
}

func (st *stripe) strike(why error) {
	st.provider.mu.Lock()
	defer st.provider.mu.Unlock()
	st.strikeLocked(why)
}

// reap takes what completes, until the stripe is lost and drained; then it destroys it.
func (st *stripe) reap() {
	var done []completion
	idle := time.Now()
	for {
		var err error
		if done, err = st.queue.poll(done[:0]); err == nil && len(done) > 0 {
			err = st.take(done)
			idle = time.Now()
		}
		if err != nil {
			st.strike(err)
		}
		if st.isDying() {
			break
		}
		if err != nil || len(done) > 0 || time.Since(idle) < spinDefault {
			continue
		}
		if err := st.queue.arm(); err != nil {
			st.strike(err)
			continue
		}
		// What came before it was armed ends no wait.
		if done, err = st.queue.poll(done[:0]); err == nil && len(done) > 0 {
			if err = st.take(done); err == nil {
				idle = time.Now()
				continue
			}
		}
		if err == nil {
			err = st.queue.wait()
		}
		if err != nil {
			st.strike(err)
		}
	}
	st.drain(done)
	st.destroy()
}

func (st *stripe) isDying() bool {
	select {
	case <-st.dying:
		return true
	default:
		return false
	}
}

// drain waits until everything that was posted has come back: then this side's memory
// is not read any more. A device that is dead brings nothing back.
func (st *stripe) drain(done []completion) {
	<-st.posted
	for until := time.Now().Add(st.provider.config.drain); time.Now().Before(until); {
		var err error
		if done, err = st.queue.poll(done[:0]); err != nil {
			return
		}
		_ = st.take(done) // the stripe is lost already
		if len(done) > 0 {
			continue
		}
		st.provider.mu.Lock()
		left := len(st.chunks)
		for _, c := range st.chunks {
			if c.requests == 0 { // its last request has come back
				left--
			}
		}
		st.provider.mu.Unlock()
		if left == 0 && st.refilled == st.arrived+st.flushed {
			return
		}
		time.Sleep(drainPause)
	}
}

// drainPause is how long drain rests between polls.
const drainPause = 200 * time.Microsecond

// destroy ends the stripe. What the device refuses is asked for again: until it agrees
// the memory stays registered, and the session says that the stripe hangs.
func (st *stripe) destroy() {
	p := st.provider
	st.using.Lock()
	st.destroyed = true
	st.using.Unlock()
	for pause := destroyPause; ; pause = min(2*pause, time.Second) {
		err := st.queue.destroy()
		if err == nil {
			break
		}
		p.config.Log(Warn, err.Error())
		time.Sleep(pause)
	}
	if err := st.forgetRecords(); err != nil {
		p.config.Log(Warn, err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st.goneLocked()
	close(st.ended)
}

// forgetRecords ends the memory for records. What the device does not let go of stays
// mapped.
func (st *stripe) forgetRecords() error {
	if st.registered != nil {
		if err := st.registered.deregister(); err != nil {
			return err
		}
	}
	if st.records == nil { // there was none
		return nil
	}
	return st.records.Close()
}

// use calls the queue pair, unless it is destroyed or about to be.
func (st *stripe) use(call func() error) error {
	st.using.Lock()
	defer st.using.Unlock()
	if st.destroyed {
		return nil
	}
	return call()
}

// destroyPause is how long destroy rests at first.
const destroyPause = 10 * time.Millisecond

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

// reads reports whether the device may still read a source of the write.
func (st *stripe) reads(w *write) bool {
	return slices.ContainsFunc(st.chunks, func(c *chunk) bool { return c.write == w && c.requests > 0 })
}

// take accounts for completions. An error is the stripe's end, or the session's.
func (st *stripe) take(done []completion) error {
	p := st.provider
	var failed error
	p.mu.Lock()
	defer p.mu.Unlock()
	ended := false
	for i := range done {
		c := &done[i]
		switch {
		case c.ID == receiveID && c.Status == statusSuccess && c.HasImm:
			if err := st.arrivalLocked(c.Imm); err != nil && failed == nil {
				failed = err
			}
		case c.ID == receiveID:
			st.flushed++
			if failed == nil {
				failed = st.failure(c)
			}
		case c.Status == statusSuccess:
			if err := st.completedLocked(c.ID); err != nil && failed == nil {
				failed = err
			}
			ended = true
		default:
			st.failedLocked(c.ID)
			// The first that is not a flush is the cause.
			if failed == nil || c.Status.Blame() != Flushed {
				failed = st.failure(c)
			}
		}
	}
	if ended {
		st.wakeUp()
	}
	if failed == nil || st.ending {
		return nil
	}
	var q *QueueError
	if errors.As(failed, &q) && q.Status.everywhere() {
		st.leaveLocked(down, failed) // no other stripe would do better
		return nil
	}
	return failed
}

func (st *stripe) failure(c *completion) error {
	return &QueueError{Device: st.card.name(), Status: c.Status, Vendor: c.Vendor}
}

// completedLocked: the last request of the oldest chunk has completed.
func (st *stripe) completedLocked(id uint64) error {
	if len(st.chunks) == 0 || st.chunks[0].id+1 != id {
		return fmt.Errorf("verbs: %s completed request %d, which is not the oldest", st.card.name(), id)
	}
	c := st.chunks[0]
	st.chunks[0] = nil
	st.chunks = st.chunks[1:]
	st.moved = time.Now()
	st.used -= c.requests
	st.onWay -= c.span.bytes
	st.full = false
	st.landed++
	st.endChunkLocked(c, st.number)
	return nil
}

// failedLocked: a request has come back without having landed, as far as is known.
func (st *stripe) failedLocked(id uint64) {
	for _, c := range st.chunks {
		if c.id+1 == id {
			c.requests = 0 // all of it has come back
		}
	}
}

// arrivalLocked: what a record tells of is visible in memory.
func (st *stripe) arrivalLocked(immediate uint32) error {
	record := st.records.Bytes()[st.arrived%uint64(st.size.Receives)*recordBytes:][:recordBytes]
	bytes, number := binary.LittleEndian.Uint64(record[0:]), binary.LittleEndian.Uint64(record[8:])
	if number != st.arrived+1 {
		st.flushed++ // drain counts what was posted
		return fmt.Errorf("verbs: %s: the record of arrival %d says that it is %d", st.card.name(), st.arrived+1, number)
	}
	st.arrived++
	st.provider.arrivedLocked(st.session, st.number, immediate, bytes)
	if st.ending || st.refilled-st.arrived > uint64(st.size.Receives)*(topUpPart-1)/topUpPart {
		return nil
	}
	n, err := st.queue.receive(int(st.arrived + uint64(st.size.Receives) - st.refilled))
	st.refilled += uint64(n)
	st.tellLocked(&control.Frame{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: st.number, Posted: st.refilled}}})
	return err
}
