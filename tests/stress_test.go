package tests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/node"
	"kvferry/tests/fabric"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/mem"
)

// TestStress plays random rooms on two prefill and two decode nodes through
// random faults, heals, and requires: every leg of every attempt ended once, no
// leg complete where another failed for a known cause, bytes right when told and
// when given back, everything back at rest. KVFERRY_SEEDS=first-last picks seeds.
func TestStress(t *testing.T) {
	first, last := uint64(1), uint64(6)
	if s := os.Getenv("KVFERRY_SEEDS"); s != "" {
		a, b, _ := strings.Cut(s, "-")
		first, _ = strconv.ParseUint(a, 10, 64)
		last = first
		if b != "" {
			last, _ = strconv.ParseUint(b, 10, 64)
		}
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stress(t, seed) })
		})
	}
}

type chaos struct {
	w   *world
	mu  sync.Mutex
	rng *rand.Rand

	on                              atomic.Bool
	loss, dup                       float64
	kills                           float64 // per message of a room's actor
	lost, vanish, tear, delay, late float64

	hosts   []string
	prefill []*engine
	decode  []*engine
	nodes   []*member

	complete, failed, unknown, refused, killed atomic.Int64
}

func (c *chaos) chance(p float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.Float64() < p
}

func (c *chaos) intn(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) upTo(d time.Duration) time.Duration { return time.Duration(c.intn(int(d))) + 1 }

func stress(t *testing.T, seed uint64) {
	w := newWorld(t)
	w.log = w.log.WithOptions()
	c := &chaos{w: w, rng: rand.New(rand.NewPCG(seed, 7))}
	pick := func(p float64) float64 {
		if c.rng.IntN(2) == 0 {
			return 0
		}
		return c.rng.Float64() * p
	}
	c.loss, c.dup, c.kills = pick(0.1), pick(0.1), pick(0.02)
	c.lost, c.vanish, c.tear, c.delay, c.late = pick(0.05), pick(0.05), pick(0.02), pick(0.5), pick(0.05)
	partitions := c.rng.IntN(2) == 0
	w.fate = c.fate
	w.config = func(host string, n *node.Config) {
		n.Embed.Base = append(n.Embed.Base, actor.WithReceiverMiddleware(c.kill))
		if seed%2 == 0 { // in virtual time the lanes are one: so that actors of a node meet, rooms included
			n.Embed.Base = append(n.Embed.Base, actor.WithDispatcher(actor.NewDefaultDispatcher(1)))
		}
		n.Rooms.WriteBytes = 4096
		n.Rooms.Linger = 10 * time.Second
	}
	model := smallModel()
	if c.rng.IntN(2) == 0 {
		model = hybridModel()
	}
	shape := func() kv.Deployment { // two ranks
		d := kv.Deployment{Model: model, TP: 1, PP: 1, CP: 1}
		switch c.rng.IntN(4) {
		case 0:
			d.TP = 2
		case 1:
			d.PP = 2
		default:
			d.CP, d.Split = 2, kv.Split(c.rng.IntN(3))
		}
		return d
	}
	p, d := shape(), shape()
	p.PageTokens, p.Layout = 16, kv.NHD
	d.PageTokens, d.Layout, d.PageAlign = 8, kv.HND, 16
	pl, dl := layoutOf(t, p, 64), layoutOf(t, d, 128)
	for i := range 4 {
		host := fmt.Sprintf("10.0.0.%d", i+1)
		c.hosts = append(c.hosts, host)
		m := w.start(fmt.Sprintf("n%d", i), host)
		c.nodes = append(c.nodes, m)
		if i < 2 {
			c.prefill = append(c.prefill, w.attach(m, "p", pl, pl.Engines[i].Rank, true))
		} else {
			c.decode = append(c.decode, w.attach(m, "d", dl, dl.Engines[i-2].Rank, false))
		}
	}
	for _, m := range c.nodes {
		if err := m.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("loss %.3f dup %.3f kills %.3f lost %.3f vanish %.3f tear %.3f delay %.3f late %.3f partitions %v; %s: p tp %d pp %d cp %d %v, d tp %d pp %d cp %d %v",
		c.loss, c.dup, c.kills, c.lost, c.vanish, c.tear, c.delay, c.late, partitions, model.ID, p.TP, p.PP, p.CP, p.Split, d.TP, d.PP, d.CP, d.Split)
	w.net.SetFaults(fabric.Faults{Latency: 200 * time.Microsecond, Jitter: 2 * time.Millisecond, MessageLoss: c.loss, MessageDuplicate: c.dup, Hold: c.rng.IntN(2) == 0})
	c.on.Store(true)
	var legs sync.WaitGroup
	for room := range uint64(60) {
		legs.Go(func() { c.room(room + 1) })
	}
	end := time.Now().Add(40 * time.Second)
	for time.Now().Before(end) {
		time.Sleep(c.upTo(3 * time.Second))
		if partitions {
			a, b := c.hosts[c.intn(4)], c.hosts[c.intn(4)]
			if a == b {
				continue
			}
			what := c.intn(4)
			if what != 1 {
				if what == 3 {
					w.net.CutOneWay(a, b)
				} else {
					w.net.Cut(a, b)
				}
			}
			if what < 2 {
				w.data.Cut(a, b)
			}
			d := c.upTo(4 * time.Second)
			if c.chance(0.2) {
				d *= 5
			}
			time.Sleep(d)
			w.net.Heal(a, b)
			w.data.Heal(a, b)
		}
	}
	c.on.Store(false)
	w.net.SetFaults(fabric.DefaultFaults)
	w.net.HealAll()
	for _, a := range c.hosts {
		for _, b := range c.hosts {
			w.data.Heal(a, b)
		}
	}
	done := make(chan bool)
	go func() { legs.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(15 * time.Minute):
		t.Error("legs have not ended 15 minutes after the heal")
		for _, h := range c.holdings() {
			t.Logf("%+v", h)
		}
		panic("hang")
	}
	for _, m := range c.nodes {
		if err := m.WaitPaired(w.ctx(time.Minute), "p", "d"); err != nil {
			t.Error(err)
		}
	}
	c.attempt(1000, 0, 100, 0, false)
	time.Sleep(3 * time.Minute)
	c.atRest()
	t.Logf("complete %d failed %d unknown %d refused %d legs; %d actors killed", c.complete.Load(), c.failed.Load(), c.unknown.Load(), c.refused.Load(), c.killed.Load())
	w.close()
}

// kill lets the actor of a room panic, before or after it handled a message.
func (c *chaos) kill(next actor.ReceiverFunc) actor.ReceiverFunc {
	return func(ctx actor.ReceiverContext, e *actor.MessageEnvelope) {
		if _, ok := e.Message.(*actors.RoomEvent); !ok || !c.on.Load() || !c.chance(c.kills) {
			next(ctx, e)
			return
		}
		c.killed.Add(1)
		if c.chance(0.5) {
			next(ctx, e)
		}
		panic("planted")
	}
}

func (c *chaos) fate(from, to string, w *rdma.Write) mem.Fate {
	if !c.on.Load() {
		return mem.Fate{}
	}
	var f mem.Fate
	if c.chance(c.delay) {
		f.Delay = c.upTo(20 * time.Millisecond)
	}
	f.Lost, f.Vanish, f.Tear = c.chance(c.lost), c.chance(c.vanish), c.chance(c.tear)
	if c.chance(c.late) {
		f.Late = c.upTo(5 * time.Second)
	}
	return f
}

// room plays one room: up to three attempts, of which later ones may begin before
// the earlier ones have ended.
func (c *chaos) room(room uint64) {
	time.Sleep(c.upTo(25 * time.Second))
	length := uint64(1 + c.intn(300))
	prefix := uint64(0)
	if c.chance(0.3) {
		prefix = uint64(c.intn(int(length) + 1))
	}
	var all sync.WaitGroup
	for attempt := range uint32(1 + c.intn(3)) {
		all.Go(func() { c.attempt(room, attempt, length, prefix, c.chance(0.3)) })
		time.Sleep(c.upTo(4 * time.Second))
	}
	all.Wait()
}

type leg struct {
	name     string
	opened   bool
	complete bool
	excused  bool // nobody needed anything of it: it hears no outcome
	kind     messages.CauseKind
	text     string
}

func (c *chaos) attempt(room uint64, attempt uint32, length, prefix uint64, abort bool) {
	legs := make([]leg, 4)
	var all sync.WaitGroup
	victim := -1
	if abort {
		victim = c.intn(4)
	}
	for i, e := range c.prefill {
		all.Go(func() { legs[i] = c.sendLeg(e, i, room, attempt, length, victim == i) })
	}
	for i, e := range c.decode {
		all.Go(func() { legs[2+i] = c.receiveLeg(e, i, room, attempt, length, prefix, victim == 2+i) })
	}
	all.Wait()
	complete := false
	for _, l := range legs {
		complete = complete || l.complete && !l.excused
	}
	for _, l := range legs {
		switch {
		case l.complete:
			c.complete.Add(1)
		case l.kind == messages.CauseKind_CAUSE_UNKNOWN_OUTCOME:
			c.unknown.Add(1)
		default:
			if l.opened {
				c.failed.Add(1)
			} else {
				c.refused.Add(1)
			}
			cached := prefix == length && strings.Contains(l.name, "prefill") // it may be no participant
			if complete && !cached {
				c.w.t.Errorf("room %d.%d [%d,%d): two outcomes: %+v", room, attempt, prefix, length, legs)
				return
			}
		}
		if room == 1000 && !l.complete {
			c.w.t.Errorf("the room after the heal: %+v", l)
		}
	}
}

const legWait = 20 * time.Second

func (c *chaos) ended(l *leg, wait func() (node.Result, error)) {
	got, err := wait()
	if err != nil {
		c.w.t.Errorf("%s: nobody told how it ended: %v", l.name, err)
		return
	}
	l.complete, l.kind, l.text = got.Complete, got.Kind, got.Cause
	l.excused = got.Complete && strings.Contains(l.name, "prefill") && got.Copies == 0
}

func (c *chaos) sendLeg(e *engine, i int, room uint64, attempt uint32, length uint64, abort bool) leg {
	l := leg{name: fmt.Sprintf("room %d.%d prefill %d", room, attempt, i)}
	time.Sleep(c.upTo(300 * time.Millisecond))
	d := 5 * time.Minute
	if abort && c.chance(0.3) {
		d = c.upTo(2 * time.Second)
	}
	s, err := e.prefill.Open(c.w.ctx(d), node.SendRequest{Room: room, Attempt: attempt, Tokens: length, Wait: legWait})
	if err != nil {
		l.text = err.Error()
		return l
	}
	l.opened = true
	if abort {
		time.AfterFunc(c.upTo(time.Second), func() { s.Abort("stress") })
	}
	for from := uint64(0); from < length; {
		to := min(from+uint64(1+c.intn(60)), length)
		e.fill(room*16+uint64(attempt), s.Place(), from, to)
		if to == length {
			e.fillState(room*16+uint64(attempt), s.Place(), length)
		}
		if c.chance(0.3) { // layer by layer, of the layers 0 to 2
			s.ChunkLayers(to, 1)
			s.ChunkLayers(to, 2)
		}
		s.Chunk(to)
		from = to
		if c.chance(0.3) {
			time.Sleep(c.upTo(100 * time.Millisecond))
		}
	}
	c.ended(&l, func() (node.Result, error) { return s.Wait(c.w.ctx(12 * time.Minute)) })
	s.Free()
	return l
}

func (c *chaos) receiveLeg(e *engine, i int, room uint64, attempt uint32, length, prefix uint64, abort bool) leg {
	l := leg{name: fmt.Sprintf("room %d.%d decode %d", room, attempt, i)}
	time.Sleep(c.upTo(300 * time.Millisecond))
	d := 5 * time.Minute
	if abort && c.chance(0.3) {
		d = c.upTo(2 * time.Second)
	}
	r, err := e.decode.Receive(c.w.ctx(d), node.ReceiveRequest{Room: room, Attempt: attempt, Prefill: "p", Prefix: prefix, Length: length, Wait: legWait})
	if err != nil {
		l.text = err.Error()
		return l
	}
	l.opened = true
	if abort {
		time.AfterFunc(c.upTo(time.Second), func() { r.Abort("stress") })
	}
	c.ended(&l, func() (node.Result, error) { return r.Wait(c.w.ctx(12 * time.Minute)) })
	if l.complete {
		e.check(room*16+uint64(attempt), r.Place(), prefix, length)
		time.Sleep(c.upTo(5 * time.Second))
		e.check(room*16+uint64(attempt), r.Place(), prefix, length) // and nothing wrote there since
	}
	r.Free()
	return l
}

func (c *chaos) holdings() []actors.Holding {
	var all []actors.Holding
	for _, e := range c.prefill {
		h, err := e.prefill.Holding(c.w.ctx(time.Minute))
		if err != nil {
			c.w.t.Error(err)
		}
		all = append(all, h)
	}
	for _, e := range c.decode {
		h, err := e.decode.Holding(c.w.ctx(time.Minute))
		if err != nil {
			c.w.t.Error(err)
		}
		all = append(all, h)
	}
	return all
}

func (c *chaos) atRest() {
	for _, h := range c.holdings() {
		if h.PagesFree != h.PagesTotal || h.RowsFree != h.RowsTotal || h.Rooms != 0 || h.Waiting != 0 || h.Held != 0 || h.Unannounced != 0 || h.Quarantined != 0 {
			c.w.t.Errorf("not at rest: %+v", h)
		}
	}
	for i, m := range c.nodes {
		reply := make(chan actors.InFlight, 1)
		m.fabric.System().Root.Send(actor.NewPID(m.fabric.Address(), "kvferry/transport"), &actors.InspectTransport{Reply: func(n actors.InFlight) { reply <- n }})
		select {
		case n := <-reply:
			if want := (actors.InFlight{Sessions: 3, Engines: 1}); n != want {
				c.w.t.Errorf("node %d: in flight %+v, want %+v", i, n, want)
			}
		case <-time.After(time.Minute):
			c.w.t.Errorf("node %d: the transport does not answer", i)
		}
	}
}
