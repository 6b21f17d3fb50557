package transfer

import (
	"fmt"
	"strings"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// describe says an effect in a line.
func (w *world) describe(effect Effect) string {
	switch f := effect.(type) {
	case Send:
		return fmt.Sprintf("send %s %s", w.engine(f.To).name, describeBody(f.Body))
	case Post:
		return fmt.Sprintf("post w%d to %s under %s, %d bytes", f.Write, w.engine(f.To).name, describeGrant(f.Grant), f.Bytes)
	case Quiesce:
		return "quiesce"
	case UnpinSources:
		return "unpin sources"
	case InstallGrant:
		return fmt.Sprintf("install %s for %s", describeGrant(f.Grant), w.engine(f.Writer).name)
	case Revoke:
		return "revoke " + describeGrant(f.Grant)
	case Fence:
		s := "fence " + w.engine(f.Peer).name
		if f.Generation.Number != 0 {
			s += fmt.Sprintf(" generation %d", f.Generation.Number)
		}
		return s
	case ReadMeta:
		return fmt.Sprintf("read metadata row %d", f.Row)
	case Record:
		return "record " + describeOutcome(f.Outcome)
	case Finish:
		if f.Excused {
			return "finish, excused"
		}
		return "finish " + describeOutcome(f.Outcome)
	case ReleasePages:
		return "release pages"
	case Quarantine:
		return fmt.Sprintf("quarantine %s: %s", describeGrant(f.Grants[0]), f.Reason)
	case Announced:
		return "announced"
	case Tombstone:
		return "tombstone"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("%T", effect)
}

func describeGrant(id rdma.GrantID) string { return fmt.Sprintf("g%d", id[0]) }

func describeOutcome(o *messages.Outcome) string {
	if o.GetComplete() {
		return "complete"
	}
	return "failed (" + describeCause(o.GetCause()) + ")"
}

// describeCause leaves out where the cause was seen: the text says it to people.
func describeCause(c *messages.Cause) string {
	kind := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(c.GetKind().String(), "CAUSE_"), "_", " "))
	return kind + ": " + c.GetText()
}

func describeGenerations(list []*messages.Generation) string {
	out := make([]string, len(list))
	for i, g := range list {
		out[i] = fmt.Sprint(g.GetNumber())
	}
	return "[" + strings.Join(out, " ") + "]"
}

func describeBody(body any) string {
	switch b := body.(type) {
	case *messages.Grant:
		return fmt.Sprintf("Grant g%d part %d of %d, tokens [%d,%d), %d runs, %d ms", b.GetId()[0], b.GetPart()+1, b.GetParts(), b.GetPrefix(), b.GetLength(), grantRuns(b), b.GetRemainingMs())
	case *messages.GrantAck:
		return fmt.Sprintf("GrantAck g%d %s", b.GetId()[0], describeAck(b.GetKnown(), b.GetRefused()))
	case *messages.ExcusedAck:
		return "ExcusedAck " + describeAck(b.GetKnown(), b.GetRefused())
	case *messages.Declined:
		return "Declined (" + describeCause(b.GetCause()) + ")"
	case *messages.Done:
		s := fmt.Sprintf("Done g%d, %d bytes,", b.GetGrant()[0], b.GetBytes())
		for _, a := range b.GetArrivals() {
			s += fmt.Sprintf(" %d/%d:%d", a.GetGeneration().GetNumber(), a.GetStripe(), a.GetCount())
		}
		return s
	case *messages.Missing:
		return fmt.Sprintf("Missing g%d %s", b.GetGrant()[0], describeGenerations(b.GetGenerations()))
	case *messages.Failed:
		if b.GetVoted() {
			return "Failed, voted (" + describeCause(b.GetCause()) + ")"
		}
		return "Failed (" + describeCause(b.GetCause()) + ")"
	case *messages.Outcome:
		return "Outcome " + describeOutcome(b)
	case *messages.Quiet:
		return "Quiet " + describeGenerations(b.GetUnknown())
	case *messages.Answer:
		s := fmt.Sprintf("Answer %s: got %s, want %s", b.GetField(), b.GetGot(), b.GetWant())
		if b.GetOutcome() != nil {
			s += ", " + describeOutcome(b.GetOutcome())
		}
		return s
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", body), "*messages.")
}

func describeAck(known bool, refused *messages.Cause) string {
	s := "not yet known"
	if known {
		s = "known"
	}
	if refused != nil {
		s = "refused (" + describeCause(refused) + ")"
	}
	return s
}

// grantRuns is the runs of all pools in a part of a grant.
func grantRuns(g *messages.Grant) int {
	n := len(g.GetPages())
	for _, w := range g.GetWindows() {
		n += len(w.GetPages())
	}
	return n
}
