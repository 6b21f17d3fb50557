package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// ErrNoDevice is a host without RDMA devices.
var ErrNoDevice = errors.New("verbs: there is no RDMA device on this host")

// Provider is one process's side.
type Provider struct {
	// Fixed by Listen.
	config   Config
	fabric   fabric
	listener *net.TCPListener
	endpoint []byte
	cards    []*card
	events   *rdma.Events // has its own lock
	stop     context.Context
	stopping context.CancelFunc

	mu        sync.Mutex
	regions   *rdma.Regions
	memory    map[rdma.RegionID]*region
	fences    *rdma.Fences
	tags      *rdma.Tags
	sessions  map[string]*session // by peer, until its fence is complete
	hung      map[string]int      // sessions with queue pairs that do not go, by peer
	grants    map[rdma.GrantID]*grant
	slots     slots
	greeting  map[*net.TCPConn]uint64 // that have not said hello, by the order in which they came
	accepted  uint64
	closed    bool
	closeOnce sync.Once
	closeErr  error

	running sync.WaitGroup // goroutines that Close waits for
}

var _ rdma.Provider = (*Provider)(nil)

// Listen starts a provider. Errors: ErrNoDevice on a host without RDMA, a *LoadError where
// there are devices and no libibverbs, a port that cannot be used (*CallError and
// others), a bad Config.
func Listen(c Config) (*Provider, error) {
	if err := c.resolve(); err != nil {
		return nil, err
	}
	p := &Provider{
		config: c, fabric: c.fabric, events: rdma.NewEvents(), regions: rdma.NewRegions(), memory: map[rdma.RegionID]*region{},
		fences: rdma.NewFences(), sessions: map[string]*session{}, hung: map[string]int{},
		grants: map[rdma.GrantID]*grant{}, greeting: map[*net.TCPConn]uint64{},
	}
	p.tags = rdma.NewTags(p.fences)
	if err := p.openCards(); err != nil {
		return nil, errors.Join(err, p.closeCards())
	}
	lc := net.ListenConfig{KeepAlive: -1} // tune sets it
	l, err := lc.Listen(context.Background(), "tcp", c.Bind)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: listen: %w", err), p.closeCards())
	}
	p.listener = l.(*net.TCPListener)
	address := net.JoinHostPort(c.AdvertiseHost, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	if p.endpoint, err = proto.Marshal(&control.Endpoint{Address: address, Rails: p.rails()}); err != nil {
		return nil, errors.Join(err, l.Close(), p.closeCards())
	}
	p.stop, p.stopping = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// closeCards closes the devices.
func (p *Provider) closeCards() error {
	var errs []error
	for _, c := range p.cards {
		errs = append(errs, c.nic.close())
		<-c.gone
	}
	return errors.Join(errs...)
}

// Name is "verbs".
func (p *Provider) Name() string { return "verbs" }

// Endpoint is where the channel is dialled, and the ports that this side uses.
func (p *Provider) Endpoint() []byte { return p.endpoint }

// Register registers memory with every port that is used. It takes as long as the pages
// take to be pinned. Errors are *MemoryError among others.
func (p *Provider) Register(m *rdma.Memory) (rdma.Descriptor, error) {
	if err := p.begin(); err != nil {
		return rdma.Descriptor{}, err
	}
	defer p.running.Done()
	r, err := p.registerAll(m)
	if err != nil {
		return rdma.Descriptor{}, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return rdma.Descriptor{}, errors.Join(rdma.ErrClosed, r.deregister())
	}
	defer p.mu.Unlock()
	r.id = p.regions.Add(m)
	p.memory[r.id] = r
	return rdma.Descriptor{Region: r.id, Bytes: m.Len()}, nil
}

// begin lets Close wait for a call of the devices, until running is done once more.
func (p *Provider) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return rdma.ErrClosed
	}
	p.running.Add(1)
	return nil
}

// Deregister ends a region. After Close there is none.
func (p *Provider) Deregister(id rdma.RegionID) error {
	if err := p.begin(); err != nil {
		return err
	}
	defer p.running.Done()
	p.mu.Lock()
	err := p.regions.Remove(id)
	r := p.memory[id]
	if err == nil {
		delete(p.memory, id)
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return r.deregister() // it takes as long as the pages take to be unpinned
}

// Fence ends a session. It waits, not here, for its queue pairs to be destroyed.
func (p *Provider) Fence(id rdma.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fences.End(id)
	p.tags.Fenced()
	s := p.sessions[id.Peer]
	if s == nil || p.closed || !p.fences.Ended(s.id) {
		p.events.Push(rdma.Fenced{Session: id, Open: p.openLocked(id.Peer)})
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
		p.events.Push(rdma.Fenced{Session: id, Open: p.openLocked(id.Peer)})
	})
}

// openLocked is the grants of a peer that queue pairs which do not go keep open.
func (p *Provider) openLocked(peer string) (open []rdma.OpenGrant) {
	if p.hung[peer] == 0 {
		return nil
	}
	for _, e := range p.grants { // a set: the order is nobody's
		if e.Peer == peer {
			open = append(open, rdma.OpenGrant{Grant: e.ID, Reason: "verbs: the device has not destroyed the queue pairs of the peer"})
		}
	}
	return open
}

// Poll takes events.
func (p *Provider) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	return p.events.Poll(ctx, evs)
}

// Close fences everything and waits until no byte moves. An error says what the devices
// would not let go of; it stays registered until the process ends.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Provider) close() error {
	p.mu.Lock()
	p.closed = true
	p.stopping()
	errs := []error{p.listener.Close()}
	for _, s := range p.sessions {
		s.leaveLocked(ending, errClosed)
	}
	for sock := range p.greeting {
		_ = sock.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
	p.mu.Lock()
	hung := len(p.hung)
	p.mu.Unlock()
	if hung > 0 {
		errs = append(errs, fmt.Errorf("verbs: close: the devices have not destroyed the queue pairs of %d peers", hung))
	} else {
		for _, r := range p.memory {
			errs = append(errs, r.deregister())
		}
		errs = append(errs, p.closeCards())
	}
	p.events.Close()
	return errors.Join(errs...)
}
