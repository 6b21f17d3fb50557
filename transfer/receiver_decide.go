package transfer

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// vote says landed, once every revoke is answered. A grant that the provider
// left open is no danger here: its writer is done and everything it counted on
// was counted, so nothing of it is on the way.
func (r *Receiver) vote() {
	for _, w := range r.writers {
		if w.named && w.state == grantRevoking {
			return
		}
	}
	limit := r.limits.Vote
	if r.decides() {
		limit = r.limits.Decide
	}
	r.voteBy.set(r.absoluteBy.at.Add(limit))
	r.absoluteBy.clear()
	r.localBy.clear()
	r.move(ReceiverVoted)
	if r.decides() {
		r.votes[r.self] = true
		r.decide()
		return
	}
	r.repeat(r.decider(), topicLanded, rdma.GrantID{}, &messages.Landed{})
}

// decide completes the room when every receiver has landed.
func (r *Receiver) decide() {
	if !r.decides() {
		return
	}
	for _, e := range r.receivers {
		if !r.votes[e] {
			return
		}
	}
	r.complete(&messages.Outcome{Complete: true})
	r.tellOutcome()
}

// complete ends a room whose bytes are all there.
func (r *Receiver) complete(o *messages.Outcome) {
	r.conclude(o, false)
	r.free()
	r.tell()
}

// tell begins the last state.
func (r *Receiver) tell() {
	r.move(ReceiverTelling)
	r.voteBy.clear()
	r.lingerBy.set(r.now.Add(r.limits.Linger))
}

// tellOutcome tells every participant how the room ended, until it acknowledges.
func (r *Receiver) tellOutcome() {
	for _, e := range r.participants {
		r.repeat(e, topicOutcome, rdma.GrantID{}, r.outcome)
	}
}

// retell says the outcome to who asks for it, if it is not being told anyway.
func (r *Receiver) retell(to messages.Engine) {
	if !r.box.waits(outKey{to: to, topic: topicOutcome}) {
		r.send(to, r.outcome)
	}
}

// onLanded takes a receiver's vote.
func (r *Receiver) onLanded(from messages.Engine) {
	switch {
	case !r.decides():
		r.misfit(from, differs("to", r.self, "the decider "+r.decider().String()))
	case !r.isReceiver(from):
		r.misfit(from, differs("from", from, "a receiver of this room"))
	case r.outcome != nil:
		r.retell(from)
	default:
		r.votes[from] = true
		r.send(from, &messages.LandedAck{})
	}
}

// onFailed takes the cause of a participant. The decider fails the room, unless
// it has decided.
func (r *Receiver) onFailed(from messages.Engine, f *messages.Failed) {
	switch {
	case !r.decides():
		r.misfit(from, differs("to", r.self, "the decider "+r.decider().String()))
	case !r.isReceiver(from) && !r.isSender(from):
		r.misfit(from, differs("from", from, "an engine of this room"))
	case r.outcome != nil:
		r.retell(from)
	default:
		r.send(from, &messages.FailedAck{})
		r.fail(cleanCause(f.GetCause(), from))
	}
}

func (r *Receiver) isSender(e messages.Engine) bool {
	return e.Instance == r.pairing.Prefill && e.Rank.DP == r.route.PrefillDP
}

// fail ends the room: by the decider, who decides; by another receiver, as long
// as it has not voted. Once it has, the cause is handed to the decider.
func (r *Receiver) fail(c *messages.Cause) {
	switch {
	case r.state == ReceiverWaiting:
		r.dropEarly(c)
	case r.ended():
	case r.decides():
		r.end(&messages.Outcome{Cause: c})
		r.tellOutcome()
	case r.state == ReceiverVoted:
		if r.cause == nil {
			r.cause = c
			r.repeat(r.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c, Voted: true})
		}
	case len(r.receivers) == 0 || r.box.gone[r.decider()]:
		r.end(&messages.Outcome{Cause: c})
	default:
		r.cause = c
		r.stop()
		r.repeat(r.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c})
		r.decline()
		r.wordBy.set(r.now.Add(r.limits.Word))
		r.drain()
	}
}

// dropEarly drops a request that was never paired. Nothing was granted. It stays
// for its limit, to decline when the pairing comes; an attempt that a later one
// replaces does not, for that one tells the writers itself.
func (r *Receiver) dropEarly(c *messages.Cause) {
	r.cause = c
	r.conclude(&messages.Outcome{Cause: c}, false)
	r.free()
	r.move(ReceiverTelling)
	if c.GetKind() == messages.CauseKind_CAUSE_SUPERSEDED {
		r.waitBy.clear()
	}
}

// end ends the room with an outcome that is not complete.
func (r *Receiver) end(o *messages.Outcome) {
	r.cause = o.GetCause()
	r.stop()
	r.conclude(o, false)
	r.decline()
	r.drain()
}

// stop forgets what was to be said while the room was open.
func (r *Receiver) stop() {
	r.box.drop(func(k outKey) bool { return k.topic == topicFailed })
	for _, d := range []*deadline{&r.waitBy, &r.stallBy, &r.absoluteBy, &r.localBy, &r.voteBy} {
		d.clear()
	}
}

// decline tells the writers of a room that granted nothing yet.
func (r *Receiver) decline() {
	for _, w := range r.writers {
		if w.named && w.sent {
			return
		}
	}
	for _, w := range r.writers {
		if w.named {
			r.repeat(w.engine, topicDeclined, rdma.GrantID{}, &messages.Declined{Cause: r.cause})
		}
	}
}

// onOutcome takes the decider's word. Nobody else's counts.
func (r *Receiver) onOutcome(from messages.Engine, wire *messages.Outcome) {
	if r.decides() || len(r.receivers) == 0 || from != r.decider() {
		return
	}
	o := cleanOutcome(wire, from)
	switch {
	case r.outcome != nil:
	case o.GetComplete() && r.state != ReceiverVoted:
		r.misfit(from, differs("outcome", "complete", "failed: this receiver has not voted ("+r.state.String()+")"))
		return
	case o.GetComplete():
		r.box.drop(func(outKey) bool { return false })
		r.complete(o)
	case r.ended():
		r.cause = o.GetCause()
		r.wordBy.clear()
		r.conclude(o, false)
	default:
		r.end(o)
	}
	r.acked(from, topicFailed)
	r.send(from, &messages.OutcomeAck{})
}

// onPeerLost: an engine of the room is gone.
func (r *Receiver) onPeerLost(ev PeerLost) {
	r.box.lost(ev.Engine)
	cause := ev.Cause
	if cause == nil {
		cause = r.causeOf(messages.CauseKind_CAUSE_PEER_LOST, "engine %s is gone", ev.Engine)
	}
	if w := r.writerOf(ev.Engine); w != nil {
		r.writerLost(w, cause)
		return
	}
	if !r.isReceiver(ev.Engine) {
		return
	}
	decider := ev.Engine == r.decider()
	switch {
	case r.ended() && decider && r.outcome == nil:
		r.wordBy.clear()
		r.conclude(&messages.Outcome{Cause: r.cause}, false)
	case r.state == ReceiverVoted && decider:
		r.end(r.unknown("the decider %s was lost after this side's vote: %s", ev.Engine, cause.GetText()))
	default:
		r.fail(cause)
	}
}

// writerLost: the death of a writer matters if it still owes something here. So does that
// of one that has not heard that it is excused, where another receiver may count on it:
// it may be alive, only not reached from here, and fail by itself for want of this side's
// word, after the room has completed.
func (r *Receiver) writerLost(w *writer, cause *messages.Cause) {
	owes := w.named && !w.isDone || w.gates && !w.acked && len(r.receivers) > 1
	w.lost = true
	w.acked = true
	if owes && r.open() {
		r.fail(cause)
	}
	r.fenceLost(w)
}
