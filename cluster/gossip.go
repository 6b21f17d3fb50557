package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// ErrClosed is what a closed Gossip answers.
var ErrClosed = errors.New("cluster: closed")

// leaveWait is how long Leave waits at most. Passing the goodbye on takes a few
// gossip intervals; where all leave together, nobody is left to take it.
const leaveWait = time.Second

// exchangeEvery is how often whole state is exchanged with somebody: what gossip missed
// comes with it.
const exchangeEvery = 5 * time.Second

// asks is how often Ask asks.
const asks = 2

// Gossip is this node's part in the cluster.
type Gossip struct {
	// Fixed by Start.
	config Config
	self   Member
	list   *memberlist.Memberlist
	tell   func(Event)
	log    *zap.Logger
	inbox  *inbox
	cancel context.CancelFunc // ends the rejoin loop
	detach func() bool        // from the context of Start

	// Leave and Close, one at a time.
	ending sync.Mutex
	closed bool

	mu struct {
		sync.Mutex
		view  View
		alive map[string]string    // gossip address by gossip name, of all that gossip holds alive
		lost  map[string]time.Time // gossip addresses of the dead, and since when
		left  map[string]struct{}  // gossip names that said goodbye

		closing bool // nobody is asked any more
	}
	rejoining sync.WaitGroup
	asking    sync.WaitGroup // begun under mu while not closing
	telling   sync.WaitGroup
}

// Start joins the cluster and tells, in order and from one goroutine, who comes
// and goes; this node itself is not told. It does not wait for a seed: those are
// tried for ever. When ctx is done, the Gossip closes.
//
// tell must not block for long, and must not call Close or Leave.
func Start(ctx context.Context, config Config, tell func(Event)) (*Gossip, error) {
	c, err := config.resolve()
	if err != nil {
		return nil, err
	}
	g := &Gossip{config: c, tell: tell, log: c.Log, inbox: newInbox()}
	conf, err := g.listConfig()
	if err != nil {
		return nil, err
	}
	if g.list, err = memberlist.Create(conf); err != nil {
		return nil, fmt.Errorf("cluster: gossip: %w", err)
	}
	g.self = c.self(g.list.LocalNode().Address())
	g.mu.view = NewView(g.self)
	g.mu.alive = map[string]string{}
	g.mu.lost = map[string]time.Time{}
	g.mu.left = map[string]struct{}{}
	g.log.Info("gossip started",
		zap.Stringer("member", g.self), zap.String("gossip", g.self.Gossip),
		zap.String("actors", g.self.Address), zap.Bool("encrypted", len(c.Key) > 0))

	inner, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.telling.Go(g.run)
	g.rejoining.Go(func() { g.rejoin(inner) })
	g.detach = context.AfterFunc(ctx, func() { _ = g.Close() })
	return g, nil
}

// listConfig is the configuration of memberlist.
func (g *Gossip) listConfig() (*memberlist.Config, error) {
	c := g.config
	meta, err := encodeMeta(c.self(""))
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	conf := memberlist.DefaultLANConfig()
	conf.Name = gossipName(c.self(""))
	conf.Label = c.Label
	conf.SecretKey = c.Key
	conf.Logger = bridge(c.Log.Named("gossip"))
	conf.Delegate = delegate{meta, g.inbox}
	conf.Events = delegate{meta, g.inbox}
	conf.ProbeInterval = c.Timing.ProbeInterval
	conf.ProbeTimeout = c.Timing.ProbeTimeout
	conf.SuspicionMult = c.Timing.SuspicionMult
	conf.SuspicionMaxTimeoutMult = 3 // a suspect that nobody else suspects: at most three times as long
	conf.GossipInterval = c.Timing.GossipInterval
	conf.TCPTimeout = c.Timing.StreamTimeout
	// News is passed on at random and may miss a node. More repeats make that rare;
	// what is missed comes with the next exchange of whole state.
	conf.RetransmitMult = 6
	conf.PushPullInterval = exchangeEvery
	conf.AwarenessMaxMultiplier = 4
	if c.Transport != nil {
		conf.Transport = c.Transport
		return conf, nil
	}
	e, err := c.endpoint(net.InterfaceAddrs)
	if err != nil {
		return nil, err
	}
	if e.chosen {
		c.Log.Info("gossip advertises a private address, for it listens on all",
			zap.String("bind", c.Bind), zap.Stringer("advertise", e.tell))
	}
	conf.BindAddr, conf.BindPort = e.bind.String(), e.bindPort
	conf.AdvertiseAddr, conf.AdvertisePort = e.tell.String(), e.tellPort
	return conf, nil
}

// Self is this node as others see it.
func (g *Gossip) Self() Member { return g.self }

// Members is everybody who is up, this node included, by name.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.view.Members()
}

// Ask asks a member directly whether it is there, and calls silent if it does not
// answer, from a goroutine of its own: within two ProbeTimeouts, for one packet may get
// lost. It does not block. Who is not up is not asked. The view stays as it is: gossip as
// a whole finds out in its own time.
func (g *Gossip) Ask(name string, incarnation uint64, silent func(Member)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.mu.view.Members(), func(m Member) bool { return m.Name == name && m.Incarnation == incarnation })
	if i < 0 || g.mu.closing {
		return
	}
	m := g.mu.view.Members()[i]
	at, err := net.ResolveUDPAddr("udp", m.Gossip)
	if err != nil {
		return // gossip itself gave it, as ip:port
	}
	g.asking.Go(func() {
		for range asks {
			if _, err := g.list.Ping(gossipName(m), at); err == nil {
				return
			}
		}
		silent(m)
	})
}

// Leave says goodbye, so that others tell Left at once and do not look for this
// node any more. It returns when the goodbye is on its way, or after a second: one
// that nobody took reads as Dead. An error is the context's. Close is still to be
// called. What was told stays told: members do not go Down here because this node
// leaves.
func (g *Gossip) Leave(ctx context.Context) error {
	g.ending.Lock()
	defer g.ending.Unlock()
	if g.closed {
		return ErrClosed
	}
	wait := leaveWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	if wait <= 0 || ctx.Err() != nil {
		return fmt.Errorf("cluster: leave: %w", context.Cause(ctx))
	}
	g.cancel()
	for _, node := range g.list.Members() {
		if node.Name == gossipName(g.self) {
			continue
		}
		if err := g.list.SendBestEffort(node, []byte(goodbye+gossipName(g.self))); err != nil {
			g.log.Debug("goodbye did not leave", zap.String("to", node.Name), zap.Error(err))
		}
	}
	done := make(chan error, 1)
	g.rejoining.Go(func() { done <- g.list.Leave(wait) })
	select {
	case err := <-done:
		if err != nil { // it was not passed on in time
			g.log.Debug("goodbye was not passed on", zap.Error(err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cluster: leave: %w", context.Cause(ctx))
	}
}

// Close stops gossip without a goodbye, and waits until nothing of it runs. After
// it nothing is told. It may be called again.
func (g *Gossip) Close() error {
	g.ending.Lock()
	defer g.ending.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.detach()
	g.cancel()
	g.mu.Lock()
	g.mu.closing = true
	g.mu.Unlock()
	g.asking.Wait()
	g.rejoining.Wait() // before Shutdown: a Leave may not find it shut down
	// Probes are not joined by Shutdown. One lasts an interval, scaled by how
	// unwell this node believes to be.
	probe := g.config.Timing.ProbeInterval * time.Duration(g.list.GetHealthScore()+1)
	err := g.list.Shutdown()
	time.Sleep(probe)
	g.inbox.close()
	g.telling.Wait()
	if err != nil {
		return fmt.Errorf("cluster: close: %w", err)
	}
	return nil
}

// run is the one goroutine that tells.
func (g *Gossip) run() {
	for {
		notes, ok := g.inbox.take()
		if !ok {
			return
		}
		for _, n := range notes {
			for _, event := range g.apply(n) {
				g.tell(event)
			}
		}
	}
}
