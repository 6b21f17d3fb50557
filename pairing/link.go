package pairing

import (
	"fmt"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// phase is where a Link stands with its generation.
type phase uint8

const (
	waiting    phase = iota + 1 // no generation: a fence has to return, or a redial is due later
	proposing                   // our hello is out
	answering                   // we answered a hello; the peer has not shown that it heard
	connecting                  // both agree; the session is not connected
	up                          // the session carries writes
	ended                       // the peer is lost, or we left
)

var phaseNames = [...]string{waiting: "waiting", proposing: "proposing", answering: "answering", connecting: "connecting", up: "up", ended: "ended"}

// Link is one side of a pair of node incarnations. Not safe for concurrent use.
type Link struct {
	c       LinkConfig
	low     bool // this side's node is the smaller one: it dials, and its hello stands
	now     time.Time
	out     []LinkEffect
	begun   bool
	closed  bool
	phase   phase
	suspect bool

	numbers
	generation
	liveness

	// Proposing and redialling.
	top       uint64          // the highest generation that this side answered or agreed to
	nonce     uint64          // of our hello
	handshake uint64          // number of our last hello or answer
	attempts  int             // since a generation was up for long
	redialAt  time.Time       // when waiting
	resend    backoff         // of our hello, or of our Bye
	pending   *messages.Hello // to be answered when the fences have returned
	misfits   [2]Misfit       // the last that were told: found by us, and by the peer
	failed    map[string]time.Time
	blamed    map[string]string // the reason that was told last, by provider

	// Fences that have not returned.
	fences []rdma.Generation

	// Leaving and ending.
	leaving string    // the reason that our Bye gives
	leaveAt time.Time // limit for the acknowledgement; zero: not leaving
	closeAt time.Time // when ended
}

// generation is the one that this side has answered or agreed to; the zero value
// is none.
type generation struct {
	gen       rdma.Generation
	proposer  bool               // it was our hello
	ack       *messages.HelloAck // what we answered, when it was not
	provider  string
	endpoint  []byte // the peer's
	opened    bool   // Connect was asked for: it has to be fenced
	connected bool
	limitAt   time.Time // before it is up
	upSince   time.Time
	firstPing uint64 // later pongs are about this generation
}

// NewLink makes the Link to one life of a peer. Its Deadline is now: the first
// Tick says hello. It panics on a config that no caller may give: no Nonce, no
// peer, or this node itself as the peer.
func NewLink(now time.Time, c LinkConfig) *Link {
	if c.Nonce == nil || c.Self == c.Peer || c.Self == (messages.Node{}) || c.Peer == (messages.Node{}) {
		panic(fmt.Sprintf("pairing: link from %s to %s cannot be", c.Self, c.Peer))
	}
	c.Limits = c.Limits.Resolve()
	if c.VersionMax == 0 {
		c.VersionMin, c.VersionMax = messages.ProtocolVersionMin, messages.ProtocolVersion
	}
	return &Link{
		c: c, low: smaller(c.Self, c.Peer), phase: waiting, redialAt: now,
		numbers: numbers{sent: c.FirstNumber}, failed: map[string]time.Time{}, blamed: map[string]string{},
	}
}

// smaller orders nodes by name; lives of one node by incarnation.
func smaller(a, b messages.Node) bool {
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	return a.Incarnation < b.Incarnation
}

// Step takes one event at a time that never goes back, and returns what is to be
// done, in order. After Closed nothing is.
func (l *Link) Step(now time.Time, ev LinkEvent) []LinkEffect {
	if l.closed {
		return nil
	}
	l.now, l.out = now, nil
	l.begin()
	switch ev := ev.(type) {
	case EnvelopeReceived:
		l.onEnvelope(ev.Envelope)
	case Submit:
		l.onSubmit(ev.Body)
	case Connected:
		l.onConnected(ev.Generation)
	case Disconnected:
		l.onDisconnected(ev)
	case Fenced:
		l.onFenced(ev)
	case FenceWanted:
		l.onFenceWanted(ev)
	case Progress:
		l.heard = l.heard || l.phase == up
	case GossipDown:
		l.lose(ev.Cause, l.now)
	case Silent:
		if l.suspect {
			l.lose(ev.Cause, l.now)
		}
	case Probe:
		l.onProbe()
	case Leave:
		l.onLeave(ev.Reason)
	case Tick:
		l.onTick()
	default:
		panic(fmt.Sprintf("pairing: link event %T", ev))
	}
	l.proceed()
	return l.out
}

func (l *Link) emit(e LinkEffect) { l.out = append(l.out, e) }

// begin fences what an earlier Link left.
func (l *Link) begin() {
	if l.begun {
		return
	}
	l.begun = true
	for _, g := range l.c.Unfenced {
		l.fence(g)
		l.top = max(l.top, g.Number)
	}
}

// proceed does what has become possible: with no fence under way, answer the
// peer's hello, or say our own when it is due, or close.
func (l *Link) proceed() {
	if len(l.fences) > 0 {
		return
	}
	switch {
	case l.phase == ended && !l.now.Before(l.closeAt):
		l.closed = true
		l.emit(Closed{})
	case l.phase != waiting || !l.leaveAt.IsZero():
	case l.pending != nil:
		h := l.pending
		l.pending = nil
		l.answer(h)
	case !l.now.Before(l.redialAt):
		l.propose()
	}
}

func (l *Link) onTick() {
	due := func(t time.Time) bool { return !t.IsZero() && !l.now.Before(t) }
	switch l.phase {
	case proposing:
		if due(l.resend.at) {
			l.unanswered()
			l.sayHello()
		}
	case answering, connecting:
		if due(l.limitAt) {
			l.onLimit()
		}
	}
	if l.agreed() && due(l.pingAt) {
		l.onPingDue()
	}
	if due(l.probeAt) {
		l.probed(false)
	}
	if l.phase != ended && !l.leaveAt.IsZero() {
		if due(l.leaveAt) {
			l.left(false)
		} else if due(l.resend.at) {
			l.sayBye()
		}
	}
}

// agreed says whether both sides believe in the generation.
func (l *Link) agreed() bool { return l.phase == connecting || l.phase == up }

// Deadline is when the next Tick is due; the zero time for never.
func (l *Link) Deadline() time.Time {
	var d time.Time
	if l.closed {
		return d
	}
	if !l.begun {
		return l.redialAt
	}
	idle := len(l.fences) == 0
	switch l.phase {
	case waiting:
		if idle && l.leaveAt.IsZero() {
			d = earlier(d, l.redialAt)
		}
	case proposing:
		d = earlier(d, l.resend.at)
	case answering, connecting:
		d = earlier(d, l.limitAt)
	case ended:
		if idle {
			return l.closeAt
		}
		return d
	}
	if l.agreed() {
		d = earlier(d, l.pingAt)
	}
	d = earlier(d, l.probeAt)
	if !l.leaveAt.IsZero() {
		d = earlier(earlier(d, l.leaveAt), l.resend.at)
	}
	return d
}

// earlier is the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// State names the state, for people and tests.
func (l *Link) State() string {
	s := phaseNames[l.phase]
	if l.phase == waiting && len(l.fences) > 0 {
		s = "fencing"
	}
	if l.closed {
		s = "closed"
	} else if !l.leaveAt.IsZero() && l.phase != ended {
		s += ", leaving"
	}
	if l.suspect && l.phase != ended {
		s += ", suspect"
	}
	return s
}
