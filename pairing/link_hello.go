package pairing

import (
	"fmt"
	"strings"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// propose says hello for a generation of its own.
func (l *Link) propose() {
	l.phase = proposing
	l.proposer = true
	l.nonce = l.c.Nonce()
	l.resend.reset()
	l.sayHello()
}

// sayHello says it, again: the proposal is the same, the number is not.
func (l *Link) sayHello() {
	l.handshake = l.transmit(l.c.Peer, &messages.Hello{
		Cluster:    l.c.Cluster,
		VersionMin: l.c.VersionMin, VersionMax: l.c.VersionMax,
		NumberAbove: l.sent, NumberSeen: l.taken,
		Generation: l.top + 1, Nonce: l.nonce,
		Endpoints: l.endpoints(),
	})
	l.resend.next(l.now, l.c.Limits.ResendMin, l.c.Limits.ResendMax, l.c.Nonce())
}

// onHello takes a proposal. It is answered at once if it is known already, else
// after the fence of what is connected now; unless our own stands.
func (l *Link) onHello(number uint64, h *messages.Hello) {
	if !l.leaveAt.IsZero() {
		return
	}
	if field, got, want := l.fits(h); field != "" {
		l.refuse(number, field, got, want)
		return
	}
	l.missed = 0
	switch {
	case l.gen != (rdma.Generation{}) && !l.proposer && h.GetNonce() == l.theirs():
		l.sayAck() // it did not hear our answer
		return
	case l.phase == proposing && l.low:
		return // of two that cross, ours stands: the peer answers it
	}
	l.pending = h
	l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "it began a new generation"))
}

// fits says what of a hello can never be agreed to.
func (l *Link) fits(h *messages.Hello) (field, got, want string) {
	if h.GetCluster() != l.c.Cluster {
		return "cluster", fmt.Sprintf("%q", h.GetCluster()), fmt.Sprintf("%q", l.c.Cluster)
	}
	if v := min(h.GetVersionMax(), l.c.VersionMax); v < h.GetVersionMin() || v < l.c.VersionMin {
		return "version", versions(h.GetVersionMin(), h.GetVersionMax()), versions(l.c.VersionMin, l.c.VersionMax)
	}
	if l.choose(h.GetEndpoints()) == nil {
		return "providers", providers(h.GetEndpoints()), providers(l.c.Endpoints)
	}
	return "", "", ""
}

func providers(es []*messages.Endpoint) string {
	names := make([]string, 0, len(es))
	for _, e := range es[:min(len(es), 16)] {
		names = append(names, e.GetProvider())
	}
	return strings.Join(names, " ")
}

// answer agrees to a hello. Every lower generation is fenced here, and where the
// peer dials, this side listens before the answer leaves.
func (l *Link) answer(h *messages.Hello) {
	e := l.choose(h.GetEndpoints())
	number := max(h.GetGeneration(), l.top+1)
	l.top = number
	l.generation = generation{gen: l.join(number, l.c.Nonce(), h.GetNonce()), provider: e.GetProvider(), endpoint: e.GetEndpoint()}
	l.version = min(h.GetVersionMax(), l.c.VersionMax)
	l.phase = answering
	l.limitAt = l.now.Add(l.c.Limits.ConnectTimeout)
	l.ack = &messages.HelloAck{
		Version: l.version, Generation: messages.GenerationWire(l.gen),
		Endpoints: l.c.Endpoints, Provider: l.provider,
	}
	if !l.low {
		l.open()
	}
	l.sayAck()
}

func (l *Link) sayAck() {
	l.handshake = l.transmit(l.c.Peer, &messages.HelloAck{
		Version: l.ack.Version, Generation: l.ack.Generation, Endpoints: l.ack.Endpoints, Provider: l.ack.Provider,
		NumberAbove: l.sent, NumberSeen: l.taken,
	})
}

// join makes a generation of both nonces.
func (l *Link) join(number, ours, theirs uint64) rdma.Generation {
	if l.low {
		return rdma.Generation{Number: number, Low: ours, High: theirs}
	}
	return rdma.Generation{Number: number, Low: theirs, High: ours}
}

// theirs is the peer's nonce of the present generation; oursIn is ours of any.
func (l *Link) theirs() uint64 {
	if l.low {
		return l.gen.High
	}
	return l.gen.Low
}

func (l *Link) oursIn(g rdma.Generation) uint64 {
	if l.low {
		return g.Low
	}
	return g.High
}

// onHelloAck takes the answer to our hello.
func (l *Link) onHelloAck(number uint64, a *messages.HelloAck) {
	g := a.GetGeneration().Rdma()
	switch {
	case l.phase == proposing && l.oursIn(g) == l.nonce && g.Number > l.top:
		l.agree(number, g, a)
	case l.agreed() && g == l.gen:
		// Our hello was said twice, and so is the answer.
	case l.agreed() && l.proposer && l.oursIn(g) == l.nonce:
		// It has forgotten that it answered this hello before.
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "it answered one hello with two generations"))
	default:
		l.notFit(number, "generation", g.String(), l.gen.String())
	}
}

func (l *Link) agree(number uint64, g rdma.Generation, a *messages.HelloAck) {
	if v := a.GetVersion(); v < l.c.VersionMin || v > l.c.VersionMax {
		l.refuse(number, "version", fmt.Sprint(v), versions(l.c.VersionMin, l.c.VersionMax))
		l.drop(l.cause(messages.CauseKind_CAUSE_PROTOCOL, "no common version"))
		return
	}
	e := find(a.GetEndpoints(), a.GetProvider())
	if e == nil || find(l.c.Endpoints, a.GetProvider()) == nil {
		l.refuse(number, "providers", a.GetProvider(), providers(l.c.Endpoints))
		l.drop(l.cause(messages.CauseKind_CAUSE_PROTOCOL, "no common provider"))
		return
	}
	l.top = g.Number
	l.version = a.GetVersion()
	l.generation = generation{gen: g, proposer: true, provider: e.GetProvider(), endpoint: e.GetEndpoint()}
	l.open()
	l.begunTalking()
}

// confirms says whether a ping shows that the peer heard our answer.
func (l *Link) confirms(p *messages.Ping) bool {
	return l.phase == answering && p != nil && p.GetGeneration().Rdma() == l.gen
}

// confirm is the end of the handshake for who answered. The one that dials does
// it now: the peer listens.
func (l *Link) confirm() {
	if l.low {
		l.open()
	}
	l.begunTalking()
	if l.connected {
		l.goUp()
	}
}

// begunTalking: both sides believe in the generation. The ping is what shows the
// answerer that its answer came, and is said again until something is heard.
func (l *Link) begunTalking() {
	l.greeted = true
	l.phase = connecting
	l.limitAt = l.now.Add(l.c.Limits.ConnectTimeout)
	l.firstPing = l.pings + 1
	l.missed, l.good, l.heard, l.asked, l.told = 0, 0, false, false, [2]uint64{}
	l.pingAt = l.now.Add(l.c.Limits.PingEvery)
	if !l.probeAt.IsZero() {
		l.probed(true)
	}
	if l.proposer {
		l.ping()
	}
}

// endpoints are ours in the order in which we want them tried.
func (l *Link) endpoints() []*messages.Endpoint {
	var good, bad []*messages.Endpoint
	for _, e := range l.c.Endpoints {
		if l.works(e.GetProvider()) {
			good = append(good, e)
		} else {
			bad = append(bad, e)
		}
	}
	return append(good, bad...)
}

// works says whether a provider did not fail lately.
func (l *Link) works(provider string) bool {
	at, failed := l.failed[provider]
	return !failed || l.now.Sub(at) >= l.c.Limits.ProviderRetry
}

// choose is the first of the peer's endpoints that both have and that works here;
// if none works, the one that failed first. nil: there is no common provider.
func (l *Link) choose(theirs []*messages.Endpoint) *messages.Endpoint {
	var last *messages.Endpoint
	for _, e := range theirs {
		if find(l.c.Endpoints, e.GetProvider()) == nil {
			continue
		}
		if l.works(e.GetProvider()) {
			return e
		}
		if last == nil || l.failed[e.GetProvider()].Before(l.failed[last.GetProvider()]) {
			last = e
		}
	}
	return last
}

func find(es []*messages.Endpoint, provider string) *messages.Endpoint {
	for _, e := range es {
		if e.GetProvider() == provider {
			return e
		}
	}
	return nil
}
