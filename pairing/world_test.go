package pairing

import (
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// world is some nodes, each with a Directory and its Links, a network that loses,
// repeats, delays and holds, and a provider whose fences take their time. It
// checks what must hold always; the first violation is bad.
type world struct {
	now   time.Time
	queue eventQueue
	seq   int
	order []string // names, in the order of their first start
	nodes map[string]*node
	addrs map[string]*node // who is reached there now

	cut    map[[2]string]bool // from a to b, by name
	hold   map[[2]string]bool
	held   []flight
	chance func(n int) int // a number below n; nil: no faults by chance
	loss   int             // of 100 envelopes
	twice  int
	jitter int // milliseconds

	trace    map[string]bool // "link", "wire", "directory"
	log      strings.Builder
	bad      string
	mended   bool              // the provider "broken" works
	mute     bool              // nobody hears of a session that the peer ended
	noProbes bool              // nobody answers ProbeNode
	seen     map[string]bool   // changes of state, when somebody asks
	cluster  map[string]string // by name, where it is not "test"
	version  map[string][2]uint32
	offers   map[string][]string // providers by name, where it is not mem
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any     { e := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return e }

type flight struct {
	from, to string // names
	address  string
	e        *messages.Envelope
}

// node is one process life.
type node struct {
	w       *world
	id      messages.Node
	address string
	dead    bool
	dir     *Directory
	links   map[messages.Node]*Link
	// What its parent of links would remember of each peer.
	peerAddress map[messages.Node]string
	numbers     map[messages.Node]uint64
	nonces      uint64
	armed       map[any]time.Time

	sessions   map[messages.Node]*session
	opened     map[messages.Node][]rdma.Generation // all that ever were
	slowFence  time.Duration
	heldFences bool
	waiting    []func()

	said, heard map[messages.Node]uint64
	used        map[messages.Node][]messages.Engine
	up          map[messages.Node]rdma.Generation
	pairs       map[string]*messages.Pairing
	ready       map[string]bool
	attached    map[place]messages.Engine
	wanted      map[place]*messages.EngineDescription // attached again when refused; nil in scenarios
}

// session is what a provider knows of one peer.
type session struct {
	gen       rdma.Generation
	provider  string
	dial      bool
	connected bool
	fencing   bool
}

var epoch = time.Unix(0, 0)

func newWorld() *world {
	return &world{
		now: epoch, nodes: map[string]*node{}, addrs: map[string]*node{}, cut: map[[2]string]bool{},
		hold: map[[2]string]bool{}, trace: map[string]bool{}, cluster: map[string]string{},
		version: map[string][2]uint32{}, offers: map[string][]string{},
	}
}

func (w *world) violate(format string, a ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf("%v: ", w.now.Sub(epoch)) + fmt.Sprintf(format, a...)
		fmt.Fprintf(&w.log, "VIOLATION %s\n", w.bad)
	}
}

func (w *world) say(kind string, n *node, format string, a ...any) {
	if w.trace[kind] {
		fmt.Fprintf(&w.log, "%6dms %s: %s\n", w.now.Sub(epoch).Milliseconds(), n.id, fmt.Sprintf(format, a...))
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now.Add(d), w.seq, do})
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for n := 0; len(w.queue) > 0 && !w.queue[0].at.After(end); n++ {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
		if n > 2_000_000 {
			w.violate("the world does not come to rest")
			return
		}
	}
	w.now = end
}

// start begins a process life at an address.
func (w *world) start(name string, incarnation uint64, address string) *node {
	n := &node{
		w: w, id: messages.Node{Name: name, Incarnation: incarnation}, address: address,
		links: map[messages.Node]*Link{}, peerAddress: map[messages.Node]string{}, numbers: map[messages.Node]uint64{},
		nonces: incarnation << 16, armed: map[any]time.Time{}, sessions: map[messages.Node]*session{}, opened: map[messages.Node][]rdma.Generation{}, slowFence: time.Millisecond,
		used: map[messages.Node][]messages.Engine{}, said: map[messages.Node]uint64{}, heard: map[messages.Node]uint64{}, up: map[messages.Node]rdma.Generation{},
		pairs: map[string]*messages.Pairing{}, ready: map[string]bool{}, attached: map[place]messages.Engine{},
	}
	n.dir = NewDirectory(DirectoryConfig{Self: n.id})
	if w.nodes[name] == nil {
		w.order = append(w.order, name)
	}
	w.nodes[name], w.addrs[address] = n, n
	return n
}

// crash ends a process; its sessions die with it.
func (w *world) crash(n *node) {
	n.dead = true
	if w.addrs[n.address] == n {
		delete(w.addrs, n.address)
	}
	for _, peer := range sorted(n.sessions, compareNodes) {
		n.breakOff(peer, n.sessions[peer].gen)
	}
}

// meet is gossip showing b to a.
func (w *world) meet(a, b *node) {
	if a.dead || a.links[b.id] != nil {
		return
	}
	a.open(b.id, b.address, a.numbers[b.id])
}

func (n *node) open(peer messages.Node, address string, first uint64) {
	n.peerAddress[peer] = address
	c := LinkConfig{
		Self: n.id, Peer: peer, Cluster: "test", FirstNumber: first,
		Nonce: func() uint64 { n.nonces++; return n.nonces },
	}
	if s := n.sessions[peer]; s != nil {
		c.Unfenced = []rdma.Generation{s.gen}
	}
	if l, ok := n.w.cluster[n.id.Name]; ok {
		c.Cluster = l
	}
	if v, ok := n.w.version[n.id.Name]; ok {
		c.VersionMin, c.VersionMax = v[0], v[1]
	}
	offers, ok := n.w.offers[n.id.Name]
	if !ok {
		offers = []string{"mem"}
	}
	for _, p := range offers {
		c.Endpoints = append(c.Endpoints, &messages.Endpoint{Provider: p, Endpoint: []byte(p + "@" + n.address)})
	}
	n.links[peer] = NewLink(n.w.now, c)
	n.arm(n.links[peer], func() { n.step(peer, Tick{}) })
}

// arm has a machine ticked at its deadline.
func (n *node) arm(m interface{ Deadline() time.Time }, tick func()) {
	at := m.Deadline()
	if at.IsZero() || at.Equal(n.armed[m]) {
		return
	}
	n.armed[m] = at
	n.w.after(max(0, at.Sub(n.w.now)), func() {
		delete(n.armed, m)
		if n.dead || m != any(n.dir) && !n.has(m) {
			return
		}
		if d := m.Deadline(); !d.IsZero() && !d.After(n.w.now) {
			tick()
			if d := m.Deadline(); !d.IsZero() && !d.After(n.w.now) {
				n.w.violate("%s: %T is due again at the time of its tick", n.id, m)
			}
			return
		}
		n.arm(m, tick)
	})
}

// has says whether a Link is still one of the node's.
func (n *node) has(m any) bool {
	for _, l := range n.links {
		if m == any(l) {
			return true
		}
	}
	return false
}

func (n *node) step(peer messages.Node, ev LinkEvent) {
	l := n.links[peer]
	if l == nil || n.dead {
		return
	}
	before := stateOf(l)
	effects := l.Step(n.w.now, ev)
	n.w.observed(before, nameOf(ev), stateOf(l))
	for _, e := range effects {
		n.carryOut(peer, e)
	}
	if n.links[peer] == l {
		n.arm(l, func() { n.step(peer, Tick{}) })
	}
}

func (n *node) tell(ev DirectoryEvent) {
	if n.dead {
		return
	}
	before := map[string]string{}
	if n.w.seen != nil {
		before = statesOf(n.dir)
	}
	effects := n.dir.Step(n.w.now, ev)
	n.w.checkReviewed(n, ev)
	if n.w.seen != nil {
		n.w.compareStates(before, statesOf(n.dir), ev)
	}
	for _, e := range effects {
		n.order(e)
	}
	n.arm(n.dir, func() { n.tell(Tick{}) })
}

// checkReviewed checks that nothing is left to say of any pair: a step that reviews none
// must have changed none.
func (w *world) checkReviewed(n *node, ev DirectoryEvent) {
	d := n.dir
	owed := func() (k int) {
		for _, o := range d.neighbors {
			k += len(o.owed)
		}
		return k
	}
	said, sequence, owes := d.out, d.sequence, owed()
	d.out = nil
	d.rebuild()
	d.review()
	if len(d.out) > 0 || d.sequence != sequence || owed() != owes {
		w.violate("%s: after %T there was something left to say of a pair: %v", n.id, ev, d.out)
	}
	d.out = said
}

// post tells the Directory after what is being done now, as one actor tells
// another.
func (n *node) post(ev DirectoryEvent) { n.w.after(0, func() { n.tell(ev) }) }

// carryOut does what a Link says.
func (n *node) carryOut(peer messages.Node, e LinkEffect) {
	w := n.w
	w.say(kindOf(e), n, "%s", printLink(peer, e))
	switch e := e.(type) {
	case Transmit:
		n.transmit(peer, e.Envelope)
	case Connect:
		n.connect(peer, e)
	case FenceSession:
		n.fence(peer, e.Generation)
	case Deliver:
		n.deliver(peer, e.Body)
	case Up:
		n.checkUp(peer, e.Generation)
		n.up[peer] = e.Generation
		for _, p := range n.pairs {
			for _, m := range append(slices.Clone(p.PrefillEngine), p.DecodeEngine...) {
				if m.Node == peer {
					n.use(m)
				}
			}
		}
		n.post(LinkUp{Node: peer, Address: n.peerAddress[peer], Generation: e.Generation})
	case Down:
		delete(n.up, peer)
		n.post(LinkDown{Node: peer})
	case SuspectChanged:
		n.post(LinkSuspect{Node: peer, Suspect: e.Suspect})
	case FencedHere:
		n.post(LinkFenced(e.at(peer)))
	case Lost:
		n.post(LinkLost{Node: peer, Cause: e.Cause})
	case Probed:
		n.post(NodeProbed{Node: peer, Alive: e.Alive})
	case Closed:
		if s := n.sessions[peer]; s != nil {
			w.violate("%s: closed with generation %s of %s not fenced", n.id, s.gen, peer)
		}
		delete(n.links, peer)
	}
}

func (f FencedHere) at(peer messages.Node) LinkFenced {
	return LinkFenced{Node: peer, Generation: f.Generation}
}

// order does what the Directory says.
func (n *node) order(e DirectoryEffect) {
	n.w.say("directory", n, "%s", printDirectory(e))
	switch e := e.(type) {
	case SendTo:
		n.w.after(0, func() { n.step(e.Node, Submit{Body: e.Body}) })
	case ProbeNode:
		if n.w.noProbes {
			return
		}
		if n.links[e.Node] == nil {
			n.w.after(0, func() { n.tell(NodeProbed{Node: e.Node}) })
			return
		}
		n.w.after(0, func() { n.step(e.Node, Probe{}) })
	case FenceNode:
		n.w.after(0, func() { n.step(e.Node, FenceWanted{Generation: e.Generation, Reason: e.Reason}) })
	case Attached:
		n.attached[place{e.Engine.Instance, e.Engine.Rank}] = e.Engine
	case Refused:
		for _, d := range n.wanted {
			if d.GetEngine().Engine() == e.Engine {
				n.w.after(time.Second, func() { n.tell(Attach{Description: d}) })
			}
		}
	case PairUp:
		n.checkPair(e.Pairing)
		name := e.Pairing.Prefill + "+" + e.Pairing.Decode
		n.pairs[name], n.ready[name] = e.Pairing, true
	case PairUnfit:
	case PairWaiting:
		n.ready[e.Prefill+"+"+e.Decode] = false
	case PairDown:
		delete(n.pairs, e.Prefill+"+"+e.Decode)
		delete(n.ready, e.Prefill+"+"+e.Decode)
	case EngineLost:
		p := place{e.Engine.Instance, e.Engine.Rank}
		if n.attached[p] == e.Engine { // ours: it ends, and is detached
			delete(n.attached, p)
			n.w.after(5*time.Millisecond, func() { n.tell(Detach(e)) })
		}
	}
}

// transmit gives an envelope to the network.
func (n *node) transmit(peer messages.Node, e *messages.Envelope) {
	n.numbers[peer] = max(n.numbers[peer], e.GetNumber())
	if e.GetHello() != nil || e.GetHelloAck() != nil {
		if s := n.sessions[peer]; s != nil && s.gen != e.GetHelloAck().GetGeneration().Rdma() {
			n.w.violate("%s: said hello to %s with generation %s not fenced", n.id, peer, s.gen)
		}
	}
	w := n.w
	f := flight{from: n.id.Name, to: peer.Name, address: n.peerAddress[peer], e: e}
	if w.hold[[2]string{f.from, f.to}] {
		w.held = append(w.held, f)
		return
	}
	w.fly(f)
}

func (w *world) fly(f flight) {
	if w.cut[[2]string{f.from, f.to}] || w.chance != nil && w.chance(100) < w.loss {
		return
	}
	times := 1
	if w.chance != nil && w.chance(100) < w.twice {
		times = 2
	}
	for range times {
		delay := time.Millisecond
		if w.chance != nil && w.jitter > 0 {
			delay += time.Duration(w.chance(w.jitter)) * time.Millisecond
		}
		w.after(delay, func() { w.arrive(f) })
	}
}

// arrive hands an envelope to whoever is at the address now.
func (w *world) arrive(f flight) {
	n := w.addrs[f.address]
	if n == nil {
		return
	}
	from := f.e.GetFrom().Node()
	if n.links[from] == nil {
		// The parent of links gives a stranger to the Link of the node's other life.
		for _, peer := range sorted(n.links, compareNodes) {
			if peer.Name == from.Name {
				from = peer
			}
		}
	}
	n.step(from, EnvelopeReceived{Envelope: f.e})
}

// connect is the provider: the one that dials finds the other one listening, or
// is refused.
func (n *node) connect(peer messages.Node, c Connect) {
	if s := n.sessions[peer]; s != nil {
		n.w.violate("%s: connects generation %s with %s before %s is fenced", n.id, c.Generation, peer, s.gen)
	}
	if c.Provider == "stalls" {
		c.Dial = false // and nobody ever dials
	}
	n.opened[peer] = append(n.opened[peer], c.Generation)
	n.sessions[peer] = &session{gen: c.Generation, provider: c.Provider, dial: c.Dial}
	if !c.Dial {
		return
	}
	n.w.after(time.Millisecond, func() {
		p := n.w.nodes[peer.Name]
		mine := n.sessions[peer]
		if mine == nil || mine.gen != c.Generation || n.dead {
			return
		}
		theirs := p.sessions[n.id]
		if c.Provider == "broken" && !n.w.mended || p.id != peer || p.dead || theirs == nil || theirs.gen != c.Generation || theirs.fencing || n.w.cut[[2]string{n.id.Name, peer.Name}] {
			n.step(peer, Disconnected{Generation: c.Generation, Err: errors.New("refused")})
			return
		}
		mine.connected, theirs.connected = true, true
		n.step(peer, Connected{Generation: c.Generation})
		p.step(n.id, Connected{Generation: c.Generation})
	})
}

// breakOff tells the peer that its session is gone.
func (n *node) breakOff(peer messages.Node, g rdma.Generation) {
	p := n.w.nodes[peer.Name]
	if p == nil || p.id != peer || p.dead || n.w.mute {
		return
	}
	n.w.after(time.Millisecond, func() {
		if s := p.sessions[n.id]; s != nil && s.gen == g && s.connected && !s.fencing {
			p.step(n.id, Disconnected{Generation: g, Err: errors.New("connection reset")})
		}
	})
}

func (n *node) fence(peer messages.Node, g rdma.Generation) {
	if s := n.sessions[peer]; s != nil && s.gen == g {
		s.fencing = true
	}
	done := func() {
		if n.dead {
			return
		}
		if s := n.sessions[peer]; s != nil && s.gen == g {
			delete(n.sessions, peer)
			delete(n.used, peer)
			n.breakOff(peer, g)
		}
		n.step(peer, Fenced{Generation: g})
	}
	if n.heldFences {
		n.waiting = append(n.waiting, done)
		return
	}
	n.w.after(n.slowFence, done)
}

// checkUp: every other generation is fenced on both sides.
func (n *node) checkUp(peer messages.Node, g rdma.Generation) {
	if s := n.sessions[peer]; s == nil || s.gen != g {
		n.w.violate("%s: generation %s with %s is up without its session", n.id, g, peer)
	}
	p := n.w.nodes[peer.Name]
	if s := p.sessions[n.id]; p.id == peer && s != nil && s.gen != g {
		n.w.violate("%s: generation %s with %s is up, but there %s is not fenced", n.id, g, peer, s.gen)
	}
}

// deliver checks that a body is of this life of the peer, for this life of ours,
// once and in order.
func (n *node) deliver(peer messages.Node, body any) {
	switch b := body.(type) {
	case *messages.Room:
		if b.GetFrom().GetInstance() != peer.String() || b.GetTo().GetInstance() != n.id.String() {
			n.w.violate("%s: got a body of %s for %s from %s", n.id, b.GetFrom().GetInstance(), b.GetTo().GetInstance(), peer)
		}
		if b.GetRoom() <= n.heard[peer] {
			n.w.violate("%s: got body %d of %s after body %d", n.id, b.GetRoom(), peer, n.heard[peer])
		}
		n.heard[peer] = b.GetRoom()
	case *messages.Catalog:
		n.post(CatalogReceived{From: peer, Catalog: b})
	case *messages.CatalogAck:
		n.post(CatalogAcked{From: peer, Ack: b})
	case *messages.Readiness:
		n.post(ReadinessReceived{From: peer, Readiness: b})
	case *messages.ReadinessAck:
		n.post(ReadinessAcked{From: peer, Ack: b})
	}
}

// submit says the next body to a peer.
func (n *node) submit(peer messages.Node) {
	n.said[peer]++
	n.step(peer, Submit{Body: &messages.Room{
		Room: n.said[peer], From: &messages.EngineRef{Instance: n.id.String()}, To: &messages.EngineRef{Instance: peer.String()},
	}})
}

// checkPair: nothing is paired whose former holder is not fenced here.
func (n *node) checkPair(p *messages.Pairing) {
	for _, m := range append(slices.Clone(p.PrefillEngine), p.DecodeEngine...) {
		s := n.dir.seats[place{m.Engine.Instance, m.Engine.Rank}]
		if s.holder.Engine != m.Engine {
			n.w.violate("%s: pairs %s, which %s has replaced", n.id, m.Engine, s.holder.Engine)
		}
	}
	members := append(slices.Clone(p.PrefillEngine), p.DecodeEngine...)
	for _, peer := range sorted(n.sessions, compareNodes) {
		for _, former := range n.used[peer] {
			for _, m := range members {
				if m.Engine.Instance == former.Instance && m.Engine.Rank == former.Rank && m.Engine != former {
					n.w.violate("%s: pairs %s while generation %s with %s may carry what is of %s", n.id, m.Engine, n.sessions[peer].gen, peer, former)
				}
			}
		}
	}
	for _, m := range members {
		n.use(m)
	}
}

// use notes that the present session with the node of a member may carry its
// bytes, until it is fenced.
func (n *node) use(m messages.Member) {
	if n.sessions[m.Node] != nil && !slices.Contains(n.used[m.Node], m.Engine) {
		n.used[m.Node] = append(n.used[m.Node], m.Engine)
	}
}
