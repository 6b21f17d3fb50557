package transfer

import (
	"slices"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// fail ends the room by this side's own will, as long as it has not voted. Once
// it has, the cause is handed to the decider, whose word ends the room.
func (s *Sender) fail(c *messages.Cause) {
	switch s.state {
	case SenderWaiting, SenderWriting:
	case SenderVoted:
		if s.handed == nil {
			s.handed = c
			s.repeat(s.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c, Voted: true})
		}
		return
	default:
		return // the first cause stands
	}
	s.cause = c
	if d := s.decider(); len(s.receivers) > 0 && !s.box.gone[d] {
		s.stop()
		s.repeat(d, topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c})
		s.wordBy.set(s.now.Add(s.limits.Word))
		s.drain()
		return
	}
	s.end(&messages.Outcome{Cause: c})
}

// end ends the room with an outcome that is not complete.
func (s *Sender) end(o *messages.Outcome) {
	if s.cause == nil {
		s.cause = o.GetCause()
	}
	s.stop()
	s.conclude(o, false)
	s.drain()
}

// stop forgets what was to be written and said.
func (s *Sender) stop() {
	s.chunks = nil
	for _, t := range s.targets {
		t.todo = nil
		t.retryAt.clear()
	}
	s.box.drop(func(k outKey) bool { return k.topic == topicFailed })
	for _, d := range []*deadline{&s.answerBy, &s.chunkBy, &s.progressBy, &s.absoluteBy, &s.voteBy} {
		d.clear()
	}
}

// drain stops the writes that are in flight.
func (s *Sender) drain() {
	if !s.posted {
		s.quiet()
		return
	}
	s.move(SenderDraining)
	s.localBy.set(s.now.Add(s.limits.Local))
	s.emit(Quiesce{})
}

// quiesceAgain asks again for what never waits for a peer, and fences the pairs
// on which writes are still in flight: the last resort.
func (s *Sender) quiesceAgain() {
	s.localBy.set(s.now.Add(s.limits.Local))
	s.emit(Quiesce{})
	for _, t := range s.targets {
		if slices.ContainsFunc(t.writes, func(w *write) bool { return w.state == writeFlying }) {
			s.emit(Fence{Peer: t.receiver})
		}
	}
}

// onQuiesced: every write of the room has completed.
func (s *Sender) onQuiesced(ev Quiesced) {
	if s.state != SenderDraining {
		return
	}
	for _, g := range ev.Unknown {
		s.sawUnknown(g)
	}
	clear(s.flying)
	s.localBy.clear()
	s.quiet()
}

// sawUnknown keeps a generation on which a write was unknown. Generations are of
// one pair of nodes; one that no completion told of could be of any.
func (s *Sender) sawUnknown(g rdma.Generation) {
	if slices.ContainsFunc(s.targets, func(t *target) bool { return slices.Contains(t.unknown, g) }) {
		return
	}
	for _, t := range s.targets {
		t.unknown = addGeneration(t.unknown, g)
	}
}

// quiet: nothing of the room reads a source any more. The receivers hear it.
func (s *Sender) quiet() {
	s.move(SenderQuiet)
	s.lingerBy.set(s.now.Add(s.limits.Linger))
	s.unpin()
	for _, t := range s.targets {
		if t.gave {
			s.tellQuiet(t)
		}
	}
}

func (s *Sender) tellQuiet(t *target) {
	s.repeat(t.receiver, topicQuiet, rdma.GrantID{}, &messages.Quiet{Unknown: wireGenerations(t.unknown)})
}

func (s *Sender) unpin() {
	if !s.unpinned {
		s.unpinned = true
		s.emit(UnpinSources{})
	}
}

// close ends the machine when everything is told.
func (s *Sender) close() {
	if s.state != SenderQuiet || len(s.box.entries) > 0 && !s.lingerBy.passed(s.now) {
		return
	}
	if s.outcome == nil {
		if s.wordBy.isSet() && !s.lingerBy.passed(s.now) {
			return
		}
		s.conclude(&messages.Outcome{Cause: s.endCause()}, false)
	}
	s.lingerBy.clear()
	s.wordBy.clear()
	s.move(SenderClosed)
	s.emit(Closed{})
}

// onOutcome takes the decider's word. Nobody else's counts.
func (s *Sender) onOutcome(from messages.Engine, wire *messages.Outcome) {
	if len(s.targets) == 0 && s.decides(from) {
		s.meet(from)
	}
	if len(s.targets) == 0 || from != s.decider() {
		return
	}
	o := cleanOutcome(wire, from)
	switch {
	case s.outcome != nil: // it was told already, or counts as unknown
		s.acked(from, topicFailed)
	case s.allExcused() && o.GetComplete(): // no participant; it fits
	case o.GetComplete() && s.state != SenderVoted:
		s.misfit(from, differs("outcome", "complete", "failed: this writer has not voted ("+s.state.String()+")"))
		return
	case o.GetComplete():
		s.stop()
		s.acked(from, topicFailed)
		s.conclude(o, false)
		s.unpin()
		s.send(from, &messages.OutcomeAck{})
		s.move(SenderClosed)
		s.emit(Closed{})
		return
	case s.ended():
		s.cause = o.GetCause()
		s.acked(from, topicFailed)
		s.wordBy.clear()
		s.conclude(o, false)
	default:
		s.cause = o.GetCause()
		s.acked(from, topicFailed)
		s.end(o)
	}
	s.send(from, &messages.OutcomeAck{})
}

// decides reports whether this receiver would be the decider of its rooms.
func (s *Sender) decides(e messages.Engine) bool {
	r := kv.Route{PrefillDP: s.self.Rank.DP, DecodeDP: e.Rank.DP, Room: s.id.Room}
	receivers := s.pairing.Fit.Receivers(r)
	return len(receivers) > 0 && receivers[0] == e.Rank
}

// onPeerLost: an engine of the room is gone. Whether a sibling's death matters
// is for the receivers that it still owes something.
func (s *Sender) onPeerLost(ev PeerLost) {
	s.box.lost(ev.Engine)
	if !s.isReceiver(ev.Engine) {
		return
	}
	cause := ev.Cause
	if cause == nil {
		cause = s.causeOf(messages.CauseKind_CAUSE_PEER_LOST, "receiver %s is gone", ev.Engine)
	}
	decider := ev.Engine == s.decider()
	switch {
	case s.state == SenderVoted && decider:
		s.end(s.unknown("the decider %s was lost after this side's vote: %s", ev.Engine, cause.GetText()))
	case s.ended() && decider && s.outcome == nil:
		s.wordBy.clear()
		s.conclude(&messages.Outcome{Cause: s.endCause()}, false)
	default:
		s.fail(cause)
	}
}
