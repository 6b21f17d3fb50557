package remoting_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kvferry/messages"
)

const echo = "kvferry/peers/echo"

func TestEnvelopesCrossBothWays(t *testing.T) {
	a, b := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
	a.do("send %s %s 1", b.address, echo)
	b.expect("got 1")
	a.expect("got 1001")
	b.quit()
	a.quit()
}

func TestAPeerReachesOnlyPeerActorsWithOurTypes(t *testing.T) {
	a, b := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
	a.do("send %s kvferry/private 1", b.address)
	a.do("send %s activator 1", b.address)
	a.do("send %s eventstream 1", b.address)
	a.do("foreign %s %s", b.address, echo)
	a.do("stop %s %s", b.address, echo)
	a.expect("dead *actor.Stop")
	a.do("send %s %s 2", b.address, echo)
	b.expect("got 2", "reached", "stopped")
	b.do("dropped")
	b.expect("dropped 4")
	b.quit()
	a.quit()
}

// attacker speaks the framework's protocol without our side of it.
type attacker struct {
	t       *testing.T
	conn    *grpc.ClientConn
	address string
}

func newAttacker(t *testing.T, address string) *attacker {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &attacker{t, conn, address}
}

// send opens a stream, says who it is if connect, and sends a batch.
func (a *attacker) send(connect bool, batch *remote.MessageBatch) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	a.t.Cleanup(cancel)
	stream, err := remote.NewRemotingClient(a.conn).Receive(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	if connect {
		hello := &remote.ConnectRequest{ConnectionType: &remote.ConnectRequest_ServerConnection{
			ServerConnection: &remote.ServerConnection{SystemId: "attacker", Address: "192.0.2.1:1"}}}
		_ = stream.Send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{ConnectRequest: hello}})
	}
	_ = stream.Send(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_MessageBatch{MessageBatch: batch}})
	_ = stream.CloseSend()
	for err == nil {
		_, err = stream.Recv() // the other side has read it all
	}
}

func (a *attacker) batch(typeName string, m proto.Message, mods ...func(*remote.MessageEnvelope, *remote.MessageBatch)) *remote.MessageBatch {
	a.t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	e := &remote.MessageEnvelope{MessageData: data}
	b := &remote.MessageBatch{TypeNames: []string{typeName}, Targets: []*actor.PID{actor.NewPID(a.address, echo)}, Envelopes: []*remote.MessageEnvelope{e}}
	for _, mod := range mods {
		mod(e, b)
	}
	return b
}

func TestAnAttackerNeitherStopsActorsNorTheProcess(t *testing.T) {
	b := start(t, "127.0.0.1:0", "")
	a := newAttacker(t, b.address)
	type (
		e = *remote.MessageEnvelope
		m = *remote.MessageBatch
	)
	const ours = "kvferry.v1.Envelope"
	bad := &messages.Envelope{Number: 666}
	elsewhere := actor.NewPID("192.0.2.9:1", "x")
	for _, c := range []struct {
		what  string
		batch m
	}{
		{"unknown type of our package", a.batch("kvferry.v1.NoSuchThing", bad)},
		{"unknown type", a.batch("no.such.Type", bad)},
		{"no type", a.batch("", bad)},
		{"type index", a.batch(ours, bad, func(e e, _ m) { e.TypeId = 9 })},
		{"negative type index", a.batch(ours, bad, func(e e, _ m) { e.TypeId = -1 })},
		{"target index", a.batch(ours, bad, func(e e, _ m) { e.Target = 9 })},
		{"sender index", a.batch(ours, bad, func(e e, _ m) { e.Sender = 9 })},
		{"sender elsewhere", a.batch(ours, bad, func(e e, b m) { e.Sender = 1; b.Senders = []*actor.PID{elsewhere} })},
		{"serializer", a.batch(ours, bad, func(e e, _ m) { e.SerializerId = 1 })},
		{"private target", a.batch(ours, bad, func(_ e, b m) { b.Targets[0].Id = "kvferry/private" })},
		{"stop", a.batch("actor.Stop", &actor.Stop{})},
		{"poison", a.batch("actor.PoisonPill", &actor.PoisonPill{})},
		{"terminated of nobody", a.batch("actor.Terminated", &actor.Terminated{})},
		{"terminated of elsewhere", a.batch("actor.Terminated", &actor.Terminated{Who: elsewhere})},
		{"watch from elsewhere", a.batch("actor.Watch", &actor.Watch{Watcher: elsewhere})},
		{"watch that is garbage", a.batch("actor.Watch", bad)},
		{"too large", a.batch(ours, &messages.Envelope{Number: 666, Body: &messages.Envelope_NotFit{
			NotFit: &messages.NotFit{Field: strings.Repeat("x", 300<<10)}}})},
	} {
		t.Log(c.what)
		a.send(true, c.batch)
	}
	a.send(false, a.batch(ours, bad))
	// What is of the right type and broken inside ends its stream, no more.
	broken := a.batch(ours, bad, func(e e, _ m) { e.MessageData = []byte{0xff} })
	a.send(true, broken)
	if _, err := remote.NewRemotingClient(a.conn).ListProcesses(context.Background(), &remote.ListProcessesRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("list processes: got %v, want unimplemented", err)
	}
	a.send(true, a.batch(ours, &messages.Envelope{Number: 7}))
	b.expect("got 7", "got 666", "reached", "stopped")
	b.do("dropped")
	b.expect("dropped 18")
	b.quit()
}

func TestOversizeAndWhatIsNoProtobufAreDeadLettersAndMaximalBurstsArrive(t *testing.T) {
	a, b := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
	a.do("burst %s %s 1 %d", b.address, echo, 256<<10)
	a.expect("dead *messages.Envelope")
	a.do("text %s %s", b.address, echo)
	a.expect("dead string")
	a.do("burst %s %s 300 %d", b.address, echo, 256<<10-100)
	for i := range 300 {
		b.expect(fmt.Sprintf("got %d", i+1))
	}
	b.quit()
	a.quit()
}

func TestAKilledPeerIsNoticedAndOneInItsPlaceIsReached(t *testing.T) {
	address := freeAddress(t)
	a, b := start(t, "127.0.0.1:0", ""), start(t, address, "")
	a.do("watch %s %s", address, echo)
	a.expect("watching")
	a.do("send %s %s 1", address, echo)
	a.expect("got 1001")
	began := time.Now()
	b.signal(syscall.SIGKILL)
	a.expect("terminated " + address)
	t.Logf("noticed after %v", time.Since(began))
	again := start(t, address, "")
	a.until("send "+address+" "+echo+" %d", 2)
	a.do("watch %s %s", address, echo)
	a.expect("watching")
	a.do("send %s %s 500", address, echo)
	a.expect("got 1500")
	again.quit()
	a.expect("terminated " + address)
	a.quit()
}

func TestPeerDownEndsWatchesOfAPeerThatHangs(t *testing.T) {
	a, b := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
	a.do("watch %s %s", b.address, echo)
	a.do("send %s %s 1", b.address, echo)
	a.expect("got 1001")
	b.signal(syscall.SIGSTOP)
	a.do("peerdown %s", b.address)
	a.expect("terminated " + b.address)
	b.signal(syscall.SIGCONT)
	a.until("send "+b.address+" "+echo+" %d", 2)
	b.quit()
	a.quit()
}

func TestCloseWhileAPeerHangsOrIsDialledEnds(t *testing.T) {
	a, b, c := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
	a.do("send %s %s 1", b.address, echo)
	a.expect("got 1001")
	b.signal(syscall.SIGSTOP)
	c.signal(syscall.SIGSTOP)
	a.do("send %s %s 2", b.address, echo)
	a.do("send %s %s 3", c.address, echo) // connects, and gets no answer
	a.do("send 127.0.0.1:9 %s 4", echo)   // refused
	began := time.Now()
	a.quit()
	t.Logf("closed after %v", time.Since(began))
}

func TestStartRefusesWhatCannotWork(t *testing.T) {
	a := start(t, "127.0.0.1:0", "")
	a.do("start-again")
	if got := a.expect("start again"); !strings.Contains(got, "has remoting already") {
		t.Errorf("got %q", got)
	}
	if got := a.expect("start there"); !strings.Contains(got, "address already in use") {
		t.Errorf("got %q", got)
	}
}

func TestIPv6(t *testing.T) {
	a, b := start(t, "[::1]:0", ""), start(t, "[::1]:0", "")
	a.do("send %s %s 1", b.address, echo)
	a.expect("got 1001")
	b.quit()
	a.quit()
}

func TestCloseWhileConnectionsAreOpeningEnds(t *testing.T) {
	for range 3 {
		a, b := start(t, "127.0.0.1:0", ""), start(t, "127.0.0.1:0", "")
		a.do("watch %s %s", b.address, echo)
		for i := range 20 {
			a.do("send %s %s %d", b.address, echo, i+1)
		}
		b.expect("got") // b opens its connection to a now
		b.quit()
		a.do("peerdown %s", b.address)
		a.quit()
	}
}
