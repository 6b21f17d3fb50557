package transfer

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/messages"
)

var (
	seeds = flag.Int("seeds", 400, "how many random rooms each mode plays")
	seed  = flag.Uint64("seed", 0, "play this room only, and print it")
)

// mode is what may go wrong in a random room.
type mode struct {
	name                                string
	lossy, unsure, aborts, deaths, late bool
	calm                                bool // so little goes wrong that the room completes
}

var modes = []mode{
	{name: "lossy", lossy: true, calm: true},
	{name: "unsure", lossy: true, unsure: true},
	{name: "aborts", lossy: true, unsure: true, aborts: true},
	{name: "deaths", lossy: true, unsure: true, deaths: true},
	{name: "all", lossy: true, unsure: true, aborts: true, deaths: true, late: true},
}

// TestRandomRooms plays rooms of 1 to 4 writers and 1 to 4 receivers with
// messages lost and out of order, writes lost, fences, aborts and deaths. The
// world checks every step; once faults stop everything has to end.
func TestRandomRooms(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			complete, first, last := 0, uint64(1), uint64(*seeds)
			if *seed != 0 {
				first, last = *seed, *seed
			}
			for s := first; s <= last; s++ {
				if playRandom(t, m, s) {
					complete++
				}
			}
			t.Logf("%d of %d rooms completed", complete, last-first+1)
		})
	}
}

// endWithin is the longest chain of deadlines, with default limits, once nothing
// is lost any more: a wait, the limit of writing, the limit of a vote. Short
// rooms are within the first second of FloorTokens.
const endWithin = (30 + 60 + 45 + 1) * time.Second

func playRandom(t *testing.T, m mode, s uint64) (complete bool) {
	rng := rand.New(rand.NewPCG(s, 7))
	shapes := [][2]int{{1, 1}, {2, 1}, {1, 2}, {1, 3}, {2, 2}, {4, 1}}
	p, d := shapes[rng.IntN(len(shapes))], shapes[rng.IntN(len(shapes))]
	set := setting{
		prefillTP: p[0], prefillPP: p[1], decodeTP: d[0], decodePP: d[1],
		length: 1 + rng.Uint64N(40), prefix: map[string]uint64{}, verbs: rng.IntN(3) == 0, noMeta: rng.IntN(5) == 0, scattered: rng.IntN(2) == 0,
		hybrid: rng.IntN(3) == 0,
	}
	set.limits.GrantRuns = 1 + rng.IntN(2)
	set.limits.Window = 1 + rng.IntN(4)
	set.limits.WriteBytes = 1 + rng.Uint64N(60)
	for n := range d[0] * d[1] {
		if rng.IntN(2) == 0 {
			set.prefix[fmt.Sprintf("d%d", n)] = rng.Uint64N(set.length + 1)
		}
	}
	w := newWorld(seedTB{t, m.name, s}, set)
	r := &randomRoom{w: w, m: m, rng: rng, chunks: cuts(rng, set.length), next: map[*engine]int{}, layers: map[*engine]int{}, opened: map[*engine]bool{}}
	for range 50 + rng.IntN(250) {
		r.act()
		w.settle()
	}
	stopped := w.now
	r.finish()
	w.checkEnd()
	if took := w.now.Sub(stopped); took > endWithin {
		w.fail("faults stopped, and the room ended %v later, want within %v", took, endWithin)
	}
	if *seed != 0 {
		for _, line := range w.trace {
			t.Log(line)
		}
	}
	for _, e := range w.engines {
		for _, f := range e.finishes {
			complete = complete || f.Outcome.GetComplete() && !f.Excused
		}
	}
	if m.calm && !complete {
		w.fail("nothing but loss and delay, and the room did not complete")
	}
	return complete
}

// seedTB says which room failed.
type seedTB struct {
	testing.TB
	mode string
	seed uint64
}

func (s seedTB) Fatalf(format string, args ...any) {
	s.TB.Helper()
	s.TB.Fatalf("mode %s, -seed %d: %s", s.mode, s.seed, fmt.Sprintf(format, args...))
}

func cuts(rng *rand.Rand, length uint64) []uint64 {
	var out []uint64
	for at := uint64(0); at < length; {
		at = min(length, at+1+rng.Uint64N(length))
		out = append(out, at)
	}
	return out
}

type randomRoom struct {
	w      *world
	m      mode
	rng    *rand.Rand
	chunks []uint64        // where each ends
	layers map[*engine]int // of the next chunk, that came already
	next   map[*engine]int
	opened map[*engine]bool
}

func pickOf[T any](rng *rand.Rand, list []T) (T, bool) {
	if len(list) == 0 {
		var none T
		return none, false
	}
	return list[rng.IntN(len(list))], true
}

// act does one thing.
func (r *randomRoom) act() {
	w, n := r.w, r.rng.IntN(100)
	switch {
	case n < 12:
		r.callers()
	case n < 52:
		if p, ok := pickOf(r.rng, w.net); ok {
			switch {
			case !r.m.lossy || r.rng.IntN(10) > 1:
				w.deliver(p)
			case r.rng.IntN(2) == 0:
				w.net = slices.DeleteFunc(w.net, func(q *packet) bool { return q == p })
			default: // the same message twice: it has one number
				w.net = append(w.net, &packet{p.n, p.from, p.to, p.number, p.body})
			}
		}
	case n < 75:
		if f, ok := pickOf(r.rng, w.flights); ok {
			r.write(f)
		}
	case n < 80:
		if f, ok := pickOf(r.rng, w.ghosts); ok {
			w.haunt(f)
		}
	case n < 84:
		if e, ok := pickOf(r.rng, w.engines); ok {
			w.tellWithheld(e, func(withheld) bool { return true })
		}
	case n < 88:
		w.tick(time.Duration(1+r.rng.IntN(400)) * time.Millisecond)
	case n < 96:
		r.link()
	default:
		r.trouble()
	}
}

func (r *randomRoom) callers() {
	e, _ := pickOf(r.rng, r.w.engines)
	switch {
	case e.dead:
	case !r.opened[e]:
		r.opened[e] = true
		if e.prefill {
			e.send(0)
		} else if e.record == nil {
			e.receive(0)
		}
	case e.prefill && r.next[e] < len(r.chunks):
		r.chunk(e)
	}
}

// chunk is the next chunk of an engine, or some layers of it.
func (r *randomRoom) chunk(e *engine) {
	n := r.next[e]
	c := Chunk{To: r.chunks[n], Source: e.sourcePages(), Last: n == len(r.chunks)-1}
	if n > 0 {
		c.From = r.chunks[n-1]
	}
	if r.layers[e] < 2 && r.rng.IntN(3) == 0 { // of the layers 0 to 2
		r.layers[e] += 1 + r.rng.IntN(2-r.layers[e])
		c.Layers = r.layers[e]
	} else {
		r.next[e]++
		r.layers[e] = 0
	}
	e.step(c)
}

func (r *randomRoom) write(f *flight) {
	n := r.rng.IntN(20)
	switch {
	case r.m.unsure && n == 0:
		r.w.lose(f)
	case n == 1:
		r.w.unflight(f)
		r.w.complete(f, notPosted)
	default:
		r.w.land(f, n < 8)
	}
}

// link does something to the connection of a pair.
func (r *randomRoom) link() {
	p, _ := pickOf(r.rng, r.w.engines)
	d, _ := pickOf(r.rng, r.w.engines)
	if p.prefill == d.prefill || p.dead || d.dead {
		return
	}
	l := r.w.link(p, d)
	switch n := r.rng.IntN(4); {
	case n == 0:
		r.w.suspect(l, !l.suspect)
	case !r.m.unsure:
	case n == 1:
		r.w.fence(l, r.rng.IntN(2) == 0, true)
	case n == 2 && l.up:
		r.w.fence(l, r.rng.IntN(2) == 0, false)
	case !l.up:
		r.w.renew(l)
	}
}

func (r *randomRoom) trouble() {
	e, _ := pickOf(r.rng, r.w.engines)
	switch n := r.rng.IntN(8); {
	case e.dead:
	case n == 0 && r.m.aborts:
		e.step(Abort{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_ABORTED, Text: "the caller gave up", Origin: e.name}})
	case n == 1 && r.m.deaths:
		r.w.die(e)
	case n == 3 && r.m.late && r.w.setting.verbs:
		if g, ok := pickOf(r.rng, r.w.grants); ok && g.owner != nil {
			if g.stuck = !g.stuck; !g.stuck && g.gone && r.rng.IntN(2) == 0 {
				r.w.closeLate(g)
			}
		}
	case n == 2 && r.m.late:
		r.w.tick(time.Duration(r.rng.IntN(20)) * time.Second)
	}
}

// finish stops all faults and lets everything end.
func (r *randomRoom) finish() {
	w := r.w
	for _, g := range w.grants {
		g.stuck = false
	}
	for _, l := range w.sortedLinks() {
		w.suspect(l, false)
		if !l.up && !l.prefill.dead && !l.decode.dead {
			w.renew(l)
		}
	}
	for _, e := range w.engines {
		for !r.opened[e] && !e.dead && r.m.calm {
			r.opened[e] = true
			if e.prefill {
				e.send(0)
			} else {
				e.receive(0)
			}
		}
	}
	w.settle()
	for range 3000 {
		for _, e := range w.engines {
			if e.prefill && r.opened[e] && r.next[e] < len(r.chunks) && !e.dead {
				r.chunk(e)
			}
			w.tellWithheld(e, func(withheld) bool { return true })
		}
		w.settle()
		for len(w.net) > 0 {
			w.deliver(w.net[0])
		}
		for len(w.flights) > 0 {
			w.land(w.flights[0], false)
			w.settle()
		}
		if r.over() {
			return
		}
		w.tick(250 * time.Millisecond)
	}
}

func (r *randomRoom) over() bool {
	return !slices.ContainsFunc(r.w.engines, func(e *engine) bool { return e.machine != nil && !e.dead })
}
