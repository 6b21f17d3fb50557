// Package tcp is a software one-sided write over TCP: the receiving process checks
// every frame against its grants and reads it straight into the destination
// memory. A frame lists strided patterns, never rows; its payload goes from the
// source memory to the socket by writev and from the socket to the destination by
// readv, with no buffer of this process between.
//
// # Connections
//
// A session has several connections (stripes). Each has a reader and a writer of
// its own. Writes are cut into frames; a free stripe takes the next frame of the
// next tag. The window bounds what a stripe has sent without an ack. When one
// connection fails the session is over: what has begun is unknown.
//
// # What stops
//
// Payload enters granted memory only by a read system call that does not wait,
// made while the grant is held open. Revoke takes the grant from them, so it waits
// for a read that is executing and for nothing else; the rest of the frame goes to
// a discard buffer and is refused. Quiesce likewise waits for a write system call
// that is executing; the rest of the frame is padded with zeros and marked, so the
// receiver does not count it. Fence wakes the goroutines, which then wait for
// nobody, waits for them, and closes the sockets.
//
// The lock of a provider may be held when that of a session is taken, and that when
// a connection's reading is; grants' locks are taken last, alone.
package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"

	"kvferry/transport/rdma"
)

// Provider is one process's side. It listens and dials.
type Provider struct {
	// Fixed by Listen.
	config   Config
	listener *net.TCPListener
	endpoint []byte
	events   *rdma.Events // has its own lock
	stop     context.Context
	stopping context.CancelFunc

	mu        sync.Mutex
	regions   *rdma.Regions
	fences    *rdma.Fences
	tags      *rdma.Tags
	sessions  map[string]*session // by peer, until its fence is complete
	grants    map[rdma.GrantID]*grant
	greeting  map[*net.TCPConn]uint64 // that have not said hello, by the order in which they came
	accepted  uint64
	parked    []*parked // that said hello before Connect
	closed    bool
	closeOnce sync.Once

	running sync.WaitGroup // goroutines that Close waits for
}

var _ rdma.Provider = (*Provider)(nil)

// grant is a grant in force.
type grant struct {
	rdma.Grant
	permit *rdma.Permit
	memory map[rdma.RegionID][]byte

	// landing is held shared during each read system call into the grant's memory.
	landing sync.RWMutex
	closed  bool // guarded by landing: nothing lands any more
}

// Listen starts a provider.
func Listen(c Config) (*Provider, error) {
	if err := c.resolve(); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: listenControl, KeepAlive: -1} // tune sets it
	l, err := lc.Listen(context.Background(), "tcp", c.Bind)
	if err != nil {
		return nil, fmt.Errorf("tcp: listen: %w", err)
	}
	p := &Provider{
		config: c, listener: l.(*net.TCPListener), endpoint: []byte(c.advertised(l.Addr())),
		events: rdma.NewEvents(), regions: rdma.NewRegions(), fences: rdma.NewFences(),
		sessions: map[string]*session{}, grants: map[rdma.GrantID]*grant{}, greeting: map[*net.TCPConn]uint64{},
	}
	p.tags = rdma.NewTags(p.fences)
	p.stop, p.stopping = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// Name is "tcp".
func (p *Provider) Name() string { return "tcp" }

// Endpoint is the host:port that peers dial.
func (p *Provider) Endpoint() []byte { return p.endpoint }

// Register makes memory reachable.
func (p *Provider) Register(m *rdma.Memory) (rdma.Descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.regions.Remove(id)
}

// Grant installs a grant.
func (p *Provider) Grant(g rdma.Grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// Revoke closes a grant. It waits, not here, for the reads that are executing.
func (p *Provider) Revoke(id rdma.GrantID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.grants[id]
	if e == nil || p.closed { // Close fences everything
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
		return
	}
	p.running.Go(func() {
		e.landing.Lock()
		e.closed = true
		e.landing.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.grants[id] == e {
			delete(p.grants, id)
			p.regions.UseTargets(&e.Grant, -1)
		}
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
	})
}

// Fence ends a session. It waits, not here, for system calls that are executing.
func (p *Provider) Fence(id rdma.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fences.End(id)
	p.tags.Fenced()
	p.dropParkedLocked(func(x *parked) bool {
		return p.fences.Ended(rdma.SessionID{Peer: x.from, Generation: x.generation})
	})
	s := p.sessions[id.Peer]
	if s == nil || p.closed || !p.fences.Ended(s.id) {
		p.events.Push(rdma.Fenced{Session: id})
		return
	}
	s.leaveLocked(ending, errFenced)
	p.running.Go(func() {
		<-s.done
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fences.End(s.id)
		if p.sessions[s.id.Peer] == s {
			delete(p.sessions, s.id.Peer)
		}
		p.events.Push(rdma.Fenced{Session: id})
	})
}

// Poll takes events.
func (p *Provider) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	return p.events.Poll(ctx, evs)
}

// Close fences everything and waits until no byte moves.
func (p *Provider) Close() error {
	var err error
	p.closeOnce.Do(func() { err = p.close() })
	return err
}

func (p *Provider) close() error {
	p.mu.Lock()
	p.closed = true
	p.stopping()
	err := p.listener.Close()
	for _, s := range p.sessions {
		s.leaveLocked(ending, errClosed)
	}
	for sock := range p.greeting {
		_ = sock.Close()
	}
	p.dropParkedLocked(func(*parked) bool { return true })
	p.mu.Unlock()
	p.running.Wait()
	p.events.Close()
	if err != nil {
		return fmt.Errorf("tcp: close listener: %w", err)
	}
	return nil
}
