//go:build cgo && linux

package verbs

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// The node b of a test may be another process: this program, started again with
// KVFERRY_GUEST_PEER. It gives a all of its memory, and does what it is told by stdin,
// a line each, which it answers by stdout.
const (
	peerVariable = "KVFERRY_GUEST_PEER"
	peerBytes    = 2 * faultBytes
)

var peerGrant = rdma.GrantID{'p', 'e', 'e', 'r'}

func init() {
	if device := os.Getenv(peerVariable); device != "" {
		if err := bePeer(device); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func bePeer(device string) error {
	c := guestConfig("b", device)
	if err := loadFrom(libraryName); err != nil {
		return err
	}
	p, err := Listen(c)
	if err != nil {
		return err
	}
	m, err := rdma.NewMemory("peer", peerBytes)
	if err != nil {
		return err
	}
	d, err := p.Register(m)
	if err != nil {
		return err
	}
	whole := rdmatest.Whole(rdmatest.Region{Memory: m, Descriptor: d})
	if err := p.Grant(rdma.Grant{ID: peerGrant, Peer: "a", Ranges: []rdma.Range{whole}}); err != nil {
		return err
	}
	if err := p.Connect(rdma.Connection{Session: guestSession("a", 1), Self: "b"}); err != nil {
		return err
	}
	fmt.Printf("%x %d\n", p.Endpoint(), d.Region)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var at, n int
		if _, err := fmt.Sscanf(in.Text(), "sum %d %d", &at, &n); err != nil {
			return err
		}
		fmt.Printf("%x\n", sha256.Sum256(m.Bytes()[at:at+n]))
	}
	return p.Close()
}

// process is node b as another process.
type process struct {
	t        *testing.T
	run      *exec.Cmd
	in       io.WriteCloser
	lines    chan string
	endpoint []byte
	memory   rdmatest.Region // without bytes here
}

func startPeer(t *testing.T, device string) *process {
	t.Helper()
	x := &process{t: t, run: exec.Command("/proc/self/exe"), lines: make(chan string, 16)}
	x.run.Env = append(os.Environ(), peerVariable+"="+device)
	x.run.Stderr = os.Stderr
	out, err := x.run.StdoutPipe()
	if err == nil {
		x.in, err = x.run.StdinPipe()
	}
	if err == nil {
		err = x.run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			x.lines <- s.Text()
		}
		close(x.lines)
	}()
	t.Cleanup(func() { _ = x.run.Process.Kill() }) // nothing if it has ended
	var endpoint string
	if _, err := fmt.Sscanf(x.line(), "%s %d", &endpoint, &x.memory.Region); err != nil {
		t.Fatal(err)
	}
	if x.endpoint, err = hex.DecodeString(endpoint); err != nil {
		t.Fatal(err)
	}
	x.memory.Descriptor.Bytes = peerBytes
	return x
}

func (x *process) line() string {
	x.t.Helper()
	select {
	case l := <-x.lines:
		return l
	case <-time.After(guestBound):
		x.t.Fatalf("the peer has said nothing within %s", guestBound)
		return ""
	}
}

func (x *process) signal(s syscall.Signal) {
	x.t.Helper()
	if err := x.run.Process.Signal(s); err != nil {
		x.t.Fatal(err)
	}
}

// same checks that the peer has the bytes of writes that landed.
func (x *process) same(ws []*rdma.Write, from rdmatest.Region) {
	x.t.Helper()
	for _, w := range ws {
		c := &w.Copies[0]
		fmt.Fprintf(x.in, "sum %d %d\n", c.Target.Offset, c.Bytes)
		want := sha256.Sum256(from.Memory.Bytes()[c.Source.Offset:][:c.Bytes])
		if got := x.line(); got != hex.EncodeToString(want[:]) {
			x.t.Errorf("write %d has landed, and its bytes differ", w.ID)
		}
	}
}

// end lets the peer close its provider, and waits for it.
func (x *process) end() {
	x.t.Helper()
	_ = x.in.Close()
	if err := x.wait(); err != nil {
		x.t.Errorf("the peer: %v", err)
	}
}

func (x *process) wait() error {
	x.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- x.run.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(guestBound):
		return errors.New("it has not ended within " + guestBound.String())
	}
}
