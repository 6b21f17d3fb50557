package transfer

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kv"
	"kvferry/messages"
)

// A world is one room of a prefill and a decode instance: the machines, the
// engines around them, a network of numbered messages and a transport that moves
// real bytes. It does nothing by itself: the test says what is delivered, lands
// or is lost, and when. It checks what docs/protocol.md promises as it goes.
type world struct {
	t       testing.TB
	now     time.Time
	limits  Limits
	setting setting
	room    messages.RoomID
	pairing *messages.Pairing
	engines []*engine // prefill, then decode, in roster order

	net      []*packet
	numbers  int // of packets, over all pairs
	links    map[[2]*engine]*link
	flights  []*flight // posted, not completed
	ghosts   []*flight // unknown: may land until fenced
	withheld []withheld
	grants   []*placed
	local    []localEvent // answers of engines' own nodes, in order
	trace    []string
	messages int
	moved    map[string]bool // transitions that were seen
	quarant  int
	lied     bool // a peer may have lied: what its words lead to is not checked
}

// setting is how a world is made.
type setting struct {
	prefillTP, prefillPP, decodeTP, decodePP int
	length                                   uint64
	prefix                                   map[string]uint64 // by engine; "" for all
	verbs                                    bool              // a revoke never closes
	held                                     bool              // engines are paired by the test, not by themselves
	badMeta                                  bool              // prefill writes the row of another attempt
	noMeta                                   bool
	scattered                                bool // the pages of decode lie in many runs
	hybrid                                   bool // the model has windows and state too
	dp                                       int  // ranks of both sides; the room is between the last ones
	limits                                   Limits
}

// engine is an engine actor, as far as a room sees it.
type engine struct {
	w       *world
	name    string
	prefill bool
	id      messages.Engine
	node    messages.Node
	kv      *kv.Engine
	memory  []byte

	machine  Machine
	paired   bool
	record   *messages.Outcome
	early    *EarlyVotes
	finishes []Finish
	unpinned int
	released int
	closed   bool
	dead     bool
	prefix   uint64
	holds    bool            // its node does not answer now
	held     []Event         // what it would have answered
	seen     map[*engine]int // highest number taken from each
	sent     map[*engine]int
}

type packet struct {
	n        int // of the world
	from, to *engine
	number   int // of the pair
	body     any
}

type localEvent struct {
	to *engine
	ev Event
	do func() // instead of an event
}

const (
	pageTokensPrefill = 4
	pageTokensDecode  = 2
	worldPages        = 32
)

func newWorld(t testing.TB, s setting) *world {
	t.Helper()
	s.dp = max(1, s.dp)
	limits, err := s.limits.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, now: time.Unix(1000, 0), limits: limits, setting: s,
		room: messages.RoomID{Room: 7, Attempt: 1}, links: map[[2]*engine]*link{}, moved: map[string]bool{},
	}
	model := kv.Model{ID: "m", Components: []kv.Component{
		{Name: "k", Kind: kv.Paged, Layers: []int{0, 1, 2}, Heads: 2, HeadBytes: 2, DType: kv.UINT8},
		{Name: "latent", Kind: kv.Paged, Layers: []int{0, 1, 2}, Heads: 1, HeadBytes: 3, DType: kv.UINT8},
	}}
	if s.hybrid {
		model.Components = append(model.Components,
			kv.Component{Name: "swa.k", Kind: kv.Paged, Layers: []int{0, 2}, Heads: 2, HeadBytes: 1, DType: kv.UINT8, Window: 3},
			kv.Component{Name: "ssm", Kind: kv.Slot, Layers: []int{1}, Heads: 2, HeadBytes: 5, DType: kv.UINT8, SlotRows: 2})
	}
	prefill := kv.Deployment{Model: model, TP: s.prefillTP, PP: s.prefillPP, DP: s.dp, PageTokens: pageTokensPrefill, Layout: kv.NHD, MetaRows: 4, MetaRowBytes: 16}
	decode := kv.Deployment{Model: model, TP: s.decodeTP, PP: s.decodePP, DP: s.dp, PageTokens: pageTokensDecode, Layout: kv.HND, MetaRows: 4, MetaRowBytes: 16}
	if s.noMeta {
		prefill.MetaRows, decode.MetaRows, prefill.MetaRowBytes, decode.MetaRowBytes = 0, 0, 0, 0
	}
	fit := kv.MatchDeployments(&prefill, &decode, worldPages, worldPages)
	if !fit.Compatible() {
		t.Fatal(fit.Reasons())
	}
	w.pairing = &messages.Pairing{Fit: fit, Prefill: "p", Decode: "d", PrefillRoster: messages.RosterHash{1}, DecodeRoster: messages.RosterHash{2}}
	w.pairing.PrefillEngine = w.members(true, fit.Prefill())
	w.pairing.DecodeEngine = w.members(false, fit.Decode())
	for _, p := range w.engines {
		for _, d := range w.engines {
			if p.prefill && !d.prefill {
				w.links[[2]*engine{p, d}] = &link{prefill: p, decode: d, generation: 1, up: true}
			}
		}
	}
	return w
}

func (w *world) members(prefill bool, i *kv.Instance) []messages.Member {
	var out []messages.Member
	for n := range i.Engines {
		e := &i.Engines[n]
		name, instance := fmt.Sprintf("d%d", n), "d"
		if prefill {
			name, instance = fmt.Sprintf("p%d", n), "p"
		}
		en := &engine{
			w: w, name: name, prefill: prefill, kv: e, memory: make([]byte, e.RegionBytes[0]),
			id:   messages.Engine{Instance: instance, Rank: e.Rank, Incarnation: uint64(100 + n)},
			node: messages.Node{Name: "node-" + name, Incarnation: 1}, early: NewEarlyVotes(w.limits),
			seen: map[*engine]int{}, sent: map[*engine]int{},
		}
		for i := range en.memory {
			en.memory[i] = 0xEE // of a decode pool: a byte that nothing wrote
		}
		if prefill {
			en.fillSource()
		}
		w.engines = append(w.engines, en)
		out = append(out, messages.Member{Engine: en.id, Node: en.node, Kv: e})
	}
	return out
}

// cell is what one byte of the cache is, by where it is logically.
func cell(component string, layer, head int, token uint64, at int) byte {
	return byte(uint64(len(component))*31+uint64(layer)*61+uint64(head)*17+token*7+uint64(at)*3) & 0x7F
}

// instance is that which the engine is of.
func (e *engine) instance() *kv.Instance {
	if e.prefill {
		return e.w.pairing.Fit.Prefill()
	}
	return e.w.pairing.Fit.Decode()
}

// rows visits every row that an engine keeps of the tokens [from, to), and the
// state of a request that ends at to.
func (e *engine) rows(at kv.Placement, from, to uint64, visit func(r kv.Row, b []byte)) {
	each := func(r kv.Row) { visit(r, e.memory[r.Offset:][:r.Component.HeadBytes]) }
	e.instance().EachRow(e.kv.Rank, &at, from, to, each)
	e.instance().EachState(e.kv.Rank, at.Slot, to, each)
}

func (e *engine) fillSource() {
	e.rows(e.sourcePages(), 0, e.w.setting.length, func(r kv.Row, b []byte) {
		for i := range b {
			b[i] = cell(r.Component.Name, r.Layer, r.Head, r.Row, i)
		}
	})
	if e.kv.Meta.Rows > 0 {
		row := e.memory[e.kv.Meta.Offset:]
		binary.LittleEndian.PutUint64(row, e.w.room.Room)
		attempt := e.w.room.Attempt
		if e.w.setting.badMeta {
			attempt--
		}
		binary.LittleEndian.PutUint32(row[8:], attempt)
	}
}

// wrongBytes is how many bytes of a receiver that has completed are not what
// prefill computed.
func (e *engine) wrongBytes() int {
	wrong := 0
	e.rows(e.targetPages(), e.prefix, e.w.setting.length, func(r kv.Row, b []byte) {
		if w := r.Component.Window; w > 0 && r.Row+w < e.w.setting.length {
			return // nobody needs it
		}
		for i := range b {
			if b[i] != cell(r.Component.Name, r.Layer, r.Head, r.Row, i) {
				wrong++
			}
		}
	})
	return wrong
}

// sourcePages and targetPages are where the engines keep the room: pages from 0 on,
// the last slot.
func (e *engine) sourcePages() kv.Placement { return e.place(0) }

func (e *engine) targetPages() kv.Placement { return e.place(e.prefix) }

func (e *engine) place(prefix uint64) kv.Placement {
	var at kv.Placement
	for _, pool := range e.instance().Pools(e.kv.Rank) {
		first, n := pool.Need(prefix, e.w.setting.length)
		pages := pageList(n)
		if !e.prefill && e.w.setting.scattered { // two neighbours, the other way round: no run is long
			for i := 0; i+1 < n; i += 2 {
				pages[i], pages[i+1] = pages[i+1], pages[i]
			}
		}
		at.Tables = append(at.Tables, kv.PoolTable{Window: pool.Window, PageTable: kv.PageTable{First: first, Pages: pages}})
	}
	if slots, has := e.instance().Slots(e.kv.Rank); has {
		at.Slot = slots - 1
	}
	return at
}

func pageList(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func (w *world) later(to *engine, ev Event) {
	if to.holds {
		switch ev.(type) {
		case GrantInstalled, Revoked, Quiesced, MetaRead:
			to.held = append(to.held, ev)
			return
		}
	}
	w.local = append(w.local, localEvent{to: to, ev: ev})
}

// settle gives the machines what their own nodes answered.
func (w *world) settle() {
	for len(w.local) > 0 {
		l := w.local[0]
		w.local = w.local[1:]
		if l.do != nil {
			l.do()
			continue
		}
		l.to.step(l.ev)
	}
}

func (w *world) engine(id messages.Engine) *engine {
	for _, e := range w.engines {
		if e.id == id {
			return e
		}
	}
	w.fail("no engine %s", id)
	return nil
}

func (w *world) named(name string) *engine {
	for _, e := range w.engines {
		if e.name == name {
			return e
		}
	}
	w.t.Fatalf("no engine %q", name)
	return nil
}

func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	n := max(0, len(w.trace)-failTrace)
	w.t.Fatalf("%s\n...\n%s", fmt.Sprintf(format, args...), strings.Join(w.trace[n:], "\n"))
}

// transmit puts a message on the network.
func (w *world) transmit(from, to *engine, body any) {
	w.numbers++
	w.messages++
	from.sent[to]++
	w.net = append(w.net, &packet{w.numbers, from, to, from.sent[to], body})
}

// deliver takes a message off the network. As the actor peers/<node> does, it
// drops what has a lower number than one that was taken.
func (w *world) deliver(p *packet) {
	w.net = slices.DeleteFunc(w.net, func(q *packet) bool { return q == p })
	if p.to.dead || p.from.dead && p.number < 0 {
		return
	}
	if p.number <= p.to.seen[p.from] {
		w.log("m%d: %s>%s %s: an older number", p.n, p.from.name, p.to.name, describeBody(p.body))
		return
	}
	p.to.seen[p.from] = p.number
	w.log("m%d: %s>%s %s", p.n, p.from.name, p.to.name, describeBody(p.body))
	p.to.take(p.from, p.body)
	w.settle()
}

// tick lets time pass, machine by machine as they are due.
func (w *world) tick(d time.Duration) {
	until := w.now.Add(d)
	for n := 0; ; n++ {
		if n > 100000 {
			w.fail("time does not pass: something is always due")
		}
		var due *engine
		for _, e := range w.engines {
			if e.machine == nil || e.dead || e.machine.Deadline().IsZero() || e.machine.Deadline().After(until) {
				continue
			}
			if due == nil || e.machine.Deadline().Before(due.machine.Deadline()) {
				due = e
			}
		}
		if due == nil {
			break
		}
		if at := due.machine.Deadline(); at.After(w.now) {
			w.now = at
		}
		due.step(Tick{})
		w.settle()
	}
	w.now = until
}
