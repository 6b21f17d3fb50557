package transfer

import (
	"fmt"
)

// check runs a machine's invariants when the build tag invariants is set.
func check(valid func() error) {
	if !invariants {
		return
	}
	if err := valid(); err != nil {
		panic(err)
	}
}

// valid reports a broken invariant of a Sender, by its number.
func (s *Sender) valid() error {
	broken := func(n int, format string, args ...any) error {
		return fmt.Errorf("transfer: sender %s: invariant %d: %s (state %s)", s.id, n, fmt.Sprintf(format, args...), s.state)
	}
	if len(s.flying) > s.limits.Window {
		return broken(2, "%d writes in flight, window %d", len(s.flying), s.limits.Window)
	}
	for id, w := range s.flying {
		if w.state != writeFlying || id > s.lastWrite {
			return broken(2, "write %d in flight has state %d", id, w.state)
		}
	}
	for _, t := range s.targets {
		landed := 0
		for _, w := range t.writes {
			if w.state == writeLanded {
				landed++
			}
			if w.posts > s.limits.Posts {
				return broken(3, "a write to %s was posted %d times", t.receiver, w.posts)
			}
		}
		switch {
		case t.state != granted && t.state != refused && len(t.writes) > 0:
			return broken(1, "writes to %s, which has not granted", t.receiver)
		case landed != t.landed:
			return broken(4, "%d writes to %s landed, counted %d", landed, t.receiver, t.landed)
		case t.done && (landed < len(t.writes) || t.state != granted && t.state != refused):
			return broken(4, "done with %s, %d of %d landed", t.receiver, landed, len(t.writes))
		case s.state == SenderVoted && t.state != excused && !t.done:
			return broken(4, "voted, and not done with %s", t.receiver)
		case s.ended() && len(t.todo) > 0:
			return broken(1, "%d writes to %s are to be posted", len(t.todo), t.receiver)
		}
	}
	return s.validEnd(broken)
}

func (s *Sender) validEnd(broken func(int, string, ...any) error) error {
	still := len(s.flying) == 0
	switch {
	case s.state == SenderVoted && !still:
		return broken(4, "voted, with %d writes in flight", len(s.flying))
	case s.unpinned != (s.state == SenderQuiet || s.state == SenderClosed):
		return broken(6, "unpinned is %t", s.unpinned)
	case s.unpinned && !still:
		return broken(6, "unpinned with %d writes in flight", len(s.flying))
	case s.state == SenderClosed && s.outcome == nil:
		return broken(5, "closed without an outcome")
	case s.state != SenderClosed && s.Deadline().IsZero():
		return broken(8, "no deadline")
	case s.state != SenderClosed && !s.Deadline().After(s.now):
		return broken(8, "the deadline %v is not after now", s.Deadline().Sub(s.now))
	}
	return nil
}

// valid reports a broken invariant of a Receiver, by its number.
func (r *Receiver) valid() error {
	broken := func(n int, format string, args ...any) error {
		return fmt.Errorf("transfer: receiver %s: invariant %d: %s (state %s)", r.id, n, fmt.Sprintf(format, args...), r.state)
	}
	landed := r.state == ReceiverChecking || r.state == ReceiverRevoking || r.state == ReceiverVoted
	closed := true
	for _, w := range r.writers {
		closed = closed && (!w.named || w.state == grantClosed)
		switch {
		case w.named && w.sent && w.state == grantInstalling:
			return broken(1, "the grant for %s left before it was installed", w.engine)
		case landed && w.named && !(w.isDone && w.arrived()):
			return broken(2, "writer %s has not landed", w.engine)
		case landed && w.gates && !w.acked:
			return broken(2, "%s has not heard that it is excused", w.engine)
		case r.state == ReceiverVoted && w.named && w.state < grantOpen:
			return broken(3, "the grant for %s is live", w.engine)
		case r.state == ReceiverDraining && w.named && w.state == grantLive:
			return broken(1, "the grant for %s is not revoked", w.engine)
		}
	}
	complete := r.outcome.GetComplete()
	switch {
	case complete && r.decides() && len(r.votes) != len(r.receivers):
		return broken(4, "complete with %d of %d votes", len(r.votes), len(r.receivers))
	case r.state == ReceiverVoted && r.outcome != nil:
		return broken(5, "voted, with an outcome")
	case r.released && !closed && !complete:
		return broken(6, "released with open grants")
	case r.released != (r.state == ReceiverTelling || r.state == ReceiverClosed):
		return broken(6, "released is %t", r.released)
	case r.state == ReceiverClosed && r.outcome == nil:
		return broken(5, "closed without an outcome")
	case r.box.has(topicOutcome) && r.outcome == nil:
		return broken(4, "an outcome is told that is none")
	case r.state != ReceiverClosed && r.Deadline().IsZero():
		return broken(7, "no deadline")
	case r.state != ReceiverClosed && !r.Deadline().After(r.now):
		return broken(7, "the deadline %v is not after now", r.Deadline().Sub(r.now))
	}
	return nil
}
