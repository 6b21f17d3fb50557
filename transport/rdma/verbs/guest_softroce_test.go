//go:build cgo && linux

package verbs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// guest is a provider in the guest of tests/softroce, and what it told.
type guest struct {
	t      *testing.T
	name   string
	p      *Provider
	polled sync.WaitGroup
	closed bool

	mu     sync.Mutex
	newest rdma.WriteID
	events []rdma.Event // but completions
	ended  map[rdma.WriteID]rdma.Completed
}

// guestBound is how long what must come may take there.
const guestBound = 30 * time.Second

// guestChunk makes many chains of little data.
const guestChunk = 64 << 10

func guestConfig(name string, devices ...string) Config {
	c := Config{Bind: "127.0.0.1:0", ChunkBytes: guestChunk, WindowWrites: 64, fabric: libibverbs{}, Log: func(_ Level, text string) {
		if !strings.Contains(text, "is not used: ") {
			fmt.Fprintln(os.Stderr, "    "+time.Now().Format("05.000"), name+":", text)
		}
	}}
	for _, d := range devices {
		c.Devices = append(c.Devices, Pick{Device: d, GID: -1})
	}
	return c
}

// inGuest skips a test elsewhere.
func inGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("KVFERRY_SOFTROCE") == "" {
		t.Skip("this is not the guest of tests/softroce/run")
	}
	if err := loadFrom(libraryName); err != nil { // another test has loaded its own
		t.Fatal(err)
	}
}

// listenGuest starts a provider; the end of the test closes it.
func listenGuest(t *testing.T, name string, c Config) *guest {
	t.Helper()
	p, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, name: name, p: p, ended: map[rdma.WriteID]rdma.Completed{}}
	g.polled.Go(func() {
		evs := make([]rdma.Event, 16)
		for {
			n, err := p.Poll(context.Background(), evs)
			g.take(evs[:n])
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(g.close)
	return g
}

func (g *guest) take(evs []rdma.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ev := range evs {
		c, ok := ev.(rdma.Completed)
		if !ok {
			g.events = append(g.events, ev)
			continue
		}
		if _, twice := g.ended[c.ID]; twice {
			g.t.Errorf("%s: write %d completed twice", g.name, c.ID)
		}
		g.ended[c.ID] = c
	}
}

// close closes the provider, within the bound.
func (g *guest) close() {
	g.t.Helper()
	if g.closed {
		return
	}
	g.closed = true
	closed := make(chan error, 1)
	go func() { closed <- g.p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			g.t.Errorf("%s: close: %v", g.name, err)
		}
		g.polled.Wait()
	case <-time.After(guestBound):
		g.t.Errorf("%s: close has not returned within %s", g.name, guestBound)
	}
}

// memory registers size bytes. They stay mapped: a provider that could not be closed may
// still use them.
func (g *guest) memory(size uint64) rdmatest.Region {
	g.t.Helper()
	m, err := rdma.NewMemory("guest", size)
	if err != nil {
		g.t.Fatal(err)
	}
	d, err := g.p.Register(m)
	if err != nil {
		g.t.Fatal(err)
	}
	return rdmatest.Region{Memory: m, Descriptor: d}
}

// grant gives a peer all of a region. The id is of the names and the region.
func (g *guest) grant(peer string, to rdmatest.Region) rdma.GrantID {
	g.t.Helper()
	id := rdma.GrantID{g.name[0], peer[0], byte(to.Region)}
	if err := g.p.Grant(rdma.Grant{ID: id, Peer: peer, Ranges: []rdma.Range{rdmatest.Whole(to)}}); err != nil {
		g.t.Fatal(err)
	}
	return id
}

// guestSession is how one node names a generation with another.
func guestSession(peer string, number uint64) rdma.SessionID {
	return rdma.SessionID{Peer: peer, Generation: rdma.Generation{Number: number, Low: number * 3, High: number * 5}}
}

// connect dials if there is an endpoint.
func (g *guest) connect(peer string, number uint64, endpoint []byte) {
	g.t.Helper()
	c := rdma.Connection{Session: guestSession(peer, number), Self: g.name, Dial: endpoint != nil, Endpoint: endpoint}
	if err := g.p.Connect(c); err != nil {
		g.t.Fatalf("%s: connect: %v", g.name, err)
	}
}

// join connects two nodes, and waits until both are.
func (g *guest) join(to *guest, number uint64) {
	g.t.Helper()
	to.connect(g.name, number, nil)
	g.connect(to.name, number, to.p.Endpoint())
	g.connected(to.name, number)
	to.connected(g.name, number)
}

// find waits for an event.
func find[E rdma.Event](g *guest, what string, is func(E) bool) (found E) {
	g.t.Helper()
	look := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		i := slices.IndexFunc(g.events, func(ev rdma.Event) bool { e, ok := ev.(E); return ok && is(e) })
		if i >= 0 {
			found = g.events[i].(E)
		}
		return i >= 0
	}
	g.await(what, look)
	return found
}

// await waits within the bound.
func (g *guest) await(what string, is func() bool) {
	g.t.Helper()
	for until := time.Now().Add(guestBound); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			g.t.Fatalf("%s: %s: not within %s; last events: %s", g.name, what, guestBound, g.lately())
		}
	}
}

// lately is the last events, for people.
func (g *guest) lately() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%+v", g.events[max(0, len(g.events)-5):])
}

func (g *guest) connected(peer string, number uint64) {
	g.t.Helper()
	find(g, "connected to "+peer, func(e rdma.Connected) bool { return e.Session == guestSession(peer, number) })
}

// disconnected waits until a session has ended by itself, and returns why.
func (g *guest) disconnected(peer string, number uint64) error {
	g.t.Helper()
	return find(g, "disconnected from "+peer, func(e rdma.Disconnected) bool { return e.Session == guestSession(peer, number) }).Err
}

// fence fences, and checks that nothing is left open.
func (g *guest) fence(peer string, number uint64) {
	g.t.Helper()
	g.p.Fence(guestSession(peer, number))
	f := find(g, "fenced of "+peer, func(e rdma.Fenced) bool { return e.Session == guestSession(peer, number) })
	if len(f.Open) > 0 {
		g.t.Errorf("%s: the fence of %s leaves open %v", g.name, peer, f.Open)
	}
}

// usable waits until the ports of a provider carry something again.
func (g *guest) usable() {
	g.t.Helper()
	g.await("its ports are up", func() bool {
		g.p.mu.Lock()
		defer g.p.mu.Unlock()
		return !slices.ContainsFunc(g.p.cards, func(c *card) bool { return c.down != "" })
	})
}

// write makes a write of bytes from a place of one region to a place of another.
func (g *guest) write(tag rdma.Tag, id rdma.GrantID, from rdmatest.Region, at uint64, to rdmatest.Region, place, bytes uint64) *rdma.Write {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.newest++
	return &rdma.Write{ID: g.newest, Tag: tag, Grant: id, Copies: []rdma.Copy{rdmatest.Contiguous(from, at, to, place, bytes)}}
}

// all is n writes that together move all of from to the same places of to.
func (g *guest) all(tag rdma.Tag, id rdma.GrantID, from, to rdmatest.Region, n uint64) (ws []*rdma.Write) {
	bytes := from.Descriptor.Bytes / n
	for i := range n {
		ws = append(ws, g.write(tag, id, from, i*bytes, to, i*bytes, bytes))
	}
	return ws
}

func (g *guest) post(peer string, number uint64, ws []*rdma.Write) {
	g.t.Helper()
	if err := g.p.Post(guestSession(peer, number), ws); err != nil {
		g.t.Fatalf("%s: post: %v; last events: %s", g.name, err, g.lately())
	}
}

// ends is how those of the writes that have ended did.
func (g *guest) ends(ws []*rdma.Write) (ends []rdma.Completed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range ws {
		if c, ok := g.ended[w.ID]; ok {
			ends = append(ends, c)
		}
	}
	return ends
}

// some waits until n of the writes have ended.
func (g *guest) some(ws []*rdma.Write, n int) []rdma.Completed {
	g.t.Helper()
	g.await(fmt.Sprintf("%d of %d writes end", n, len(ws)), func() bool { return len(g.ends(ws)) >= n })
	return g.ends(ws)
}

// land waits until all of the writes have landed.
func (g *guest) land(ws []*rdma.Write) []rdma.Completed {
	g.t.Helper()
	ends := g.some(ws, len(ws))
	for _, c := range ends {
		if c.Outcome != rdma.Landed {
			g.t.Fatalf("%s: write %d is %s (%v), want landed", g.name, c.ID, c.Outcome, c.Err)
		}
	}
	return ends
}

// cutShort waits until all of the writes have ended, and checks that those which have not
// landed say why. It counts those that have.
func (g *guest) cutShort(ws []*rdma.Write) (landed int) {
	g.t.Helper()
	for _, c := range g.some(ws, len(ws)) {
		switch {
		case c.Outcome == rdma.Landed:
			landed++
		case c.Err == nil:
			g.t.Errorf("%s: write %d is %s, and does not say why", g.name, c.ID, c.Outcome)
		case c.Outcome == rdma.Refused:
			g.t.Errorf("%s: write %d is refused by nobody: %v", g.name, c.ID, c.Err)
		}
	}
	return landed
}

// same checks that the bytes of those of the writes that landed are those of their sources.
func (g *guest) same(ws []*rdma.Write, from, to rdmatest.Region) {
	g.t.Helper()
	ended := map[rdma.WriteID]rdma.Outcome{}
	for _, c := range g.ends(ws) {
		ended[c.ID] = c.Outcome
	}
	for _, w := range ws {
		c := &w.Copies[0]
		source, target := from.Memory.Bytes()[c.Source.Offset:][:c.Bytes], to.Memory.Bytes()[c.Target.Offset:][:c.Bytes]
		if ended[w.ID] == rdma.Landed && !bytes.Equal(source, target) {
			g.t.Errorf("%s: write %d has landed, and its bytes differ", g.name, w.ID)
		}
	}
}

// stream writes all of a region again and again, each time from elsewhere, until it is
// stopped or its session is over.
type stream struct {
	g        *guest
	from, to rdmatest.Region
	stop     func()
	stopped  chan struct{} // closed when nothing more is posted

	// Its goroutine's until then.
	posted []*rdma.Write
	last   []*rdma.Write // by place
}

const (
	streamBytes  = 2 * guestChunk // one write: two chains
	streamWindow = 24             // writes on the way
)

// stream begins one, and waits until some of it has landed.
func (g *guest) stream(peer string, number uint64, id rdma.GrantID, from, to rdmatest.Region) *stream {
	g.t.Helper()
	stop := make(chan struct{})
	s := &stream{
		g: g, from: from, to: to, stop: sync.OnceFunc(func() { close(stop) }), stopped: make(chan struct{}),
		last: make([]*rdma.Write, to.Descriptor.Bytes/streamBytes),
	}
	g.t.Cleanup(s.stop)
	landed := func() int { g.mu.Lock(); defer g.mu.Unlock(); return len(g.ended) }
	before := landed()
	go s.post(guestSession(peer, number), id, stop)
	g.await("a stream begins", func() bool { return landed() >= before+8 })
	return s
}

// post posts to one place after another, and to each when the write before has ended: so
// the last that landed says what is there. It leaves the guest time for other things.
func (s *stream) post(session rdma.SessionID, id rdma.GrantID, stop <-chan struct{}) {
	defer close(s.stopped)
	places := len(s.last)
	for n := 0; ; time.Sleep(4 * time.Millisecond) {
		select {
		case <-stop:
			return
		default:
		}
		place, at := n%places, (n+n/places*7)%places
		if n >= streamWindow && !s.ended(s.posted[n-streamWindow]) || !s.ended(s.last[place]) {
			continue
		}
		w := s.g.write(1, id, s.from, uint64(at*streamBytes), s.to, uint64(place*streamBytes), streamBytes)
		if s.g.p.Post(session, []*rdma.Write{w}) != nil {
			return
		}
		s.posted, s.last[place] = append(s.posted, w), w
		n++
	}
}

func (s *stream) ended(w *rdma.Write) bool {
	return w == nil || len(s.g.ends([]*rdma.Write{w})) > 0
}

// end stops the stream, or waits for the end of its session, and returns what was posted.
func (s *stream) end(now bool) []*rdma.Write {
	s.g.t.Helper()
	if now {
		s.stop()
	}
	s.g.await("a stream ends", func() bool {
		select {
		case <-s.stopped:
			return true
		default:
			return false
		}
	})
	return s.posted
}

// same checks the bytes of what landed.
func (s *stream) same() {
	s.g.t.Helper()
	<-s.stopped
	s.g.same(slices.DeleteFunc(slices.Clone(s.last), func(w *rdma.Write) bool { return w == nil }), s.from, s.to)
}

// command runs a program of the guest.
func command(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), guestBound)
	defer cancel()
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// lose makes interfaces lose all or a share of what they send, until end is called or the
// test ends.
func lose(t *testing.T, share string, interfaces ...string) (end func()) {
	t.Helper()
	set := func(share string) {
		for _, x := range interfaces {
			command(t, "/bin/lose", x, share)
		}
	}
	end = sync.OnceFunc(func() { set("0%") })
	t.Cleanup(end)
	set(share)
	return end
}

// cutLink takes an interface down, and with it the other end of its pair, until end is
// called or the test ends.
func cutLink(t *testing.T, name string) (end func()) {
	t.Helper()
	end = sync.OnceFunc(func() { wire(t, name) })
	t.Cleanup(end)
	command(t, "/bin/ip", "link", "set", name, "down")
	return end
}

// wire makes the pair of an interface what it was when the guest came up.
func wire(t *testing.T, name string) {
	t.Helper()
	if pair := []string{"/bin/wire", "va", "vb", "0"}; slices.Contains(pair, name) {
		command(t, pair...)
	} else {
		command(t, "/bin/wire", "vc", "vd", "1")
	}
}
