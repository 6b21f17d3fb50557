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

// World is two nodes and what they told. Its methods fail the test where something
// that must come does not.
type World struct {
	t       *testing.T
	A, B    *Node // A dials
	grants  uint64
	writes  rdma.WriteID
	memory  []*rdma.Memory
	session uint64 // number of the newest generation
}

// Node is one provider and the events that it gave.
type Node struct {
	t      *testing.T
	name   string
	P      rdma.Provider
	polled sync.WaitGroup

	mu     sync.Mutex
	more   *sync.Cond
	events []rdma.Event
}

// NewWorld makes a world of two providers; Close ends them.
func NewWorld(t *testing.T, a, b rdma.Provider) *World {
	return &World{t: t, A: newNode(t, "a", a), B: newNode(t, "b", b)}
}

func newNode(t *testing.T, name string, p rdma.Provider) *Node {
	n := &Node{t: t, name: name, P: p}
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

// Close ends both providers and unmaps the memory.
func (w *World) Close() {
	w.t.Helper()
	for _, n := range []*Node{w.A, w.B} {
		if err := n.P.Close(); err != nil {
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

// Await waits until the events of the node satisfy done.
func (n *Node) Await(what string, done func(evs []rdma.Event) bool) {
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

// Seen is the events so far.
func (n *Node) Seen() []rdma.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

// Session is how one node names generation number of the pair.
func (n *Node) Session(number uint64) rdma.SessionID {
	peer := "b"
	if n.name == "b" {
		peer = "a"
	}
	return rdma.SessionID{Peer: peer, Generation: rdma.Generation{Number: number, Low: number * 3, High: number * 5}}
}

func (n *Node) Connect(number uint64, to *Node) error {
	return n.P.Connect(rdma.Connection{
		Session: n.Session(number), Self: n.name, Dial: n.name == "a", Endpoint: to.P.Endpoint(),
	})
}

// Connect makes the next generation, and waits for both sides.
func (w *World) Connect() uint64 {
	w.t.Helper()
	w.session++
	number := w.session
	for _, pair := range [][2]*Node{{w.A, w.B}, {w.B, w.A}} {
		if err := pair[0].Connect(number, pair[1]); err != nil {
			w.t.Fatalf("%s: connect: %v", pair[0].name, err)
		}
	}
	w.A.Await("connected", has(rdma.Connected{Session: w.A.Session(number)}))
	w.B.Await("connected", has(rdma.Connected{Session: w.B.Session(number)}))
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

// Region is registered memory.
type Region struct {
	*rdma.Memory
	rdma.Descriptor
}

// Register maps and registers size bytes.
func (w *World) Register(n *Node, size uint64) Region {
	w.t.Helper()
	m, err := rdma.NewMemory("rdmatest", size)
	if err != nil {
		w.t.Fatal(err)
	}
	w.memory = append(w.memory, m)
	d, err := n.P.Register(m)
	if err != nil {
		w.t.Fatal(err)
	}
	if d.Bytes != size {
		w.t.Fatalf("descriptor says %d bytes, want %d", d.Bytes, size)
	}
	return Region{m, d}
}

// Fill writes b to all of it.
func (r Region) Fill(b byte) {
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
func (w *World) noPoison(r Region) {
	w.t.Helper()
	if i := bytes.IndexByte(r.Memory.Bytes(), poison); i >= 0 {
		w.t.Fatalf("byte %d was read after the source was given back", i)
	}
}

// grantID is the next id of the world.
func (w *World) grantID() (id rdma.GrantID) {
	w.grants++
	binary.LittleEndian.PutUint64(id[:], w.grants)
	return id
}

// Whole is one range over all of a region.
func Whole(r Region) rdma.Range {
	return rdma.Range{Region: r.Region, Bytes: r.Descriptor.Bytes, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{First: 0, Count: 1, Step: 1}}}
}

// Grant gives the other node all of a region of n.
func (w *World) Grant(n *Node, ranges ...rdma.Range) rdma.GrantID {
	w.t.Helper()
	id := w.grantID()
	if err := n.P.Grant(rdma.Grant{ID: id, Peer: n.Session(0).Peer, Ranges: ranges}); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// Contiguous copies bytes from offset of one region to offset of another.
func Contiguous(from Region, fromOffset uint64, to Region, toOffset, bytes uint64) rdma.Copy {
	return rdma.Copy{
		Source: rdma.Place{Region: from.Region, Offset: fromOffset},
		Target: rdma.Place{Region: to.Region, Offset: toOffset},
		Bytes:  bytes, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}
}

// Write makes the next write of the world.
func (w *World) Write(tag rdma.Tag, g rdma.GrantID, copies ...rdma.Copy) *rdma.Write {
	w.writes++
	return &rdma.Write{ID: w.writes, Tag: tag, Grant: g, Copies: copies}
}

// Post posts until the window takes it.
func (n *Node) Post(number uint64, ws ...*rdma.Write) {
	n.t.Helper()
	for {
		before := len(n.completions())
		err := n.P.Post(n.Session(number), ws)
		if err == nil {
			return
		}
		if !errors.Is(err, rdma.ErrFull) {
			n.t.Fatalf("%s: post: %v", n.name, err)
		}
		n.Await("a completion after ErrFull", func([]rdma.Event) bool { return len(n.completionsLocked()) > before })
	}
}

func (n *Node) completions() []rdma.Completed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.completionsLocked()
}

func (n *Node) completionsLocked() (cs []rdma.Completed) {
	for _, ev := range n.events {
		if c, ok := ev.(rdma.Completed); ok {
			cs = append(cs, c)
		}
	}
	return cs
}

// AwaitWrites waits for the completion of every write, and checks that each comes
// once. It returns them by id.
func (n *Node) AwaitWrites(ws []*rdma.Write) map[rdma.WriteID]rdma.Completed {
	n.t.Helper()
	ids := map[rdma.WriteID]*rdma.Write{}
	for _, w := range ws {
		ids[w.ID] = w
	}
	got := map[rdma.WriteID]rdma.Completed{}
	n.Await("completions", func([]rdma.Event) bool {
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
		landed := c.Outcome == rdma.Landed
		if landed != (c.Err == nil) || landed != (c.Arrivals != nil) && c.Outcome != rdma.Unknown {
			n.t.Errorf("%s: write %d is %s with error %v and arrivals %v", n.name, id, c.Outcome, c.Err, c.Arrivals)
		}
	}
	return got
}

// MustLand posts writes and waits until they have landed.
func (n *Node) MustLand(number uint64, ws ...*rdma.Write) {
	n.t.Helper()
	for _, w := range ws {
		n.Post(number, w)
	}
	for id, c := range n.AwaitWrites(ws) {
		if c.Outcome != rdma.Landed {
			n.t.Fatalf("%s: write %d is %s (%v), want landed", n.name, id, c.Outcome, c.Err)
		}
	}
}

// Fence fences and waits for the answer.
func (n *Node) Fence(number uint64) {
	n.t.Helper()
	is := func(ev rdma.Event) bool { f, ok := ev.(rdma.Fenced); return ok && f.Session == n.Session(number) }
	before := count(n.Seen(), is)
	n.P.Fence(n.Session(number))
	n.Await("fenced", func(evs []rdma.Event) bool { return count(evs, is) > before })
}

// Revoke revokes, and waits until the grant is closed. It reports whether the answer
// said so: a provider may have to hear from the peer first.
func (n *Node) Revoke(g rdma.GrantID) (atOnce bool) {
	n.t.Helper()
	is := func(ev rdma.Event) bool { r, ok := ev.(rdma.Revoked); return ok && r.Grant == g }
	before := count(n.Seen(), is)
	n.P.Revoke(g)
	n.Await("revoked", func(evs []rdma.Event) bool {
		answers := slices.DeleteFunc(slices.Clone(evs), func(ev rdma.Event) bool { return !is(ev) })[before:]
		closed := rdma.Revoked{Grant: g, Closed: true}
		atOnce = len(answers) > 0 && answers[0] == closed
		return slices.Contains(answers, rdma.Event(closed))
	})
	return atOnce
}
