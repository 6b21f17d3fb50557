package tcp

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Config is one provider. Bind is required; the zero value of everything else is
// ready to use.
type Config struct {
	// Bind is the host:port to listen at. Port 0 takes a free one.
	Bind string

	// AdvertiseHost is the host that peers dial. "" means the host of Bind, which is
	// then not a wildcard.
	AdvertiseHost string

	// Connections is how many connections this side makes to a peer that it dials:
	// 1 to 64. 0 means 4.
	Connections int

	// FrameBytes is the payload of one frame at most, 4 KiB to 64 MiB. Larger costs
	// less for each byte; smaller lets tags take turns sooner. 0 means 4 MiB.
	FrameBytes int

	// WindowBytes is how much of one connection may wait for its ack, at least
	// FrameBytes. 0 means two frames.
	WindowBytes int

	// Checksum is which frames that this side sends have a CRC32C that the receiver
	// checks before it tells of an arrival. A frame that fails it costs the session,
	// and what was in flight is sent again. "" means ChecksumSampled.
	Checksum Checksum

	// WindowWrites is how many writes a session accepts before ErrFull. 0 means 256.
	WindowWrites int

	// DialTimeout is how long one connection may take to be made. 0 means 5s.
	DialTimeout time.Duration

	// HandshakeTimeout is how long one side waits for the other's Connect. 0 means
	// 10s.
	HandshakeTimeout time.Duration

	// UserTimeout is how long sent bytes may stay unacknowledged by the peer's
	// kernel, also because the peer does not read, before the session is lost. 0
	// means 20s.
	UserTimeout time.Duration

	// KeepAlive is the time between probes of an idle connection; after three
	// without an answer the session is lost. 0 means 5s.
	KeepAlive time.Duration
}

// Checksum is a policy of sums.
type Checksum string

const (
	ChecksumOff     Checksum = "off"     // TCP's own 16 bits, and those of the links
	ChecksumSampled Checksum = "sampled" // one frame of 16: finds broken hardware
	ChecksumFull    Checksum = "full"    // every frame: no byte is used that was not checked
)

// Check refuses what is no policy; "" is the default.
func (p Checksum) Check() error {
	switch p {
	case "", ChecksumOff, ChecksumSampled, ChecksumFull:
		return nil
	}
	return fmt.Errorf("checksum: got %q, want off, sampled or full", string(p))
}

// resolve fills in what is not given, and refuses what cannot be.
func (c *Config) resolve() error {
	orDefault(&c.Connections, connectionsDefault)
	orDefault(&c.FrameBytes, frameBytesDefault)
	orDefault(&c.WindowBytes, 2*c.FrameBytes)
	orDefault(&c.WindowWrites, windowWritesDefault)
	orDefault(&c.DialTimeout, dialTimeoutDefault)
	orDefault(&c.HandshakeTimeout, handshakeTimeoutDefault)
	orDefault(&c.UserTimeout, userTimeoutDefault)
	orDefault(&c.KeepAlive, keepAliveDefault)
	for _, n := range []struct {
		name           string
		got, low, high int
	}{
		{"connections", c.Connections, 1, connectionsMax},
		{"frame bytes", c.FrameBytes, frameBytesMin, frameBytesMax},
		{"window bytes", c.WindowBytes, c.FrameBytes, 1 << 40},
		{"window writes", c.WindowWrites, 1, 1 << 20},
	} {
		if n.got < n.low || n.got > n.high {
			return fmt.Errorf("tcp: %s: got %d, want %d to %d", n.name, n.got, n.low, n.high)
		}
	}
	c.Checksum = cmp.Or(c.Checksum, ChecksumSampled)
	if err := c.Checksum.Check(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	for _, d := range []struct {
		name string
		got  time.Duration
	}{
		{"dial timeout", c.DialTimeout}, {"handshake timeout", c.HandshakeTimeout},
		{"user timeout", c.UserTimeout}, {"keep-alive", c.KeepAlive},
	} {
		if d.got < time.Millisecond || d.got > 24*time.Hour {
			return fmt.Errorf("tcp: %s: got %s, want 1ms to 24h", d.name, d.got)
		}
	}
	host, _, err := net.SplitHostPort(c.Bind)
	if err != nil {
		return fmt.Errorf("tcp: bind: %w", err)
	}
	if c.AdvertiseHost != "" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("tcp: advertise host: bind is %q, which nobody can dial: want a host", c.Bind)
	}
	c.AdvertiseHost = host
	return nil
}

// sums reports whether a frame, by its number on its connection, has a sum.
func (c *Config) sums(number uint64) bool {
	return c.Checksum == ChecksumFull || c.Checksum == ChecksumSampled && number%sampleEvery == 1
}

func orDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// advertised is where peers dial, given the address that the listener has.
func (c *Config) advertised(listener net.Addr) string {
	return net.JoinHostPort(c.AdvertiseHost, strconv.Itoa(listener.(*net.TCPAddr).Port))
}
