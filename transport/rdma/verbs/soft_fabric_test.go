package verbs

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// soft is a fabric in software: devices of this process, whose queue pairs keep to the
// rules of reliable connections, and fail in the ways of hardware when a test says so.
// One lock guards all of it: what is slow here is slow in the open.
type soft struct {
	mu     sync.Mutex
	nics   map[string]*softNIC
	queues map[uint32]*softQueue // by number; a number that is free is used again at once
	keys   uint32
	cut    map[[2]string]bool // packets from the first to the second device are lost

	// What tests set before they start.
	retry   time.Duration // how long a sender tries
	onOpen  func(n *softNIC)
	onNew   func(q *softQueue)               // of each queue pair that is made
	lag     func() time.Duration             // of each request
	late    func() time.Duration             // of a request that is late; nil: twice retry
	slow    func(q *softQueue) time.Duration // of each destroy
	onPlace func(Status)                     // of a request that was late
	fate    func(from *softQueue) fate       // of each request
	refuse  func(want queueSize) error       // of a queue pair that is asked for
	limit   func(device string) Limits       // nil: softLimits
	deny    func(w window, x access) error   // of a registration
}

// fate is what becomes of a request.
type fate uint8

const (
	arrives   fate = iota
	noAnswer       // it lands, and the sender is told that it did not
	isLate         // the sender is told that it did not land, and then it does
	flushOnly      // the sender's queue pair goes into error, and no request says why
)

func newSoft() *soft {
	return &soft{nics: map[string]*softNIC{}, queues: map[uint32]*softQueue{}, cut: map[[2]string]bool{}, retry: 30 * time.Millisecond}
}

var softLimits = Limits{MaxMR: 1 << 40, MaxMRs: 1 << 20, MaxQP: 1 << 16, MaxQPWR: 4096, MaxSGE: 16, MaxCQE: 1 << 20, MTU: 4096, MaxMTU: 4096, MaxMsg: 1 << 30, GIDs: 8}

func (f *soft) open(device string, port int) (nic, error) {
	n := &softNIC{fabric: f, name: device, port: port, events: make(chan deviceEvent, 64), closed: make(chan struct{}), memory: map[uint32]*softMemory{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nics[device] != nil {
		return nil, &CallError{Call: "ibv_open_device", Device: device, Err: syscall.EBUSY}
	}
	f.nics[device] = n
	if f.onOpen != nil {
		f.onOpen(n)
	}
	return n, nil
}

// sever loses or heals what goes from one device to another, both ways.
func (f *soft) sever(a, b string, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[[2]string{a, b}], f.cut[[2]string{b, a}] = lost, lost
}

// softNIC is a device.
type softNIC struct {
	fabric *soft
	name   string
	port   int
	events chan deviceEvent
	closed chan struct{}
	memory map[uint32]*softMemory // by key
}

func (n *softNIC) limits() Limits {
	if n.fabric.limit != nil {
		return n.fabric.limit(n.name)
	}
	return softLimits
}

func (n *softNIC) next() (deviceEvent, error) {
	select {
	case ev := <-n.events:
		return ev, nil
	case <-n.closed:
		return deviceEvent{}, net.ErrClosed
	}
}

func (n *softNIC) close() error {
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	close(n.closed)
	delete(n.fabric.nics, n.name)
	if len(n.memory) > 0 {
		return &CallError{Call: "ibv_dealloc_pd", Device: n.name, Err: syscall.EBUSY}
	}
	for _, q := range n.fabric.queues {
		if q.nic == n {
			return &CallError{Call: "ibv_close_device", Device: n.name, Err: syscall.EBUSY}
		}
	}
	return nil
}

// softMemory is a registration.
type softMemory struct {
	nic    *softNIC
	key    uint32
	addr   uint64
	bytes  []byte
	remote bool
	mapped bool // bytes are a mapping of its own
}

func (n *softNIC) register(w window, x access) (registration, error) {
	f := n.fabric
	if f.deny != nil {
		if err := f.deny(w, x); err != nil {
			return nil, err
		}
	}
	m := &softMemory{nic: n, addr: w.addr, remote: x.remote}
	if w.dmabuf >= 0 {
		b, err := unix.Mmap(w.dmabuf, int64(w.offset), int(w.bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, &MemoryError{Device: n.name, Bytes: w.bytes, DMABuf: true, Err: err.(syscall.Errno)}
		}
		m.bytes, m.mapped = b, true
	} else {
		m.bytes = unsafe.Slice(*(**byte)(unsafe.Pointer(&w.addr)), w.bytes) // memory of the host, whose address is a number here
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys++
	m.key = f.keys * 257
	n.memory[m.key] = m
	return m, nil
}

func (m *softMemory) keys() (local, remote uint32) { return m.key, m.key }

func (m *softMemory) deregister() error {
	f := m.nic.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.nic.memory[m.key] != m {
		return &CallError{Call: "ibv_dereg_mr", Device: m.nic.name, Err: syscall.EINVAL}
	}
	delete(m.nic.memory, m.key)
	if m.mapped {
		return unix.Munmap(m.bytes)
	}
	return nil
}

// at is n bytes of registered memory, nil when the key or the place is wrong.
func (n *softNIC) at(key uint32, addr uint64, bytes uint64, remote bool) []byte {
	m := n.memory[key]
	if m == nil || remote && !m.remote || addr < m.addr || addr+bytes > m.addr+uint64(len(m.bytes)) || addr+bytes < addr {
		return nil
	}
	return m.bytes[addr-m.addr:][:bytes]
}

// softState is how far a queue pair is.
type softState uint8

const (
	made softState = iota
	takes
	sends
	broken
	destroyed
)

// softQueue is a queue pair with its completion queue.
type softQueue struct {
	nic   *softNIC
	qpn   uint32
	has   queueSize
	ready *sync.Cond // something to send, or a change of state

	state    softState
	link     link
	psn      uint32 // of the next request that it sends
	expected uint32 // of the next that it takes
	requests []softRequest
	posted   uint64 // sends, ever
	taken    uint64 // of them, the newest of which a completion was taken
	receives int
	done     []softCompletion
	armed    bool
	signal   *sync.Cond
	signals  int
	woken    bool

	// Faults, which tests set.
	partial   int           // when > 0: the next chain is posted so far, and one less
	full      int           // so many posts find it full when there is something in it
	mute      bool          // nothing completes any more
	deaf      bool          // polls find nothing, as those of a process that has no time
	hollow    bool          // what comes with a number comes without its bytes
	pollErr   error         // of every poll
	hold      chan struct{} // destroy waits for its end
	unwilling int           // so many destroys fail
	halfway   int           // so many more fail when the queue pair is gone
	failErr   error
}

// softCompletion is a completion, and of which send it is; 0: of a receive.
type softCompletion struct {
	completion
	send uint64
}

type softRequest struct {
	row
	send   uint64
	id     uint64
	signal bool
	imm    *uint32
}

func (n *softNIC) queue(want queueSize) (queue, error) {
	f := n.fabric
	if f.refuse != nil {
		if err := f.refuse(want); err != nil {
			return nil, err
		}
	}
	q := &softQueue{nic: n, has: want, ready: sync.NewCond(&f.mu), signal: sync.NewCond(&f.mu)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.qpn = 17; f.queues[q.qpn] != nil; {
		q.qpn++
	}
	f.queues[q.qpn] = q
	if f.onNew != nil {
		f.onNew(q)
	}
	return q, nil
}

func (q *softQueue) lock() func() {
	q.nic.fabric.mu.Lock()
	return q.nic.fabric.mu.Unlock
}

func (q *softQueue) number() uint32  { return q.qpn }
func (q *softQueue) size() queueSize { return q.has }

func (q *softQueue) call(what string, err syscall.Errno) error {
	return &CallError{Call: what, Device: q.nic.name, Err: err}
}

func (q *softQueue) accept(l *link) error {
	defer q.lock()()
	if q.state != made {
		return q.call("ibv_modify_qp to RTR", syscall.EINVAL)
	}
	q.state, q.link, q.psn, q.expected = takes, *l, l.LocalPSN, l.RemotePSN
	return nil
}

func (q *softQueue) send(*link) error {
	defer q.lock()()
	if q.state != takes {
		return q.call("ibv_modify_qp to RTS", syscall.EINVAL)
	}
	q.state = sends
	go q.run()
	return nil
}

func (q *softQueue) fail() error {
	defer q.lock()()
	if q.failErr != nil {
		return q.failErr
	}
	if q.state == made || q.state == destroyed {
		return q.call("ibv_modify_qp to ERR", syscall.EINVAL)
	}
	q.breakLocked()
	return nil
}

// breakLocked ends all that is outstanding.
func (q *softQueue) breakLocked() {
	if q.state >= broken {
		return
	}
	q.state = broken
	for _, r := range q.requests {
		q.completeLocked(r.send, completion{ID: r.id, Status: statusFlushed})
	}
	q.requests = nil
	for range q.receives {
		q.completeLocked(0, completion{ID: receiveID, Status: statusFlushed})
	}
	q.receives = 0
	q.ready.Broadcast()
}

func (q *softQueue) completeLocked(send uint64, c completion) {
	if q.mute || q.state == destroyed {
		return
	}
	q.done = append(q.done, softCompletion{c, send})
	if q.armed {
		q.armed = false
		q.signals++
		q.signal.Broadcast()
	}
}

func (q *softQueue) destroy() error {
	unlock := q.lock()
	hold, pause := q.hold, time.Duration(0)
	if q.nic.fabric.slow != nil {
		pause = q.nic.fabric.slow(q)
	}
	unlock()
	time.Sleep(pause)
	if hold != nil {
		<-hold
	}
	defer q.lock()()
	if q.unwilling > 0 {
		q.unwilling--
		return q.call("ibv_destroy_qp", syscall.EBUSY)
	}
	if q.state != destroyed {
		q.state = destroyed
		q.ready.Broadcast()
		delete(q.nic.fabric.queues, q.qpn)
	}
	if q.halfway > 0 {
		q.halfway--
		return q.call("ibv_destroy_cq", syscall.EBUSY)
	}
	return nil
}

func (q *softQueue) write(rows []row, id uint64, imm *uint32) (int, error) {
	defer q.lock()()
	if q.state != sends && q.state != broken {
		return 0, q.call("ibv_post_send", syscall.EINVAL)
	}
	if len(rows) > q.has.Chain {
		return 0, fmt.Errorf("%d rows in a chain, it has room for %d", len(rows), q.has.Chain)
	}
	if q.full > 0 && len(q.requests) > 0 {
		q.full--
		return 0, q.call("ibv_post_send", syscall.ENOMEM)
	}
	for i := range rows {
		if q.partial > 0 && i == min(q.partial, len(rows))-1 {
			q.partial = 0
			q.ready.Broadcast()
			return i, q.call("ibv_post_send", syscall.ENOMEM)
		}
		if q.posted-q.taken == uint64(q.has.Sends) {
			return i, q.call("ibv_post_send", syscall.ENOMEM)
		}
		if len(rows[i].pieces) > q.has.Pieces {
			return i, q.call("ibv_post_send", syscall.EINVAL)
		}
		q.posted++
		r := softRequest{row: rows[i], send: q.posted, id: id}
		r.pieces = append([]piece(nil), r.pieces...) // the device has its own copy
		if i == len(rows)-1 {
			r.id, r.signal = id+1, true
			if imm != nil {
				v := *imm
				r.imm = &v
			}
		}
		if q.state == broken {
			q.completeLocked(r.send, completion{ID: r.id, Status: statusFlushed})
			continue
		}
		q.requests = append(q.requests, r)
	}
	q.ready.Broadcast()
	return len(rows), nil
}

func (q *softQueue) receive(n int) (int, error) {
	defer q.lock()()
	for i := range n {
		if q.receives == q.has.Receives {
			return i, q.call("ibv_post_recv", syscall.ENOMEM)
		}
		if q.state == broken {
			q.completeLocked(0, completion{ID: receiveID, Status: statusFlushed})
			continue
		}
		q.receives++
	}
	return n, nil
}

func (q *softQueue) poll(to []completion) ([]completion, error) {
	defer q.lock()()
	if q.pollErr != nil {
		return to, q.pollErr
	}
	if q.deaf {
		return to, nil
	}
	n := min(len(q.done), 16)
	for _, c := range q.done[:n] {
		if c.send > 0 { // with it, all before it that say nothing are over
			q.taken = c.send
		}
		to = append(to, c.completion)
	}
	q.done = q.done[n:]
	return to, nil
}

func (q *softQueue) arm() error {
	defer q.lock()()
	q.armed = true
	return nil
}

func (q *softQueue) wait() error {
	defer q.lock()()
	for q.signals == 0 && !q.woken {
		q.signal.Wait()
	}
	q.signals = max(q.signals-1, 0)
	return nil
}

func (q *softQueue) wake() {
	defer q.lock()()
	q.woken = true
	q.signal.Broadcast()
}

// run sends requests one after another, as a reliable connection does.
func (q *softQueue) run() {
	f := q.nic.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		for q.state == sends && len(q.requests) == 0 {
			q.ready.Wait()
		}
		if q.state != sends {
			return
		}
		if f.lag != nil {
			if d := f.lag(); d > 0 {
				f.mu.Unlock()
				time.Sleep(d)
				f.mu.Lock()
			}
		}
		if q.state != sends || len(q.requests) == 0 {
			continue
		}
		r := q.requests[0]
		what := arrives
		if f.fate != nil {
			what = f.fate(q)
		}
		bytes, status := q.readLocked(&r), statusSuccess
		switch {
		case bytes == nil:
			status = 4 // local protection error
		case what == flushOnly:
			q.breakLocked()
			continue
		case what == isLate:
			psn, l, d := q.psn, q.link, 2*f.retry
			if f.late != nil {
				d = f.late()
			}
			go func() {
				time.Sleep(d)
				f.mu.Lock()
				defer f.mu.Unlock()
				if s := f.placeLocked(q.nic, &l, psn, &r, bytes); f.onPlace != nil {
					f.onPlace(s)
				}
			}()
			status = q.tryLocked(func() Status { return 12 })
		default:
			status = q.tryLocked(func() Status {
				s := f.placeLocked(q.nic, &q.link, q.psn, &r, bytes)
				if what == noAnswer && s == statusSuccess {
					return 12
				}
				return s
			})
		}
		if q.state != sends { // meanwhile
			return
		}
		q.requests = q.requests[1:]
		q.psn = (q.psn + 1) & 0xffffff
		if status != statusSuccess {
			q.completeLocked(r.send, completion{ID: r.id, Status: status, Vendor: 0x51})
			q.breakLocked()
			return
		}
		if r.signal {
			q.completeLocked(r.send, completion{ID: r.id, Status: statusSuccess})
		}
	}
}

// tryLocked tries until it is answered, or the retries are over.
func (q *softQueue) tryLocked(send func() Status) Status {
	f := q.nic.fabric
	for until := time.Now().Add(f.retry); ; {
		s := send()
		if s != 12 && s != 13 || !time.Now().Before(until) || q.state != sends {
			return s
		}
		f.mu.Unlock()
		time.Sleep(f.retry / 8)
		f.mu.Lock()
	}
}

// readLocked reads the pieces of a request, nil when one is not there.
func (q *softQueue) readLocked(r *softRequest) []byte {
	bytes := []byte{}
	for _, p := range r.pieces {
		b := q.nic.at(p.lkey, p.addr, uint64(p.length), false)
		if b == nil {
			return nil
		}
		bytes = append(bytes, b...)
	}
	return bytes
}

// placeLocked is a request that comes to the other end.
func (f *soft) placeLocked(from *softNIC, l *link, psn uint32, r *softRequest, bytes []byte) Status {
	to := f.queues[l.RemoteNumber]
	switch {
	case to == nil || to.link.Local.Addr != l.Remote || to.state != takes && to.state != sends, f.cut[[2]string{from.name, to.nic.name}]:
		return 12 // nobody answers
	case psn == (to.expected-1)&0xffffff:
		return statusSuccess // it was taken before, and the answer was lost
	case psn != to.expected:
		return 12
	case r.imm != nil && to.receives == 0:
		return 13
	}
	place := to.nic.at(r.rkey, r.remote, uint64(len(bytes)), true)
	if place == nil {
		to.breakLocked()
		return 10
	}
	if r.imm == nil || !to.hollow {
		copy(place, bytes)
	}
	to.expected = (to.expected + 1) & 0xffffff
	if r.imm != nil {
		to.receives--
		to.completeLocked(0, completion{ID: receiveID, Status: statusSuccess, HasImm: true, Imm: *r.imm})
	}
	if f.cut[[2]string{to.nic.name, from.name}] {
		return 12 // it has landed; the answer is lost
	}
	return statusSuccess
}

var _ fabric = (*soft)(nil)
