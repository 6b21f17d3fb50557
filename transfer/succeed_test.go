package transfer

import (
	"slices"
	"testing"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// A successor tells the decider that the room has failed, and those whose grant
// was heard that this side is quiet, with the generations that may still carry
// something; it posts nothing, and ends.
func TestASuccessorTellsTheOthers(t *testing.T) {
	w := newWorld(t, setting{prefillTP: 1, prefillPP: 1, decodeTP: 2, decodePP: 1, length: 8, held: true})
	p, d0, d1 := w.named("p0"), w.named("d0"), w.named("d1")
	p.send(0)
	cause := &messages.Cause{Kind: messages.CauseKind_CAUSE_ACTOR_DIED, Text: "it died", Origin: p.name}
	p.step(Succeed{Pairing: w.pairing, Granted: []messages.Engine{d1.id}, Unknown: []rdma.Generation{{Number: 3}}, Cause: cause})
	var got []string
	for _, m := range w.net {
		got = append(got, m.to.name+" "+describeBody(m.body))
	}
	want := []string{"d0 Failed (actor died: it died)", "d1 Quiet [3]"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("it tells %q, want %q", got, want)
	}
	p.step(Received{From: d0.id, Body: &messages.Outcome{Cause: cause}})
	p.step(Received{From: d1.id, Body: &messages.QuietAck{}})
	if p.machine != nil || len(p.finishes) != 1 || p.finishes[0].Outcome.GetCause().GetText() != "it died" {
		t.Fatalf("it ends as %v, with %v", p.machine, p.finishes)
	}
}
