// Package mem is a provider inside one process: a Network whose providers copy
// between registered memory. It keeps the contract of rdma without a socket, also
// in virtual time (testing/synctest), and does to writes what a bad day does: Fate
// and Cut for the network itself, Faults around any provider.
package mem

import (
	"fmt"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

// Config is how a network behaves. The zero value is ready to use: everything
// lands at once.
type Config struct {
	// Fate decides what happens to a write, from one provider's name to another's.
	// It is called once for each write, when its turn has come, by the goroutine
	// of its session. nil: it lands.
	Fate func(from, to string, w *rdma.Write) Fate

	// Window is how many writes a session accepts before Post says ErrFull. 0
	// means 256.
	Window int

	// ConnectTimeout is how long one side waits for the other to call Connect. 0
	// means 10s.
	ConnectTimeout time.Duration
}

// resolve fills in what is not given, and refuses what cannot be.
func (c Config) resolve() (Config, error) {
	if c.Window == 0 {
		c.Window = windowDefault
	}
	if c.Window < 0 {
		return c, fmt.Errorf("mem: window is %d writes, want at least 1", c.Window)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeoutDefault
	}
	if c.ConnectTimeout < 0 {
		return c, fmt.Errorf("mem: connect timeout is %s, want more than 0", c.ConnectTimeout)
	}
	return c, nil
}

// Fate is what happens to one write. The zero value lets it land at once. A
// refusal by the receiver comes before all but Delay.
type Fate struct {
	// Delay passes before the write begins: until then a Quiesce finds it not
	// begun. Writes of one session wait for each other.
	Delay time.Duration

	// Lost: it lands, but the sender hears Unknown.
	Lost bool

	// Vanish: the sender hears Unknown, and nothing lands.
	Vanish bool

	// Late: the sender hears Unknown at once, and what it wrote lands this much
	// later, unless the receiver has closed the grant or fenced the generation.
	Late time.Duration

	// Tear: half of it lands, then the link breaks as in Cut.
	Tear bool
}

const (
	windowDefault         = 256 // as many as the actors keep in flight with one peer, and some
	connectTimeoutDefault = 10 * time.Second

	// chunkBytes is how much is copied before the copier looks again at whether the
	// grant or the session is over: what Revoke and Fence wait for at most.
	chunkBytes = 1 << 20
)

// Network is where the providers of one process find each other.
type Network struct {
	config Config

	// mu guards everything of every provider that is not said to have a guard of
	// its own. It is never held while bytes are copied.
	mu        sync.Mutex
	providers map[string]*Provider // by endpoint
	named     uint64               // providers ever made
	cut       map[link]bool
}

// link is two names of providers, in order.
type link struct{ a, b string }

func linkOf(a, b string) link {
	if a > b {
		a, b = b, a
	}
	return link{a, b}
}

// NewNetwork is a network without providers.
func NewNetwork(c Config) (*Network, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	return &Network{config: c, providers: map[string]*Provider{}, cut: map[link]bool{}}, nil
}

// Provider makes a provider. The name is for Fate and Cut; the endpoint is another
// one for each provider, so that who comes back is not taken for who left.
func (n *Network) Provider(name string) *Provider {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.named++
	p := &Provider{
		net: n, name: name, endpoint: fmt.Sprintf("mem:%s/%d", name, n.named),
		events: rdma.NewEvents(), regions: rdma.NewRegions(), fences: rdma.NewFences(),
		sessions: map[string]*session{}, grants: map[rdma.GrantID]*grant{},
	}
	p.tags = rdma.NewTags(p.fences)
	n.providers[p.endpoint] = p
	return p
}

// Cut breaks the link between all providers of two names, until Heal: their
// sessions are Disconnected, and no new one comes to be.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutLocked(a, b)
	n.cut[linkOf(a, b)] = true
}

func (n *Network) cutLocked(a, b string) {
	for _, p := range n.providers {
		for _, s := range p.sessions { // each is broken by itself, their order is nobody's
			if s.peer != nil && linkOf(p.name, s.peer.owner.name) == linkOf(a, b) {
				s.breakLocked(fmt.Errorf("mem: the link between %s and %s is cut", a, b))
			}
		}
	}
}

// Heal ends Cut. Sessions that were cut stay down.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cut, linkOf(a, b))
}
