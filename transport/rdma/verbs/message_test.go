package verbs

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// A peer's texts are bounded, and fit for logs.
func TestTextsOfPeersAreClean(t *testing.T) {
	for text, want := range map[string]string{
		"": `""`, "it \"said\"\nso": `"it \"said\"\nso"`, "\x1b[2J\xff": `"\x1b[2J\xff"`,
		strings.Repeat("x", reasonMost):     `"` + strings.Repeat("x", reasonMost) + `"`,
		strings.Repeat("x", reasonMost+1):   `"` + strings.Repeat("x", reasonMost) + `..."`,
		strings.Repeat("é", reasonMost/2+1): `"` + strings.Repeat("é", reasonMost/2) + `..."`,
	} {
		if got := clean(text); got != want {
			t.Errorf("%.20q: got %s, want %s", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 3*reasonMost), func(b []byte) string { return string(b) })).Draw(t, "text")
		got := clean(text)
		if len(got) > 4*reasonMost+10 || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
			t.Fatalf("got %d bytes: %s", len(got), got)
		}
	})
}

// peerWorld is a provider between a peer that says anything and an honest one.
type peerWorld struct {
	t      failer
	p      *Provider
	nic    *partsNic
	s      *session // with the peer that says anything
	honest *session
	memory *rdma.Memory
	source rdma.RegionID
	posted int
}

const (
	tellable  = 1 // grants of this side, by the first byte of their ids: to either peer
	forHonest = 2
	theirs    = 3 // grants of the peer: one that was told, and one that is asked for
	asked     = 4
	ended     = 5 // grants of this side that it has revoked: of the honest peer, and of the other
	endedHis  = 6
)

// textMost is what a peer can make this side say, of a text of reasonMost.
const textMost = 5 * reasonMost

func idOf(n byte) []byte { return append([]byte{n}, make([]byte, 15)...) }

func regionFrame(id, bytes, piece uint64, rails int) *control.Frame {
	w := &control.Region{Id: id, Address: 1 << 40, Bytes: bytes, Piece: piece}
	for range rails {
		w.Rails = append(w.Rails, &control.Keys{Keys: make([]uint32, (bytes+piece-1)/piece)})
	}
	return &control.Frame{Body: &control.Frame_Region{Region: w}}
}

func grantFrame(id byte, region, bytes uint64) *control.Frame {
	return &control.Frame{Body: &control.Frame_Grant{Grant: &control.Grant{
		Id: idOf(id), Immediate: 5, Runs: []*control.Runs{{Numbers: []uint32{0, 1, 1}}},
		Ranges: []*control.Range{{Region: region, Bytes: bytes, Outer: 1, Inner: 1}},
	}}}
}

func newPeerWorld(t failer, dial, isUp bool) *peerWorld {
	w := &peerWorld{t: t}
	w.p, w.nic = partsProvider(t, 2)
	w.p.config.Log = func(_ Level, text string) {
		if len(text) > textMost {
			t.Errorf("a line of the log has %d bytes: %.100s", len(text), text)
		}
	}
	w.nic.accept = func(l *link) error { // some peers are not reached
		if l.RemoteNumber%5 == 4 && l.RemoteNumber != 9 {
			return &CallError{Call: "ibv_modify_qp", Device: "fake", Err: 110}
		}
		return nil
	}
	var err error
	if w.memory, err = rdma.NewMemory("peer-world", 1<<16); err != nil {
		t.Fatal(err)
	}
	d, err := w.p.Register(w.memory)
	if err != nil {
		t.Fatal(err)
	}
	w.source = d.Region
	for id, peer := range map[byte]string{tellable: "peer", forHonest: "honest", endedHis: "peer", ended: "honest"} {
		g := rdma.Grant{ID: rdma.GrantID(idOf(id)), Peer: peer, Ranges: []rdma.Range{{Region: d.Region, Bytes: 4096, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1, Step: 1}}}}}
		if err := w.p.Grant(g); err != nil {
			t.Fatal(err)
		}
	}
	w.s, w.honest = partsSession(t, w.p, "peer", dial), partsSession(t, w.p, "honest", !dial)
	for _, s := range []*session{w.honest, w.s} {
		if s == w.s && !isUp {
			break
		}
		partsUp(t, s)
		for _, f := range []*control.Frame{regionFrame(1, 8192, 1024, 2), grantFrame(theirs, 1, 8192)} {
			if err := s.on(f); err != nil {
				t.Fatal(err)
			}
		}
		w.post(s, asked)
	}
	w.p.Revoke(rdma.GrantID(idOf(ended)))
	w.p.Revoke(rdma.GrantID(idOf(endedHis)))
	if dial && !isUp {
		for i := range w.p.cards {
			w.s.offer(i)
		}
	}
	return w
}

// post posts two writes to a session, one under a grant that it knows and one under
// another.
func (w *peerWorld) post(s *session, other byte) {
	var ws []*rdma.Write
	for i, id := range []byte{theirs, other} {
		ws = append(ws, &rdma.Write{ID: rdma.WriteID(w.posted + i), Tag: 7, Grant: rdma.GrantID(idOf(id)), Copies: []rdma.Copy{{
			Source: rdma.Place{Region: w.source}, Target: rdma.Place{Region: 1}, Bytes: 8192, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}},
		}}})
	}
	if err := w.p.Post(s.id, ws); err == nil {
		w.posted += len(ws)
	} else if s == w.honest {
		w.t.Fatal(err)
	}
}

// others is all that a peer must not change.
func (w *peerWorld) others() string {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	s := w.honest
	text := fmt.Sprintf("state %d why %v rails %d last %d offers %d waiting %d regions %v grants %d told %v limbo %d;", s.state, s.why, s.rails, s.last,
		len(s.offers), len(s.asked), slices.Sorted(maps.Keys(s.memory)), len(s.grants), s.told, len(s.limbo))
	for _, st := range s.stripes {
		text += fmt.Sprintf(" stripe %d live %v ending %v credit %d", st.number, st.live, st.ending, st.credit)
	}
	for _, id := range []byte{forHonest, ended} {
		if e := w.p.grants[rdma.GrantID(idOf(id))]; e != nil {
			text += fmt.Sprintf("; grant %d of %s told to it %v revoked %v owed %v %v arrived %v", id, e.Peer, e.told == s, e.revoked, e.owed == nil, e.owed, e.arrived)
		}
	}
	return text + fmt.Sprintf("; %d sessions %d regions hung %v greeting %d", len(w.p.sessions), len(w.p.memory), w.p.hung, len(w.p.greeting))
}

// feed gives the session messages until one ends it, and checks after each that nobody
// else has felt it.
func (w *peerWorld) feed(frames []*control.Frame) {
	before := w.others()
	for _, f := range frames {
		if err := w.s.on(f); err != nil {
			if len(err.Error()) > textMost {
				w.t.Fatalf("the error has %d bytes: %.100s", len(err.Error()), err)
			}
			w.s.fail(err)
		}
		w.post(w.s, asked)
		w.settle()
		for _, x := range partsTold(w.t, w.s) {
			if n := proto.Size(x); n > textMost {
				w.t.Fatalf("it is told a %T of %d bytes", x.GetBody(), n)
			}
		}
		if after := w.others(); after != before {
			w.t.Fatalf("%v:\nbefore %s\nafter  %s", f, before, after)
		}
	}
}

// settle waits until nothing that was posted to the session can be cut.
func (w *peerWorld) settle() {
	for {
		w.p.mu.Lock()
		busy := w.s.state == up && w.s.queue.Len() > 0 && slices.ContainsFunc(w.s.stripes, func(st *stripe) bool {
			return st.live && !st.ending && !st.full && st.sent != st.credit && st.size.Sends-st.used >= st.size.Chain
		})
		w.p.mu.Unlock()
		if !busy {
			return
		}
		runtime.Gosched()
	}
}

// end ends both sessions, and checks that nothing is left of them and that each write
// completed once.
func (w *peerWorld) end() {
	partsEnd(w.s)
	partsEnd(w.honest)
	done, closed := map[rdma.WriteID]int{}, map[byte]int{}
	for _, ev := range partsEvents(w.p) {
		switch ev := ev.(type) {
		case rdma.Completed:
			if done[ev.ID]++; done[ev.ID] > 1 {
				w.t.Errorf("write %d completed twice", ev.ID)
			}
		case rdma.Disconnected:
			if ev.Session.Peer != "peer" {
				w.t.Errorf("got %+v", ev)
			}
		case rdma.Stale:
			if ev.Peer != "peer" {
				w.t.Errorf("got %+v", ev)
			}
		case rdma.Revoked:
			if ev.Closed {
				closed[ev.Grant[0]]++
			}
		case rdma.Connected:
		default:
			w.t.Errorf("got %T %+v", ev, ev)
		}
	}
	if !maps.Equal(closed, map[byte]int{ended: 1, endedHis: 1}) {
		w.t.Errorf("grants were closed so often: %v", closed)
	}
	if len(done) != w.posted {
		w.t.Errorf("%d of %d writes completed", len(done), w.posted)
	}
	if err := w.p.Deregister(w.source); err == nil {
		w.t.Error("the memory is granted, and was deregistered")
	}
	for id, e := range w.p.grants {
		if e.told != nil {
			w.t.Errorf("grant %s is told to a session that is over", id)
		}
		w.p.Revoke(id)
	}
	if err := w.p.Deregister(w.source); err != nil {
		w.t.Error(err)
	}
	if err := w.memory.Close(); err != nil {
		w.t.Error(err)
	}
	w.nic.mu.Lock()
	defer w.nic.mu.Unlock()
	if w.nic.live != 0 || w.nic.known != 0 {
		w.t.Errorf("%d queue pairs and %d registrations are left", w.nic.live, w.nic.known)
	}
	if w.p.tags.InFlight(7) != 0 || len(w.p.hung) != 0 {
		w.t.Errorf("%d writes are in flight, hung are %v", w.p.tags.InFlight(7), w.p.hung)
	}
}

// framesOf reads messages: of each its length, as u16, and its bytes. What is none is
// passed over, as the channel ends there.
func framesOf(raw []byte) (frames []*control.Frame) {
	for len(raw) >= 2 && len(frames) < 20 {
		n := min(int(binary.LittleEndian.Uint16(raw)), len(raw)-2)
		f := &control.Frame{}
		if proto.Unmarshal(raw[2:][:n], f) == nil {
			frames = append(frames, f)
		}
		raw = raw[2+n:]
	}
	return frames
}

func rawFrames(t testing.TB, frames ...*control.Frame) (raw []byte) {
	for _, f := range frames {
		m, err := proto.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		raw = append(binary.LittleEndian.AppendUint16(raw, uint16(len(m))), m...)
	}
	return raw
}

// frameKinds is a message of each kind, with numbers that a session of peerWorld knows.
func frameKinds() []*control.Frame {
	queuePair := &control.QueuePair{Number: 7, Psn: 1, Gid: make([]byte, 16), Mtu: 1024, Receives: 16, Ring: 1 << 40, RingKey: 3}
	large := &control.QueuePair{Gid: make([]byte, 10000)}
	return []*control.Frame{
		{Body: &control.Frame_Hail{Hail: &control.Hail{Rails: 2}}},
		{Body: &control.Frame_Offer{Offer: &control.Offer{Stripe: 3, From: 1, To: 1, QueuePair: queuePair}}},
		{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: 1, QueuePair: queuePair}}},
		{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: 2, Refused: "no"}}},
		{Body: &control.Frame_Offer{Offer: &control.Offer{Stripe: 4, QueuePair: large}}},
		{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: 1, QueuePair: large}}},
		{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: 2, Refused: string(large.Gid)}}},
		{Body: &control.Frame_Gone{Gone: &control.Gone{Stripe: 1, Reason: string(large.Gid)}}},
		{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: string(large.Gid)}}},
		{Body: &control.Frame_Ready{Ready: &control.Ready{Stripe: 3}}},
		{Body: &control.Frame_Up{Up: &control.Up{}}},
		{Body: &control.Frame_Gone{Gone: &control.Gone{Stripe: 1, Reason: "lost"}}},
		regionFrame(1, 8192, 1024, 2),
		regionFrame(1, 64, 64, 2),
		regionFrame(2, 8192, 8192, 2),
		grantFrame(theirs, 1, 8192),
		grantFrame(asked, 1, 8192),
		{Body: &control.Frame_Revoke{Revoke: &control.Revoke{Id: idOf(theirs)}}},
		{Body: &control.Frame_Closed{Closed: &control.Closed{Id: idOf(tellable), Arrivals: []*control.Arrivals{{Stripe: 1, Count: 1}}}}},
		{Body: &control.Frame_Closed{Closed: &control.Closed{Id: idOf(forHonest)}}},
		{Body: &control.Frame_Closed{Closed: &control.Closed{Id: idOf(ended)}}},
		{Body: &control.Frame_Closed{Closed: &control.Closed{Id: idOf(endedHis)}}},
		{Body: &control.Frame_Ask{Ask: &control.Ask{Id: idOf(tellable)}}},
		{Body: &control.Frame_Ask{Ask: &control.Ask{Id: idOf(forHonest)}}},
		{Body: &control.Frame_None{None: &control.None{Id: idOf(asked)}}},
		{Body: &control.Frame_Refused{Refused: &control.Refused{Reason: refusedRevoked}}},
		{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: 1, Posted: 17}}},
		{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: "enough"}}},
		{},
	}
}

// Whatever messages a peer sends, in whatever order, nobody else feels it, every write
// completes once, and nothing is left.
func TestPeersSayAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frames []*control.Frame
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			f := proto.CloneOf(rapid.SampledFrom(frameKinds()).Draw(t, "message"))
			if o := f.GetOffer(); o != nil {
				o.Stripe = rapid.Uint32Range(1, 6).Draw(t, "stripe")
				o.QueuePair.Number = rapid.Uint32Range(1, 9).Draw(t, "queue pair")
			}
			if a := f.GetAnswer(); a != nil {
				a.Stripe = rapid.Uint32Range(1, 3).Draw(t, "stripe")
				if a.QueuePair != nil {
					a.QueuePair.Number = rapid.Uint32Range(1, 9).Draw(t, "queue pair")
				}
			}
			if r := f.GetReady(); r != nil {
				r.Stripe = rapid.Uint32Range(1, 6).Draw(t, "stripe")
			}
			if c := f.GetCredits(); c != nil {
				c.Posted = rapid.Uint64Range(15, 20).Draw(t, "credits")
			}
			frames = append(frames, f)
		}
		w := newPeerWorld(t, rapid.Bool().Draw(t, "dial"), rapid.Bool().Draw(t, "up"))
		w.feed(frames)
		w.end()
	})
}

// What a peer may not say ends its session, and says why.
func TestMessagesThatEndASession(t *testing.T) {
	hail := func(n uint32) *control.Frame {
		return &control.Frame{Body: &control.Frame_Hail{Hail: &control.Hail{Rails: n}}}
	}
	offer := func(stripe, from, to uint32) *control.Frame {
		return &control.Frame{Body: &control.Frame_Offer{Offer: &control.Offer{Stripe: stripe, From: from, To: to}}}
	}
	ready := &control.Frame{Body: &control.Frame_Ready{Ready: &control.Ready{Stripe: 1}}}
	answer := &control.Frame{Body: &control.Frame_Answer{Answer: &control.Answer{Stripe: 1}}}
	upFrame := &control.Frame{Body: &control.Frame_Up{Up: &control.Up{}}}
	for _, c := range []struct {
		dial, up bool
		frames   []*control.Frame // the last is refused
		want     string
	}{
		{false, false, []*control.Frame{offer(1, 0, 0)}, errHail.Error()},
		{false, false, []*control.Frame{upFrame}, errHail.Error()},
		{false, false, []*control.Frame{hail(0)}, "the peer has 0 rails, want 1 to 63"},
		{false, false, []*control.Frame{hail(64)}, "the peer has 64 rails, want 1 to 63"},
		{false, false, []*control.Frame{hail(2), hail(2), hail(3)}, "the peer has 3 rails, its endpoint says 2"},
		{true, false, []*control.Frame{hail(1)}, "the peer has 1 rails, its endpoint says 2"},
		{false, true, []*control.Frame{offer(2, 0, 0)}, "the peer offers stripe 2 from rail 0 to 0 after stripe 2; it has 2 rails, this side 2"},
		{false, true, []*control.Frame{offer(3, 2, 0)}, "the peer offers stripe 3 from rail 2 to 0 after stripe 2; it has 2 rails, this side 2"},
		{false, true, []*control.Frame{offer(3, 0, 2)}, "the peer offers stripe 3 from rail 0 to 2 after stripe 2; it has 2 rails, this side 2"},
		{false, true, []*control.Frame{offer(3, 1<<32-1, 1<<32-1)}, "from rail 4294967295 to 4294967295 after"},
		{false, true, []*control.Frame{offer(3, 0, 0), offer(3, 0, 0)}, "the peer offers stripe 3 from rail 0 to 0 after stripe 3;"},
		{false, true, []*control.Frame{upFrame}, errNotItsTo.Error()},
		{false, true, []*control.Frame{answer}, "the peer answers stripe 1, which was not offered"},
		{true, true, []*control.Frame{offer(3, 0, 0)}, errNotItsTo.Error()},
		{true, true, []*control.Frame{ready}, errNotItsTo.Error()},
		{true, true, []*control.Frame{upFrame}, errNotItsTo.Error()},
		{true, true, []*control.Frame{answer}, "the peer answers stripe 1, which was not offered"},
		{true, false, []*control.Frame{upFrame}, errNotItsTo.Error()},
		{true, true, []*control.Frame{{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: 1, Posted: 15}}}}, "the peer says that it posted 15 receives on stripe 1, before 16;"},
		{true, true, []*control.Frame{{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: 1, Posted: 1 << 20}}}}, "the peer says that it posted 1048576 receives on stripe 1, before 16;"},
		{true, true, []*control.Frame{{Body: &control.Frame_Refused{Refused: &control.Refused{Reason: 9}}}}, "the peer refused a write for reason 9, want one of 3"},
		{true, true, []*control.Frame{regionFrame(2, 64, 64, 1)}, "region 2 has keys of 1 rails, want 2"},
		{true, true, []*control.Frame{regionFrame(1, 64, 64, 2)}, "the peer tells of region 1, which it has told before"},
		{true, true, []*control.Frame{grantFrame(asked, 2, 64)}, "grant 04000000000000000000000000000000: rdma: ranges[0] of region 2: the region is not registered"},
		{true, true, []*control.Frame{grantFrame(asked, 1, 8193)}, "grant 04000000000000000000000000000000: rdma: ranges[0] of region 1: it leaves the region"},
		{true, true, []*control.Frame{{Body: &control.Frame_Revoke{Revoke: &control.Revoke{Id: []byte{1}}}}}, "the id of a grant has 1 bytes, want 16"},
		{true, true, []*control.Frame{{Body: &control.Frame_Closed{Closed: &control.Closed{}}}}, "the id of a grant has 0 bytes, want 16"},
		{true, true, []*control.Frame{{Body: &control.Frame_Ask{Ask: &control.Ask{}}}}, "the id of a grant has 0 bytes, want 16"},
		{true, true, []*control.Frame{{Body: &control.Frame_None{None: &control.None{}}}}, "the id of a grant has 0 bytes, want 16"},
		{true, true, []*control.Frame{{Body: &control.Frame_Bye{Bye: &control.Bye{Reason: "no\nmore"}}}}, `the peer ended the session: "no\nmore"`},
		{true, true, []*control.Frame{{}}, "the peer says <nil>, which is no message"},
	} {
		w := newPeerWorld(t, c.dial, c.up)
		for i, f := range c.frames {
			err := w.s.on(f)
			if last := i == len(c.frames)-1; last != (err != nil) || last && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: got error %v, want %q", f, err, c.want)
			}
		}
		w.feed(nil)
		w.end()
	}
}

// A session that ends while a stripe of it is made leaves no queue pair behind.
func TestSessionThatEndsWhileAStripeIsMade(t *testing.T) {
	for _, dial := range []bool{false, true} {
		w := newPeerWorld(t, dial, false)
		w.nic.accept = func(*link) error {
			w.s.fail(errFenced)
			return nil
		}
		frames := []*control.Frame{frameKinds()[0], proto.CloneOf(frameKinds()[1])}
		if dial {
			frames[1] = frameKinds()[2]
		}
		w.s.running.Go(func() { // as read does
			for _, f := range frames {
				if err := w.s.on(f); err != nil {
					t.Errorf("%v: %v", f, err)
				}
			}
		})
		<-w.s.done
		w.end()
	}
	w := newPeerWorld(t, true, true)
	w.nic.refuse = func(queueSize) error {
		w.s.fail(errFenced)
		return nil
	}
	w.s.running.Go(func() { w.s.offer(0) }) // as watch does
	<-w.s.done
	w.end()
}

// Of two messages each may make what the other is wrong after: all pairs are tried.
func TestPeersSayAnyTwoThings(t *testing.T) {
	kinds := slices.DeleteFunc(frameKinds(), func(f *control.Frame) bool { return proto.Size(f) > textMost })
	for _, dial := range []bool{false, true} {
		for i, a := range kinds {
			for k, b := range kinds {
				w := newPeerWorld(t, dial, true)
				w.feed([]*control.Frame{a, b})
				if w.end(); t.Failed() {
					t.Fatalf("messages %d and %d, dial %v: %v; %v", i, k, dial, a, b)
				}
			}
		}
	}
}

// FuzzFrame feeds messages of any bytes.
func FuzzFrame(f *testing.F) {
	for _, dial := range []bool{false, true} {
		for _, isUp := range []bool{false, true} {
			f.Add(dial, isUp, rawFrames(f, frameKinds()[:12]...))
			for _, x := range frameKinds() {
				f.Add(dial, isUp, rawFrames(f, x, x))
			}
		}
	}
	f.Fuzz(func(t *testing.T, dial, isUp bool, raw []byte) {
		w := newPeerWorld(t, dial, isUp)
		w.feed(framesOf(raw))
		w.end()
	})
}
