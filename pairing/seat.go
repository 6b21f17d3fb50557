package pairing

import (
	"fmt"
	"slices"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// seat is who holds a place, and who would.
type seat struct {
	place     place
	holder    *claim   // nil: free
	newcomers []*claim // in the order in which they came

	// asked: the holder's node is being probed for them. retryAt is when it is
	// probed again: because no answer came, or for those that were turned away.
	asked   bool
	retryAt time.Time

	// unfenced are the generations that may still carry what belongs to a former
	// holder. Nothing pairs with the holder while there are any.
	unfenced []carrier

	// ending is a local former holder that has still to be detached; nobody takes
	// its place before.
	ending messages.Engine
}

// carrier is a generation with a node, and whether its fence was asked for.
type carrier struct {
	node       messages.Node
	generation rdma.Generation
	asked      bool
}

// claims is the holder and the newcomers.
func (s *seat) claims() []*claim {
	if s.holder == nil {
		return slices.Clone(s.newcomers)
	}
	return append([]*claim{s.holder}, s.newcomers...)
}

func (s *seat) empty() bool {
	return s.holder == nil && len(s.newcomers) == 0 && len(s.unfenced) == 0 && s.ending == messages.Engine{}
}

func (d *Directory) seat(p place) *seat {
	s := d.seats[p]
	if s == nil {
		s = &seat{place: p}
		d.seats[p] = s
		i, _ := slices.BinarySearchFunc(d.ordered, p, seatAt)
		d.ordered = slices.Insert(d.ordered, i, s)
	}
	return s
}

// inOrder calls f for every seat, in the order of places.
func (d *Directory) inOrder(f func(*seat)) {
	for _, s := range slices.Clone(d.ordered) { // f may take it away
		f(s)
	}
}

func seatAt(s *seat, p place) int { return s.place.compare(p) }

// settle decides who holds a place, as far as that can be decided now. The
// incarnations of the contenders are compared for being equal and never for
// being higher.
func (d *Directory) settle(s *seat) {
	for {
		switch {
		case s.ending != messages.Engine{}:
		case s.holder == nil && len(s.newcomers) > 0:
			d.enrol(s)
			continue
		case s.holder != nil && d.replaceable(s):
			d.replace(s, "another attachment at the same address took its place")
			continue
		case s.holder != nil && len(s.newcomers) > 0:
			d.contest(s)
		}
		break
	}
	if len(s.newcomers) == 0 {
		s.retryAt = time.Time{}
	}
	if s.empty() {
		delete(d.seats, s.place)
		i, _ := slices.BinarySearchFunc(d.ordered, s.place, seatAt)
		d.ordered = slices.Delete(d.ordered, i, i+1)
	}
}

// replaceable says whether the holder is known to be gone by where a newcomer is:
// on the same node, or where the holder's node was. That newcomer comes first
// then.
func (d *Directory) replaceable(s *seat) bool {
	for i, c := range s.newcomers {
		if c.node == s.holder.node || d.supersedes(c.node, s.holder.node) {
			s.newcomers = append([]*claim{c}, slices.Delete(slices.Clone(s.newcomers), i, i+1)...)
			return true
		}
	}
	return false
}

// supersedes says whether a node has been met at the address of another since.
func (d *Directory) supersedes(newer, older messages.Node) bool {
	n, o := d.neighbors[newer], d.neighbors[older]
	return n != nil && o != nil && o.superseded && n.address != "" && n.address == o.address
}

// contest asks whether the holder is still there. One of this node is.
func (d *Directory) contest(s *seat) {
	if s.holder.local {
		d.turnAway(s)
		return
	}
	if !s.asked && s.retryAt.IsZero() {
		s.asked = true
		// Asked again if whoever should answer died meanwhile.
		s.retryAt = d.now.Add(2 * d.c.Limits.ProbeTimeout)
		d.emit(ProbeNode{Node: s.holder.node})
	}
}

// turnAway refuses the newcomers of a place that is taken. Those of other nodes
// stay known, for when it is free.
func (d *Directory) turnAway(s *seat) {
	stay := s.newcomers[:0:0]
	for _, c := range s.newcomers {
		if c.local {
			d.emit(Refused{Engine: c.Engine, Err: d.occupied(s, c)})
			continue
		}
		if s.retryAt.IsZero() {
			o := d.occupied(s, c)
			d.emit(Ignored{From: c.node, Field: "engine", Got: c.Engine.String(), Want: fmt.Sprintf("%s on node %s, which answers", o.Holder, o.Node)})
		}
		stay = append(stay, c)
	}
	s.newcomers = stay
	if len(stay) > 0 {
		s.retryAt = d.now.Add(d.c.Limits.ReprobeEvery)
	}
}

func (d *Directory) occupied(s *seat, c *claim) *Occupied {
	o := &Occupied{Engine: c.Engine, Holder: s.holder.Engine, Node: s.holder.node}
	if n := d.neighbors[o.Node]; n != nil {
		o.Address = n.address
	}
	return o
}

// reprobe considers again who was turned away long enough ago.
func (d *Directory) reprobe() {
	d.inOrder(func(s *seat) {
		if !s.retryAt.IsZero() && !d.now.Before(s.retryAt) {
			s.asked, s.retryAt = false, time.Time{}
			d.settle(s)
		}
	})
}

// onNodeProbed decides what waited for the answer.
func (d *Directory) onNodeProbed(ev NodeProbed) {
	d.inOrder(func(s *seat) {
		if !s.asked || s.holder == nil || s.holder.node != ev.Node {
			return
		}
		s.asked, s.retryAt = false, time.Time{}
		switch {
		case len(s.newcomers) == 0:
		case ev.Alive:
			d.turnAway(s)
		default:
			d.replace(s, "its node did not answer, and another attachment took its place")
		}
		d.settle(s)
	})
}

// replace ends the holder for the first newcomer. A holder of another node stays
// known: should it be alive after all, it is the newcomer now. A local one has to
// be detached first.
func (d *Directory) replace(s *seat, why string) {
	old := s.holder
	d.unseat(s, d.cause(messages.CauseKind_CAUSE_PEER_LOST, fmt.Sprintf("engine %s: %s: %s", old.Engine, why, s.newcomers[0].Engine)))
	if old.local {
		s.ending = old.Engine
		return
	}
	n := d.neighbors[old.node]
	if n == nil || n.superseded || old.node == s.newcomers[0].node {
		d.forget(old)
	} else {
		s.newcomers = append(s.newcomers, old)
	}
	d.enrol(s)
}

// enrol gives a free place to the first newcomer, and fences what its former
// holder may still have under way.
func (d *Directory) enrol(s *seat) {
	c := s.newcomers[0]
	s.newcomers = slices.Delete(slices.Clone(s.newcomers), 0, 1)
	s.holder = c
	s.asked, s.retryAt = false, time.Time{}
	for i := range s.unfenced {
		u := &s.unfenced[i]
		if n := d.neighbors[u.node]; n != nil && !u.asked {
			u.asked = true
			d.emit(FenceNode{Node: u.node, Generation: u.generation, Reason: fmt.Sprintf("engine %s takes the place of a former one", c.Engine)})
		}
	}
	if c.local {
		d.local = append(d.local, c)
		d.changed()
		d.emit(Attached{Engine: c.Engine})
	}
	d.stale[s.place.instance] = true
}

// unseat frees a place, and notes what has to be fenced before another holder
// of it is paired.
func (d *Directory) unseat(s *seat, cause *messages.Cause) {
	old := s.holder
	s.holder, s.asked, s.retryAt = nil, false, time.Time{}
	if old.local {
		d.local = slices.DeleteFunc(d.local, func(c *claim) bool { return c == old })
		d.changed()
	} else if n := d.neighbors[old.node]; n != nil && n.carried != (rdma.Generation{}) {
		u := carrier{node: old.node, generation: n.carried}
		if !slices.ContainsFunc(s.unfenced, func(o carrier) bool { return o.node == u.node && o.generation == u.generation }) {
			s.unfenced = append(s.unfenced, u)
		}
	}
	d.stale[s.place.instance] = true
	d.causes[s.place.instance] = cause
	d.emit(EngineLost{Engine: old.Engine, Cause: cause})
}

// leave takes one claim out of a seat, whichever it is there. settle follows.
func (d *Directory) leave(s *seat, c *claim, cause *messages.Cause) {
	if s.holder == c {
		d.unseat(s, cause)
		return
	}
	s.newcomers = slices.DeleteFunc(slices.Clone(s.newcomers), func(o *claim) bool { return o == c })
}

// forget takes a claim off the list of its node, for good.
func (d *Directory) forget(c *claim) {
	if n := d.neighbors[c.node]; n != nil {
		n.claims = slices.DeleteFunc(n.claims, func(o *claim) bool { return o == c })
	}
}

// onLinkFenced clears what is fenced now.
func (d *Directory) onLinkFenced(ev LinkFenced) {
	if n := d.neighbors[ev.Node]; n != nil && n.carried == ev.Generation {
		n.carried = rdma.Generation{}
	}
	d.inOrder(func(s *seat) {
		before := len(s.unfenced)
		s.unfenced = slices.DeleteFunc(s.unfenced, func(u carrier) bool {
			return u.node == ev.Node && u.generation == ev.Generation
		})
		if len(s.unfenced) != before {
			d.stale[s.place.instance] = true
			d.settle(s)
		}
	})
}

func (d *Directory) cause(kind messages.CauseKind, text string) *messages.Cause {
	return &messages.Cause{Kind: kind, Text: text, Origin: d.c.Self.String()}
}
