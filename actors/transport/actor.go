// Package transport is the actor that owns the providers: it registers memory,
// makes and fences sessions, gives writes and grants to them, and turns their
// events into messages to whoever asked.
package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// pumped is a batch of events of one provider, from its pump. Nobody changes it.
type pumped struct {
	provider *provider
	events   []rdma.Event
}

// pumpEnded tells that a provider gives no more events.
type pumpEnded struct {
	provider *provider
	err      error
}

const (
	// pumpEvents is how many events one Poll takes at most. A batch is one message
	// to the actor, so that a busy provider costs one mailbox entry per batch.
	pumpEvents = 256
)

// Actor owns the providers of a node.
type Actor struct {
	// Fixed by New.
	env       *actors.Env
	self      messages.Node
	providers []*provider

	// Owned by Receive.
	sessions map[string]*session // by the node's string
	grants   map[rdma.GrantID]*grant
	tags     map[rdma.Tag]*tag
	memory   map[string][]*messages.Region // by the id of the engine's PID
	endings  map[*ending]bool              // engines that are gone, whose memory is registered still
	stale    map[string]uint64             // by reason: what peers sent that was refused

	// The pumps are the goroutines of this actor that are not Receive. They touch
	// their provider's Poll and nothing else.
	stopPumps context.CancelFunc
	pumps     sync.WaitGroup
}

// provider is one provider and what is asked of it.
type provider struct {
	rdma.Provider
	nextWrite rdma.WriteID
	writes    map[rdma.WriteID]*write // accepted or waiting, not yet completed
}

// New is the Props of the transport actor. It takes the providers over: they are
// closed when the actor stops. There is at least one, and names differ.
func New(env *actors.Env, self messages.Node, providers []rdma.Provider) (*actor.Props, error) {
	seen := map[string]bool{}
	for _, p := range providers {
		if seen[p.Name()] {
			return nil, fmt.Errorf("transport: provider %q is given twice", p.Name())
		}
		seen[p.Name()] = true
	}
	if len(providers) == 0 {
		return nil, errors.New("transport: no provider is given, want at least one")
	}
	return env.Props(func() actor.Actor {
		a := &Actor{
			env: env, self: self,
			sessions: map[string]*session{},
			grants:   map[rdma.GrantID]*grant{},
			tags:     map[rdma.Tag]*tag{},
			memory:   map[string][]*messages.Region{},
			endings:  map[*ending]bool{},
			stale:    map[string]uint64{},
		}
		for _, p := range providers {
			a.providers = append(a.providers, &provider{Provider: p, writes: map[rdma.WriteID]*write{}})
		}
		return a
	}), nil
}

// Receive is called by the actor system.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.onStarted(c)
	case *pumped:
		a.onPumped(c, m)
	case *pumpEnded:
		a.onPumpEnded(m)
	case *actors.RegisterMemory:
		a.onRegisterMemory(c, m)
	case *actors.EndOwner:
		a.onEndOwner(c, m)
	case *actors.ConnectSession:
		a.onConnectSession(c, m)
	case *actors.FenceSession:
		a.onFenceSession(c, m)
	case *actors.PostWrite:
		a.onPostWrite(c, m)
	case *actors.QuiesceRoom:
		a.onQuiesceRoom(c, m)
	case *actors.InstallGrant:
		a.onInstallGrant(c, m)
	case *actors.RevokeGrant:
		a.onRevokeGrant(c, m)
	case *actors.InspectTransport:
		m.Reply(a.inFlight())
	case *actor.Stopping:
		a.onStopping()
	case *actor.Stopped, *actor.Restarting:
	default:
		a.env.Unexpected(c)
	}
}

func (a *Actor) onStarted(c actor.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	a.stopPumps = cancel
	self, root := c.Self(), a.env.System.Root
	for _, p := range a.providers {
		a.pumps.Go(func() { pump(ctx, p, func(m any) { root.Send(self, m) }) })
	}
}

// pump takes events of one provider until it is closed.
func pump(ctx context.Context, p *provider, tell func(any)) {
	events := make([]rdma.Event, pumpEvents)
	for {
		n, err := p.Poll(ctx, events)
		if n > 0 {
			tell(&pumped{provider: p, events: slices.Clone(events[:n])})
			clear(events[:n])
		}
		if err != nil {
			tell(&pumpEnded{provider: p, err: err})
			return
		}
	}
}

func (a *Actor) onPumped(c actor.Context, m *pumped) {
	moved := map[string]bool{} // peers
	for _, ev := range m.events {
		switch ev := ev.(type) {
		case rdma.Connected:
			a.connected(c, ev)
		case rdma.Disconnected:
			a.disconnected(c, ev)
		case rdma.Completed:
			a.completed(c, m.provider, ev, moved)
		case rdma.Arrived:
			a.arrived(c, ev, moved)
		case rdma.Revoked:
			a.revoked(c, m.provider, ev)
		case rdma.Quiesced:
			a.quiesced(c, m.provider, ev)
		case rdma.Fenced:
			a.fenced(c, ev)
		case rdma.Stale:
			a.refused(ev)
		default:
			panic(fmt.Sprintf("transport: unknown event %T of provider %s", ev, m.provider.Name()))
		}
	}
	for _, peer := range slices.Sorted(maps.Keys(moved)) {
		if s := a.sessions[peer]; s != nil {
			c.Send(s.reply, &actors.DataMoved{Node: s.node})
		}
	}
}

func (a *Actor) onPumpEnded(m *pumpEnded) {
	if !errors.Is(m.err, rdma.ErrClosed) && !errors.Is(m.err, context.Canceled) {
		panic(fmt.Sprintf("transport: provider %s stopped giving events: %v", m.provider.Name(), m.err))
	}
}

func (a *Actor) inFlight() actors.InFlight {
	n := actors.InFlight{Sessions: len(a.sessions), Engines: len(a.memory) + len(a.endings), Grants: len(a.grants), Rooms: len(a.tags)}
	for _, p := range a.providers {
		n.Writes += len(p.writes)
	}
	for _, s := range a.sessions {
		n.Queued += s.queue.Len()
	}
	return n
}

// refused counts what a peer sent in vain. It is said once per reason: a peer
// that sends garbage must not fill the log.
func (a *Actor) refused(ev rdma.Stale) {
	if a.stale[ev.Reason]++; a.stale[ev.Reason] == 1 {
		a.env.Log.Warn("refused what a peer sent; counted from now on",
			zap.String("peer", ev.Peer), zap.String("reason", ev.Reason))
	}
}

// onStopping is the fence of the whole node: when Close returns, no byte of any
// region moves again.
func (a *Actor) onStopping() {
	for _, p := range a.providers {
		if err := p.Close(); err != nil {
			a.env.Log.Error("close provider", zap.String("provider", p.Name()), zap.Error(err))
		}
	}
	a.stopPumps()
	a.pumps.Wait()
}

func (a *Actor) provider(name string) *provider {
	for _, p := range a.providers {
		if p.Name() == name {
			return p
		}
	}
	return nil
}
