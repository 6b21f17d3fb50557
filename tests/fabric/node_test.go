package fabric_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"kvferry/messages"
	"kvferry/tests/fabric"
)

// host of actors, and what the actor "sink" on it received.
type system struct {
	*actor.ActorSystem
	node *fabric.Node
	sink *actor.PID
	at   time.Time

	mu   sync.Mutex
	seen []string
}

func startSystem(net *fabric.Net, i int) *system {
	s := &system{at: time.Now(), ActorSystem: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	}))}
	s.node = net.Attach(s.ActorSystem, host(i)+":8090")
	s.sink, _ = s.Root.SpawnNamed(actor.PropsFromFunc(func(c actor.Context) {
		switch m := c.Message().(type) {
		case *wrapperspb.StringValue:
			s.add(m.Value)
			if m.Value == "ask" {
				c.Respond(wrapperspb.String("answer"))
			}
		case *wrapperspb.UInt64Value:
			s.add(fmt.Sprint(m.Value))
		case *actor.PID:
			c.Watch(m)
		case *actor.Terminated:
			s.add(fmt.Sprintf("terminated %s %s", m.Who, m.Why))
		}
	}), "sink")
	return s
}

func (s *system) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, text)
}

func (s *system) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func (s *system) want(t *testing.T, want ...string) {
	t.Helper()
	if got := s.got(); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", s.node.Address(), got, want)
	}
}

func (s *system) say(to *system, text string) {
	s.Root.Send(actor.NewPID(to.node.Address(), "sink"), wrapperspb.String(text))
}

func stopAll(all ...*system) {
	for _, s := range all {
		s.Root.Stop(s.sink)
	}
	time.Sleep(3 * time.Second)
}

func TestMessagesKeepTheirOrderUnderJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		net.SetFaults(fabric.Faults{Latency: time.Millisecond, Jitter: 10 * time.Millisecond})
		a, b := startSystem(net, 0), startSystem(net, 1)
		var want []string
		for i := range uint64(500) {
			a.Root.Send(actor.NewPID(b.node.Address(), "sink"), wrapperspb.UInt64(i))
			want = append(want, fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		b.want(t, want...)
		stopAll(a, b)
	})
}

func TestAMessageIsCopiedWhenItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		m := wrapperspb.String("before")
		a.Root.Send(actor.NewPID(b.node.Address(), "sink"), m)
		m.Value = "after"
		time.Sleep(time.Second)
		b.want(t, "before")
		stopAll(a, b)
	})
}

func TestAnswersFindTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		r, err := a.Root.RequestFuture(actor.NewPID(b.node.Address(), "sink"), wrapperspb.String("ask"), time.Second).Result()
		if s, ok := r.(*wrapperspb.StringValue); !ok || s.Value != "answer" {
			t.Errorf("got %v, %v", r, err)
		}
		stopAll(a, b)
	})
}

func TestDuplicateLossAndWhatCannotCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		net.SetFaults(fabric.Faults{MessageDuplicate: 1})
		a.say(b, "twice")
		time.Sleep(time.Second)
		net.SetFaults(fabric.Faults{MessageLoss: 1})
		a.say(b, "never")
		time.Sleep(time.Second)
		net.SetFaults(fabric.Faults{})
		var mu sync.Mutex
		dead := 0
		a.EventStream.Subscribe(func(e any) {
			if _, ok := e.(*actor.DeadLetterEvent); ok {
				mu.Lock()
				dead++
				mu.Unlock()
			}
		})
		to := actor.NewPID(b.node.Address(), "sink")
		a.Root.Send(to, "no protobuf")
		a.Root.Send(to, wrapperspb.Bytes(make([]byte, fabric.MessageMax+1)))
		a.Root.Stop(to)
		time.Sleep(time.Second)
		a.say(b, "still there")
		time.Sleep(time.Second)
		b.want(t, "twice", "twice", "still there")
		mu.Lock()
		defer mu.Unlock()
		if dead != 3 {
			t.Errorf("got %d dead letters, want 3", dead)
		}
		stopAll(a, b)
	})
}

func TestTheFirewallLetsInOnlyOurTypesForPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		peer, _ := b.Root.SpawnNamed(actor.PropsFromFunc(func(c actor.Context) {
			if _, ok := c.Message().(proto.Message); ok {
				b.add(fmt.Sprintf("peer got %T", c.Message()))
			}
		}), "kvferry/peers/a")
		net.Firewall("kvferry/peers/")
		a.say(b, "foreign type, foreign target")
		to := actor.NewPID(b.node.Address(), "kvferry/peers/a")
		a.Root.Send(to, wrapperspb.String("foreign type"))
		a.Root.Send(to, &messages.Envelope{})
		a.Root.Send(actor.NewPID(b.node.Address(), "sink"), &messages.Envelope{})
		time.Sleep(time.Second)
		b.want(t, "peer got *messages.Envelope")
		if got := b.node.Dropped(); got != 3 {
			t.Errorf("got %d dropped, want 3", got)
		}
		b.Root.Stop(peer)
		stopAll(a, b)
	})
}

func TestACutLosesOrHoldsUntilTheHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		net.CutOneWay(host(0), host(1))
		a.say(b, "lost")
		b.say(a, "the other way")
		time.Sleep(time.Second)
		net.SetFaults(fabric.Faults{Hold: true})
		a.say(b, "late 1")
		a.say(b, "late 2")
		time.Sleep(time.Hour)
		b.want(t)
		a.want(t, "the other way")
		net.Heal(host(0), host(1))
		a.say(b, "new")
		time.Sleep(time.Second)
		b.want(t, "late 1", "late 2", "new")
		stopAll(a, b)
	})
}

func TestWatchesEndWithTheActorAndWithTheNode(t *testing.T) {
	for name, end := range map[string]func(*fabric.Net, *system, *system){
		"actor stopped": func(_ *fabric.Net, _, b *system) { b.Root.Stop(b.sink) },
		"killed":        func(n *fabric.Net, _, b *system) { n.Kill(host(1)) },
		"crashed, and gossip says so": func(n *fabric.Net, a, b *system) {
			n.Crash(host(1))
			a.node.PeerDown(b.node.Address())
		},
		"another one attached": func(n *fabric.Net, _, _ *system) { startSystem(n, 1) },
		"left":                 func(_ *fabric.Net, _, b *system) { _ = b.node.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := fabric.New(1)
				a, b := startSystem(net, 0), startSystem(net, 1)
				a.Root.Send(a.sink, actor.NewPID(b.node.Address(), "sink"))
				time.Sleep(time.Second)
				a.want(t)
				end(net, a, b)
				time.Sleep(time.Second)
				if got := a.got(); len(got) != 1 {
					t.Errorf("got %q, want one terminated", got)
				}
				stopAll(a, b)
			})
		})
	}
}

func TestARestartInPlaceIsReachedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fabric.New(1)
		a, b := startSystem(net, 0), startSystem(net, 1)
		a.say(b, "one")
		time.Sleep(time.Second)
		net.Crash(host(1))
		a.say(b, "nobody")
		time.Sleep(time.Second)
		again := startSystem(net, 1)
		a.say(again, "two")
		time.Sleep(5 * time.Second)
		b.want(t, "one")
		again.want(t, "two")
		b.say(a, "from the dead")
		time.Sleep(time.Second)
		a.want(t)
		stopAll(a, b, again)
	})
}
