package node

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/cluster"
	"kvferry/pairing"
	"kvferry/transfer"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/tcp"
	"kvferry/transport/rdma/verbs"
)

// Config is one node. Name is required; the zero value of everything else is
// ready to use.
type Config struct {
	// Name is the node's own, unique in the cluster and the same over restarts: 1
	// to 64 of [A-Za-z0-9._-].
	Name string

	// Bind is the host:port of gossip, UDP and TCP; an IPv6 address is in
	// brackets. "" means 0.0.0.0:7946. Port 0 takes a free one.
	Bind string

	// ActorPort, DataPort and VerbsPort are the TCP ports, at the host of Bind, of the
	// actors, of the tcp provider and of the verbs provider, which makes its connections
	// over it. 0 means one, two and three above the port of Bind, or free ones where that
	// is 0.
	ActorPort, DataPort, VerbsPort int

	// Advertise is the host or host:port that peers are told instead of Bind's:
	// the gossip port is its own, the others are those of this node. "" means
	// Bind's host, or where that is a wildcard, an address of this machine.
	Advertise string

	// Join is host:port of the gossip of other nodes. They are tried for ever.
	Join []string

	// GossipKey encrypts gossip: 16, 24 or 32 bytes. nil means plain text.
	GossipKey []byte

	// Cluster is a label that keeps clusters apart which reuse addresses.
	Cluster string

	// Timing is how fast gossip is.
	Timing cluster.Timing

	// Providers carry the data, the best first: each pair of nodes uses the first that
	// both have and that connects them. nil means shm, then verbs where there are RDMA
	// devices, then tcp. A node with memory of devices has verbs alone.
	Providers []string

	// Verbs is the settings of the verbs provider. The node fills in Bind and
	// AdvertiseHost, and Log where it is nil. Of Devices that are named, each must be had.
	Verbs verbs.Config

	// Checksum is which frames of the tcp provider have a sum that is checked before an
	// arrival is told: off, sampled or full. "" means sampled, one of 16.
	Checksum tcp.Checksum

	// Rooms and Links are the limits and timeouts of rooms and of node pairs.
	Rooms transfer.Limits
	Links pairing.Limits

	// Log gets what operators read. nil: nothing is logged.
	Log *zap.Logger

	// Embed runs the node in a host program's actor system; the zero value makes
	// one of its own.
	Embed Embed

	anyProvider bool // Providers was nil
}

// Embed is what a host program, or a simulation, provides in place of what the
// node would make itself.
type Embed struct {
	// System is the host's. Its address is how peers reach its actors: the host
	// has started remoting. nil: the node makes a system, and hardened remoting.
	System *actor.ActorSystem

	// PeerDown is told the address of a node that gossip calls gone, so that the
	// host's remoting gives the connection up. nil: nobody is told.
	PeerDown func(address string)

	// Prefix is the name of the root actor, the same on all nodes that talk to
	// each other. "" means kvferry.
	Prefix string

	// Providers replace those that Config names, in order of preference. They are
	// closed with the node.
	Providers []rdma.Provider

	// Gossip carries gossip in place of UDP and TCP.
	Gossip memberlist.Transport

	// Clock and Base put the actors under a simulation.
	Clock actors.Clock
	Base  []actor.PropsOption
}

// resolve checks the config and fills in what is not given.
func (c Config) resolve() (Config, error) {
	if err := cluster.CheckName("name", c.Name); err != nil {
		return c, err
	}
	if c.Bind == "" {
		c.Bind = net.JoinHostPort("0.0.0.0", strconv.Itoa(cluster.DefaultPort))
	}
	host, port, err := splitBind(c.Bind)
	if err != nil {
		return c, err
	}
	if port != 0 {
		if c.ActorPort == 0 {
			c.ActorPort = port + 1
		}
		if c.DataPort == 0 {
			c.DataPort = port + 2
		}
		if c.VerbsPort == 0 {
			c.VerbsPort = port + 3
		}
	}
	for _, p := range []struct {
		name string
		port int
	}{{"actor port", c.ActorPort}, {"data port", c.DataPort}, {"verbs port", c.VerbsPort}} {
		if p.port < 0 || p.port > 65535 {
			return c, fmt.Errorf("%s: got %d, want 0 to 65535", p.name, p.port)
		}
	}
	if c.Cluster == "" {
		c.Cluster = actors.DefaultPrefix
	}
	if err := cluster.CheckName("cluster", c.Cluster); err != nil {
		return c, err
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Embed.Clock == nil {
		c.Embed.Clock = actors.RealClock{}
	}
	if err := c.resolveProviders(); err != nil {
		return c, err
	}
	if err := c.Checksum.Check(); err != nil {
		return c, err
	}
	if err := c.Verbs.Check(); err != nil {
		return c, err
	}
	if len(c.Verbs.Devices) > 0 && !slices.Contains(c.Providers, "verbs") {
		return c, fmt.Errorf("verbs: devices: %d are named, and providers are %s: want verbs among them", len(c.Verbs.Devices), strings.Join(c.Providers, ", "))
	}
	if c.Rooms, err = c.Rooms.Resolve(); err != nil {
		return c, err
	}
	c.Links = c.Links.Resolve()
	if c.Advertise == "" {
		c.Advertise, err = advertised(host)
	}
	return c, err
}

func splitBind(bind string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(bind)
	if err != nil {
		return "", 0, fmt.Errorf("bind: got %q, want host:port", bind)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("bind: got port %q, want 0 to 65535", text)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if net.ParseIP(host) == nil {
		return "", 0, fmt.Errorf("bind: got host %q, want an IP address of this machine", host)
	}
	return host, port, nil
}

// advertised is the host that peers dial when the node listens on host. Of a
// wildcard it is the first address of this machine that is not loopback.
func advertised(host string) (string, error) {
	if !net.ParseIP(host).IsUnspecified() {
		return host, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("advertise: find an address of this machine: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", fmt.Errorf("advertise: %s is every address of this machine, and none of them is one that peers can dial: name one", host)
}

// advertisedHost is the host part of Advertise.
func (c *Config) advertisedHost() string {
	if host, _, err := net.SplitHostPort(c.Advertise); err == nil {
		return host
	}
	return strings.Trim(c.Advertise, "[]")
}
