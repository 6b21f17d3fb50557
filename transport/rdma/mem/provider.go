package mem

import (
	"context"
	"fmt"
	"sync"

	"kvferry/transport/rdma"
)

// Provider is one node's side of a Network.
type Provider struct {
	// Fixed by Network.Provider.
	net      *Network
	name     string
	endpoint string
	events   *rdma.Events // has its own lock

	// Guarded by net.mu.
	regions  *rdma.Regions
	fences   *rdma.Fences
	tags     *rdma.Tags
	sessions map[string]*session // by peer, until its fence is complete
	grants   map[rdma.GrantID]*grant
	closed   bool

	running sync.WaitGroup // goroutines that Close waits for
}

var _ rdma.Provider = (*Provider)(nil)

// grant is a grant in force.
type grant struct {
	rdma.Grant
	permit *rdma.Permit
	memory map[rdma.RegionID][]byte

	// landing is held while bytes are copied under the grant, a chunk at a time.
	landing sync.Mutex
	closed  bool // guarded by landing: nothing lands any more
}

// Name is "mem".
func (p *Provider) Name() string { return "mem" }

// Endpoint names the provider in its network.
func (p *Provider) Endpoint() []byte { return []byte(p.endpoint) }

// Register makes memory reachable.
func (p *Provider) Register(m *rdma.Memory) (rdma.Descriptor, error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return rdma.Descriptor{}, rdma.ErrClosed
	}
	if m.Device() != nil {
		return rdma.Descriptor{}, rdma.ErrDeviceMemory
	}
	return rdma.Descriptor{Region: p.regions.Add(m), Bytes: m.Len()}, nil
}

// Deregister ends a region.
func (p *Provider) Deregister(id rdma.RegionID) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	return p.regions.Remove(id)
}

// Grant installs a grant.
func (p *Provider) Grant(g rdma.Grant) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return rdma.ErrClosed
	}
	if p.grants[g.ID] != nil {
		return fmt.Errorf("%w: grant %s", rdma.ErrExists, g.ID)
	}
	permit, err := rdma.Compile(&g, p.regions.Length)
	if err != nil {
		return err
	}
	e := &grant{Grant: g, permit: permit, memory: map[rdma.RegionID][]byte{}}
	for i := range g.Ranges {
		id := g.Ranges[i].Region
		e.memory[id] = p.regions.Bytes(id)
	}
	p.regions.UseTargets(&e.Grant, 1)
	p.grants[g.ID] = e
	return nil
}

// Revoke closes a grant. It waits for at most one chunk that is being copied, and
// not here.
func (p *Provider) Revoke(id rdma.GrantID) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	e := p.grants[id]
	if e == nil || p.closed { // Close fences everything
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
		return
	}
	p.running.Go(func() {
		e.landing.Lock()
		e.closed = true
		e.landing.Unlock()
		p.net.mu.Lock()
		defer p.net.mu.Unlock()
		if p.grants[id] == e {
			delete(p.grants, id)
			p.regions.UseTargets(&e.Grant, -1)
		}
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
	})
}

// Post gives writes to a session.
func (p *Provider) Post(id rdma.SessionID, ws []*rdma.Write) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	s := p.sessions[id.Peer]
	if s == nil || s.id != id || s.state != up {
		return rdma.ErrNotConnected
	}
	if len(ws) > p.net.config.Window {
		return &rdma.RangeError{Field: "writes", Got: uint64(len(ws)), Want: uint64(p.net.config.Window), Text: "the window never takes so many at once"}
	}
	if err := rdma.CheckWrites(ws, p.regions.Length); err != nil {
		return err
	}
	if s.accepted+len(ws) > p.net.config.Window {
		return rdma.ErrFull
	}
	for _, w := range ws {
		p.regions.UseSources(w, 1)
		p.tags.Posted(w.Tag)
		s.accepted++
		s.queue.Push(w.Tag, p.newWrite(w))
	}
	s.wakeUp()
	return nil
}

// completeLocked ends a write.
func (p *Provider) completeLocked(s *session, w *write, o rdma.Outcome, err error) {
	p.regions.UseSources(w.Write, -1)
	s.accepted--
	ev := rdma.Completed{Session: s.id, ID: w.ID, Tag: w.Tag, Outcome: o, Err: err, Bytes: w.Bytes()}
	if o == rdma.Landed {
		ev.Arrivals = []rdma.Arrival{{Stripe: 0, Count: 1}}
	}
	p.events.Push(ev)
	due, quiesced := p.tags.Completed(w.Tag, s.id, o)
	for range due {
		p.events.Push(quiesced)
	}
}

// Quiesce ends every write under a tag. What is being copied lands: that takes no
// peer.
func (p *Provider) Quiesce(tag rdma.Tag) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for _, s := range p.sessions { // writes are unordered, so the order of sessions is nobody's
		for _, w := range s.queue.Drop(tag) {
			p.completeLocked(s, w, rdma.NotPosted, errQuiesced)
		}
		if s.current != nil && s.current.Tag == tag {
			s.current.stop()
		}
	}
	if ev, now := p.tags.Quiesce(tag); now {
		p.events.Push(ev)
	}
}

// Poll takes events.
func (p *Provider) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	return p.events.Poll(ctx, evs)
}

// Close fences everything and waits until no byte moves.
func (p *Provider) Close() error {
	p.net.mu.Lock()
	if p.closed {
		p.net.mu.Unlock()
		return nil
	}
	p.closed = true
	delete(p.net.providers, p.endpoint)
	for _, s := range p.sessions {
		p.endLocked(s, nil)
	}
	p.net.mu.Unlock()
	p.running.Wait()
	p.events.Close()
	return nil
}
