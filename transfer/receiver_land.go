package transfer

import (
	"fmt"
	"slices"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// onReceived hands a message on to what takes it. Before the pairing nothing can
// be checked: votes wait, all else comes again.
func (r *Receiver) onReceived(ev Received) {
	if r.pairing == nil {
		r.keepEarly(ev)
		return
	}
	_, answer := ev.Body.(*messages.Answer)
	if ok, other := r.memberOf(ev.From); !ok && !answer {
		r.misfit(ev.From, differs("from", ev.From, "an engine of this room's rosters"))
		if other && isVote(ev.Body) && r.state < ReceiverDraining {
			r.fail(r.causeOf(messages.CauseKind_CAUSE_ROSTER_CHANGED, "%s voted, whose incarnation is not on this side's roster", ev.From))
		}
		return
	}
	switch b := ev.Body.(type) {
	case *messages.Landed:
		r.onLanded(ev.From)
	case *messages.Failed:
		r.onFailed(ev.From, b)
	case *messages.Outcome:
		r.onOutcome(ev.From, b)
	case *messages.LandedAck:
		r.acked(ev.From, topicLanded)
	case *messages.FailedAck:
		r.acked(ev.From, topicFailed)
	case *messages.OutcomeAck:
		r.acked(ev.From, topicOutcome)
	default:
		r.onWriter(ev.From, ev.Body)
	}
}

func isVote(body any) bool {
	switch body.(type) {
	case *messages.Done, *messages.Landed, *messages.Failed:
		return true
	}
	return false
}

// keepEarly keeps votes that the engine kept for this room before it was opened,
// one of each engine.
func (r *Receiver) keepEarly(ev Received) {
	switch ev.Body.(type) {
	case *messages.Landed, *messages.Failed:
	default:
		return
	}
	same := func(m Received) bool { return m.From == ev.From }
	if len(r.early) < r.limits.Entries && !slices.ContainsFunc(r.early, same) {
		r.early = append(r.early, ev)
	}
}

// onWriter takes what only a writer of this receiver says.
func (r *Receiver) onWriter(from messages.Engine, body any) {
	w := r.writerOf(from)
	if w == nil {
		switch body.(type) {
		case *messages.DeclinedAck:
			r.acked(from, topicDeclined)
		case *messages.Quiet: // of a room that gave it nothing
			r.send(from, &messages.QuietAck{})
		case *messages.Answer:
		default:
			r.misfit(from, differs("from", from, "a writer of "+r.self.String()))
		}
		return
	}
	switch b := body.(type) {
	case *messages.GrantAck:
		r.onGrantAck(w, b)
	case *messages.Known:
		r.known()
		r.send(from, &messages.KnownAck{})
	case *messages.ExcusedAck:
		r.onExcusedAck(w, b)
	case *messages.DeclinedAck:
		r.acked(from, topicDeclined)
	case *messages.Done:
		r.onDone(w, b)
	case *messages.MissingAck:
		r.box.done(outKey{from, topicMissing, w.grant})
	case *messages.Quiet:
		r.onQuiet(w, b)
	case *messages.Answer:
		r.onAnswer(w, b)
	default:
		r.misfit(from, differs("body", fmt.Sprintf("%T", b), "a message to a receiver"))
	}
}

func (r *Receiver) onGrantAck(w *writer, a *messages.GrantAck) {
	id, bad := grantID("id", a.GetId())
	if bad != nil || !w.named || id != w.grant || !w.sent {
		return // an acknowledgement of nothing that this room sent
	}
	r.box.done(outKey{w.engine, topicGrant, w.grant})
	if a.GetRefused() != nil {
		if !w.isDone {
			r.refusedBy(cleanCause(a.GetRefused(), w.engine))
		}
		return
	}
	if a.GetKnown() {
		r.known()
	}
}

// refusedBy fails a room whose writer will not write. It has not voted, so
// neither has this side.
func (r *Receiver) refusedBy(c *messages.Cause) {
	if r.open() {
		r.fail(c)
	}
}

func (r *Receiver) onExcusedAck(w *writer, a *messages.ExcusedAck) {
	if w.named {
		return
	}
	r.acked(w.engine, topicExcused)
	if a.GetRefused() != nil {
		if !w.acked {
			r.refusedBy(cleanCause(a.GetRefused(), w.engine))
		}
		return
	}
	w.acked = true
	if a.GetKnown() {
		r.known()
	}
}

// onAnswer: a writer says that the room has failed for it. Without such news an
// answer changes nothing.
func (r *Receiver) onAnswer(w *writer, a *messages.Answer) {
	if o := a.GetOutcome(); o != nil && !o.GetComplete() && w.named && !w.isDone {
		r.refusedBy(cleanCause(o.GetCause(), w.engine))
	}
}

func (r *Receiver) onArrived(ev Arrived) {
	w := r.writerBy(ev.Grant)
	if w == nil {
		return
	}
	w.counts = addCount(w.counts, stripe{ev.Generation, ev.Stripe}, ev.Count)
	r.known()
	if r.state == ReceiverGranting || r.state == ReceiverWriting {
		r.begin()
		if ev.Bytes > 0 {
			r.stallBy.set(r.now.Add(r.limits.Stall))
		}
	}
}

// begin is the start of the writing, and of its limits.
func (r *Receiver) begin() {
	if r.state == ReceiverGranting {
		r.waitBy.clear()
		r.stallBy.set(r.now.Add(r.limits.Stall))
		r.absoluteBy.set(r.now.Add(r.limits.writing(r.config.Length)))
		r.move(ReceiverWriting)
	}
}

// onDone takes the word of a writer that all its writes have landed.
func (r *Receiver) onDone(w *writer, d *messages.Done) {
	id, bad := grantID("grant", d.GetGrant())
	if bad == nil && (!w.named || id != w.grant || !w.sent) {
		bad = differs("grant", id, "the grant of "+w.engine.String())
	}
	var counts []count
	if bad == nil {
		counts, bad = readArrivals(d.GetArrivals(), &r.limits)
	}
	if bad != nil {
		r.misfit(w.engine, bad)
		return
	}
	switch r.state {
	case ReceiverGranting, ReceiverWriting:
	default:
		if r.decides() && r.outcome != nil {
			r.retell(w.engine)
		}
		return // counted already, or too late
	}
	r.begin()
	r.box.done(outKey{w.engine, topicGrant, w.grant})
	if d.GetBytes() != w.bytes {
		r.fail(r.causeOf(messages.CauseKind_CAUSE_PROTOCOL, "writer %s wrote %d bytes, the grant covers %d", w.engine, d.GetBytes(), w.bytes))
		return
	}
	r.known()
	w.done, w.isDone = counts, true
	r.box.done(outKey{w.engine, topicMissing, w.grant})
}

// land looks whether everything is there, and says what is missing.
func (r *Receiver) land() {
	all := true
	for _, w := range r.writers {
		if !w.named {
			all = all && (w.acked || !w.gates)
			continue
		}
		if w.isDone && !w.arrived() {
			r.findMissing(w)
			if r.state != ReceiverWriting {
				return
			}
		}
		all = all && w.isDone && w.arrived()
	}
	if !all {
		return
	}
	r.stallBy.clear()
	r.localBy.set(r.now.Add(r.limits.Local))
	if r.hasMeta {
		r.move(ReceiverChecking)
		r.emit(ReadMeta{Row: r.config.At.MetaRow})
		return
	}
	r.revokeAll()
}

// arrived reports whether every arrival that a writer counts on was counted.
func (w *writer) arrived() bool {
	for _, need := range w.done {
		if countOf(w.counts, need.stripe) < need.arrivals {
			return false
		}
	}
	return true
}

// findMissing looks for arrivals that cannot come any more: their generation is
// fenced. The writer posts that generation's writes again.
func (r *Receiver) findMissing(w *writer) {
	var missing []rdma.Generation
	for _, need := range w.done {
		g := need.generation
		fenced := g.Number < r.fencedBelow[w.engine] || slices.Contains(w.fenced, g)
		if fenced && countOf(w.counts, need.stripe) < need.arrivals {
			missing = addGeneration(missing, g)
		}
	}
	switch {
	case len(missing) == 0:
	case w.lost:
		r.fail(r.causeOf(messages.CauseKind_CAUSE_PEER_LOST, "writer %s is gone, and some of its arrivals were lost", w.engine))
	default:
		w.done, w.isDone = nil, false
		r.repeat(w.engine, topicMissing, w.grant, &messages.Missing{Grant: w.grant[:], Generations: wireGenerations(missing)})
	}
}

func (r *Receiver) onMetaRead(ev MetaRead) {
	switch {
	case r.state != ReceiverChecking:
	case ev.Room != r.id:
		r.fail(r.causeOf(messages.CauseKind_CAUSE_META_MISMATCH, "metadata row %d is of room %s, want %s", r.config.At.MetaRow, ev.Room, r.id))
	default:
		r.revokeAll()
	}
}

// revokeAll closes the grants, before the vote.
func (r *Receiver) revokeAll() {
	r.move(ReceiverRevoking)
	r.localBy.set(r.now.Add(r.limits.Local))
	for _, w := range r.writers {
		if w.named && w.state == grantLive {
			r.revoke(w)
		}
	}
}

func (r *Receiver) revoke(w *writer) {
	w.state = grantRevoking
	r.emit(Revoke{Grant: w.grant})
}

// owing says, for people, whom the room waits for.
func (r *Receiver) owing() string {
	for _, w := range r.writers {
		switch {
		case w.named && !w.isDone:
			return fmt.Sprintf("writer %s is not done", w.engine)
		case w.named && !w.arrived():
			return fmt.Sprintf("writer %s is done, and not all has arrived", w.engine)
		case w.gates && !w.acked:
			return fmt.Sprintf("%s has not heard that it is excused", w.engine)
		}
	}
	return "nothing is owed"
}
