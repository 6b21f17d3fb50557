package fabric

import "time"

// refusedAfter is how long remoting tries an address where nobody listens, before
// it says so.
const refusedAfter = 2 * time.Second

// link is the connection from one node to an address. It keeps the order of what
// is sent on it.
type link struct {
	queue   []parcel
	pumping bool // one goroutine delivers
	refused bool // nobody is there; the sender will be told
}

// parcel is one actor message under way.
type parcel struct {
	due     time.Time
	deliver func(*Node)
}

// send puts a message on the link from one node to an address.
func (n *Net) send(from *Node, to string, deliver func(*Node)) {
	r := route{from.address, to}
	n.mu.Lock()
	if n.nodes[from.address] != from {
		n.mu.Unlock()
		return // crashed
	}
	l := n.links[r]
	if l == nil {
		l = &link{}
		n.links[r] = l
	}
	copies := 1
	if n.chanceLocked(n.faults.MessageDuplicate) {
		copies = 2
	}
	for range copies {
		if n.chanceLocked(n.faults.MessageLoss) {
			continue
		}
		due := time.Now().Add(n.delayLocked())
		if last := len(l.queue) - 1; last >= 0 && due.Before(l.queue[last].due) {
			due = l.queue[last].due
		}
		l.queue = append(l.queue, parcel{due, deliver})
		time.AfterFunc(time.Until(due), func() { n.pump(r) })
	}
	n.mu.Unlock()
}

// pump delivers what is due on a link, in order.
func (n *Net) pump(r route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[r]
	if l == nil || l.pumping {
		return
	}
	l.pumping = true
	defer func() { l.pumping = false }()
	for len(l.queue) > 0 && !l.queue[0].due.After(time.Now()) {
		passes := n.passesLocked(messagesOnly, hostOf(r.from), hostOf(r.to))
		if !passes && n.faults.Hold {
			return // until the heal
		}
		p := l.queue[0]
		l.queue = l.queue[1:]
		d := n.nodes[r.to]
		if d == nil || !passes {
			n.lostLocked(r, l, passes)
			continue
		}
		n.mu.Unlock()
		p.deliver(d)
		n.mu.Lock()
	}
}

// lostLocked is a message that did not arrive. Where the host answers but nobody
// listens, its sender is told after a while; a cut tells nobody.
func (n *Net) lostLocked(r route, l *link, passes bool) {
	from := n.nodes[r.from]
	if !passes || l.refused || from == nil {
		return
	}
	l.refused = true
	time.AfterFunc(refusedAfter, func() { from.PeerDown(r.to) })
}

// pumpAll delivers what a cut held back.
func (n *Net) pumpAll() {
	n.mu.Lock()
	routes := make([]route, 0, len(n.links))
	for r := range n.links {
		routes = append(routes, r)
	}
	n.mu.Unlock()
	for _, r := range routes {
		n.pump(r)
	}
}

// drop forgets a link, and what is on it.
func (n *Net) drop(r route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, r)
}
