package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	"kvferry/messages"
	"kvferry/node"
	"kvferry/transport/rdma"
)

// Nodes that leave at the same time do not wait for each other.
func TestNodesLeaveTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := newPair(w)
		p.wait()
		p.complete(p.carry(ask{room: 1, length: 50}, true))
		time.Sleep(time.Second)
		since := time.Now()
		closed := make(chan error)
		for _, m := range p.nodes {
			m.down = true
			go func() { closed <- m.Close(w.ctx(20 * time.Second)) }()
		}
		for range p.nodes {
			if err := <-closed; err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if took := time.Since(since); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A node that was closed can be closed again: by a program's defer, or by two of
// its goroutines.
func TestCloseAgainSaysTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		for i := range 2 {
			if err := o.a.Close(w.ctx(20 * time.Second)); err != nil {
				t.Errorf("close %d: %v", i+1, err)
			}
		}
	})
}

// A node that cannot start leaves nothing behind, and leaves alone what is not its
// own: here the tree of another node in the same actor system.
func TestANodeThatCannotStartClosesItsProviders(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		closed := &watchClose{Provider: w.data.Provider("10.0.0.3"), closed: make(chan struct{})}
		_, err := node.Start(w.ctx(time.Second), node.Config{
			Name: "c", Bind: "10.0.0.3:7946",
			Embed: node.Embed{
				System: o.a.fabric.System(), Providers: []rdma.Provider{closed}, Gossip: w.net.Transport("10.0.0.3", 7946),
			},
		})
		if err == nil {
			t.Fatal("two nodes started under one name")
		}
		select {
		case <-closed.closed:
		default:
			t.Error("its provider was not closed")
		}
		s, r := o.open(1, 64), o.recv(1, 64)
		o.p.fill(1, s.Place(), 0, 64)
		s.Chunk(64)
		if got, err := r.Wait(w.ctx(time.Minute)); err != nil || !got.Complete {
			t.Errorf("a room of the node that was there: %+v, %v", got, err)
		}
		s.Free()
		r.Free()
	})
}

// openRevokes leaves every grant open, as a provider with real RDMA does.
type openRevokes struct{ rdma.Provider }

func (o openRevokes) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	n, err := o.Provider.Poll(ctx, evs)
	for i, ev := range evs[:n] {
		if r, ok := ev.(rdma.Revoked); ok {
			evs[i] = rdma.Revoked{Grant: r.Grant}
		}
	}
	return n, err
}

// Memory that a peer may still write is not given back as if it were quiet.
func TestDetachSaysWhatItCouldNotClose(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.config = func(host string, c *node.Config) { c.Embed.Providers[0] = openRevokes{c.Embed.Providers[0]} }
		o := newOne(w)
		r, s := o.recv(1, 64), o.open(1, 64)
		s.Chunk(32)
		time.Sleep(time.Second)
		err := o.d.decode.Detach(w.ctx(time.Minute))
		if err == nil || !strings.Contains(err.Error(), "1 grants could not be closed") {
			t.Errorf("detach with an open grant: got %v, want an error that counts it", err)
		}
		if _, err := r.Wait(w.ctx(time.Minute)); err != nil {
			t.Error(err)
		}
		if err := o.p.prefill.Detach(w.ctx(time.Minute)); err != nil {
			t.Errorf("detach of the writer, which gave no grant: %v", err)
		}
	})
}

// Whom decode cannot even let wait for pages is told at prefill too, and does not
// wait there for a grant that never comes.
func TestNoCapacityAtDecodeIsDeclined(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := newOne(w)
		s := o.open(1, 512)
		time.Sleep(time.Second) // the engines have heard of the pairing too
		_, err := o.d.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 129 * 8})
		if err == nil || !strings.Contains(err.Error(), "129 pages") {
			t.Fatalf("129 pages of 128: got %v", err)
		}
		since := time.Now()
		got, err := s.Wait(w.ctx(10 * time.Minute))
		if err != nil || got.Kind != messages.CauseKind_CAUSE_NO_CAPACITY || !strings.Contains(got.Cause, "129 pages") {
			t.Errorf("prefill ended with %+v, %v, want decode's reason", got, err)
		}
		if took := time.Since(since); took > time.Second {
			t.Errorf("prefill heard of it after %v", took)
		}
		s.Free()
	})
}
