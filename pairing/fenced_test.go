package pairing

import (
	"reflect"
	"testing"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// A room takes a grant that a fence does not list for closed. So a Link that is asked for a
// fence of what is fenced, or never was, or was of a Link before it, does not answer by
// itself: an earlier generation may have left the grant open, and only the provider knows.
func TestAFenceOfNothingIsTheProvidersToAnswer(t *testing.T) {
	now := time.Unix(100, 0)
	l := NewLink(now, LinkConfig{
		Self: messages.Node{Name: "a", Incarnation: 1}, Peer: messages.Node{Name: "b", Incarnation: 1}, Cluster: "test", Nonce: func() uint64 { return 7 },
	})
	open := []rdma.OpenGrant{{Grant: rdma.GrantID{9}, Reason: "a process is stopped inside a copy"}}
	for _, g := range []rdma.Generation{{Number: 3}, {Number: 4}, {}} {
		asked := false
		for _, e := range l.Step(now, FenceWanted{Generation: g}) {
			switch e := e.(type) {
			case FencedHere:
				t.Errorf("generation %s: it answers %+v by itself", g, e)
			case FenceSession:
				asked = e.Generation == g
			}
		}
		if !asked {
			t.Errorf("generation %s: the provider is not asked", g)
		}
		told := false
		for _, e := range l.Step(now, Fenced{Generation: g, Open: open}) {
			told = told || reflect.DeepEqual(e, FencedHere{Generation: g, Open: open})
		}
		if !told {
			t.Errorf("generation %s: what the provider says is not told", g)
		}
	}
}
