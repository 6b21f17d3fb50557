package transfer

import (
	"errors"
	"slices"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// link is the data connection of a pair of engines, each on a node of its own.
type link struct {
	prefill, decode *engine
	generation      uint64
	up              bool
	suspect         bool
}

func (l *link) of(number uint64) rdma.Generation {
	return rdma.Generation{Number: number, Low: number * 10, High: uint64(l.prefill.id.Rank.TP + 10*l.prefill.id.Rank.PP)}
}

// flight is a write that was posted.
type flight struct {
	link       *link
	post       Post
	generation uint64
}

// placed is a grant in the receiver's node.
type placed struct {
	id     rdma.GrantID
	owner  *engine
	writer *engine
	mask   []bool // of the owner's memory
	closed bool
	stuck  bool // a fence cannot close it
	gone   bool // revoked
}

// withheld is an arrival that the receiver's node has not told yet.
type withheld struct {
	to *engine
	ev Arrived
}

var errDown = errors.New("no connection")

func (w *world) link(a, b *engine) *link {
	if b.prefill {
		a, b = b, a
	}
	return w.links[[2]*engine{a, b}]
}

func (w *world) grant(id rdma.GrantID) *placed {
	for _, g := range w.grants {
		if g.id == id {
			return g
		}
	}
	return nil
}

func (w *world) install(e *engine, f InstallGrant) {
	g := w.grant(f.Grant)
	g.owner, g.writer, g.mask = e, w.engine(f.Writer), make([]bool, len(e.memory))
	for i := range f.Ranges {
		r := &f.Ranges[i]
		for _, run := range r.Runs {
			for n := range run.Count {
				at := r.Offset + uint64(run.First+n*run.Step)*r.UnitStride
				for i := range uint64(r.Count[0]) {
					for j := range uint64(r.Count[1]) {
						row := at + i*r.Stride[0] + j*r.Stride[1]
						for b := range r.Bytes {
							g.mask[row+b] = true
						}
					}
				}
			}
		}
	}
	w.later(e, GrantInstalled{Grant: f.Grant})
}

func (w *world) revoke(e *engine, id rdma.GrantID) {
	g := w.grant(id)
	if g.owner != e || g.gone {
		w.fail("%s revoked grant %s, which it does not hold", e.name, id)
	}
	g.gone = true
	g.closed = !w.setting.verbs
	w.later(e, Revoked{Grant: id, Closed: g.closed})
}

// closeLate is a provider that learns by itself that what it had left open is closed.
func (w *world) closeLate(g *placed) {
	g.closed = true
	w.later(g.owner, Revoked{Grant: g.id, Closed: true})
}

func (w *world) post(e *engine, f Post) {
	to := w.engine(f.To)
	l := w.link(e, to)
	if !e.paired {
		w.fail("%s posted before it was paired", e.name)
	}
	if g := w.grant(f.Grant); g == nil || g.owner != to || g.writer != e {
		w.fail("%s posted under grant %s, which is not its own", e.name, f.Grant)
	}
	if e.unpinned > 0 {
		w.fail("%s posted after it had unpinned its sources", e.name)
	}
	for _, ghost := range w.ghosts {
		if ghost.link == l && ghost.generation >= l.generation && overlap(ghost.post.Copies, f.Copies) && ghost.post.Grant == f.Grant {
			w.fail("%s posted again what generation %d may still carry", e.name, ghost.generation)
		}
	}
	if !l.up {
		w.later(e, NotTaken{Write: f.Write, Err: errDown})
		return
	}
	w.flights = append(w.flights, &flight{l, f, l.generation})
}

func overlap(a, b []kv.Copy) bool {
	return len(a) > 0 && len(b) > 0 && a[0].Component == b[0].Component && a[0].Layer == b[0].Layer &&
		a[0].Target.Offset == b[0].Target.Offset && slices.Equal(a[0].Runs, b[0].Runs)
}

// mayLand reports whether the receiver's node lets a write in.
func (w *world) mayLand(f *flight) bool {
	g := w.grant(f.post.Grant)
	return g.stuck || !g.closed && f.generation >= f.link.generation && (f.link.up || f.generation > f.link.generation)
}

// bytes copies a write into the receiver's memory.
func (w *world) bytes(f *flight) {
	from, to := f.link.prefill, f.link.decode
	g := w.grant(f.post.Grant)
	if to.released > 0 {
		w.fail("a byte landed in pages that %s has released", to.name)
	}
	for i := range f.post.Copies {
		c := &f.post.Copies[i]
		for _, run := range c.Runs {
			for n := range run.Count {
				s := c.Source.Offset + uint64(run.Source+n*run.SourceStep)*c.Source.UnitStride
				t := c.Target.Offset + uint64(run.Target+n*run.TargetStep)*c.Target.UnitStride
				for i := range uint64(c.Count[0]) {
					for j := range uint64(c.Count[1]) {
						so, to2 := s+i*c.Source.Stride[0]+j*c.Source.Stride[1], t+i*c.Target.Stride[0]+j*c.Target.Stride[1]
						for b := range c.Bytes {
							if !g.mask[to2+b] {
								w.fail("%s wrote outside its grant", from.name)
							}
							to.memory[to2+b] = from.memory[so+b]
						}
					}
				}
			}
		}
	}
}

func (w *world) unflight(f *flight) {
	w.flights = slices.DeleteFunc(w.flights, func(g *flight) bool { return g == f })
}

// land completes a write; the arrival is told at once, or withheld.
func (w *world) land(f *flight, withhold bool) {
	w.unflight(f)
	if !w.mayLand(f) {
		w.complete(f, rdma.Refused)
		return
	}
	w.bytes(f)
	w.arrive(f, withhold)
	w.complete(f, rdma.Landed)
}

func (w *world) arrive(f *flight, withhold bool) {
	ev := Arrived{Grant: f.post.Grant, Generation: f.link.of(f.generation), Arrival: rdma.Arrival{Stripe: uint32(f.post.Write) % 2, Count: 1}, Bytes: f.post.Bytes}
	if withhold {
		w.withheld = append(w.withheld, withheld{f.link.decode, ev})
		return
	}
	w.later(f.link.decode, ev)
}

func (w *world) complete(f *flight, o rdma.Outcome) {
	ev := Written{Write: f.post.Write, Generation: f.link.of(f.generation), Outcome: o}
	if o == rdma.Landed {
		ev.Arrivals = []rdma.Arrival{{Stripe: uint32(f.post.Write) % 2, Count: 1}}
	} else {
		ev.Err = errDown
	}
	w.later(f.link.prefill, ev)
}

// lose makes a write unknown: it may land until the generation is fenced.
func (w *world) lose(f *flight) {
	w.unflight(f)
	w.ghosts = append(w.ghosts, f)
	w.complete(f, rdma.Unknown)
}

// haunt lands what is left of an unknown write, if the receiver still lets it in.
func (w *world) haunt(f *flight) {
	w.ghosts = slices.DeleteFunc(w.ghosts, func(g *flight) bool { return g == f })
	if w.mayLand(f) {
		w.bytes(f)
		w.arrive(f, false)
	}
}

func (w *world) tellWithheld(to *engine, keep func(withheld) bool) {
	var left []withheld
	for _, h := range w.withheld {
		switch {
		case h.to != to:
			left = append(left, h)
		case keep(h):
			w.later(to, h.ev)
		}
	}
	w.withheld = left
}

// quiesce ends the writes of an engine. On verbs, what is on the way stays
// unknown; elsewhere nothing of it was sent.
func (w *world) quiesce(e *engine) {
	var unknown []rdma.Generation
	for _, f := range slices.Clone(w.flights) {
		if f.link.prefill != e {
			continue
		}
		if w.setting.verbs {
			unknown = addGeneration(unknown, f.link.of(f.generation))
			w.lose(f)
			continue
		}
		w.unflight(f)
		w.complete(f, rdma.NotPosted)
	}
	for _, g := range w.ghosts {
		if g.link.prefill == e {
			unknown = addGeneration(unknown, g.link.of(g.generation))
		}
	}
	w.later(e, Quiesced{Unknown: unknown})
}

// fence ends the generation of a link on both sides. lost: arrivals that were
// not told yet are not told any more. renew brings the next one up.
func (w *world) fence(l *link, lost, renew bool) {
	l.up = false
	for _, f := range slices.Clone(w.flights) {
		if f.link == l {
			w.unflight(f)
			w.complete(f, rdma.Unknown)
		}
	}
	w.tellWithheld(l.decode, func(h withheld) bool { return h.ev.Generation != l.of(l.generation) || !lost })
	w.ghosts = slices.DeleteFunc(w.ghosts, func(f *flight) bool { return f.link == l && !w.grant(f.post.Grant).stuck })
	var open []rdma.OpenGrant
	for _, g := range w.grants {
		if g.owner != l.decode || g.writer != l.prefill || !g.gone || g.closed {
			continue
		}
		if g.stuck {
			open = append(open, rdma.OpenGrant{Grant: g.id, Reason: "a process is stopped inside a copy"})
			continue
		}
		g.closed = true
	}
	w.later(l.prefill, Fenced{Engines: []messages.Engine{l.decode.id}, Generation: l.of(l.generation)})
	w.later(l.decode, Fenced{Engines: []messages.Engine{l.prefill.id}, Generation: l.of(l.generation), Open: open})
	if renew {
		w.renew(l)
	}
}

func (w *world) renew(l *link) {
	l.generation++
	l.up = true
	w.later(l.prefill, NewGeneration{Engines: []messages.Engine{l.decode.id}, Number: l.generation})
	w.later(l.decode, NewGeneration{Engines: []messages.Engine{l.prefill.id}, Number: l.generation})
}

func (w *world) fenceOf(e *engine, f Fence) {
	l := w.link(e, w.engine(f.Peer))
	if f.Generation.Number != 0 && f.Generation.Number < l.generation {
		return // it is over, and was told
	}
	w.fence(l, false, !l.prefill.dead && !l.decode.dead)
}

// suspect tells both sides of a link that it is suspect, or no more.
func (w *world) suspect(l *link, suspect bool) {
	l.suspect = suspect
	w.later(l.prefill, Suspect{Engines: []messages.Engine{l.decode.id}, Suspect: suspect})
	w.later(l.decode, Suspect{Engines: []messages.Engine{l.prefill.id}, Suspect: suspect})
}

// die ends an engine with its node. The others hear it; their pairs are fenced.
func (w *world) die(e *engine) {
	e.dead = true
	cause := &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: e.name + " died", Origin: "gossip"}
	for _, f := range slices.Clone(w.flights) {
		if f.link.prefill == e {
			w.unflight(f)
			w.ghosts = append(w.ghosts, f)
		}
	}
	for _, other := range w.engines {
		if other.dead {
			continue
		}
		w.later(other, PeerLost{Engine: e.id, Cause: cause})
		if other.prefill != e.prefill {
			w.fence(w.link(e, other), false, false)
		}
	}
}

const notPosted = rdma.NotPosted

// sortedLinks are the links, in the order of the engines.
func (w *world) sortedLinks() []*link {
	var out []*link
	for _, p := range w.engines {
		for _, d := range w.engines {
			if l := w.links[[2]*engine{p, d}]; l != nil {
				out = append(out, l)
			}
		}
	}
	return out
}
