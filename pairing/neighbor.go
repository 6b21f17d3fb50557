package pairing

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// neighbor is another node, in one life of it.
type neighbor struct {
	node    messages.Node
	address string // "" before its link was up
	up      bool
	suspect bool

	// superseded: another node was met at the same address since.
	superseded bool

	// carried is the last generation that was up and is not fenced here; zero for
	// none.
	carried rdma.Generation

	// Their catalog: the version that we hold, and why it serves nothing if it
	// does not.
	version  uint64
	refused  string
	assembly assembly
	claims   []*claim

	// Ours with them.
	catalog   debt
	refusedBy string // why they serve nothing of us

	words map[pairName]*messages.Readiness // theirs
	owed  map[pairName]*debt               // ours
}

// debt is something that is said until it is acknowledged.
type debt struct {
	acked uint64
	said  uint64 // what the backoff belongs to
	again backoff
}

// due says whether it is to be said now: it is new, or not acknowledged in time.
func (b *debt) due(now time.Time, current uint64) bool {
	return b.acked < current && (b.said != current || !now.Before(b.again.at))
}

func (b *debt) say(now time.Time, current uint64, l *Limits) {
	if b.said != current {
		b.said = current
		b.again.reset()
	}
	b.again.next(now, l.ResendMin, l.ResendMax, 0)
}

// at is when it is due; zero for never.
func (b *debt) at(current uint64) time.Time {
	if b.acked >= current {
		return time.Time{}
	}
	return b.again.at
}

// reachable says whether anything is said to the node: what is said to a suspect
// one would only queue.
func (n *neighbor) reachable() bool { return n.up && !n.suspect }

func (d *Directory) neighbor(node messages.Node) *neighbor {
	n := d.neighbors[node]
	if n == nil {
		n = &neighbor{node: node, words: map[pairName]*messages.Readiness{}, owed: map[pairName]*debt{}}
		d.neighbors[node] = n
	}
	return n
}

func (d *Directory) onLinkUp(ev LinkUp) {
	if ev.Generation == (rdma.Generation{}) {
		panic(fmt.Sprintf("pairing: link up with %s without its generation: what is replaced could not be fenced", ev.Node))
	}
	n := d.neighbor(ev.Node)
	n.up, n.suspect, n.superseded = true, false, false
	n.address, n.carried = ev.Address, ev.Generation
	n.resume()
	// A handshake with this life was just made there, so no other life is there.
	for _, o := range d.neighbors {
		if o != n && ev.Address != "" && o.address == ev.Address {
			o.superseded = true
		}
	}
	d.inOrder(d.settle)
}

// resume has everything that is owed said at once.
func (n *neighbor) resume() {
	n.catalog.said = 0
	for _, b := range n.owed {
		b.said = 0
	}
}

func (d *Directory) onLinkDown(ev LinkDown) {
	if n := d.neighbors[ev.Node]; n != nil {
		n.up = false
	}
}

func (d *Directory) onLinkSuspect(ev LinkSuspect) {
	n := d.neighbors[ev.Node]
	if n == nil {
		return
	}
	if n.suspect = ev.Suspect; !n.suspect {
		n.resume()
	}
}

// onLinkLost ends all engines of a node.
func (d *Directory) onLinkLost(ev LinkLost) {
	n := d.neighbors[ev.Node]
	if n == nil {
		return
	}
	d.withdraw(n, n.claims, ev.Cause)
	// Contenders waited for a probe of it: its loss is the answer.
	delete(d.neighbors, ev.Node)
	d.inOrder(d.settle)
}

// withdraw takes claims of a node out of their places.
func (d *Directory) withdraw(n *neighbor, gone []*claim, cause *messages.Cause) {
	for _, c := range slices.Clone(gone) {
		d.forget(c)
		if s := d.seats[c.place()]; s != nil {
			d.leave(s, c, cause)
		}
	}
}

// speakAll says to every node what it has not acknowledged and what is due.
func (d *Directory) speakAll() {
	for _, node := range sorted(d.neighbors, compareNodes) {
		if n := d.neighbors[node]; n.reachable() {
			d.speak(n)
		}
	}
}

func (d *Directory) speak(n *neighbor) {
	if n.catalog.due(d.now, d.version) {
		n.catalog.say(d.now, d.version, &d.c.Limits)
		d.sayCatalog(n)
	}
	for _, name := range sorted(n.owed, pairName.compare) {
		p, b := d.pairs[name], n.owed[name]
		if p != nil && b.due(d.now, p.word.GetSequence()) {
			b.say(d.now, p.word.GetSequence(), &d.c.Limits)
			d.emit(SendTo{Node: n.node, Body: p.wordFor(n.node)})
		}
	}
}

// owes is when the next thing is due to be said to a node; zero for never.
func (d *Directory) owes(n *neighbor) time.Time {
	if !n.reachable() {
		return time.Time{}
	}
	t := n.catalog.at(d.version)
	for name, b := range n.owed {
		if p := d.pairs[name]; p != nil {
			t = earlier(t, b.at(p.word.GetSequence()))
		}
	}
	return t
}

// pairName names two instances.
type pairName struct{ prefill, decode string }

func (p pairName) compare(o pairName) int {
	return cmp.Or(cmp.Compare(p.prefill, o.prefill), cmp.Compare(p.decode, o.decode))
}
