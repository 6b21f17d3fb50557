package verbs

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Config is one provider. Bind is required; the zero value of everything else is
// ready to use.
type Config struct {
	// Bind is the host:port at which peers reach the channel of a session, by TCP. It
	// carries queue pair numbers and grants, no payload. Port 0 takes a free one.
	Bind string

	// AdvertiseHost is the host that peers dial. "" means the host of Bind, which is
	// then not a wildcard.
	AdvertiseHost string

	// Devices are the ports to use, in this order. Empty: those that Choose takes.
	Devices []Pick

	// QueuePairs is how many stripes a pair of ports has, 1 to 16. 0 means 2. The side
	// that dials decides.
	QueuePairs int

	// ChunkBytes is how much one arrival tells of at most, 4 KiB to 1 GiB. 0 means
	// 4 MiB.
	ChunkBytes int

	// RegionBytes is the most that one registration covers, 4 KiB or more; the device's
	// own limit holds, too. 0 means 2 GiB.
	RegionBytes uint64

	// TrafficClass is that of the packets of RoCE, 0 to 255: the DSCP times 4. It
	// chooses the lossless class where the network has one.
	TrafficClass int

	// ServiceLevel is that of the packets, 0 to 15 on InfiniBand, 0 to 7 on RoCE.
	ServiceLevel int

	// Timeout is when a packet without an answer is sent again: 4.096 us << Timeout, 1
	// to 20. 0 means 14, 67 ms.
	Timeout int

	// Retries is how often, 1 to 6. 0 means 6. 7 is for ever on some devices.
	Retries int

	// StrictOrdering registers memory without relaxed ordering, which some hosts need
	// to reach the rate of the link. Arrivals are right with either.
	StrictOrdering bool

	// WindowWrites is how many writes a session accepts before ErrFull. 0 means 256.
	WindowWrites int

	// StallTimeout is how long the chain that is next to complete may take, whatever the
	// device says. 0 means 6s.
	StallTimeout time.Duration

	// GoneTimeout is how long the peer may take to destroy its end of a stripe that was
	// lost, and this side's device to tell of what the peer says has landed. 0 means 3s.
	GoneTimeout time.Duration

	// DestroyTimeout is how long a fence waits for the device to destroy a queue pair.
	// 0 means 5s.
	DestroyTimeout time.Duration

	// DialTimeout is how long the channel may take to be made. 0 means 5s.
	DialTimeout time.Duration

	// HandshakeTimeout is how long one side waits for the other's Connect, and for the
	// queue pairs. 0 means 10s.
	HandshakeTimeout time.Duration

	// Sysfs is where the kernel tells of devices. "" means /sys.
	Sysfs string

	// Log is told what was chosen and what was lost; nil: nobody is.
	Log func(level Level, text string)

	fabric fabric        // nil: libibverbs
	drain  time.Duration // drainTimeout, but in tests
}

// Level is how much a message matters.
type Level uint8

const (
	// Debug is what was not chosen, and why.
	Debug Level = iota
	// Info is what an operator wants to have seen once.
	Info
	// Warn is what makes it slower than it could be.
	Warn
)

// Check says which setting cannot be. Bind may be missing.
func (c Config) Check() error {
	c.Bind = cmp.Or(c.Bind, "127.0.0.1:0")
	return c.resolve()
}

// resolve fills in what is not given, and refuses what cannot be.
func (c *Config) resolve() error {
	c.QueuePairs = cmp.Or(c.QueuePairs, queuePairsDefault)
	c.ChunkBytes = cmp.Or(c.ChunkBytes, chunkBytesDefault)
	c.RegionBytes = cmp.Or(c.RegionBytes, regionBytesDefault)
	c.Timeout = cmp.Or(c.Timeout, timeoutDefault)
	c.Retries = cmp.Or(c.Retries, retriesDefault)
	c.WindowWrites = cmp.Or(c.WindowWrites, windowWritesDefault)
	c.Sysfs = cmp.Or(c.Sysfs, "/sys")
	c.drain = cmp.Or(c.drain, drainTimeout)
	if c.Log == nil {
		c.Log = func(Level, string) {}
	}
	for _, n := range []struct {
		name           string
		got, low, high int
	}{
		{"queue pairs", c.QueuePairs, 1, queuePairsMax},
		{"chunk bytes", c.ChunkBytes, chunkBytesMin, chunkBytesMax},
		{"traffic class", c.TrafficClass, 0, 255},
		{"service level", c.ServiceLevel, 0, 15},
		{"timeout", c.Timeout, 1, timeoutMax},
		{"retries", c.Retries, 1, retriesMost},
		{"window writes", c.WindowWrites, 1, 1 << 20},
	} {
		if n.got < n.low || n.got > n.high {
			return fmt.Errorf("verbs: %s: got %d, want %d to %d", n.name, n.got, n.low, n.high)
		}
	}
	if c.RegionBytes < regionBytesMin {
		return fmt.Errorf("verbs: region bytes: got %d, want at least %d", c.RegionBytes, regionBytesMin)
	}
	c.RegionBytes &^= regionBytesMin - 1
	for _, d := range []struct {
		name  string
		got   *time.Duration
		usual time.Duration
	}{
		{"stall timeout", &c.StallTimeout, stallTimeoutDefault}, {"gone timeout", &c.GoneTimeout, goneTimeoutDefault},
		{"destroy timeout", &c.DestroyTimeout, destroyTimeoutDefault}, {"dial timeout", &c.DialTimeout, dialTimeoutDefault},
		{"handshake timeout", &c.HandshakeTimeout, handshakeTimeoutDefault},
	} {
		*d.got = cmp.Or(*d.got, d.usual)
		if *d.got < time.Millisecond || *d.got > 24*time.Hour {
			return fmt.Errorf("verbs: %s: got %s, want 1ms to 24h", d.name, *d.got)
		}
	}
	host, _, err := net.SplitHostPort(c.Bind)
	if err != nil {
		return fmt.Errorf("verbs: bind: %w", err)
	}
	if c.AdvertiseHost != "" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("verbs: advertise host: bind is %q, which nobody can dial: want a host", c.Bind)
	}
	c.AdvertiseHost = host
	return nil
}
