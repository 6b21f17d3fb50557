package actors_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"kvferry/actors"
)

func newEnv() (*actors.Env, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	}))
	return &actors.Env{System: system, Clock: actors.RealClock{}, Log: zap.New(core)}, logs
}

// trail is what an actor under test saw.
type trail struct {
	mu   sync.Mutex
	seen []string
}

func (t *trail) add(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, s)
}

func (t *trail) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.seen)
}

func (t *trail) want(tb testing.TB, want ...string) {
	tb.Helper()
	if got := t.all(); !slices.Equal(got, want) {
		tb.Fatalf("got %q, want %q", got, want)
	}
}

// settle lets the throttle of dead letters end, in virtual time.
func settle() { time.Sleep(2 * time.Second) }

// child panics with what it is told, at the message that it is told.
type child struct {
	trail *trail
	at    any
}

func (k *child) Receive(c actor.Context) {
	k.trail.add(fmt.Sprintf("%T", c.Message()))
	if k.at != nil && fmt.Sprintf("%T", k.at) == fmt.Sprintf("%T", c.Message()) {
		panic("planted")
	}
}

func TestPanicStopsAndParentSeesTerminated(t *testing.T) {
	for _, at := range []any{"a message", &actor.Started{}, &actor.Stopping{}, &actor.Stopped{}} {
		t.Run(fmt.Sprintf("%T", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, logs := newEnv()
				var inside, above trail
				made := 0
				var kid *actor.PID
				top, err := env.System.Root.SpawnNamed(env.TopProps(func() actor.Actor {
					return actor.ReceiveFunc(func(c actor.Context) {
						switch m := c.Message().(type) {
						case *actor.Started:
							props := env.Props(func() actor.Actor { made++; return &child{&inside, at} })
							kid, _ = c.SpawnNamed(props, "kid")
						case *actor.Terminated:
							above.add(m.Who.Id)
						}
					})
				}), "top")
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				env.System.Root.Send(kid, "go")
				env.System.Root.Send(kid, "again")
				synctest.Wait()
				env.System.Root.Stop(kid)
				synctest.Wait()
				above.want(t, "top/kid")
				if made != 1 {
					t.Errorf("got %d instances, want 1: it came back empty", made)
				}
				if logs.FilterMessage("actor panicked").Len() != 1 {
					t.Errorf("got log %v, want one crash", logs.All())
				}
				env.System.Root.Stop(top)
				settle()
			})
		})
	}
}

func TestStoppingParentWithPanicInTerminatedStillStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := newEnv()
		var above trail
		var middle *actor.PID
		top := env.System.Root.Spawn(env.TopProps(func() actor.Actor {
			return actor.ReceiveFunc(func(c actor.Context) {
				switch m := c.Message().(type) {
				case *actor.Started:
					middle, _ = c.SpawnNamed(env.Props(func() actor.Actor {
						return actor.ReceiveFunc(func(c actor.Context) {
							switch c.Message().(type) {
							case *actor.Started:
								c.Spawn(env.Props(func() actor.Actor { return actor.ReceiveFunc(func(actor.Context) {}) }))
							case *actor.Terminated:
								panic("planted")
							}
						})
					}), "middle")
				case *actor.Terminated:
					above.add(m.Who.Id[len(m.Who.Id)-len("middle"):])
				}
			})
		}))
		synctest.Wait()
		env.System.Root.Stop(middle)
		synctest.Wait()
		above.want(t, "middle")
		env.System.Root.Stop(top)
		settle()
	})
}

func TestPanicAtTheTopStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := newEnv()
		var seen trail
		made := 0
		top := env.System.Root.Spawn(env.TopProps(func() actor.Actor { made++; return &child{&seen, "now"} }))
		var ended bool
		watch := env.System.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
			switch c.Message().(type) {
			case *actor.Started:
				c.Watch(top)
			case *actor.Terminated:
				ended = true
			}
		}))
		synctest.Wait()
		env.System.Root.Send(top, "go")
		synctest.Wait()
		if !ended || made != 1 {
			t.Errorf("got ended %v with %d instances, want true with 1", ended, made)
		}
		env.System.Root.Stop(watch)
		settle()
	})
}

func TestTimerTicksOnlyForItsPresentArming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := newEnv()
		var seen trail
		start := time.Now()
		pid := env.System.Root.Spawn(env.TopProps(func() actor.Actor {
			var timer *actors.Timer
			return actor.ReceiveFunc(func(c actor.Context) {
				switch m := c.Message().(type) {
				case *actor.Started:
					timer = actors.NewTimer(env, c)
					timer.Start(time.Second)
				case string:
					time.Sleep(2 * time.Second) // the first tick is in the mailbox now
					timer.Start(5 * time.Second)
				case *actors.Tick:
					seen.add(fmt.Sprint(m.Live(), m.T == timer, time.Since(start)))
				case *actor.Stopping:
					timer.Stop()
				}
			})
		}))
		env.System.Root.Send(pid, "busy")
		time.Sleep(30 * time.Second)
		seen.want(t, "false true 2s", "true true 7s")
		env.System.Root.Stop(pid)
		settle()
	})
}

func TestNextIDIsNeverZeroAndNeverTheSame(t *testing.T) {
	env, _ := newEnv()
	if a, b := env.NextID(), env.NextID(); a == 0 || a == b {
		t.Errorf("got %d and %d", a, b)
	}
}

func TestNamesAreTheTree(t *testing.T) {
	other, err := actors.NewNames("blue")
	if err != nil {
		t.Fatal(err)
	}
	var n actors.Names
	for _, c := range []struct{ got, want string }{
		{n.Root(), "kvferry"},
		{n.Members(), "kvferry/members"},
		{n.Registry(), "kvferry/registry"},
		{n.Peers(), "kvferry/peers"},
		{n.Peer("d-0"), "kvferry/peers/d-0"},
		{n.PeerPrefix(), "kvferry/peers/"},
		{n.Engines(), "kvferry/engines"},
		{n.Engine("p.tp1"), "kvferry/engines/p.tp1"},
		{n.Room("p.tp1", 7, 2), "kvferry/engines/p.tp1/room-7.2"},
		{n.Transport(), "kvferry/transport"},
		{other.Peer("d-0"), "blue/peers/d-0"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestNamesThatAreNotSafeAreRefused(t *testing.T) {
	long := string(make([]byte, 65))
	for _, bad := range []string{"", "a/b", "a$b", "a b", "é", "a\x00", long} {
		if actors.CheckName("node", bad) == nil {
			t.Errorf("got no error for %q", bad)
		}
	}
	if _, err := actors.NewNames("a/b"); err == nil {
		t.Error("got no error for prefix a/b")
	}
	if err := actors.CheckName("node", "Node_1.rack-7"); err != nil {
		t.Error(err)
	}
}
