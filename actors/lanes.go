package actors

import (
	"runtime"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Lanes runs the mailboxes of a node's actors in goroutines that stay: a mailbox
// that has something to do is queued, and the next free lane runs it until it is
// empty. The runtime's own dispatcher begins a goroutine each time, whose stack grows
// anew, and each of them may wake a processor: together that was a third of what a
// small room cost.
//
// A message that an actor sends waits for the actor to return rather than for another
// processor to wake up, as long as that is soon. When something is sent and a mailbox
// has waited for lanesBehind by then, another lane begins: at most one per processor.
// Where nothing moves on for a whole lanesGuard, the lanes that run then are stuck, and
// another begins, without limit. A stuck lane does not count until it moves on: an
// actor, or a func that a caller gave it, that blocks or is long at work holds up the
// others once, for two lanesGuard at most, and then no more.
//
// It is safe for use by several goroutines.
type Lanes struct {
	clock Clock
	most  int // by what is sent

	mu      sync.Mutex
	wake    sync.Cond
	queue   []mailboxRun
	head    int    // of queue
	taken   uint64 // from queue, ever
	active  int    // lanes that run a mailbox, or are about to look for one
	running int    // of these, lanes that run a mailbox
	stuck   int    // of these, lanes that have run it since taken was stuckAt
	stuckAt uint64 // taken, when nothing moved on
	idle    int    // lanes that wait, less those that were woken
	guarded bool   // a guard is set
	closed  bool
}

type mailboxRun struct {
	run    func()
	queued time.Time
}

var _ actor.Dispatcher = (*Lanes)(nil)

// NewLanes is a dispatcher without goroutines. Close ends those that it begins.
func NewLanes(clock Clock) *Lanes {
	l := &Lanes{clock: clock, most: runtime.GOMAXPROCS(0)}
	l.wake.L = &l.mu
	return l
}

// Throughput is called by the runtime.
func (*Lanes) Throughput() int { return lanesThroughput }

// Schedule is called by the runtime, in the goroutine of whoever sends.
func (l *Lanes) Schedule(run func()) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		go run()
		return
	}
	l.push(mailboxRun{run, now})
	switch moving := l.active - l.stuck; {
	case moving == 0:
		l.begin()
	case moving < l.most && now.Sub(l.queue[l.head].queued) >= lanesBehind:
		l.begin()
	}
	l.guard()
}

// push queues a mailbox. Under load the queue is never empty: what was taken makes
// room before the queue grows.
func (l *Lanes) push(r mailboxRun) {
	if len(l.queue) == cap(l.queue) && l.head > len(l.queue)/2 {
		n := copy(l.queue, l.queue[l.head:])
		clear(l.queue[n:])
		l.queue, l.head = l.queue[:n], 0
	}
	l.queue = append(l.queue, r)
}

// begin starts a lane, or one that waits.
func (l *Lanes) begin() {
	l.active++
	if l.idle > 0 {
		l.idle--
		l.wake.Signal()
		return
	}
	go l.lane()
}

// guard sees to it that what waits is taken, sooner or later.
func (l *Lanes) guard() {
	if l.guarded || l.head == len(l.queue) {
		return
	}
	l.guarded = true
	taken := l.taken
	l.clock.AfterFunc(lanesGuard, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.guarded = false
		if !l.closed && l.taken == taken && l.head < len(l.queue) {
			l.stuck, l.stuckAt = l.running, l.taken
			l.begin()
		}
		l.guard()
	})
}

// lane runs mailboxes until the lanes are closed.
func (l *Lanes) lane() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.head == len(l.queue) {
			l.active--
			if l.closed || l.idle >= l.most {
				return
			}
			l.idle++
			l.wake.Wait()
			if l.closed {
				return
			}
		}
		run := l.queue[l.head].run
		l.queue[l.head] = mailboxRun{}
		l.taken++
		if l.head++; l.head == len(l.queue) {
			l.queue, l.head = l.queue[:0], 0
		}
		l.run(run)
	}
}

// run runs the mailbox that was taken last, without the lock.
func (l *Lanes) run(run func()) {
	l.running++
	number, returned := l.taken, false
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.running--
		if number <= l.stuckAt {
			l.stuck--
		}
		if returned {
			return
		}
		l.active-- // runtime.Goexit, by a func that a caller gave, ends the lane
		if !l.closed && l.head < len(l.queue) {
			l.begin()
		}
	}()
	run()
	returned = true
}

// Close ends the goroutines, those that run a mailbox when it is empty. Mailboxes
// that are scheduled from now on get a goroutine each.
func (l *Lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, r := range l.queue[l.head:] {
		go r.run()
	}
	l.queue, l.head = nil, 0
	l.wake.Broadcast()
}
