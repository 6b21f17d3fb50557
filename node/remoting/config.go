// Package remoting carries actor messages between nodes: the actor framework's own
// remoting, made safe to listen with. As it comes, any peer can stop any actor, or
// the process; large batches break healthy connections; and shutting it down can
// crash. Here
//
//   - a firewall lets in only KVFerry's messages, for the actors of peers, of known
//     types, from the address that the connection is from;
//   - a gate in front of every foreign PID turns what cannot cross (not a protobuf,
//     too large, closed) into dead letters, where the framework would drop it
//     unsaid or lose the connection;
//   - panics of handlers end one stream, not the process;
//   - a peer that hangs is noticed, in KeepaliveTime and KeepaliveTimeout.
//
// What stays true of it: delivery is at most once, unflushed, possibly late and to
// another incarnation; in order from one sender to one target while a connection
// lasts. A message is not changed after it was sent: it is marshalled later.
package remoting

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Config is how a node listens for other nodes' actors. Bind is required; the zero
// value of everything else is ready to use.
type Config struct {
	// Bind is the host:port to listen on; an IPv6 address is in brackets. Port 0
	// takes a free one.
	Bind string

	// Advertise is the host or host:port that peers dial and that PIDs carry. ""
	// means that of Bind, which is then no wildcard. Without a port, or with port
	// 0, it is the port that is listened on.
	Advertise string

	// PeerPrefix is what the ids of the actors start with that other nodes may
	// address. "" means "kvferry/peers/".
	PeerPrefix string

	// TLS makes both sides prove who they are. nil means plain text, and whoever
	// reaches the port can talk to the peer actors.
	TLS *TLS

	// MessageMax is the largest message, in bytes; equal on all nodes. Up to 64 of
	// them travel in one frame. 0 means 256 KiB.
	MessageMax int

	// KeepaliveTime is how long a connection may be silent before the peer is
	// asked whether it is there; 10s is the least. KeepaliveTimeout is how long it
	// may take to answer. Shorter sees a hung peer sooner. 0 means 10s and 3s.
	KeepaliveTime, KeepaliveTimeout time.Duration

	// SequenceBase is where the numbers of unnamed actors begin. It must differ
	// from life to life of the process, or a late answer meant for the one before
	// is taken for one of this. 0 means the clock, in nanoseconds.
	SequenceBase uint64
}

// Times that are not settings.
const (
	keepaliveTimeDefault    = 10 * time.Second // gRPC allows no less
	keepaliveTimeoutDefault = 3 * time.Second

	// handshakeTimeout is how long a connection may take to open, TLS included.
	handshakeTimeout = 10 * time.Second

	// pingsLeast is how far apart a peer's pings have to be: half of what peers do.
	pingsLeast = 5 * time.Second

	// dialLeast is how long one attempt to connect may take at least.
	dialLeast = time.Second

	// endWait is how long Close waits for the readers of connections that it has cut.
	endWait = time.Second
)

// batch is how many messages one frame may hold.
const batch = 64

// envelope is the most that a message of KVFerry adds in a frame.
const envelope = 1 << 10

// frameMax is the largest frame, with slack for the names in it.
func (c Config) frameMax() int { return batch*(c.MessageMax+envelope) + 1<<20 }

// resolve is the configuration with its zero values replaced, or which field
// cannot be.
func (c Config) resolve() (Config, error) {
	if c.PeerPrefix == "" {
		c.PeerPrefix = "kvferry/peers/"
	}
	if !strings.HasSuffix(c.PeerPrefix, "/") {
		return c, fmt.Errorf("remoting: peer prefix: got %q, want it to end in a slash", c.PeerPrefix)
	}
	if c.MessageMax == 0 {
		c.MessageMax = 256 << 10
	}
	if c.MessageMax < 1<<10 || c.MessageMax > 16<<20 {
		return c, fmt.Errorf("remoting: message max: got %d bytes, want 1 KiB to 16 MiB", c.MessageMax)
	}
	if c.KeepaliveTime == 0 {
		c.KeepaliveTime = keepaliveTimeDefault
	}
	if c.KeepaliveTimeout == 0 {
		c.KeepaliveTimeout = keepaliveTimeoutDefault
	}
	if c.KeepaliveTime < keepaliveTimeDefault || c.KeepaliveTimeout < 0 {
		return c, fmt.Errorf("remoting: keepalive: got %v and %v, want at least 10s and above 0", c.KeepaliveTime, c.KeepaliveTimeout)
	}
	if c.SequenceBase == 0 {
		c.SequenceBase = uint64(time.Now().UnixNano())
	}
	return c, nil
}

// place is where to listen and what to tell.
type place struct {
	host string
	port int // 0: to be chosen
	tell string
	at   int // 0: the port that is listened on
}

func (c Config) place() (place, error) {
	host, port, err := splitPort("bind", c.Bind)
	if err != nil {
		return place{}, err
	}
	p := place{host: host, port: port, tell: host, at: port}
	if c.Advertise != "" {
		if p.tell, p.at, err = splitAdvertise(c.Advertise); err != nil {
			return place{}, err
		}
		if p.at == 0 {
			p.at = port
		}
	}
	ip, err := netip.ParseAddr(p.tell)
	if p.tell == "" || err == nil && ip.IsUnspecified() {
		return place{}, fmt.Errorf("remoting: advertise: got %q with bind %q, want the host that peers dial", c.Advertise, c.Bind)
	}
	return p, nil
}

// bindHost is the host as the framework wants it, which puts a colon and the port
// behind it.
func (p place) bindHost() string {
	if strings.Contains(p.host, ":") {
		return "[" + p.host + "]"
	}
	return p.host
}

// address is what PIDs carry, when port is listened on.
func (p place) address(port int) string {
	if p.at != 0 {
		port = p.at
	}
	return net.JoinHostPort(p.tell, strconv.Itoa(port))
}

func splitPort(what, s string) (string, int, error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("remoting: %s: got %q, want host:port", what, s)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("remoting: %s: got port %q, want 0 to 65535", what, text)
	}
	return host, int(port), nil
}

func splitAdvertise(s string) (string, int, error) {
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return ip.String(), 0, nil
	}
	if !strings.Contains(s, ":") {
		return s, 0, nil
	}
	return splitPort("advertise", s)
}
