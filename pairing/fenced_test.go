package pairing

import (
	"reflect"
	"testing"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// A fence of a generation that never was leaves nothing open itself; but a room takes a
// grant that is not listed for closed, and one that an earlier generation has left open is
// not.
func TestAFenceOfNothingListsWhatIsOpen(t *testing.T) {
	now := time.Unix(100, 0)
	l := NewLink(now, LinkConfig{
		Self: messages.Node{Name: "a", Incarnation: 1}, Peer: messages.Node{Name: "b", Incarnation: 1}, Cluster: "test", Nonce: func() uint64 { return 7 },
	})
	third, open := rdma.Generation{Number: 3}, []rdma.OpenGrant{{Grant: rdma.GrantID{9}, Reason: "a process is stopped inside a copy"}}
	l.Step(now, Fenced{Generation: third, Open: open})
	for _, g := range []rdma.Generation{third, {Number: 4}, {}} {
		var got []rdma.OpenGrant
		for _, e := range l.Step(now, FenceWanted{Generation: g}) {
			if f, ok := e.(FencedHere); ok {
				got = f.Open
			}
		}
		if !reflect.DeepEqual(got, open) {
			t.Errorf("of generation %s open are %v, want %v", g, got, open)
		}
	}
	l.Step(now, Fenced{Generation: rdma.Generation{Number: 5}}) // it could close all
	for _, e := range l.Step(now, FenceWanted{Generation: rdma.Generation{Number: 6}}) {
		if f, ok := e.(FencedHere); ok && len(f.Open) > 0 {
			t.Errorf("open are %v after a fence that closed all", f.Open)
		}
	}
}
