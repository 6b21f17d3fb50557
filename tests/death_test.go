package tests

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/node"
	"kvferry/transfer"
)

// killOnce makes the first actor panic whose id is meant and whose message is.
func killOnce(who func(id string) bool, when func(message any) bool) (func(*node.Config), *atomic.Bool) {
	killed := &atomic.Bool{}
	middleware := func(next actor.ReceiverFunc) actor.ReceiverFunc {
		return func(c actor.ReceiverContext, e *actor.MessageEnvelope) {
			if who(c.Self().GetId()) && when(e.Message) && killed.CompareAndSwap(false, true) {
				panic("planted")
			}
			next(c, e)
		}
	}
	return func(c *node.Config) {
		c.Embed.Base = append(c.Embed.Base, actor.WithReceiverMiddleware(middleware))
	}, killed
}

// engineActor says whether an actor is that of an engine, in this place.
func engineActor(place string) func(id string) bool {
	return func(id string) bool {
		return strings.HasPrefix(id, "kvferry/engines/"+place+"-") && !strings.Contains(id, "/room-")
	}
}

// roomEvent says whether a message is this event of a room.
func roomEvent[T transfer.Event](m any) bool {
	e, ok := m.(*actors.RoomEvent)
	if !ok {
		return false
	}
	_, ok = e.Event.(T)
	return ok
}

// A room's actor that dies never comes back empty: its engine ends what it had in
// flight, the others hear that it failed, pages come back, and the next room
// works.
func TestDeadRoomActorEndsItsRoomAndFreesItsPages(t *testing.T) {
	for name, kill := range map[string]struct {
		host string
		when func(any) bool
	}{
		"sender with a grant":       {"10.0.0.1", roomEvent[transfer.Received]},
		"sender with writes landed": {"10.0.0.1", roomEvent[transfer.Written]},
		"sender at its chunk":       {"10.0.0.1", roomEvent[transfer.Chunk]},
		"receiver with a grant":     {"10.0.0.3", roomEvent[transfer.GrantInstalled]},
		"receiver with arrivals":    {"10.0.0.3", roomEvent[transfer.Arrived]},
		"receiver at its revoke":    {"10.0.0.3", roomEvent[transfer.Revoked]},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				plant, killed := killOnce(func(id string) bool { return strings.Contains(id, "/room-") }, kill.when)
				w.config = func(host string, c *node.Config) {
					if host == kill.host {
						plant(c)
					}
				}
				p := newPair(w)
				p.wait()
				sent, received := p.carry(ask{room: 1, length: 100}, false)
				if !killed.Load() {
					t.Fatal("nothing was killed")
				}
				all := append(sent, received)
				for i, r := range all {
					if r.Complete {
						t.Errorf("leg %d is complete", i)
					}
					if !strings.Contains(r.Cause, "actor failed") && !strings.Contains(r.Cause, "engine") {
						t.Errorf("leg %d: cause is %q", i, r.Cause)
					}
				}
				p.complete(p.carry(ask{room: 2, length: 100}, true))
				p.atRest()
			})
		})
	}
}

// An engine's actor that dies is a detach: its peers hear that it is lost, and the
// engine can be attached again.
func TestDeadEngineActorIsADetach(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		plant, killed := killOnce(func(id string) bool {
			return strings.Contains(id, "/engines/d-dp0-pp0-cp0-tp0") && !strings.Contains(id, "/room-")
		}, func(m any) bool {
			_, ok := m.(*actors.GrantArrived)
			return ok
		})
		w.config = func(_ string, c *node.Config) { plant(c) }
		p := newPair(w)
		p.wait()
		since := time.Now()
		sent, _ := p.sendTo(ask{room: 1, length: 100})
		if !killed.Load() {
			t.Fatal("nothing was killed")
		}
		for i, s := range sent {
			if s.Complete || !strings.Contains(s.Cause, "d(") {
				t.Errorf("prefill rank %d: %+v, want a cause that names the engine", i, s)
			}
		}
		if took := time.Since(since); took > 5*time.Second {
			t.Errorf("took %v, want at most 5s", took)
		}
		p.decode = w.attach(p.nodes[2], "d", layout(t, smallModel(), 1, 1, 8, kv.HND, 128), kv.Rank{}, false)
		p.wait()
		p.complete(p.carry(ask{room: 2, length: 100}, true))
		p.atRest()
	})
}

// When one of the actors dies that the others rely on, the node is over, as a
// whole: it says why, its peers hear it, and nothing of it moves.
func TestNodeStopsWholeWhenItsTransportDies(t *testing.T) {
	for _, name := range []string{actors.TransportName, actors.RegistryName, actors.PeersName, actors.EnginesName} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				arm := &atomic.Bool{}
				plant, _ := killOnce(func(id string) bool { return id == "kvferry/"+name }, func(any) bool { return arm.Load() })
				w.config = func(host string, c *node.Config) {
					if host == "10.0.0.3" {
						plant(c)
					}
				}
				p := newPair(w)
				p.wait()
				arm.Store(true)
				w.start("extra", "10.0.0.4") // something that every one of them hears of
				select {
				case <-p.nodes[2].Done():
				case <-time.After(20 * time.Second):
					t.Fatal("the node runs on")
				}
				if err := p.nodes[2].Err(); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("the node ended with %v, want the actor's name", err)
				}
				p.nodes[2].Close(w.ctx(5 * time.Second))
				p.nodes[2].down = true
				p.decode = nil
				for i, s := range p.send(ask{room: 1, length: 100, wait: 10 * time.Second}) {
					if s.Complete {
						t.Errorf("prefill rank %d is complete", i)
					}
				}
				p.atRest()
			})
		})
	}
}
