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
	for peer, id := range map[string]byte{"peer": tellable, "honest": forHonest} {
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
	s, e := w.honest, w.p.grants[rdma.GrantID(idOf(forHonest))]
	text := fmt.Sprintf("state %d why %v rails %d last %d offers %d waiting %d regions %v grants %d told %v limbo %d;", s.state, s.why, s.rails, s.last,
		len(s.offers), len(s.asked), slices.Sorted(maps.Keys(s.memory)), len(s.grants), s.told, len(s.limbo))
	for _, st := range s.stripes {
		text += fmt.Sprintf(" stripe %d live %v ending %v credit %d", st.number, st.live, st.ending, st.credit)
	}
	text += fmt.Sprintf("; grant of %s told to it %v revoked %v owed %v arrived %v", e.Peer, e.told == s, e.revoked, e.owed, e.arrived)
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
	done := map[rdma.WriteID]int{}
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
		case rdma.Connected:
		default:
			w.t.Errorf("got %T %+v", ev, ev)
		}
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

// FuzzFrame is the same for messages of any bytes.
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
