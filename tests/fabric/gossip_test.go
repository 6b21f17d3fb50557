package fabric_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/cluster"
	"kvferry/tests/fabric"
)

// gossiper is one node's gossip on a fabric, and what it told.
type gossiper struct {
	*cluster.Gossip
	host string

	mu   sync.Mutex
	told []string
	up   map[string]bool
}

func host(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

func startGossip(t *testing.T, net *fabric.Net, i int, incarnation uint64, seeds ...int) *gossiper {
	t.Helper()
	g := &gossiper{host: host(i), up: map[string]bool{}}
	config := cluster.Config{
		Name: fmt.Sprint("n", i), Incarnation: incarnation, Address: g.host + ":8090",
		Label: "test", Transport: net.Transport(g.host, 7946),
	}
	for _, s := range seeds {
		config.Seeds = append(config.Seeds, host(s)+":7946")
	}
	var err error
	if g.Gossip, err = cluster.Start(context.Background(), config, g.tell); err != nil {
		t.Fatal(err)
	}
	return g
}

// tell checks that Up and Down alternate, and records.
func (g *gossiper) tell(event cluster.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch e := event.(type) {
	case cluster.Up:
		if g.up[e.Member.String()] {
			panic("up twice: " + e.Member.String())
		}
		g.up[e.Member.String()] = true
		g.told = append(g.told, "up "+e.Member.String())
	case cluster.Down:
		if !g.up[e.Member.String()] {
			panic("down, and was not up: " + e.Member.String())
		}
		delete(g.up, e.Member.String())
		g.told = append(g.told, fmt.Sprintf("down %s %s", e.Member, e.Reason))
	}
}

// events is what was told since the last call.
func (g *gossiper) events() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	told := g.told
	g.told = nil
	return told
}

func (g *gossiper) show() string {
	var names []string
	for _, m := range g.Members() {
		names = append(names, m.String())
	}
	return strings.Join(names, " ")
}

// within waits, in virtual time, until all see want.
func within(t *testing.T, d time.Duration, want string, all ...*gossiper) {
	t.Helper()
	start := time.Now()
	for {
		i := slices.IndexFunc(all, func(g *gossiper) bool { return g.show() != want })
		if i < 0 {
			t.Logf("%s after %v", want, time.Since(start))
			return
		}
		if time.Since(start) > d {
			t.Fatalf("%s sees %q after %v, want %q", all[i].host, all[i].show(), d, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func closeAll(t *testing.T, all ...*gossiper) {
	t.Helper()
	var wg sync.WaitGroup
	for _, g := range all {
		wg.Go(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	time.Sleep(30 * time.Second) // suspicion timers that nobody hears any more
}

func five(t *testing.T, net *fabric.Net) []*gossiper {
	t.Helper()
	var all []*gossiper
	for i := range 5 {
		all = append(all, startGossip(t, net, i, 1, 0))
	}
	within(t, time.Minute, "n0#1 n1#1 n2#1 n3#1 n4#1", all...)
	return all
}

func TestFiveNodesFindEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		faults := fabric.DefaultFaults
		faults.PacketLoss, faults.Jitter = 0.05, 5*time.Millisecond
		net.SetFaults(faults)
		all := five(t, net)
		closeAll(t, all...)
	})
}

func TestTheSeedMayComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(2)
		a, b := startGossip(t, net, 1, 1, 0), startGossip(t, net, 2, 1, 0)
		time.Sleep(10 * time.Minute)
		c := startGossip(t, net, 0, 1)
		within(t, time.Minute, "n0#1 n1#1 n2#1", a, b, c)
		closeAll(t, a, b, c)
	})
}

func TestCrashIsDeadAndLeaveIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(3)
		all := five(t, net)
		all[0].events()
		net.Crash(all[4].host)
		within(t, time.Minute, "n0#1 n1#1 n2#1 n3#1", all[:4]...)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := all[3].Leave(ctx); err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, "n0#1 n1#1 n2#1", all[:3]...)
		if got := all[0].events(); !slices.Equal(got, []string{"down n4#1 dead", "down n3#1 left"}) {
			t.Errorf("got %q", got)
		}
		closeAll(t, all...)
	})
}

func TestPartitionLongerThanTheDeadMemoryHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(4)
		all := five(t, net)
		left, right := []string{host(0), host(1)}, []string{host(2), host(3), host(4)}
		net.Split(left, right)
		within(t, time.Minute, "n0#1 n1#1", all[:2]...)
		within(t, time.Minute, "n2#1 n3#1 n4#1", all[2:]...)
		time.Sleep(10 * time.Minute)
		net.HealAll()
		within(t, time.Minute, "n0#1 n1#1 n2#1 n3#1 n4#1", all...)
		closeAll(t, all...)
	})
}

// Who does not answer is told of within two probe timeouts, long before gossip has made
// up its mind; who answers, or has gone, is not.
func TestAskIsSoonerThanGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(4)
		all := five(t, net)
		silent := make(chan time.Duration, 8)
		ask := func(i int, incarnation uint64) {
			since := time.Now()
			all[0].Ask(fmt.Sprint("n", i), incarnation, func(m cluster.Member) {
				if m.Name != fmt.Sprint("n", i) || m.Address != host(i)+":8090" {
					t.Errorf("asked of n%d, told of %+v", i, m)
				}
				silent <- time.Since(since)
			})
		}
		ask(1, 1)
		ask(1, 7) // nobody knows that life of it
		time.Sleep(time.Second)
		if n := len(silent); n != 0 {
			t.Errorf("%d who answer or are unknown were called silent", n)
		}
		net.Crash(host(2))
		ask(2, 1)
		if took := <-silent; took != 400*time.Millisecond {
			t.Errorf("silence was told after %v, want two probe timeouts of 200ms", took)
		}
		if got := all[0].show(); !strings.Contains(got, "n2#1") {
			t.Errorf("members are %s: gossip has made up its mind already", got)
		}
		within(t, 10*time.Second, "n0#1 n1#1 n3#1 n4#1", all[0], all[1], all[3], all[4])
		ask(2, 1)
		closeAll(t, all...)
		ask(3, 1)
		if n := len(silent); n != 0 {
			t.Errorf("%d were called silent that are down, or by who has closed", n)
		}
	})
}

func TestOneCutLinkKillsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(5)
		all := five(t, net)
		for _, g := range all {
			g.events()
		}
		net.Cut(host(1), host(2))
		net.CutOneWay(host(3), host(4))
		time.Sleep(time.Minute)
		for _, g := range all {
			if got := g.events(); len(got) != 0 {
				t.Errorf("%s: got %q, want nothing", g.host, got)
			}
		}
		closeAll(t, all...)
	})
}

func TestRestartInPlaceReplacesAtOnceAndItsLateDeathCutsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(6)
		all := five(t, net)
		all[0].events()
		net.Crash(host(2))
		again := startGossip(t, net, 2, 2, 0)
		now := append(slices.Clone(all[:2]), all[3], all[4], again)
		within(t, time.Minute, "n0#1 n1#1 n2#2 n3#1 n4#1", now...)
		time.Sleep(time.Minute) // the old name dies
		want := []string{"down n2#1 replaced", "up n2#2"}
		if got := all[0].events(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		closeAll(t, append(now, all[2])...)
	})
}

func TestAnIncarnationThatIsLowerWaitsForTheDeathOfTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(7)
		all := []*gossiper{startGossip(t, net, 0, 1), startGossip(t, net, 1, 9, 0)}
		within(t, time.Minute, "n0#1 n1#9", all...)
		all[0].events()
		net.Crash(host(1))
		again := startGossip(t, net, 1, 5, 0) // the clock went back
		within(t, time.Minute, "n0#1 n1#5", all[0], again)
		want := []string{"down n1#9 dead", "up n1#5"}
		if got := all[0].events(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		closeAll(t, append(all, again)...)
	})
}

func TestANameThatIsTakenElsewhereIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(8)
		a, b := startGossip(t, net, 0, 1), startGossip(t, net, 1, 1, 0)
		within(t, time.Minute, "n0#1 n1#1", a, b)
		config := cluster.Config{
			Name: "n1", Incarnation: 7, Address: "10.0.0.9:8090", Label: "test",
			Transport: net.Transport("10.0.0.9", 7946), Seeds: []string{host(0)},
		}
		other := &gossiper{host: "10.0.0.9", up: map[string]bool{}}
		var err error
		if other.Gossip, err = cluster.Start(context.Background(), config, other.tell); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		within(t, 0, "n0#1 n1#1", a)
		net.Crash(host(1))
		within(t, time.Minute, "n0#1 n1#7", a, other)
		closeAll(t, a, b, other)
	})
}
