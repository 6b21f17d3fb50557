package shm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"kvferry/transport/rdma"
)

// all copies the whole of one pool to the other.
func (l *linked) all(id rdma.WriteID, g rdma.GrantID, bytes uint64) *rdma.Write {
	return &rdma.Write{ID: id, Tag: 1, Grant: g, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: l.source}, Target: rdma.Place{Region: l.target},
		Bytes: bytes, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}
}

// TestNothingLandsAfterRevokedAtAnyMoment revokes many grants, each at another moment
// of a small write. It is the contract's test with a thousand chances.
func TestNothingLandsAfterRevokedAtAnyMoment(t *testing.T) {
	const poolBytes, rounds = 2 << 20, 1000
	l := link(t, Config{}, poolBytes)
	n := &node{p: l.b}
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for round := range rounds {
		g := rdma.GrantID{2, byte(round), byte(round >> 8)}
		if err := l.b.Grant(rdma.Grant{ID: g, Peer: "a", Ranges: []rdma.Range{wholeOf(l.target, poolBytes)}}); err != nil {
			t.Fatal(err)
		}
		if err := l.a.Post(l.session, []*rdma.Write{l.all(1, g, poolBytes)}); err != nil {
			t.Fatal(err)
		}
		for wait := time.Now().Add(time.Duration(rng.IntN(500)) * time.Microsecond); time.Now().Before(wait); {
		}
		l.b.Revoke(g)
		if ev := await(t, n, func(ev rdma.Revoked) bool { return ev.Grant == g }); !ev.Closed {
			t.Fatal("the grant is open")
		}
		at := rng.IntN(poolBytes)
		l.to.Bytes()[at] = canary
		c := awaitEvent[rdma.Completed](t, l.a)
		switch c.Outcome {
		case rdma.Refused:
			refused++
		case rdma.Landed:
		default:
			t.Fatalf("round %d: got %s (%v)", round, c.Outcome, c.Err)
		}
		if l.to.Bytes()[at] != canary {
			t.Fatalf("round %d: byte %d landed after Revoked", round, at)
		}
		arrivals := uint64(0)
		for _, ev := range n.seen {
			if a, ok := ev.(rdma.Arrived); ok && a.Grant == g {
				arrivals += a.Count
			}
		}
		if want := uint64(0); c.Outcome == rdma.Landed {
			want = 1
			if arrivals != want {
				t.Fatalf("round %d: landed with %d arrivals before Revoked", round, arrivals)
			}
		} else if arrivals != want {
			t.Fatalf("round %d: refused with %d arrivals", round, arrivals)
		}
		n.seen = n.seen[:0]
	}
	if refused == 0 || refused == rounds {
		t.Logf("%d of %d writes were refused", refused, rounds)
	}
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	if n := len(l.b.grants); n != 1 {
		t.Errorf("%d grants are left, want 1", n)
	}
}

// A region that is deregistered is let go by the peer too, and its memory with it.
func TestARegionThatIsGoneIsUnmappedByThePeer(t *testing.T) {
	const poolBytes = 1 << 20
	l := link(t, Config{}, poolBytes)
	n := &node{p: l.a}
	mapped := func() int {
		s := l.a.sessions["b"]
		s.out.mu.Lock()
		defer s.out.mu.Unlock()
		return len(s.out.regions) + len(s.out.gone)
	}
	for round := range rdma.WriteID(3) {
		if err := l.a.Post(l.session, []*rdma.Write{l.all(round, l.grant, poolBytes)}); err != nil {
			t.Fatal(err)
		}
		if c := await(t, n, func(ev rdma.Completed) bool { return ev.ID == round }); c.Outcome != rdma.Landed {
			t.Fatalf("got %s (%v)", c.Outcome, c.Err)
		}
		if got := mapped(); got != 1 {
			t.Errorf("%d regions are mapped, want 1", got)
		}
		l.b.Revoke(l.grant)
		awaitEvent[rdma.Revoked](t, l.b)
		if err := l.b.Deregister(l.target); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); mapped() > 0; {
			if time.Now().After(end) {
				t.Fatal("the region is still mapped")
			}
			time.Sleep(time.Millisecond)
		}
		d, err := l.b.Register(l.to)
		if err != nil {
			t.Fatal(err)
		}
		l.target = d.Region
		if err := l.b.Grant(rdma.Grant{ID: l.grant, Peer: "a", Ranges: []rdma.Range{wholeOf(l.target, poolBytes)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// What a grant costs is bounded, and so is what the copier remembers of grants.
func TestGrantsAreForgottenOnBothSides(t *testing.T) {
	const poolBytes, rounds = 4096, 20 * knownMin
	l := link(t, Config{}, poolBytes)
	n := &node{p: l.a}
	for round := range rdma.WriteID(rounds) {
		g := rdma.GrantID{3, byte(round), byte(round >> 8)}
		if err := l.b.Grant(rdma.Grant{ID: g, Peer: "a", Ranges: []rdma.Range{wholeOf(l.target, poolBytes)}}); err != nil {
			t.Fatal(err)
		}
		if err := l.a.Post(l.session, []*rdma.Write{l.all(round, g, poolBytes)}); err != nil {
			t.Fatal(err)
		}
		if c := await(t, n, func(ev rdma.Completed) bool { return ev.ID == round }); c.Outcome != rdma.Landed {
			t.Fatalf("got %s (%v)", c.Outcome, c.Err)
		}
		n.seen = n.seen[:0]
		l.b.Revoke(g)
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	in := l.b.inbound["a"][0]
	if len(l.b.grants) != 1 || len(in.words) != 1 || len(in.table.spans) != 1 || len(in.table.arena.free) > 2 {
		t.Errorf("left are %d grants, %d words, %d entries, and the arena is in %d parts",
			len(l.b.grants), len(in.words), len(in.table.spans), len(in.table.arena.free))
	}
}

func TestGrantsToOnePeerAreBounded(t *testing.T) {
	p := listen(t, Config{})
	m, err := rdma.NewMemory("bounded", 4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		m.Close()
	})
	d, err := p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	small, long := wholeOf(d.Region, 1), wholeOf(d.Region, 1)
	long.Runs = make([]rdma.Run, descriptionMax/describedRunBytes+1)
	long.UnitStride = 1
	for i := range long.Runs {
		long.Runs[i] = rdma.Run{First: uint32(i) % 4096, Count: 1, Step: 1}
	}
	if err := p.Grant(rdma.Grant{ID: rdma.GrantID{15: 2}, Peer: "x", Ranges: []rdma.Range{long}}); err == nil {
		t.Error("a grant of too many runs is taken")
	}
	for i := range grantsMax + 1 {
		err := p.Grant(rdma.Grant{ID: rdma.GrantID{byte(i), byte(i >> 8), byte(i >> 16)}, Peer: "x", Ranges: []rdma.Range{small}})
		if (err != nil) != (i == grantsMax) {
			t.Fatalf("grant %d: %v", i, err)
		}
	}
	if err := p.Grant(rdma.Grant{ID: rdma.GrantID{15: 1}, Peer: "y", Ranges: []rdma.Range{small}}); err != nil {
		t.Errorf("another peer: %v", err)
	}
}

// Only completions and events allocate: a write of many rows no more than one of one.
func TestACopyAllocatesNothing(t *testing.T) {
	const poolBytes, rowBytes = 16 << 20, 1024
	l := link(t, Config{}, poolBytes)
	rng := rand.New(rand.NewPCG(1, 2))
	evs := make([]rdma.Event, 16)
	measure := func(rows int) float64 {
		ws := []*rdma.Write{l.scattered(rng, rowBytes, rows)}
		return testing.AllocsPerRun(200, func() { l.land(t, ws, evs) })
	}
	if one, many := measure(1), measure(8192); many > one+2 {
		t.Errorf("a write of 8192 rows allocates %.0f times, one of 1 row %.0f times", many, one)
	}
}

// A refusal is of the moment: the grant may come later under the same id.
func TestAWriteBeforeItsGrantIsRefusedAndAfterItLands(t *testing.T) {
	const poolBytes = 1 << 20
	l := link(t, Config{}, poolBytes)
	n := &node{p: l.a}
	g := rdma.GrantID{8}
	for id, want := range []rdma.Outcome{rdma.Refused, rdma.Landed} {
		if want == rdma.Landed {
			if err := l.b.Grant(rdma.Grant{ID: g, Peer: "a", Ranges: []rdma.Range{wholeOf(l.target, poolBytes)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.a.Post(l.session, []*rdma.Write{l.all(rdma.WriteID(id), g, poolBytes)}); err != nil {
			t.Fatal(err)
		}
		c := await(t, n, func(ev rdma.Completed) bool { return ev.ID == rdma.WriteID(id) })
		if c.Outcome != want {
			t.Errorf("got %s (%v), want %s", c.Outcome, c.Err, want)
		}
		if want == rdma.Refused && !errors.Is(c.Err, refusedUnknown) {
			t.Errorf("got %v, want %v", c.Err, refusedUnknown)
		}
	}
	if !bytes.Equal(l.to.Bytes(), l.from.Bytes()) {
		t.Error("the pools differ")
	}
}

// The listener never hears from a dialer that is not there.
func TestConnectTimesOutWithoutThePeer(t *testing.T) {
	p := listen(t, Config{HandshakeTimeout: 30 * time.Millisecond})
	s := rdma.SessionID{Peer: "x", Generation: generation(1)}
	if err := p.Connect(rdma.Connection{Session: s, Self: "p"}); err != nil {
		t.Fatal(err)
	}
	if d := awaitEvent[rdma.Disconnected](t, p); d.Session != s || !errors.Is(d.Err, errNoConnect) {
		t.Errorf("got %+v", d)
	}
	// The other way round: a hello without a Connect is closed, too.
	c := dialled(t, p)
	defer c.conn.Close()
	if err := c.send((&hello{from: "z", to: "p", generation: generation(1)}).encode()); err != nil {
		t.Fatal(err)
	}
	ends(t, c)
	// And a dialer whose welcome does not come.
	q := listen(t, Config{HandshakeTimeout: 30 * time.Millisecond})
	s.Generation = generation(2)
	if err := q.Connect(rdma.Connection{Session: s, Self: "z", Dial: true, Endpoint: p.Endpoint()}); err != nil {
		t.Fatal(err)
	}
	if d := awaitEvent[rdma.Disconnected](t, q); d.Session != s || d.Err == nil {
		t.Errorf("got %+v", d)
	}
}

// A copier that has not heard of the fence finds it in the table.
func TestAFenceIsInTheTableBeforeItIsTold(t *testing.T) {
	l := link(t, Config{}, 4096)
	l.b.mu.Lock()
	in := l.b.inbound["a"][0]
	var words []word
	for _, w := range in.words {
		words = append(words, w)
	}
	v, err := openView(int(in.table.file.Fd()))
	l.b.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	defer v.release()
	if len(words) != 1 || !v.holds(words[0]) || v.over() {
		t.Fatalf("words are %x, the session is over: %v", words, v.over())
	}
	l.b.Fence(rdma.SessionID{Peer: "a", Generation: l.session.Generation})
	awaitEvent[rdma.Fenced](t, l.b)
	if v.holds(words[0]) || !v.over() {
		t.Errorf("after the fence the entry holds: %v, the session is over: %v", v.holds(words[0]), v.over())
	}
}
