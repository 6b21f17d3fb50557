package transfer

import (
	"slices"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// Succeed makes a fresh Sender the successor of one whose actor died before it
// had said done to anybody. Nothing of the room is in flight any more; what is
// left is to tell the decider that the room has failed, and the receivers which
// had granted that this side is quiet. (Sender, as its first event)
type Succeed struct {
	Pairing  *messages.Pairing
	DecodeDP int
	Granted  []messages.Engine // receivers whose grant was heard
	Unknown  []rdma.Generation // on which a write was unknown
	Cause    *messages.Cause
}

func (Succeed) event() {}

func (s *Sender) onSucceed(ev Succeed) {
	s.pairing = ev.Pairing
	s.setTargets(kv.Route{PrefillDP: s.self.Rank.DP, DecodeDP: ev.DecodeDP, Room: s.id.Room})
	for _, t := range s.targets {
		if slices.Contains(ev.Granted, t.receiver) {
			t.gave, t.unknown = true, slices.Clone(ev.Unknown)
		}
	}
	s.fail(ev.Cause)
}
