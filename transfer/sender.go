package transfer

import (
	"fmt"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// Sender is one room in one prefill engine: it waits for the grants of the
// receivers that elected it, writes each chunk to them, says done, and ends with
// the decider's word.
//
// Invariants, after every Step:
//
//  1. Nothing is posted before the instances are paired and the receiver has
//     granted; and nothing after the room has ended (draining, quiet, closed).
//  2. flying are the posted writes without a completion; there are never more
//     than Limits.Window.
//  3. A write is posted again only if nothing of it left, or every generation
//     that carried it is fenced on both sides; and at most Limits.Posts times.
//  4. A target is done only if the last chunk is planned and each of its writes
//     has landed; in voted every target is done or excused, and flying is empty.
//  5. From voted the room ends with the decider's word or as unknown: the state
//     is left only by an outcome, by its decider's loss or limit, or by missing
//     arrivals, which take the vote back.
//  6. Sources are unpinned once, in quiet or closed, when flying is empty.
//  7. In quiet every receiver that granted is told the generations on which a
//     write to it was unknown, until it acknowledges, is lost, or Linger passes.
//  8. Every state but closed has a deadline.
type Sender struct {
	party
	state     SenderState
	announced bool
	targets   []*target // in roster order, from when the route is known
	chunks    []Chunk
	handed    *messages.Cause // what was handed to the decider after the vote

	flying    map[rdma.WriteID]*write
	lastWrite rdma.WriteID
	turn      int  // of targets: whose write is posted next
	posted    bool // a write of the room was given to the transport
	unpinned  bool

	answerBy   deadline // for the receivers' grants and excuses
	chunkBy    deadline // for the first chunk, from the first grant on
	progressBy deadline // for the next byte to land, while something is to be written
}

var _ Machine = (*Sender)(nil)

// NewSender begins a room. c.Limits has been resolved.
func NewSender(now time.Time, c SenderConfig) (*Sender, []Effect) {
	s := &Sender{
		party:     newParty(c.Self, c.Room, c.Limits, now),
		announced: c.Announced,
		flying:    map[rdma.WriteID]*write{},
	}
	s.answerBy.set(now.Add(s.limits.wait(c.Wait)))
	return s, nil
}

// State names the state.
func (s *Sender) State() string { return s.state.String() }

// Deadline is when the next Tick is due.
func (s *Sender) Deadline() time.Time {
	at := earliest(s.deadlines(), s.answerBy.at, s.chunkBy.at, s.progressBy.at)
	for _, t := range s.targets {
		at = earliest(at, t.retryAt.at)
	}
	return at
}

// Step takes one event. What comes after Closed changes nothing.
func (s *Sender) Step(now time.Time, ev Event) []Effect {
	if s.state == SenderClosed {
		return nil
	}
	s.now = now
	switch ev := ev.(type) {
	case Received:
		s.onReceived(ev)
	case Chunk:
		s.onChunk(ev)
	case Open:
		s.onOpen(ev)
	case Succeed:
		s.onSucceed(ev)
	case Paired:
		s.onPaired(ev)
	case Unpaired:
		s.onUnpaired()
	case PeerLost:
		s.onPeerLost(ev)
	case Suspect:
		s.onSuspect(ev)
	case NewGeneration:
		s.onGeneration(ev)
		s.onNewGeneration(ev)
	case NotTaken:
		s.onNotTaken(ev)
	case Written:
		s.onWritten(ev)
	case Quiesced:
		s.onQuiesced(ev)
	case Abort:
		s.fail(abortCause(&s.party, ev.Cause))
	case Fenced, Tick: // completions say what a fence did; time is looked at below
	default:
		panic(fmt.Sprintf("transfer: sender %s: event %T is not a sender's", s.id, ev))
	}
	s.advance()
	s.expire()
	s.close()
	s.emit(s.box.resend(now)...)
	check(s.valid)
	return s.take()
}

// move changes the state, by the table only.
func (s *Sender) move(to SenderState) {
	if _, ok := senderMoves[[2]SenderState{s.state, to}]; !ok {
		panic(illegal("sender", s.state, to))
	}
	if s.watch != nil {
		s.watch(s.state, to)
	}
	s.state = to
}

// open reports whether the room has not ended for this side.
func (s *Sender) open() bool { return s.state == SenderWaiting || s.state == SenderWriting }

// ended reports whether this side only drains and tells.
func (s *Sender) ended() bool { return s.state > SenderVoted }

// advance does what the state allows: plans chunks, posts, says done, votes.
func (s *Sender) advance() {
	if !s.open() || len(s.targets) == 0 {
		return
	}
	if s.allExcused() {
		if s.announced {
			s.excused()
		}
		return
	}
	if len(s.unanswered()) == 0 {
		s.answerBy.clear()
	}
	s.plan()
	s.post()
	if s.state == SenderWriting {
		s.sayDone()
	}
	s.watchProgress()
}

// expire looks at the deadlines.
func (s *Sender) expire() {
	switch s.state {
	case SenderWaiting, SenderWriting:
		s.expireOpen()
	case SenderVoted:
		if s.voteBy.passed(s.now) {
			s.end(s.unknown("the decider %s said nothing within the limit after this side's vote", s.decider()))
		}
	case SenderDraining:
		if s.localBy.passed(s.now) {
			s.quiesceAgain()
		}
	}
	if s.ended() && s.wordBy.passed(s.now) {
		s.wordBy.clear()
		s.conclude(&messages.Outcome{Cause: s.cause}, false)
	}
	if s.state == SenderQuiet && s.lingerBy.passed(s.now) {
		s.box.drop(func(outKey) bool { return false })
	}
}

func (s *Sender) expireOpen() {
	unanswered := s.unanswered()
	switch {
	case s.answerBy.passed(s.now) && s.allExcused():
		s.excused() // its caller never came
	case s.answerBy.passed(s.now) && len(s.targets) == 0:
		s.fail(s.causeOf(messages.CauseKind_CAUSE_EXPIRED, "no receiver granted or excused this engine within the limit"))
	case s.answerBy.passed(s.now) && len(unanswered) > 0:
		s.fail(s.causeOf(messages.CauseKind_CAUSE_EXPIRED, "receiver %s neither granted nor excused this engine within the limit", unanswered[0]))
	case s.chunkBy.passed(s.now):
		s.fail(s.causeOf(messages.CauseKind_CAUSE_EXPIRED, "prefill finished nothing of the room within the limit"))
	case s.progressBy.passed(s.now):
		s.fail(s.causeOf(messages.CauseKind_CAUSE_NO_PROGRESS, "no byte landed for %v, with %d writes in flight", s.limits.Progress, len(s.flying)))
	case s.absoluteBy.passed(s.now):
		s.fail(s.causeOf(messages.CauseKind_CAUSE_EXPIRED, "writing took longer than the limit for its length"))
	}
}

// abortCause is the caller's cause, or that it gave none.
func abortCause(p *party, c *messages.Cause) *messages.Cause {
	if c == nil {
		return p.causeOf(messages.CauseKind_CAUSE_ABORTED, "the caller gave up")
	}
	return c
}
