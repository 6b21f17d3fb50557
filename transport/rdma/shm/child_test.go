package shm

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// childEnv makes the test binary a child: a provider in a process of its own, which
// does what the test orders.
const childEnv = "KVFERRY_SHM_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(os.Stdin, os.Stdout); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// order is what a child is told to do.
type order struct {
	Op       string
	Bytes    uint64
	Seed     uint64
	Region   rdma.RegionID
	Grant    rdma.GrantID
	Endpoint []byte
	Number   uint64
	Dial     bool
	Write    rdma.Write
	Chunks   int
}

// answer is what it says.
type answer struct {
	Err         string
	Region      rdma.RegionID
	Endpoint    []byte
	Outcome     string
	Unreachable string
	Took        time.Duration
}

// child is named "c", its parent "p".
func child(in io.Reader, out io.Writer) error {
	p, err := Listen(Config{})
	if err != nil {
		return err
	}
	defer p.Close()
	n := &node{p: p}
	orders, answers := gob.NewDecoder(in), gob.NewEncoder(out)
	memory := map[rdma.RegionID]*rdma.Memory{}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return err
		}
		a := answer{Endpoint: p.Endpoint()}
		if err := obey(n, memory, &o, &a); err != nil {
			a.Err = err.Error()
			var unreachable *UnreachableError
			if errors.As(err, &unreachable) {
				a.Unreachable = unreachable.Reason
			}
		}
		if err := answers.Encode(&a); err != nil {
			return err
		}
	}
}

func obey(n *node, memory map[rdma.RegionID]*rdma.Memory, o *order, a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := rdma.SessionID{Peer: "p", Generation: generation(o.Number)}
	switch o.Op {
	case "endpoint":
	case "memory":
		m, err := rdma.NewMemory("child", o.Bytes)
		if err != nil {
			return err
		}
		randomize(m.Bytes(), o.Seed)
		d, err := n.p.Register(m)
		a.Region = d.Region
		memory[d.Region] = m
		return err
	case "grant":
		return n.p.Grant(rdma.Grant{ID: o.Grant, Peer: "p", Ranges: []rdma.Range{wholeOf(o.Region, memory[o.Region].Len())}})
	case "stop inside": // of the copy of so many chunks later
		left := o.Chunks
		n.p.pause = func() {
			if left--; left == 0 {
				// To this thread: another would stop it only some time later.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
			}
		}
	case "become nobody":
		return syscall.Setuid(65534)
	case "connect":
		start := time.Now()
		if err := n.p.Connect(rdma.Connection{Session: s, Self: "c", Dial: o.Dial, Endpoint: o.Endpoint}); err != nil {
			return err
		}
		ev, err := n.poll(ctx, func(ev rdma.Event) bool {
			switch ev := ev.(type) {
			case rdma.Connected:
				return ev.Session == s
			case rdma.Disconnected:
				return ev.Session == s
			}
			return false
		})
		a.Took = time.Since(start)
		if d, ok := ev.(rdma.Disconnected); ok {
			return d.Err
		}
		return err
	case "post":
		return n.p.Post(s, []*rdma.Write{&o.Write})
	case "fence":
		n.p.Fence(s)
		_, err := n.poll(ctx, func(ev rdma.Event) bool { f, ok := ev.(rdma.Fenced); return ok && f.Session == s })
		return err
	case "await":
		ev, err := n.poll(ctx, func(ev rdma.Event) bool { c, ok := ev.(rdma.Completed); return ok && c.ID == o.Write.ID })
		if err == nil {
			a.Outcome = ev.(rdma.Completed).Outcome.String()
		}
		return err
	default:
		return fmt.Errorf("no such order: %q", o.Op)
	}
	return nil
}

const patience = 20 * time.Second

// node is a provider and the events that it gave.
type node struct {
	p    *Provider
	seen []rdma.Event
}

// poll returns the first event, of those that came and those that come, that is such.
func (n *node) poll(ctx context.Context, is func(rdma.Event) bool) (rdma.Event, error) {
	for i := 0; ; i++ {
		for i == len(n.seen) {
			var evs [16]rdma.Event
			k, err := n.p.Poll(ctx, evs[:])
			n.seen = append(n.seen, evs[:k]...)
			if k == 0 {
				return nil, fmt.Errorf("%w; saw %+v", err, n.seen)
			}
		}
		if is(n.seen[i]) {
			return n.seen[i], nil
		}
	}
}

// await is poll for an event of one type.
func await[E rdma.Event](t testing.TB, n *node, is func(E) bool) E {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ev, err := n.poll(ctx, func(ev rdma.Event) bool { e, ok := ev.(E); return ok && is(e) })
	if err != nil {
		var e E
		t.Fatalf("waiting for %T: %v", e, err)
	}
	return ev.(E)
}

func generation(number uint64) rdma.Generation {
	return rdma.Generation{Number: number, Low: 7 * number, High: 11}
}

func randomize(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

// process of a child, as its parent sees it.
type family struct {
	t       *testing.T
	cmd     *exec.Cmd
	orders  *gob.Encoder
	answers *gob.Decoder
}

// bear starts a child.
func bear(t *testing.T, with func(*exec.Cmd)) *family {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &family{t: t, cmd: exec.Command(exe)}
	f.cmd.Env = append(os.Environ(), childEnv+"=1")
	f.cmd.Stderr = os.Stderr
	in, err := f.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if with != nil {
		with(f.cmd)
	}
	if err := f.cmd.Start(); err != nil {
		if with != nil && errors.Is(err, unix.EPERM) {
			t.Skipf("this user may not start such a child: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = f.cmd.Process.Signal(syscall.SIGCONT)
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
	})
	f.orders, f.answers = gob.NewEncoder(in), gob.NewDecoder(out)
	return f
}

// try gives an order and returns the answer.
func (f *family) try(o order) answer {
	f.t.Helper()
	if err := f.orders.Encode(&o); err != nil {
		f.t.Fatalf("%s: %v", o.Op, err)
	}
	var a answer
	if err := f.answers.Decode(&a); err != nil {
		f.t.Fatalf("%s: %v", o.Op, err)
	}
	return a
}

// do is try for what must succeed.
func (f *family) do(o order) answer {
	f.t.Helper()
	a := f.try(o)
	if a.Err != "" {
		f.t.Fatalf("%s: %s", o.Op, a.Err)
	}
	return a
}

func (f *family) signal(s syscall.Signal) {
	f.t.Helper()
	if err := f.cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// stopped waits until every thread of the child is.
func (f *family) stopped() {
	f.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", f.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			f.t.Fatal("the child is not there")
		}
		running := 0
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			var pid int
			var name, state string
			if _, e := fmt.Sscan(string(stat), &pid, &name, &state); err != nil || e != nil || state != "T" {
				running++
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%d of %d threads of the child did not stop", running, len(threads))
		}
	}
}
