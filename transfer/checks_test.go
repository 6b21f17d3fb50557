package transfer

import (
	"kvferry/messages"
)

// checkUnpin: no source is given back while the transport may read it.
func (w *world) checkUnpin(e *engine) {
	if e.unpinned > 1 {
		w.fail("%s unpinned its sources twice", e.name)
	}
	for _, f := range w.flights {
		if f.link.prefill == e {
			w.fail("%s unpinned its sources with write %d in flight", e.name, f.post.Write)
		}
	}
}

// checkRelease: no page is given back while anything can write into it.
func (w *world) checkRelease(e *engine) {
	if e.released > 1 {
		w.fail("%s released its pages twice", e.name)
	}
	if w.lied {
		return
	}
	for _, list := range [][]*flight{w.flights, w.ghosts} {
		for _, f := range list {
			if f.link.decode == e && w.mayLand(f) {
				w.fail("%s released its pages while write %d of %s may land", e.name, f.post.Write, f.link.prefill.name)
			}
		}
	}
}

// checkFinish: one outcome for all participants, and bytes that are right.
func (w *world) checkFinish(e *engine, f Finish) {
	if len(e.finishes) > 1 {
		w.fail("%s finished twice", e.name)
	}
	if f.Excused || w.lied {
		return
	}
	if f.Outcome.GetComplete() && !e.prefill {
		if n := e.wrongBytes(); n > 0 {
			w.fail("%s completed with %d wrong bytes", e.name, n)
		}
	}
	if f.Outcome.GetComplete() {
		for _, d := range w.engines {
			if d.prefill || d.dead || d.id.Rank.DP != w.setting.dp-1 {
				continue
			}
			if n := d.wrongBytes(); n > 0 {
				w.fail("%s completed, and %s has %d wrong bytes", e.name, d.name, n)
			}
		}
	}
	for _, other := range w.engines {
		for _, o := range other.finishes {
			if !o.Excused && !isUnknown(o.Outcome) && !isUnknown(f.Outcome) && o.Outcome.GetComplete() != f.Outcome.GetComplete() {
				w.fail("two outcomes: %s heard %v, %s heard %v", other.name, o.Outcome, e.name, f.Outcome)
			}
		}
	}
}

func isUnknown(o *messages.Outcome) bool {
	return o.GetCause().GetKind() == messages.CauseKind_CAUSE_UNKNOWN_OUTCOME
}

// checkEnd: everything has ended, and what was held is held no more.
func (w *world) checkEnd() {
	for _, e := range w.engines {
		if e.dead {
			continue
		}
		switch {
		case e.machine != nil:
			w.fail("%s has not ended: %s, due in %v", e.name, e.machine.State(), e.machine.Deadline().Sub(w.now))
		case e.closed && len(e.finishes) != 1:
			w.fail("%s finished %d times", e.name, len(e.finishes))
		case e.closed && e.prefill && e.unpinned != 1:
			w.fail("%s unpinned %d times", e.name, e.unpinned)
		case e.closed && !e.prefill && e.released != 1:
			w.fail("%s released %d times", e.name, e.released)
		}
	}
}

// failTrace is how many lines of what happened a failure prints.
const failTrace = 80
