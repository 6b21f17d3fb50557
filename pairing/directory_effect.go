package pairing

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// DirectoryEffect is one thing that the actor around a Directory is to do, in
// order.
type DirectoryEffect interface{ directoryEffect() }

type (
	// SendTo gives a body to the Link of a node, once; the Directory repeats what
	// has to be repeated.
	SendTo struct {
		Node messages.Node
		Body any // *messages.Catalog, *messages.CatalogAck, *messages.Readiness or *messages.ReadinessAck
	}

	// Attached answers Attach: the engine is on the roster of its instance.
	Attached struct{ Engine messages.Engine }

	// Refused answers Attach: nothing of it is kept. Err is a *Conflict, an
	// *Occupied, or says what is wrong with the description.
	Refused struct {
		Engine messages.Engine
		Err    error
	}

	// PairUp: the two instances work together, and take new rooms. At least one
	// engine of them is of this node. After PairWaiting it comes again with the
	// same Pairing.
	PairUp struct{ Pairing *messages.Pairing }

	// PairWaiting: new rooms of the pair wait (bounded by their own limits) until
	// PairUp or PairDown. Open rooms go on, and a grant that arrives is served:
	// the rosters are as they were, but a node of them is not reached, or one of
	// them says so of others.
	PairWaiting struct {
		Prefill, Decode string
		Reasons         []*messages.Reason
	}

	// PairUnfit: the rosters of both instances are whole, and do not work together:
	// no room of theirs will ever be paired, for these reasons. No reasons: that is
	// not so any more, because a roster has changed.
	PairUnfit struct {
		Prefill, Decode string
		Reasons         []*messages.Reason
	}

	// PairDown: the pairing has ended: an engine of either instance is dead, was
	// detached or was replaced. Another PairUp has other rosters.
	PairDown struct {
		Prefill, Decode string
		Cause           *messages.Cause
	}

	// EngineLost: this attachment of an engine is over: its node died or left, it
	// was detached, or another incarnation takes its place. An engine of this node
	// that hears it of itself ends, and is detached; until then the newcomer
	// waits.
	EngineLost struct {
		Engine messages.Engine
		Cause  *messages.Cause
	}

	// ProbeNode asks whether a node answers now; answered by NodeProbed.
	ProbeNode struct{ Node messages.Node }

	// FenceNode asks for the end of a generation with a node, of which an engine
	// was replaced; answered by LinkFenced.
	FenceNode struct {
		Node       messages.Node
		Generation rdma.Generation
		Reason     string
	}

	// Ignored is something of a peer that was not taken, for logs and metrics.
	Ignored struct {
		From  messages.Node
		Field string
		Got   string
		Want  string
	}
)

func (SendTo) directoryEffect()      {}
func (Attached) directoryEffect()    {}
func (Refused) directoryEffect()     {}
func (PairUp) directoryEffect()      {}
func (PairWaiting) directoryEffect() {}
func (PairUnfit) directoryEffect()   {}
func (PairDown) directoryEffect()    {}
func (EngineLost) directoryEffect()  {}
func (ProbeNode) directoryEffect()   {}
func (FenceNode) directoryEffect()   {}
func (Ignored) directoryEffect()     {}
