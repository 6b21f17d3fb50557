package pairing

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// chance is a small generator: the same seed gives the same faults.
func chance(seed uint64) func(int) int {
	s := seed*2 + 1
	return func(n int) int {
		s ^= s << 13
		s ^= s >> 7
		s ^= s << 17
		return int(s>>33) % n
	}
}

// trouble is a world under random faults.
type trouble struct {
	*world
	incarnation uint64
}

var cast = []string{"d1", "d2", "p1", "p2"}

// attach attaches the engine of a node, in a new incarnation.
func (w *trouble) attach(name string) {
	n := w.nodes[name]
	w.incarnation++
	d := Described{DP: 1, PP: 1, CP: 1, TP: 2, Role: messages.Role_ROLE_DECODE}
	d.Engine = messages.Engine{Instance: name[:1], Rank: kv.Rank{TP: int(name[1] - '1')}, Incarnation: w.incarnation}
	if name[0] == 'p' {
		d.Role = messages.Role_ROLE_PREFILL
	}
	wire := Describe(small(d, 4, 4, 1<<20))
	n.wanted = map[place]*messages.EngineDescription{{d.Engine.Instance, d.Engine.Rank}: wire}
	n.tell(Attach{Description: wire})
}

// restart ends a process and begins another one, at the same address or not. The
// others hear of the old one's end later, or not before the faults are over.
func (w *trouble) restart(t *rapid.T, name string) {
	old := w.nodes[name]
	w.crash(old)
	w.run(time.Duration(rapid.IntRange(0, 300).Draw(t, "gone for")) * time.Millisecond)
	w.incarnation++
	address := old.address
	if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
		address = fmt.Sprintf("%s:%d", name, w.incarnation)
	}
	// Not in the order of the clock: incarnations are only different ones.
	w.start(name, w.incarnation*7919%1000003, address)
	w.attach(name)
	for _, other := range cast {
		if other == name {
			continue
		}
		delay := time.Duration(rapid.IntRange(0, 3000).Draw(t, "gossip after")) * time.Millisecond
		o, n := w.nodes[other], w.nodes[name]
		w.after(delay, func() { w.meet(o, n); w.meet(n, o) })
		w.after(delay+time.Duration(rapid.IntRange(0, 2000).Draw(t, "dead after"))*time.Millisecond, func() { w.bury(o) })
	}
}

// bury has gossip tell a node of every life that is over.
func (w *trouble) bury(n *node) {
	for _, peer := range sorted(n.links, compareNodes) {
		if w.nodes[peer.Name].id != peer {
			n.step(peer, GossipDown{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "gossip"}})
		}
	}
}

// act does one thing that goes wrong.
func (w *trouble) act(t *rapid.T) {
	a := w.nodes[rapid.SampledFrom(cast).Draw(t, "at")]
	b := w.nodes[rapid.SampledFrom(cast).Draw(t, "peer")]
	kind := rapid.IntRange(0, 14).Draw(t, "what")
	if a == b && kind < 9 {
		return
	}
	link := a.links[b.id]
	way := [2]string{a.id.Name, b.id.Name}
	switch kind {
	case 0:
		w.cut[way] = true
	case 1:
		delete(w.cut, way)
	case 2:
		if link != nil {
			g := rdma.Generation{}
			if opened := a.opened[b.id]; len(opened) > 0 && rapid.Bool().Draw(t, "named") {
				g = rapid.SampledFrom(opened).Draw(t, "generation")
			}
			a.step(b.id, FenceWanted{Generation: g, Reason: "a room"})
		}
	case 3:
		if s := a.sessions[b.id]; s != nil && s.connected && !s.fencing {
			a.step(b.id, Disconnected{Generation: s.gen, Err: errors.New("reset")})
		}
	case 4, 5:
		if link != nil {
			first := a.numbers[b.id]
			if rapid.Bool().Draw(t, "forgets numbers") {
				first = 0
			}
			delete(a.up, b.id)
			a.tell(LinkDown{Node: b.id})
			a.open(b.id, a.peerAddress[b.id], first)
		}
	case 6:
		a.step(b.id, GossipDown{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "gossip is wrong"}})
	case 7:
		w.meet(a, b)
	case 8:
		a.step(b.id, Probe{})
	case 9:
		w.restart(t, a.id.Name)
	case 10:
		w.attach(a.id.Name)
	case 11:
		a.slowFence = time.Duration(rapid.IntRange(1, 800).Draw(t, "fence takes")) * time.Millisecond
	case 12:
		w.loss, w.twice, w.jitter = rapid.IntRange(0, 60).Draw(t, "loss"), rapid.IntRange(0, 40).Draw(t, "twice"), rapid.IntRange(1, 400).Draw(t, "jitter")
	case 13:
		w.mute = !w.mute
	default:
		for range rapid.IntRange(1, 5).Draw(t, "bodies") {
			w.chatter()
		}
	}
}

// chatter has everybody say something to everybody.
func (w *trouble) chatter() {
	for _, a := range cast {
		for _, b := range cast {
			if a != b && w.nodes[a].links[w.nodes[b].id] != nil {
				w.nodes[a].submit(w.nodes[b].id)
			}
		}
	}
}

// quiet ends the faults: what gossip has to say is said, and nothing is lost.
func (w *trouble) quiet() {
	clear(w.cut)
	w.loss, w.twice, w.jitter, w.mute = 0, 0, 0, false
	for _, name := range cast {
		w.nodes[name].slowFence = time.Millisecond
	}
	w.run(5 * time.Second)
	for range 2 {
		for _, a := range cast {
			w.bury(w.nodes[a])
			for _, b := range cast {
				if a != b {
					w.meet(w.nodes[a], w.nodes[b])
				}
			}
		}
		w.run(time.Second)
	}
	w.run(90 * time.Second)
}

// TestRandomFaults has nodes crash, forget, lose their sessions and their
// messages. The world checks all the time that a generation is up only above
// fenced ones, that nothing is delivered twice, out of order, or from another
// incarnation, and that nothing pairs before a fence that it has to wait for. When
// the faults are over, both ends of each pair agree on one generation, everything
// that is said arrives, and everything pairs.
func TestRandomFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &trouble{world: newWorld()}
		w.play(t)
		w.check(t)
	})
}

func (w *trouble) check(t *rapid.T) {
	w.chatter()
	w.run(time.Second)
	for _, a := range cast {
		n := w.nodes[a]
		for _, b := range cast {
			m := w.nodes[b]
			if a == b {
				continue
			}
			if g, ok := n.up[m.id]; !ok || g != m.up[n.id] {
				w.violate("%s and %s: one has generation %s up, the other %s (%v)", n.id, m.id, g, m.up[n.id], ok)
			} else if n.heard[m.id] != m.said[n.id] {
				w.violate("%s heard body %d of %s, of %d", n.id, n.heard[m.id], m.id, m.said[n.id])
			}
		}
		if !n.ready["p+d"] {
			w.violate("%s: p+d is not ready", n.id)
		}
	}
	if w.bad != "" {
		w.log.Reset()
		w.show(nil)
		t.Fatalf("%s\n%s", w.bad, w.log.String())
	}
}
