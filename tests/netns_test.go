package tests

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// namespaces are two network namespaces with one link between them, as two containers
// of a host have. The test skips where they cannot be made.
func namespaces(t *testing.T) (names, addresses [2]string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	id := os.Getpid() % 10000
	for i := range names {
		names[i] = fmt.Sprintf("kvf%d-%d", id, i)
		addresses[i] = fmt.Sprintf("10.231.7.%d", i+1)
		run("netns", "add", names[i])
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", names[i]).Run() })
	}
	run("link", "add", fmt.Sprintf("kv%da", id), "netns", names[0], "type", "veth", "peer", "name", fmt.Sprintf("kv%db", id), "netns", names[1])
	for i, end := range []string{"a", "b"} {
		device := fmt.Sprintf("kv%d%s", id, end)
		run("-n", names[i], "addr", "add", addresses[i]+"/24", "dev", device)
		run("-n", names[i], "link", "set", device, "up")
		run("-n", names[i], "link", "set", "lo", "up")
	}
	return names, addresses
}

// logged is the log of a node, which is read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) lines(with ...string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		all := true
		for _, w := range with {
			all = all && strings.Contains(line, w)
		}
		if all {
			lines = append(lines, line)
		}
	}
	return lines
}

func (l *logged) all() string { return strings.Join(l.lines(), "") }

// start runs a node in a namespace, until the test ends.
func startIn(t *testing.T, namespace string, args ...string) *logged {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	log := &logged{}
	c := exec.Command("ip", append([]string{"netns", "exec", namespace, path, "run"}, args...)...)
	c.Stderr, c.Stdout = log, io.Discard
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt) // ip has become the node
		_ = c.Wait()
	})
	return log
}

func awaitLog(t *testing.T, l *logged, with ...string) {
	t.Helper()
	for stop := time.Now().Add(time.Minute); len(l.lines(with...)) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(stop) {
			t.Fatalf("no line with %q in a minute:\n%s", with, l.all())
		}
	}
}

// Two containers of one host cannot share memory: their nodes find that out by trying,
// say so once with the reason, and go on by tcp. In one namespace they do share it.
func TestNodesThatCannotShareMemoryUseTCP(t *testing.T) {
	names, addresses := namespaces(t)
	a := startIn(t, names[0], "--name", "a", "--bind", addresses[0]+":7946")
	b := startIn(t, names[1], "--name", "b", "--bind", addresses[1]+":7946", "--join", addresses[0]+":7946")
	awaitLog(t, a, "link up", `"tcp"`)
	awaitLog(t, b, "link up", `"tcp"`)
	why := append(a.lines("does not reach"), b.lines("does not reach")...)
	if len(why) == 0 {
		t.Errorf("nobody says why not shm:\n%s\n%s", a.all(), b.all())
	}
	for _, l := range []*logged{a, b} {
		if n := len(l.lines("does not reach", `"shm"`)); n > 1 {
			t.Errorf("it is said %d times", n)
		}
	}
	if !strings.Contains(strings.Join(why, ""), "another network namespace") {
		t.Errorf("the reason is not said: %s", why)
	}
	beside := startIn(t, names[0], "--name", "c", "--bind", addresses[0]+":7956", "--join", addresses[0]+":7946")
	awaitLog(t, beside, "link up", `"peer": "a#`, `"shm"`)
}

// A host that vanishes: its packets stop, and nobody is told. It is given up by its link;
// when it is reached again the same incarnation is.
func TestAHostThatVanishesIsGivenUpAndComesBack(t *testing.T) {
	names, addresses := namespaces(t)
	a := startIn(t, names[0], "--name", "a", "--bind", addresses[0]+":7946", "--providers", "tcp")
	startIn(t, names[1], "--name", "b", "--bind", addresses[1]+":7946", "--providers", "tcp", "--join", addresses[0]+":7946")
	awaitLog(t, a, "link up")
	set := func(state string) {
		t.Helper()
		device := fmt.Sprintf("kv%db", os.Getpid()%10000)
		if out, err := exec.Command("ip", "-n", names[1], "link", "set", device, state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	since := time.Now()
	set("down")
	awaitLog(t, a, "link lost")
	t.Logf("lost after %v", time.Since(since))
	set("up")
	for stop := time.Now().Add(time.Minute); len(a.lines("link up")) < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(stop) {
			t.Fatalf("the link does not come up again:\n%s", a.all())
		}
	}
}
