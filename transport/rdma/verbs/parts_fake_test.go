package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// partsNic is the least that a session needs of a device: queue pairs that complete
// what is posted, and move nothing.
type partsNic struct {
	limit  Limits
	refuse func(want queueSize) error // nil: every size is had
	accept func(l *link) error        // nil: every peer is
	closed chan struct{}

	mu    sync.Mutex
	asked []queueSize
	last  uint32 // number of a queue pair, key of a registration
	live  int    // queue pairs that are not destroyed
	known int    // registrations
	wins  []window
}

func newPartsNic(l Limits) *partsNic { return &partsNic{limit: l, closed: make(chan struct{})} }

func (n *partsNic) limits() Limits { return n.limit }

func (n *partsNic) next() (deviceEvent, error) {
	<-n.closed
	return deviceEvent{}, net.ErrClosed
}

func (n *partsNic) close() error {
	close(n.closed)
	return nil
}

func (n *partsNic) register(w window, _ access) (registration, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	n.known++
	n.wins = append(n.wins, w)
	return &partsKey{n, n.last, n.last | 1<<31}, nil
}

type partsKey struct {
	nic           *partsNic
	local, remote uint32
}

func (k *partsKey) keys() (local, remote uint32) { return k.local, k.remote }

func (k *partsKey) deregister() error {
	k.nic.mu.Lock()
	defer k.nic.mu.Unlock()
	k.nic.known--
	return nil
}

func (n *partsNic) queue(want queueSize) (queue, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, want)
	if n.refuse != nil {
		if err := n.refuse(want); err != nil {
			return nil, err
		}
	}
	n.last++
	n.live++
	return &partsQueue{nic: n, qpn: n.last & 0xffffff, has: want, wakes: make(chan struct{}, 1)}, nil
}

// partsQueue completes what is posted at once.
type partsQueue struct {
	nic   *partsNic
	qpn   uint32
	has   queueSize
	wakes chan struct{}

	mu       sync.Mutex
	done     []completion
	receives int
	failed   bool
}

func (q *partsQueue) number() uint32   { return q.qpn }
func (q *partsQueue) size() queueSize  { return q.has }
func (q *partsQueue) send(*link) error { return nil }
func (q *partsQueue) arm() error       { return nil }

func (q *partsQueue) accept(l *link) error {
	if q.nic.accept != nil {
		return q.nic.accept(l)
	}
	return nil
}

func (q *partsQueue) destroy() error {
	q.nic.mu.Lock()
	defer q.nic.mu.Unlock()
	q.nic.live--
	return nil
}

func (q *partsQueue) fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = true
	q.flushLocked()
	return nil
}

func (q *partsQueue) flushLocked() {
	for ; q.receives > 0; q.receives-- {
		q.done = append(q.done, completion{ID: receiveID, Status: statusFlushed})
	}
	q.wake()
}

func (q *partsQueue) write(rows []row, id uint64, _ *uint32) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(rows) == 0 || len(rows) > q.has.Chain {
		return 0, fmt.Errorf("a chain of %d rows, want 1 to %d", len(rows), q.has.Chain)
	}
	c := completion{ID: id + 1}
	if q.failed {
		c.Status = statusFlushed
	}
	q.done = append(q.done, c)
	q.wake()
	return len(rows), nil
}

func (q *partsQueue) receive(n int) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.receives += n
	if q.failed {
		q.flushLocked()
	}
	return n, nil
}

func (q *partsQueue) poll(to []completion) ([]completion, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	to = append(to, q.done...)
	q.done = nil
	return to, nil
}

func (q *partsQueue) wait() error {
	<-q.wakes
	return nil
}

func (q *partsQueue) wake() {
	select {
	case q.wakes <- struct{}{}:
	default:
	}
}

// failer is a test, of testing or of rapid.
type failer interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// partsFabric opens devices by name.
type partsFabric map[string]*partsNic

func (f partsFabric) open(device string, port int) (nic, error) {
	if n := f[device]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("there is no device %s:%d", device, port)
}

// partsLimits is a device that gets by with little memory.
var partsLimits = Limits{MaxQPWR: 64, MaxSGE: 2, MTU: 4096, MaxMTU: 4096, MaxMsg: 1 << 30}

// partsProvider is a provider with cards, and without sockets.
func partsProvider(t failer, cards int) (*Provider, *partsNic) {
	p := &Provider{
		config: Config{Bind: "127.0.0.1:0"}, events: rdma.NewEvents(), regions: rdma.NewRegions(), memory: map[rdma.RegionID]*region{},
		fences: rdma.NewFences(), sessions: map[string]*session{}, hung: map[string]int{},
		grants: map[rdma.GrantID]*grant{}, greeting: map[*net.TCPConn]uint64{},
	}
	p.tags = rdma.NewTags(p.fences)
	if err := p.config.resolve(); err != nil {
		t.Fatal(err)
	}
	n := newPartsNic(partsLimits)
	for i := range cards {
		g := GID{Index: 3, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(i + 1)}, Type: TypeRoCEv2}
		d := &Device{Name: fmt.Sprintf("fake_%d", i)}
		p.cards = append(p.cards, &card{
			provider: p, index: i, device: d.Name, port: 1, nic: n, limits: n.limit, ethernet: true,
			choice: Choice{Device: d, Port: &Port{Number: 1, Link: Ethernet}, GID: g},
		})
	}
	return p, n
}

// partsSession is a session as Connect makes it, whose channel queues and sends nothing.
func partsSession(t failer, p *Provider, peer string, dial bool) *session {
	c := rdma.Connection{Self: "self", Dial: dial, Session: rdma.SessionID{Peer: peer, Generation: rdma.Generation{Number: 1, Low: 2, High: 3}}}
	s := newSession(p, c)
	if dial {
		s.endpoint = &control.Endpoint{Rails: p.rails()}
		s.rails = len(s.endpoint.Rails)
		pairs, err := pairRails(p.rails(), s.endpoint.Rails, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range pairs {
			s.wanted = append(s.wanted, want{pair: x, pause: restoreFirst})
		}
		s.pending = len(s.wanted)
	}
	s.context, s.cancel = context.WithCancel(context.Background())
	s.timeout = time.AfterFunc(time.Hour, func() {})
	s.channel = newChannel(&net.TCPConn{}, s.id.Generation, dial) // not open: its calls fail
	p.sessions[peer] = s
	p.running.Go(s.reap)
	return s
}

// partsUp brings a session up: it has a stripe of each of its cards.
func partsUp(t failer, s *session) {
	t.Helper()
	queuePair := &control.QueuePair{Number: 9, Gid: make([]byte, 16), Mtu: 4096, Receives: 16}
	var frames []*control.Frame
	frames = append(frames, &control.Frame{Body: &control.Frame_Hail{Hail: &control.Hail{Rails: uint32(len(s.provider.cards))}}})
	for i := range s.provider.cards {
		if s.Dial {
			s.offer(i)
			frames = append(frames, &control.Frame{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: uint32(i + 1), QueuePair: queuePair}}})
			continue
		}
		frames = append(frames,
			&control.Frame{Body: &control.Frame_Offer{Offer: &control.Offer{Stripe: uint32(i + 1), From: uint32(i), To: uint32(i), QueuePair: queuePair}}},
			&control.Frame{Body: &control.Frame_Ready{Ready: &control.Ready{Stripe: uint32(i + 1)}}})
	}
	if !s.Dial {
		frames = append(frames, &control.Frame{Body: &control.Frame_Up{Up: &control.Up{}}})
	}
	for _, f := range frames {
		if err := s.on(f); err != nil {
			t.Fatalf("%v: %v", f, err)
		}
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	if s.state != up || len(s.stripes) != len(s.provider.cards) {
		t.Fatalf("the session is in state %d with %d stripes: %v", s.state, len(s.stripes), s.why)
	}
}

// partsEnd ends a session and waits until nothing of it is left.
func partsEnd(s *session) {
	s.provider.mu.Lock()
	s.leaveLocked(ending, errFenced)
	s.provider.mu.Unlock()
	<-s.done
}

// partsEvents takes all events.
func partsEvents(p *Provider) (all []rdma.Event) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	evs := make([]rdma.Event, 256)
	for {
		n, err := p.events.Poll(ctx, evs)
		if all = append(all, evs[:n]...); err != nil || n == 0 {
			return all
		}
	}
}

// partsTold takes the messages that wait for the peer.
func partsTold(t failer, s *session) (frames []*control.Frame) {
	t.Helper()
	s.channel.mu.Lock()
	defer s.channel.mu.Unlock()
	for _, b := range s.channel.queue {
		f := &control.Frame{}
		if err := proto.Unmarshal(b[headBytes:], f); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	s.channel.queue, s.channel.queued = nil, 0
	return frames
}

// refusesAbove is a device that has queue pairs of so many requests and pieces.
func refusesAbove(sends, pieces int, err error) func(queueSize) error {
	return func(want queueSize) error {
		if want.Sends > sends || want.Pieces > pieces {
			return err
		}
		return nil
	}
}

var errNoQueue = errors.New("no queue pair is left")

// failingNic has memory for two registrations.
type failingNic struct{ *partsNic }

func (n failingNic) register(w window, a access) (registration, error) {
	if len(n.wins) == 2 {
		return nil, &MemoryError{Device: "fake_1", Bytes: w.bytes, Limit: 1 << 20, Err: syscall.ENOMEM}
	}
	return n.partsNic.register(w, a)
}

// devNull is a file that stands for a dma-buf.
func devNull(t testing.TB) *os.File {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
