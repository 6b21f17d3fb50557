package tcp

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// tune sets what a data connection needs. Go has set TCP_NODELAY. Socket buffers
// are left to the kernel, which sizes them better.
func tune(c *net.TCPConn, cfg *Config) error {
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: cfg.KeepAlive, Interval: cfg.KeepAlive, Count: keepAliveProbes,
	}); err != nil {
		return fmt.Errorf("keep-alive: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	same := sameHost(c)
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if e := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(cfg.UserTimeout.Milliseconds())); e != nil {
			failed = fmt.Errorf("user timeout: %w", e)
		}
		if same {
			// What paces for a network loses a third on loopback. Where cubic is not
			// there, the default stays.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
		}
	}); err != nil {
		return err
	}
	return failed
}

// sameHost answers whether a connection stays on this machine.
func sameHost(c *net.TCPConn) bool {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	return ok && ok2 && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP))
}

// listenControl lets a provider that comes back listen where it did.
func listenControl(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}); err != nil {
		return err
	}
	return failed
}
