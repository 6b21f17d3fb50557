package mem

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

// ErrInjected is the cause of what Faults did.
var ErrInjected = errors.New("mem: injected fault")

// FaultsConfig is what goes wrong. Functions are called by the goroutine that
// calls Poll or Post; nil means never.
type FaultsConfig struct {
	// Lose answers whether the completion of a write that landed is lost: its bytes
	// are there, and the sender hears Unknown.
	Lose func(rdma.Completed) bool

	// Full answers whether Post says ErrFull although there is room. It is asked
	// only while a write of the session is in flight, so that a completion comes.
	Full func(rdma.SessionID) bool

	// Delay is how long the events of one Poll are held back.
	Delay func() time.Duration
}

// Faults spoils any provider. It keeps the provider's promises: what it does could
// have come from the network.
type Faults struct {
	rdma.Provider
	config FaultsConfig

	mu       sync.Mutex
	up       map[string]rdma.SessionID // by peer
	inFlight map[rdma.SessionID]int
	unknown  map[rdma.Tag][]rdma.SessionID
	breaking map[rdma.SessionID]bool // fenced to break them: told as Disconnected
	cut      map[string]bool         // peers
}

// NewFaults wraps a provider, before anything was asked of it.
func NewFaults(p rdma.Provider, c FaultsConfig) *Faults {
	return &Faults{
		Provider: p, config: c,
		up: map[string]rdma.SessionID{}, inFlight: map[rdma.SessionID]int{}, unknown: map[rdma.Tag][]rdma.SessionID{},
		breaking: map[rdma.SessionID]bool{}, cut: map[string]bool{},
	}
}

// Cut breaks the session with a peer, and every Connect to it until Heal fails.
func (f *Faults) Cut(peer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[peer] = true
	if s, ok := f.up[peer]; ok {
		delete(f.up, peer)
		f.breaking[s] = true
		f.Provider.Fence(s)
	}
}

// Heal ends Cut.
func (f *Faults) Heal(peer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.cut, peer)
}

// Connect is the provider's, or ErrInjected while the peer is cut off.
func (f *Faults) Connect(c rdma.Connection) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut[c.Session.Peer] {
		return ErrInjected
	}
	return f.Provider.Connect(c)
}

// Post is the provider's, or ErrFull.
func (f *Faults) Post(s rdma.SessionID, ws []*rdma.Write) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.up[s.Peer] != s {
		return rdma.ErrNotConnected
	}
	if f.inFlight[s] > 0 && f.config.Full != nil && f.config.Full(s) {
		return rdma.ErrFull
	}
	err := f.Provider.Post(s, ws)
	if err == nil {
		f.inFlight[s] += len(ws)
	}
	return err
}

// Poll takes the provider's events and spoils them.
func (f *Faults) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	n, err := f.Provider.Poll(ctx, evs)
	if n > 0 && f.config.Delay != nil {
		if d := f.config.Delay(); d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done(): // the events are not lost
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, ev := range evs[:n] {
		evs[i] = f.spoil(ev)
	}
	return n, err
}

func (f *Faults) spoil(ev rdma.Event) rdma.Event {
	switch ev := ev.(type) {
	case rdma.Connected:
		f.up[ev.Session.Peer] = ev.Session
		if f.cut[ev.Session.Peer] {
			delete(f.up, ev.Session.Peer)
			f.breaking[ev.Session] = true
			f.Provider.Fence(ev.Session)
		}
	case rdma.Disconnected:
		f.forget(ev.Session)
	case rdma.Fenced:
		f.forget(ev.Session)
		if f.breaking[ev.Session] {
			delete(f.breaking, ev.Session)
			return rdma.Disconnected{Session: ev.Session, Err: ErrInjected}
		}
	case rdma.Completed:
		f.inFlight[ev.Session]--
		if ev.Outcome == rdma.Landed && f.config.Lose != nil && f.config.Lose(ev) {
			if !slices.Contains(f.unknown[ev.Tag], ev.Session) {
				f.unknown[ev.Tag] = append(f.unknown[ev.Tag], ev.Session)
			}
			ev.Outcome, ev.Err, ev.Arrivals = rdma.Unknown, ErrInjected, nil
			return ev
		}
	case rdma.Quiesced:
		for _, s := range f.unknown[ev.Tag] {
			if !slices.Contains(ev.Unknown, s) {
				ev.Unknown = append(ev.Unknown, s)
			}
		}
		return ev
	}
	return ev
}

func (f *Faults) forget(s rdma.SessionID) {
	if f.up[s.Peer] == s {
		delete(f.up, s.Peer)
	}
	delete(f.inFlight, s)
}
