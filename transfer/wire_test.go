package transfer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// bodies are messages of every kind, as a peer with bad intentions or another
// version might send them.
func badBodies() []any {
	generation := &messages.Generation{Number: 3}
	manySpans, manyArrivals, manyGenerations := []*messages.Span{}, []*messages.Arrivals{}, []*messages.Generation{}
	for range 3000 {
		manySpans = append(manySpans, &messages.Span{First: 1, Count: math.MaxUint32, Step: 1})
		manyArrivals = append(manyArrivals, &messages.Arrivals{Generation: generation, Count: math.MaxUint64})
		manyGenerations = append(manyGenerations, generation)
	}
	id, hash := make([]byte, 16), make([]byte, 32)
	grant := func(change func(*messages.Grant)) *messages.Grant {
		g := &messages.Grant{Id: id, PrefillRoster: hash, DecodeRoster: hash, Digest: hash, Length: 8, Parts: 1}
		change(g)
		return g
	}
	return []any{
		nil, 42, "text", (*messages.Grant)(nil), &messages.Grant{},
		grant(func(g *messages.Grant) { g.Id = id[:15] }),
		grant(func(g *messages.Grant) { g.Digest = nil }),
		grant(func(g *messages.Grant) { g.DecodeRoster = hash[:3] }),
		grant(func(g *messages.Grant) { g.Prefix = 9 }),
		grant(func(g *messages.Grant) { g.Length, g.Prefix = math.MaxUint64, math.MaxUint64 }),
		grant(func(g *messages.Grant) { g.Parts = 0 }),
		grant(func(g *messages.Grant) { g.Parts = math.MaxUint32 }),
		grant(func(g *messages.Grant) { g.Part = 1 }),
		grant(func(g *messages.Grant) { g.Pages = manySpans }),
		(*messages.GrantAck)(nil), &messages.GrantAck{}, &messages.GrantAck{Id: id, Refused: &messages.Cause{}},
		(*messages.KnownAck)(nil), (*messages.Excused)(nil), &messages.Excused{PrefillRoster: hash},
		(*messages.ExcusedAck)(nil), (*messages.DeclinedAck)(nil),
		(*messages.Done)(nil), &messages.Done{}, &messages.Done{Grant: id},
		&messages.Done{Grant: id, Arrivals: manyArrivals}, &messages.Done{Grant: id, Arrivals: []*messages.Arrivals{nil}},
		&messages.Done{Grant: id, Arrivals: []*messages.Arrivals{{Count: 1}}},
		(*messages.Missing)(nil), &messages.Missing{Grant: id, Generations: []*messages.Generation{nil}},
		&messages.Missing{Grant: id, Generations: manyGenerations}, &messages.Missing{Grant: id, Generations: []*messages.Generation{generation}},
		(*messages.MissingAck)(nil), (*messages.LandedAck)(nil), (*messages.FailedAck)(nil),
		(*messages.OutcomeAck)(nil), &messages.Outcome{Complete: true},
		(*messages.QuietAck)(nil), &messages.Quiet{Unknown: []*messages.Generation{nil}}, &messages.Quiet{Unknown: manyGenerations[:2000]},
		(*messages.Answer)(nil), &messages.Answer{Field: "x"},
	}
}

// What came off the wire and does not fit never panics, changes no state, and is
// answered at most once; an answer never is.
func TestBadMessagesChangeNothing(t *testing.T) {
	for _, stage := range []string{"new", "granted"} {
		for i, body := range badBodies() {
			w := newWorld(t, setting{prefillTP: 1, prefillPP: 1, decodeTP: 1, decodePP: 1, length: 8})
			p, d := w.named("p0"), w.named("d0")
			p.send(0)
			d.receive(0)
			w.settle()
			if stage == "granted" {
				p.step(Chunk{From: 0, To: 4, Source: p.sourcePages()})
				for len(w.net) > 0 {
					w.deliver(w.net[0])
				}
			}
			for _, to := range []*engine{p, d} {
				from := d
				if to == d {
					from = p
				}
				before, sent := to.machine.State(), len(w.net)
				to.step(Received{From: from.id, Body: body})
				if after := to.machine; after == nil || after.State() != before {
					t.Errorf("%s %d: %T to %s changed its state from %s", stage, i, body, to.name, before)
				}
				answers := w.net[sent:]
				if len(answers) > 1 {
					t.Errorf("%s %d: %T to %s is answered %d times", stage, i, body, to.name, len(answers))
				}
				if _, ok := body.(*messages.Answer); ok && len(answers) > 0 {
					t.Errorf("an answer is answered")
				}
			}
		}
	}
}

// A message from an engine that is not on the rosters is answered and changes
// nothing; a vote from another incarnation of one that is fails the room.
func TestAVoteFromAnotherIncarnationFailsTheRoom(t *testing.T) {
	w := newWorld(t, setting{prefillTP: 1, prefillPP: 1, decodeTP: 2, decodePP: 1, length: 8})
	d := w.named("d0")
	d.receive(0)
	w.settle()
	stranger := messages.Engine{Instance: "elsewhere", Incarnation: 1}
	for _, body := range []any{&messages.Landed{}, &messages.Done{}, &messages.Failed{}, &messages.Outcome{}} {
		effects := d.machine.Step(w.now, Received{From: stranger, Body: body})
		if s, ok := effects[0].(Send); !ok || len(effects) != 1 || s.To != stranger || !strings.HasPrefix(describeBody(s.Body), "Answer from") {
			t.Fatalf("a stranger's %T led to %v", body, effects)
		}
	}
	if got := d.machine.State(); got != "granting" {
		t.Fatalf("a stranger's vote led to %s", got)
	}
	other := w.named("d1").id
	other.Incarnation++
	d.machine.Step(w.now, Received{From: other, Body: &messages.LandedAck{}})
	if got := d.machine.State(); got != "granting" {
		t.Fatalf("another incarnation's acknowledgement led to %s", got)
	}
	for _, effect := range d.machine.Step(w.now, Received{From: other, Body: &messages.Landed{}}) {
		if f, ok := effect.(Finish); ok && f.Outcome.GetCause().GetKind() == messages.CauseKind_CAUSE_ROSTER_CHANGED {
			return
		}
	}
	t.Fatalf("the room is %s, want failed by roster changed", d.machine.State())
}

// Grants by a receiver that did not elect the writer, and second words, are
// refused or answered.
func TestOnlyOneWordOfEachReceiver(t *testing.T) {
	w := newWorld(t, setting{prefillTP: 1, prefillPP: 1, decodeTP: 1, decodePP: 1, length: 8})
	p, d := w.named("p0"), w.named("d0")
	d.receive(0)
	p.send(0)
	w.settle()
	for len(w.net) > 0 {
		w.deliver(w.net[0])
	}
	excuse := &messages.Excused{PrefillRoster: w.pairing.PrefillRoster[:], DecodeRoster: w.pairing.DecodeRoster[:]}
	for _, body := range []any{excuse, &messages.Declined{}} {
		p.step(Received{From: d.id, Body: body})
		last := w.net[len(w.net)-1]
		if _, ok := last.body.(*messages.Answer); !ok || p.machine.State() != "waiting" {
			t.Errorf("%T after a grant: answered %s, state %s", body, describeBody(last.body), p.machine.State())
		}
	}
}

// The engine answers for a room that ended: every message that is repeated until
// acknowledged has an end, and nothing says quiet.
func TestTheRecordAnswersEverything(t *testing.T) {
	complete := &messages.Outcome{Complete: true}
	failed := &messages.Outcome{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_ABORTED, Text: "x", Origin: "y"}}
	unknown := &messages.Outcome{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_UNKNOWN_OUTCOME}}
	for _, c := range []struct {
		body                  any
		none, complete, fails string
		unknown               string
	}{
		{&messages.Grant{Id: make([]byte, 16)}, "GrantAck", "GrantAck", "GrantAck", "GrantAck"},
		{&messages.Excused{}, "ExcusedAck", "ExcusedAck", "ExcusedAck", "ExcusedAck"},
		{&messages.Declined{}, "DeclinedAck", "DeclinedAck", "DeclinedAck", "DeclinedAck"},
		{&messages.Known{}, "KnownAck", "KnownAck", "KnownAck", "KnownAck"},
		{&messages.Done{}, "Answer", "Outcome", "Outcome", "Answer"},
		{&messages.Landed{}, "Answer", "Outcome", "Outcome", "Answer"},
		{&messages.Failed{}, "Answer", "Outcome", "Outcome", "Answer"},
		{&messages.Missing{}, "Answer", "Answer", "Answer", "Answer"},
		{&messages.Outcome{}, "OutcomeAck", "OutcomeAck", "OutcomeAck", "OutcomeAck"},
		{&messages.Quiet{}, "QuietAck", "QuietAck", "QuietAck", "QuietAck"},
		{&messages.GrantAck{}, "", "", "", ""},
		{&messages.KnownAck{}, "", "", "", ""},
		{&messages.ExcusedAck{}, "", "", "", ""},
		{&messages.DeclinedAck{}, "", "", "", ""},
		{&messages.MissingAck{}, "", "", "", ""},
		{&messages.LandedAck{}, "", "", "", ""},
		{&messages.FailedAck{}, "", "", "", ""},
		{&messages.OutcomeAck{}, "", "", "", ""},
		{&messages.QuietAck{}, "", "", "", ""},
		{&messages.Answer{}, "", "", "", ""},
	} {
		for _, r := range []struct {
			record *messages.Outcome
			want   string
		}{{nil, c.none}, {complete, c.complete}, {failed, c.fails}, {unknown, c.unknown}} {
			got := ""
			if reply := AnswerFor(r.record, c.body); reply != nil {
				got = strings.TrimPrefix(fmt.Sprintf("%T", reply), "*messages.")
			}
			if got != r.want {
				t.Errorf("%T with record %v: got %q, want %q", c.body, r.record, got, r.want)
			}
		}
	}
	if a := AnswerFor(failed, &messages.Excused{}).(*messages.ExcusedAck); a.GetRefused().GetText() != "x" {
		t.Errorf("an excuse for a failed room is acknowledged as %v", a)
	}
	if a := AnswerFor(complete, &messages.Excused{}).(*messages.ExcusedAck); a.GetRefused() != nil {
		t.Errorf("an excuse that was taken is refused when it comes again: %v", a)
	}
}

// A body that is added to the schema has to be thought of here, too. Inquire and
// its answer are between engines, and reach no room.
func TestEveryBodyIsThoughtOf(t *testing.T) {
	fields := (&messages.Room{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	if got, want := fields.Len(), 20+2; got != want {
		t.Errorf("the schema has %d bodies, the tables of this package have %d", got, want)
	}
}

func TestLimitsFitTogether(t *testing.T) {
	l, err := Limits{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s has no default", v.Type().Field(i).Name)
		}
		if d, ok := v.Field(i).Interface().(time.Duration); ok && d == 300*time.Second {
			t.Errorf("%s is 300 s", v.Type().Field(i).Name)
		}
	}
	if _, err := l.Resolve(); err != nil {
		t.Errorf("resolved limits do not resolve: %v", err)
	}
	for name, bad := range map[string]Limits{
		"Wait":       {Wait: -1},
		"WaitMax":    {Wait: time.Hour, WaitMax: time.Minute},
		"ResendMost": {ResendFirst: 2 * time.Second},
		"Word":       {Word: time.Second},
		"Stall":      {Progress: 20 * time.Second},
		"Grace":      {Grace: 10 * time.Second},
		"Vote":       {Decide: 20 * time.Second},
		"Linger":     {Linger: 2 * time.Second},
		"EarlyKeep":  {EarlyKeep: time.Second},
		"EarlyShare": {EarlyShare: 5000},
		"Window":     {Window: -1},
		"WriteBytes": {WriteBytes: 1 << 40},
	} {
		if _, err := bad.Resolve(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: got %v, want an error that names %s", bad, err, name)
		}
	}
	if got := l.writing(1 << 62); got <= 0 {
		t.Errorf("the limit for a huge length is %v", got)
	}
}

// Early votes are bounded, by room and engine unique, and forgotten with age.
func TestEarlyVotesAreBounded(t *testing.T) {
	l, _ := Limits{EarlyVotes: 4, EarlyShare: 2}.Resolve()
	v := NewEarlyVotes(l)
	now := time.Unix(1, 0)
	from := func(instance string, n int) messages.Engine {
		return messages.Engine{Instance: instance, Incarnation: uint64(n)}
	}
	room := func(n int) messages.RoomID { return messages.RoomID{Room: uint64(n)} }
	if v.Keep(now, room(1), from("a", 1), &messages.Done{}) != nil || v.Keep(now, room(1), from("a", 1), (*messages.Landed)(nil)) != nil {
		t.Error("what is no vote is kept")
	}
	for n := range 5 {
		ack := v.Keep(now, room(n), from("a", 1), &messages.Landed{})
		if (ack != nil) != (n < 2) {
			t.Errorf("vote %d of one instance: %v", n, ack)
		}
	}
	if v.Keep(now, room(0), from("a", 1), &messages.Landed{}) == nil {
		t.Error("a vote that came again is not acknowledged")
	}
	if ack, ok := v.Keep(now, room(0), from("a", 1), &messages.Failed{}).(*messages.FailedAck); !ok {
		t.Errorf("a failure after a vote: %v", ack)
	}
	for n := range 3 {
		v.Keep(now, room(0), from("b", n), &messages.Failed{})
	}
	if v.Len() != 4 {
		t.Errorf("%d votes are kept, the limit is 4", v.Len())
	}
	got := v.Take(now, room(0))
	if len(got) != 3 || v.Len() != 1 || v.Take(now, room(0)) != nil {
		t.Errorf("took %v, %d are left", got, v.Len())
	}
	if _, failed := got[0].Body.(*messages.Failed); !failed {
		t.Error("the failure did not replace the vote")
	}
	if v.Take(now.Add(l.EarlyKeep), room(1)) != nil || v.Len() != 0 {
		t.Error("an old vote is kept")
	}
}

// addCount never wraps, and arrivals of one stripe add up whatever their order.
func TestCountsDoNotWrap(t *testing.T) {
	s := stripe{generation: rdma.Generation{Number: 1}}
	if got := countOf(addCount(addCount(nil, s, math.MaxUint64), s, 2), s); got != math.MaxUint64 {
		t.Errorf("got %d", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		var counts []count
		want := map[uint32]uint64{}
		for _, n := range rapid.SliceOf(rapid.Uint32Range(0, 5)).Draw(t, "stripes") {
			counts = addCount(counts, stripe{rdma.Generation{}, n}, uint64(n)+1)
			want[n] += uint64(n) + 1
		}
		for n, w := range want {
			if got := countOf(counts, stripe{rdma.Generation{}, n}); got != w {
				t.Fatalf("stripe %d: got %d, want %d", n, got, w)
			}
		}
	})
}

// A grant for a long prompt in pages of no order is small: it has pages, no ranges.
func TestGrantOfALongPromptIsSmall(t *testing.T) {
	const tokens, page = 131072, 64
	pages := pageList(tokens / page)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	var runs []tableRun
	for _, r := range kv.PackPages(pages) {
		runs = append(runs, tableRun{0, 0, r})
	}
	hash := make([]byte, 32)
	g := &messages.Grant{Id: hash[:16], PrefillRoster: hash, DecodeRoster: hash, Digest: hash, Length: tokens, RemainingMs: 30000, Parts: 1}
	writeRuns(g, runs)
	if size := proto.Size(g); size >= 64<<10 {
		t.Errorf("a grant of %d tokens in %d scattered pages has %d bytes, want fewer than 65536", tokens, len(pages), size)
	} else {
		t.Logf("%d bytes", size)
	}
}
