package tests

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/node"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// killAfter has a room's actor panic right after it handled a message that its engine
// had sent. The room runs in the engine's goroutine, so what it asked for is in the
// engine's mailbox when its Terminated comes, and Terminated is a system message: it
// overtakes.
func killAfter(engine string, when func(any) bool) func(*node.Config) {
	killed := &atomic.Bool{}
	middleware := func(next actor.ReceiverFunc) actor.ReceiverFunc {
		return func(c actor.ReceiverContext, e *actor.MessageEnvelope) {
			if strings.Contains(c.Self().GetId(), engine) && strings.Contains(c.Self().GetId(), "/room-") && when(e.Message) && killed.CompareAndSwap(false, true) {
				next(c, e)
				panic("planted, after")
			}
			next(c, e)
		}
	}
	return func(c *node.Config) {
		c.Embed.Base = append(c.Embed.Base, actor.WithReceiverMiddleware(middleware))
	}
}

// Effects of a dead room's actor that its Terminated overtook.
func TestWhatADeadRoomAskedForComesBeforeItsEnd(t *testing.T) {
	for name, kill := range map[string]struct {
		engine string
		when   func(any) bool
	}{
		"sender at its grant":         {"p-dp0-pp0-cp0-tp0", roomEvent[transfer.Received]}, // its effects: GrantAck, Post
		"sender at its last landing":  {"p-dp0-pp0-cp0-tp0", roomEvent[transfer.Written]},  // Done
		"receiver at its pairing":     {"d-dp0-pp0-cp0-tp0", roomEvent[transfer.Paired]},   // InstallGrant
		"receiver at its last revoke": {"d-dp0-pp0-cp0-tp0", roomEvent[transfer.Revoked]},  // Record, Finish, Send outcome
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				plant := killAfter(kill.engine, kill.when)
				var spies []*spy
				w.config = func(host string, c *node.Config) {
					plant(c)
					s := &spy{Provider: c.Embed.Providers[0], grants: map[rdma.GrantID]bool{}}
					spies = append(spies, s)
					c.Embed.Providers[0] = s
				}
				o := newOne(w)
				r := o.recv(1, 64)
				s := o.open(1, 64)
				o.p.fill(1, s.Place(), 0, 64)
				s.Chunk(64)
				sent, err := s.Wait(w.ctx(5 * time.Minute))
				got, err2 := r.Wait(w.ctx(5 * time.Minute))
				if sent.Complete != got.Complete && sent.Kind != messages.CauseKind_CAUSE_UNKNOWN_OUTCOME && got.Kind != messages.CauseKind_CAUSE_UNKNOWN_OUTCOME {
					t.Errorf("two outcomes: prefill %v (%s) %v, decode %v (%s) %v", sent.Complete, sent.Cause, err, got.Complete, got.Cause, err2)
				}
				t.Logf("prefill %+v; decode %+v", sent, got)
				r.Free()
				s.Free()
				time.Sleep(3 * time.Minute)
				for _, e := range []*engine{o.p, o.d} {
					var h actors.Holding
					if e.prefill != nil {
						h, err = e.prefill.Holding(w.ctx(time.Second))
					} else {
						h, err = e.decode.Holding(w.ctx(time.Second))
					}
					if err != nil || h.Rooms != 0 || h.PagesFree != h.PagesTotal || h.RowsFree != h.RowsTotal {
						t.Errorf("not at rest: %+v %v", h, err)
					}
				}
				for i, s := range spies {
					if n := s.open(); n > 0 {
						t.Errorf("node %d: %d grants are in force, and no room is open", i, n)
					}
				}
			})
		})
	}
}

// holder makes an actor busy.
type holder struct {
	m      *member
	engine messages.Engine
}

func (h holder) hold(d time.Duration) {
	in := make(chan bool, 2)
	for range 2 { // a backlog
		h.m.fabric.System().Root.Send(actor.NewPID(h.m.fabric.Address(), "kvferry/engines/"+actors.EngineActorName(h.engine)), &actors.Inspect{Reply: func(actors.Holding) {
			in <- true
			time.Sleep(d)
		}})
	}
	<-in
}
