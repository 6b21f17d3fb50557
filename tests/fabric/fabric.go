// Package fabric is a network in memory for tests of whole nodes in one process
// and in virtual time (testing/synctest): gossip packets and streams (Transport)
// and actor messages (Attach), with latency, loss, duplicates, cuts, heals and
// crashes. Hosts are named by their IP; one host may have both.
//
// It plays the contracts of the real ones: packets may be lost and reordered,
// actor messages are ordered per pair of nodes, copied when sent, at most once
// unless duplicates are asked for, and late where a cut held them back.
package fabric

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"
)

// Faults is what the network does to everything, from the moment it is set. The
// zero value is a perfect network without latency.
type Faults struct {
	// Latency is one way, plus up to Jitter.
	Latency, Jitter time.Duration
	// PacketLoss is the share of gossip packets that vanish, 0 to 1.
	PacketLoss float64
	// MessageLoss is the share of actor messages that vanish, 0 to 1.
	MessageLoss float64
	// MessageDuplicate is the share of actor messages that arrive twice, 0 to 1.
	MessageDuplicate float64
	// Hold keeps actor messages that a cut stops and delivers them after the heal,
	// late, as a connection does that survived. Without it they are lost.
	Hold bool
}

// DefaultFaults is a healthy local network.
var DefaultFaults = Faults{Latency: 200 * time.Microsecond}

// Net is one network. All methods may be called from any goroutine.
type Net struct {
	mu         sync.Mutex
	rng        *rand.Rand
	faults     Faults
	cut        map[route]bool
	prefix     string                // see Firewall
	transports map[string]*Transport // by address
	nodes      map[string]*Node      // by address
	links      map[route]*link       // by addresses
	streams    map[*stream]struct{}
}

// route is one direction, between hosts or between addresses.
type route struct{ from, to string }

// New makes a network with DefaultFaults. The seed decides what is lost, doubled
// and delayed; the order of goroutines it does not decide.
func New(seed uint64) *Net {
	return &Net{
		rng:        rand.New(rand.NewPCG(seed, 0)),
		faults:     DefaultFaults,
		cut:        map[route]bool{},
		transports: map[string]*Transport{},
		nodes:      map[string]*Node{},
		links:      map[route]*link{},
		streams:    map[*stream]struct{}{},
	}
}

// SetFaults replaces the faults for everything sent from now on.
func (n *Net) SetFaults(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// Firewall lets nodes take only what the real firewall lets in: KVFerry's message
// types, for actors whose ids begin with prefix ("kvferry/peers/"). Without it
// everything that is a protobuf arrives. Node.Dropped counts the rest.
func (n *Net) Firewall(prefix string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prefix = prefix
}

// Cut stops everything between two hosts, both ways, and breaks their streams.
func (n *Net) Cut(a, b string) {
	n.setCut(true, route{a, b}, route{b, a})
}

// CutOneWay stops what goes from one host to the other; the way back stays.
func (n *Net) CutOneWay(from, to string) {
	n.setCut(true, route{from, to})
}

// CutGossip stops gossip between two hosts, both ways, and not actor messages; CutMessages
// the other way about.
func (n *Net) CutGossip(a, b string) {
	n.setCut(true, route{gossipOnly + a, b}, route{gossipOnly + b, a})
}

// CutMessages stops actor messages between two hosts, both ways.
func (n *Net) CutMessages(a, b string) {
	n.setCut(true, route{messagesOnly + a, b}, route{messagesOnly + b, a})
}

// Split cuts every host of the one side from every host of the other.
func (n *Net) Split(left, right []string) {
	for _, a := range left {
		for _, b := range right {
			n.Cut(a, b)
		}
	}
}

// Heal undoes all cuts between two hosts.
func (n *Net) Heal(a, b string) {
	n.setCut(false, route{a, b}, route{b, a}, route{gossipOnly + a, b}, route{gossipOnly + b, a}, route{messagesOnly + a, b}, route{messagesOnly + b, a})
}

// HealAll undoes all cuts.
func (n *Net) HealAll() {
	n.mu.Lock()
	clear(n.cut)
	n.mu.Unlock()
	n.pumpAll()
}

func (n *Net) setCut(cut bool, routes ...route) {
	n.mu.Lock()
	for _, r := range routes {
		if !cut {
			delete(n.cut, r)
			continue
		}
		n.cut[r] = true
		for s := range n.streams {
			from := strings.TrimPrefix(r.from, gossipOnly)
			if s.between == (route{from, r.to}) || s.between == (route{r.to, from}) {
				n.breakLocked(s)
			}
		}
	}
	n.mu.Unlock()
	n.pumpAll()
}

// Crash takes a host away as a power cut does: nothing leaves it or reaches it any
// more, and nobody is told. Its address may be taken again at once by Transport
// and Attach. Actors on it run on, unheard; the test stops them.
func (n *Net) Crash(host string) { n.take(host, false) }

// Kill takes a host's processes away but leaves the host: who had a connection to
// its actors is told within the latency.
func (n *Net) Kill(host string) { n.take(host, true) }

func (n *Net) take(host string, tell bool) {
	n.mu.Lock()
	var transports []*Transport
	for _, t := range n.transports {
		if t.host == host {
			transports = append(transports, t)
		}
	}
	var nodes []*Node
	for _, d := range n.nodes {
		if hostOf(d.address) == host {
			nodes = append(nodes, d)
		}
	}
	for s := range n.streams {
		if s.between.from == host || s.between.to == host {
			n.breakLocked(s)
		}
	}
	n.mu.Unlock()
	for _, t := range transports {
		_ = t.Shutdown()
	}
	for _, d := range nodes {
		d.detach(tell)
	}
}

// What is cut alone, as it stands before the host that it goes from.
const (
	gossipOnly   = "gossip of "
	messagesOnly = "messages of "
)

// passesLocked says whether what goes from one host to the other arrives.
func (n *Net) passesLocked(what, from, to string) bool {
	return !n.cut[route{from, to}] && !n.cut[route{what + from, to}]
}

// delayLocked is the latency of the next thing sent.
func (n *Net) delayLocked() time.Duration {
	d := n.faults.Latency
	if n.faults.Jitter > 0 {
		d += time.Duration(n.rng.Int64N(int64(n.faults.Jitter)))
	}
	return d
}

func (n *Net) chanceLocked(share float64) bool { return share > 0 && n.rng.Float64() < share }

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
