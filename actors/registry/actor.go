// Package registry is the actor that knows who is there: the engines of this node
// and of others, their instances, and which of those work together. It holds one
// machine, pairing.Directory, which takes registrations and deduplicates peers.
package registry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/pairing"
)

// Config is what the registry of a node is made with.
type Config struct {
	Env     *actors.Env
	Self    messages.Node
	Limits  pairing.Limits
	Started time.Time // of this process life; versions count from it

	Engines *actor.PID
	Peer    func(messages.Node) *actor.PID
}

// Status asks what is there. (node -> registry)
type Status struct {
	Reply func(pairs []pairing.PairStatus, engines []pairing.EngineStatus)
}

// AwaitPair asks to be told when two instances work together. Ready is called at
// most once. (node -> registry)
type AwaitPair struct {
	Prefill, Decode string
	Ready           func()
	Over            func() bool // nobody waits any more; asked now and then
}

// Actor is the registry of a node.
type Actor struct {
	config Config

	// Owned by Receive.
	directory *pairing.Directory
	timer     *actors.Timer
	attaching map[messages.Engine]*actor.PID // who waits for an answer
	awaiting  []*AwaitPair
	ignored   map[string]uint64 // what peers said in vain, by field
}

// New is the Props of the registry.
func New(c Config) *actor.Props {
	c.Limits = c.Limits.Resolve()
	return c.Env.Props(func() actor.Actor {
		return &Actor{config: c, attaching: map[messages.Engine]*actor.PID{}, ignored: map[string]uint64{}}
	})
}

// Receive is called by the actor system.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.onStarted(c)
	case *actors.AttachEngine:
		a.attaching[m.Description.GetEngine().Engine()] = m.Reply
		a.step(c, pairing.Attach{Description: m.Description})
	case *actors.DetachEngine:
		delete(a.attaching, m.Engine)
		a.step(c, pairing.Detach{Engine: m.Engine, Cause: m.Cause})
	case *actors.FromPeer:
		a.onFromPeer(c, m)
	case *actors.LinkUp:
		a.step(c, pairing.LinkUp{Node: m.Node, Address: m.Address, Generation: m.Generation})
	case *actors.LinkDown:
		a.step(c, pairing.LinkDown{Node: m.Node})
	case *actors.LinkSuspect:
		a.step(c, pairing.LinkSuspect{Node: m.Node, Suspect: m.Suspect})
	case *actors.LinkFenced:
		a.step(c, pairing.LinkFenced{Node: m.Node, Generation: m.Generation})
	case *actors.LinkLost:
		a.step(c, pairing.LinkLost{Node: m.Node, Cause: m.Cause})
	case *actors.NodeProbed:
		a.step(c, pairing.NodeProbed{Node: m.Node, Alive: m.Alive})
	case *AwaitPair:
		a.awaiting = append(a.awaiting, m)
		a.tellReady()
	case *Status:
		m.Reply(a.directory.Pairs(), a.directory.Engines())
	case *actors.Tick:
		if m.Live() {
			a.step(c, pairing.Tick{})
		}
	case *actor.Stopping:
		if a.timer != nil {
			a.timer.Stop()
		}
	case *actor.Stopped, *actor.Restarting:
	default:
		a.config.Env.Unexpected(c)
	}
}

func (a *Actor) onStarted(c actor.Context) {
	a.timer = actors.NewTimer(a.config.Env, c)
	a.directory = pairing.NewDirectory(pairing.DirectoryConfig{
		Self: a.config.Self, Limits: a.config.Limits,
		FirstVersion: uint64(a.config.Env.Clock.Now().Sub(a.config.Started)),
	})
}

func (a *Actor) onFromPeer(c actor.Context, m *actors.FromPeer) {
	switch body := m.Body.(type) {
	case *messages.Catalog:
		a.step(c, pairing.CatalogReceived{From: m.Node, Catalog: body})
	case *messages.CatalogAck:
		a.step(c, pairing.CatalogAcked{From: m.Node, Ack: body})
	case *messages.Readiness:
		a.step(c, pairing.ReadinessReceived{From: m.Node, Readiness: body})
	case *messages.ReadinessAck:
		a.step(c, pairing.ReadinessAcked{From: m.Node, Ack: body})
	default:
		a.config.Env.Unexpected(c)
	}
}

func (a *Actor) step(c actor.Context, ev pairing.DirectoryEvent) {
	a.carry(c, a.directory.Step(a.config.Env.Clock.Now(), ev))
}

// carry carries out what the directory asks for, in order, and sets the timer.
func (a *Actor) carry(c actor.Context, effects []pairing.DirectoryEffect) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case pairing.SendTo:
			c.Send(a.config.Peer(e.Node), &actors.ToPeer{Node: e.Node, Body: e.Body})
		case pairing.Attached:
			a.answer(c, e.Engine, nil)
		case pairing.Refused:
			a.answer(c, e.Engine, e.Err)
		case pairing.PairUp:
			a.config.Env.Log.Info("paired", zap.String("prefill", e.Pairing.Prefill), zap.String("decode", e.Pairing.Decode))
			c.Send(a.config.Engines, &actors.PairUp{Pairing: e.Pairing})
		case pairing.PairWaiting:
			a.config.Env.Log.Warn("new rooms of a pair wait", zap.String("prefill", e.Prefill), zap.String("decode", e.Decode), zap.Strings("reasons", texts(e.Reasons)))
			c.Send(a.config.Engines, &actors.PairWaiting{Prefill: e.Prefill, Decode: e.Decode})
		case pairing.PairUnfit:
			a.tellUnfit(c, e)
		case pairing.PairDown:
			a.config.Env.Log.Warn("pair down", zap.String("prefill", e.Prefill), zap.String("decode", e.Decode), zap.String("cause", e.Cause.GetText()))
			c.Send(a.config.Engines, &actors.PairDown{Prefill: e.Prefill, Decode: e.Decode, Cause: e.Cause})
		case pairing.EngineLost:
			c.Send(a.config.Engines, &actors.EngineLost{Engine: e.Engine, Cause: e.Cause})
		case pairing.ProbeNode:
			c.Send(a.config.Peer(e.Node), &actors.ProbeNode{Node: e.Node})
		case pairing.FenceNode:
			c.Send(a.config.Peer(e.Node), &actors.FenceLink{Node: e.Node, Generation: e.Generation, Reason: e.Reason})
		case pairing.Ignored:
			a.ignore(e)
		default:
			panic(fmt.Sprintf("registry: the directory asked for %T", effect))
		}
	}
	a.timer.At(a.directory.Deadline())
	a.tellReady()
}

// tellUnfit says that two instances do not work together, with every reason.
func (a *Actor) tellUnfit(c actor.Context, e pairing.PairUnfit) {
	m := &actors.PairUnfit{Prefill: e.Prefill, Decode: e.Decode}
	if all := texts(e.Reasons); len(all) > 0 {
		a.config.Env.Log.Error("instances do not work together", zap.String("prefill", e.Prefill), zap.String("decode", e.Decode), zap.Strings("reasons", all))
		m.Cause = &messages.Cause{
			Kind:   messages.CauseKind_CAUSE_NOT_PAIRED,
			Text:   fmt.Sprintf("%s and %s do not work together: %s", e.Prefill, e.Decode, strings.Join(all, "; ")),
			Origin: a.config.Self.String(),
		}
	}
	c.Send(a.config.Engines, m)
}

// tellReady answers those who wait for a pair that is ready now.
func (a *Actor) tellReady() {
	if len(a.awaiting) == 0 {
		return
	}
	ready := map[[2]string]bool{}
	for _, p := range a.directory.Pairs() {
		ready[[2]string{p.Prefill, p.Decode}] = p.State == pairing.Ready
	}
	a.awaiting = slices.DeleteFunc(a.awaiting, func(m *AwaitPair) bool {
		if m.Over() {
			return true
		}
		if !ready[[2]string{m.Prefill, m.Decode}] {
			return false
		}
		m.Ready()
		return true
	})
}

// ignore counts what a peer said in vain; the first of a kind is said.
func (a *Actor) ignore(e pairing.Ignored) {
	if a.ignored[e.Field]++; a.ignored[e.Field] == 1 {
		a.config.Env.Log.Warn("ignored what a peer said; counted from now on", zap.Stringer("peer", e.From),
			zap.String("field", e.Field), zap.String("got", e.Got), zap.String("want", e.Want))
	}
}

func texts(reasons []*messages.Reason) []string {
	all := make([]string, len(reasons))
	for i, r := range reasons {
		all[i] = r.GetText()
	}
	return all
}

func (a *Actor) answer(c actor.Context, engine messages.Engine, err error) {
	if reply := a.attaching[engine]; reply != nil {
		delete(a.attaching, engine)
		c.Send(reply, &actors.EngineAttached{Engine: engine, Err: err})
	}
}
