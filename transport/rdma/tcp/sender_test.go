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
	for what, spoil := range map[string]func([]byte){
		"kind":           func(b []byte) { b[0] = 7 },
		"number":         func(b []byte) { b[8] = 2 },
		"payload":        func(b []byte) { b[16] = 9 },
		"huge payload":   func(b []byte) { binary.LittleEndian.PutUint64(b[16:], 1<<40) },
		"huge body":      func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1<<30) },
		"stripe":         func(b []byte) { b[headBytes+16] = 1 },
		"no run":         func(b []byte) { b[headBytes+24] = 0 },
		"offset":         func(b []byte) { binary.LittleEndian.PutUint64(b[headBytes+bodyBytes+8:], 1<<63) },
		"trailer":        func(b []byte) { b[len(b)-trailerBytes] = 1 },
		"trailer status": func(b []byte) { b[len(b)-trailerBytes+4] = 3 },
		"needless sum":   func(b []byte) { b[len(b)-1] = 1 },
		"status":         func(b []byte) { b[1] = 2 },
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
			raw := handFrame(rdma.GrantID{1}, 1, 1, statusWhole)
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

// handFrame is a frame of 8 bytes to the start of a region.
func handFrame(g rdma.GrantID, to rdma.RegionID, number uint64, trailer uint32) []byte {
	d := body{grant: g, runs: []rdma.Run{{Count: 1}}}
	d.pieces = []rdma.Range{{Region: to, Bytes: 8, Count: [2]uint32{1, 1}, Runs: d.runs}}
	raw := d.encode(make([]byte, headBytes))
	h := head{kind: kindFrame, body: uint32(len(raw) - headBytes), number: number, payload: 8}
	h.encode(raw)
	raw = append(raw, "12345678"...)
	raw = append(raw, make([]byte, trailerBytes)...)
	encodeTrailer(raw[len(raw)-trailerBytes:], trailer, 0)
	return raw
}

// byHand is a provider with 8 bytes of region 1 granted, under id 1, to a peer that the
// test plays: its one connection is returned.
func byHand(t *testing.T) (*Provider, *rdma.Memory, net.Conn) {
	t.Helper()
	p := listen(t, Config{})
	m, err := rdma.NewMemory("by hand", 4096)
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
	if err := p.Grant(rdma.Grant{ID: rdma.GrantID{1}, Peer: "x", Ranges: []rdma.Range{
		{Region: d.Region, Bytes: 8, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1}}},
	}}); err != nil {
		t.Fatal(err)
	}
	g := rdma.Generation{Number: 1}
	if err := p.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "x", Generation: g}, Self: "b"}); err != nil {
		t.Fatal(err)
	}
	c := dialled(t, p, hello{from: "x", to: "b", generation: g, stripes: 1})
	if err := readWelcome(c); err != nil {
		t.Fatal(err)
	}
	return p, m, c
}

func TestAnAbandonedFrameIsRefusedAndNotCounted(t *testing.T) {
	p, m, c := byHand(t)
	id, region := rdma.GrantID{1}, rdma.RegionID(1)
	if status := acked(t, c, handFrame(id, region, 1, statusAbandoned), 1); status != statusRefused {
		t.Errorf("an abandoned frame is acknowledged with %d, want %d", status, statusRefused)
	}
	if status := acked(t, c, handFrame(id, region, 2, statusWhole), 2); status != statusLanded {
		t.Errorf("a whole frame is acknowledged with %d, want %d", status, statusLanded)
	}
	if a := awaitEvent[rdma.Arrived](t, p); a.Count != 1 || a.Bytes != 8 {
		t.Errorf("got %+v, want one arrival of 8 bytes", a)
	}
	if string(m.Bytes()[:8]) != "12345678" {
		t.Errorf("got %q", m.Bytes()[:8])
	}
}

// acked sends a frame and returns the status of its ack.
func acked(t *testing.T, c net.Conn, frame []byte, number uint64) uint8 {
	t.Helper()
	if _, err := c.Write(frame); err != nil {
		t.Fatal(err)
	}
	var raw [headBytes]byte
	if _, err := io.ReadFull(c, raw[:]); err != nil {
		t.Fatal(err)
	}
	h, err := parseHead(raw[:])
	if err != nil || h.kind != kindAck || h.number != number {
		t.Fatalf("got %+v, %v, want the ack of frame %d", h, err, number)
	}
	return h.status
}
