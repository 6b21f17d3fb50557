package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"kvferry/transport/rdma"
)

const canary = 0xC5

// receiver is a provider named "p" with a pool, and a child that is connected to it.
type receiver struct {
	*node
	*family
	pool   *rdma.Memory
	region rdma.RegionID
	source rdma.RegionID // of the child
	seed   uint64
	writes rdma.WriteID
	number uint64 // of the generation that carries posts
}

func newReceiver(t *testing.T, c Config, poolBytes uint64, before ...order) *receiver {
	t.Helper()
	r := &receiver{node: &node{p: listen(t, c)}, family: bear(t, nil), seed: 5, number: 1}
	m, err := rdma.NewMemory("receiver", poolBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.signal(syscall.SIGKILL)
		r.p.Close()
		m.Close()
	})
	d, err := r.p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	r.pool, r.region = m, d.Region
	r.fill()
	for _, o := range before {
		r.do(o)
	}
	r.source = r.do(order{Op: "memory", Bytes: poolBytes, Seed: r.seed}).Region
	r.connect(1)
	return r
}

func (r *receiver) session(number uint64) rdma.SessionID {
	return rdma.SessionID{Peer: "c", Generation: generation(number)}
}

func (r *receiver) connect(number uint64) {
	r.t.Helper()
	if err := r.p.Connect(rdma.Connection{Session: r.session(number), Self: "p"}); err != nil {
		r.t.Fatal(err)
	}
	r.do(order{Op: "connect", Number: number, Dial: true, Endpoint: r.p.Endpoint()})
	await(r.t, r.node, func(ev rdma.Connected) bool { return ev.Session == r.session(number) })
}

func (r *receiver) fill() {
	b := r.pool.Bytes()
	b[0] = canary
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func (r *receiver) grant(id rdma.GrantID, ranges ...rdma.Range) {
	r.t.Helper()
	if err := r.p.Grant(rdma.Grant{ID: id, Peer: "c", Ranges: ranges}); err != nil {
		r.t.Fatal(err)
	}
}

// post lets the child write bytes from the start of its pool to the start of ours.
func (r *receiver) post(g rdma.GrantID, bytes uint64) rdma.WriteID {
	r.t.Helper()
	r.writes++
	r.do(order{Op: "post", Number: r.number, Write: rdma.Write{ID: r.writes, Tag: 1, Grant: g, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: r.source}, Target: rdma.Place{Region: r.region},
		Bytes: bytes, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}})
	return r.writes
}

func (r *receiver) outcome(id rdma.WriteID) string {
	r.t.Helper()
	return r.do(order{Op: "await", Write: rdma.Write{ID: id}}).Outcome
}

func (r *receiver) revoke(id rdma.GrantID) (closed bool) {
	r.t.Helper()
	r.p.Revoke(id)
	return await(r.t, &node{p: r.p}, func(ev rdma.Revoked) bool { return ev.Grant == id }).Closed
}

func (r *receiver) fence(number uint64) []rdma.OpenGrant {
	r.t.Helper()
	r.p.Fence(r.session(number))
	return await(r.t, &node{p: r.p}, func(ev rdma.Fenced) bool { return ev.Session == r.session(number) }).Open
}

func TestScatteredRowsBetweenProcessesAreExact(t *testing.T) {
	const poolBytes = 16 << 20
	for _, rowBytes := range []uint64{64 << 10, 4 << 10, 512, 100} {
		t.Run(fmt.Sprint(rowBytes), func(t *testing.T) {
			r := newReceiver(t, Config{}, poolBytes)
			source := make([]byte, poolBytes)
			randomize(source, r.seed)
			want := bytes.Clone(r.pool.Bytes())
			rng := rand.New(rand.NewPCG(rowBytes, 1))
			rows := poolBytes / rowBytes
			from, to := rng.Perm(int(rows)), rng.Perm(int(rows))
			c := rdma.Copy{
				Source: rdma.Place{Region: r.source, UnitStride: rowBytes}, Target: rdma.Place{Region: r.region, UnitStride: rowBytes},
				Bytes: rowBytes, Count: [2]uint32{1, 1},
			}
			granted := wholeOf(r.region, rowBytes)
			granted.UnitStride, granted.Runs = rowBytes, nil
			for i := range rows * 3 / 4 {
				s, d := uint64(from[i]), uint64(to[i])
				c.Runs = append(c.Runs, rdma.PairRun{Source: uint32(s), Target: uint32(d), Count: 1})
				granted.Runs = append(granted.Runs, rdma.Run{First: uint32(d), Count: 1, Step: 1})
				copy(want[d*rowBytes:][:rowBytes], source[s*rowBytes:][:rowBytes])
			}
			id := rdma.GrantID{3}
			r.grant(id, granted)
			r.do(order{Op: "post", Number: 1, Write: rdma.Write{ID: 1, Tag: 1, Grant: id, Copies: []rdma.Copy{c}}})
			a := await(t, r.node, func(ev rdma.Arrived) bool { return ev.Grant == id })
			if got := a.Bytes; got != c.Rows()*rowBytes || a.Count != 1 || a.Generation != generation(1) {
				t.Errorf("got %+v, want 1 arrival of %d bytes", a, c.Rows()*rowBytes)
			}
			if !bytes.Equal(r.pool.Bytes(), want) {
				t.Error("the pool differs from what the plan says")
			}
			if got := r.outcome(1); got != rdma.Landed.String() {
				t.Errorf("the child says %s", got)
			}
		})
	}
}

func TestAProcessStoppedOutsideACopyHoldsNothing(t *testing.T) {
	const poolBytes = 4 << 20
	r := newReceiver(t, Config{CopyTimeout: 10 * time.Second}, poolBytes)
	id, other := rdma.GrantID{1}, rdma.GrantID{2}
	r.grant(id, wholeOf(r.region, poolBytes))
	r.grant(other, wholeOf(r.region, poolBytes))
	if got := r.outcome(r.post(id, poolBytes)); got != rdma.Landed.String() {
		t.Fatalf("got %s", got)
	}
	r.signal(syscall.SIGSTOP)
	r.stopped()
	start := time.Now()
	if !r.revoke(id) {
		t.Error("the grant is open")
	}
	if open := r.fence(1); len(open) != 0 {
		t.Errorf("the fence left %v open", open)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	r.signal(syscall.SIGCONT)
}

// stoppedInside is a receiver whose child has stopped inside the second chunk of a
// write of eight.
func stoppedInside(t *testing.T) (r *receiver, held, free rdma.GrantID) {
	const poolBytes = 8 * chunkBytes
	r = newReceiver(t, Config{CopyTimeout: 50 * time.Millisecond}, poolBytes, order{Op: "stop inside", Chunks: 2})
	held, free = rdma.GrantID{1}, rdma.GrantID{2}
	r.grant(held, wholeOf(r.region, poolBytes))
	r.grant(free, wholeOf(r.region, poolBytes))
	r.post(held, poolBytes)
	r.stopped()
	return r, held, free
}

func TestAProcessStoppedInsideACopyKeepsThatGrantOpenUntil(t *testing.T) {
	for what, end := range map[string]syscall.Signal{"it continues": syscall.SIGCONT, "it dies": syscall.SIGKILL} {
		t.Run(what, func(t *testing.T) {
			r, held, free := stoppedInside(t)
			if r.revoke(held) {
				t.Fatal("the grant is closed while a copy under it may go on")
			}
			if !r.revoke(free) {
				t.Error("a grant that no copy uses is open")
			}
			for _, number := range []uint64{1, 1, 2} { // again, and a later one
				open := r.fence(number)
				if len(open) != 1 || open[0].Grant != held || open[0].Reason == "" {
					t.Fatalf("fence of %d: open are %v, want the grant that is held", number, open)
				}
			}
			if r.revoke(held) {
				t.Error("the grant is closed after the fence")
			}
			if err := r.p.Deregister(r.region); !errors.Is(err, rdma.ErrBusy) {
				t.Errorf("the region of an open grant: got %v, want ErrBusy", err)
			}
			r.signal(end)
			told := await(t, &node{p: r.p}, func(ev rdma.Revoked) bool { return ev.Grant == held })
			if !told.Closed {
				t.Error("told unasked, the grant is open")
			}
			if err := r.p.Deregister(r.region); err != nil {
				t.Errorf("the region of a closed grant: %v", err)
			}
			r.fill()
			if open := r.fence(3); len(open) != 0 {
				t.Errorf("open are %v", open)
			}
			if !r.revoke(held) {
				t.Error("the grant is open")
			}
			if end == syscall.SIGCONT {
				if got := r.outcome(1); got != rdma.Unknown.String() {
					t.Errorf("the child says %s, want unknown: a part of it landed", got)
				}
			}
			if n := bytes.Count(r.pool.Bytes(), []byte{canary}); n != len(r.pool.Bytes()) {
				t.Errorf("%d bytes landed after the grant was closed", len(r.pool.Bytes())-n)
			}
		})
	}
}

// A fence lets no copy begin, and says that the one that goes on keeps its grant, also
// where nobody revoked it. The grant itself stays: the next generation goes on with it.
func TestAFenceEndsTheCopyThatGoesOnAndNoOtherBegins(t *testing.T) {
	r, held, _ := stoppedInside(t)
	if open := r.fence(1); len(open) != 1 || open[0].Grant != held {
		t.Fatalf("open are %v, want the grant that is held", open)
	}
	r.signal(syscall.SIGCONT)
	if got := r.outcome(1); got != rdma.Unknown.String() {
		t.Errorf("the child says %s, want unknown: a part of it landed", got)
	}
	for stop := time.Now().Add(patience); len(r.fence(2)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(stop) {
			t.Fatal("the grant was never closed")
		}
	}
	const begun = 2 * chunkBytes
	if n := bytes.Count(r.pool.Bytes()[begun:], []byte{canary}); n != len(r.pool.Bytes())-begun {
		t.Errorf("%d bytes landed of chunks that began after the fence", len(r.pool.Bytes())-begun-n)
	}
	for _, ev := range r.seen {
		if a, ok := ev.(rdma.Arrived); ok {
			t.Errorf("%+v of a write that did not land", a)
		}
	}
	r.do(order{Op: "fence", Number: 2})
	r.connect(3)
	r.number = 3
	if got := r.outcome(r.post(held, 8*chunkBytes)); got != rdma.Landed.String() {
		t.Errorf("posted again: the child says %s", got)
	}
}

// A revoke that waits for a copy is answered closed when the copy ends.
func TestARevokeWaitsForACopyThatGoesOn(t *testing.T) {
	r, held, _ := stoppedInside(t)
	r.p.config.CopyTimeout = patience // read by Revoke's goroutine alone
	r.p.Revoke(held)
	r.signal(syscall.SIGCONT)
	if ev := await(t, r.node, func(ev rdma.Revoked) bool { return ev.Grant == held }); !ev.Closed {
		t.Error("the grant is open")
	}
	if got := r.outcome(1); got != rdma.Refused.String() {
		t.Errorf("the child says %s, want refused", got)
	}
	await(t, r.node, func(ev rdma.Stale) bool { return ev.Peer == "c" && ev.Reason == refusedRevoked.Error() })
}

func TestCloseNamesWhatIsOpen(t *testing.T) {
	r, held, _ := stoppedInside(t)
	err := r.p.Close()
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte(held.String())) {
		t.Errorf("got %v, want the grant that is open", err)
	}
}

func TestTheDeathOfTheSenderEndsTheSession(t *testing.T) {
	r := newReceiver(t, Config{}, 1<<20)
	id := rdma.GrantID{1}
	r.grant(id, wholeOf(r.region, 1<<20))
	r.signal(syscall.SIGKILL)
	await(t, r.node, func(ev rdma.Disconnected) bool { return ev.Session == r.session(1) && ev.Err != nil })
	if !r.revoke(id) {
		t.Error("the grant is open")
	}
	if open := r.fence(1); len(open) != 0 {
		t.Errorf("open are %v", open)
	}
}

// The owner of the pool dies while its peer writes: the mapping is still there, and
// what is written into it is nobody's.
func TestTheDeathOfTheReceiverEndsEveryWrite(t *testing.T) {
	const poolBytes = 64 << 20
	f := bear(t, nil)
	n := &node{p: listen(t, Config{})}
	m, err := rdma.NewMemory("sender", poolBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.p.Close()
		m.Close()
	})
	d, err := n.p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	region := f.do(order{Op: "memory", Bytes: poolBytes}).Region
	id := rdma.GrantID{9}
	f.do(order{Op: "grant", Grant: id, Region: region})
	s := rdma.SessionID{Peer: "c", Generation: generation(1)}
	if err := n.p.Connect(rdma.Connection{Session: s, Self: "p", Dial: true, Endpoint: f.do(order{Op: "endpoint"}).Endpoint}); err != nil {
		t.Fatal(err)
	}
	f.do(order{Op: "connect", Number: 1})
	await(t, n, func(ev rdma.Connected) bool { return ev.Session == s })
	const writes = 200
	for i := range rdma.WriteID(writes) {
		w := &rdma.Write{ID: i, Tag: rdma.Tag(i % 3), Grant: id, Copies: []rdma.Copy{{
			Source: rdma.Place{Region: d.Region}, Target: rdma.Place{Region: region}, Bytes: poolBytes, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
		}}}
		if err := n.p.Post(s, []*rdma.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	f.signal(syscall.SIGKILL)
	await(t, n, func(ev rdma.Disconnected) bool { return ev.Session == s && ev.Err != nil })
	done := map[rdma.WriteID]rdma.Outcome{}
	for _, ev := range n.seen {
		if c, ok := ev.(rdma.Completed); ok {
			done[c.ID] = c.Outcome
		}
	}
	if len(done) != writes {
		t.Errorf("%d of %d writes completed before Disconnected", len(done), writes)
	}
	if err := n.p.Deregister(d.Region); err != nil {
		t.Errorf("the source: %v", err)
	}
	n.p.Fence(s)
	await(t, n, func(ev rdma.Fenced) bool { return ev.Session == s })
}

func TestAnotherGenerationIsClosed(t *testing.T) {
	r := newReceiver(t, Config{}, 1<<20)
	r.fence(1)
	a := r.try(order{Op: "connect", Number: 1, Dial: true, Endpoint: r.p.Endpoint()})
	if a.Err == "" {
		t.Error("a generation that was fenced here is connected")
	}
	f := bear(t, nil)
	if err := r.p.Connect(rdma.Connection{Session: r.session(3), Self: "p"}); err != nil {
		t.Fatal(err)
	}
	if a := f.try(order{Op: "connect", Number: 2, Dial: true, Endpoint: r.p.Endpoint()}); a.Err == "" {
		t.Error("an older generation is connected")
	}
	await(t, r.node, func(ev rdma.Stale) bool { return ev.Reason == errOver.Error() })
}

func TestWhyMemoryCannotBeSharedIsToldAtOnce(t *testing.T) {
	for want, c := range map[string]struct {
		with   func(*exec.Cmd)
		before []order
	}{
		OtherNamespace: {with: func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET} }},
		OtherUser:      {before: []order{{Op: "become nobody"}}},
	} {
		t.Run(want, func(t *testing.T) {
			p := listen(t, Config{})
			f := bear(t, c.with)
			for _, o := range c.before {
				if a := f.try(o); a.Err != "" {
					t.Skipf("this user may not %s: %s", o.Op, a.Err)
				}
			}
			s := rdma.SessionID{Peer: "c", Generation: generation(1)}
			if err := p.Connect(rdma.Connection{Session: s, Self: "p"}); err != nil {
				t.Fatal(err)
			}
			a := f.try(order{Op: "connect", Number: 1, Dial: true, Endpoint: p.Endpoint()})
			if a.Unreachable != want || a.Took > 2*time.Second {
				t.Errorf("got %q (%s) after %s, want %q", a.Unreachable, a.Err, a.Took, want)
			}
		})
	}
	here := endpoint{"boot", "net:[1]", "@x"}
	for raw, want := range map[string]string{
		"":                       BadEndpoint,
		"shm2 boot net:[1] @x":   BadEndpoint,
		"shm1 boot net:[1] /x":   BadEndpoint,
		"shm1 reboot net:[1] @x": OtherHost,
		"shm1 boot net:[2] @x":   OtherNamespace,
	} {
		var unreachable *UnreachableError
		if _, err := here.reach([]byte(raw)); !errors.As(err, &unreachable) || unreachable.Reason != want {
			t.Errorf("%q: got %v, want %s", raw, err, want)
		}
	}
}
