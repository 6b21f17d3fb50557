package shm

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// Provider is one process's side. It listens and dials.
type Provider struct {
	// Fixed by Listen.
	config   Config
	listener *net.UnixListener
	endpoint endpoint
	events   *rdma.Events // has its own lock
	stop     context.Context
	stopping context.CancelFunc

	// pause is nil but in tests, which set it before Connect: it is called inside of
	// each copy, after the slot was stored and the entry read.
	pause func()

	// mu guards what follows, and what is said to be the provider's. It is never held
	// while bytes are copied or anything is waited for.
	mu        sync.Mutex
	regions   *rdma.Regions
	memory    map[rdma.RegionID]*rdma.Memory
	collapsed map[rdma.RegionID]bool
	fences    *rdma.Fences
	tags      *rdma.Tags
	sessions  map[string]*session   // by peer, until its fence is complete
	inbound   map[string][]*inbound // by peer; those that ended too, until nothing is open
	grants    map[rdma.GrantID]*grant
	granted   map[string]granted // by peer
	greeting  map[*net.UnixConn]uint64
	accepted  uint64
	parked    []*parked
	closed    bool
	closeOnce sync.Once

	running sync.WaitGroup // goroutines that Close waits for
}

var _ rdma.Provider = (*Provider)(nil)

// Listen starts a provider.
func Listen(c Config) (*Provider, error) {
	if err := c.resolve(); err != nil {
		return nil, err
	}
	e, err := newEndpoint()
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: e.socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("shm: listen: %w", err)
	}
	p := &Provider{
		config: c, listener: l, endpoint: e, events: rdma.NewEvents(),
		regions: rdma.NewRegions(), memory: map[rdma.RegionID]*rdma.Memory{}, collapsed: map[rdma.RegionID]bool{},
		fences: rdma.NewFences(), sessions: map[string]*session{}, inbound: map[string][]*inbound{},
		grants: map[rdma.GrantID]*grant{}, granted: map[string]granted{}, greeting: map[*net.UnixConn]uint64{},
	}
	p.tags = rdma.NewTags(p.fences)
	p.stop, p.stopping = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// Name is "shm".
func (p *Provider) Name() string { return "shm" }

// Endpoint names the socket, and the host and the namespace that it is in.
func (p *Provider) Endpoint() []byte { return p.endpoint.encode() }

// Register makes memory reachable. A peer has it mapped from the first grant that
// names it until Deregister.
func (p *Provider) Register(m *rdma.Memory) (rdma.Descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return rdma.Descriptor{}, rdma.ErrClosed
	}
	if m.Device() != nil {
		return rdma.Descriptor{}, rdma.ErrDeviceMemory
	}
	id := p.regions.Add(m)
	p.memory[id] = m
	return rdma.Descriptor{Region: id, Bytes: m.Len()}, nil
}

// Deregister ends a region.
func (p *Provider) Deregister(id rdma.RegionID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.regions.Remove(id); err != nil {
		return err
	}
	delete(p.memory, id)
	delete(p.collapsed, id)
	for _, s := range p.sessions { // each is told by itself
		if s.in == nil || s.state > up {
			continue
		}
		if err := s.in.goneLocked(id); err != nil {
			s.leaveLocked(down, fmt.Errorf("shm: tell that region %d is gone: %w", id, err))
		}
	}
	return nil
}

// collapseLocked gives huge pages to a region, once, in the background. The mapping
// is its own, so that the region may go meanwhile.
func (p *Provider) collapseLocked(id rdma.RegionID) {
	m := p.memory[id]
	if p.collapsed[id] || m.Len() < hugeBytes {
		return
	}
	p.collapsed[id] = true
	own, err := mapShared(int(m.File().Fd()), m.Len(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return // it is as good as before
	}
	p.running.Go(func() { collapse(p.stop, own) })
}

// Poll takes events.
func (p *Provider) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	return p.events.Poll(ctx, evs)
}

// Close fences everything and waits until no byte moves. Its error names the grants
// under which a stopped process may still write: their memory is not anybody's yet.
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
	sessions := make([]*session, 0, len(p.sessions))
	for _, s := range p.sessions {
		s.endLocked(errClosed)
		sessions = append(sessions, s)
	}
	for sock := range p.greeting {
		_ = sock.Close()
	}
	p.dropParkedLocked(func(*parked) bool { return true })
	p.mu.Unlock()
	for _, s := range sessions {
		p.settle(s)
	}
	p.running.Wait()
	open := p.releaseAll()
	p.events.Close()
	if err != nil {
		return fmt.Errorf("shm: close listener: %w", err)
	}
	if len(open) > 0 {
		return fmt.Errorf("shm: closed with grants open: %s", strings.Join(open, ", "))
	}
	return nil
}

// releaseAll lets go of what is left, and names what is open.
func (p *Provider) releaseAll() (open []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for peer, all := range p.inbound {
		for _, o := range p.openLocked(peer) {
			open = append(open, fmt.Sprintf("%s (%s)", o.Grant, o.Reason))
		}
		for _, in := range all {
			in.releaseLocked()
		}
	}
	clear(p.inbound)
	slices.Sort(open)
	return open
}
