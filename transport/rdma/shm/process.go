package shm

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is the process at the other end of a socket. It is the one that made the
// connection, or that listens; whom that one hands its memory to, it answers for.
type process struct {
	pidfd *os.File
	raw   syscall.RawConn
}

// processOf finds the process of a peer, which must be of this process's user.
func processOf(sock *net.UnixConn) (*process, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	if err := raw.Control(func(s uintptr) { fd, failed = pidfdOf(int(s)) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		_ = unix.Close(fd)
		return nil, &UnreachableError{NoProcess, err}
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	p := &process{pidfd: f}
	if p.raw, err = f.SyscallConn(); err != nil {
		_ = f.Close()
		return nil, &UnreachableError{NoProcess, err}
	}
	return p, nil
}

func pidfdOf(sock int) (int, error) {
	who, err := unix.GetsockoptUcred(sock, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, &UnreachableError{NoProcess, fmt.Errorf("SO_PEERCRED: %w", err)}
	}
	if own := os.Geteuid(); int(who.Uid) != own {
		return -1, &UnreachableError{OtherUser, fmt.Errorf("its user is %d, this one's %d", who.Uid, own)}
	}
	if fd, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
		unix.CloseOnExec(fd)
		return fd, nil
	}
	// Before Linux 6.5 by number. If the socket has not been hung up by now, its
	// process had not ended when the number was looked up.
	if who.Pid == 0 {
		return -1, &UnreachableError{NoProcess, fmt.Errorf("it is in another process namespace")}
	}
	fd, err := unix.PidfdOpen(int(who.Pid), 0)
	if err != nil {
		return -1, &UnreachableError{NoProcess, fmt.Errorf("pidfd_open of %d: %w", who.Pid, err)}
	}
	poll := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(poll, 0); n != 0 || err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("the peer hung up: %w", unix.ECONNRESET)
	}
	return fd, nil
}

// exited reports whether no thread of the process runs any more, and none will.
func (p *process) exited() bool {
	out := false
	err := p.raw.Control(func(fd uintptr) { out = readable(fd) })
	return err == nil && out
}

// await returns nil when the process has exited, and an error when it was closed.
func (p *process) await() error { return p.raw.Read(readable) }

func readable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n == 1 && err == nil
}

func (p *process) close() { _ = p.pidfd.Close() }
