//go:build cgo && linux

package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// end is one side of a connection in the guest.
type end struct {
	t       *testing.T
	choice  Choice
	adapter nic
	qp      *queuePair
	memory  []byte
	mr      registration
	start   uint64 // address of memory
	done    []completion
}

const (
	softBytes    = 1 << 20
	softSends    = 128
	softReceives = 8
)

// ends makes two devices with a queue pair and memory each, connected to one another.
func ends(t *testing.T) (a, b *end) {
	t.Helper()
	if os.Getenv("KVFERRY_SOFTROCE") == "" {
		t.Skip("this is not the guest of tests/softroce/run")
	}
	devices, err := Devices("/sys")
	if err != nil {
		t.Fatal(err)
	}
	chosen, _, err := Choose(devices, nil)
	if err != nil || len(chosen) != 2 {
		t.Fatalf("chose %v, error %v", chosen, err)
	}
	if err := loadFrom(libraryName); err != nil {
		t.Fatal(err)
	}
	make := func(c Choice, remote bool) *end {
		e := &end{t: t, choice: c}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		e.adapter, err = libibverbs{}.open(c.Device.Name, c.Port.Number)
		must(err)
		e.memory, err = unix.Mmap(-1, 0, softBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(err)
		e.start = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.memory))))
		e.mr, err = e.adapter.register(window{addr: e.start, bytes: softBytes, dmabuf: -1}, access{remote: remote, relaxed: true})
		must(err)
		q, err := e.adapter.queue(queueSize{Sends: softSends, Receives: softReceives, Pieces: 2, Chain: softSends})
		must(err)
		e.qp = q.(*queuePair)
		t.Cleanup(func() {
			must(e.qp.destroy())
			must(e.mr.deregister())
			must(e.adapter.close())
			must(unix.Munmap(e.memory))
		})
		return e
	}
	a, b = make(chosen[0], false), make(chosen[1], true)
	for _, x := range []struct{ self, peer *end }{{b, a}, {a, b}} {
		if err := x.self.qp.accept(x.self.link(x.peer)); err != nil {
			t.Fatal(err)
		}
		if n, err := x.self.qp.receive(softReceives); err != nil || n != softReceives {
			t.Fatalf("posted %d receives, error %v", n, err)
		}
	}
	for _, x := range []struct{ self, peer *end }{{b, a}, {a, b}} {
		if err := x.self.qp.send(x.self.link(x.peer)); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func (e *end) link(peer *end) *link {
	return &link{
		Port: e.choice.Port.Number, Local: e.choice.GID, Remote: peer.choice.GID.Addr, Ethernet: true, MTU: 4096,
		RemoteNumber: peer.qp.number(), LocalPSN: e.qp.number() * 7 & 0xffffff, RemotePSN: peer.qp.number() * 7 & 0xffffff,
		Timeout: 14, Retries: 3, RNRRetries: 3,
	}
}

func (e *end) lkey() uint32 { k, _ := e.mr.keys(); return k }
func (e *end) rkey() uint32 { _, k := e.mr.keys(); return k }

// wait polls until there are n completions in all.
func (e *end) wait(n int) []completion {
	e.t.Helper()
	for until := time.Now().Add(20 * time.Second); len(e.done) < n; {
		var err error
		if e.done, err = e.qp.poll(e.done); err != nil {
			e.t.Fatal(err)
		}
		if time.Now().After(until) {
			e.t.Fatalf("%s: %d completions within 20 s, want %d: %+v", e.choice.Name(), len(e.done), n, e.done)
		}
	}
	return e.done
}

// Rows of two pieces each, to places in no order: every byte arrives where it belongs,
// nothing else is written, and the arrival is told once, with its number.
func TestSoftRoCEMovesBytes(t *testing.T) {
	a, b := ends(t)
	for i := 0; i < len(a.memory); i += 8 {
		binary.LittleEndian.PutUint64(a.memory[i:], uint64(i)*0x9E3779B97F4A7C15)
	}
	want := make([]byte, softBytes)
	const pieceBytes = 1000
	var rows []row
	for i := range softSends {
		from, to := uint64((i*37%softSends)*4096), uint64((i*53%softSends)*8192+i)
		first, second := from, from+2048
		rows = append(rows, row{remote: b.start + to, rkey: b.rkey(), pieces: []piece{
			{a.start + first, pieceBytes, a.lkey()}, {a.start + second, pieceBytes, a.lkey()},
		}})
		copy(want[to:], a.memory[first:first+pieceBytes])
		copy(want[to+pieceBytes:], a.memory[second:second+pieceBytes])
	}
	imm := uint32(0xA1B2C3D4)
	if n, err := a.qp.write(rows, 42, &imm); err != nil || n != len(rows) {
		t.Fatalf("posted %d of %d rows, error %v", n, len(rows), err)
	}
	arrived := b.wait(1)
	if c := arrived[0]; c.Status != statusSuccess || !c.HasImm || c.Imm != imm || c.ID != receiveID {
		t.Errorf("arrived is %+v, want number %#x", c, imm)
	}
	if !bytes.Equal(b.memory, want) {
		t.Error("the memory of the receiver differs from what was written")
	}
	sent := a.wait(1)
	if c := sent[0]; len(sent) != 1 || c.Status != statusSuccess || c.ID != 43 || c.HasImm {
		t.Errorf("completed is %+v, want one of id 43", sent)
	}
}

// A key that is none costs the connection: the request names the peer, what comes after
// it is flushed on both sides, and nothing was written.
func TestSoftRoCEWrongKey(t *testing.T) {
	a, b := ends(t)
	bad := []row{{remote: b.start, rkey: b.rkey() + 1, pieces: []piece{{a.start, 64, a.lkey()}}}}
	a.memory[0] = 1
	if n, err := a.qp.write(bad, 1, nil); err != nil || n != 1 {
		t.Fatalf("posted %d, error %v", n, err)
	}
	if c := a.wait(1)[0]; c.ID != 2 || c.Status.Blame() != Peer || c.Status.String() != "remote access error" {
		t.Errorf("got %+v (%s), want a remote access error", c, c.Status)
	}
	good := []row{{remote: b.start, rkey: b.rkey(), pieces: []piece{{a.start, 64, a.lkey()}}}}
	if _, err := a.qp.write(good, 2, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range a.wait(2 + softReceives)[1:] {
		if c.Status != statusFlushed || c.Status.Blame() != Flushed {
			t.Errorf("got %+v (%s), want it flushed", c, c.Status)
		}
	}
	for _, c := range b.wait(softReceives) {
		if c.Status != statusFlushed {
			t.Errorf("got %+v (%s) at the peer, want it flushed", c, c.Status)
		}
	}
	if !bytes.Equal(b.memory, make([]byte, softBytes)) {
		t.Error("something was written")
	}
}

// A fence of the receiver needs nobody: once its queue pair is destroyed nothing lands.
func TestSoftRoCEDestroyedReceiver(t *testing.T) {
	a, b := ends(t)
	if err := b.qp.fail(); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.wait(softReceives) {
		if c.Status != statusFlushed {
			t.Errorf("got %+v, want it flushed", c)
		}
	}
	a.memory[0] = 1
	if _, err := a.qp.write([]row{{remote: b.start, rkey: b.rkey(), pieces: []piece{{a.start, 64, a.lkey()}}}}, 9, nil); err != nil {
		t.Fatal(err)
	}
	if c := a.wait(1)[0]; c.ID != 10 || c.Status.Blame() != Path && c.Status.Blame() != Peer {
		t.Errorf("got %+v (%s), want one of the path", c, c.Status)
	}
	if b.memory[0] != 0 {
		t.Error("a byte landed in a queue pair that had ended")
	}
}

// A user who may lock 64 KiB registers that much, and is told what is missing of more.
// The guest runs it as nobody, with that limit.
func TestSoftRoCEMemoryLimit(t *testing.T) {
	if os.Getenv("KVFERRY_SOFTROCE") != "nobody" {
		t.Skip("this is not the user nobody in the guest of tests/softroce/run")
	}
	if err := loadFrom(libraryName); err != nil {
		t.Fatal(err)
	}
	a, err := libibverbs{}.open("rxea", 1)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(-1, 0, softBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	at := func(n uint64) window {
		return window{addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))), bytes: n, dmabuf: -1}
	}
	small, err := a.register(at(4096), access{})
	if err != nil {
		t.Fatal(err)
	}
	if err := small.deregister(); err != nil {
		t.Error(err)
	}
	_, err = a.register(at(softBytes), access{})
	var failed *MemoryError
	if !errors.As(err, &failed) || failed.Device != "rxea" || failed.Bytes != softBytes || failed.Limit != 65536 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("got error %v, want one that names %d bytes and a limit of 65536", err, softBytes)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

func TestMemoryErrorSaysWhatHelps(t *testing.T) {
	if text := (&MemoryError{Device: "d", Bytes: 1 << 30, Limit: 65536, Err: syscall.ENOMEM}).Error(); text !=
		"verbs: register 1073741824 bytes with d: cannot allocate memory: registered memory is locked, and this process may lock 65536 bytes in all: "+
			"raise it (ulimit -l unlimited; LimitMEMLOCK=infinity of the systemd unit; CAP_IPC_LOCK of a container)" {
		t.Errorf("got %s", text)
	}
}

func TestSoftRoCEChainsAreBounded(t *testing.T) {
	a, b := ends(t)
	ok := piece{a.start, 1, a.lkey()}
	for name, rows := range map[string][]row{
		"no row":          nil,
		"too many rows":   make([]row, len(a.qp.sends)+1),
		"no piece":        {{remote: b.start, rkey: b.rkey()}},
		"too many pieces": {{remote: b.start, rkey: b.rkey(), pieces: make([]piece, a.qp.has.Pieces+1)}},
	} {
		if n, err := a.qp.write(rows, 1, nil); err == nil || n != 0 {
			t.Errorf("%s: posted %d, error %v", name, n, err)
		}
	}
	if n, err := a.qp.write([]row{{remote: b.start, rkey: b.rkey(), pieces: []piece{ok}}}, 3, nil); err != nil || n != 1 {
		t.Errorf("posted %d, error %v", n, err)
	}
	a.wait(1)
	for _, n := range []int{0, len(a.qp.receives) + 1} {
		if _, err := a.qp.receive(n); err == nil {
			t.Errorf("%d receives: got no error", n)
		}
	}
	if err := a.qp.send(&link{Retries: 7}); err == nil {
		t.Error("7 retries, which some drivers take for ever: got no error")
	}
	if err := a.qp.accept(&link{Port: 1, MTU: 1500}); err == nil {
		t.Error("an MTU of 1500: got no error")
	}
}
