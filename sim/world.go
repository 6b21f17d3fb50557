package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"kvferry/kv"
	"kvferry/messages"
)

// Options say how a seed is played.
type Options struct {
	Story func(Line) // nil: nobody reads it
	Bug   string     // a fault of the program that is planted; see Bugs

	// Keep, when it is not nil, leaves out the faults of which it says false, by their
	// number: so a story is made smaller.
	Keep func(fault int) bool
}

// Result is how a day went.
type Result struct {
	Seed     uint64
	Failed   *Violation // nil: everything held
	Digest   uint64
	Covered  Coverage
	Faults   int // that were drawn
	Rooms    int // attempts that callers opened
	Complete int // of them
	Events   int
	Took     time.Duration // in the world
}

// world is one day.
type world struct {
	options Options
	plan    plan
	rng     *rand.Rand
	now     time.Duration
	queue   queue
	hosts   []*host
	lives   []*process // oldest first
	at      map[string]*process
	grants  uint64 // drawn
	digest  uint64
	covered Coverage
	failed  *Violation
	truths  map[messages.RoomID]*truth
	result  Result
	calm    bool                     // the faults are over
	latest  map[[2]int]time.Duration // message of one way between two hosts, on its connection
	fit     *kv.Fit
}

// eventsMost is when a day is called endless.
const eventsMost = 400_000

// Run plays one seed.
func Run(seed uint64, o Options) (r Result) {
	w := &world{
		options: o, rng: rand.New(rand.NewPCG(seed, 0x6b76)), at: map[string]*process{}, digest: 14695981039346656037,
		truths: map[messages.RoomID]*truth{}, latest: map[[2]int]time.Duration{},
	}
	w.result.Seed = seed
	w.plan = draw(w.rng)
	defer func() {
		if p := recover(); p != nil { // a machine's own check, or a fault of it
			w.fail("panic", "%v", p)
		}
		r = w.result
		r.Failed, r.Digest, r.Covered, r.Took = w.failed, w.digest, w.covered, w.now
	}()
	w.begin()
	w.runUntil(w.plan.calmAt)
	w.makeCalm()
	w.end()
	return r
}

// after has something happen later.
func (w *world) after(d time.Duration, do func()) { w.queue.put(w.now+d, do) }

// runUntil plays what happens until a time.
func (w *world) runUntil(end time.Duration) {
	for w.failed == nil && len(w.queue.heap) > 0 && w.queue.heap[0].at <= end {
		w.step()
	}
	if w.failed == nil {
		w.now = max(w.now, end)
	}
}

func (w *world) step() {
	e, _ := w.queue.next()
	w.now = e.at
	w.result.Events++
	if w.result.Events > eventsMost {
		w.fail("endless", "%d things have happened, and the day is not over", w.result.Events)
		return
	}
	e.do()
}

// chance is a number below n.
func (w *world) chance(n int) int { return w.rng.IntN(n) }

// between is a time from low to below high.
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rng.Int64N(int64(high-low)))
}

// host is where processes of one name run, one after another.
type host struct {
	index   int
	name    string
	address string
	clock   clock
	now     *process // nil: none runs
	life    uint64   // of the newest
	version [2]uint32
	engines []attachment
}

// attachment is an engine that every life of the host attaches.
type attachment struct {
	instance string
	rank     kv.Rank
	prefill  bool
}

// begin starts everything.
func (w *world) begin() {
	w.tell("", "", "", "%s", w.plan)
	w.fit = w.plan.fit
	for i, h := range w.plan.hosts {
		w.hosts = append(w.hosts, &host{
			index: i, name: h.name, address: fmt.Sprintf("%s:7947", h.name), clock: clock{ppm: h.ppm}, engines: h.engines,
			version: [2]uint32{messages.ProtocolVersionMin, messages.ProtocolVersion},
		})
	}
	for _, h := range w.hosts {
		w.after(w.between(0, 50*time.Millisecond), func() { w.start(h) })
	}
	w.callers()
	w.faults()
}
