package transfer

import (
	"fmt"
	"slices"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// targetState is what a receiver has said to this writer.
type targetState uint8

const (
	awaited targetState = iota // neither granted nor excused yet
	granted
	excused
	refused // its grant did not fit; the room has failed
)

// target is one receiver that a writer has to do with: one that elected it, or
// the decider, which excuses engines that nobody elected.
type target struct {
	receiver messages.Engine
	elected  bool
	state    targetState

	// From the parts of its grant, until the grant is whole.
	part  *grantPart
	parts [][]tableRun
	got   int

	// Of the grant.
	gave           bool // some of a grant was heard, so it hears when this side is quiet
	grant          rdma.GrantID
	answer         *messages.GrantAck // that refused it
	prefix, length uint64
	pair           *kv.Pair
	at             kv.Placement // of the receiver
	told           bool         // that prefill has announced the room

	next    int      // of the chunks: the first that is not planned
	writes  []*write // planned, in order
	todo    []*write // of writes: to be posted, in order
	landed  int      // of writes
	done    bool
	unknown []rdma.Generation // that carried a write whose outcome was unknown
	partial []count           // of those writes: arrivals that the receiver counts all the same

	retryAt deadline // for todo, after the transport took nothing
	pause   int      // how often that has happened since something landed
}

func (s *Sender) onPaired(ev Paired) {
	if len(s.targets) == 0 {
		s.pairing = ev.Pairing
	}
}

// onUnpaired forgets a pairing that no message of the room has used. A room that
// uses one hears of the engine that is lost.
func (s *Sender) onUnpaired() {
	if len(s.targets) == 0 {
		s.pairing = nil
	}
}

func (s *Sender) onOpen(ev Open) {
	if s.announced || s.ended() {
		return
	}
	s.announced = true
	s.answerBy.set(s.now.Add(s.limits.wait(ev.Wait)))
	for _, t := range s.targets {
		if t.state == granted && !t.told {
			t.told = true
			s.repeat(t.receiver, topicKnown, t.grant, &messages.Known{})
		}
	}
}

// onReceived hands a message on to what takes it. Without a pairing nothing can
// be checked: it changes nothing, is not acknowledged, and comes again.
func (s *Sender) onReceived(ev Received) {
	if s.pairing == nil {
		return
	}
	if _, answer := ev.Body.(*messages.Answer); !answer {
		if ok, _ := s.memberOf(ev.From); !ok || ev.From.Instance != s.pairing.Decode {
			s.misfit(ev.From, differs("from", ev.From, "an engine of "+s.pairing.Decode))
			return
		}
	}
	switch b := ev.Body.(type) {
	case *messages.Grant:
		s.onGrant(ev.From, b)
	case *messages.Excused:
		s.onExcused(ev.From, b)
	case *messages.Declined:
		s.onDeclined(ev.From, b)
	case *messages.Missing:
		s.onMissing(ev.From, b)
	case *messages.Outcome:
		s.onOutcome(ev.From, b)
	case *messages.KnownAck:
		if t := s.target(ev.From); t != nil {
			s.box.done(outKey{ev.From, topicKnown, t.grant})
		}
	case *messages.FailedAck:
		s.acked(ev.From, topicFailed)
	case *messages.QuietAck:
		s.acked(ev.From, topicQuiet)
	case *messages.Answer:
		if b.GetOutcome() != nil && ev.From == s.decider() {
			s.onOutcome(ev.From, b.GetOutcome())
		}
	default:
		s.misfit(ev.From, differs("body", fmt.Sprintf("%T", b), "a message to a sender"))
	}
}

// meet is the target of a receiver, and fixes the route by the first message
// that could be read. nil: this engine has nothing to do with that receiver.
func (s *Sender) meet(from messages.Engine) *target {
	if len(s.targets) == 0 {
		s.setTargets(kv.Route{PrefillDP: s.self.Rank.DP, DecodeDP: from.Rank.DP, Room: s.id.Room})
	}
	return s.target(from)
}

func (s *Sender) target(of messages.Engine) *target {
	for _, t := range s.targets {
		if t.receiver == of {
			return t
		}
	}
	return nil
}

func (s *Sender) setTargets(r kv.Route) {
	if !s.setRoute(r) {
		return
	}
	for _, e := range s.receivers {
		if slices.Contains(s.pairing.Fit.Candidates(r, e.Rank), s.self.Rank) {
			s.targets = append(s.targets, &target{receiver: e, elected: true})
		}
	}
	if len(s.targets) == 0 {
		s.targets = []*target{{receiver: s.decider()}}
	}
}

// unanswered is the receivers that have neither granted nor excused.
func (s *Sender) unanswered() []messages.Engine {
	var out []messages.Engine
	for _, t := range s.targets {
		if t.state == awaited {
			out = append(out, t.receiver)
		}
	}
	return out
}

func (s *Sender) allExcused() bool {
	for _, t := range s.targets {
		if t.state != excused {
			return false
		}
	}
	return len(s.targets) > 0
}

// excused ends the part of an engine that nobody needs.
func (s *Sender) excused() {
	s.stop()
	s.conclude(&messages.Outcome{Complete: true}, true)
	s.unpin()
	s.move(SenderClosed)
	s.emit(Closed{})
}

// onChunk takes what prefill finished. Before pairing and grants it waits here.
func (s *Sender) onChunk(c Chunk) {
	if s.ended() {
		return
	}
	if cause := s.checkChunk(c); cause != nil {
		s.fail(cause)
		return
	}
	s.chunks = append(s.chunks, c)
	s.chunkBy.clear()
}

func (s *Sender) checkChunk(c Chunk) *messages.Cause {
	bad := func(format string, args ...any) *messages.Cause {
		return s.causeOf(messages.CauseKind_CAUSE_BAD_CHUNK, "chunk [%d,%d): "+format, append([]any{c.From, c.To}, args...)...)
	}
	if len(s.chunks) >= s.limits.Chunks {
		return s.causeOf(messages.CauseKind_CAUSE_NO_CAPACITY, "the room has %d chunks, the limit is %d", len(s.chunks)+1, s.limits.Chunks)
	}
	if c.To < c.From || c.To == c.From && !c.Last {
		return bad("has no token")
	}
	if c.Layers < 0 {
		return bad("ends before layer %d, want at least 0", c.Layers)
	}
	if n := len(s.chunks); n > 0 {
		switch before := s.chunks[n-1]; {
		case before.Layers > 0 && (c.From != before.From || c.To != before.To || c.Last != before.Last):
			return bad("comes after the layers below %d of chunk [%d,%d), want its other layers first", before.Layers, before.From, before.To)
		case before.Layers > 0 && c.Layers > 0 && c.Layers <= before.Layers:
			return bad("has the layers below %d, want more than those below %d that came before", c.Layers, before.Layers)
		case before.Layers > 0:
		case before.Last:
			return bad("comes after the last one, which ended at token %d", before.To)
		case c.From != before.To:
			return bad("starts at token %d, want %d, where the one before ended", c.From, before.To)
		}
	}
	for _, t := range s.targets {
		first := c
		if len(s.chunks) > 0 {
			first = s.chunks[0]
		}
		if cause := s.fits(t, first, c); cause != nil {
			return cause
		}
	}
	return nil
}

// fits answers whether the chunks from first to last are what a grant wants: from
// its prefix at the latest, up to exactly its length.
func (s *Sender) fits(t *target, first, last Chunk) *messages.Cause {
	if t.state != granted {
		return nil
	}
	bad := func(format string, args ...any) *messages.Cause {
		return s.causeOf(messages.CauseKind_CAUSE_BAD_CHUNK, format, args...)
	}
	switch {
	case first.From > t.prefix:
		return bad("the first chunk starts at token %d, receiver %s has only %d", first.From, t.receiver, t.prefix)
	case last.To > t.length:
		return bad("chunks end at token %d, receiver %s wants %d", last.To, t.receiver, t.length)
	case last.Last && last.To != t.length:
		return bad("the last chunk ends at token %d, receiver %s wants %d", last.To, t.receiver, t.length)
	}
	return nil
}
