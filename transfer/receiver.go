package transfer

import (
	"fmt"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// Receiver is one room in one decode engine: it grants to the writers that are
// elected for it, counts what arrives, votes, and, if it is the decider, says
// how the room ended. Its pages are the engine's again when every grant is
// closed.
//
// Invariants, after every Step:
//
//  1. A grant leaves only after it was installed, and is revoked once.
//  2. Checking, revoking and voted mean: every named writer is done, every
//     arrival that it counts on was counted, and every engine that was excused
//     though elected has acknowledged.
//  3. In voted no grant is live.
//  4. The decider concludes once, before it tells anybody; it completes only in
//     voted and with the vote of every receiver.
//  5. Who is not the decider ends, once it has voted, with the decider's word or
//     as unknown.
//  6. Pages are released once: with a complete outcome, or when every grant is
//     closed by a revoke that closed, by a fence, or by its writer being quiet
//     with every generation on its list fenced. Never by time.
//  7. Every state but closed has a deadline.
type Receiver struct {
	party
	state  ReceiverState
	config ReceiverConfig

	writers   []*writer  // the named ones, then the excused ones, each in roster order
	runs      []tableRun // the pages of the room, packed
	hasMeta   bool
	announced bool
	released  bool
	early     []Received // votes that came before the pairing

	votes        map[messages.Engine]bool // of receivers that have landed; the decider's
	participants []messages.Engine        // that hear the outcome; the decider's

	waitBy  deadline // for prefill
	stallBy deadline // for the next byte
	fenceBy deadline // for grants that a revoke left open
}

var _ Machine = (*Receiver)(nil)

// NewReceiver begins a room. c.Limits has been resolved. Errors: a range that is
// none, no source of grant ids, no prefill instance.
func NewReceiver(now time.Time, c ReceiverConfig) (*Receiver, []Effect, error) {
	switch {
	case c.Prefix > c.Length:
		return nil, nil, fmt.Errorf("receiver: prefix is %d, want at most the length %d", c.Prefix, c.Length)
	case c.Length > LengthMost:
		return nil, nil, fmt.Errorf("receiver: length is %d, want at most %d", c.Length, uint64(LengthMost))
	case c.NewGrantID == nil:
		return nil, nil, fmt.Errorf("receiver: NewGrantID is nil, want a source of random ids")
	case c.Prefill == "":
		return nil, nil, fmt.Errorf("receiver: prefill is empty, want the name of an instance")
	}
	r := &Receiver{
		party: newParty(c.Self, c.Room, c.Limits, now), config: c,
		votes: map[messages.Engine]bool{},
	}
	r.waitBy.set(now.Add(r.limits.wait(c.Wait)))
	return r, nil, nil
}

// State names the state.
func (r *Receiver) State() string { return r.state.String() }

// Deadline is when the next Tick is due.
func (r *Receiver) Deadline() time.Time {
	return earliest(r.deadlines(), r.waitBy.at, r.stallBy.at, r.fenceBy.at)
}

// Step takes one event. What comes after Closed changes nothing.
func (r *Receiver) Step(now time.Time, ev Event) []Effect {
	if r.state == ReceiverClosed {
		return nil
	}
	r.now = now
	switch ev := ev.(type) {
	case Received:
		r.onReceived(ev)
	case Paired:
		r.onPaired(ev)
	case Unpaired: // a room that is paired hears of the engine that is lost
	case PeerLost:
		r.onPeerLost(ev)
	case Suspect:
		r.onSuspect(ev)
	case NewGeneration:
		r.onGeneration(ev)
	case GrantInstalled:
		r.onGrantInstalled(ev)
	case Arrived:
		r.onArrived(ev)
	case Revoked:
		r.onRevoked(ev)
	case Fenced:
		r.onFenced(ev)
	case MetaRead:
		r.onMetaRead(ev)
	case Abort:
		r.fail(abortCause(&r.party, ev.Cause))
	case Tick: // time is looked at below
	default:
		panic(fmt.Sprintf("transfer: receiver %s: event %T is not a receiver's", r.id, ev))
	}
	r.advance()
	r.expire()
	r.advance()
	if r.state == ReceiverDraining && r.fenceBy.passed(now) {
		r.fenceOpen()
	}
	r.emit(r.box.resend(now)...)
	check(r.valid)
	return r.take()
}

// move changes the state, by the table only.
func (r *Receiver) move(to ReceiverState) {
	if _, ok := receiverMoves[[2]ReceiverState{r.state, to}]; !ok {
		panic(illegal("receiver", r.state, to))
	}
	if r.watch != nil {
		r.watch(r.state, to)
	}
	r.state = to
}

// open reports whether this side may still fail by itself.
func (r *Receiver) open() bool { return r.state >= ReceiverGranting && r.state <= ReceiverRevoking }

// ended reports whether this side only drains and tells.
func (r *Receiver) ended() bool { return r.state >= ReceiverDraining }

// decides reports whether this receiver is the decider.
func (r *Receiver) decides() bool { return len(r.receivers) > 0 && r.decider() == r.self }

// advance does what the state allows.
func (r *Receiver) advance() {
	switch r.state {
	case ReceiverWriting:
		r.land()
	case ReceiverRevoking:
		r.vote()
	case ReceiverVoted:
		r.decide()
	case ReceiverDraining:
		r.release()
	}
	if r.state == ReceiverTelling {
		r.close()
	}
}

// expire looks at the deadlines.
func (r *Receiver) expire() {
	expired := messages.CauseKind_CAUSE_EXPIRED
	switch r.state {
	case ReceiverWaiting:
		if r.waitBy.passed(r.now) {
			r.fail(r.causeOf(expired, "this instance and %s were not paired within the limit", r.config.Prefill))
		}
	case ReceiverGranting:
		if r.waitBy.passed(r.now) {
			r.fail(r.causeOf(expired, "prefill %s wrote nothing within the limit", r.config.Prefill))
		}
	case ReceiverWriting:
		r.expireWriting()
	case ReceiverChecking, ReceiverRevoking:
		if r.localBy.passed(r.now) {
			r.fail(r.causeOf(expired, "this node did not answer for %v while %s", r.limits.Local, r.state))
		}
	case ReceiverVoted:
		if r.voteBy.passed(r.now) {
			r.expireVoted()
		}
	}
	if r.ended() {
		r.expireEnded()
	}
}

func (r *Receiver) expireWriting() {
	switch {
	case r.stallBy.passed(r.now):
		r.fail(r.causeOf(messages.CauseKind_CAUSE_NO_PROGRESS, "no byte landed for %v; %s", r.limits.Stall, r.owing()))
	case r.absoluteBy.passed(r.now):
		r.fail(r.causeOf(messages.CauseKind_CAUSE_EXPIRED, "writing took longer than the limit for %d tokens; %s", r.config.Length, r.owing()))
	}
}

func (r *Receiver) expireVoted() {
	r.voteBy.clear()
	if !r.decides() {
		r.end(r.unknown("the decider %s said nothing within the limit after this side's vote", r.decider()))
		return
	}
	for _, e := range r.receivers {
		if !r.votes[e] {
			r.fail(r.causeOf(messages.CauseKind_CAUSE_EXPIRED, "receiver %s has not voted within the limit", e))
			return
		}
	}
}

func (r *Receiver) expireEnded() {
	if r.wordBy.passed(r.now) {
		r.wordBy.clear()
		r.conclude(&messages.Outcome{Cause: r.cause}, false)
	}
	if r.lingerBy.passed(r.now) {
		r.lingerBy.clear()
		r.box.drop(func(outKey) bool { return false })
	}
	if r.waitBy.passed(r.now) {
		r.waitBy.clear()
	}
}

// writerOf is what this room has with a prefill engine, nil when nothing.
func (r *Receiver) writerOf(e messages.Engine) *writer {
	for _, w := range r.writers {
		if w.engine == e {
			return w
		}
	}
	return nil
}

func (r *Receiver) writerBy(id rdma.GrantID) *writer {
	for _, w := range r.writers {
		if w.named && w.grant == id {
			return w
		}
	}
	return nil
}
