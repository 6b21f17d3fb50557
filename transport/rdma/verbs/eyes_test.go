package verbs

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
	"kvferry/transport/rdma/verbs/control"
)

// ends waits for a session of a node to end by itself, and not for long.
func (w *softWorld) ends(n *rdmatest.Node) (why error) {
	w.t.Helper()
	eventually(w.t, "the session ends", func() bool {
		for _, ev := range n.Seen() {
			if d, ok := ev.(rdma.Disconnected); ok && d.Session == n.Session(w.number) {
				why = d.Err
			}
		}
		return why != nil
	})
	return why
}

// fewReceives is a device of which 64 arrivals use up what the peer may send.
func fewReceives(string) Limits {
	l := softLimits
	l.MaxQPWR = 64
	return l
}

// starve mutes a device of the receiver, posts more than it has receives for, and waits
// until the sender's stripe to it has nothing on the way and may send nothing.
func (w *softWorld) starve(device string, from rdmatest.Region) (ws []*rdma.Write) {
	for _, q := range w.f.queuesOf(device) {
		w.f.mu.Lock()
		q.mute = true
		w.f.mu.Unlock()
	}
	const n = 128
	for i := range uint64(n) {
		at := i * (softSize / n)
		ws = append(ws, w.Write(1, w.grant, rdmatest.Contiguous(from, at, w.to, at, softSize/n)))
	}
	w.A.Post(w.number, ws...)
	eventually(w.t, "no credit is left", func() bool {
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		for _, st := range w.a.sessions["b"].stripes {
			if st.sent > 0 && st.sent == st.credit && len(st.chunks) == 0 {
				return true
			}
		}
		return false
	})
	return ws
}

// What waits for the near stripe goes by another when that is lost, although nothing was
// on the way there that would come back.
func TestALostStripeWakesTheOthers(t *testing.T) {
	f := newSoft()
	f.limit = fewReceives
	w := newSoftWorld(t, f, 2, 2, func(c *Config) { c.QueuePairs = 1 })
	m, err := rdma.NewMemory("near", softSize)
	if err != nil {
		t.Fatal(err)
	}
	m.SetNear(rdma.Near{Devices: []string{"a0"}})
	d, err := w.a.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	ws := w.starve("b0", rdmatest.Region{Memory: m, Descriptor: d})
	f.tell("a0", deviceEvent{kind: eventPortDown, port: 1, text: "port error"})
	eventually(t, "all writes end", func() bool { w.a.mu.Lock(); defer w.a.mu.Unlock(); return len(w.a.sessions["b"].live) == 0 })
	w.A.AwaitWrites(ws)
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// A peer whose device tells of no arrival posts no receive: the writes that wait for one
// do not wait for ever.
func TestAPeerThatGivesNoCredit(t *testing.T) {
	f := newSoft()
	f.limit = fewReceives
	w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.QueuePairs, c.StallTimeout = 1, 300*time.Millisecond })
	ws := w.starve("b0", w.from)
	if why := w.ends(w.A); !strings.Contains(why.Error(), "posted no receive within 300ms") {
		t.Errorf("a is told %v", why)
	}
	w.A.AwaitWrites(ws)
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A stripe of which this side's own end is not destroyed keeps its writes: the session
// ends by that, and the owner fences it.
func TestAnOwnEndThatIsNotDestroyed(t *testing.T) {
	f := newSoft()
	f.lag = func() time.Duration { return 5 * time.Millisecond }
	w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.DestroyTimeout = 50 * time.Millisecond })
	ws := w.all(32)
	w.A.Post(w.number, ws...)
	held := make(chan struct{})
	eventually(t, "a stripe has something on the way", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, q := range f.queues {
			if q.nic.name == "a0" && len(q.requests) > 1 {
				q.hold = held
				q.breakLocked()
				return true
			}
		}
		return false
	})
	if why := w.ends(w.A); !strings.Contains(why.Error(), "was not destroyed within") {
		t.Errorf("a is told %v", why)
	}
	close(held)
	w.A.AwaitWrites(ws)
	eventually(t, "nothing hangs", func() bool { w.a.mu.Lock(); defer w.a.mu.Unlock(); return len(w.a.hung) == 0 })
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// While a device hangs that is to make a queue pair, deadlines of other stripes hold.
func TestDeadlinesWhileAnOfferHangs(t *testing.T) {
	f := newSoft()
	held := make(chan struct{})
	var hang, hung atomic.Bool
	f.refuse = func(queueSize) error {
		if hang.Load() {
			hung.Store(true)
			<-held
		}
		return nil
	}
	w := newSoftWorld(t, f, 2, 2, func(c *Config) {
		c.QueuePairs, c.StallTimeout, c.DestroyTimeout = 1, 300*time.Millisecond, 50*time.Millisecond
	})
	hang.Store(true)
	f.mu.Lock()
	for _, q := range f.queues {
		if q.nic.name == "a1" {
			q.breakLocked()
			q.nic.events <- deviceEvent{kind: eventQueue, queue: q.qpn, text: "queue pair fatal error"}
		}
		if q.nic.name == "a0" {
			q.mute = true
		}
	}
	f.mu.Unlock()
	eventually(t, "an offer hangs", hung.Load)
	ws := w.all(8)
	w.A.Post(w.number, ws...)
	if why := w.ends(w.A); !strings.Contains(why.Error(), "nothing completed within 300ms") {
		t.Errorf("a is told %v", why)
	}
	close(held)
	w.A.AwaitWrites(ws)
	eventually(t, "nothing hangs", func() bool { w.a.mu.Lock(); defer w.a.mu.Unlock(); return len(w.a.hung) == 0 })
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A peer that does not answer an offer reads nothing else either: the session ends.
func TestAnOfferThatIsNotAnswered(t *testing.T) {
	f := newSoft()
	held := make(chan struct{})
	var hang atomic.Bool
	var calls atomic.Int32
	f.refuse = func(queueSize) error {
		if hang.Load() && calls.Add(1) == 2 { // the first is of who offers
			<-held
		}
		return nil
	}
	w := newSoftWorld(t, f, 2, 2, func(c *Config) {
		c.QueuePairs, c.HandshakeTimeout, c.DestroyTimeout = 1, time.Second, 50*time.Millisecond
	})
	hang.Store(true)
	f.tell("a1", deviceEvent{kind: eventQueue, queue: f.queuesOf("a1")[0].qpn, text: "queue pair fatal error"})
	if why := w.ends(w.A); !strings.Contains(why.Error(), "did not answer within 1s") {
		t.Errorf("a is told %v", why)
	}
	close(held)
	eventually(t, "nothing hangs", func() bool { w.b.mu.Lock(); defer w.b.mu.Unlock(); return len(w.b.hung) == 0 })
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A port that goes while a queue pair of it is offered gets no writes.
func TestAPortThatGoesDuringAnOffer(t *testing.T) {
	f := newSoft()
	held := make(chan struct{})
	var calls atomic.Int32
	f.refuse = func(queueSize) error {
		if calls.Add(1) == 4 { // both of a, then both of b, or one of each: the last is b's
			<-held
		}
		return nil
	}
	a, b := softNode(t, f, "a", 2, func(c *Config) { c.QueuePairs = 1 }), softNode(t, f, "b", 2)
	w := rdmatest.NewWorld(t, a, b)
	for _, x := range [][2]*rdmatest.Node{{w.A, w.B}, {w.B, w.A}} {
		if err := x[0].Connect(1, x[1]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the last offer is being answered", func() bool { return calls.Load() == 4 })
	f.tell("a1", deviceEvent{kind: eventPortDown, port: 1, text: "port error"})
	eventually(t, "a knows that the port is down", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.cards[1].down != "" })
	close(held)
	eventually(t, "the session is up", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.sessions["b"].state == up })
	if n := live(a, "b"); n != 1 {
		t.Errorf("%d stripes are live, want 1: a port is down", n)
	}
	w.Close()
}

// A peer that tells of a region again, and of less, ends its session: what was granted
// was checked against the first.
func TestARegionThatIsToldTwice(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	w.A.MustLand(w.number, w.all(1)...)
	w.b.mu.Lock()
	less := w.b.memory[w.to.Region].wire()
	less.Bytes, less.Piece = 4096, 4096
	w.b.sessions["a"].tellLocked(&control.Frame{Body: &control.Frame_Region{Region: less}})
	w.b.mu.Unlock()
	eventually(t, "a has heard of it", func() bool {
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		return w.a.sessions["b"].state > up || w.a.sessions["b"].memory[w.to.Region].bytes == 4096
	})
	if err := w.a.Post(w.A.Session(w.number), w.all(1)); err != nil && !errors.Is(err, rdma.ErrNotConnected) {
		t.Error(err)
	}
	if why := w.ends(w.A); !strings.Contains(why.Error(), "told before") {
		t.Errorf("a is told %v", why)
	}
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// needsLink is a queue pair that looks at what it is given, as the real one does.
type needsLink struct{ queue }

func (q needsLink) send(l *link) error {
	_ = l.Retries
	return q.queue.send(l)
}

// A peer that says ready for a stripe whose end here was given up.
func TestReadyForAStripeThatWasGivenUp(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	w.b.mu.Lock()
	s := w.b.sessions["a"]
	w.b.mu.Unlock()
	st, err := s.newStripe(99, w.b.cards[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	st.queue = needsLink{st.queue}
	held := make(chan struct{})
	st.using.Lock() // its destroy has not begun
	st.discard(errors.New("malformed"))
	go func() { <-held; st.using.Unlock() }()
	done := make(chan struct{})
	go func() { defer close(done); _ = s.onReady(&control.Ready{Stripe: 99}) }()
	time.Sleep(10 * time.Millisecond)
	close(held)
	<-done
	<-st.ended
	w.B.Revoke(w.grant)
	w.Close()
}

// Close waits for a registration under way: the device it is made with is there.
func TestCloseWaitsForARegistration(t *testing.T) {
	f := newSoft()
	p := softNode(t, f, "a", 1)
	begun, held := make(chan struct{}), make(chan struct{})
	f.deny = func(window, access) error {
		close(begun)
		<-held
		return nil
	}
	m, err := rdma.NewMemory("pool", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	registered, closed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := p.Register(m); registered <- err }()
	<-begun
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		t.Errorf("close answers %v while memory is being registered", err)
		closed <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(held)
	if err := <-registered; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("register answers %v, want ErrClosed", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close answers %v", err)
	}
}

// The hint of an error is about its call.
func TestHintsOfCalls(t *testing.T) {
	for _, c := range []struct {
		call string
		err  syscall.Errno
		want bool
	}{{"ibv_open_device", syscall.ENODEV, true}, {"ibv_get_device_list", syscall.ENODEV, true}, {"ibv_modify_qp to RTR", syscall.ENODEV, false}} {
		text := (&CallError{Call: c.call, Device: "mlx5_0", Err: c.err}).Error()
		if got := strings.Contains(text, "ibverbs-providers"); got != c.want {
			t.Errorf("%q: a hint is there: %v, want %v", text, got, c.want)
		}
	}
}
