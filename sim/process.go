package sim

import (
	"fmt"
	"slices"
	"time"

	"kvferry/cluster"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transport/rdma"
)

// process is one life of a node: what its actors hold, without the actors. What one of
// them tells another comes later, in order.
type process struct {
	w       *world
	host    *host
	id      messages.Node
	started time.Time // by its own clock
	dead    bool
	stopped bool     // by SIGSTOP, or the garbage collector
	backlog []func() // what came meanwhile

	view      cluster.View
	known     []*process // who gossip holds alive here
	directory *pairing.Directory
	dirAlarm  alarm
	links     []*link
	unfenced  map[messages.Node][]rdma.Generation
	card      *card
	engines   []*engine
	ready     map[string]bool // pairs of instances
	nonces    uint64
}

// alarm is when something is to be woken.
type alarm struct {
	p     *process
	due   func() time.Time // by its clock; zero for never
	tick  func()
	at    time.Duration
	armed bool
	order uint64 // of the newest
}

// link is one peer's actor.
type link struct {
	peer    messages.Node
	address string
	machine *pairing.Link
	alarm   alarm
	gone    bool // gossip says so
	again   bool // and then showed it again
	up      bool
}

// start begins the next life of a host.
func (w *world) start(h *host) *process {
	h.life++
	// Incarnations come from a clock that may have been set back: they are only different.
	incarnation := h.life*7919%104729 + uint64(h.index)
	p := &process{
		w: w, host: h, id: messages.Node{Name: h.name, Incarnation: incarnation}, unfenced: map[messages.Node][]rdma.Generation{},
		ready: map[string]bool{}, nonces: incarnation << 20, started: h.clock.read(w.now),
	}
	h.now, w.at[h.address] = p, p
	w.lives = append(w.lives, p)
	w.tell(h.name, "", "", "starts as %s", p.id)
	w.note('s', uint64(h.index), incarnation)
	p.card = newCard(p)
	p.view = cluster.NewView(p.member())
	p.directory = pairing.NewDirectory(pairing.DirectoryConfig{Self: p.id})
	p.dirAlarm = alarm{p: p, due: p.directory.Deadline, tick: func() { p.direct(pairing.Tick{}) }}
	for _, at := range h.engines {
		p.attach(at)
	}
	w.reconsider()
	return p
}

func (p *process) member() cluster.Member {
	return cluster.Member{
		Name: p.id.Name, Incarnation: p.id.Incarnation, Address: p.host.address, Gossip: p.host.name + ":7946", Label: "sim",
		VersionMin: p.host.version[0], VersionMax: p.host.version[1],
	}
}

// time is what its clock shows.
func (p *process) time() time.Time { return p.host.clock.read(p.w.now) }

// do has the process do something now, or when it goes on.
func (p *process) do(what func()) {
	switch {
	case p.dead:
	case p.stopped:
		p.backlog = append(p.backlog, what)
	default:
		what()
	}
}

// soon is a message from one of its actors to another.
func (p *process) soon(what func()) { p.w.after(0, func() { p.do(what) }) }

// arm has tick called when it is due, unless that moves.
func (a *alarm) arm() {
	due := a.due()
	if due.IsZero() {
		return
	}
	at := a.p.host.clock.when(a.p.w.now, due)
	if a.armed && a.at <= at {
		return // it looks again then
	}
	a.at, a.armed = at, true
	a.order++
	order := a.order
	a.p.w.queue.put(at, func() { a.ring(order) })
}

func (a *alarm) ring(order uint64) {
	if a.p.stopped {
		a.p.do(func() { a.ring(order) })
		return
	}
	if a.p.dead || order != a.order {
		return
	}
	a.armed = false
	if due := a.due(); due.IsZero() || due.After(a.p.time()) {
		a.arm()
		return
	}
	a.tick()
}

// crash ends it: nothing of its memory is there any more.
func (p *process) crash() {
	w := p.w
	w.tell(p.id.Name, "", "", "dies")
	w.note('x', uint64(p.host.index))
	p.dead, p.backlog = true, nil
	p.host.now = nil
	delete(w.at, p.host.address)
	p.card.die()
	for _, e := range p.engines {
		e.died()
	}
	w.reconsider()
}

// attach offers an engine to the directory.
func (p *process) attach(at attachment) {
	instance := p.w.fit.Decode()
	role := messages.Role_ROLE_DECODE
	if at.prefill {
		instance, role = p.w.fit.Prefill(), messages.Role_ROLE_PREFILL
	}
	i := slices.IndexFunc(instance.Engines, func(e kv.Engine) bool { return e.Rank == at.rank })
	id := messages.Engine{Instance: at.instance, Rank: at.rank, Incarnation: p.id.Incarnation}
	e := newEngine(p, id, at.prefill, instance, &instance.Engines[i])
	p.engines = append(p.engines, e)
	description := pairing.Describe(pairing.Described{
		Engine: id, Role: role, Model: instance.Model, DP: instance.DP, PP: instance.PP, CP: instance.CP, TP: instance.TP, Split: instance.Split, Kv: *e.kv,
		Regions: []*messages.Region{{Bytes: uint64(len(e.memory)), Keys: []*messages.RegionKey{{Provider: "sim", Region: 1}}}},
	})
	p.soon(func() { p.direct(pairing.Attach{Description: description}) })
}

// direct gives an event to the directory.
func (p *process) direct(ev pairing.DirectoryEvent) {
	for _, effect := range p.directory.Step(p.time(), ev) {
		p.ordered(effect)
	}
	p.dirAlarm.arm()
}

// ordered does what the directory asks for.
func (p *process) ordered(effect pairing.DirectoryEffect) {
	switch e := effect.(type) {
	case pairing.SendTo:
		p.soon(func() { p.submit(e.Node, e.Body) })
	case pairing.Attached:
		p.toEngines(func(x *engine) { x.attached(e.Engine) })
	case pairing.Refused:
		p.w.tell(p.id.Name, "", "", "refuses engine %s: %v", e.Engine, e.Err)
	case pairing.PairUp:
		p.ready[e.Pairing.Prefill+"+"+e.Pairing.Decode] = true
		p.w.tell(p.id.Name, "", "", "paired")
		p.toEngines(func(x *engine) { x.onPairUp(e.Pairing) })
	case pairing.PairWaiting:
		p.ready[e.Prefill+"+"+e.Decode] = false
		p.w.tell(p.id.Name, "", "", "new rooms wait")
		p.toEngines(func(x *engine) { x.waits = true })
	case pairing.PairUnfit:
		if len(e.Reasons) > 0 {
			p.w.fail("unfit", "%s: the instances do not fit: %v", p.id, e.Reasons)
		}
	case pairing.PairDown:
		p.ready[e.Prefill+"+"+e.Decode] = false
		p.w.tell(p.id.Name, "", "", "pair down: %s", e.Cause.GetText())
		p.toEngines(func(x *engine) { x.onPairDown(e) })
	case pairing.EngineLost:
		p.w.tell(p.id.Name, "", "", "engine %s is lost: %s", e.Engine, e.Cause.GetText())
		p.toEngines(func(x *engine) { x.onEngineLost(e) })
	case pairing.ProbeNode:
		p.soon(func() {
			if l := p.link(e.Node); l != nil {
				p.step(l, pairing.Probe{})
				return
			}
			p.direct(pairing.NodeProbed{Node: e.Node})
		})
	case pairing.FenceNode:
		p.soon(func() { p.fenceLink(e.Node, e.Generation, e.Reason) })
	case pairing.Ignored:
	default:
		panic(fmt.Sprintf("the directory asked for %T", effect))
	}
}

func (p *process) toEngines(tell func(*engine)) {
	p.soon(func() {
		for _, e := range p.engines {
			tell(e)
		}
	})
}

func (p *process) link(peer messages.Node) *link {
	for _, l := range p.links {
		if l.peer == peer {
			return l
		}
	}
	return nil
}

// fenceLink is what rooms and the registry ask a peer's actor for.
func (p *process) fenceLink(peer messages.Node, g rdma.Generation, reason string) {
	if l := p.link(peer); l != nil {
		p.step(l, pairing.FenceWanted{Generation: g, Reason: reason})
	}
}

// submit gives a body to a peer's actor; what has none is lost, as a message to an actor
// that is not there.
func (p *process) submit(peer messages.Node, body any) {
	if l := p.link(peer); l != nil {
		p.step(l, pairing.Submit{Body: body})
	}
}

// open begins to speak with a peer.
func (p *process) open(peer messages.Node, address string) {
	if p.w.bug("dedupe-by-address") && slices.ContainsFunc(p.links, func(l *link) bool { return l.address == address }) {
		return
	}
	if l := p.link(peer); l != nil {
		if l.gone {
			l.again = true
		}
		return
	}
	first := uint64(p.time().Sub(p.started))
	if p.w.bug("numbers-restart") {
		first = 0
	}
	l := &link{peer: peer, address: address}
	l.machine = pairing.NewLink(p.time(), pairing.LinkConfig{
		Self: p.id, Peer: peer, Cluster: "sim", FirstNumber: first, Unfenced: slices.Clone(p.unfenced[peer]),
		Endpoints: []*messages.Endpoint{{Provider: "sim", Endpoint: []byte(p.host.address)}},
		Nonce:     func() uint64 { p.nonces++; return p.nonces * 0x9E3779B97F4A7C15 },
	})
	l.alarm = alarm{p: p, due: l.machine.Deadline, tick: func() { p.step(l, pairing.Tick{}) }}
	p.links = append(p.links, l)
	p.step(l, pairing.Tick{})
}

// step gives an event to a link.
func (p *process) step(l *link, ev pairing.LinkEvent) {
	for _, effect := range l.machine.Step(p.time(), ev) {
		p.linked(l, effect)
	}
	if p.link(l.peer) == l {
		l.alarm.arm()
	}
}

// linked does what a link asks for.
func (p *process) linked(l *link, effect pairing.LinkEffect) {
	peer := l.peer
	switch e := effect.(type) {
	case pairing.Transmit:
		p.w.transmit(p, l.address, e.Envelope)
	case pairing.Deliver:
		p.deliver(peer, e.Body)
	case pairing.Connect:
		p.unfenced[peer] = append(p.unfenced[peer], e.Generation)
		p.soon(func() { p.card.connect(peer, e) })
	case pairing.FenceSession:
		p.soon(func() { p.card.fence(peer, e.Generation) })
	case pairing.Up:
		l.up = true
		p.w.tell(p.id.Name, peer.Name, "", "link up, generation %d", e.Generation.Number)
		p.w.note('u', uint64(p.host.index), e.Generation.Number)
		p.soon(func() {
			p.direct(pairing.LinkUp{Node: peer, Address: l.address, Generation: e.Generation})
			p.eachRoom(func(r *room) { r.onLinkUp(peer, e.Generation.Number) })
		})
	case pairing.Down:
		l.up = false
		p.w.tell(p.id.Name, peer.Name, "", "link down: %s", e.Cause.GetText())
		p.soon(func() { p.direct(pairing.LinkDown{Node: peer}) })
	case pairing.SuspectChanged:
		p.w.tell(p.id.Name, peer.Name, "", "suspect: %v", e.Suspect)
		p.soon(func() {
			p.direct(pairing.LinkSuspect{Node: peer, Suspect: e.Suspect})
			for _, x := range p.engines {
				x.onSuspect(peer, e.Suspect)
			}
		})
	case pairing.FencedHere:
		p.unfenced[peer] = slices.DeleteFunc(p.unfenced[peer], func(g rdma.Generation) bool { return g == e.Generation })
		p.w.tell(p.id.Name, peer.Name, "", "generation %d is fenced here, %d grants open", e.Generation.Number, len(e.Open))
		p.soon(func() {
			p.direct(pairing.LinkFenced{Node: peer, Generation: e.Generation})
			for _, x := range p.engines {
				x.onLinkFenced(peer, e)
			}
		})
	case pairing.Lost:
		p.w.tell(p.id.Name, peer.Name, "", "lost: %s", e.Cause.GetText())
		p.lost(peer, e.Cause)
	case pairing.Probed:
		p.soon(func() { p.direct(pairing.NodeProbed{Node: peer, Alive: e.Alive}) })
	case pairing.Closed:
		p.closed(l)
	case pairing.NotSent, pairing.Misfit, pairing.ProviderFailed, pairing.Left:
	default:
		panic(fmt.Sprintf("a link asked for %T", effect))
	}
}

// lost tells that a life of a peer is over for us.
func (p *process) lost(peer messages.Node, cause *messages.Cause) {
	p.soon(func() {
		p.direct(pairing.LinkLost{Node: peer, Cause: cause})
		for _, x := range p.engines {
			if p.w.bug("suspects-kept") {
				continue
			}
			x.suspects = slices.DeleteFunc(x.suspects, func(n messages.Node) bool { return n == peer })
		}
	})
}

// closed is the end of a peer's actor: it begins anew if gossip shows the node.
func (p *process) closed(l *link) {
	p.links = slices.DeleteFunc(p.links, func(x *link) bool { return x == l })
	cause := &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "the link ended", Origin: p.id.String()}
	p.lost(l.peer, cause)
	p.soon(func() {
		if l.again || !l.gone {
			p.open(l.peer, l.address)
		}
	})
}

// deliver gives a body to whom it is for.
func (p *process) deliver(from messages.Node, body any) {
	p.soon(func() {
		switch b := body.(type) {
		case *messages.Room:
			for _, e := range p.engines {
				if e.id.Instance == b.GetTo().GetInstance() && e.id.Rank == b.GetTo().Engine().Rank {
					e.arrive(from, b)
				}
			}
		case *messages.Catalog:
			p.direct(pairing.CatalogReceived{From: from, Catalog: b})
		case *messages.CatalogAck:
			p.direct(pairing.CatalogAcked{From: from, Ack: b})
		case *messages.Readiness:
			p.direct(pairing.ReadinessReceived{From: from, Readiness: b})
		case *messages.ReadinessAck:
			p.direct(pairing.ReadinessAcked{From: from, Ack: b})
		}
	})
}

// arrive hands an envelope to the link that it is for: the actor's name has the sender's
// life, so what is of a life that is not known here falls on nobody, but for a link with
// another life of the node, which answers strangers.
func (p *process) arrive(e *messages.Envelope) {
	from := e.GetFrom().Node()
	l := p.link(from)
	if l == nil {
		for _, x := range p.links {
			if x.peer.Name == from.Name {
				l = x
			}
		}
	}
	if l != nil {
		p.step(l, pairing.EnvelopeReceived{Envelope: e})
	}
}

func (p *process) eachRoom(f func(*room)) {
	for _, e := range p.engines {
		for _, r := range slices.Clone(e.rooms) {
			f(r)
		}
	}
}
