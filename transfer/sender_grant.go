package transfer

import (
	"fmt"

	"kvferry/kv"
	"kvferry/messages"
)

// onGrant takes a part of a grant. It counts when all parts are there.
func (s *Sender) onGrant(from messages.Engine, g *messages.Grant) {
	p, bad := readGrant(g, &s.limits)
	if bad != nil {
		s.misfit(from, bad)
		return
	}
	t := s.meet(from)
	switch {
	case t == nil:
		s.noTarget(from)
	case t.answer != nil:
		if t.answer.GetId() != nil && string(t.answer.GetId()) == string(p.id[:]) {
			s.send(from, t.answer)
		}
	case s.ended() && t.state != excused:
		s.refuse(t, &p, &messages.GrantAck{Refused: s.endCause()})
	case t.state == granted && t.grant == p.id:
		if p.part == p.parts-1 {
			s.ackGrant(t)
		}
	case t.state != awaited:
		s.misfit(from, differs("grant", p.id, "no second word to this writer"))
	case p.rosters != s.rosters():
		s.refuse(t, &p, s.rosterAnswer())
	case !t.elected:
		s.refuse(t, &p, &messages.GrantAck{Refused: s.causeOf(messages.CauseKind_CAUSE_PLAN_DIFFERS,
			"receiver %s granted a writer that no receiver elected", from)})
	case !t.collect(&p):
		s.misfit(from, differs("part", fmt.Sprintf("part %d of grant %s", p.part, p.id), fmt.Sprintf("one of grant %s", t.part.id)))
	case t.got == len(t.parts):
		s.accept(t)
	}
}

// collect keeps a part. False: it is of another grant than the parts before.
func (t *target) collect(p *grantPart) bool {
	if t.part == nil {
		t.part, t.parts, t.gave = p, make([][]tableRun, p.parts), true
	} else if !t.part.goesWith(p) {
		return false
	}
	if t.parts[p.part] == nil {
		t.parts[p.part] = p.runs
		t.got++
	}
	t.part.remaining = p.remaining
	return true
}

// accept checks a whole grant against this side's own plan.
func (s *Sender) accept(t *target) {
	p := t.part
	pair, at, err := s.planOf(t, p)
	if err != nil {
		s.refuse(t, p, &messages.GrantAck{Refused: s.causeOf(messages.CauseKind_CAUSE_PLAN_DIFFERS, "grant of %s: %v", t.receiver, err)})
		return
	}
	targets, err := pair.Targets(&at)
	if err != nil {
		s.refuse(t, p, &messages.GrantAck{Refused: s.causeOf(messages.CauseKind_CAUSE_PLAN_DIFFERS, "grant of %s: %v", t.receiver, err)})
		return
	}
	digest := pair.Digest(p.rosters.prefill, p.rosters.decode, targets)
	if digest != p.digest {
		s.refuse(t, p, &messages.GrantAck{
			Digest: digest[:],
			Refused: s.causeOf(messages.CauseKind_CAUSE_PLAN_DIFFERS, "plan of %s to %s: digest is %x here and %x there",
				s.self, t.receiver, digest[:8], p.digest[:8]),
		})
		return
	}
	t.state, t.grant, t.pair, t.at = granted, p.id, pair, at
	t.prefix, t.length = p.prefix, p.length
	by := s.now.Add(p.remaining)
	if len(s.chunks) == 0 && (!s.chunkBy.isSet() || by.Before(s.chunkBy.at)) {
		s.chunkBy.set(by)
	}
	t.part, t.parts = nil, nil
	s.ackGrant(t)
	if n := len(s.chunks); n > 0 {
		if cause := s.fits(t, s.chunks[0], s.chunks[n-1]); cause != nil {
			s.fail(cause)
		}
	}
}

// planOf is this side's plan for a whole grant, and where the receiver keeps the
// request.
func (s *Sender) planOf(t *target, p *grantPart) (*kv.Pair, kv.Placement, error) {
	at := kv.Placement{Slot: p.slot, MetaRow: p.metaRow}
	pair, err := s.pairing.Fit.Pair(s.route, s.self.Rank, t.receiver.Rank, p.prefix, p.length)
	if err != nil {
		return nil, at, err
	}
	var runs []tableRun
	for _, part := range t.parts {
		runs = append(runs, part...)
	}
	at.Tables, err = unpackTables(runs, s.pairing.Fit.Decode().Pools(t.receiver.Rank), p.prefix, p.length)
	return pair, at, err
}

func (s *Sender) ackGrant(t *target) {
	t.told = t.told || s.announced
	s.send(t.receiver, &messages.GrantAck{Id: t.grant[:], Known: s.announced})
}

// refuse answers a grant under which nothing will be written. If the room has
// not ended yet it ends by that.
func (s *Sender) refuse(t *target, p *grantPart, answer *messages.GrantAck) {
	answer.Id = p.id[:]
	answer.Known = s.announced
	t.state, t.gave, t.answer, t.grant = refused, true, answer, p.id
	t.part, t.parts = nil, nil
	s.send(t.receiver, answer)
	if s.state == SenderQuiet {
		s.tellQuiet(t)
	}
	s.fail(answer.GetRefused())
}

func (s *Sender) noTarget(from messages.Engine) {
	s.misfit(from, differs("from", from, "a receiver of this room that elected "+s.self.String()))
}

func (s *Sender) rosters() rosters {
	return rosters{s.pairing.PrefillRoster, s.pairing.DecodeRoster}
}

func (s *Sender) rosterCause() *messages.Cause {
	return s.causeOf(messages.CauseKind_CAUSE_ROSTER_CHANGED, "the rosters of %s and %s are %x and %x here",
		s.pairing.Prefill, s.pairing.Decode, s.pairing.PrefillRoster[:8], s.pairing.DecodeRoster[:8])
}

func (s *Sender) rosterAnswer() *messages.GrantAck {
	return &messages.GrantAck{
		Refused:       s.rosterCause(),
		PrefillRoster: s.pairing.PrefillRoster[:], DecodeRoster: s.pairing.DecodeRoster[:],
	}
}

// endCause is why the room ended for this side.
func (s *Sender) endCause() *messages.Cause {
	if s.cause != nil {
		return s.cause
	}
	return s.causeOf(messages.CauseKind_CAUSE_PROTOCOL, "the room has ended here")
}

// onExcused takes the word of a receiver that needs nothing of this engine.
func (s *Sender) onExcused(from messages.Engine, e *messages.Excused) {
	r, bad := readRosters(e.GetPrefillRoster(), e.GetDecodeRoster())
	if bad != nil {
		s.misfit(from, bad)
		return
	}
	t := s.meet(from)
	switch {
	case t == nil:
		s.noTarget(from)
	case t.state == excused:
		s.send(from, &messages.ExcusedAck{Known: s.announced})
	case s.ended():
		s.send(from, &messages.ExcusedAck{Known: s.announced, Refused: s.endCause()})
	case t.state != awaited || t.part != nil:
		s.misfit(from, differs("excused", "excused", "no second word to this writer"))
	case r != s.rosters():
		cause := s.rosterCause()
		s.send(from, &messages.ExcusedAck{Known: s.announced, Refused: cause})
		s.fail(cause)
	default:
		t.state = excused
		s.send(from, &messages.ExcusedAck{Known: s.announced})
	}
}

// onDeclined ends the attempt: a receiver dropped the request before its grant.
func (s *Sender) onDeclined(from messages.Engine, d *messages.Declined) {
	t := s.meet(from)
	switch {
	case t == nil:
		s.noTarget(from)
	case !s.ended() && (t.state != awaited || t.part != nil):
		s.misfit(from, differs("declined", "declined", "no second word to this writer"))
	default:
		s.send(from, &messages.DeclinedAck{})
		s.fail(cleanCause(d.GetCause(), from))
	}
}
