package verbs

import "fmt"

// fabric is what the provider needs of libibverbs. The real one is in fabric_cgo.go;
// tests have one in software, which fails in all the ways that hardware does.
type fabric interface {
	// open opens a port of a device. Errors are *CallError.
	open(device string, port int) (nic, error)
}

// nic is a device that is open, with a protection domain.
type nic interface {
	limits() Limits

	// register makes memory that stays mapped until deregister readable, and with remote
	// writable by peers that have its key. Errors are *MemoryError.
	register(w window, access access) (registration, error)

	// queue makes a queue pair with a completion queue of its own, which holds all that
	// can complete. The device may give it more than was asked for. Errors are *CallError.
	queue(want queueSize) (queue, error)

	// next waits for an event of the device. After close it returns an error.
	next() (deviceEvent, error)

	// close closes a device of which nothing is left.
	close() error
}

// window is memory to register: of this process, or a part of a dma-buf.
type window struct {
	addr   uint64 // by which peers and requests name its first byte
	bytes  uint64
	dmabuf int // file descriptor; -1: memory of this process
	offset uint64
}

// access is what memory is registered for.
type access struct {
	remote  bool // peers with the key may write it
	relaxed bool // their writes may become visible in any order before the arrival
}

// registration is memory that a device knows.
type registration interface {
	keys() (local, remote uint32)
	deregister() error
}

// queueSize is how much a queue pair holds.
type queueSize struct {
	Sends, Receives int // requests
	Pieces          int // of a send
	Chain           int // requests of one call
}

// queue is one end of a reliable connection and what it completes to. One goroutine
// posts writes; one polls, waits and posts receives.
type queue interface {
	number() uint32 // of the queue pair
	size() queueSize

	// accept brings it to where receives can be posted and the peer's packets are
	// taken. The peer may send once this has returned.
	accept(l *link) error
	// send brings it to where it sends, once the peer has accepted.
	send(l *link) error
	// fail ends all that is outstanding: it completes as flushed.
	fail() error
	// destroy ends it: from then on nothing of the peer is placed, no memory is read.
	destroy() error

	// write posts rows as one chain. Each completes as id only if it fails, the last
	// always, as id+1; with imm it takes a receive of the peer. It returns how many rows
	// were posted: with an error fewer than all.
	write(rows []row, id uint64, imm *uint32) (posted int, err error)
	// receive posts n receives without memory. It returns how many were posted.
	receive(n int) (posted int, err error)

	// poll appends what has completed, a bounded number.
	poll(to []completion) ([]completion, error)
	// arm makes the next completion end wait; those before it may not.
	arm() error
	// wait returns when something has completed since arm, or after wake; and now and then
	// without either.
	wait() error
	// wake ends wait, now and every time after.
	wake()
}

// receiveID is the id of every receive; those of writes are below.
const receiveID = 1 << 63

// piece is memory of this side.
type piece struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// row is one write request: pieces of this side, one after another, to one place of
// the peer.
type row struct {
	pieces []piece
	remote uint64 // address
	rkey   uint32
}

// link is what both ends of a connection have to know, and how it behaves.
type link struct {
	Port         int
	Local        GID
	Remote       [16]byte // GID
	RemoteLID    uint16   // InfiniBand
	Ethernet     bool
	MTU          int    // bytes, of the smaller side
	RemoteNumber uint32 // of the queue pair
	LocalPSN     uint32 // 24 bits, random, so that late packets of another connection do not fit
	RemotePSN    uint32
	Timeout      uint8 // 4.096 us << Timeout until a packet is sent again
	Retries      uint8 // at most 6: some drivers take 7 for "for ever"
	RNRRetries   uint8 // of a receiver without a receive; at most 6
	TrafficClass uint8
	ServiceLevel uint8
}

// deviceEvent is what a device tells by itself.
type deviceEvent struct {
	kind  eventKind
	queue uint32 // number, of an event of a queue pair
	port  int    // of an event of a port
	text  string // as the library calls it
}

// eventKind is what an event asks for.
type eventKind uint8

const (
	eventOther    eventKind = iota
	eventQueue              // a queue pair, or its completion queue, has failed
	eventDevice             // all of the device has failed
	eventPortDown           // a port carries nothing any more
	eventPort               // a port is active, or its addresses have changed
)

// QueueError is a request of a queue pair that failed.
type QueueError struct {
	Device string
	Status Status
	Vendor uint32 // the device's own number
}

func (e *QueueError) Error() string {
	return fmt.Sprintf("verbs: %s: %s (vendor error %#x): it is of %s%s", e.Device, e.Status, e.Vendor, e.Status.Blame(), e.Status.advice())
}
