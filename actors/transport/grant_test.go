package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/actors/transport"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// scripted is a provider of which the test makes the events.
type scripted struct {
	rdma.Provider
	name   string
	events chan rdma.Event
	closed chan struct{}
	gone   chan rdma.RegionID

	regions rdma.RegionID // the last, of the actor
	own     bool          // it registers memory of this process only
	posted  chan *rdma.Write
	full    bool          // Post says ErrFull; set before anything is posted
	quiesce chan rdma.Tag // that it was asked to quiesce
}

func newScripted(name string) *scripted {
	return &scripted{name: name, events: make(chan rdma.Event, 8), closed: make(chan struct{}), gone: make(chan rdma.RegionID, 8),
		posted: make(chan *rdma.Write, 8), quiesce: make(chan rdma.Tag, 8)}
}

func (s *scripted) Name() string                  { return s.name }
func (s *scripted) Connect(rdma.Connection) error { return nil }
func (s *scripted) Grant(rdma.Grant) error        { return nil }
func (s *scripted) Revoke(rdma.GrantID)           {}
func (s *scripted) Fence(rdma.SessionID)          {}
func (s *scripted) Close() error                  { close(s.closed); return nil }
func (s *scripted) Quiesce(tag rdma.Tag)          { s.quiesce <- tag }
func (s *scripted) Post(_ rdma.SessionID, ws []*rdma.Write) error {
	if s.full {
		return rdma.ErrFull
	}
	for _, w := range ws {
		s.posted <- w
	}
	return nil
}

func (s *scripted) Register(m *rdma.Memory) (rdma.Descriptor, error) {
	if s.own && m.Device() != nil {
		return rdma.Descriptor{}, rdma.ErrDeviceMemory
	}
	s.regions++
	return rdma.Descriptor{Region: s.regions, Bytes: m.Len()}, nil
}

func (s *scripted) Deregister(id rdma.RegionID) error {
	s.gone <- id
	return nil
}

func (s *scripted) Poll(ctx context.Context, evs []rdma.Event) (int, error) {
	select {
	case evs[0] = <-s.events:
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-s.closed:
		return 0, rdma.ErrClosed
	}
}

// grants is a transport actor with two providers, and a grant that is in force with both.
type grants struct {
	t        *testing.T
	system   *actor.ActorSystem
	pid      *actor.PID
	shm, tcp *scripted
	heard    chan any
	owner    *actor.PID
	writer   messages.Node
	id       rdma.GrantID
}

func newGrants(t *testing.T) *grants {
	g := &grants{
		t: t, shm: newScripted("shm"), tcp: newScripted("tcp"), heard: make(chan any, 32),
		writer: messages.Node{Name: "b", Incarnation: 2}, id: rdma.GrantID{7},
	}
	g.system = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	env := &actors.Env{System: g.system, Clock: actors.RealClock{}, Log: zap.NewNop()}
	props, err := transport.New(env, messages.Node{Name: "a", Incarnation: 1}, []rdma.Provider{g.shm, g.tcp})
	if err != nil {
		t.Fatal(err)
	}
	g.pid = g.system.Root.Spawn(props)
	g.owner = g.system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		switch m := c.Message().(type) {
		case *actors.GrantInstalled, *actors.GrantRevoked, *actors.SessionFenced, *actors.MemoryRegistered, *actors.SessionUp,
			*actors.WriteDone, *actors.WriteNotTaken, *actors.RoomQuiesced:
			g.heard <- m
		}
	}))
	t.Cleanup(func() { _ = g.system.Root.StopFuture(g.pid).Wait() })
	g.register()
	g.tell(&actors.InstallGrant{Owner: g.owner, Grant: g.id, Writer: g.writer})
	if m := hear[*actors.GrantInstalled](g); m.Err != nil {
		t.Fatal(m.Err)
	}
	return g
}

// register registers memory of an engine of the owner's name.
func (g *grants) register() rdma.RegionID {
	g.t.Helper()
	m, err := rdma.NewMemory("pool", 4096)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { m.Close() })
	g.tell(&actors.RegisterMemory{Owner: g.owner, Memory: []*rdma.Memory{m}})
	return rdma.RegionID(hear[*actors.MemoryRegistered](g).Regions[0].Keys[0].Region)
}

func (g *grants) tell(m any) { g.system.Root.Send(g.pid, m) }

func hear[M any](g *grants) M {
	g.t.Helper()
	select {
	case m := <-g.heard:
		if m, ok := m.(M); ok {
			return m
		}
		g.t.Fatalf("heard %T %+v", m, m)
	case <-time.After(10 * time.Second):
		g.t.Fatal("heard nothing")
	}
	panic("not reached")
}

// inFlight waits until all before it was taken.
func (g *grants) inFlight() actors.InFlight {
	done := make(chan actors.InFlight, 1)
	g.tell(&actors.InspectTransport{Reply: func(n actors.InFlight) { done <- n }})
	return <-done
}

// connect makes a session with a provider, and fence ends it there.
func (g *grants) connect(p *scripted, number uint64) {
	g.tell(&actors.ConnectSession{Node: g.writer, Provider: p.name, Generation: rdma.Generation{Number: number}, Reply: g.owner})
}

func (g *grants) fence(p *scripted, number uint64, open ...rdma.OpenGrant) []rdma.OpenGrant {
	g.t.Helper()
	gen := rdma.Generation{Number: number}
	g.tell(&actors.FenceSession{Node: g.writer, Generation: gen, Reply: g.owner})
	g.inFlight()
	p.events <- rdma.Fenced{Session: rdma.SessionID{Peer: g.writer.String(), Generation: gen}, Open: open}
	return hear[*actors.SessionFenced](g).Open
}

// What the fence of one provider left open is not closed by the fence of another, to
// which the session has moved, nor by a fence of a session that is not there.
func TestAGrantIsOpenUntilEveryProviderHasClosedIt(t *testing.T) {
	g := newGrants(t)
	held := rdma.OpenGrant{Grant: g.id, Reason: "stopped inside a copy"}
	open := func(what string, got []rdma.OpenGrant) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint([]rdma.OpenGrant{held}) {
			t.Errorf("%s: open are %v, want %v", what, got, held)
		}
	}
	g.connect(g.shm, 1)
	open("its own fence", g.fence(g.shm, 1, held))
	g.connect(g.tcp, 2)
	open("the fence of another provider", g.fence(g.tcp, 2))
	g.tell(&actors.FenceSession{Node: g.writer, Generation: rdma.Generation{Number: 1}, Reply: g.owner})
	open("a fence of what was fenced", hear[*actors.SessionFenced](g).Open)

	g.tell(&actors.RevokeGrant{Owner: g.owner, Grant: g.id})
	g.tcp.events <- rdma.Revoked{Grant: g.id, Closed: true}
	g.inFlight()
	g.shm.events <- rdma.Revoked{Grant: g.id}
	if hear[*actors.GrantRevoked](g).Closed {
		t.Error("the grant is closed while one provider has it open")
	}
	g.shm.events <- rdma.Revoked{Grant: g.id, Closed: true} // unasked: the process went on, or died
	if !hear[*actors.GrantRevoked](g).Closed {
		t.Error("the grant is open")
	}
	if n := g.inFlight(); n.Grants != 0 {
		t.Errorf("%d grants are left", n.Grants)
	}
}

// The memory of an engine that is gone stays registered as long as a grant of it is
// open, and goes then.
func TestTheMemoryOfADeadEngineGoesWithItsLastGrant(t *testing.T) {
	g := newGrants(t)
	ended := make(chan int, 1)
	g.tell(&actors.EndOwner{Owner: g.owner, Done: func(open int) { ended <- open }})
	g.inFlight()
	g.tcp.events <- rdma.Revoked{Grant: g.id, Closed: true}
	g.shm.events <- rdma.Revoked{Grant: g.id}
	if open := <-ended; open != 1 {
		t.Errorf("%d grants are open, want 1", open)
	}
	if g.inFlight(); len(g.shm.gone)+len(g.tcp.gone) != 0 {
		t.Error("the memory of an open grant was deregistered")
	}
	// The next engine of the same name is not taken for it.
	next := g.register()
	g.shm.events <- rdma.Revoked{Grant: g.id, Closed: true}
	for _, p := range []*scripted{g.shm, g.tcp} {
		if id := <-p.gone; id == next {
			t.Errorf("%s: the memory of the engine that came next was deregistered", p.name)
		}
	}
	if n := g.inFlight(); n.Grants != 0 || n.Engines != 1 {
		t.Errorf("left are %+v, want the next engine alone", n)
	}
	if len(g.shm.gone)+len(g.tcp.gone) != 0 {
		t.Error("more memory was deregistered than that of the engine")
	}
}

// A room cannot choose its provider, so memory that one of them does not reach is
// refused when it is registered, with what helps, and nothing of it stays registered.
func TestMemoryOfADeviceNeedsProvidersThatReachIt(t *testing.T) {
	g := newGrants(t)
	backing, err := rdma.NewMemory("gpu", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	gpu, err := rdma.NewDeviceMemory("gpu", rdma.DMABuf{File: backing.File(), Addr: 1 << 40, Bytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	g.tcp.own = true // the second that is asked
	g.tell(&actors.RegisterMemory{Owner: g.owner, Memory: []*rdma.Memory{gpu}})
	err = hear[*actors.MemoryRegistered](g).Err
	if !errors.Is(err, rdma.ErrDeviceMemory) || !strings.Contains(err.Error(), `"gpu", 4096 bytes) with tcp`) || !strings.Contains(err.Error(), "verbs alone") {
		t.Errorf("got %v", err)
	}
	select {
	case <-g.shm.gone:
	case <-time.After(10 * time.Second):
		t.Error("it is still registered with the first provider")
	}
}

// A fence that closes what a revoke had left open is told to who had revoked it: the node
// may be gone by the time that its room wants to know.
func TestWhatAFenceClosesIsTold(t *testing.T) {
	g := newGrants(t)
	g.connect(g.shm, 1)
	g.tell(&actors.RevokeGrant{Owner: g.owner, Grant: g.id})
	g.inFlight()
	g.shm.events <- rdma.Revoked{Grant: g.id}
	g.tcp.events <- rdma.Revoked{Grant: g.id, Closed: true}
	if hear[*actors.GrantRevoked](g).Closed {
		t.Fatal("the grant is closed while a provider has it open")
	}
	gen := rdma.Generation{Number: 1}
	g.tell(&actors.FenceSession{Node: g.writer, Generation: gen, Reply: g.owner})
	g.inFlight()
	g.shm.events <- rdma.Fenced{Session: rdma.SessionID{Peer: g.writer.String(), Generation: gen}}
	if m := hear[*actors.GrantRevoked](g); !m.Closed || m.Grant != g.id {
		t.Errorf("heard %+v, want that the grant is closed", m)
	}
	if open := hear[*actors.SessionFenced](g).Open; len(open) != 0 {
		t.Errorf("open are %v", open)
	}
	if n := g.inFlight(); n.Grants != 0 {
		t.Errorf("%d grants are left", n.Grants)
	}
}
