package tcp

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

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
	if whole, err = parseTrailer(rest[len(rest)-trailerBytes:]); err != nil {
		t.Fatal(err)
	}
	return h, payload, whole
}

func TestQuiesceDoesNotWaitForAPeerThatDoesNotReadAndPadsTheRest(t *testing.T) {
	p := listen(t, Config{Connections: 1, FrameBytes: frameBytesMax, WindowBytes: frameBytesMax})
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

// dialled is a hand-made sender: it says a hello and returns what is welcomed.
func dialled(t *testing.T, p *Provider, h hello) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", string(p.Endpoint()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write(h.encode()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestMalformedMessagesCostTheSession(t *testing.T) {
	valid := func() []byte {
		d := body{grant: rdma.GrantID{1}, runs: []rdma.Run{{Count: 1}}}
		d.pieces = []rdma.Range{{Region: 1, Bytes: 8, Count: [2]uint32{1, 1}, Runs: d.runs}}
		raw := d.encode(make([]byte, headBytes))
		h := head{kind: kindFrame, body: uint32(len(raw) - headBytes), number: 1, payload: 8}
		h.encode(raw)
		raw = append(raw, make([]byte, 8+trailerBytes)...)
		encodeTrailer(raw[len(raw)-trailerBytes:], statusWhole)
		return raw
	}
	for what, spoil := range map[string]func([]byte){
		"kind":           func(b []byte) { b[0] = 7 },
		"number":         func(b []byte) { b[8] = 2 },
		"payload":        func(b []byte) { b[16] = 9 },
		"huge payload":   func(b []byte) { binary.LittleEndian.PutUint64(b[16:], 1<<40) },
		"huge body":      func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1<<30) },
		"stripe":         func(b []byte) { b[headBytes+16] = 1 },
		"no run":         func(b []byte) { b[headBytes+24] = 0 },
		"offset":         func(b []byte) { binary.LittleEndian.PutUint64(b[headBytes+bodyBytes+8:], 1<<63) },
		"trailer":        func(b []byte) { b[len(b)-1] = 1 },
		"ack of nothing": func(b []byte) { copy(b, make([]byte, headBytes)); b[0], b[1] = kindAck, statusLanded },
	} {
		t.Run(what, func(t *testing.T) {
			p := listen(t, Config{})
			g := rdma.Generation{Number: 1}
			if err := p.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "x", Generation: g}, Self: "b"}); err != nil {
				t.Fatal(err)
			}
			c := dialled(t, p, hello{from: "x", to: "b", generation: g, stripes: 1})
			if err := readWelcome(c); err != nil {
				t.Fatal(err)
			}
			raw := valid()
			spoil(raw)
			if _, err := c.Write(raw); err != nil {
				t.Fatal(err)
			}
			seen := 0
			for seen < 3 {
				var evs [1]rdma.Event
				if _, err := p.Poll(t.Context(), evs[:]); err != nil {
					t.Fatal(err)
				}
				switch ev := evs[0].(type) {
				case rdma.Stale:
					if bytes.Contains([]byte(ev.Reason), []byte("malformed")) {
						seen |= 1
					}
				case rdma.Disconnected:
					seen |= 2
				}
			}
		})
	}
}

func TestAnyOtherGenerationIsClosedUnread(t *testing.T) {
	p := listen(t, Config{HandshakeTimeout: 5 * time.Second})
	g := rdma.Generation{Number: 5, Low: 1, High: 2}
	if err := p.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "x", Generation: g}, Self: "b"}); err != nil {
		t.Fatal(err)
	}
	p.Fence(rdma.SessionID{Peer: "y", Generation: g})
	awaitEvent[rdma.Fenced](t, p)
	for what, h := range map[string]hello{
		"an older one": {from: "x", to: "b", generation: rdma.Generation{Number: 4}, stripes: 1},
		"another name": {from: "x", to: "c", generation: g, stripes: 1},
		"one fenced":   {from: "y", to: "b", generation: g, stripes: 1},
	} {
		refusedHello(t, p, what, h)
	}
	first := dialled(t, p, hello{from: "x", to: "b", generation: g, stripe: 0, stripes: 2})
	refusedHello(t, p, "another number of stripes", hello{from: "x", to: "b", generation: g, stripe: 1, stripes: 3}, first)
	last := dialled(t, p, hello{from: "x", to: "b", generation: g, stripe: 1, stripes: 2})
	for _, c := range []net.Conn{first, last} {
		if err := readWelcome(c); err != nil {
			t.Error(err)
		}
	}
	refusedHello(t, p, "a stripe too many", hello{from: "x", to: "b", generation: g, stripe: 1, stripes: 2})
}

// refusedHello checks that a connection is closed without a welcome and counted.
// It waits for those that were made before to be known to the provider.
func refusedHello(t *testing.T, p *Provider, what string, h hello, before ...net.Conn) {
	t.Helper()
	for known := 0; known < len(before); {
		p.mu.Lock()
		known = p.sessions[h.from].attached
		p.mu.Unlock()
	}
	c := dialled(t, p, h)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%s: got %d bytes, %v, want the end", what, n, err)
	}
	awaitEvent[rdma.Stale](t, p)
}

func TestConnectTimesOutWithoutThePeer(t *testing.T) {
	p := listen(t, Config{HandshakeTimeout: 30 * time.Millisecond})
	s := rdma.SessionID{Peer: "x", Generation: rdma.Generation{Number: 1}}
	if err := p.Connect(rdma.Connection{Session: s, Self: "b"}); err != nil {
		t.Fatal(err)
	}
	if d := awaitEvent[rdma.Disconnected](t, p); d.Session != s || d.Err == nil {
		t.Errorf("got %+v", d)
	}
	// The other way round: a hello without a Connect is closed, too.
	c := dialled(t, p, hello{from: "z", to: "b", generation: s.Generation, stripes: 1})
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes, %v, want the end", n, err)
	}
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
