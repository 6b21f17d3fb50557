package shm

import (
	"fmt"
	"time"
)

// Config is one provider. The zero value is ready to use.
type Config struct {
	// WindowWrites is how many writes a session accepts before ErrFull. 0 means 256.
	WindowWrites int

	// HandshakeTimeout is how long one side waits for the other's Connect. 0 means
	// 10s.
	HandshakeTimeout time.Duration

	// CopyTimeout is how long Revoke and Fence wait for a copy that the peer has
	// begun before they call its grant open. Longer rides out a machine that is
	// overloaded; shorter tells sooner of a process that was stopped. 0 means 1s.
	CopyTimeout time.Duration
}

// resolve fills in what is not given, and refuses what cannot be.
func (c *Config) resolve() error {
	if c.WindowWrites == 0 {
		c.WindowWrites = windowWritesDefault
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = handshakeTimeoutDefault
	}
	if c.CopyTimeout == 0 {
		c.CopyTimeout = copyTimeoutDefault
	}
	if c.WindowWrites < 1 || c.WindowWrites > 1<<20 {
		return fmt.Errorf("shm: window writes: got %d, want 1 to %d", c.WindowWrites, 1<<20)
	}
	for _, d := range []struct {
		name string
		got  time.Duration
	}{{"handshake timeout", c.HandshakeTimeout}, {"copy timeout", c.CopyTimeout}} {
		if d.got < time.Millisecond || d.got > 24*time.Hour {
			return fmt.Errorf("shm: %s: got %s, want 1ms to 24h", d.name, d.got)
		}
	}
	return nil
}
