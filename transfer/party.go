package transfer

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// causeTextMost bounds the text of a cause that came off the wire, in bytes.
const causeTextMost = 512

// party is what both machines of a room share: who they are, whom they speak
// with, what they have yet to hear, and how the room ended.
//
// Invariants:
//
//  1. receivers is empty until route is known; receivers[0] is the decider.
//  2. outcome is set once, by the step that gives Finish.
type party struct {
	self   messages.Engine
	id     messages.RoomID
	limits Limits

	now time.Time // of the running step
	out []Effect  // of the running step
	box outbox

	watch func(from, to fmt.Stringer) // of transitions, by tests

	pairing   *messages.Pairing
	route     kv.Route
	receivers []messages.Engine

	fencedBelow map[messages.Engine]uint64 // every generation below is fenced on both sides
	outcome     *messages.Outcome          // what the caller was told
	cause       *messages.Cause            // the first cause of this side, or the decider's

	wordBy, voteBy, localBy, lingerBy, absoluteBy deadline
}

func newParty(self messages.Engine, id messages.RoomID, l Limits, now time.Time) party {
	return party{
		self: self, id: id, limits: l, now: now, box: newOutbox(&l),
		fencedBelow: map[messages.Engine]uint64{},
	}
}

func (p *party) emit(effects ...Effect) { p.out = append(p.out, effects...) }

// take is the effects of the step.
func (p *party) take() []Effect {
	out := p.out
	p.out = nil
	return out
}

func (p *party) send(to messages.Engine, body any) { p.emit(Send{To: to, Body: body}) }

// repeat sends a message now, and again until it is acknowledged.
func (p *party) repeat(to messages.Engine, t topic, grant rdma.GrantID, body any) {
	p.emit(p.box.put(p.now, outKey{to, t, grant}, one(body))...)
}

// acked takes an acknowledgement of a message that is not about a grant.
func (p *party) acked(from messages.Engine, t topic) { p.box.done(outKey{to: from, topic: t}) }

// misfit answers, once, what did not fit. It changes nothing.
func (p *party) misfit(to messages.Engine, m *mismatch) {
	a := &messages.Answer{Field: m.field, Got: m.got, Want: m.want}
	if p.outcome != nil && p.outcome.GetCause().GetKind() != messages.CauseKind_CAUSE_UNKNOWN_OUTCOME {
		a.Outcome = p.outcome
	}
	p.send(to, a)
}

func (p *party) causeOf(kind messages.CauseKind, format string, args ...any) *messages.Cause {
	return &messages.Cause{Kind: kind, Text: fmt.Sprintf(format, args...), Origin: p.self.String()}
}

// setRoute fixes who the receivers of the room are. False: nobody is.
func (p *party) setRoute(r kv.Route) bool {
	for _, rank := range p.pairing.Fit.Receivers(r) {
		m, ok := p.pairing.Member(false, rank)
		if !ok {
			p.receivers = nil
			return false
		}
		p.receivers = append(p.receivers, m.Engine)
	}
	p.route = r
	return len(p.receivers) > 0
}

// decider is the receiver that says how the room ended; the zero Engine while
// that is not known.
func (p *party) decider() messages.Engine {
	if len(p.receivers) == 0 {
		return messages.Engine{}
	}
	return p.receivers[0]
}

func (p *party) isReceiver(e messages.Engine) bool { return slices.Contains(p.receivers, e) }

// memberOf reports whether e, with this incarnation, is in the rosters of the
// room, and if not whether another incarnation is.
func (p *party) memberOf(e messages.Engine) (ok, other bool) {
	prefill := e.Instance == p.pairing.Prefill
	if !prefill && e.Instance != p.pairing.Decode {
		return false, false
	}
	m, found := p.pairing.Member(prefill, e.Rank)
	return found && m.Engine == e, found && m.Engine != e
}

// conclude tells the caller how the room ended, and the engine, which answers
// for it from now on. Once.
func (p *party) conclude(o *messages.Outcome, excused bool) {
	if p.outcome != nil {
		return
	}
	p.outcome = o
	p.emit(Record{Outcome: o})
	if !o.GetComplete() {
		p.emit(Tombstone{Outcome: o})
	}
	p.emit(Finish{Outcome: o, Excused: excused})
}

// unknown is the outcome of a room whose decider was lost after the vote.
func (p *party) unknown(format string, args ...any) *messages.Outcome {
	return &messages.Outcome{Cause: p.causeOf(messages.CauseKind_CAUSE_UNKNOWN_OUTCOME, format, args...)}
}

func (p *party) onSuspect(ev Suspect) {
	for _, e := range ev.Engines {
		p.box.setSuspect(p.now, e, ev.Suspect)
	}
}

func (p *party) onGeneration(ev NewGeneration) {
	for _, e := range ev.Engines {
		p.fencedBelow[e] = max(p.fencedBelow[e], ev.Number)
		p.box.again(p.now, e)
	}
}

// deadlines is when something of what both machines share is due.
func (p *party) deadlines() time.Time {
	return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())
}

// cleanCause is a cause as it came off the wire, made fit to be told on.
func cleanCause(c *messages.Cause, from messages.Engine) *messages.Cause {
	if c == nil {
		return &messages.Cause{Kind: messages.CauseKind_CAUSE_PROTOCOL, Text: "the peer gave no cause", Origin: from.String()}
	}
	if c.GetOrigin() != "" && len(c.GetText()) <= causeTextMost && len(c.GetOrigin()) <= causeTextMost {
		return c
	}
	clean := &messages.Cause{Kind: c.GetKind(), Text: cut(c.GetText()), Origin: cut(c.GetOrigin())}
	if clean.Origin == "" {
		clean.Origin = from.String()
	}
	return clean
}

func cut(s string) string {
	if len(s) <= causeTextMost {
		return s
	}
	s = s[:causeTextMost]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// cleanOutcome is an outcome as it came off the wire: complete without a cause,
// or failed with one.
func cleanOutcome(o *messages.Outcome, from messages.Engine) *messages.Outcome {
	if o.GetComplete() {
		return &messages.Outcome{Complete: true}
	}
	return &messages.Outcome{Cause: cleanCause(o.GetCause(), from)}
}
