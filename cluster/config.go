package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// DefaultPort is the gossip port where none is named, UDP and TCP.
const DefaultPort = 7946

// Config is how a node takes part in gossip. Name and Address are required; the
// zero value of everything else is ready to use.
type Config struct {
	// Name is the node's own, unique in the cluster, the same over restarts.
	Name string

	// Incarnation is this process life. It must differ from all earlier ones of
	// this name, and should be higher. 0 means NewIncarnation().
	Incarnation uint64

	// Address is where this node's actors are reached, host:port.
	Address string

	// Bind is the ip:port to listen on, UDP and TCP; an IPv6 address is in
	// brackets. Port 0 takes a free one. "" means 0.0.0.0:7946.
	Bind string

	// Advertise is the ip or ip:port that others are told. "" means the address of
	// Bind, or where that is a wildcard, a private address of this machine, which
	// the log names. Without a port, or with port 0, it is the port of Bind.
	Advertise string

	// Seeds are host or host:port of nodes to join by. They are tried for ever, so
	// that it does not matter who starts first. The node itself may be among them.
	Seeds []string

	// Label keeps clusters apart that reuse addresses: others are not heard. ""
	// is a label like any other.
	Label string

	// VersionMin and VersionMax are the protocol versions that this node speaks. A
	// node with none in common is not a member. 0 means 1.
	VersionMin, VersionMax uint32

	// Key encrypts gossip: 16, 24 or 32 bytes, see ReadKey. nil means plain text,
	// and everybody who reaches the port can join.
	Key []byte

	// Timing is how fast gossip is.
	Timing Timing

	// Log gets who joins and leaves, and the warnings of gossip itself. nil means
	// nothing is logged.
	Log *zap.Logger

	// Transport carries the packets in place of UDP and TCP, for simulations; Bind
	// and Advertise are not used then. nil in production.
	Transport memberlist.Transport
}

// Timing is how fast gossip is. With the defaults a crash is seen after about 3 s:
// one or two probes, and SuspicionMult * max(1, log10 n) * ProbeInterval of doubt.
// The zero value of a field means its default.
type Timing struct {
	// ProbeInterval is how often one other node is probed. Shorter sees a crash
	// sooner; longer forgives a starved process. 0 means 500ms.
	ProbeInterval time.Duration
	// ProbeTimeout is how long an answer may take before others are asked to
	// probe too. Want about the 99th percentile of the round trip; less than
	// ProbeInterval. 0 means 200ms.
	ProbeTimeout time.Duration
	// SuspicionMult is how many probe intervals a suspect has to defend itself. 0
	// means 4.
	SuspicionMult int
	// GossipInterval is how often news is passed on. 0 means 100ms.
	GossipInterval time.Duration
	// StreamTimeout bounds one exchange of whole state, and so one attempt to
	// join. 0 means 3s.
	StreamTimeout time.Duration
	// Rejoin is how often seeds and lost members are tried. A healed partition
	// closes within about that. 0 means 5s.
	Rejoin time.Duration
	// Forget is how long a dead member's address is tried; seeds are tried for
	// ever. 0 means 1h.
	Forget time.Duration
}

// Resolve is t with defaults in the zero fields, or what is wrong with it.
func (t Timing) Resolve() (Timing, error) {
	for _, f := range []struct {
		value *time.Duration
		name  string
		zero  time.Duration
	}{
		{&t.ProbeInterval, "probe interval", 500 * time.Millisecond},
		{&t.ProbeTimeout, "probe timeout", 200 * time.Millisecond},
		{&t.GossipInterval, "gossip interval", 100 * time.Millisecond},
		{&t.StreamTimeout, "stream timeout", 3 * time.Second},
		{&t.Rejoin, "rejoin", 5 * time.Second},
		{&t.Forget, "forget", time.Hour},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < 0 {
			return t, fmt.Errorf("timing: %s: got %v, want above 0", f.name, *f.value)
		}
	}
	if t.SuspicionMult == 0 {
		t.SuspicionMult = 4
	}
	if t.SuspicionMult < 0 {
		return t, fmt.Errorf("timing: suspicion mult: got %d, want above 0", t.SuspicionMult)
	}
	if t.ProbeTimeout >= t.ProbeInterval {
		return t, fmt.Errorf("timing: probe timeout: got %v, want below the probe interval of %v", t.ProbeTimeout, t.ProbeInterval)
	}
	return t, nil
}

// NewIncarnation makes an incarnation for this process life: microseconds of the
// clock above 12 random bits. Later ones are higher while the clock does not go
// back; nothing but speed depends on it.
func NewIncarnation() uint64 {
	return uint64(time.Now().UnixMicro())<<12 | rand.Uint64N(1<<12)
}

// resolve is the configuration with its zero values replaced, or which field
// cannot be.
func (c Config) resolve() (Config, error) {
	if c.Incarnation == 0 {
		c.Incarnation = NewIncarnation()
	}
	if c.VersionMin == 0 {
		c.VersionMin = 1
	}
	if c.VersionMax == 0 {
		c.VersionMax = c.VersionMin
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Bind == "" {
		c.Bind = net.JoinHostPort("0.0.0.0", strconv.Itoa(DefaultPort))
	}
	if err := checkMember(c.self("")); err != nil {
		return c, fmt.Errorf("cluster: %w", err)
	}
	if len(c.Key) > 0 {
		if err := checkKey(c.Key); err != nil {
			return c, fmt.Errorf("cluster: key: %w", err)
		}
	}
	var err error
	if c.Timing, err = c.Timing.Resolve(); err != nil {
		return c, fmt.Errorf("cluster: %w", err)
	}
	seeds := make([]string, len(c.Seeds)) // not the caller's
	for i, s := range c.Seeds {
		if seeds[i], err = seedAddress(s); err != nil {
			return c, fmt.Errorf("cluster: %w", err)
		}
	}
	c.Seeds = seeds
	return c, nil
}

func (c Config) self(gossip string) Member {
	return Member{
		Name: c.Name, Incarnation: c.Incarnation, Address: c.Address, Gossip: gossip,
		Label: c.Label, VersionMin: c.VersionMin, VersionMax: c.VersionMax,
	}
}

// seedAddress is a seed with its port.
func seedAddress(seed string) (string, error) {
	full := seed
	if _, _, err := net.SplitHostPort(seed); err != nil {
		full = net.JoinHostPort(strings.Trim(seed, "[]"), strconv.Itoa(DefaultPort))
	}
	if err := checkAddress("seed", full); err != nil {
		return "", err
	}
	return full, nil
}

// endpoint is where to listen and what to tell others. A tell port of 0 means the
// one that is listened on.
type endpoint struct {
	bind     netip.Addr
	bindPort int
	tell     netip.Addr
	tellPort int
	chosen   bool // tell was picked among this machine's addresses
}

// endpoint works out Bind and Advertise; local gives this machine's addresses.
func (c Config) endpoint(local func() ([]net.Addr, error)) (endpoint, error) {
	bind, err := netip.ParseAddrPort(c.Bind)
	if err != nil {
		return endpoint{}, fmt.Errorf("cluster: bind: got %q, want ip:port", c.Bind)
	}
	e := endpoint{bind: bind.Addr(), bindPort: int(bind.Port()), tell: bind.Addr(), tellPort: int(bind.Port())}
	if c.Advertise != "" {
		e.tell, e.tellPort, err = parseAdvertise(c.Advertise)
		if err != nil {
			return endpoint{}, err
		}
		if e.tellPort == 0 {
			e.tellPort = e.bindPort
		}
	}
	if e.tell.IsUnspecified() {
		if c.Advertise != "" {
			return endpoint{}, fmt.Errorf("cluster: advertise: got %q, want an address that others can reach", c.Advertise)
		}
		if e.tell, err = privateAddress(local); err != nil {
			return endpoint{}, err
		}
		e.chosen = true
	}
	return e, nil
}

func parseAdvertise(s string) (netip.Addr, int, error) {
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return ip, 0, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("cluster: advertise: got %q, want an IP address, with or without a port", s)
	}
	return ap.Addr(), int(ap.Port()), nil
}

// privateAddress is the first private address of this machine, IPv4 before IPv6.
func privateAddress(local func() ([]net.Addr, error)) (netip.Addr, error) {
	addresses, err := local()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("cluster: advertise: addresses of this machine: %w", err)
	}
	var six netip.Addr
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsPrivate() {
			continue
		}
		if ip := prefix.Addr().Unmap(); ip.Is4() {
			return ip, nil
		} else if !six.IsValid() {
			six = ip
		}
	}
	if six.IsValid() {
		return six, nil
	}
	return netip.Addr{}, fmt.Errorf("cluster: advertise: bind is a wildcard and this machine has no private address; " +
		"want the address that others reach this node by")
}
