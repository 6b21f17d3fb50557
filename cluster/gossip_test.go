package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"kvferry/cluster"
)

// Real packets on loopback. Timing, partitions and restarts are tested in virtual
// time, in tests/fabric.

type node struct {
	*cluster.Gossip
	events chan cluster.Event
	logs   *observer.ObservedLogs
}

func startNode(t *testing.T, name, bind string, change ...func(*cluster.Config)) *node {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	n := &node{events: make(chan cluster.Event, 100), logs: logs}
	config := cluster.Config{
		Name: name, Address: "127.0.0.1:8090", Bind: bind, Label: "test", Log: zap.New(core),
		Timing: cluster.Timing{Rejoin: 200 * time.Millisecond, ProbeInterval: 200 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond},
	}
	config.Address = net.JoinHostPort("127.0.0.1", fmt.Sprint(8090+len(name)+int(name[len(name)-1])))
	for _, c := range change {
		c(&config)
	}
	var err error
	n.Gossip, err = cluster.Start(context.Background(), config, func(e cluster.Event) { n.events <- e })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func seeds(of ...*node) func(*cluster.Config) {
	return func(c *cluster.Config) {
		for _, n := range of {
			c.Seeds = append(c.Seeds, n.Self().Gossip)
		}
	}
}

func (n *node) next(t *testing.T) cluster.Event {
	t.Helper()
	select {
	case e := <-n.events:
		return e
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: nothing told in 20 s", n.Self())
		return nil
	}
}

func TestNodesMeetAndPartOverLoopback(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "[::1]"} {
		t.Run(ip, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			a := startNode(t, "a", ip+":0", func(c *cluster.Config) { c.Key = []byte("0123456789abcdef") })
			b := startNode(t, "b", ip+":0", seeds(a), func(c *cluster.Config) { c.Key = []byte("0123456789abcdef") })
			if up, ok := a.next(t).(cluster.Up); !ok || up.Member != b.Self() {
				t.Errorf("got %+v, want up %+v", up, b.Self())
			}
			if up, ok := b.next(t).(cluster.Up); !ok || up.Member != a.Self() {
				t.Errorf("got %+v, want up %+v", up, a.Self())
			}
			if got := a.Members(); len(got) != 2 || got[0] != a.Self() || got[1] != b.Self() {
				t.Errorf("got %v", got)
			}
			if err := b.Leave(context.Background()); err != nil {
				t.Error(err)
			}
			if down, ok := a.next(t).(cluster.Down); !ok || down.Member != b.Self() || down.Reason != cluster.Left {
				t.Errorf("got %+v, want left", down)
			}
			if err := errors.Join(b.Close(), b.Close(), a.Close()); err != nil {
				t.Error(err)
			}
			if err := a.Leave(context.Background()); !errors.Is(err, cluster.ErrClosed) {
				t.Errorf("got %v, want closed", err)
			}
		})
	}
}

func TestCloseWhileNobodyAnswersLeaksNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	a := startNode(t, "a", "127.0.0.1:0", func(c *cluster.Config) { c.Seeds = []string{"127.0.0.1:9", "no-such-host.invalid"} })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheEndOfTheContextCloses(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(context.Background())
	g, err := cluster.Start(ctx, cluster.Config{Name: "a", Address: "127.0.0.1:1", Bind: "127.0.0.1:0"}, func(cluster.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := g.Close(); err != nil { // waits for the other, or is it
		t.Error(err)
	}
}

// TestStrangersAreNoMembers: whoever has another key, label or protocol is not told.
func TestStrangersAreNoMembers(t *testing.T) {
	a := startNode(t, "a", "127.0.0.1:0", func(c *cluster.Config) { c.Key = []byte("0123456789abcdef") })
	startNode(t, "b", "127.0.0.1:0", seeds(a), func(c *cluster.Config) { c.Key = []byte("another key, 16.") })
	startNode(t, "c", "127.0.0.1:0", seeds(a))
	startNode(t, "d", "127.0.0.1:0", seeds(a), func(c *cluster.Config) { c.Key, c.Label = []byte("0123456789abcdef"), "other" })
	startNode(t, "e", "127.0.0.1:0", seeds(a), func(c *cluster.Config) {
		c.Key, c.VersionMin, c.VersionMax = []byte("0123456789abcdef"), 7, 8
	})
	f := startNode(t, "f", "127.0.0.1:0", seeds(a), func(c *cluster.Config) {
		c.Key, c.VersionMin, c.VersionMax = []byte("0123456789abcdef"), 1, 8
	})
	if up, ok := a.next(t).(cluster.Up); !ok || up.Member != f.Self() {
		t.Errorf("got %+v, want f alone", up)
	}
	for _, m := range f.Members() {
		if m.Name != "a" && m.Name != "f" && m.Name != "e" { // f speaks with both
			t.Errorf("got member %v", m)
		}
	}
	if got := len(a.Members()); got != 2 {
		t.Errorf("got %v", a.Members())
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	for want, config := range map[string]cluster.Config{
		"name":      {Address: "h:1"},
		"bind":      {Name: "n", Address: "h:1", Bind: "localhost:1"},
		"advertise": {Name: "n", Address: "h:1", Bind: "127.0.0.1:0", Advertise: "::"},
		"gossip":    {Name: "n", Address: "h:1", Bind: "192.0.2.1:0"},
	} {
		g, err := cluster.Start(context.Background(), config, nil)
		if err == nil {
			_ = g.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %q", err, want)
		}
	}
}
