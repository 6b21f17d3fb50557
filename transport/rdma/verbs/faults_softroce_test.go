//go:build cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// The faults of a real kernel under the provider, between devices in software:
// tests/softroce/init runs these.

const faultBytes = 8 << 20

// twoGuests is a and b on two devices, connected, with a grant of all of b's memory.
func twoGuests(t *testing.T, change func(c *Config)) (a, b *guest, from, to rdmatest.Region, id rdma.GrantID) {
	t.Helper()
	inGuest(t)
	a, b = listenGuest(t, "a", changed("a", change, "rxea")), listenGuest(t, "b", changed("b", change, "rxeb"))
	from, to = a.memory(faultBytes), b.memory(faultBytes)
	rdmatest.Randomize(from, 7)
	id = b.grant("a", to)
	a.join(b, 1)
	return a, b, from, to, id
}

func changed(name string, change func(c *Config), devices ...string) Config {
	c := guestConfig(name, devices...)
	if change != nil {
		change(&c)
	}
	return c
}

// again fences what is left of generation 1 on both sides, and moves all of the memory by
// the next.
func again(a, b *guest, from, to rdmatest.Region, id rdma.GrantID) {
	a.t.Helper()
	a.usable()
	b.usable()
	a.fence("b", 1)
	b.fence("a", 1)
	clear(to.Memory.Bytes())
	a.join(b, 2)
	ws := a.all(1, id, from, to, 16)
	a.post("b", 2, ws)
	a.land(ws)
	a.same(ws, from, to)
	a.close()
	b.close()
}

// A key that is not the region's any more ends the session with that reason. A session
// with another peer on the same device moves its bytes before, meanwhile and after.
func TestFaultAStaleKeyEndsOnlyItsSession(t *testing.T) {
	a, b, from, to, id := twoGuests(t, nil)
	c := listenGuest(t, "c", guestConfig("c", "rxeb"))
	others := c.memory(faultBytes)
	other := c.grant("a", others)
	a.join(c, 1)
	flow := a.stream("c", 1, other, from, others)

	b.p.mu.Lock()
	r := b.p.memory[to.Region]
	keys := r.keys
	r.keys = nil // Close leaves them alone
	b.p.mu.Unlock()
	if err := (&region{keys: keys}).deregister(); err != nil {
		t.Fatal(err)
	}
	bad := a.all(1, id, from, to, 16)
	a.post("b", 1, bad)
	if n := a.cutShort(bad); n > 0 {
		t.Errorf("%d writes have landed without a key", n)
	}
	why := a.disconnected("b", 1)
	if q := (*QueueError)(nil); !errors.As(why, &q) || q.Status.Blame() != Peer || q.Status.String() != "remote access error" {
		t.Errorf("a is told %v, want a remote access error", why)
	}
	b.disconnected("a", 1)
	if slices.ContainsFunc(to.Memory.Bytes(), func(x byte) bool { return x != 0 }) {
		t.Error("a byte has landed without a key")
	}
	a.land(flow.end(true))
	flow.same()
	last := a.all(2, other, from, others, 16)
	a.post("c", 1, last)
	a.land(last)
	a.same(last, from, others)

	a.fence("b", 1)
	b.fence("a", 1)
	b.p.Revoke(id)
	to = b.memory(faultBytes)
	id = b.grant("a", to)
	a.join(b, 2)
	good := a.all(1, id, from, to, 16)
	a.post("b", 2, good)
	a.land(good)
	a.same(good, from, to)
	a.close()
	b.close()
	c.close()
}

// A peer that is killed ends its session at once, by the end of its channel: a device
// that would try for 7 s more is not waited for.
func TestFaultAPeerThatIsKilledEndsItsWritesAtOnce(t *testing.T) {
	inGuest(t)
	a := listenGuest(t, "a", changed("a", func(c *Config) {
		c.Timeout, c.Retries, c.StallTimeout = 18, 6, 20*time.Second
	}, "rxea"))
	b := startPeer(t, "rxeb")
	from := a.memory(peerBytes)
	rdmatest.Randomize(from, 8)
	a.connect("b", 1, b.endpoint)
	a.connected("b", 1)
	ws := a.all(1, peerGrant, from, b.memory, 64) // a quarter of a second, at least
	a.post("b", 1, ws)
	a.some(ws, 4)
	b.signal(syscall.SIGKILL)
	killed := time.Now()
	why := a.disconnected("b", 1)
	took := time.Since(killed)
	landed := a.cutShort(ws)
	t.Logf("%d of %d writes had landed; after %s: %v", landed, len(ws), took, why)
	if landed == len(ws) {
		t.Error("all writes have landed: the peer was not killed in the middle of them")
	}
	if !strings.Contains(why.Error(), "channel") || took > 7*time.Second {
		t.Errorf("a is told after %s: %v; want the end of the channel, within 7 s", took, why)
	}
	if err := b.wait(); err == nil {
		t.Error("the peer ended well, want it killed")
	}
	a.fence("b", 1)
	a.close()
}

// A peer that is stopped takes what its receives are there for, then nothing more. A
// Quiesce does not wait for it, and when it goes on, so do the writes.
func TestFaultAPeerThatIsStoppedGoesOnLater(t *testing.T) {
	inGuest(t)
	a := listenGuest(t, "a", changed("a", func(c *Config) {
		c.ChunkBytes = 8 << 10            // 2 stripes of 256 receives take 4 MiB, a quarter of it
		c.StallTimeout = 20 * time.Second // so long it waits for a receive, too
	}, "rxea"))
	b := startPeer(t, "rxeb")
	from := a.memory(peerBytes)
	rdmatest.Randomize(from, 9)
	a.connect("b", 1, b.endpoint)
	a.connected("b", 1)
	first := []*rdma.Write{a.write(1, peerGrant, from, 0, b.memory, 0, 8)}
	a.post("b", 1, first)
	a.land(first) // so b has told of its grant
	b.signal(syscall.SIGSTOP)
	ws := a.all(1, peerGrant, from, b.memory, 64)
	kept, stopped := ws[:32], ws[32:]
	for _, w := range stopped {
		w.Tag = 2
	}
	a.post("b", 1, ws)
	a.await("all receives are taken", func() bool {
		a.p.mu.Lock()
		defer a.p.mu.Unlock()
		return !slices.ContainsFunc(a.p.sessions["b"].stripes, func(st *stripe) bool { return st.sent < st.credit })
	})
	time.Sleep(2 * time.Second)
	if n := len(a.ends(ws)); n == len(ws) {
		t.Error("all writes have ended while the peer was stopped")
	}
	a.p.Quiesce(2)
	find(a, "quiesced", func(e rdma.Quiesced) bool { return e.Tag == 2 })
	for _, c := range a.some(stopped, len(stopped)) {
		if c.Outcome == rdma.Unknown {
			t.Errorf("write %d is unknown, though its stripe is well: %v", c.ID, c.Err)
		}
	}
	b.signal(syscall.SIGCONT)
	a.land(kept)
	more := a.all(3, peerGrant, from, b.memory, 64)
	a.post("b", 1, more)
	a.land(more)
	b.same(more, from)
	a.fence("b", 1)
	b.end()
	a.close()
}

// A link that is down ends what goes by it, with a reason. The next generation works when
// it is up again.
func TestFaultTheOwnLinkThatGoes(t *testing.T)   { linkThatGoes(t, "va") }
func TestFaultThePeersLinkThatGoes(t *testing.T) { linkThatGoes(t, "vb") }

func linkThatGoes(t *testing.T, name string) {
	a, b, from, to, id := twoGuests(t, nil)
	flow := a.stream("b", 1, id, from, to)
	comes := cutLink(t, name)
	why := a.disconnected("b", 1)
	ws := flow.end(false)
	t.Logf("%d of %d writes had landed: %v", a.cutShort(ws), len(ws), why)
	b.disconnected("a", 1)
	flow.same()
	comes()
	again(a, b, from, to, id)
}

// Where nothing moves, only the device tells that the link has gone: both sides hear it.
func TestFaultALinkThatGoesWhileNothingMoves(t *testing.T) {
	a, b, from, to, id := twoGuests(t, nil)
	comes := cutLink(t, "vb")
	for _, why := range []error{a.disconnected("b", 1), b.disconnected("a", 1)} {
		if !strings.Contains(why.Error(), "port error") {
			t.Errorf("a side is told %v, want what the port says", why)
		}
	}
	comes()
	again(a, b, from, to, id)
}

// Of a path that carries nothing any more the device tells; the writes end with that
// reason, and the next generation works.
func TestFaultABlackHoleEndsTheWrites(t *testing.T) {
	a, b, from, to, id := twoGuests(t, func(c *Config) { c.Retries = 3 })
	flow := a.stream("b", 1, id, from, to)
	over := lose(t, "100%", "va", "vb")
	why := a.disconnected("b", 1)
	ws := flow.end(false)
	landed := a.cutShort(ws)
	t.Logf("%d of %d writes had landed: %v", landed, len(ws), why)
	if landed == len(ws) {
		t.Error("all writes have landed through a hole")
	}
	if !strings.Contains(why.Error(), "of the path") {
		t.Errorf("a is told %v, want that it is the path", why)
	}
	b.disconnected("a", 1)
	flow.same()
	over()
	again(a, b, from, to, id)
}

// A hole that takes the channel, too, and a device that tries for 8 s: the writes end by
// the provider's own deadlines, and a fence of the receiver needs nobody.
func TestFaultAFenceInABlackHole(t *testing.T) {
	a, b, from, to, id := twoGuests(t, func(c *Config) {
		c.Timeout, c.Retries, c.StallTimeout, c.GoneTimeout = 18, 6, 3*time.Second, 2*time.Second
	})
	flow := a.stream("b", 1, id, from, to)
	over := lose(t, "100%", "va", "vb", "lo")
	b.fence("a", 1)
	fenced := slices.Clone(to.Memory.Bytes())
	why := a.disconnected("b", 1)
	ws := flow.end(false)
	landed := a.cutShort(ws)
	t.Logf("%d of %d writes had landed: %v", landed, len(ws), why)
	if landed == len(ws) {
		t.Error("all writes have landed through a hole")
	}
	if !strings.Contains(why.Error(), "nothing completed within 3s") {
		t.Errorf("a is told %v, want the provider's own deadline", why)
	}
	flow.same()
	over()
	time.Sleep(200 * time.Millisecond) // for what would come late
	if !slices.Equal(fenced, to.Memory.Bytes()) {
		t.Error("bytes have landed after the fence")
	}
	again(a, b, from, to, id)
}

// A hole of a third of a second is ridden out.
func TestFaultAShortHoleIsRiddenOut(t *testing.T) {
	a, b, from, to, id := twoGuests(t, func(c *Config) { c.Timeout = 16 }) // 268 ms, 7 times
	flow := a.stream("b", 1, id, from, to)
	over := lose(t, "100%", "va", "vb")
	time.Sleep(300 * time.Millisecond)
	over()
	ws := flow.end(true)
	a.land(ws)
	flow.same()
	last := a.all(2, id, from, to, 16)
	a.post("b", 1, last)
	a.land(last)
	a.same(last, from, to)
	a.close()
	b.close()
}

// One packet of a hundred is lost, both ways: all writes land.
func TestFaultLostPacketsAreSentAgain(t *testing.T) {
	a, b, from, to, id := twoGuests(t, nil)
	lose(t, "1%", "va", "vb")
	ws := a.all(1, id, from, to, 32)
	a.post("b", 1, ws)
	a.land(ws)
	a.same(ws, from, to)
	a.close()
	b.close()
}

// Of two rails one goes, in the middle of writes: all land by the other, and when it
// comes back it carries writes again.
func TestFaultARailWhoseOwnLinkGoes(t *testing.T) {
	railThatGoes(t, func() (comes func()) { return cutLink(t, "vc") })
}

func TestFaultARailWhosePeersLinkGoes(t *testing.T) {
	railThatGoes(t, func() (comes func()) { return cutLink(t, "vd") })
}

func TestFaultARailThatIsABlackHole(t *testing.T) {
	railThatGoes(t, func() (over func()) { return lose(t, "100%", "vc", "vd") })
}

func railThatGoes(t *testing.T, goes func() (comes func())) {
	a, b, from, to, id := twoRails(t)
	flow := a.stream("b", 1, id, from, to)
	comes := goes()
	stripes(a, b, 2)
	a.land(flow.end(true)) // at once: the last write to some places was lost with a stripe
	flow.same()
	flow = a.stream("b", 1, id, from, to)
	comes()
	stripes(a, b, 4)
	a.await("two new stripes of the rail carry something", func() bool {
		n := 0
		for _, number := range a.stripesOf("rxec") { // in a hole others were offered, and lost again
			if number > 4 && a.uses(number) {
				n++
			}
		}
		return n == 2
	})
	a.land(flow.end(true))
	flow.same()
	a.close()
	b.close()
}

// Two devices that are removed under their providers, with their interfaces: all writes
// land by the other rail. The kernel waits with the removal until the providers close.
func TestFaultADeviceThatIsRemoved(t *testing.T) {
	a, b, from, to, id := twoRails(t)
	flow := a.stream("b", 1, id, from, to)
	removal := exec.Command("/bin/ip", "link", "del", "vc")
	if err := removal.Start(); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- removal.Wait() }()
	t.Cleanup(func() {
		a.close()
		b.close()
		select {
		case err := <-removed:
			if err != nil {
				t.Error(err)
			}
			wire(t, "vc")
		case <-time.After(guestBound):
			t.Errorf("the devices are not removed within %s of the end of their providers", guestBound)
		}
	})
	stripes(a, b, 2)
	a.land(flow.end(true))
	flow.same()
}

// twoRails is a and b on two devices each, with two stripes a pair, all of which have
// carried something.
func twoRails(t *testing.T) (a, b *guest, from, to rdmatest.Region, id rdma.GrantID) {
	t.Helper()
	inGuest(t)
	a, b = listenGuest(t, "a", guestConfig("a", "rxea", "rxec")), listenGuest(t, "b", guestConfig("b", "rxeb", "rxed"))
	from, to = a.memory(faultBytes), b.memory(faultBytes)
	rdmatest.Randomize(from, 11)
	id = b.grant("a", to)
	a.join(b, 1)
	a.await("all stripes carry something", func() bool {
		ws := a.all(3, id, from, to, 32)
		a.post("b", 1, ws)
		a.land(ws)
		return a.uses(1) && a.uses(2) && a.uses(3) && a.uses(4)
	})
	clear(to.Memory.Bytes())
	return a, b, from, to, id
}

// stripes waits until the session has n that carry writes, at both ends.
func stripes(a, b *guest, n int) {
	a.t.Helper()
	a.await(fmt.Sprintf("%d stripes are live", n), func() bool { return live(a.p, "b") == n && live(b.p, "a") == n })
}

// stripesOf is the numbers of the stripes of a device that are live.
func (g *guest) stripesOf(device string) (numbers []uint32) {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	for _, st := range g.p.sessions["b"].stripes {
		if st.live && st.card.device == device {
			numbers = append(numbers, st.number)
		}
	}
	return numbers
}

// uses reports whether something has landed by a stripe.
func (g *guest) uses(stripe uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.ended {
		if slices.ContainsFunc(c.Arrivals, func(x rdma.Arrival) bool { return x.Stripe == stripe }) {
			return true
		}
	}
	return false
}
