package transfer

import "kvferry/messages"

// Opens reports whether a message to a prefill engine opens a room there that
// its caller has not opened: a grant or an excuse that comes first, a request
// that decode dropped, or an outcome that its caller is to hear when it comes.
func Opens(body any) bool {
	switch b := body.(type) {
	case *messages.Grant, *messages.Excused, *messages.Declined:
		return true
	case *messages.Outcome:
		return b != nil && !b.GetComplete()
	}
	return false
}

// AnswerFor is what the engine says for a room whose machine is gone, so that
// who repeats a message hears the end. record is how the room ended, nil when
// that is not known (any more, or yet). nil: nothing is to be said.
//
// It never says quiet: that is only said after a Quiesce or a Fence of the
// engine's own.
func AnswerFor(record *messages.Outcome, body any) any {
	switch b := body.(type) {
	case *messages.Known:
		return &messages.KnownAck{}
	case *messages.Quiet:
		return &messages.QuietAck{}
	case *messages.Outcome:
		return &messages.OutcomeAck{}
	case *messages.Declined:
		return &messages.DeclinedAck{}
	case *messages.Grant:
		return &messages.GrantAck{Id: b.GetId(), Refused: refusal(record)}
	case *messages.Excused:
		if record.GetComplete() {
			return &messages.ExcusedAck{Known: true}
		}
		return &messages.ExcusedAck{Refused: refusal(record)}
	case *messages.Done, *messages.Landed, *messages.Failed:
		// Only the decider's word counts, and only what it knows is a word.
		if record == nil || record.GetCause().GetKind() == messages.CauseKind_CAUSE_UNKNOWN_OUTCOME {
			return &messages.Answer{Field: "room", Got: "a room without a known outcome", Want: "an open room"}
		}
		return record
	case *messages.Missing:
		return &messages.Answer{Field: "room", Got: "a room that has ended", Want: "an open room", Outcome: record}
	}
	return nil
}

// refusal is why nothing is written for a room that has ended.
func refusal(record *messages.Outcome) *messages.Cause {
	if c := record.GetCause(); c != nil {
		return c
	}
	return &messages.Cause{Kind: messages.CauseKind_CAUSE_PROTOCOL, Text: "the room has ended", Origin: "engine"}
}
