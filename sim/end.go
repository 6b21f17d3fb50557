package sim

import (
	"fmt"
	"time"
)

// endWithin is the longest chain of deadlines once nothing is wrong any more: a link that
// is suspect and redialled with the longest pause, and then a room that begins to wait,
// is written, votes, drains and lingers; twice, for a request that begins again.
func (w *world) endWithin() time.Duration {
	l := &w.plan.limits
	return 30*time.Second + 2*(l.WaitMax+l.Grace+l.Stall+l.Vote+l.Drain+l.Refence+l.Linger)
}

// end has everything end: first what was begun, then one more request, which completes;
// then every count is back.
func (w *world) end() {
	if !w.settle("after the faults") {
		return
	}
	r := w.newRequest(1000)
	r.mustLand = true
	r.begin()
	w.settle("after the last request")
	if w.failed == nil && !r.over {
		w.fail("not-complete", "the last request is not over")
	}
}

// settle plays on until nothing is open, and says false where that does not come.
func (w *world) settle(when string) bool {
	until := w.now + w.endWithin()
	why := ""
	for w.failed == nil && w.now < until {
		w.runUntil(w.now + 200*time.Millisecond)
		if why = w.open(); why == "" {
			return w.failed == nil
		}
	}
	w.fail("stuck", "%s, %v later: %s", when, w.endWithin(), why)
	return false
}

// open is what has not ended; "" when all has, and everybody is paired with everybody.
func (w *world) open() string {
	for _, h := range w.hosts {
		p := h.now
		if p == nil {
			return h.name + " does not run"
		}
		for _, e := range p.engines {
			if why := e.holding(); why != "" {
				return fmt.Sprintf("%s: %s", e.name, why)
			}
		}
		if n := len(p.card.grants); n > 0 {
			return fmt.Sprintf("%s: %d grants are in force", p.id, n)
		}
		if n := len(p.card.tags); n > 0 {
			return fmt.Sprintf("%s: %d rooms have writes, or unknown ones", p.id, n)
		}
		for _, o := range w.hosts {
			if o.now == nil || o == h {
				continue
			}
			if l := p.link(o.now.id); l == nil || !l.up {
				return fmt.Sprintf("%s has no link with %s", p.id, o.now.id)
			}
		}
		if len(p.links) != len(w.hosts)-1 {
			return fmt.Sprintf("%s has %d links, of %d others", p.id, len(p.links), len(w.hosts)-1)
		}
		if !p.ready["p+d"] {
			return fmt.Sprintf("%s: the instances are not paired", p.id)
		}
	}
	return ""
}

// holding is what an engine still holds.
func (e *engine) holding() string {
	free, total := e.pools.Pages()
	switch {
	case !e.serving:
		return "it is not attached"
	case len(e.rooms) > 0:
		r := e.rooms[0]
		state := "closed"
		if r.machine != nil {
			state = r.machine.State()
		}
		return fmt.Sprintf("room %s is %s", r.id, state)
	case len(e.held) > 0:
		return fmt.Sprintf("the pages of room %s are not freed", e.held[0].id)
	case e.waiting.Len() > 0:
		return "somebody waits for pages"
	case free != total-e.taken:
		return fmt.Sprintf("%d of %d pages are free", free, total-e.taken)
	}
	return ""
}
