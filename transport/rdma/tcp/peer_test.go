package tcp

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"

	"kvferry/transport/rdma"
)

// silent is a peer made by hand: it welcomes connections and then does only what
// the test tells it to.
type silent struct {
	t     *testing.T
	p     *Provider // the provider under test
	from  *rdma.Memory
	id    rdma.RegionID
	conns []*net.TCPConn // by stripe
	s     rdma.SessionID
}

const silentBytes = 64 << 20

// newSilent connects a provider, which dials, to a peer that does not read.
func newSilent(t *testing.T, p *Provider, name string) *silent {
	t.Helper()
	x := &silent{t: t, p: p, s: rdma.SessionID{Peer: name, Generation: rdma.Generation{Number: 1}}}
	m, err := rdma.NewMemory("silent", silentBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		m.Close()
	})
	x.from = m
	d, err := p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	x.id = d.Region
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := p.Connect(rdma.Connection{Session: x.s, Self: "a", Dial: true, Endpoint: []byte(l.Addr().String())}); err != nil {
		t.Fatal(err)
	}
	x.conns = make([]*net.TCPConn, p.config.Connections)
	for range x.conns {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		h, err := readHello(c)
		if err != nil {
			t.Fatal(err)
		}
		x.conns[h.stripe] = c.(*net.TCPConn)
	}
	for _, c := range x.conns {
		if err := writeWelcome(c); err != nil {
			t.Fatal(err)
		}
	}
	awaitEvent[rdma.Connected](t, p)
	return x
}

// post posts a write of n bytes, more than the sockets hold.
func (x *silent) post(id rdma.WriteID, tag rdma.Tag, n uint64) {
	x.t.Helper()
	w := &rdma.Write{ID: id, Tag: tag, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: x.id}, Bytes: n, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}
	if err := x.p.Post(x.s, []*rdma.Write{w}); err != nil {
		x.t.Fatal(err)
	}
}

// readFrame reads one frame of a stripe.
func readFrame(t *testing.T, c net.Conn) (h head, payload []byte, whole bool) {
	h, payload, whole, _ = readSummed(t, c)
	return h, payload, whole
}

// readSummed is readFrame, with the sum.
func readSummed(t *testing.T, c net.Conn) (h head, payload []byte, whole bool, sum uint32) {
	t.Helper()
	raw := make([]byte, headBytes)
	if _, err := io.ReadFull(c, raw); err != nil {
		t.Fatal(err)
	}
	h, err := parseHead(raw)
	if err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, int(h.body)+int(h.payload)+trailerBytes)
	if _, err := io.ReadFull(c, rest); err != nil {
		t.Fatal(err)
	}
	var d body
	if err := d.parse(rest[:h.body], h.payload); err != nil {
		t.Fatal(err)
	}
	payload = rest[h.body : len(rest)-trailerBytes]
	if whole, sum, err = parseTrailer(rest[len(rest)-trailerBytes:], h.status == statusSummed); err != nil {
		t.Fatal(err)
	}
	return h, payload, whole, sum
}

func TestQuiesceDoesNotWaitForAPeerThatDoesNotReadAndPadsTheRest(t *testing.T) {
	for _, policy := range []Checksum{ChecksumOff, ChecksumFull} {
		t.Run(string(policy), func(t *testing.T) { testPadding(t, policy) })
	}
}

func testPadding(t *testing.T, policy Checksum) {
	p := listen(t, Config{Connections: 1, FrameBytes: frameBytesMax, WindowBytes: frameBytesMax, Checksum: policy})
	x := newSilent(t, p, "b")
	for i := range x.from.Bytes() {
		x.from.Bytes()[i] = 7
	}
	x.post(1, 5, silentBytes) // one frame, larger than the sockets' buffers
	var first [headBytes]byte
	if _, err := io.ReadFull(x.conns[0], first[:]); err != nil { // it has begun
		t.Fatal(err)
	}
	p.Quiesce(5)
	if c := awaitEvent[rdma.Completed](t, p); c.ID != 1 || c.Outcome != rdma.Unknown {
		t.Errorf("got %+v, want unknown", c)
	}
	if q := awaitEvent[rdma.Quiesced](t, p); len(q.Unknown) != 1 || q.Unknown[0] != x.s {
		t.Errorf("got %+v", q)
	}
	for i := range x.from.Bytes() {
		x.from.Bytes()[i] = 9 // the source is ours again
	}
	x.post(2, 6, 1000)
	h, payload, whole := readFrame(t, io2conn(first[:], x.conns[0]))
	if h.number != 1 || whole {
		t.Errorf("frame %d is whole: the receiver would count it", h.number)
	}
	if bytes.IndexByte(payload, 9) >= 0 {
		t.Error("the source was read after Quiesced")
	}
	if seven := bytes.Count(payload, []byte{7}); seven == 0 || seven+bytes.Count(payload, []byte{0}) != len(payload) || seven == len(payload) {
		t.Errorf("%d bytes of the source and %d zeros of %d", seven, bytes.Count(payload, []byte{0}), len(payload))
	}
	var ack [headBytes]byte
	a := head{kind: kindAck, status: statusRefused, number: 1}
	a.encode(ack[:])
	if _, err := x.conns[0].Write(ack[:]); err != nil {
		t.Fatal(err)
	}
	if h, payload, whole = readFrame(t, x.conns[0]); h.number != 2 || !whole || bytes.Count(payload, []byte{9}) != 1000 {
		t.Errorf("the next frame is %d, whole %v", h.number, whole)
	}
}

// rejoined reads first what was read already.
type rejoined struct {
	io.Reader
	net.Conn
}

func (r rejoined) Read(b []byte) (int, error) { return r.Reader.Read(b) }

func io2conn(first []byte, c net.Conn) net.Conn {
	return rejoined{io.MultiReader(bytes.NewReader(first), c), c}
}

func TestTagsTakeTurnsByFrames(t *testing.T) {
	p := listen(t, Config{Connections: 1, FrameBytes: frameBytesMin})
	x := newSilent(t, p, "b")
	copyOf := func(n uint64) []rdma.Copy {
		return []rdma.Copy{{Source: rdma.Place{Region: x.id}, Bytes: n, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}}}}
	}
	if err := p.Post(x.s, []*rdma.Write{
		{ID: 1, Tag: 1, Copies: copyOf(10 * frameBytesMin)},
		{ID: 2, Tag: 2, Copies: copyOf(8)},
	}); err != nil {
		t.Fatal(err)
	}
	for n, want := range []rdma.WriteID{1, 2} {
		if h, _, _ := readFrame(t, x.conns[0]); h.write != want {
			t.Errorf("frame %d is of write %d, want %d", n, h.write, want)
		}
	}
}

// TestFencedWaitsForAReadThatIsExecuting holds a read up where it takes the grant.
func TestFencedWaitsForAReadThatIsExecuting(t *testing.T) {
	l := link(t, Config{Connections: 1}, 1<<20)
	l.b.mu.Lock()
	g, s := l.b.grants[l.grant], l.b.sessions["a"]
	l.b.mu.Unlock()
	g.landing.Lock()
	w := &rdma.Write{ID: 1, Tag: 1, Grant: l.grant, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: l.source}, Target: rdma.Place{Region: l.target}, Bytes: 8, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}
	if err := l.a.Post(l.session, []*rdma.Write{w}); err != nil {
		t.Fatal(err)
	}
	for stacks := make([]byte, 1<<20); !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*conn).readv")); {
		runtime.Gosched()
	}
	l.b.Fence(s.id)
	for range 10_000 {
		runtime.Gosched()
	}
	select {
	case <-s.done:
		t.Error("Fenced would be told while a read is executing")
	default:
	}
	g.landing.Unlock()
	awaitEvent[rdma.Fenced](t, l.b)
}

func TestFenceDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	p := listen(t, Config{})
	x := newSilent(t, p, "b")
	x.post(1, 1, silentBytes)
	x.post(2, 2, silentBytes)
	p.Fence(x.s)
	for range 2 {
		awaitEvent[rdma.Completed](t, p)
	}
	if f := awaitEvent[rdma.Fenced](t, p); f.Session != x.s || len(f.Open) != 0 {
		t.Errorf("got %+v", f)
	}
}

func TestAPeerThatDoesNotReadHoldsUpNoOther(t *testing.T) {
	p := listen(t, Config{})
	x := newSilent(t, p, "slow")
	x.post(1, 1, silentBytes)
	l := link(t, Config{}, 1<<20)
	d, err := p.Register(l.from)
	if err != nil {
		t.Fatal(err)
	}
	fast := rdma.SessionID{Peer: "b", Generation: rdma.Generation{Number: 9}}
	if err := l.b.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "p", Generation: fast.Generation}, Self: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := l.b.Grant(rdma.Grant{ID: rdma.GrantID{8}, Peer: "p", Ranges: []rdma.Range{
		{Region: l.target, Bytes: 1 << 20, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1}}},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := p.Connect(rdma.Connection{Session: fast, Self: "p", Dial: true, Endpoint: l.b.Endpoint()}); err != nil {
		t.Fatal(err)
	}
	awaitEvent[rdma.Connected](t, p)
	w := &rdma.Write{ID: 3, Tag: 1, Grant: rdma.GrantID{8}, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: d.Region}, Target: rdma.Place{Region: l.target},
		Bytes: 1 << 20, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}
	if err := p.Post(fast, []*rdma.Write{w}); err != nil {
		t.Fatal(err)
	}
	if c := awaitEvent[rdma.Completed](t, p); c.ID != 3 || c.Outcome != rdma.Landed {
		t.Errorf("got %+v", c)
	}
	p.Close()
}

// TestAnAckBeforeTheEndOfItsFrameFreesNothing: a peer that acknowledges what it has
// not received must not end the provider's hold on the source.
func TestAnAckBeforeTheEndOfItsFrameFreesNothing(t *testing.T) {
	p := listen(t, Config{Connections: 1, FrameBytes: frameBytesMax, WindowBytes: frameBytesMax})
	x := newSilent(t, p, "b")
	x.post(1, 1, silentBytes)
	var first [headBytes]byte
	if _, err := io.ReadFull(x.conns[0], first[:]); err != nil {
		t.Fatal(err)
	}
	var acks [2 * headBytes]byte
	a := head{kind: kindAck, status: statusLanded, number: 1}
	a.encode(acks[:])
	a.number = 7 // malformed: when the session is down, the first was read
	a.encode(acks[headBytes:])
	if _, err := x.conns[0].Write(acks[:]); err != nil {
		t.Fatal(err)
	}
	if c := awaitEvent[rdma.Completed](t, p); c.Outcome != rdma.Unknown {
		t.Errorf("got %s, want unknown", c.Outcome)
	}
	awaitEvent[rdma.Disconnected](t, p)
}

func TestConfigIsChecked(t *testing.T) {
	for what, c := range map[string]Config{
		"bind":          {},
		"wildcard":      {Bind: "0.0.0.0:0"},
		"wildcard ipv6": {Bind: "[::]:0"},
		"connections":   {Bind: "127.0.0.1:0", Connections: 65},
		"frame bytes":   {Bind: "127.0.0.1:0", FrameBytes: 100},
		"window":        {Bind: "127.0.0.1:0", FrameBytes: 1 << 20, WindowBytes: 1 << 19},
		"timeout":       {Bind: "127.0.0.1:0", DialTimeout: -1},
	} {
		if err := c.resolve(); err == nil {
			t.Errorf("%s: %+v was taken", what, c)
		}
	}
	c := Config{Bind: "0.0.0.0:0", AdvertiseHost: "fd00::1"}
	if err := c.resolve(); err != nil {
		t.Fatal(err)
	}
	if got := c.advertised(&net.TCPAddr{Port: 7}); got != "[fd00::1]:7" {
		t.Errorf("got %s", got)
	}
}

func TestRowsCostNoAllocation(t *testing.T) {
	l := link(t, Config{}, 16<<20)
	write := func(rows uint32) *rdma.Write {
		return &rdma.Write{ID: 1, Tag: 1, Grant: l.grant, Copies: []rdma.Copy{{
			Source: rdma.Place{Region: l.source, UnitStride: 1024}, Target: rdma.Place{Region: l.target, UnitStride: 2048},
			Bytes: 1024, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: rows, SourceStep: 1, TargetStep: 1}},
		}}}
	}
	evs := make([]rdma.Event, 16)
	cost := func(w *rdma.Write) float64 {
		return testing.AllocsPerRun(20, func() {
			if err := l.a.Post(l.session, []*rdma.Write{w}); err != nil {
				t.Fatal(err)
			}
			for done := false; !done; {
				n, err := l.a.Poll(t.Context(), evs)
				if err != nil {
					t.Fatal(err)
				}
				for _, ev := range evs[:n] {
					_, completed := ev.(rdma.Completed)
					done = done || completed
				}
			}
		})
	}
	cost(write(8000)) // buffers grow once
	if few, many := cost(write(8)), cost(write(8000)); many > few+20 {
		t.Errorf("a write of 8 rows makes %v allocations, one of 8000 rows in 2 frames %v", few, many)
	}
}
