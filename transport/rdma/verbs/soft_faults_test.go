package verbs

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// softWorld is two nodes, connected, with memory, and a grant of all of b's.
type softWorld struct {
	*rdmatest.World
	t        *testing.T
	f        *soft
	a, b     *Provider
	number   uint64
	from, to rdmatest.Region
	grant    rdma.GrantID
}

const softSize = 8 << 20

func newSoftWorld(t *testing.T, f *soft, devicesA, devicesB int, change ...func(c *Config)) *softWorld {
	t.Helper()
	change = append([]func(c *Config){func(c *Config) { c.ChunkBytes, c.drain = 256<<10, 200*time.Millisecond }}, change...)
	w := &softWorld{t: t, f: f, a: softNode(t, f, "a", devicesA, change...), b: softNode(t, f, "b", devicesB, change...)}
	w.World = rdmatest.NewWorld(t, w.a, w.b)
	w.number = w.Connect()
	w.from, w.to = w.Register(w.A, softSize), w.Register(w.B, softSize)
	rdmatest.Randomize(w.from, 7)
	w.grant = w.Grant(w.B, rdmatest.Whole(w.to))
	return w
}

// all is n writes that together move all of the memory.
func (w *softWorld) all(n uint64) (ws []*rdma.Write) {
	for i := range n {
		at := i * (softSize / n)
		ws = append(ws, w.Write(rdma.Tag(i%3), w.grant, rdmatest.Contiguous(w.from, at, w.to, at, softSize/n)))
	}
	return ws
}

// same checks that all has arrived.
func (w *softWorld) same() {
	w.t.Helper()
	if !bytes.Equal(w.from.Memory.Bytes(), w.to.Memory.Bytes()) {
		w.t.Error("the bytes differ")
	}
}

// queuesOf is the queue pairs of a device.
func (f *soft) queuesOf(device string) (qs []*softQueue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		if q.nic.name == device {
			qs = append(qs, q)
		}
	}
	return qs
}

func (f *soft) tell(device string, ev deviceEvent) {
	f.mu.Lock()
	n := f.nics[device]
	f.mu.Unlock()
	n.events <- ev
}

// live is how many stripes of a session of a provider carry writes.
func live(p *Provider, peer string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.sessions[peer].stripes {
		if st.live {
			n++
		}
	}
	return n
}

// eventually waits for what no event tells of.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func (w *softWorld) disconnected(n *rdmatest.Node) error {
	w.t.Helper()
	var why error
	n.Await("disconnected", func(evs []rdma.Event) bool {
		for _, ev := range evs {
			if d, ok := ev.(rdma.Disconnected); ok && d.Session == n.Session(w.number) {
				why = d.Err
			}
		}
		return why != nil
	})
	return why
}

// What a queue pair can do wrong while others are well costs its stripe and nothing
// else: every write lands, no byte is wrong, and a stripe takes its place.
func TestAStripeThatFailsIsReplaced(t *testing.T) {
	tellsNothing := map[string]bool{"nothing completes": true, "nothing completes, and it says so": true, "polls fail": true}
	for name, fail := range map[string]func(f *soft, q *softQueue){
		"a part of a chain is posted": func(f *soft, q *softQueue) { q.partial = 2 },
		"polls fail": func(f *soft, q *softQueue) {
			q.pollErr = &CallError{Call: "ibv_poll_cq", Err: syscall.EIO}
			q.signals++
			q.signal.Broadcast()
		},
		"nothing completes": func(f *soft, q *softQueue) { q.mute = true },
		"nothing completes, and it says so": func(f *soft, q *softQueue) {
			q.mute = true
			q.nic.events <- deviceEvent{kind: eventQueue, queue: q.qpn, text: "completion queue error"}
		},
		"all is flushed, and nothing failed": func(f *soft, q *softQueue) { q.breakLocked() },
		"it will not go into error": func(f *soft, q *softQueue) {
			q.failErr = &CallError{Call: "ibv_modify_qp to ERR", Err: syscall.EINVAL}
			q.breakLocked()
		},
		"its destroy fails at first": func(f *soft, q *softQueue) { q.unwilling = 3; q.breakLocked() },
		"its destroy fails half-way": func(f *soft, q *softQueue) { q.halfway = 2; q.breakLocked() },
	} {
		for _, side := range []string{"a", "b"} {
			if side == "b" && tellsNothing[name] {
				continue // see TestArrivalsThatTheDeviceDoesNotTellOf, and the test below it
			}
			t.Run(name+", of "+side, func(t *testing.T) {
				t.Parallel() // most of it is pauses
				f := newSoft()
				w := newSoftWorld(t, f, 1, 1, func(c *Config) {
					if name == "nothing completes" { // the others do not wait for it, however slow the machine is
						c.StallTimeout = time.Second
					}
				})
				ws := w.all(16)
				for _, x := range ws[:4] {
					w.A.Post(w.number, x)
				}
				victim := f.queuesOf(side + "0")[0]
				f.mu.Lock()
				fail(f, victim)
				f.mu.Unlock()
				for _, x := range ws[4:] {
					w.A.Post(w.number, x)
				}
				for id, c := range w.A.AwaitWrites(ws) {
					if c.Outcome != rdma.Landed {
						t.Errorf("write %d is %s: %v", id, c.Outcome, c.Err)
					}
				}
				w.same()
				if name != "a part of a chain is posted" || side == "a" { // b posts nothing
					eventually(t, "the queue pair is destroyed", func() bool {
						w.A.MustLand(w.number, w.all(4)...) // until it had one of them
						f.mu.Lock()
						defer f.mu.Unlock()
						return victim.state == destroyed
					})
					eventually(t, "two stripes again", func() bool { return live(w.a, "b") == 2 && live(w.b, "a") == 2 })
				}
				w.B.Revoke(w.grant)
				w.Close()
			})
		}
	}
}

// A device that places bytes and does not tell: the peer ends its writes, and what it
// counts on never comes. The session ends by that, and with it the grant.
func TestArrivalsThatTheDeviceDoesNotTellOf(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.GoneTimeout = 200 * time.Millisecond })
	for _, q := range f.queuesOf("b0") {
		f.mu.Lock()
		q.mute = true
		f.mu.Unlock()
	}
	w.A.MustLand(w.number, w.all(8)...)
	w.same()
	w.b.Revoke(w.grant)
	if why := w.disconnected(w.B); !strings.Contains(why.Error(), "did not tell of all that landed") {
		t.Errorf("b is told %v", why)
	}
	w.B.Await("closed", func(evs []rdma.Event) bool { return revoked(evs, w.grant, true) == 1 })
	w.B.Fence(w.number)
	w.Close()
}

// An arrival whose record has not come, as soft-RoCE of Linux 6.1 has told of one under
// load, be it the first of its stripe: it is not counted, the stripe is drained as any
// other, and the session ends.
func TestAnArrivalWithoutItsRecord(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	w.b.mu.Lock()
	st := w.b.sessions["a"].stripes[0]
	w.b.mu.Unlock()
	for _, q := range f.queuesOf("b0") {
		f.mu.Lock()
		q.hollow = q.number() == st.queue.number()
		f.mu.Unlock()
	}
	eventually(t, "the stripe is destroyed", func() bool {
		_ = w.a.Post(w.A.Session(w.number), w.all(4)) // until it had one of them
		select {
		case <-st.ended:
			return true
		default:
			return false
		}
	})
	w.disconnected(w.A) // the sender counts on it, and it never comes
	w.b.mu.Lock()
	if st.arrived != 0 || st.refilled != st.flushed {
		t.Errorf("the stripe counts %d arrivals; of %d receives %d have come back", st.arrived, st.refilled, st.flushed)
	}
	w.b.mu.Unlock()
	w.Close()
}

// A stripe of a device that places bytes and does not tell is lost with what it has not told
// of: the session ends, so that a fence has them written again.
func TestArrivalsThatAreLostWithTheirStripe(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	victim := f.queuesOf("b0")[0]
	f.mu.Lock()
	victim.mute = true
	receives := victim.receives
	f.mu.Unlock()
	eventually(t, "something lands there", func() bool {
		w.A.MustLand(w.number, w.all(16)...)
		f.mu.Lock()
		defer f.mu.Unlock()
		return victim.receives < receives
	})
	f.tell("b0", deviceEvent{kind: eventQueue, queue: victim.qpn, text: "completion queue error"})
	if why := w.disconnected(w.A); !strings.Contains(why.Error(), "the peer was told of 0 arrivals of") {
		t.Errorf("a is told %v", why)
	}
	w.disconnected(w.B)
	w.A.Fence(w.number)
	w.B.Fence(w.number)
	w.number = w.Connect()
	w.A.MustLand(w.number, w.all(16)...)
	w.same()
	w.B.Revoke(w.grant)
	w.Close()
}

// A port that its event calls active before the kernel's files do is looked at again.
func TestAPortThatIsActiveLate(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 2, 1, func(c *Config) { c.QueuePairs = 1 })
	state := filepath.Join(w.a.config.Sysfs, "class/infiniband/a1/ports/1/state")
	write := func(text string) {
		if err := os.WriteFile(state, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("1: DOWN")
	f.tell("a1", deviceEvent{kind: eventPort, port: 1, text: "port active"})
	eventually(t, "one stripe", func() bool { return live(w.a, "b") == 1 })
	write("4: ACTIVE")
	eventually(t, "two stripes", func() bool { return live(w.a, "b") == 2 })
	w.A.MustLand(w.number, w.all(8)...)
	w.B.Revoke(w.grant)
	w.Close()
}

// A queue pair that says that it is full, though by the count it is not, is asked again.
func TestAFullQueueIsNotLost(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	stripes := f.queuesOf("a0")
	f.mu.Lock()
	for _, q := range stripes {
		q.full = 5
	}
	f.lag = func() time.Duration { return 100 * time.Microsecond }
	f.mu.Unlock()
	w.A.MustLand(w.number, w.all(32)...)
	w.same()
	for _, q := range stripes {
		f.mu.Lock()
		if q.full == 5 || q.state != sends {
			t.Errorf("queue pair %d found it full %d times, and is in state %d", q.qpn, 5-q.full, q.state)
		}
		f.mu.Unlock()
	}
	w.B.Revoke(w.grant)
	w.Close()
}

// One rail of two that carries nothing, or whose port or device goes: its stripes go,
// all writes land by the other, and a port that comes back is used again.
func TestARailThatGoes(t *testing.T) {
	for name, c := range map[string]struct {
		goes, comes func(f *soft)
	}{
		"black hole": {
			func(f *soft) { f.sever("a1", "b1", true) }, func(f *soft) { f.sever("a1", "b1", false) },
		},
		"port of a": {
			func(f *soft) { f.tell("a1", deviceEvent{kind: eventPortDown, port: 1, text: "port error"}) },
			func(f *soft) { f.tell("a1", deviceEvent{kind: eventPort, port: 1, text: "port active"}) },
		},
		"port of b": {
			func(f *soft) { f.tell("b1", deviceEvent{kind: eventPortDown, port: 1, text: "port error"}) },
			func(f *soft) { f.tell("b1", deviceEvent{kind: eventPort, port: 1, text: "port active"}) },
		},
		"device of a": {func(f *soft) { f.tell("a1", deviceEvent{kind: eventDevice, text: "device fatal error"}) }, nil},
		"device of b": {func(f *soft) { f.tell("b1", deviceEvent{kind: eventDevice, text: "device fatal error"}) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newSoft()
			w := newSoftWorld(t, f, 2, 2, func(c *Config) { c.QueuePairs = 1 })
			f.mu.Lock()
			f.lag = func() time.Duration { return 200 * time.Microsecond }
			f.mu.Unlock()
			ws := w.all(64)
			for i, x := range ws {
				if i == 16 {
					c.goes(f)
				}
				w.A.Post(w.number, x)
			}
			for id, c := range w.A.AwaitWrites(ws) {
				if c.Outcome != rdma.Landed {
					t.Errorf("write %d is %s: %v", id, c.Outcome, c.Err)
				}
			}
			w.same()
			eventually(t, "one stripe", func() bool {
				w.A.MustLand(w.number, w.all(4)...) // until the lost one had one of them
				return live(w.a, "b") == 1 && live(w.b, "a") == 1
			})
			if c.comes != nil {
				c.comes(f)
				eventually(t, "two stripes", func() bool { return live(w.a, "b") == 2 && live(w.b, "a") == 2 })
			}
			w.A.MustLand(w.number, w.all(8)...)
			w.B.Revoke(w.grant)
			w.Close()
		})
	}
}

// A port whose address changes: stripes of the old one go, new ones have the new one.
func TestAnAddressThatChanges(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	w.A.MustLand(w.number, w.all(8)...)
	gid := filepath.Join(w.a.config.Sysfs, "class/infiniband/a0/ports/1/gids/0")
	if err := os.WriteFile(gid, []byte(sysGID("10.99.0.1")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := f.queuesOf("a0")
	f.tell("a0", deviceEvent{kind: eventPort, port: 1, text: "GID change"})
	for _, q := range old {
		eventually(t, "the queue pair goes", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return q.state == destroyed })
	}
	// Both of a session's stripes went, so the session did, and the next one is made.
	w.disconnected(w.A)
	w.disconnected(w.B)
	w.A.Fence(w.number)
	w.B.Fence(w.number)
	w.number = w.Connect()
	w.A.MustLand(w.number, w.all(8)...)
	w.same()
	for _, q := range f.queuesOf("a0") {
		if got := q.link.Local.String(); got != "10.99.0.1" {
			t.Errorf("a queue pair uses %s", got)
		}
	}
	w.B.Revoke(w.grant)
	w.Close()
}

// The last stripe takes the session along, on both sides, and the next generation works.
func TestTheLastStripeEndsTheSession(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	f.sever("a0", "b0", true)
	ws := w.all(8)
	for _, x := range ws {
		if err := w.a.Post(w.A.Session(w.number), []*rdma.Write{x}); err != nil && !errors.Is(err, rdma.ErrNotConnected) {
			t.Fatal(err)
		}
	}
	why := w.disconnected(w.A)
	if !strings.Contains(why.Error(), "transport retries exceeded") || !strings.Contains(why.Error(), "of the path") {
		t.Errorf("a is told %v", why)
	}
	w.disconnected(w.B)
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome == rdma.Landed {
			t.Errorf("write %d has landed through a hole", id)
		}
	}
	f.sever("a0", "b0", false)
	w.A.Fence(w.number)
	w.B.Fence(w.number)
	w.number = w.Connect()
	w.A.MustLand(w.number, w.all(8)...)
	w.same()
	w.B.Revoke(w.grant)
	w.Close()
}

// A key that is not there any more is the peer's fault: the session ends with that, the
// sessions of others do not notice.
func TestAStaleKeyEndsOnlyItsSession(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	other := softNode(t, f, "c", 1)
	defer other.Close()
	number := rdma.Generation{Number: 1, Low: 5, High: 6}
	for _, x := range []struct {
		p    *Provider
		self string
		peer string
		to   *Provider
		dial bool
	}{{w.a, "a", "c", other, true}, {other, "c", "a", w.a, false}} {
		if err := x.p.Connect(rdma.Connection{Session: rdma.SessionID{Peer: x.peer, Generation: number}, Self: x.self, Dial: x.dial, Endpoint: x.to.Endpoint()}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the other session is up", func() bool { other.mu.Lock(); defer other.mu.Unlock(); return other.sessions["a"].state == up })

	w.A.MustLand(w.number, w.all(8)...)
	w.b.mu.Lock()
	stale := w.b.memory[w.to.Region].keys[0][0].(*softMemory)
	w.b.mu.Unlock()
	f.mu.Lock()
	delete(stale.nic.memory, stale.key)
	f.mu.Unlock()
	ws := w.all(8)
	if err := w.a.Post(w.A.Session(w.number), ws); err != nil {
		t.Fatal(err)
	}
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome == rdma.Landed {
			t.Errorf("write %d has landed without a key", id)
		}
	}
	why := w.disconnected(w.A)
	var q *QueueError
	if !errors.As(why, &q) || q.Status.Blame() != Peer || !strings.Contains(why.Error(), "remote access error") {
		t.Errorf("a is told %v", why)
	}
	w.a.mu.Lock()
	if s := w.a.sessions["c"]; s.state != up || len(s.stripes) != 2 {
		t.Errorf("the session of another peer is in state %d with %d stripes: %v", s.state, len(s.stripes), s.why)
	}
	w.a.mu.Unlock()
	f.mu.Lock()
	stale.nic.memory[stale.key] = stale
	f.mu.Unlock()
	w.disconnected(w.B)
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A device that does not destroy: the fence is answered all the same, says what is open,
// and the grant closes by itself when the device has done it. A byte that comes until
// then finds its memory registered.
func TestADestroyThatHangs(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.DestroyTimeout = 50 * time.Millisecond })
	w.A.MustLand(w.number, w.all(8)...)
	held := make(chan struct{})
	for _, q := range f.queuesOf("b0") {
		f.mu.Lock()
		q.hold = held
		f.mu.Unlock()
	}
	w.b.Fence(w.B.Session(w.number))
	w.B.Await("a fence with an open grant", func(evs []rdma.Event) bool {
		for _, ev := range evs {
			if x, ok := ev.(rdma.Fenced); ok && len(x.Open) == 1 && x.Open[0].Grant == w.grant {
				return true
			}
		}
		return false
	})
	if err := w.b.Deregister(w.to.Region); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("deregister answers %v, want ErrBusy", err)
	}
	w.b.Revoke(w.grant)
	w.B.Await("revoked, open", func(evs []rdma.Event) bool { return revoked(evs, w.grant, false) == 1 })
	if n := revoked(w.B.Seen(), w.grant, true); n != 0 {
		t.Error("the grant was closed while the device holds the queue pair")
	}
	close(held)
	w.B.Await("closed", func(evs []rdma.Event) bool { return revoked(evs, w.grant, true) == 1 })
	if err := w.b.Deregister(w.to.Region); err != nil {
		t.Error(err)
	}
	w.Close()
}

func revoked(evs []rdma.Event, g rdma.GrantID, closed bool) (n int) {
	for _, ev := range evs {
		if ev == (rdma.Revoked{Grant: g, Closed: closed}) {
			n++
		}
	}
	return n
}

// The same at the sender: what the device may still read is not given back, the rest is.
func TestADestroyThatHangsKeepsSources(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.DestroyTimeout = 50 * time.Millisecond; c.QueuePairs = 1 })
	held := make(chan struct{})
	for _, q := range f.queuesOf("a0") {
		f.mu.Lock()
		q.hold, q.mute = held, true
		f.mu.Unlock()
	}
	ws := w.all(8)
	if err := w.a.Post(w.A.Session(w.number), ws); err != nil {
		t.Fatal(err)
	}
	eventually(t, "something is posted", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.queues[17].posted+f.queues[18].posted > 0 })
	w.A.Fence(w.number)
	if err := w.a.Deregister(w.from.Region); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("deregister answers %v, want ErrBusy", err)
	}
	close(held)
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome == rdma.Landed || c.Outcome == rdma.Refused {
			t.Errorf("write %d is %s", id, c.Outcome)
		}
	}
	eventually(t, "the source is free", func() bool { return w.a.Deregister(w.from.Region) == nil })
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A device that hangs when a queue pair is made costs the session, not the fence, and
// no other session.
func TestAQueuePairThatIsNeverMade(t *testing.T) {
	f := newSoft()
	held := make(chan struct{})
	var hang atomic.Bool
	f.refuse = func(queueSize) error {
		if hang.Load() {
			<-held
		}
		return nil
	}
	short := func(c *Config) { c.DestroyTimeout, c.HandshakeTimeout = 50*time.Millisecond, 100*time.Millisecond }
	a, b := softNode(t, f, "a", 1, short), softNode(t, f, "b", 1, short)
	w := rdmatest.NewWorld(t, a, b)
	hang.Store(true)
	for _, x := range [][2]*rdmatest.Node{{w.A, w.B}, {w.B, w.A}} {
		if err := x[0].Connect(1, x[1]); err != nil {
			t.Fatal(err)
		}
	}
	sw := softWorld{World: w, t: t, number: 1}
	sw.disconnected(w.A)
	sw.disconnected(w.B)
	w.A.Fence(1)
	w.B.Fence(1)
	hang.Store(false)
	close(held)
	eventually(t, "nothing hangs", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.hung) == 0 })
	for _, x := range [][2]*rdmatest.Node{{w.A, w.B}, {w.B, w.A}} {
		if err := x[0].Connect(2, x[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*rdmatest.Node{w.A, w.B} {
		n.Await("connected", func(evs []rdma.Event) bool {
			for _, ev := range evs {
				if ev == (rdma.Connected{Session: n.Session(2)}) {
					return true
				}
			}
			return false
		})
	}
	w.Close()
}

// Records that a device still knows stay mapped: Close says so, and what comes late does
// not fall into memory of somebody else.
func TestRecordsOfAQueuePairThatStays(t *testing.T) {
	for name, c := range map[string]struct{ stays, goes func(q *softQueue) }{
		"its destroy hangs":     {func(q *softQueue) { q.hold = make(chan struct{}) }, func(q *softQueue) { close(q.hold) }},
		"its destroy fails":     {func(q *softQueue) { q.unwilling = 1 << 30 }, func(q *softQueue) { q.unwilling = 0 }},
		"the completions' does": {func(q *softQueue) { q.halfway = 1 << 30 }, func(q *softQueue) { q.halfway = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSoft()
			w := newSoftWorld(t, f, 1, 1, func(c *Config) { c.DestroyTimeout = 50 * time.Millisecond; c.QueuePairs = 1 })
			w.A.MustLand(w.number, w.all(8)...)
			q := f.queuesOf("b0")[0]
			f.mu.Lock()
			c.stays(q)
			f.mu.Unlock()
			w.b.mu.Lock()
			st := w.b.sessions["a"].stripes[0]
			w.b.mu.Unlock()
			if err := w.b.Close(); err == nil || !strings.Contains(err.Error(), "have not destroyed the queue pairs of 1 peers") {
				t.Errorf("close answers %v", err)
			}
			st.records.Bytes()[0]++ // a fault of memory, if it were unmapped
			f.mu.Lock()
			if st.card.nic.(*softNIC).memory[st.registered.(*softMemory).key] == nil {
				t.Error("the records are not registered any more")
			}
			c.goes(q)
			f.mu.Unlock()
			<-st.ended
			if err := w.a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A fence does not wait for a peer that takes the connection and says nothing.
func TestAFenceDoesNotWaitForTheDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var socks sync.WaitGroup
	taken := make(chan net.Conn, 8)
	socks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(taken)
				return
			}
			taken <- c
		}
	})
	f := newSoft()
	long := func(c *Config) { c.HandshakeTimeout, c.DialTimeout = time.Hour, time.Hour }
	a, b := softNode(t, f, "a", 1, long), softNode(t, f, "b", 1, long)
	w := rdmatest.NewWorld(t, a, b)
	e, err := readEndpoint(b.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	e.Address = l.Addr().String()
	endpoint, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	s := w.A.Session(1)
	if err := a.Connect(rdma.Connection{Session: s, Self: "a", Dial: true, Endpoint: endpoint}); err != nil {
		t.Fatal(err)
	}
	c := <-taken // and never answers
	w.A.Fence(1)
	_ = c.Close()
	_ = l.Close()
	socks.Wait()
	w.Close()
}

// Memory of a device is named by its addresses and reached by its file.
func TestMemoryOfADevice(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	backing, err := rdma.NewMemory("gpu", softSize)
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	const addr, offset = 0x7f42_0000_0000, 1 << 20
	d, err := rdma.NewDeviceMemory("gpu", rdma.DMABuf{File: backing.File(), Offset: offset, Addr: addr, Bytes: softSize - offset})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := w.b.Register(d)
	if err != nil {
		t.Fatal(err)
	}
	g := w.Grant(w.B, rdma.Range{Region: r.Region, Bytes: r.Bytes, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1, Step: 1}}})
	c := rdmatest.Contiguous(w.from, 0, w.to, 0, r.Bytes)
	c.Target.Region = r.Region
	w.A.MustLand(w.number, w.Write(1, g, c))
	if !bytes.Equal(backing.Bytes()[offset:], w.from.Memory.Bytes()[:softSize-offset]) {
		t.Error("the bytes of the device differ")
	}
	w.B.Revoke(g)
	w.B.Revoke(w.grant)
	w.Close()
}

// A registration that one device refuses leaves nothing behind with the others.
func TestMemoryThatOneDeviceRefuses(t *testing.T) {
	f := newSoft()
	var left atomic.Int32
	f.deny = func(w window, x access) error {
		if left.Add(-1) == 0 {
			return &MemoryError{Device: "a1", Bytes: w.bytes, Err: syscall.ENOMEM}
		}
		return nil
	}
	p := softNode(t, f, "a", 2, func(c *Config) { c.RegionBytes = 1 << 20 })
	m, err := rdma.NewMemory("pool", softSize)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for n := int32(1); n <= 16; n++ {
		left.Store(n)
		_, err := p.Register(m)
		var failed *MemoryError
		if !errors.As(err, &failed) || failed.Bytes != softSize {
			t.Errorf("refused at %d: got %v", n, err)
		}
		f.mu.Lock()
		for _, nic := range f.nics {
			if len(nic.memory) > 0 {
				t.Errorf("refused at %d: %s has %d registrations left", n, nic.name, len(nic.memory))
			}
		}
		f.mu.Unlock()
	}
	left.Store(0)
	if _, err := p.Register(m); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Two ports that cannot reach each other say why.
func TestRailsThatDoNotFit(t *testing.T) {
	f := newSoft()
	a := softNode(t, f, "a", 1)
	x := newTree(t)
	x.device("b0", "mlx5_core", "pci0000:01/0000:01:00.0", 0)
	x.port("b0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", "IB/RoCE v1|fe80::1")
	b, err := Listen(Config{Bind: "127.0.0.1:0", Sysfs: x.root, fabric: f})
	if err != nil {
		t.Fatal(err)
	}
	w := rdmatest.NewWorld(t, a, b)
	err = w.A.Connect(1, w.B)
	if err == nil || !strings.Contains(err.Error(), "a0:1 and b0:1: one is InfiniBand, the other Ethernet") {
		t.Errorf("connect answers %v", err)
	}
	w.Close()
}

// lateWorld is a world with two stripes of which the first request that a sends is late:
// a is told that it did not land, and then it does, if b's queue pair is still there. b's
// device does not stop a queue pair before held is closed.
func lateWorld(t *testing.T) (w *softWorld, placed *atomic.Int32, held chan struct{}) {
	f := newSoft()
	f.retry = 5 * time.Millisecond
	w = newSoftWorld(t, f, 1, 1, func(c *Config) { c.ChunkBytes = softSize })
	held, placed = make(chan struct{}), &atomic.Int32{}
	for _, q := range f.queuesOf("b0") {
		f.mu.Lock()
		q.hold, q.failErr = held, &CallError{Call: "ibv_modify_qp to ERR", Device: "b0", Err: syscall.EIO}
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first := true
	f.fate = func(q *softQueue) fate {
		if q.nic.name != "a0" || !first {
			return arrives
		}
		first = false
		return isLate
	}
	f.late = func() time.Duration { return 60 * time.Millisecond }
	f.onPlace = func(s Status) {
		if s == statusSuccess {
			placed.Add(1)
		} else {
			t.Error(s)
		}
	}
	return w, placed, held
}

// stripeLost waits until a has lost a stripe, and not heard that b has destroyed its end.
func (w *softWorld) stripeLost() {
	eventually(w.t, "a stripe is lost", func() bool {
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		return len(w.a.sessions["b"].limbo) > 0
	})
}

// What was unknown on a stripe is not sent again before the peer's end is destroyed, and
// a grant is not closed before: the late request finds its pages still granted.
func TestWhatIsLateFindsItsPagesGranted(t *testing.T) {
	t.Parallel()
	w, late, held := lateWorld(t)
	x := w.Write(1, w.grant, rdmatest.Contiguous(w.from, 0, w.to, 0, softSize))
	w.A.Post(w.number, x)
	w.stripeLost()
	w.b.Revoke(w.grant)
	eventually(t, "the late request has come", func() bool { return late.Load() > 0 })
	if n := revoked(w.B.Seen(), w.grant, true); n != 0 {
		t.Error("the grant was closed before the late request came")
	}
	w.a.mu.Lock()
	if got := w.from.Memory.Bytes(); w.a.sessions["b"].live[1] == nil || !bytes.Equal(got, w.to.Memory.Bytes()) {
		t.Errorf("the write has ended (%v), or the late request did not land: this test tests nothing", w.a.sessions["b"].live)
	}
	w.a.mu.Unlock()
	close(held)
	w.A.AwaitWrites([]*rdma.Write{x})
	w.B.Await("closed", func(evs []rdma.Event) bool { return revoked(evs, w.grant, true) == 1 })
	w.Close()
}

// A write that is quiesced while a part of it may still land is unknown, not "not posted",
// and keeps its grant open.
func TestWhatMayBeLateIsUnknown(t *testing.T) {
	t.Parallel()
	w, late, held := lateWorld(t)
	x := w.Write(1, w.grant, rdmatest.Contiguous(w.from, 0, w.to, 0, softSize))
	w.A.Post(w.number, x)
	w.stripeLost()
	w.a.Quiesce(1)
	if c := w.A.AwaitWrites([]*rdma.Write{x})[x.ID]; c.Outcome != rdma.Unknown {
		t.Errorf("it is %s: %v", c.Outcome, c.Err)
	}
	w.b.Revoke(w.grant) // no write under it is left, and it is not closed
	eventually(t, "the late request has come", func() bool { return late.Load() > 0 })
	if n := revoked(w.B.Seen(), w.grant, true); n != 0 {
		t.Error("the grant was closed before the late request came")
	}
	close(held)
	w.B.Await("closed", func(evs []rdma.Event) bool { return revoked(evs, w.grant, true) == 1 })
	w.Close()
}

// A packet of a connection that is over does not fit the next one that has its number.
func TestNumbersThatAreUsedAgain(t *testing.T) {
	f := newSoft()
	w := newSoftWorld(t, f, 1, 1)
	seen := map[uint32]map[uint32]bool{} // PSNs, by number of the queue pair
	for range 8 {
		for _, q := range append(f.queuesOf("a0"), f.queuesOf("b0")...) {
			if seen[q.qpn] == nil {
				seen[q.qpn] = map[uint32]bool{}
			}
			if seen[q.qpn][q.expected] {
				t.Errorf("queue pair %d begins at %d again", q.qpn, q.expected)
			}
			seen[q.qpn][q.expected] = true
		}
		w.A.Fence(w.number)
		w.B.Fence(w.number)
		w.number = w.Connect()
	}
	w.B.Fence(w.number)
	w.B.Revoke(w.grant)
	w.Close()
}

// A receiver that takes nothing for a while is sent no more arrivals than it has receives
// for, and no stripe is lost by that; then all goes on.
func TestAReceiverThatIsSlow(t *testing.T) {
	f := newSoft()
	f.limit = func(string) Limits {
		l := softLimits
		l.MaxCQE = 128 // of them 32 receives
		return l
	}
	w := newSoftWorld(t, f, 1, 1)
	stripes := f.queuesOf("b0")
	f.mu.Lock()
	for _, q := range stripes {
		q.deaf = true
	}
	f.mu.Unlock()
	var ws []*rdma.Write
	for i := range uint64(200) {
		ws = append(ws, w.Write(1, w.grant, rdmatest.Contiguous(w.from, i*64, w.to, i*64, 64)))
	}
	w.A.Post(w.number, ws...)
	eventually(t, "both stripes have no credit left", func() bool {
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		full := 0
		for _, st := range w.a.sessions["b"].stripes {
			if st.sent == st.credit && st.sent == 32 && len(st.chunks) == 0 {
				full++
			}
		}
		return full == 2
	})
	time.Sleep(2 * f.retry) // one more would have been given up by now
	if n := live(w.a, "b"); n != 2 {
		t.Errorf("%d stripes carry writes, want 2", n)
	}
	f.mu.Lock()
	for _, q := range stripes {
		q.deaf = false
		q.signals++
		q.signal.Broadcast()
	}
	f.mu.Unlock()
	for id, c := range w.A.AwaitWrites(ws) {
		if c.Outcome != rdma.Landed {
			t.Fatalf("write %d is %s: %v", id, c.Outcome, c.Err)
		}
	}
	if !bytes.Equal(w.from.Memory.Bytes()[:200*64], w.to.Memory.Bytes()[:200*64]) {
		t.Error("the bytes differ")
	}
	w.B.Revoke(w.grant)
	w.Close()
}
