package pairing

import (
	"slices"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// open asks for the session of the present generation.
func (l *Link) open() {
	l.opened = true
	c := Connect{Provider: l.provider, Generation: l.gen, Dial: l.low}
	if c.Dial {
		c.Endpoint = l.endpoint
	}
	l.emit(c)
}

func (l *Link) onConnected(g rdma.Generation) {
	if !l.opened || g != l.gen || l.connected {
		return // of a generation that is being fenced
	}
	l.connected = true
	if l.phase == connecting {
		l.goUp()
	}
}

func (l *Link) goUp() {
	l.phase = up
	l.upSince = l.now
	l.misfits = [2]Misfit{}
	l.setSuspect(false)
	l.emit(Up{Generation: l.gen, Provider: l.provider})
}

func (l *Link) onDisconnected(ev Disconnected) {
	if !l.opened || ev.Generation != l.gen {
		return
	}
	text := "session lost"
	if ev.Err != nil {
		text += ": " + ev.Err.Error()
	}
	l.blame(text)
	l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, text))
}

// onLimit gives up a generation that did not come up.
func (l *Link) onLimit() {
	text := "did not show that it heard our answer"
	if l.phase == connecting {
		text = "session did not connect in time"
		l.blame(text)
	}
	l.drop(l.cause(messages.CauseKind_CAUSE_EXPIRED, text))
}

// blame has the provider tried last for a while, if it never connected.
func (l *Link) blame(reason string) {
	if !l.opened || l.connected {
		return
	}
	l.failed[l.provider] = l.now
	if l.blamed[l.provider] != reason {
		l.blamed[l.provider] = reason
		l.emit(ProviderFailed{Provider: l.provider, Reason: reason})
	}
}

// drop ends the present generation or proposal, if any. What was opened is
// fenced; nothing else begins before that fence has returned.
func (l *Link) drop(cause *messages.Cause) {
	if l.phase == up {
		if l.now.Sub(l.upSince) >= l.c.Limits.RedialReset {
			l.attempts = 0
		}
		l.emit(Down{Generation: l.gen, Cause: cause})
	}
	if l.opened {
		l.fence(l.gen)
	}
	l.generation = generation{}
	if l.phase == ended {
		return
	}
	if l.phase != waiting {
		wait := min(l.c.Limits.RedialMin<<min(l.attempts, 16), l.c.Limits.RedialMax)
		l.redialAt = l.now.Add(spread(wait, l.c.Nonce()))
		l.attempts++
	}
	l.phase = waiting
}

func (l *Link) fence(g rdma.Generation) {
	l.fences = append(l.fences, g)
	l.emit(FenceSession{Generation: g})
}

// onFenced takes the end of a fence: of ours, or one that somebody else asked for.
func (l *Link) onFenced(ev Fenced) {
	if l.opened && ev.Generation == l.gen {
		l.opened = false
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "session was fenced"))
	}
	if n := slices.Index(l.fences, ev.Generation); n >= 0 {
		l.fences = slices.Delete(l.fences, n, n+1)
	}
	l.emit(FencedHere(ev))
}

// onFenceWanted ends a generation, or has the provider say that it is fenced.
func (l *Link) onFenceWanted(ev FenceWanted) {
	whichever := ev.Generation == rdma.Generation{}
	switch {
	case l.opened && (whichever || ev.Generation == l.gen):
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "fenced: "+ev.Reason))
		return
	case whichever && len(l.fences) > 0, slices.Contains(l.fences, ev.Generation):
		return // the fence that is under way answers
	case !whichever && ev.Generation == l.gen:
		// Agreed to, but not opened: it never will be.
		l.drop(l.cause(messages.CauseKind_CAUSE_TRANSPORT, "fenced: "+ev.Reason))
	}
	// Nothing of this generation moves. But what an earlier one has left open, of an earlier
	// Link perhaps, is open still, and who asks takes what is not listed for closed: only
	// the provider knows.
	l.fence(ev.Generation)
}
