package tcp

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

// summedFrame is handFrame with a sum.
func summedFrame(g rdma.GrantID, to rdma.RegionID, number uint64, sum uint32) []byte {
	raw := handFrame(g, to, number, statusWhole)
	raw[1] = statusSummed
	encodeTrailer(raw[len(raw)-trailerBytes:], statusWhole, sum)
	return raw
}

// A frame of which a byte changed on the way is never told as an arrival: it costs the
// session, and the reason is counted.
func TestAFrameWithAWrongSumDoesNotArrive(t *testing.T) {
	p, _, c := byHand(t)
	id, region := rdma.GrantID{1}, rdma.RegionID(1)
	sum := crc32.Checksum([]byte("12345678"), crc32.MakeTable(crc32.Castagnoli))
	if status := acked(t, c, summedFrame(id, region, 1, sum), 1); status != statusLanded {
		t.Errorf("a frame with its sum is acknowledged with %d, want %d", status, statusLanded)
	}
	if a := awaitEvent[rdma.Arrived](t, p); a.Count != 1 {
		t.Errorf("got %+v, want one arrival", a)
	}
	flipped := summedFrame(id, region, 2, sum)
	flipped[len(flipped)-trailerBytes-1] ^= 0x10
	if _, err := c.Write(flipped); err != nil {
		t.Fatal(err)
	}
	stale := false
	for {
		var evs [1]rdma.Event
		if _, err := p.Poll(t.Context(), evs[:]); err != nil {
			t.Fatal(err)
		}
		switch ev := evs[0].(type) {
		case rdma.Arrived:
			t.Errorf("%+v of a frame that is not what was sent", ev)
		case rdma.Stale:
			stale = ev.Reason == errChecksum.Error()
		case rdma.Disconnected:
			if !errors.Is(ev.Err, errChecksum) || !strings.Contains(ev.Err.Error(), "frame 2 of 8 bytes") {
				t.Errorf("the session ended with %v, want a checksum mismatch of frame 2", ev.Err)
			}
			if !stale {
				t.Error("the reason was not counted")
			}
			return
		}
	}
}

// What a sender says of its frames, by policy, is what is in them.
func TestSumsAreThoseOfThePayload(t *testing.T) {
	for policy, want := range map[Checksum]func(number uint64) bool{
		ChecksumOff:     func(uint64) bool { return false },
		ChecksumFull:    func(uint64) bool { return true },
		ChecksumSampled: func(number uint64) bool { return number == 1 || number == 17 },
		"":              func(number uint64) bool { return number == 1 || number == 17 },
	} {
		t.Run(string(policy), func(t *testing.T) {
			p := listen(t, Config{Connections: 1, FrameBytes: frameBytesMin, Checksum: policy})
			x := newSilent(t, p, "b")
			rng := rand.New(rand.NewPCG(1, 1))
			for i := range x.from.Bytes() {
				x.from.Bytes()[i] = byte(rng.Uint32())
			}
			x.post(1, 1, 20*frameBytesMin)
			for number := uint64(1); number <= 20; number++ {
				h, payload, whole, sum := readSummed(t, x.conns[0])
				if !whole || (h.status == statusSummed) != want(number) {
					t.Fatalf("frame %d has status %d, whole %v", number, h.status, whole)
				}
				if got := crc32.Checksum(payload, castagnoli); want(number) && sum != got || !want(number) && sum != 0 {
					t.Errorf("frame %d has sum %#x, its payload %#x", number, sum, got)
				}
				answer(t, x.conns[0], number)
			}
		})
	}
}

// answer acknowledges a frame.
func answer(t *testing.T, c net.Conn, number uint64) {
	t.Helper()
	var b [headBytes]byte
	(&head{kind: kindAck, status: statusLanded, number: number}).encode(b[:])
	if _, err := c.Write(b[:]); err != nil {
		t.Fatal(err)
	}
}

// However the kernel cuts what is written and read, the sum is that of the payload: the
// head in front and the trailer behind are not in it.
func TestSumsInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		head := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "head")
		var payload []byte
		out := outgoing{framed: true, summed: true, skip: uint64(len(head))}
		out.made.buffer(head)
		in := incoming{summed: true, grant: &grant{}}
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			row := rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "row")
			payload = append(payload, row...)
			out.made.buffer(row)
			in.made.buffer(row)
		}
		in.made.buffer(in.trailer[:])
		out.vec, out.left = out.made, uint64(len(head)+len(payload))
		in.vec, in.left = in.made, uint64(len(payload)+trailerBytes)
		for out.left > 0 {
			n := rapid.Uint64Range(1, out.left).Draw(t, "written")
			out.count(n)
			out.vec.advance(n)
			out.left -= n
		}
		for in.left > 0 {
			n := rapid.Uint64Range(1, in.left).Draw(t, "read")
			in.count(n)
			in.vec.advance(n)
			in.left -= n
		}
		if want := crc32.Checksum(payload, castagnoli); out.sum != want || in.sum != want {
			t.Fatalf("sums are %#x and %#x, want %#x", out.sum, in.sum, want)
		}
	})
}
