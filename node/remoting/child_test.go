package remoting_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"kvferry/messages"
	"kvferry/node/remoting"
)

// Nodes under test are processes of their own: this binary again, which reads
// commands and prints what happens. (Two remotings in one process share globals.)
const childVariable = "KVFERRY_REMOTING_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := child(os.Args[1], os.Args[2]); err != nil {
		fmt.Println("error", err)
		os.Exit(3)
	}
}

// out prints one line.
var outMu sync.Mutex

func out(a ...any) {
	outMu.Lock()
	defer outMu.Unlock()
	fmt.Println(a...)
}

func child(bind, tlsDir string) error {
	ignore := []goleak.Option{goleak.IgnoreCurrent(), // and the system's, for its log, which ends by itself after a second
		goleak.IgnoreAnyFunction("github.com/asynkron/protoactor-go/actor.NewDeadLetter.NewThrottle.func4.1")}
	log := zap.NewNop()
	system := remoting.NewSystem(log)
	config := remoting.Config{Bind: bind}
	if tlsDir != "" {
		config.TLS = &remoting.TLS{CAFile: tlsDir + "/ca.pem", CertFile: tlsDir + "/cert.pem", KeyFile: tlsDir + "/key.pem"}
	}
	r, err := remoting.Start(system, config, log)
	if err != nil {
		return err
	}
	system.EventStream.Subscribe(func(e any) {
		if d, ok := e.(*actor.DeadLetterEvent); ok {
			out("dead", fmt.Sprintf("%T", d.Message))
		}
	})
	echo, err := system.Root.SpawnNamed(actor.PropsFromFunc(receive), "kvferry/peers/echo")
	if err != nil {
		return err
	}
	private, err := system.Root.SpawnNamed(actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*messages.Envelope); ok {
			out("private reached")
		}
	}), "kvferry/private")
	if err != nil {
		return err
	}
	out("ready", r.Address())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if w[0] == "close" {
			break
		}
		command(system, r, echo, w)
	}
	err = r.Close()
	system.Root.Send(actor.NewPID("127.0.0.1:1", "kvferry/peers/echo"), &messages.Envelope{})
	for _, p := range []*actor.PID{echo, private} {
		_ = system.Root.StopFuture(p).Wait()
	}
	out("closed", err, "leaks", strings.ReplaceAll(fmt.Sprint(goleak.Find(ignore...)), "\n", " | "))
	return nil
}

// receive is the echo actor: an envelope comes back, 1000 higher.
func receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *messages.Envelope:
		out("got", m.Number)
		if m.Number < 1000 && m.From.GetName() != "" {
			c.Send(actor.NewPID(m.From.GetName(), "kvferry/peers/echo"), &messages.Envelope{Number: m.Number + 1000})
		}
	case *wrapperspb.StringValue:
		out("foreign type reached")
	case *actor.PID:
		c.Watch(m)
		out("watching")
	case *actor.Terminated:
		out("terminated", m.Who.Address, m.Why)
	case *actor.Stopped:
		out("stopped")
	}
}

func command(system *actor.ActorSystem, r *remoting.Remote, echo *actor.PID, w []string) {
	var to *actor.PID
	if len(w) > 2 {
		to = actor.NewPID(w[1], w[2])
	}
	number := func(i int) uint64 { n, _ := strconv.ParseUint(w[i], 10, 64); return n }
	switch w[0] {
	case "send":
		system.Root.Send(to, &messages.Envelope{Number: number(3), From: &messages.NodeRef{Name: r.Address()}})
	case "burst": // count, size
		pad := &messages.Envelope_NotFit{NotFit: &messages.NotFit{Field: strings.Repeat("x", int(number(4)))}}
		for i := range number(3) {
			system.Root.Send(to, &messages.Envelope{Number: i + 1, Body: pad})
		}
	case "foreign":
		system.Root.Send(to, wrapperspb.String("x"))
	case "text":
		system.Root.Send(to, "not a protobuf")
	case "stop":
		system.Root.Stop(to)
	case "watch":
		system.Root.Send(echo, to)
	case "peerdown":
		r.PeerDown(w[1])
	case "dropped":
		out("dropped", r.Dropped())
	case "start-again":
		_, err := remoting.Start(system, remoting.Config{Bind: "127.0.0.1:0"}, zap.NewNop())
		out("start again", err)
		_, err = remoting.Start(remoting.NewSystem(zap.NewNop()), remoting.Config{Bind: r.Address()}, zap.NewNop())
		out("start there", err)
	}
}

// process is a child as the test sees it.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      *bufio.Writer
	lines   chan string
	address string
}

func start(t *testing.T, bind, tlsDir string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], bind, tlsDir)
	cmd.Env = append(os.Environ(), childVariable+"=1", "HTTPS_PROXY=http://127.0.0.1:9", "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, in: bufio.NewWriter(stdin), lines: make(chan string, 4096)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p.address = strings.TrimPrefix(p.expect("ready "), "ready ")
	return p
}

func (p *process) do(format string, a ...any) {
	p.t.Helper()
	fmt.Fprintf(p.in, format+"\n", a...)
	if err := p.in.Flush(); err != nil {
		p.t.Fatal(err)
	}
}

// expect waits for a line that starts so, and fails on any other of the words in
// never.
func (p *process) expect(prefix string, never ...string) string {
	p.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s ended, want %q", p.address, prefix)
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
			for _, n := range never {
				if strings.Contains(line, n) {
					p.t.Fatalf("got %q", line)
				}
			}
		case <-timeout:
			p.t.Fatalf("%s: got nothing in 20 s, want %q", p.address, prefix)
		}
	}
}

// until does the command with growing numbers until one of them is answered: what
// is sent while a connection ends may get lost.
func (p *process) until(format string, from int) {
	p.t.Helper()
	for i := from; i < from+50; i++ {
		p.do(format, i)
		retry := time.After(200 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case line := <-p.lines:
				if n, _ := strconv.Atoi(strings.TrimPrefix(line, "got ")); n >= 1000+from {
					return
				}
			case <-retry:
				waiting = false
			}
		}
	}
	p.t.Fatalf("%s: got no answer to %q", p.address, format)
}

// quit closes the remoting and waits for the process, which finds races and leaks.
func (p *process) quit() {
	p.t.Helper()
	p.do("close")
	if got := p.expect("closed"); got != "closed <nil> leaks <nil>" {
		p.t.Errorf("got %q", got)
	}
	for range p.lines {
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%s: %v", p.address, err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// freeAddress is a port that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
