package rdmatest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvferry/transport/rdma"
)

// patience is how long the suite waits for an event that must come. Machines that are
// emulated need it long.
const patience = 90 * time.Second

// world is two nodes and what they told.
type world struct {
	t       *testing.T
	a, b    *node
	grants  uint64
	writes  rdma.WriteID
	memory  []*rdma.Memory
	session uint64 // number of the newest generation
}

// node is one provider and the events that it gave.
type node struct {
	t      *testing.T
	name   string
	p      rdma.Provider
	polled sync.WaitGroup

	mu     sync.Mutex
	more   *sync.Cond
	events []rdma.Event
}

func newWorld(t *testing.T, a, b rdma.Provider) *world {
	return &world{t: t, a: newNode(t, "a", a), b: newNode(t, "b", b)}
}

func newNode(t *testing.T, name string, p rdma.Provider) *node {
	n := &node{t: t, name: name, p: p}
	n.more = sync.NewCond(&n.mu)
	n.polled.Go(func() {
		evs := make([]rdma.Event, 16)
		for {
			k, err := p.Poll(context.Background(), evs)
			n.mu.Lock()
			n.events = append(n.events, evs[:k]...)
			n.more.Broadcast()
			n.mu.Unlock()
			if err != nil {
				if !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("%s: poll: %v", name, err)
				}
				return
			}
		}
	})
	return n
}

// close ends both providers and unmaps the memory.
func (w *world) close() {
	w.t.Helper()
	for _, n := range []*node{w.a, w.b} {
		if err := n.p.Close(); err != nil {
			w.t.Errorf("%s: close: %v", n.name, err)
		}
		n.polled.Wait()
	}
	for _, m := range w.memory {
		if err := m.Close(); err != nil {
			w.t.Error(err)
		}
	}
}

// watchLeaks compares goroutines and file descriptors with what is there now.
func watchLeaks(t *testing.T) (check func()) {
	fds := openFiles(t)
	ignore := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		goleak.VerifyNone(t, ignore)
		if after := openFiles(t); after > fds {
			t.Errorf("%d file descriptors are open, %d were before", after, fds)
		}
	}
}

func openFiles(t *testing.T) int {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}

// await waits until the events of the node satisfy done.
func (n *node) await(what string, done func(evs []rdma.Event) bool) {
	n.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		late = true
		n.more.Broadcast()
	})
	defer timer.Stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for !done(n.events) {
		if late {
			n.t.Fatalf("%s: %s did not come within %s; last events: %+v", n.name, what, patience, n.events[max(0, len(n.events)-10):])
		}
		n.more.Wait()
	}
}

// count is how many events are such.
func count(evs []rdma.Event, is func(rdma.Event) bool) int {
	k := 0
	for _, ev := range evs {
		if is(ev) {
			k++
		}
	}
	return k
}

// seen is the events so far.
func (n *node) seen() []rdma.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

// session is how one node names generation number of the pair.
func (n *node) session(number uint64) rdma.SessionID {
	peer := "b"
	if n.name == "b" {
		peer = "a"
	}
	return rdma.SessionID{Peer: peer, Generation: rdma.Generation{Number: number, Low: number * 3, High: number * 5}}
}

func (n *node) connect(number uint64, to *node) error {
	return n.p.Connect(rdma.Connection{
		Session: n.session(number), Self: n.name, Dial: n.name == "a", Endpoint: to.p.Endpoint(),
	})
}

// connect makes the next generation, and waits for both sides.
func (w *world) connect() uint64 {
	w.t.Helper()
	w.session++
	number := w.session
	for _, pair := range [][2]*node{{w.a, w.b}, {w.b, w.a}} {
		if err := pair[0].connect(number, pair[1]); err != nil {
			w.t.Fatalf("%s: connect: %v", pair[0].name, err)
		}
	}
	w.a.await("connected", has(rdma.Connected{Session: w.a.session(number)}))
	w.b.await("connected", has(rdma.Connected{Session: w.b.session(number)}))
	return number
}

func has(want rdma.Event) func([]rdma.Event) bool {
	return func(evs []rdma.Event) bool {
		return slices.ContainsFunc(evs, func(ev rdma.Event) bool {
			switch ev.(type) {
			case rdma.Connected, rdma.Revoked:
				return ev == want
			}
			return false
		})
	}
}

// region is registered memory.
type region struct {
	*rdma.Memory
	rdma.Descriptor
}

// register maps and registers size bytes.
func (w *world) register(n *node, size uint64) region {
	w.t.Helper()
	m, err := rdma.NewMemory("rdmatest", size)
	if err != nil {
		w.t.Fatal(err)
	}
	w.memory = append(w.memory, m)
	d, err := n.p.Register(m)
	if err != nil {
		w.t.Fatal(err)
	}
	if d.Bytes != size {
		w.t.Fatalf("descriptor says %d bytes, want %d", d.Bytes, size)
	}
	return region{m, d}
}

func (r region) fill(b byte) {
	all := r.Memory.Bytes()
	all[0] = b
	for n := 1; n < len(all); n *= 2 { // by copies: the race detector looks at every store
		copy(all[n:], all[:n])
	}
}

// isAll reports the first byte that is not b, -1 when there is none.
func isAll(all []byte, b byte) int {
	if bytes.Count(all, []byte{b}) == len(all) {
		return -1
	}
	return slices.IndexFunc(all, func(x byte) bool { return x != b })
}

// noPoison fails if something was read after its source was given back.
func (w *world) noPoison(r region) {
	w.t.Helper()
	if i := bytes.IndexByte(r.Memory.Bytes(), poison); i >= 0 {
		w.t.Fatalf("byte %d was read after the source was given back", i)
	}
}

// grantID is the next id of the world.
func (w *world) grantID() (id rdma.GrantID) {
	w.grants++
	binary.LittleEndian.PutUint64(id[:], w.grants)
	return id
}

// whole is one range over all of a region.
func whole(r region) rdma.Range {
	return rdma.Range{Region: r.Region, Bytes: r.Descriptor.Bytes, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{First: 0, Count: 1, Step: 1}}}
}

// grant gives the other node all of a region of n.
func (w *world) grant(n *node, ranges ...rdma.Range) rdma.GrantID {
	w.t.Helper()
	id := w.grantID()
	if err := n.p.Grant(rdma.Grant{ID: id, Peer: n.session(0).Peer, Ranges: ranges}); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// contiguous copies bytes from offset of one region to offset of another.
func contiguous(from region, fromOffset uint64, to region, toOffset, bytes uint64) rdma.Copy {
	return rdma.Copy{
		Source: rdma.Place{Region: from.Region, Offset: fromOffset},
		Target: rdma.Place{Region: to.Region, Offset: toOffset},
		Bytes:  bytes, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}
}

func (w *world) write(tag rdma.Tag, g rdma.GrantID, copies ...rdma.Copy) *rdma.Write {
	w.writes++
	return &rdma.Write{ID: w.writes, Tag: tag, Grant: g, Copies: copies}
}

// post posts until the window takes it.
func (n *node) post(number uint64, ws ...*rdma.Write) {
	n.t.Helper()
	for {
		before := len(n.completions())
		err := n.p.Post(n.session(number), ws)
		if err == nil {
			return
		}
		if !errors.Is(err, rdma.ErrFull) {
			n.t.Fatalf("%s: post: %v", n.name, err)
		}
		n.await("a completion after ErrFull", func([]rdma.Event) bool { return len(n.completionsLocked()) > before })
	}
}

func (n *node) completions() []rdma.Completed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.completionsLocked()
}

func (n *node) completionsLocked() (cs []rdma.Completed) {
	for _, ev := range n.events {
		if c, ok := ev.(rdma.Completed); ok {
			cs = append(cs, c)
		}
	}
	return cs
}

// awaitWrites waits for the completion of every write, and checks that each comes
// once. It returns them by id.
func (n *node) awaitWrites(ws []*rdma.Write) map[rdma.WriteID]rdma.Completed {
	n.t.Helper()
	ids := map[rdma.WriteID]*rdma.Write{}
	for _, w := range ws {
		ids[w.ID] = w
	}
	got := map[rdma.WriteID]rdma.Completed{}
	n.await("completions", func([]rdma.Event) bool {
		clear(got)
		for _, c := range n.completionsLocked() {
			if ids[c.ID] != nil {
				if _, twice := got[c.ID]; twice {
					n.t.Fatalf("%s: write %d completed twice", n.name, c.ID)
				}
				got[c.ID] = c
			}
		}
		return len(got) == len(ws)
	})
	for id, c := range got {
		if c.Tag != ids[id].Tag || c.Bytes != ids[id].Bytes() {
			n.t.Errorf("%s: write %d has tag %d and %d bytes, want %d and %d", n.name, id, c.Tag, c.Bytes, ids[id].Tag, ids[id].Bytes())
		}
		if (c.Outcome == rdma.Landed) != (c.Err == nil) || (c.Outcome == rdma.Landed) != (c.Arrivals != nil) {
			n.t.Errorf("%s: write %d is %s with error %v and arrivals %v", n.name, id, c.Outcome, c.Err, c.Arrivals)
		}
	}
	return got
}

// mustLand posts writes and waits until they have landed.
func (n *node) mustLand(number uint64, ws ...*rdma.Write) {
	n.t.Helper()
	for _, w := range ws {
		n.post(number, w)
	}
	for id, c := range n.awaitWrites(ws) {
		if c.Outcome != rdma.Landed {
			n.t.Fatalf("%s: write %d is %s (%v), want landed", n.name, id, c.Outcome, c.Err)
		}
	}
}

// fence fences and waits for the answer.
func (n *node) fence(number uint64) {
	n.t.Helper()
	is := func(ev rdma.Event) bool { f, ok := ev.(rdma.Fenced); return ok && f.Session == n.session(number) }
	before := count(n.seen(), is)
	n.p.Fence(n.session(number))
	n.await("fenced", func(evs []rdma.Event) bool { return count(evs, is) > before })
}

// revoke revokes, and waits until the grant is closed: by the answer, or later where
// the provider has to hear from the peer first. It reports that it did.
func (n *node) revoke(g rdma.GrantID) bool {
	n.t.Helper()
	closed := false
	is := func(ev rdma.Event) bool {
		r, ok := ev.(rdma.Revoked)
		if ok && r.Grant == g {
			closed = r.Closed
		}
		return ok && r.Grant == g
	}
	before := count(n.seen(), is)
	n.p.Revoke(g)
	n.await("revoked", func(evs []rdma.Event) bool { return count(evs, is) > before && closed })
	return closed
}
