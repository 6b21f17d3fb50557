package tests

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/node"
	"kvferry/tests/fabric"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/mem"
)

// noticedWithin is the promise: with every setting at its default, the rooms of a dead
// node have ended everywhere else, for their callers, before this.
const noticedWithin = 3 * time.Second

// five is two prefill and two decode instances on five nodes: of p each rank has a node.
type five struct {
	w      *world
	nodes  map[string]*member // by instance, of p by rank: p0, p1, q, d, e
	legs   map[string]*engine
	silent sync.Map // hosts whose data stands still
}

func newFive(w *world) *five { return newFiveWith(w, func(string, *node.Config) {}) }

// newFiveWith is newFive with another config of each node.
func newFiveWith(w *world, config func(host string, c *node.Config)) *five {
	f := &five{w: w, nodes: map[string]*member{}, legs: map[string]*engine{}}
	w.fate = func(from, to string, _ *rdma.Write) mem.Fate {
		for _, host := range []string{from, to} {
			if at, ok := f.silent.Load(host); ok {
				return mem.Fate{Delay: time.Until(at.(time.Time))}
			}
		}
		return mem.Fate{}
	}
	w.config = func(host string, c *node.Config) {
		config(host, c)
		c.Embed.Providers[0] = &stillProvider{Provider: c.Embed.Providers[0], f: f, host: host}
	}
	w.net.SetFaults(fabric.Faults{Latency: 200 * time.Microsecond, Hold: true})
	two := layout(w.t, smallModel(), 2, 1, 16, kv.NHD, 64)
	one := layout(w.t, smallModel(), 1, 1, 16, kv.NHD, 64)
	other := layout(w.t, smallModel(), 1, 1, 8, kv.HND, 128)
	for i, n := range []struct {
		name, instance string
		layout         *kv.Instance
		rank           kv.Rank
	}{{"p0", "p", two, kv.Rank{}}, {"p1", "p", two, kv.Rank{TP: 1}}, {"q", "q", one, kv.Rank{}}, {"d", "d", other, kv.Rank{}}, {"e", "e", other, kv.Rank{}}} {
		f.nodes[n.name] = w.start(n.name, fmt.Sprintf("10.0.0.%d", i+1))
		f.legs[n.name] = w.attach(f.nodes[n.name], n.instance, n.layout, n.rank, i < 3)
	}
	f.paired()
	return f
}

// stillProvider fences nothing while its host is stopped or gone: others would see it.
type stillProvider struct {
	rdma.Provider
	f    *five
	host string
}

func (p *stillProvider) Fence(s rdma.SessionID) {
	if at, ok := p.f.silent.Load(p.host); ok {
		time.AfterFunc(time.Until(at.(time.Time)), func() { p.Provider.Fence(s) })
		return
	}
	p.Provider.Fence(s)
}

func (f *five) paired() {
	f.w.t.Helper()
	for _, at := range []string{"d", "e"} {
		for _, p := range []string{"p", "q"} {
			if err := f.nodes[at].WaitPaired(f.w.ctx(30*time.Second), p, at); err != nil {
				f.w.t.Fatal(err)
			}
		}
	}
}

// rest is a host that is stopped for d, as others see it: nothing leaves it or reaches it,
// connections stay, and writes to it and from it stand still. (It runs on, unheard.)
func (f *five) rest(name string, d time.Duration) {
	host := f.nodes[name].host
	f.silent.Store(host, time.Now().Add(d))
	for _, m := range f.nodes {
		if m.host != host {
			f.w.net.Cut(host, m.host)
		}
	}
	time.AfterFunc(d, func() {
		f.silent.Delete(host)
		for _, m := range f.nodes {
			f.w.net.Heal(host, m.host)
		}
	})
}

// legEnd is how a leg ended, and how long after the fault.
type legEnd struct {
	name string
	node.Result
	after time.Duration
}

// half opens a room of two instances and has half of it written. Each leg is told when it
// ends.
func (f *five) half(room uint64, prefill []string, decode string, at *atomic.Int64) (ended chan legEnd) {
	t := f.w.t
	ended = make(chan legEnd, 3)
	end := func(name string, r node.Result) {
		ended <- legEnd{name, r, time.Duration(time.Now().UnixNano() - at.Load())}
	}
	r, err := f.legs[decode].decode.Receive(f.w.ctx(time.Minute), node.ReceiveRequest{Room: room, Prefill: prefill[0][:1], Length: 100})
	if err != nil {
		t.Fatal(err)
	}
	go func() { got, _ := r.Wait(f.w.ctx(10 * time.Minute)); r.Free(); end(decode, got) }()
	for _, name := range prefill {
		s, err := f.legs[name].prefill.Open(f.w.ctx(time.Minute), node.SendRequest{Room: room, Tokens: 100})
		if err != nil {
			t.Fatal(err)
		}
		s.Chunk(50)
		go func() { got, _ := s.Wait(f.w.ctx(10 * time.Minute)); s.Free(); end(name, got) }()
	}
	return ended
}

// others carries rooms between two instances until it is stopped, and requires that each
// completes as if nothing had happened.
func (f *five) others(prefill []string, decode string, first uint64) (stop func() int) {
	p := &pair{w: f.w, decode: f.legs[decode]}
	for _, name := range prefill {
		p.prefill = append(p.prefill, f.legs[name])
	}
	over, done := make(chan bool), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-over:
				done <- n
				return
			default:
			}
			since := time.Now()
			received := make(chan node.Result, 1)
			q := ask{room: first + uint64(n), length: 64, wait: 10 * time.Second}
			go func() {
				r, err := p.decode.decode.Receive(f.w.ctx(time.Minute), node.ReceiveRequest{Room: q.room, Prefill: prefill[0][:1], Length: q.length})
				if err != nil {
					f.w.t.Error(err)
					received <- node.Result{}
					return
				}
				got, _ := r.Wait(f.w.ctx(time.Minute))
				r.Free()
				received <- got
			}()
			p.complete(p.send(q), <-received)
			if took := time.Since(since); took > 100*time.Millisecond {
				f.w.t.Errorf("a room of others, %s to %s, took %v", prefill[0][:1], decode, took)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return func() int { over <- true; return <-done }
}

// A node dies, in the three ways in which nodes do. At every node that is left the rooms
// that it had a part in end within noticedWithin, with its name in the cause; and the
// rooms that it had no part in go on. All settings are the defaults, and time is virtual,
// so the bound is exact.
func TestADeadNodeIsNoticedAndOthersAreNotDisturbed(t *testing.T) {
	deaths := map[string]func(f *five, name string){
		// kill -9: its host tells who had connections.
		"killed": func(f *five, name string) {
			m := f.nodes[name]
			m.down = true
			f.w.net.Kill(m.host)
			for _, o := range f.nodes {
				if o != m {
					f.w.data.Cut(m.host, o.host)
				}
			}
		},
		// Its host is gone: no FIN, no RST, no completion.
		"vanished": func(f *five, name string) {
			m := f.nodes[name]
			m.down = true
			f.silent.Store(m.host, time.Now().Add(time.Hour))
			f.w.net.Crash(m.host)
		},
		// SIGSTOP: connections stay, nothing is answered.
		"stopped": func(f *five, name string) { f.rest(name, time.Hour); f.nodes[name].down = true },
	}
	phases := 8
	if testing.Short() {
		phases = 2
	}
	for how, die := range deaths {
		for _, victim := range []string{"d", "p0", "p1"} {
			t.Run(how+" "+victim, func(t *testing.T) {
				t.Parallel()
				var slowest time.Duration
				for phase := range phases {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t)
						f := newFive(w)
						at := &atomic.Int64{}
						ended := f.half(7, []string{"p0", "p1"}, "d", at)
						stops := []func() int{f.others([]string{"q"}, "e", 1<<20)}
						if victim == "d" {
							stops = append(stops, f.others([]string{"p0", "p1"}, "e", 2<<20))
						} else {
							stops = append(stops, f.others([]string{"q"}, "d", 2<<20))
						}
						time.Sleep(2*time.Second + time.Duration(phase)*63*time.Millisecond)
						at.Store(time.Now().UnixNano())
						die(f, victim)
						for range 2 {
							l := <-ended
							if l.name == victim {
								l = <-ended
							}
							slowest = max(slowest, l.after)
							if l.after >= noticedWithin {
								t.Errorf("phase %d: %s: the room ended after %v, want less than %v", phase, l.name, l.after, noticedWithin)
							}
							if l.Complete || l.Kind != messages.CauseKind_CAUSE_PEER_LOST || !strings.Contains(l.Cause, victim) {
								t.Errorf("phase %d: %s ended with %+v, want that %s is lost", phase, l.name, l.Result, victim)
							}
						}
						time.Sleep(4 * time.Second)
						for _, stop := range stops {
							if n := stop(); n < 40 {
								t.Errorf("phase %d: only %d rooms of others", phase, n)
							}
						}
						go f.nodes[victim].Close(w.ctx(time.Millisecond)) // its goroutines, not its peers
						w.close()
						time.Sleep(10 * time.Minute) // the legs of the dead
					})
				}
				t.Logf("ended at the latest after %v", slowest)
			})
		}
	}
}

// A stop that is shorter than three pings fails nothing: the room waits, and completes.
func TestAShortStopFailsNoRoom(t *testing.T) {
	for _, victim := range []string{"d", "p0"} {
		t.Run(victim, func(t *testing.T) {
			for phase := range 8 {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					f := newFive(w)
					o := &pair{w: w, decode: f.legs["d"], prefill: []*engine{f.legs["p0"], f.legs["p1"]}}
					time.Sleep(2*time.Second + time.Duration(phase)*63*time.Millisecond)
					f.rest(victim, 1400*time.Millisecond)
					o.complete(o.carry(ask{room: 1, length: 100}, phase%2 == 0))
					w.close()
				})
			}
		})
	}
}

// A process that is stopped for longer than it takes to be given up, and then goes on, is
// the same incarnation still. Its rooms have failed on both sides, once; the pair comes up
// again by itself, and the next room completes.
func TestALongStopFailsItsRoomsAndHeals(t *testing.T) {
	for _, victim := range []string{"d", "p1"} {
		for _, stop := range []time.Duration{2700 * time.Millisecond, 20 * time.Second} {
			t.Run(fmt.Sprint(victim, " ", stop), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					f := newFive(w)
					at := &atomic.Int64{}
					ended := f.half(7, []string{"p0", "p1"}, "d", at)
					time.Sleep(2 * time.Second)
					at.Store(time.Now().UnixNano())
					f.rest(victim, stop)
					for range 3 {
						l := <-ended
						t.Logf("%s: %v: %s", l.name, l.after, l.Cause)
						if l.Complete {
							t.Errorf("%s is complete", l.name)
						}
						if l.name != victim && stop > noticedWithin && l.after >= noticedWithin {
							t.Errorf("%s: the room ended after %v", l.name, l.after)
						}
						if l.after > stop+31*time.Second { // Stall, where it did not give up the others too
							t.Errorf("%s: the room ended %v after the stop had begun, which took %v", l.name, l.after, stop)
						}
					}
					time.Sleep(max(0, stop-time.Duration(time.Now().UnixNano()-at.Load())) + 15*time.Second)
					f.paired()
					o := &pair{w: w, decode: f.legs["d"], prefill: []*engine{f.legs["p0"], f.legs["p1"]}}
					o.complete(o.carry(ask{room: 8, length: 100}, true))
					o.atRest()
				})
			})
		}
	}
}

// One link of several is cut, for messages, data and gossip alike, while all else is well:
// gossip hears of both nodes from the others and calls nobody dead. The rooms of that link
// fail as soon as those of a dead node; the other rooms of the same two nodes go on, and
// the link comes up again when it is healed.
func TestOneCutLinkFailsItsRoomsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := newFive(w)
		at := &atomic.Int64{}
		ended := f.half(7, []string{"p0", "p1"}, "d", at)
		stops := []func() int{f.others([]string{"p0", "p1"}, "e", 1<<20), f.others([]string{"q"}, "d", 2<<20)}
		time.Sleep(2 * time.Second)
		at.Store(time.Now().UnixNano())
		a, b := f.nodes["p0"].host, f.nodes["d"].host
		w.net.Cut(a, b)
		w.data.Cut(a, b)
		for range 3 {
			l := <-ended
			if l.Complete || l.after >= noticedWithin {
				t.Errorf("%s ended with %+v after %v", l.name, l.Result, l.after)
			}
		}
		time.Sleep(20 * time.Second)
		for _, stop := range stops {
			if n := stop(); n < 40 {
				t.Errorf("only %d rooms of others", n)
			}
		}
		w.net.Heal(a, b)
		w.data.Heal(a, b)
		f.paired()
		o := &pair{w: w, decode: f.legs["d"], prefill: []*engine{f.legs["p0"], f.legs["p1"]}}
		o.complete(o.carry(ask{room: 8, length: 100}, true))
		o.atRest()
	})
}

// Gossip alone is cut: the link is well, so nothing of a room depends on it until gossip
// itself calls the other dead.
func TestGossipAloneThatIsCutIsGossipsToTell(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := newFive(w)
		at := &atomic.Int64{}
		ended := f.half(7, []string{"p0", "p1"}, "d", at)
		time.Sleep(2 * time.Second)
		at.Store(time.Now().UnixNano())
		a := f.nodes["d"].host
		for _, m := range f.nodes {
			if m.host != a {
				w.net.CutGossip(a, m.host)
			}
		}
		for range 3 {
			l := <-ended
			if l.Complete || l.after < 2*time.Second || l.after > 10*time.Second {
				t.Errorf("%s ended with %+v after %v", l.name, l.Result, l.after)
			}
			t.Logf("%s: %v: %s", l.name, l.after, l.Cause)
		}
		w.net.HealAll()
		time.Sleep(20 * time.Second)
		f.paired()
		o := &pair{w: w, decode: f.legs["d"], prefill: []*engine{f.legs["p0"], f.legs["p1"]}}
		o.complete(o.carry(ask{room: 8, length: 100}, true))
		o.atRest()
	})
}

// ends requires that every leg of a room ends before a time, failed, and that the next
// room completes when all is well again.
func (f *five) ends(ended chan legEnd, within time.Duration, heal func()) []legEnd {
	f.w.t.Helper()
	var all []legEnd
	for range 3 {
		l := <-ended
		f.w.t.Logf("%s: %v: %s: %s", l.name, l.after, l.Kind, l.Cause)
		if l.Complete || l.after > within {
			f.w.t.Errorf("%s ended with %+v after %v, want a failure within %v", l.name, l.Result, l.after, within)
		}
		all = append(all, l)
	}
	heal()
	time.Sleep(20 * time.Second)
	f.paired()
	o := &pair{w: f.w, decode: f.legs["d"], prefill: []*engine{f.legs["p0"], f.legs["p1"]}}
	o.complete(o.carry(ask{room: 8, length: 100}, true))
	o.atRest()
	return all
}

// The messages of one link are cut for good, and gossip is well: it says that the peer
// lives, so the link stays suspect, new rooms wait, and the open ones end by their limits.
func TestMessagesAloneThatAreCutEndRoomsByTheirLimits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := newFive(w)
		w.net.SetFaults(fabric.DefaultFaults) // what is cut is lost
		at := &atomic.Int64{}
		ended := f.half(7, []string{"p0", "p1"}, "d", at)
		time.Sleep(time.Second)
		at.Store(time.Now().UnixNano())
		w.net.CutMessages(f.nodes["p0"].host, f.nodes["d"].host)
		for _, l := range f.ends(ended, 65*time.Second, func() { w.net.HealAll() }) {
			want := messages.CauseKind_CAUSE_NO_PROGRESS // decode's Stall, which prefill hears from it
			if l.name == "p0" {
				want = messages.CauseKind_CAUSE_EXPIRED // Grace
			}
			if l.Kind != want {
				t.Errorf("%s: %s, want %s", l.name, l.Kind, want)
			}
		}
	})
}

// The data of one node stands still, and nothing else: its rooms end for want of progress.
func TestDataAloneThatStandsStillEndsRoomsByProgress(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		f := newFive(w)
		at := &atomic.Int64{}
		at.Store(time.Now().UnixNano())
		f.silent.Store(f.nodes["p1"].host, time.Now().Add(time.Minute))
		ended := f.half(7, []string{"p0", "p1"}, "d", at)
		stop := f.others([]string{"q"}, "d", 1<<20)
		for _, l := range f.ends(ended, 6*time.Second, func() { f.silent.Clear() }) {
			if l.Kind != messages.CauseKind_CAUSE_NO_PROGRESS || !strings.Contains(l.Cause, "p(dp 0 pp 0 cp 0 tp 1)") {
				t.Errorf("%s ended with %+v, want no progress at p's second rank", l.name, l.Result)
			}
		}
		if n := stop(); n < 40 {
			t.Errorf("only %d rooms of others", n)
		}
	})
}

// The actor that talks to one node dies: the rooms with that node fail at once here, the
// link begins anew, and the next room completes. The other side is not told, for whom this
// side takes for lost: it ends by its own limit.
func TestDeadPeerActorBeginsAnew(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		arm := &atomic.Bool{}
		plant, killed := killOnce(func(id string) bool { return strings.HasPrefix(id, "kvferry/peers/d-") }, func(any) bool { return arm.Load() })
		f := newFiveWith(w, func(host string, c *node.Config) {
			if host == "10.0.0.1" {
				plant(c)
			}
		})
		at := &atomic.Int64{}
		ended := f.half(7, []string{"p0", "p1"}, "d", at)
		time.Sleep(time.Second)
		at.Store(time.Now().UnixNano())
		arm.Store(true)
		for _, l := range f.ends(ended, 31*time.Second, func() {}) {
			if l.name == "p0" && l.after > noticedWithin {
				t.Errorf("%s ended after %v", l.name, l.after)
			}
		}
		if !killed.Load() {
			t.Error("nothing was killed")
		}
	})
}
