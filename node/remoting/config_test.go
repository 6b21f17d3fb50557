package remoting

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestConfigNamesTheFieldThatCannotBe(t *testing.T) {
	system := NewSystem(zap.NewNop())
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "bind"},
		{Config{Bind: "127.0.0.1"}, "bind"},
		{Config{Bind: "127.0.0.1:70000"}, "port"},
		{Config{Bind: "0.0.0.0:0"}, "advertise"},
		{Config{Bind: "[::]:0"}, "advertise"},
		{Config{Bind: ":0"}, "advertise"},
		{Config{Bind: "127.0.0.1:0", Advertise: "0.0.0.0:1"}, "advertise"},
		{Config{Bind: "127.0.0.1:0", Advertise: "a:b"}, "advertise"},
		{Config{Bind: "127.0.0.1:0", PeerPrefix: "kvferry"}, "peer prefix"},
		{Config{Bind: "127.0.0.1:0", MessageMax: 10}, "message max"},
		{Config{Bind: "127.0.0.1:0", KeepaliveTime: time.Second}, "keepalive"},
		{Config{Bind: "127.0.0.1:0", TLS: &TLS{CertFile: "/nowhere"}}, "tls"},
		{Config{Bind: "192.0.2.1:1"}, "listen"},
	} {
		if _, err := Start(system, c.config, zap.NewNop()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want an error about %q", c.config, err, c.want)
		}
	}
}

func TestPlaceIsWhatPIDsCarry(t *testing.T) {
	for _, c := range []struct{ bind, advertise, host, address string }{
		{"127.0.0.1:8090", "", "127.0.0.1", "127.0.0.1:8090"},
		{"127.0.0.1:0", "", "127.0.0.1", "127.0.0.1:5"},
		{"0.0.0.0:0", "10.0.0.1", "0.0.0.0", "10.0.0.1:5"},
		{":0", "node-1", "", "node-1:5"},
		{"0.0.0.0:8090", "node-1:9", "0.0.0.0", "node-1:9"},
		{"[::]:0", "fd00::1", "[::]", "[fd00::1]:5"},
		{"[::1]:0", "", "[::1]", "[::1]:5"},
		{"[::]:8090", "[fd00::1]:9", "[::]", "[fd00::1]:9"},
	} {
		p, err := Config{Bind: c.bind, Advertise: c.advertise}.place()
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := p.address(5); p.bindHost() != c.host || p.port == 0 && got != c.address || p.port != 0 && p.address(p.port) != c.address {
			t.Errorf("%+v: got %s and %s", c, p.bindHost(), got)
		}
	}
}

// ignored is an envelope's process that counts.
type ignored struct{ user, system int }

func (p *ignored) SendUserMessage(*actor.PID, any)   { p.user++ }
func (p *ignored) SendSystemMessage(*actor.PID, any) { p.system++ }
func (p *ignored) Stop(*actor.PID)                   {}

func TestNothingPassesAClosedGateAndCloseWaitsForWhoIsInside(t *testing.T) {
	g := &gate{system: NewSystem(zap.NewNop()), door: newDoor(), max: 1000, log: zap.NewNop()}
	p := &ignored{}
	to := actor.NewPID("127.0.0.1:1", "kvferry/peers/x")
	process, _ := g.before(func(*actor.PID) (actor.Process, bool) { return p, true })(to)
	process.SendUserMessage(to, &actor.PID{})
	if !g.door.enter() {
		t.Fatal("got refused, want in")
	}
	done := make(chan struct{})
	go func() { g.door.shut(); g.door.wait(); close(done) }()
	for g.door.enter() { // until it is shut
		g.door.leave()
	}
	select {
	case <-done:
		t.Fatal("wait returned with one inside")
	default:
	}
	g.door.leave()
	<-done
	process.SendUserMessage(to, &actor.PID{})
	process.SendSystemMessage(to, &actor.Watch{Watcher: actor.NewPID("nonhost", "nobody")})
	process.Stop(to)
	if p.user != 1 || p.system != 0 {
		t.Errorf("got %+v, want one user message from before", p)
	}
}

func TestTheFrameworksLogIsWarnOnly(t *testing.T) {
	var b bytes.Buffer
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&b), zap.DebugLevel)
	log := slog.New(Handler(zap.New(core))).With("a", 1).WithGroup("g")
	log.Info("each connection")
	log.Error("lost", slog.Int("n", 2))
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"level":"warn"`) || strings.Contains(got, "stack") {
		t.Errorf("got %s", got)
	}
	if log.Enabled(context.Background(), slog.LevelInfo) {
		t.Error("info is enabled")
	}
}
