package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket sends and takes messages with the descriptors that belong to them.
type socket struct {
	conn *net.UnixConn
	raw  syscall.RawConn
}

func newSocket(conn *net.UnixConn) (socket, error) {
	raw, err := conn.SyscallConn()
	return socket{conn, raw}, err
}

// errNotReading is for a peer whose socket is full of messages: it reads none.
var errNotReading = errors.New("the peer does not read its messages")

// send sends a message without waiting. A peer that lives has room for it.
func (s socket) send(b []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var failed error
	err := s.raw.Control(func(fd uintptr) {
		for {
			failed = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errors.Is(failed, unix.EAGAIN):
		return errNotReading
	case errors.Is(failed, unix.EPERM), errors.Is(failed, unix.EACCES), errors.Is(failed, unix.EINVAL), errors.Is(failed, unix.ETOOMANYREFS):
		return &UnreachableError{NoMemory, fmt.Errorf("send %d descriptors: %w", len(fds), failed)}
	}
	return failed
}

// take takes one message without waiting, into b. The descriptors are the caller's.
// Errors: EAGAIN when there is none, io.EOF at the end.
func (s socket) take(b []byte) (n int, fds []int, err error) {
	var rights [2048]byte // more than the kernel lets anybody send: 253 descriptors
	var failed error
	var rightsBytes, flags int
	err = s.raw.Control(func(fd uintptr) {
		for {
			n, rightsBytes, flags, _, failed = unix.Recvmsg(int(fd), b, rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, nil, err
	}
	fds, err = descriptors(rights[:rightsBytes])
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("a message that does not fit: flags %#x", flags)
	case n == 0:
		err = io.EOF
	}
	if err != nil {
		closeAll(fds)
		return 0, nil, err
	}
	return n, fds, nil
}

// descriptors finds them in the control messages; with an error too, it returns
// those that have to be closed.
func descriptors(b []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, e := unix.ParseUnixRights(&messages[i])
		fds = append(fds, more...)
		err = errors.Join(err, e)
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// await takes one message, waiting until the deadline of the socket.
func (s socket) await(b []byte) (n int, fds []int, err error) {
	if e := s.raw.Read(func(uintptr) bool {
		n, fds, err = s.take(b)
		return !errors.Is(err, unix.EAGAIN)
	}); e != nil {
		return 0, nil, e
	}
	return n, fds, err
}
