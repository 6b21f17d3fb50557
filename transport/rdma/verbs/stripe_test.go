package verbs

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma/verbs/control"
)

func TestSizesOfQueuePairs(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		want   queueSize
	}{
		{"nothing is said", Limits{}, queueSize{2048, 256, 8, 682}},
		{"more than is wanted", Limits{MaxQPWR: 1 << 20, MaxSGE: 100, MaxCQE: 1 << 22}, queueSize{2048, 256, 8, 682}},
		{"just what is wanted", Limits{MaxQPWR: 2048, MaxSGE: 8, MaxCQE: 2304}, queueSize{2048, 256, 8, 682}},
		{"two pieces", Limits{MaxQPWR: 32767, MaxSGE: 2, MaxCQE: 65535}, queueSize{2048, 256, 2, 682}},
		{"few requests", Limits{MaxQPWR: 200, MaxSGE: 30}, queueSize{200, 200, 8, 66}},
		{"a completion queue of one less", Limits{MaxCQE: 2303}, queueSize{2047, 256, 8, 682}},
		{"a small completion queue", Limits{MaxCQE: 512}, queueSize{384, 128, 8, 128}},
		{"a completion queue that is less than the receives", Limits{MaxCQE: 100}, queueSize{75, 25, 8, 25}},
		{"a completion queue for all sends, not for the receives", Limits{MaxQPWR: 300, MaxCQE: 500}, queueSize{300, 125, 8, 100}},
		{"next to nothing", Limits{MaxQPWR: 4, MaxSGE: 1, MaxCQE: 4}, queueSize{3, 1, 1, 2}},
	} {
		if got := sizeOf(c.limits); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		limit := func(name string, least int) int {
			return rapid.OneOf(rapid.Just(0), rapid.IntRange(least, 5000)).Draw(t, name)
		}
		l := Limits{MaxQPWR: limit("requests", 4), MaxSGE: limit("pieces", 1), MaxCQE: limit("completions", 4)}
		q := sizeOf(l)
		within := func(got, limit int) bool { return got >= 1 && (limit == 0 || got <= limit) }
		// A chain has a request and the record behind it, and fits the queue.
		if !within(q.Sends, l.MaxQPWR) || !within(q.Receives, l.MaxQPWR) || !within(q.Pieces, l.MaxSGE) || !within(q.Sends+q.Receives, l.MaxCQE) ||
			q.Chain < 2 || q.Chain > q.Sends {
			t.Fatalf("of %+v: %+v", l, q)
		}
	})
}

// A device that refuses a size is asked for less until it does not, or for good.
func TestQueuePairsThatAreRefused(t *testing.T) {
	call := func(err syscall.Errno) error { return &CallError{Call: "ibv_create_qp", Device: "fake_0", Err: err} }
	halves := []queueSize{{2048, 256, 8, 682}, {1024, 256, 4, 341}, {512, 256, 2, 170}, {256, 256, 1, 85}, {128, 256, 1, 42}, {64, 256, 1, 21}}
	for _, c := range []struct {
		name   string
		limits Limits
		refuse func(queueSize) error
		asked  []queueSize
		err    error
	}{
		{"it takes all", Limits{}, nil, halves[:1], nil},
		{"no memory for so many", Limits{}, refusesAbove(500, 8, call(syscall.ENOMEM)), halves[:4], nil},
		{"too many pieces", Limits{}, refusesAbove(4096, 2, call(syscall.EINVAL)), halves[:3], nil},
		{"just the least", Limits{}, refusesAbove(64, 1, call(syscall.ENOMEM)), halves, nil},
		{"not even the least", Limits{}, refusesAbove(63, 8, call(syscall.ENOMEM)), halves, syscall.ENOMEM},
		{"never", Limits{}, refusesAbove(0, 0, call(syscall.EINVAL)), halves, syscall.EINVAL},
		{"between the least and its double", Limits{MaxQPWR: 100}, refusesAbove(99, 8, call(syscall.ENOMEM)), []queueSize{{100, 100, 8, 33}, {64, 100, 4, 21}}, nil},
		{"for another reason", Limits{}, refusesAbove(0, 0, call(syscall.EACCES)), halves[:1], syscall.EACCES},
		{"for a reason of no call", Limits{}, refusesAbove(0, 0, errNoQueue), halves[:1], errNoQueue},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := partsProvider(t, 1)
			n := newPartsNic(c.limits)
			n.refuse = c.refuse
			p.cards[0].nic, p.cards[0].limits = n, c.limits
			st, err := (&session{provider: p, state: down}).newStripe(1, p.cards[0], 0)
			if !slices.Equal(n.asked, c.asked) {
				t.Errorf("it was asked for %v, want %v", n.asked, c.asked)
			}
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got error %v, want %v", err, c.err)
			}
			if err == nil {
				last := c.asked[len(c.asked)-1]
				if st.size != last || cap(st.chain.rows) < last.Chain || cap(st.chain.pieces) < last.Chain*last.Pieces {
					t.Errorf("got %+v with room for %d rows and %d pieces, want %+v", st.size, cap(st.chain.rows), cap(st.chain.pieces), last)
				}
				if w := n.wins; len(w) != 1 || w[0].bytes != uint64(last.Sends+last.Receives)*recordBytes || w[0].addr != st.recordsAddr() || w[0].dmabuf != -1 {
					t.Errorf("records are registered as %+v", w)
				}
				endOf(st)
			}
			if n.live != 0 || n.known != 0 {
				t.Errorf("%d queue pairs and %d registrations are left", n.live, n.known)
			}
		})
	}
}

func TestStripesThatCannotBeMade(t *testing.T) {
	p, n := partsProvider(t, 1)
	p.cards[0].down = "port error"
	if _, err := (&session{provider: p, state: down}).newStripe(1, p.cards[0], 0); err == nil || err.Error() != "fake_0:1 is down: port error" || len(n.asked) != 0 {
		t.Errorf("got error %v after %v", err, n.asked)
	}
	p.cards[0].down = ""
	n.wins = make([]window, 2) // it has no memory for more
	p.cards[0].nic = failingNic{n}
	var failed *MemoryError
	if _, err := (&session{provider: p, state: down}).newStripe(1, p.cards[0], 0); !errors.As(err, &failed) {
		t.Errorf("got error %v", err)
	}
	eventually(t, "nothing is left", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.live == 0 && n.known == 0 })
}

// The two ends agree on the smaller MTU, and on nothing that no queue pair can be.
func TestMeet(t *testing.T) {
	p, n := partsProvider(t, 1)
	p.config.TrafficClass, p.config.ServiceLevel = 104, 3
	st, err := (&session{provider: p, state: down}).newStripe(7, p.cards[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer endOf(st)
	good := func() *control.QueuePair {
		return &control.QueuePair{Number: 0xffffff, Psn: 0xfffffe, Lid: 0xffff, Gid: idOf(9), Mtu: 2048, Receives: 17, Ring: 1 << 50, RingKey: 6}
	}
	got, err := st.meet(good())
	want := link{
		Port: 1, Local: st.gid, Remote: [16]byte{9}, RemoteLID: 0xffff, Ethernet: true, MTU: 2048, RemoteNumber: 0xffffff, LocalPSN: st.psn,
		RemotePSN: 0xfffffe, Timeout: 14, Retries: 6, RNRRetries: 6, TrafficClass: 104, ServiceLevel: 3,
	}
	if err != nil || *got != want || st.ring != 1<<50 || st.ringKey != 6 || st.ringSize != 17 {
		t.Errorf("got %+v, error %v; want %+v", got, err, want)
	}
	large := good()
	large.Mtu, st.mtu = 4096, 1024
	if got, err := st.meet(large); err != nil || got.MTU != 1024 {
		t.Errorf("got %+v, error %v", got, err)
	}
	for _, c := range []struct {
		change func(q *control.QueuePair)
		want   string
	}{
		{func(q *control.QueuePair) { q.Gid = nil }, "stripe 7: the peer's queue pair is malformed: number 0xffffff, PSN 0xfffffe, LID 0xffff, a GID of 0 bytes"},
		{func(q *control.QueuePair) { q.Gid = make([]byte, 17) }, "a GID of 17 bytes"},
		{func(q *control.QueuePair) { q.Number = 1 << 24 }, "number 0x1000000,"},
		{func(q *control.QueuePair) { q.Psn = 1 << 24 }, "PSN 0x1000000,"},
		{func(q *control.QueuePair) { q.Lid = 1 << 16 }, "LID 0x10000,"},
		{func(q *control.QueuePair) { q.Receives = 0 }, "the peer has 0 receives, want 1 to 1048576"},
		{func(q *control.QueuePair) { q.Receives = 1<<20 + 1 }, "the peer has 1048577 receives, want 1 to 1048576"},
		{func(q *control.QueuePair) { q.Mtu = 0 }, "MTUs are 1024 and 0, want 256, 512, 1024, 2048 or 4096"},
		{func(q *control.QueuePair) { q.Mtu = 1000 }, "MTUs are 1024 and 1000, want"},
	} {
		q := good()
		c.change(q)
		if got, err := st.meet(q); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %+v, error %v; want %q", got, err, c.want)
		}
	}
	if _, err := st.meet(nil); err == nil || !strings.Contains(err.Error(), "is malformed") {
		t.Errorf("of none: got error %v", err)
	}
	if n.live != 1 {
		t.Errorf("%d queue pairs, want 1", n.live)
	}
}

// endOf ends a stripe that nothing runs of, and waits until it has.
func endOf(st *stripe) {
	st.discard(errClosed)
	<-st.ended
}
