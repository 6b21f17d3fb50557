package bench

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stream is a connection of the raw loop: it moves memory by readv and writev of the
// socket, which the runtime's poller waits for.
type stream struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	iov  []unix.Iovec
}

func newStream(c *net.TCPConn) (*stream, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	// Go has set TCP_NODELAY. Buffers are the kernel's to size. What paces for a
	// network loses a third on loopback; where cubic is not there the default stays.
	err = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	})
	return &stream{conn: c, raw: raw}, err
}

// list appends the iovecs of one side of a write. Rows without a gap between are one.
func (s *stream) list(l *layout, write int, memory []byte, isSource bool) {
	end := uint64(0) // of the last, 0 is of none
	for source, target := range l.rows(write) {
		at := target
		if isSource {
			at = source
		}
		if at == end && end > 0 {
			s.iov[len(s.iov)-1].Len += l.Block
		} else {
			s.iov = append(s.iov, unix.Iovec{Base: &memory[at], Len: l.Block})
		}
		end = at + l.Block
	}
}

// write sends the listed memory, read fills it.
func (s *stream) write() error { return s.move(s.raw.Write, unix.SYS_WRITEV) }
func (s *stream) read() error  { return s.move(s.raw.Read, unix.SYS_READV) }

func (s *stream) move(ready func(func(fd uintptr) bool) error, trap uintptr) error {
	rest := s.iov
	var failed error
	err := ready(func(fd uintptr) bool {
		for len(rest) > 0 {
			n, _, e := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&rest[0])), uintptr(min(len(rest), iovecsMax)))
			switch {
			case e == unix.EAGAIN:
				return false
			case e == unix.EINTR:
			case e != 0:
				failed = fmt.Errorf("raw loop: %w", e)
				return true
			case n == 0:
				failed = io.ErrUnexpectedEOF
				return true
			default:
				rest = advance(rest, uint64(n))
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return failed
}

// advance takes n bytes off the front.
func advance(v []unix.Iovec, n uint64) []unix.Iovec {
	for len(v) > 0 && n >= v[0].Len {
		n -= v[0].Len
		v = v[1:]
	}
	if n > 0 {
		v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), n))
		v[0].Len -= n
	}
	return v
}
