package rdmatest

import (
	"context"
	"errors"
	"testing"

	"kvferry/transport/rdma"
)

func peerCloses(t *testing.T, w *world) {
	const size = 16 << 20
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	to.fill(canary)
	g := w.grant(w.b, whole(to))
	ws := w.stream(number, 1, g, from, to, 8)
	afterSomeBytes(to, 1)
	if err := w.b.p.Close(); err != nil {
		t.Error(err)
	}
	to.fill(canary)
	w.a.awaitWrites(ws)
	w.a.await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.a.session(number)
		}) == 1
	})
	w.a.fence(number)
	if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
		t.Errorf("byte %d landed after Close", i)
	}
}

func providerCloses(t *testing.T, w *world) {
	const size = 16 << 20
	number := w.connect()
	from, to := w.register(w.a, size), w.register(w.b, size)
	from.fill(clean)
	to.fill(canary)
	g := w.grant(w.b, whole(to))
	ws := w.stream(number, 1, g, from, to, 8)
	afterSomeBytes(to, 1)
	if err := w.a.p.Close(); err != nil {
		t.Error(err)
	}
	from.fill(poison)
	w.a.polled.Wait() // it gives what is left, then ErrClosed
	if done := len(w.a.completions()); done != len(ws) {
		t.Errorf("%d of %d writes completed", done, len(ws))
	}
	w.a.awaitWrites(ws)
	w.b.fence(number)
	w.noPoison(to)
}

func generationsAreToldApart(t *testing.T, w *world) {
	w.session = 4
	number := w.connect() // 5
	for _, c := range []struct {
		what   string
		number uint64
		want   error
	}{
		{"the same again", number, rdma.ErrExists},
		{"a newer one over one that is not fenced", number + 1, rdma.ErrFenceFirst},
		{"an older one over one that is not fenced", number - 1, rdma.ErrFenceFirst},
	} {
		if err := w.a.connect(c.number, w.b); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, err, c.want)
		}
	}
	w.a.fence(number)
	w.b.fence(number)
	for what, n := range map[string]uint64{"a fenced one": number, "one older than a fenced one": number - 1} {
		if err := w.a.connect(n, w.b); !errors.Is(err, rdma.ErrFenced) {
			t.Errorf("%s: got %v, want ErrFenced", what, err)
		}
	}
	// One side has fenced what the other still dials.
	w.b.fence(number + 1)
	if err := w.a.connect(number+1, w.b); err != nil {
		t.Fatal(err)
	}
	w.a.await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.a.session(number+1) && d.Err != nil
		}) == 1
	})
	w.a.fence(number + 1)
	w.session = number + 1
	from, to := w.register(w.a, 4096), w.register(w.b, 4096)
	w.a.mustLand(w.connect(), w.write(1, w.grant(w.b, whole(to)), contiguous(from, 0, to, 0, 4096)))
}

func orderOfConnectIsFree(t *testing.T, w *world) {
	for number, order := range [][2]*node{{w.b, w.a}, {w.a, w.b}} {
		n := uint64(number + 1)
		for _, side := range order {
			to := w.a
			if side == w.a {
				to = w.b
			}
			if err := side.connect(n, to); err != nil {
				t.Fatal(err)
			}
		}
		w.a.await("connected", has(rdma.Connected{Session: w.a.session(n)}))
		w.b.await("connected", has(rdma.Connected{Session: w.b.session(n)}))
		w.a.fence(n)
		w.b.fence(n)
	}
}

func dialToNobody(t *testing.T, w *world) {
	endpoint := w.b.p.Endpoint()
	if err := w.b.p.Close(); err != nil {
		t.Fatal(err)
	}
	s := w.a.session(1)
	if err := w.a.p.Connect(rdma.Connection{Session: s, Self: "a", Dial: true, Endpoint: endpoint}); err != nil {
		t.Fatal(err)
	}
	w.a.await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == s && d.Err != nil
		}) == 1
	})
	w.a.fence(1)
}

func afterClose(t *testing.T, w *world) {
	m := w.register(w.a, 4096)
	g := w.grantID()
	for range 2 {
		if err := w.a.p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.a.p.Register(m.Memory); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Register: got %v, want ErrClosed", err)
	}
	if err := w.a.p.Grant(rdma.Grant{ID: g, Peer: "b", Ranges: []rdma.Range{whole(m)}}); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Grant: got %v, want ErrClosed", err)
	}
	if err := w.a.connect(1, w.b); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Connect: got %v, want ErrClosed", err)
	}
	if err := w.a.p.Post(w.a.session(1), nil); err == nil {
		t.Error("Post: got nil")
	}
	w.a.p.Revoke(g)
	w.a.p.Quiesce(1)
	w.a.p.Fence(w.a.session(1))
	w.a.polled.Wait()
	if n, err := w.a.p.Poll(context.Background(), make([]rdma.Event, 1)); n != 0 || !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Poll: got %d, %v, want ErrClosed", n, err)
	}
}
