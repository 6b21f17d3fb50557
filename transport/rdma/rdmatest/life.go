package rdmatest

import (
	"context"
	"errors"
	"testing"

	"kvferry/transport/rdma"
)

func peerCloses(t *testing.T, w *World) {
	const size = 16 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	to.Fill(canary)
	g := w.Grant(w.B, Whole(to))
	ws := w.stream(number, 1, g, from, to, 8)
	afterSomeBytes(to, 1)
	if err := w.B.P.Close(); err != nil {
		t.Error(err)
	}
	to.Fill(canary)
	w.A.AwaitWrites(ws)
	w.A.Await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.A.Session(number)
		}) == 1
	})
	w.A.Fence(number)
	if i := isAll(to.Memory.Bytes(), canary); i >= 0 {
		t.Errorf("byte %d landed after Close", i)
	}
}

func providerCloses(t *testing.T, w *World) {
	const size = 16 << 20
	number := w.Connect()
	from, to := w.Register(w.A, size), w.Register(w.B, size)
	from.Fill(clean)
	to.Fill(canary)
	g := w.Grant(w.B, Whole(to))
	ws := w.stream(number, 1, g, from, to, 8)
	afterSomeBytes(to, 1)
	if err := w.A.P.Close(); err != nil {
		t.Error(err)
	}
	from.Fill(poison)
	w.A.polled.Wait() // it gives what is left, then ErrClosed
	if done := len(w.A.completions()); done != len(ws) {
		t.Errorf("%d of %d writes completed", done, len(ws))
	}
	w.A.AwaitWrites(ws)
	w.B.Fence(number)
	w.noPoison(to)
}

func generationsAreToldApart(t *testing.T, w *World) {
	w.session = 4
	number := w.Connect() // 5
	for _, c := range []struct {
		what   string
		number uint64
		want   error
	}{
		{"the same again", number, rdma.ErrExists},
		{"a newer one over one that is not fenced", number + 1, rdma.ErrFenceFirst},
		{"an older one over one that is not fenced", number - 1, rdma.ErrFenceFirst},
	} {
		if err := w.A.Connect(c.number, w.B); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, err, c.want)
		}
	}
	w.A.Fence(number)
	w.B.Fence(number)
	for what, n := range map[string]uint64{"a fenced one": number, "one older than a fenced one": number - 1} {
		if err := w.A.Connect(n, w.B); !errors.Is(err, rdma.ErrFenced) {
			t.Errorf("%s: got %v, want ErrFenced", what, err)
		}
	}
	// One side has fenced what the other still dials.
	w.B.Fence(number + 1)
	if err := w.A.Connect(number+1, w.B); err != nil {
		t.Fatal(err)
	}
	w.A.Await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == w.A.Session(number+1) && d.Err != nil
		}) == 1
	})
	w.A.Fence(number + 1)
	w.session = number + 1
	from, to := w.Register(w.A, 4096), w.Register(w.B, 4096)
	w.A.MustLand(w.Connect(), w.Write(1, w.Grant(w.B, Whole(to)), Contiguous(from, 0, to, 0, 4096)))
}

func orderOfConnectIsFree(t *testing.T, w *World) {
	for number, order := range [][2]*Node{{w.B, w.A}, {w.A, w.B}} {
		n := uint64(number + 1)
		for _, side := range order {
			to := w.A
			if side == w.A {
				to = w.B
			}
			if err := side.Connect(n, to); err != nil {
				t.Fatal(err)
			}
		}
		w.A.Await("connected", has(rdma.Connected{Session: w.A.Session(n)}))
		w.B.Await("connected", has(rdma.Connected{Session: w.B.Session(n)}))
		w.A.Fence(n)
		w.B.Fence(n)
	}
}

func dialToNobody(t *testing.T, w *World) {
	endpoint := w.B.P.Endpoint()
	if err := w.B.P.Close(); err != nil {
		t.Fatal(err)
	}
	s := w.A.Session(1)
	if err := w.A.P.Connect(rdma.Connection{Session: s, Self: "a", Dial: true, Endpoint: endpoint}); err != nil {
		t.Fatal(err)
	}
	w.A.Await("disconnected", func(evs []rdma.Event) bool {
		return count(evs, func(ev rdma.Event) bool {
			d, ok := ev.(rdma.Disconnected)
			return ok && d.Session == s && d.Err != nil
		}) == 1
	})
	w.A.Fence(1)
}

func afterClose(t *testing.T, w *World) {
	m := w.Register(w.A, 4096)
	g := w.grantID()
	for range 2 {
		if err := w.A.P.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.A.P.Register(m.Memory); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Register: got %v, want ErrClosed", err)
	}
	if err := w.A.P.Grant(rdma.Grant{ID: g, Peer: "b", Ranges: []rdma.Range{Whole(m)}}); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Grant: got %v, want ErrClosed", err)
	}
	if err := w.A.Connect(1, w.B); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Connect: got %v, want ErrClosed", err)
	}
	if err := w.A.P.Post(w.A.Session(1), nil); err == nil {
		t.Error("Post: got nil")
	}
	w.A.P.Revoke(g)
	w.A.P.Quiesce(1)
	w.A.P.Fence(w.A.Session(1))
	w.A.polled.Wait()
	if n, err := w.A.P.Poll(context.Background(), make([]rdma.Event, 1)); n != 0 || !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Poll: got %d, %v, want ErrClosed", n, err)
	}
}
