package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
)

// asNode makes the test binary a node that is driven, with nobody else in its
// cluster.
const asNode = "KVFERRY_TEST_AS_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(asNode) == "" {
		os.Exit(m.Run())
	}
	os.Stderr.WriteString("the log of a node\n")
	n := &fakeNode{cluster: newFakeCluster(), name: "child", done: make(chan struct{})}
	if driveEngine(context.Background(), n, os.Stdin, os.Stdout, zap.NewNop()) != nil {
		os.Exit(1)
	}
}

// childOf starts the test binary as a node.
func childOf(t *testing.T) (*demoNode, chan heard, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asNode, "1")
	logs := t.TempDir()
	n, hear, done := &demoNode{name: "child"}, make(chan heard, 8), make(chan struct{})
	if err := n.launch(&processes{executable: self, logs: logs, cluster: "test"}, "", hear, done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.process.kill()
		close(done)
	})
	if h := listen(t, hear); h.event == nil || h.event.Event != eventReady || h.event.PID != n.pid {
		t.Fatalf("%+v", h)
	}
	return n, hear, logs
}

func listen(t *testing.T, hear chan heard) heard {
	t.Helper()
	select {
	case h := <-hear:
		return h
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was heard for 20 s")
		return heard{}
	}
}

func TestAProcessThatIsAskedToStopEndsInOrder(t *testing.T) {
	n, hear, logs := childOf(t)
	n.tell(&driveCommand{Op: opStop})
	if h := listen(t, hear); h.event == nil || h.event.Event != eventStopped {
		t.Fatalf("%+v", h)
	}
	if h := listen(t, hear); h.event != nil || h.err != nil {
		t.Fatalf("%+v", h)
	}
	n.close()
	if b, err := os.ReadFile(filepath.Join(logs, "child.log")); err != nil || string(b) != "the log of a node\n" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestAProcessEndsWithTheInputOfADemoThatIsGone(t *testing.T) {
	n, hear, _ := childOf(t)
	n.close()
	for {
		if h := listen(t, hear); h.event == nil {
			if h.err != nil {
				t.Fatal(h.err)
			}
			return
		}
	}
}

func TestAProcessThatIsKilledIsReapedWithTheReason(t *testing.T) {
	n, hear, _ := childOf(t)
	if err := syscall.Kill(n.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h := listen(t, hear)
	n.endError = h.err
	if h.event != nil || n.death() != "child died: signal: killed" {
		t.Fatalf("%+v: %s", h, n.death())
	}
	n.close()
	if err := syscall.Kill(n.pid, 0); err != syscall.ESRCH {
		t.Fatalf("process %d is still there: %v", n.pid, err)
	}
}

func TestAProcessThatDoesNotTakeCommandsIsKilled(t *testing.T) {
	n, hear, _ := childOf(t)
	if err := syscall.Kill(n.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 4 * commandQueue { // more than the queue and the pipe hold
		n.tell(&driveCommand{Op: opAbort, Room: 1, Reason: strings.Repeat("x", 100)})
	}
	if h := listen(t, hear); h.event != nil || h.err == nil {
		t.Fatalf("%+v", h)
	}
	n.close()
}

func TestTheEndKillsAProcessThatDoesNotEnd(t *testing.T) {
	n, hear, _ := childOf(t)
	if err := syscall.Kill(n.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p := &play{nodes: []*demoNode{n, {name: "not started"}}, hear: hear, done: make(chan struct{})}
	p.end()
	if err := syscall.Kill(n.pid, 0); err != syscall.ESRCH || !n.ended {
		t.Fatalf("process %d is still there: %v", n.pid, err)
	}
}

// TestTheDriverRefusesWhatMakesNoSense: a wrong command ends the node with the
// reason as its last word.
func TestTheDriverRefusesWhatMakesNoSense(t *testing.T) {
	for input, want := range map[string]string{
		`{"op": "send", "room": 1}`:          "send: no engine is attached",
		`{"op": "attach"}`:                   "attach: want one deployment, once",
		`{"op": "stop", "extra": 1}`:         `read a command: json: unknown field "extra"`,
		`{"op": "attach", "deployment": {}}`: "attach: ",
		`nonsense`:                           "read a command: invalid character",
	} {
		n := &fakeNode{cluster: newFakeCluster(), name: "n", done: make(chan struct{})}
		var out strings.Builder
		// The input stays open: it is the command that ends the driver.
		r, w := io.Pipe()
		go io.WriteString(w, input+"\n")
		err := driveEngine(t.Context(), n, r, &out, zap.NewNop())
		r.Close()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(out.String(), `"event":"failed"`) {
			t.Errorf("%s: got %v, want %q; told %s", input, err, want, out.String())
		}
	}
}
