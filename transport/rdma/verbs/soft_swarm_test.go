package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// TestSwarm plays rounds of writes between nodes whose devices fail in all the ways that
// a soft fabric knows, drawn from a seed: no page is written after its grant is closed, no
// source is read after its write has ended, what has landed is what was sent, every write
// ends once, and every wait ends. KVFERRY_SEEDS=FIRST-LAST runs other seeds.
func TestSwarm(t *testing.T) {
	first, last := 1, 12
	if s := os.Getenv("KVFERRY_SEEDS"); s != "" {
		if _, err := fmt.Sscanf(s, "%d-%d", &first, &last); err != nil {
			t.Fatalf("KVFERRY_SEEDS is %q, want FIRST-LAST", s)
		}
	}
	for seed := first; seed <= last; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			newSwarm(t, uint64(seed)).play()
		})
	}
}

const (
	swarmPage   = 12 << 10
	swarmPages  = 64
	swarmRounds = 12
	swarmCanary = 0xC5
	swarmPoison = 0x5A
)

// swarm is a world in which a writes to b.
type swarm struct {
	*rdmatest.World
	t        *testing.T
	rng      *rand.Rand
	f        *soft
	a, b     *Provider
	devices  [2]int
	number   uint64
	up       bool
	rates    struct{ trouble, quiesce, revoke, fence int } // of a thousand
	from, to rdmatest.Region
}

func newSwarm(t *testing.T, seed uint64) *swarm {
	s := &swarm{t: t, rng: rand.New(rand.NewPCG(seed, 99)), f: newSoft()}
	s.f.retry = 5 * time.Millisecond
	s.devices = [2]int{1 + s.rng.IntN(3), 1 + s.rng.IntN(2)}
	if s.rng.IntN(2) == 0 {
		s.f.limit = func(string) Limits {
			l := softLimits
			l.MaxQPWR, l.MaxSGE, l.MaxMR = 64, 2, 100<<10
			return l
		}
	}
	config := func(c *Config) {
		c.ChunkBytes, c.QueuePairs = 4<<10<<s.rng.IntN(4), 1+s.rng.IntN(3)
		c.drain = 50 * time.Millisecond
		c.StallTimeout, c.GoneTimeout, c.DestroyTimeout = 300*time.Millisecond, 600*time.Millisecond, 600*time.Millisecond
		c.Log = nil
	}
	s.a, s.b = softNode(t, s.f, "a", s.devices[0], config), softNode(t, s.f, "b", s.devices[1], config)
	s.World = rdmatest.NewWorld(t, s.a, s.b)
	s.from, s.to = s.Register(s.A, swarmPage*swarmPages), s.Register(s.B, swarmPage*swarmPages)
	s.to.Fill(swarmCanary)
	return s
}

func (s *swarm) play() {
	// The order of the draws of a device is not the seed's, so it has a source of its own.
	s.f.mu.Lock()
	pick := func(rates ...int) int { return rates[s.rng.IntN(len(rates))] }
	s.rates.trouble, s.rates.quiesce, s.rates.revoke, s.rates.fence = pick(0, 0, 80), pick(0, 50), pick(0, 50), pick(0, 200)
	rates := [...]int{noAnswer: pick(0, 10, 30), isLate: pick(0, 20, 60), flushOnly: pick(0, 5)}
	fates := rand.New(rand.NewPCG(s.rng.Uint64(), 1))
	s.f.fate = func(*softQueue) fate {
		for what, rate := range rates {
			if fates.IntN(1000) < rate {
				return fate(what)
			}
		}
		return arrives
	}
	s.f.lag = func() time.Duration { return time.Duration(fates.IntN(3)) * 50 * time.Microsecond }
	s.f.late = func() time.Duration { return s.f.retry * time.Duration(1+fates.IntN(6)) }
	slow := []byte{0, 'a', 'b'}[s.rng.IntN(3)]
	s.f.slow = func(q *softQueue) time.Duration {
		if q.nic.name[0] != slow {
			return 0
		}
		return time.Duration(fates.IntN(40)) * time.Millisecond
	}
	s.f.onNew = func(q *softQueue) {
		switch fates.IntN(30) {
		case 0:
			q.partial = 1 + fates.IntN(3)
		case 1:
			q.unwilling = fates.IntN(4)
		case 2:
			q.halfway = fates.IntN(3)
		case 3:
			q.full = fates.IntN(10)
		}
		if q.nic.name[0] == slow { // it does not stop before it is destroyed, either
			q.failErr = &CallError{Call: "ibv_modify_qp to ERR", Device: q.nic.name, Err: syscall.EIO}
		}
	}
	s.f.mu.Unlock()
	for range swarmRounds {
		s.connect()
		s.round()
	}
	s.f.mu.Lock()
	s.f.fate, s.f.onNew = nil, nil
	clear(s.f.cut)
	s.f.mu.Unlock()
	s.fence()
	s.Close()
}

// connect makes a generation that is up, if there is none.
func (s *swarm) connect() {
	for tries := 0; !s.up; tries++ {
		if tries == 20 {
			s.t.Fatal("no generation in 20 came up")
		}
		s.number++
		for _, x := range [][2]*rdmatest.Node{{s.A, s.B}, {s.B, s.A}} {
			if err := x[0].Connect(s.number, x[1]); err != nil {
				s.t.Fatal(err)
			}
		}
		s.up = s.isUp(s.A) && s.isUp(s.B)
		if !s.up {
			s.f.mu.Lock()
			clear(s.f.cut)
			s.f.mu.Unlock()
			s.fence()
		}
	}
}

// isUp waits until the session of a node is up, or down.
func (s *swarm) isUp(n *rdmatest.Node) (is bool) {
	n.Await("connected or disconnected", func(evs []rdma.Event) bool {
		for i := len(evs) - 1; i >= 0; i-- {
			switch ev := evs[i].(type) {
			case rdma.Connected:
				if ev.Session == n.Session(s.number) {
					is = true
					return true
				}
			case rdma.Disconnected:
				if ev.Session == n.Session(s.number) {
					is = false
					return true
				}
			}
		}
		return false
	})
	return is
}

// fence fences both sides until nothing is open.
func (s *swarm) fence() {
	s.A.Fence(s.number)
	s.B.Fence(s.number)
	for _, p := range []*Provider{s.a, s.b} {
		eventually(s.t, "all queue pairs are gone", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.hung) == 0 })
	}
	s.up = false
}

// trouble does something to the devices.
func (s *swarm) trouble() {
	a, b := fmt.Sprintf("a%d", s.rng.IntN(s.devices[0])), fmt.Sprintf("b%d", s.rng.IntN(s.devices[1]))
	victim := []string{a, b}[s.rng.IntN(2)]
	switch s.rng.IntN(8) {
	case 0:
		s.f.sever(a, b, true)
	case 1, 2:
		s.f.sever(a, b, false)
	case 3:
		s.f.tell(victim, deviceEvent{kind: eventPortDown, port: 1, text: "port error"})
		s.f.tell(victim, deviceEvent{kind: eventPort, port: 1, text: "port active"})
	case 4:
		if qs := s.f.queuesOf(victim); len(qs) > 0 {
			s.f.mu.Lock()
			qs[0].breakLocked()
			s.f.mu.Unlock()
		}
	case 5:
		if qs := s.f.queuesOf(victim); len(qs) > 0 {
			s.f.mu.Lock()
			qs[0].mute = true
			s.f.mu.Unlock()
			s.f.tell(victim, deviceEvent{kind: eventQueue, queue: qs[0].qpn, text: "completion queue error"})
		}
	}
}

// swarmWrite is one write of a round: a page of the source to one of a grant.
type swarmWrite struct {
	*rdma.Write
	grant        int
	source, page uint64
}

// round is one grant of pages to each of some rooms, and writes to them.
func (s *swarm) round() {
	rng := s.rng
	perm := rng.Perm(swarmPages)
	rooms := 1 + rng.IntN(4)
	grants, pages := make([]rdma.GrantID, rooms), make([][]uint64, rooms)
	for r := range rooms {
		n := 1 + rng.IntN(8)
		var rs []rdma.Range
		for range n {
			page := uint64(perm[0])
			perm = perm[1:]
			pages[r] = append(pages[r], page)
			rs = append(rs, rdma.Range{
				Region: s.to.Region, UnitStride: swarmPage, Bytes: swarmPage, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{First: uint32(page), Count: 1, Step: 1}},
			})
		}
		grants[r] = s.Grant(s.B, rs...)
	}
	var ws []swarmWrite
	source := s.from.Memory.Bytes()
	for r := range rooms {
		for _, page := range pages[r] {
			at := uint64(len(ws))
			b := source[at*swarmPage:][:swarmPage]
			for i := range b {
				b[i] = byte(rng.Uint32())%0x50 + 1 // neither canary nor poison
			}
			ws = append(ws, swarmWrite{s.Write(rdma.Tag(r), grants[r], rdmatest.Contiguous(s.from, at*swarmPage, s.to, page*swarmPage, swarmPage)), r, at, page})
		}
	}
	sent := bytes.Clone(source)
	rng.Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })

	var posted []*rdma.Write
	taken := map[rdma.WriteID]swarmWrite{}
	for _, x := range ws {
		if s.happens(s.rates.trouble) {
			s.trouble()
		}
		if s.happens(s.rates.quiesce) {
			s.a.Quiesce(rdma.Tag(rng.IntN(rooms)))
		}
		if s.happens(s.rates.revoke) {
			s.b.Revoke(grants[rng.IntN(rooms)])
		}
		err := s.a.Post(s.A.Session(s.number), []*rdma.Write{x.Write})
		if errors.Is(err, rdma.ErrNotConnected) {
			s.up = false
			break
		}
		if err != nil {
			s.t.Fatal(err)
		}
		posted = append(posted, x.Write)
		taken[x.ID] = x
	}
	if s.happens(s.rates.fence) {
		s.b.Fence(s.B.Session(s.number))
		s.up = false
	}
	// The receiver takes its pages back before the sender has ended, or after.
	visible := make([][]byte, swarmPages) // what a page held when its grant was closed
	takeBack := func() {
		for r := range rooms {
			s.close(grants[r])
			for _, page := range pages[r] {
				b := s.to.Memory.Bytes()[page*swarmPage:][:swarmPage]
				visible[page] = bytes.Clone(b)
				if bytes.IndexByte(b, swarmPoison) >= 0 {
					s.t.Errorf("page %d has what its source held after the write had ended", page)
				}
				for i := range b {
					b[i] = swarmCanary
				}
			}
		}
	}
	early := s.happens(500)
	if early {
		time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
		takeBack()
	}
	landed, owed := make([][]swarmWrite, rooms), make([]map[uint32]uint64, rooms)
	for r := range rooms {
		owed[r] = map[uint32]uint64{}
	}
	for id, c := range s.A.AwaitWrites(posted) {
		x := taken[id]
		b := source[x.source*swarmPage:][:swarmPage]
		if c.Outcome == rdma.Unknown {
			continue // the device may read it until the fence
		}
		for i := range b { // it is given back
			b[i] = swarmPoison
		}
		if c.Outcome == rdma.Landed {
			landed[x.grant] = append(landed[x.grant], x)
			for _, a := range c.Arrivals {
				owed[x.grant][a.Stripe] += a.Count
			}
		}
	}
	right := func(x swarmWrite, got []byte) {
		if !bytes.Equal(got, sent[x.source*swarmPage:][:swarmPage]) {
			s.t.Errorf("page %d is not what was sent by write %d, which has landed", x.page, x.ID)
		}
	}
	if !early {
		for r := range rooms { // of those that have landed as a whole it is known when it is visible
			if len(landed[r]) == len(pages[r]) && s.arrived(grants[r], owed[r]) {
				for _, x := range landed[r] {
					right(x, s.to.Memory.Bytes()[x.page*swarmPage:][:swarmPage])
				}
			}
		}
		takeBack()
	}
	for r := range rooms {
		for _, x := range landed[r] {
			right(x, visible[x.page])
		}
	}
	for _, n := range []*rdmatest.Node{s.A, s.B} {
		for _, ev := range n.Seen() {
			if d, ok := ev.(rdma.Disconnected); ok && d.Session == n.Session(s.number) {
				s.up = false
			}
		}
	}
	time.Sleep(s.f.retry * 8) // what is late comes now
	if !s.up {
		s.fence()
	}
	for i, b := range s.to.Memory.Bytes() {
		if b != swarmCanary {
			s.t.Fatalf("byte %d, of page %d, was written after its grant was closed", i, i/swarmPage)
		}
	}
}

// happens draws: of a thousand times, so many.
func (s *swarm) happens(rate int) bool { return s.rng.IntN(1000) < rate }

// close revokes a grant and waits until it is closed: if its session goes meanwhile, a
// fence does that.
func (s *swarm) close(g rdma.GrantID) {
	s.b.Revoke(g)
	s.B.Await("closed, or disconnected", func(evs []rdma.Event) bool {
		for _, ev := range evs {
			if d, ok := ev.(rdma.Disconnected); ok && d.Session == s.B.Session(s.number) {
				return true
			}
		}
		return revoked(evs, g, true) > 0
	})
	if revoked(s.B.Seen(), g, true) == 0 {
		s.fence()
		s.B.Await("closed", func(evs []rdma.Event) bool { return revoked(evs, g, true) > 0 })
	}
	closed := false
	for _, ev := range s.B.Seen() {
		closed = closed || ev == (rdma.Revoked{Grant: g, Closed: true})
		if a, ok := ev.(rdma.Arrived); ok && a.Grant == g && closed {
			s.t.Errorf("an arrival was told after grant %s was closed", g)
		}
	}
}

// arrived waits until the receiver was told of all that is owed under a grant, and
// reports that: not if its session goes, or the grant is closed, before.
func (s *swarm) arrived(g rdma.GrantID, owed map[uint32]uint64) bool {
	all := true
	s.B.Await("arrivals, or the end", func(evs []rdma.Event) bool {
		got := map[uint32]uint64{}
		for _, ev := range evs {
			switch ev := ev.(type) {
			case rdma.Arrived:
				if ev.Grant == g {
					got[ev.Stripe] += ev.Count
				}
			case rdma.Disconnected:
				all = all && ev.Session != s.B.Session(s.number)
			case rdma.Fenced:
				all = all && ev.Session != s.B.Session(s.number)
			case rdma.Revoked:
				all = all && ev.Grant != g
			}
		}
		done := true
		for stripe, n := range owed {
			done = done && got[stripe] >= n
		}
		return done || !all
	})
	return all
}
