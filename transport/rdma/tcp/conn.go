package tcp

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn is one data connection: a stripe of a session. Its writer sends acks and
// frames, its reader takes frames and acks; neither waits for the other, so two
// sides that both send never stop each other.
type conn struct {
	*session
	stripe uint32
	sock   *net.TCPConn
	raw    syscall.RawConn
	wake   chan struct{} // holds 1 when the writer may have something to do

	// Owned by the reader.
	received  uint64 // number of the newest frame
	in        incoming
	readOnce  func(fd uintptr) bool // one readv of in, kept so that it is made once
	readError error

	// out is owned by who holds writing: the writer, or the reader for a moment.
	writing   sync.Mutex
	out       outgoing
	writeOnce func(fd uintptr) bool // writev
	tryOnce   func(fd uintptr) bool // writev, without waiting

	// acks that wait to be written. Each is a head.
	acksMu sync.Mutex
	acks   []byte

	// reading is held during each write system call that reads a source.
	reading   sync.Mutex
	frame     uint64 // number of the frame in out; guarded by reading
	abandoned bool   // its source may not be read any more; guarded by reading

	// Guarded by session.mu: frames that wait for their acks, oldest first.
	sending  *write // of the frame in out, nil when it is all written
	early    uint8  // status of an ack for that frame, which the writer settles
	number   uint64 // of the newest frame
	window   [windowFrames]sent
	first, n int
	inFlight int // bytes
}

// sent is a frame that waits for its ack.
type sent struct {
	write  *write
	number uint64
	bytes  int
}

func newConn(s *session, stripe uint32, sock *net.TCPConn) (*conn, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{session: s, stripe: stripe, sock: sock, raw: raw, wake: make(chan struct{}, 1)}
	c.readOnce, c.writeOnce, c.tryOnce = c.readv, c.writev, c.tryWritev
	return c, nil
}

func (c *conn) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// outgoing is what is being written: the acks, then a frame.
type outgoing struct {
	head    []byte // head and body of the frame
	body    body
	vec     iovecs // what of the frame is left
	made    iovecs // where vec is made, kept for its memory
	left    uint64 // bytes of vec
	framed  bool   // vec is a frame, not acks
	summed  bool   // it has a sum: its trailer follows when all else is written
	skip    uint64 // bytes of vec before the payload, of a frame that is summed
	sum     uint32
	padded  bool // it was abandoned
	trailer [trailerBytes]byte
	acks    []byte // being written, taken from conn.acks
	wrote   int
	err     error
}

// writev makes one write system call, and reports false when the socket is full.
// What is abandoned by then is not read any more: zeros go instead.
func (c *conn) writev(fd uintptr) bool {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.abandoned && c.out.framed {
		c.out.pad()
	}
	for {
		n, e := c.out.vec.call(unix.SYS_WRITEV, fd)
		switch e {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			c.out.wrote, c.out.err = n, nil
			c.out.count(uint64(n))
		default:
			c.out.wrote, c.out.err = 0, e
		}
		return true
	}
}

// zeros pad what is abandoned.
var zeros [discardBytes]byte

// count adds n bytes that were written to the sum: the kernel has just read them, so
// they are in the caches.
func (o *outgoing) count(n uint64) {
	if !o.framed || !o.summed {
		return
	}
	o.sum = o.vec.sum(o.sum, o.skip, n)
	o.skip -= min(o.skip, n)
}

// pad replaces what is left of the payload by zeros, and the trailer says so. What
// is left of the head stays. A frame of which only the trailer is left is whole.
func (o *outgoing) pad() {
	o.framed = false // once
	trailer := uint64(trailerBytes)
	if o.summed {
		trailer = 0 // it follows
	}
	if o.left <= trailer {
		return
	}
	o.padded = true
	payload := min(o.left-trailer, o.body.bytes)
	head := o.left - trailer - payload
	o.made = o.made[:0]
	if head > 0 {
		o.made.buffer(o.head[uint64(len(o.head))-head:])
	}
	for payload > 0 {
		n := min(payload, discardBytes)
		o.made.buffer(zeros[:n])
		payload -= n
	}
	if !o.summed {
		encodeTrailer(o.trailer[:], statusAbandoned, 0)
		o.made.buffer(o.trailer[:])
	}
	o.vec = o.made
}

// close makes out the trailer of a frame that has a sum.
func (o *outgoing) close() {
	if o.padded {
		encodeTrailer(o.trailer[:], statusAbandoned, 0)
	} else {
		encodeTrailer(o.trailer[:], statusWhole, o.sum)
	}
	o.framed = false // no source is read any more
	o.made = o.made[:0]
	o.made.buffer(o.trailer[:])
	o.vec, o.left = o.made, trailerBytes
}

// writeAll writes vec, waiting for the socket as often as it takes.
func (c *conn) writeAll() error {
	for c.out.left > 0 {
		if err := c.raw.Write(c.writeOnce); err != nil {
			return err
		}
		if c.out.err != nil {
			return c.out.err
		}
		c.out.vec.advance(uint64(c.out.wrote))
		c.out.left -= uint64(c.out.wrote)
	}
	return nil
}

// incoming is what is being read.
type incoming struct {
	head    [headBytes]byte
	raw     []byte // a body
	body    body
	grant   *grant // whose memory vec is, nil once the payload is refused
	vec     iovecs // where the rest of payload and trailer goes
	made    iovecs
	left    uint64 // bytes of payload and trailer
	trailer [trailerBytes]byte
	refused string // why, when it is
	summed  bool   // the payload is added to sum as it comes in
	sum     uint32
	discard []byte
	read    int
}

// readv makes one read system call, and reports false when nothing is there. The
// bytes enter granted memory here and nowhere else, while the grant is held open.
func (c *conn) readv(fd uintptr) bool {
	in := &c.in
	if in.grant != nil {
		in.grant.landing.RLock()
		defer in.grant.landing.RUnlock()
		if in.grant.closed {
			in.refuse(errRevoked.Error())
		}
	}
	for {
		n, e := in.vec.call(unix.SYS_READV, fd)
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			return false
		case e != 0:
			in.read, c.readError = 0, e
		case n == 0:
			in.read, c.readError = 0, io.ErrUnexpectedEOF
		default:
			in.read, c.readError = n, nil
			in.count(uint64(n))
		}
		return true
	}
}

// count adds n bytes that came in to the sum, while the grant is held open: they are
// where they belong, and in the caches.
func (in *incoming) count(n uint64) {
	if in.summed && in.grant != nil && in.left > trailerBytes {
		in.sum = in.vec.sum(in.sum, 0, min(n, in.left-trailerBytes))
	}
}

// refuse points the rest of the frame at the discard buffer. The unlock of the
// grant, if it is held, is the caller's.
func (in *incoming) refuse(why string) {
	in.refused = why
	if in.discard == nil {
		in.discard = make([]byte, discardBytes)
	}
	in.made = in.made[:0]
	if payload := int(in.left) - trailerBytes; payload > 0 {
		for ; payload > 0; payload -= discardBytes {
			in.made.buffer(in.discard[:min(payload, discardBytes)])
		}
		in.made.buffer(in.trailer[:])
	} else {
		in.made.buffer(in.trailer[trailerBytes-in.left:])
	}
	in.vec = in.made
	in.grant = nil
}

// readAll reads payload and trailer to where they belong.
func (c *conn) readAll() error {
	for in := &c.in; in.left > 0; {
		if err := c.raw.Read(c.readOnce); err != nil {
			return err
		}
		if c.readError != nil {
			return c.readError
		}
		in.vec.advance(uint64(in.read))
		in.left -= uint64(in.read)
	}
	return nil
}

var errTooManyAcks = errors.New("the peer sends frames and does not read their acks")

// acknowledge queues an ack and writes it at once if the socket is free.
func (c *conn) acknowledge(number uint64, status uint8) error {
	var b [headBytes]byte
	h := head{kind: kindAck, status: status, number: number}
	h.encode(b[:])
	c.acksMu.Lock()
	if len(c.acks) >= acksMax*headBytes {
		c.acksMu.Unlock()
		return errTooManyAcks
	}
	c.acks = append(c.acks, b[:]...)
	c.acksMu.Unlock()
	if !c.writing.TryLock() {
		c.wakeUp() // the writer is at it, and looks again
		return nil
	}
	defer c.writing.Unlock()
	if c.out.left == 0 {
		c.takeAcks()
	}
	// One try: what the socket does not take is the writer's.
	if c.out.left > 0 {
		if err := c.raw.Write(c.tryOnce); err != nil {
			return err
		}
		if c.out.err != nil {
			return c.out.err
		}
		c.out.vec.advance(uint64(c.out.wrote))
		c.out.left -= uint64(c.out.wrote)
	}
	if c.out.left > 0 {
		c.wakeUp()
	}
	return nil
}

// tryWritev writes what the socket takes now.
func (c *conn) tryWritev(fd uintptr) bool {
	if !c.writev(fd) {
		c.out.wrote, c.out.err = 0, nil
	}
	return true
}

// takeAcks makes vec of the acks that wait.
func (c *conn) takeAcks() {
	c.acksMu.Lock()
	c.out.acks, c.acks = c.acks, c.out.acks[:0]
	c.acksMu.Unlock()
	c.out.made = c.out.made[:0]
	if len(c.out.acks) > 0 {
		c.out.made.buffer(c.out.acks)
	}
	c.out.vec, c.out.left = c.out.made, uint64(len(c.out.acks))
}
