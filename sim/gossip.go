package sim

import (
	"slices"
	"time"

	"kvferry/cluster"
	"kvferry/messages"
	"kvferry/pairing"
)

// Gossip says who is there, late and now and then wrongly: a node that answers nobody for
// a while is dead to the others, whatever it does. It is reached directly or through
// anybody else.

// deadAfter and aliveAfter bound how long gossip takes to notice.
const (
	deadAfterLow, deadAfterHigh   = 900 * time.Millisecond, 2800 * time.Millisecond
	aliveAfterLow, aliveAfterHigh = 20 * time.Millisecond, 400 * time.Millisecond
)

// reconsider has gossip look again, everywhere: something has changed.
func (w *world) reconsider() {
	for _, a := range w.lives {
		if a.dead {
			continue
		}
		for _, b := range w.lives {
			if a == b || slices.Contains(a.known, b) == w.reaches(a, b) {
				continue
			}
			d := w.between(aliveAfterLow, aliveAfterHigh)
			if slices.Contains(a.known, b) {
				d = w.between(deadAfterLow, deadAfterHigh)
			}
			w.after(d, func() { a.do(func() { a.consider(b) }) })
		}
	}
}

// reaches says whether gossip of a hears of b.
func (w *world) reaches(a, b *process) bool {
	if b.dead || b.stopped {
		return false
	}
	both := func(x, y *host) bool { return !w.isCut(gossip, x, y) && !w.isCut(gossip, y, x) }
	if both(a.host, b.host) {
		return true
	}
	return slices.ContainsFunc(w.hosts, func(via *host) bool {
		return via != a.host && via != b.host && via.now != nil && !via.now.stopped && both(a.host, via) && both(via, b.host)
	})
}

// consider takes in what gossip has found about a life of another.
func (p *process) consider(b *process) {
	known, now := slices.Contains(p.known, b), p.w.reaches(p, b)
	if known == now {
		return
	}
	if !now {
		p.known = slices.DeleteFunc(p.known, func(x *process) bool { return x == b })
		p.gossiped(cluster.Gone{Name: b.id.Name, Incarnation: b.id.Incarnation, Reason: cluster.Dead})
		return
	}
	p.known = append(p.known, b)
	if m := b.member(); m.Speaks(p.member()) { // others are not admitted
		p.gossiped(cluster.Alive{Member: m})
	}
}

// gossiped takes one change into the view, and tells the peers' actors.
func (p *process) gossiped(c cluster.Change) {
	next, events := p.view.Step(c)
	p.view = next
	for _, ev := range events {
		switch e := ev.(type) {
		case cluster.Up:
			p.w.tell(p.id.Name, e.Member.Name, "", "gossip: up %s", e.Member)
			p.open(messages.Node{Name: e.Member.Name, Incarnation: e.Member.Incarnation}, e.Member.Address)
		case cluster.Down:
			p.w.tell(p.id.Name, e.Member.Name, "", "gossip: %s is %s", e.Member, e.Reason)
			l := p.link(messages.Node{Name: e.Member.Name, Incarnation: e.Member.Incarnation})
			if l == nil {
				continue
			}
			l.gone, l.again = true, false
			p.step(l, pairing.GossipDown{Cause: &messages.Cause{
				Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "gossip calls it " + e.Reason.String(), Origin: p.id.String(),
			}})
		}
	}
}
