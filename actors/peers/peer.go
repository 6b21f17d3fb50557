package peers

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transport/rdma"
)

// peer is the link with one process life of a node. It holds one machine,
// pairing.Link, and carries its effects out.
type peer struct {
	// Fixed by newPeer.
	config   Config
	node     messages.Node
	address  string            // of its actors
	unfenced []rdma.Generation // of the actor before, if that died

	// Owned by Receive.
	link   *pairing.Link
	timer  *actors.Timer
	target *actor.PID // the peer actor for us, over there
}

func newPeer(c Config, node messages.Node, address string, unfenced []rdma.Generation) *actor.Props {
	return c.Env.Props(func() actor.Actor {
		return &peer{config: c, node: node, address: address, unfenced: unfenced}
	})
}

// nonce draws a number that nobody guesses.
func (c *Config) nonce() uint64 {
	if c.Nonce != nil {
		return c.Nonce()
	}
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand stops the program instead
	return binary.LittleEndian.Uint64(b[:])
}

// Receive is called by the actor system.
func (p *peer) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		p.onStarted(c)
	case *messages.Envelope:
		p.step(c, pairing.EnvelopeReceived{Envelope: m})
	case *actors.ToPeer:
		p.step(c, pairing.Submit{Body: m.Body})
	case *actors.SessionUp:
		p.step(c, pairing.Connected{Generation: m.Generation})
	case *actors.SessionDown:
		p.step(c, pairing.Disconnected{Generation: m.Generation, Err: m.Err})
	case *actors.SessionFenced:
		p.step(c, pairing.Fenced{Generation: m.Generation, Open: m.Open})
	case *actors.DataMoved:
		p.step(c, pairing.Progress{})
	case *actors.FenceLink:
		p.step(c, pairing.FenceWanted{Generation: m.Generation, Reason: m.Reason})
	case *actors.ProbeNode:
		p.step(c, pairing.Probe{})
	case *actors.NodeDown:
		p.step(c, pairing.GossipDown{Cause: m.Cause})
	case *actors.NodeSilent:
		p.step(c, pairing.Silent{Cause: m.Cause})
	case *actors.LeavePeers:
		p.step(c, pairing.Leave{Reason: m.Reason})
	case *actors.Tick:
		if m.Live() {
			p.step(c, pairing.Tick{})
		}
	case *actor.Stopping:
		if p.timer != nil {
			p.timer.Stop()
		}
	case *actor.Stopped, *actor.Restarting:
	default:
		p.config.Env.Unexpected(c)
	}
}

func (p *peer) onStarted(c actor.Context) {
	p.timer = actors.NewTimer(p.config.Env, c)
	p.target = actors.PID(p.address, p.config.Env.Names.Peer(Name(p.config.Self)))
	now := p.config.Env.Clock.Now()
	p.link = pairing.NewLink(now, pairing.LinkConfig{
		Self: p.config.Self, Peer: p.node, Cluster: p.config.Cluster, Endpoints: p.config.Endpoints,
		FirstNumber: uint64(now.Sub(p.config.Started)), Unfenced: p.unfenced,
		Nonce: p.config.nonce, Limits: p.config.Limits,
	})
	p.carry(c, p.link.Step(now, pairing.Tick{})) // the first thing that is due
}

func (p *peer) step(c actor.Context, ev pairing.LinkEvent) {
	p.carry(c, p.link.Step(p.config.Env.Clock.Now(), ev))
}

// carry carries out what the link asks for, in order, and sets the timer.
func (p *peer) carry(c actor.Context, effects []pairing.LinkEffect) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case pairing.Transmit:
			c.Send(p.target, e.Envelope)
		case pairing.Deliver:
			p.deliver(c, e.Body)
		case pairing.Connect:
			c.Send(c.Parent(), &connected{node: p.node, generation: e.Generation})
			c.Send(p.config.Transport, &actors.ConnectSession{
				Node: p.node, Provider: e.Provider, Generation: e.Generation, Dial: e.Dial, Endpoint: e.Endpoint, Reply: c.Self(),
			})
		case pairing.FenceSession:
			c.Send(p.config.Transport, &actors.FenceSession{Node: p.node, Generation: e.Generation, Reply: c.Self()})
		case pairing.Probed:
			c.Send(p.config.Registry, &actors.NodeProbed{Node: p.node, Alive: e.Alive})
		case pairing.NotSent: // whoever sent it repeats it
		case pairing.Left:
			p.config.Env.Log.Debug("said goodbye", zap.Stringer("peer", p.node), zap.Bool("acknowledged", e.Acknowledged))
		case pairing.Misfit:
			p.config.Env.Log.Error("the two nodes do not come together", zap.Stringer("peer", p.node), zap.Bool("ours", e.Ours),
				zap.String("field", e.Field), zap.String("got", e.Got), zap.String("want", e.Want))
		case pairing.ProviderFailed:
			p.config.Env.Log.Info("a provider does not reach the peer; the next that both have is tried", zap.Stringer("peer", p.node),
				zap.String("provider", e.Provider), zap.String("reason", e.Reason))
		case pairing.Closed:
			c.Stop(c.Self())
		default:
			p.announce(c, effect)
		}
	}
	p.timer.At(p.link.Deadline())
}

// deliver gives a body to whom it is for.
func (p *peer) deliver(c actor.Context, body any) {
	m := &actors.FromPeer{Node: p.node, Body: body}
	if _, ok := body.(*messages.Room); ok {
		c.Send(p.config.Engines, m)
		return
	}
	c.Send(p.config.Registry, m)
}

// announce tells the registry and the engines what became of the link. The
// registry hears first: it is the one that pairs.
func (p *peer) announce(c actor.Context, effect pairing.LinkEffect) {
	var m any
	log := p.config.Env.Log.With(zap.Stringer("peer", p.node))
	switch e := effect.(type) {
	case pairing.Up:
		log.Info("link up", zap.String("provider", e.Provider), zap.Stringer("generation", e.Generation))
		m = &actors.LinkUp{Node: p.node, Address: p.address, Provider: e.Provider, Generation: e.Generation}
	case pairing.Down:
		log.Warn("link down", zap.Stringer("generation", e.Generation), zap.String("cause", e.Cause.GetText()))
		m = &actors.LinkDown{Node: p.node, Generation: e.Generation, Cause: e.Cause}
	case pairing.SuspectChanged:
		log.Warn("link suspect", zap.Bool("suspect", e.Suspect))
		if e.Suspect && p.config.Doubt != nil {
			p.config.Doubt(p.node)
		}
		m = &actors.LinkSuspect{Node: p.node, Suspect: e.Suspect}
	case pairing.FencedHere:
		c.Send(c.Parent(), &fenced{node: p.node, generation: e.Generation})
		m = &actors.LinkFenced{Node: p.node, Generation: e.Generation, Open: e.Open}
	case pairing.Lost:
		log.Info("link lost", zap.String("cause", e.Cause.GetText()))
		m = &actors.LinkLost{Node: p.node, Cause: e.Cause}
	default:
		panic(fmt.Sprintf("peers: link with %s asked for %T", p.node, effect))
	}
	c.Send(p.config.Registry, m)
	c.Send(p.config.Engines, m)
}
