package transport_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/actors/transport"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// recorder is a provider that only remembers what it was asked to connect.
type recorder struct {
	rdma.Provider
	connected chan rdma.Generation
	closed    chan struct{}
}

func (r *recorder) Name() string { return "recorder" }

func (r *recorder) Connect(c rdma.Connection) error {
	r.connected <- c.Session.Generation
	return nil
}

func (r *recorder) Poll(ctx context.Context, _ []rdma.Event) (int, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-r.closed:
		return 0, rdma.ErrClosed
	}
}

func (r *recorder) Close() error {
	close(r.closed)
	return nil
}

// A generation never takes the place of one that was not fenced: what that one has
// in flight would be nobody's.
func TestConnectOverASessionThatIsNotFencedIsRefused(t *testing.T) {
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	env := &actors.Env{System: system, Clock: actors.RealClock{}, Log: zap.NewNop()}
	p := &recorder{connected: make(chan rdma.Generation, 8), closed: make(chan struct{})}
	props, err := transport.New(env, messages.Node{Name: "a", Incarnation: 1}, []rdma.Provider{p})
	if err != nil {
		t.Fatal(err)
	}
	pid := system.Root.Spawn(props)
	answers := make(chan *actors.SessionDown, 8)
	peer := system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if m, ok := c.Message().(*actors.SessionDown); ok {
			answers <- m
		}
	}))
	connect := func(number uint64) {
		system.Root.Send(pid, &actors.ConnectSession{
			Node: messages.Node{Name: "b", Incarnation: 2}, Provider: "recorder", Generation: rdma.Generation{Number: number}, Reply: peer,
		})
	}
	connect(1)
	connect(2)
	select {
	case m := <-answers:
		if m.Generation.Number != 2 || !errors.Is(m.Err, rdma.ErrFenceFirst) {
			t.Errorf("got generation %s down with %v, want 2 with ErrFenceFirst", m.Generation, m.Err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody said that generation 1 is there")
	}
	if err := system.Root.StopFuture(pid).Wait(); err != nil {
		t.Fatal(err)
	}
	if g := <-p.connected; g.Number != 1 || len(p.connected) > 0 {
		t.Errorf("the provider was asked for %s and %d more, want 1 alone", g, len(p.connected))
	}
}
