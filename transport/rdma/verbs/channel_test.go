package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// sockets is the two ends of a connection of this host.
func sockets(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	y, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.Close()
		y.Close()
	})
	a, b = x.(*net.TCPConn), y.(*net.TCPConn)
	for _, s := range []*net.TCPConn{a, b} {
		if err := tune(s); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func credits(n uint64) *control.Frame {
	return &control.Frame{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: 1, Posted: n}}}
}

// Both ends tell at once, and read what the other told, in order. What was told before
// the end of run is written.
func TestChannelCarriesMessagesInOrder(t *testing.T) {
	const messages = 2000
	a, b := sockets(t)
	ends := []*channel{newChannel(a, helloOf, true), newChannel(b, helloOf, false)}
	failed := make(chan error, 6)
	for i, c := range ends {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			var err error
			for n := range uint64(messages) {
				f := credits(n + uint64(i)<<32)
				if n%97 == 0 { // some are large
					f = &control.Frame{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: strings.Repeat("x", 1<<16) + fmt.Sprint(n)}}}
				}
				err = errors.Join(err, c.tell(f))
			}
			cancel()
			failed <- err
		}()
		go func() {
			err := c.run(ctx)
			failed <- errors.Join(err, c.sock.CloseWrite())
		}()
		other := ends[1-i]
		go func() {
			for n := range uint64(messages) {
				f, err := other.next()
				switch {
				case err != nil:
				case n%97 == 0:
					if !strings.HasSuffix(f.GetBye().GetReason(), "x"+fmt.Sprint(n)) {
						err = fmt.Errorf("message %d is another", n)
					}
				case f.GetCredits().GetPosted() != n+uint64(i)<<32:
					err = fmt.Errorf("message %d is %v", n, f)
				}
				if err != nil {
					failed <- err
					return
				}
			}
			_, err := other.next()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			failed <- err
		}()
	}
	for range 6 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// written is the bytes of messages, one by one, as one side of a generation writes them.
func written(t *testing.T, dial bool, fs ...*control.Frame) [][]byte {
	t.Helper()
	c := newChannel(nil, helloOf, dial)
	for _, f := range fs {
		if err := c.tell(f); err != nil {
			t.Fatal(err)
		}
	}
	return c.queue
}

// Whoever is between the two nodes can only end the session.
func TestChannelRefusesWhatIsNotThePeers(t *testing.T) {
	changed := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 1
		return b
	}
	dialer, listener := written(t, true, credits(1), credits(2), credits(3)), written(t, false, credits(1))
	other := newChannel(nil, rdma.Generation{Number: 7, Low: helloOf.Low, High: helloOf.High + 1}, true)
	if err := other.tell(credits(1)); err != nil {
		t.Fatal(err)
	}
	sum := "the sum of a message is wrong: it is not the peer's, or was changed on its way"
	for _, c := range []struct {
		name string
		raw  [][]byte
		good int // messages before
		want string
	}{
		{"nothing is changed", dialer, 3, "EOF"},
		{"a message that was repeated", [][]byte{dialer[0], dialer[0]}, 1, sum},
		{"a message that was dropped", [][]byte{dialer[0], dialer[2]}, 1, sum},
		{"the first was dropped", [][]byte{dialer[1]}, 0, sum},
		{"two that were swapped", [][]byte{dialer[1], dialer[0]}, 0, sum},
		{"one of the other direction", [][]byte{listener[0]}, 0, sum},
		{"one of another generation", [][]byte{other.queue[0]}, 0, sum},
		{"a byte of the sum", [][]byte{changed(dialer[0], 4)}, 0, sum},
		{"the last byte of the sum", [][]byte{changed(dialer[0], headBytes-1)}, 0, sum},
		{"a byte of the message", [][]byte{changed(dialer[0], headBytes)}, 0, sum},
		{"the last byte of the message", [][]byte{changed(dialer[0], len(dialer[0])-1)}, 0, sum},
		{"a length that is less", [][]byte{changed(dialer[1], 0), dialer[2]}, 0, sum},
		{"half a head", [][]byte{dialer[0], dialer[1][:headBytes-1]}, 1, "unexpected EOF"},
		{"half a message", [][]byte{dialer[0], dialer[1][:headBytes+1]}, 1, "unexpected EOF"},
		{"a length that is over", [][]byte{binary.LittleEndian.AppendUint32(nil, frameMost+1), make([]byte, proofBytes)}, 0, "a message of 16777217 bytes, want at most 16777216"},
		{"the largest length", [][]byte{{0xff, 0xff, 0xff, 0xff}, make([]byte, proofBytes)}, 0, "a message of 4294967295 bytes, want at most 16777216"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := sockets(t)
			if _, err := a.Write(bytes.Join(c.raw, nil)); err != nil {
				t.Fatal(err)
			}
			if err := a.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			read := newChannel(b, helloOf, false)
			for i := range c.good {
				if f, err := read.next(); err != nil || f.GetCredits().GetPosted() != uint64(i+1) {
					t.Fatalf("message %d: got %v, error %v", i, f, err)
				}
			}
			if f, err := read.next(); err == nil || err.Error() != c.want {
				t.Errorf("got %v, error %v; want %q", f, err, c.want)
			}
		})
	}
}

// A message with the right sum that is none is refused, too.
func TestChannelRefusesWhatIsNoMessage(t *testing.T) {
	a, b := sockets(t)
	seal, _ := sealers(helloOf, true)
	m := []byte{0xff}
	sum := seal.next(m)
	raw := append(binary.LittleEndian.AppendUint32(nil, 1), sum[:]...)
	if _, err := a.Write(append(raw, m...)); err != nil {
		t.Fatal(err)
	}
	if f, err := newChannel(b, helloOf, false).next(); err == nil || !errors.Is(err, proto.Error) {
		t.Errorf("got %v, error %v", f, err)
	}
}

// tell never waits: a peer that does not read is given up, for good.
func TestChannelOfASlowPeer(t *testing.T) {
	c := newChannel(nil, helloOf, true)
	large := &control.Frame{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: strings.Repeat("x", 1<<20-16)}}}
	n := 0
	var err error
	for ; err == nil && n < 1000; n++ {
		err = c.tell(large)
	}
	if !errors.Is(err, errSlowPeer) || n != queuedMost>>20+1 {
		t.Errorf("message %d: got error %v", n, err)
	}
	c.queue, c.queued = nil, 0 // as if run had written it
	if err := c.tell(credits(1)); !errors.Is(err, errSlowPeer) || len(c.queue) != 0 {
		t.Errorf("after that: got error %v and %d messages", err, len(c.queue))
	}
}

func TestChannelRefusesToTellTooMuch(t *testing.T) {
	c := newChannel(nil, helloOf, true)
	huge := &control.Frame{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: strings.Repeat("x", frameMost)}}}
	if err := c.tell(huge); err == nil || err.Error() != fmt.Sprintf("a message has %d bytes, want at most %d", proto.Size(huge), frameMost) {
		t.Errorf("got error %v", err)
	}
	if err := c.tell(&control.Frame{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: "\xff"}}}); err == nil || !strings.HasPrefix(err.Error(), "encode: ") {
		t.Errorf("got error %v", err)
	}
}

// What was queued when its context is done is written; then run ends.
func TestChannelWritesItsLastWords(t *testing.T) {
	a, b := sockets(t)
	c := newChannel(a, helloOf, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	const messages = 100
	for n := range uint64(messages) {
		if err := c.tell(credits(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.run(ctx); err != nil {
		t.Fatal(err)
	}
	if c.queued != 0 {
		t.Errorf("%d bytes wait, after all was written", c.queued)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	read := newChannel(b, helloOf, false)
	for n := range uint64(messages) {
		if f, err := read.next(); err != nil || f.GetCredits().GetPosted() != n {
			t.Fatalf("message %d: got %v, error %v", n, f, err)
		}
	}
	if err := newChannel(a, helloOf, true).run(ctx); err != nil { // nothing waits
		t.Error(err)
	}
	c = newChannel(a, helloOf, true)
	if err := c.tell(credits(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.run(ctx); err == nil {
		t.Error("it wrote to a socket that was closed")
	}
}

// What is queued at the moment at which the context is done is written, too.
func TestChannelLosesNoLastWord(t *testing.T) {
	a, b := sockets(t)
	read := newChannel(b, helloOf, false)
	c := newChannel(a, helloOf, true)
	expect := func(n uint64) {
		t.Helper()
		if f, err := read.next(); err != nil || f.GetCredits().GetPosted() != n {
			t.Fatalf("message %d: got %v, error %v", n, f, err)
		}
	}
	words := newChannel(nil, helloOf, true) // they are sealed in order, whoever queues them
	for n := uint64(0); n < 200; n += 2 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.run(ctx) }()
		words.write = c.write
		if err := errors.Join(c.tell(credits(n)), words.tell(credits(n)), words.tell(credits(n+1))); err != nil {
			t.Fatal(err)
		}
		expect(n)
		c.mu.Lock() // run waits, or is about to; it looks whether something is left
		cancel()
		c.queue, c.write = append(c.queue, words.queue[n+1]), words.write
		c.mu.Unlock()
		if err := <-ended; err != nil || len(c.queue) != 0 {
			t.Fatalf("%d messages are left, error %v", len(c.queue), err)
		}
		expect(n + 1)
	}
}
