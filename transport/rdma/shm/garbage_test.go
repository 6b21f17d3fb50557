package shm

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

func openFiles(t testing.TB) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}

// settlesAt waits until so many files are open as before.
func settlesAt(t *testing.T, files int) {
	t.Helper()
	for end := time.Now().Add(patience); openFiles(t) > files; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d files are open, %d were before", openFiles(t), files)
		}
	}
}

// dialled is a hand-made peer.
func dialled(t *testing.T, p *Provider) socket {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.endpoint.socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSocket(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

// ends reads until the other side closes.
func ends(t *testing.T, s socket) {
	t.Helper()
	var b [messageBytes]byte
	for {
		_, fds, err := s.await(b[:])
		closeAll(fds)
		if err != nil {
			if os.IsTimeout(err) {
				t.Error("the connection is open")
			}
			return
		}
	}
}

// memfd makes a file to hand over.
func memfd(t *testing.T, bytes int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("garbage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, bytes); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestAHelloThatIsNoneIsClosed(t *testing.T) {
	p := listen(t, Config{HandshakeTimeout: 10 * time.Second})
	before := openFiles(t)
	rng := rand.New(rand.NewPCG(3, 4))
	good := (&hello{from: "x", to: "p", generation: generation(1)}).encode()
	for i := range 200 {
		s := dialled(t, p)
		var fds []int
		var b []byte
		switch i % 4 {
		case 0: // noise
			b = make([]byte, 1+rng.IntN(3*messageBytes))
			for k := range b {
				b[k] = byte(rng.Uint32())
			}
		case 1: // a hello with a byte spoilt, or cut: but not within its generation
			b = bytes.Clone(good)
			if i%8 == 1 {
				b = b[:1+rng.IntN(len(b)-1)]
			} else {
				b[[]int{0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 34, 35}[rng.IntN(12)]] ^= 1 << rng.IntN(8)
			}
		case 2: // a hello with descriptors
			b, fds = good, []int{0, 1, 2}[:1+rng.IntN(3)]
		case 3: // as many descriptors as there can be
			b = good
			for range 253 {
				fds = append(fds, 0)
			}
		}
		if err := s.send(b, fds...); err != nil {
			t.Fatal(err)
		}
		ends(t, s)
		s.conn.Close()
	}
	settlesAt(t, before)
}

func TestWhatIsHandedOverIsCheckedAndNeverLeaks(t *testing.T) {
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	table, board := memfd(t, tableBytes, sealed), memfd(t, boardBytes, sealed)
	pool := memfd(t, 4096, sealed)
	short, loose := memfd(t, 4096, sealed), memfd(t, tableBytes, 0)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{table, board, pool, short, loose, pipe[0], pipe[1]})
	many := make([]int, 200)
	for i := range many {
		many[i] = pool
	}
	type message struct {
		b   []byte
		fds []int
	}
	attach := message{newMessage(kindAttach), []int{table, board}}
	regions := func(rs ...handed) []byte { return encodeRegions(rs) }
	p := listen(t, Config{})
	n := &node{p: p}
	before := openFiles(t)
	number := uint64(0)
	for what, messages := range map[string][]message{
		"nothing":                     nil,
		"noise":                       {{[]byte("noise"), nil}},
		"noise with descriptors":      {{[]byte("noise"), many}},
		"a second hello":              {{(&hello{from: "x"}).encode(), nil}},
		"a welcome":                   {{newMessage(kindWelcome), []int{table, board}}},
		"no descriptors":              {{newMessage(kindAttach), nil}},
		"one":                         {{newMessage(kindAttach), []int{table}}},
		"three":                       {{newMessage(kindAttach), []int{table, board, pool}}},
		"a long attach":               {{append(newMessage(kindAttach), 1), []int{table, board}}},
		"the wrong way round":         {{newMessage(kindAttach), []int{board, table}}},
		"a short table":               {{newMessage(kindAttach), []int{short, board}}},
		"a short board":               {{newMessage(kindAttach), []int{table, short}}},
		"a table that can shrink":     {{newMessage(kindAttach), []int{loose, board}}},
		"a pipe":                      {{newMessage(kindAttach), []int{table, pipe[0]}}},
		"a socket":                    {{newMessage(kindAttach), []int{int(os.Stdin.Fd()), board}}},
		"regions without descriptors": {{regions(handed{1, 4096}), nil}, attach},
		"no regions":                  {{newMessage(kindRegions), nil}, attach},
		"half a region":               {{append(newMessage(kindRegions), 1, 2, 3), []int{pool}}, attach},
		"region 0":                    {{regions(handed{0, 4096}), []int{pool}}, attach},
		"a region of nothing":         {{regions(handed{1, 0}), []int{pool}}, attach},
		"a region that is too short":  {{regions(handed{1, 8192}), []int{pool}}, attach},
		"a huge region":               {{regions(handed{1, 1 << 60}), []int{pool}}, attach},
		"a region that can shrink":    {{regions(handed{1, 4096}), []int{loose}}, attach},
		"a region twice":              {attach, {regions(handed{1, 4096}, handed{1, 4096}), []int{pool, pool}}},
		"many regions, then noise":    {{regions(handed{1, 4096}, handed{2, 4096}), []int{pool, pool}}, attach, {[]byte("noise"), many}},
		"an unknown region is gone":   {attach, {encodeGone(7), nil}},
		"a region is gone twice":      {{regions(handed{1, 4096}), []int{pool}}, attach, {encodeGone(1), nil}, {encodeGone(1), nil}},
		"gone with a descriptor":      {{regions(handed{1, 4096}), []int{pool}}, attach, {encodeGone(1), []int{pool}}},
		"an attach too many":          {attach, attach},
		"an unknown kind":             {attach, {newMessage(77), []int{pool}}},
	} {
		number++
		id := rdma.SessionID{Peer: "x", Generation: generation(number)}
		if err := p.Connect(rdma.Connection{Session: id, Self: "p"}); err != nil {
			t.Fatal(err)
		}
		s := dialled(t, p)
		if err := s.send((&hello{from: "x", to: "p", generation: id.Generation}).encode()); err != nil {
			t.Fatal(err)
		}
		var b [messageBytes]byte
		k, fds, err := s.await(b[:]) // welcome
		if err != nil || k != headBytes || len(fds) != 2 {
			t.Fatalf("%s: welcome: %d bytes, %v, %v", what, k, fds, err)
		}
		closeAll(fds)
		for _, m := range messages {
			if err := s.send(m.b, m.fds...); err != nil {
				break // it was closed at the message before
			}
		}
		if messages != nil {
			ends(t, s)
		}
		s.conn.Close()
		if ev := await(t, n, func(ev rdma.Disconnected) bool { return ev.Session == id }); ev.Err == nil {
			t.Errorf("%s: no reason", what)
		}
		p.Fence(id)
		await(t, n, func(ev rdma.Fenced) bool { return ev.Session == id })
	}
	settlesAt(t, before)
}

// A listener that is none of ours: the dialer gives up with what it says.
func TestAWelcomeThatIsNoneIsDisconnected(t *testing.T) {
	p := listen(t, Config{})
	n := &node{p: p}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.endpoint.socket + "x", Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := p.endpoint
	other.socket += "x"
	before := openFiles(t)
	for i, welcome := range []func(socket){
		func(socket) {},
		func(s socket) { _ = s.send([]byte("noise"), 0, 0, 0) },
		func(s socket) { _ = s.send(newMessage(kindWelcome), 0, 0) },
		func(s socket) { _ = s.send(newMessage(kindAttach), 0, 0) },
	} {
		id := rdma.SessionID{Peer: "x", Generation: generation(uint64(i) + 1)}
		if err := p.Connect(rdma.Connection{Session: id, Self: "p", Dial: true, Endpoint: other.encode()}); err != nil {
			t.Fatal(err)
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSocket(c)
		if err != nil {
			t.Fatal(err)
		}
		welcome(s)
		c.Close()
		await(t, n, func(ev rdma.Disconnected) bool { return ev.Session == id && ev.Err != nil })
		p.Fence(id)
		await(t, n, func(ev rdma.Fenced) bool { return ev.Session == id })
	}
	settlesAt(t, before)
}

// scribbled is a session of a provider with a peer whose table and board are the
// test's to scribble on.
func scribbled(t *testing.T, p *Provider) (table, board *mapping, id rdma.SessionID) {
	t.Helper()
	n := &node{p: p}
	id = rdma.SessionID{Peer: "x", Generation: generation(1)}
	if err := p.Connect(rdma.Connection{Session: id, Self: "p"}); err != nil {
		t.Fatal(err)
	}
	s := dialled(t, p)
	if err := s.send((&hello{from: "x", to: "p", generation: id.Generation}).encode()); err != nil {
		t.Fatal(err)
	}
	var b [messageBytes]byte
	_, fds, err := s.await(b[:])
	if err != nil {
		t.Fatal(err)
	}
	closeAll(fds)
	table, tableFile, err := newShared("table", tableBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	board, boardFile, err := newShared("board", boardBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.send(newMessage(kindAttach), int(tableFile.Fd()), int(boardFile.Fd())); err != nil {
		t.Fatal(err)
	}
	tableFile.Close()
	boardFile.Close()
	await(t, n, func(ev rdma.Connected) bool { return ev.Session == id })
	t.Cleanup(func() {
		s.conn.Close()
		table.release()
		board.release()
	})
	return table, board, id
}

// A table that lies costs its owner a refused write, and this side nothing.
func TestATableThatLiesIsRefused(t *testing.T) {
	p := listen(t, Config{})
	m, err := rdma.NewMemory("source", 4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		m.Close()
	})
	d, err := p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	table, board, id := scribbled(t, p)
	grant := rdma.GrantID{1, 2, 3}
	low, high, home := halves(grant)
	at := entryAt(home)
	set := func(offset, length uint64) {
		table.at(at + entryWord).Store(0)
		table.at(at + entryLow).Store(low)
		table.at(at + entryHigh).Store(high)
		table.at(at + entryOffset).Store(offset)
		table.at(at + entryLength).Store(length)
		table.at(at + entryWord).Store(uint64(newWord(home, 1)))
	}
	g := rdma.Grant{ID: grant, Ranges: []rdma.Range{wholeOf(77, 1<<30)}}
	l := listsOf(&g)
	l.describe(table.bytes[tableArena:], &g)
	for what, lie := range map[string]func(){
		"no such region":           func() { set(tableArena, l.bytes) },
		"before the arena":         func() { set(0, l.bytes) },
		"behind the arena":         func() { set(tableBytes-1, l.bytes) },
		"beyond 64 bits":           func() { set(^uint64(0), l.bytes) },
		"too long":                 func() { set(tableArena, descriptionMax+1) },
		"nothing":                  func() { set(tableArena, 0) },
		"cut":                      func() { set(tableArena, l.bytes-1) },
		"a reach beyond the table": func() { set(0, 0); table.at(tableReach).Store(^uint64(0)) },
		"another entry's word":     func() { set(tableArena, l.bytes); table.at(at + entryWord).Store(uint64(newWord(home+1, 1))) },
	} {
		lie()
		w := &rdma.Write{ID: 1, Tag: 1, Grant: grant, Copies: []rdma.Copy{{
			Source: rdma.Place{Region: d.Region}, Target: rdma.Place{Region: 77}, Bytes: 64, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
		}}}
		if err := p.Post(id, []*rdma.Write{w}); err != nil {
			t.Fatal(err)
		}
		if c := await(t, &node{p: p}, func(rdma.Completed) bool { return true }); c.Outcome != rdma.Refused {
			t.Errorf("%s: got %s (%v), want refused", what, c.Outcome, c.Err)
		}
	}
	if board.at(boardSlot).Load() != 0 {
		t.Error("the slot was not cleared")
	}
	// A table whose owner says that the session is over refuses nothing.
	table.at(tableOver).Store(1)
	w := &rdma.Write{ID: 1, Tag: 1, Grant: rdma.GrantID{9}, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: d.Region}, Target: rdma.Place{Region: 77}, Bytes: 64, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
	}}}
	if err := p.Post(id, []*rdma.Write{w}); err != nil {
		t.Fatal(err)
	}
	if c := await(t, &node{p: p}, func(rdma.Completed) bool { return true }); c.Outcome != rdma.NotPosted {
		t.Errorf("the session is over: got %s (%v), want not posted", c.Outcome, c.Err)
	}
}

// A board full of noise makes events of noise, and no more than a few.
func TestABoardThatLiesIsSurvived(t *testing.T) {
	p := listen(t, Config{CopyTimeout: 5 * time.Millisecond})
	n := &node{p: p}
	m, err := rdma.NewMemory("target", 4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		m.Close()
	})
	d, err := p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	id := rdma.GrantID{1}
	if err := p.Grant(rdma.Grant{ID: id, Peer: "x", Ranges: []rdma.Range{wholeOf(d.Region, 4096)}}); err != nil {
		t.Fatal(err)
	}
	if err := p.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "x", Generation: generation(1)}, Self: "p"}); err != nil {
		t.Fatal(err)
	}
	s := dialled(t, p)
	defer s.conn.Close()
	if err := s.send((&hello{from: "x", to: "p", generation: generation(1)}).encode()); err != nil {
		t.Fatal(err)
	}
	var b [messageBytes]byte
	var fds []int
	for len(fds) != 2 { // the region comes first
		closeAll(fds)
		if _, fds, err = s.await(b[:]); err != nil {
			t.Fatal(err)
		}
	}
	// What the peer may not do: write to the table.
	if _, err := mapShared(fds[0], tableBytes, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("the table of grants is mapped writable by a peer")
	}
	if _, err := unix.Pwrite(fds[0], []byte{1}, 0); err == nil {
		t.Error("the table of grants is written by a peer")
	}
	if err := unix.Ftruncate(fds[0], 0); err == nil {
		t.Error("the table of grants is cut by a peer")
	}
	peerBoard, err := openBoard(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	defer peerBoard.release()
	table, file, err := newShared("table", tableBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	defer table.release()
	if err := s.send(newMessage(kindAttach), int(file.Fd()), fds[1]); err != nil {
		t.Fatal(err)
	}
	file.Close()
	closeAll(fds)
	await(t, n, func(rdma.Connected) bool { return true })
	rng := rand.New(rand.NewPCG(1, 2))
	for at := uint64(0); at < boardBytes; at += 8 {
		peerBoard.at(at).Store(rng.Uint64())
	}
	peerBoard.at32(boardBell).Store(bellAsleep)
	peerBoard.ring()
	p.Revoke(id)
	if ev := await(t, n, func(ev rdma.Revoked) bool { return true }); !ev.Closed {
		t.Error("noise in the slot keeps a grant open")
	}
	if stale := len(n.seen); stale > 3*int(refusals)*refusedMax {
		t.Errorf("%d events", stale)
	}
	p.Fence(rdma.SessionID{Peer: "x", Generation: generation(1)})
	await(t, n, func(rdma.Fenced) bool { return true })
}
