package pairing

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// LinkEvent is one thing that happened to a Link.
type LinkEvent interface{ linkEvent() }

type (
	// EnvelopeReceived is an envelope that was addressed to this Link, whoever
	// sent it and to whichever life of this node.
	EnvelopeReceived struct{ Envelope *messages.Envelope }

	// Submit asks to send a body: *messages.Room, *messages.Catalog,
	// *messages.CatalogAck, *messages.Readiness or *messages.ReadinessAck. It
	// leaves at once, once, or is answered by NotSent: who needs it to arrive
	// repeats it.
	Submit struct{ Body any }

	// Connected: the session of this generation carries writes.
	Connected struct{ Generation rdma.Generation }

	// Disconnected: the session of this generation is gone by itself, could not
	// be made, or the provider refused Connect. It is fenced next.
	Disconnected struct {
		Generation rdma.Generation
		Err        error
	}

	// Fenced answers FenceSession.
	Fenced struct {
		Generation rdma.Generation
		Open       []rdma.OpenGrant
	}

	// FenceWanted asks for the end of a generation; zero is whichever is up. What
	// several ask for at once is one fence. Answered by FencedHere: if that generation,
	// or with zero every generation, is fenced already, the provider is asked what is
	// open all the same.
	FenceWanted struct {
		Generation rdma.Generation
		Reason     string
	}

	// Progress: the data path moved. It is as good as a pong.
	Progress struct{}

	// GossipDown: gossip says that this life of the peer died, left or was
	// replaced. Gossip is no fence: the Link fences, then closes.
	GossipDown struct{ Cause *messages.Cause }

	// Silent: the pair is suspect, and gossip asked the peer itself, which did not answer
	// either. If the pair is suspect still, it is as if gossip had said that the peer died:
	// gossip needs some rounds for that, and more of them the larger the cluster is.
	Silent struct{ Cause *messages.Cause }

	// Probe asks whether the peer answers now. Answered by Probed, within
	// Limits.ProbeTimeout.
	Probe struct{}

	// Leave says goodbye: this node is about to stop, and its rooms have ended.
	// Answered by Left, within Limits.LeaveTimeout, then Closed.
	Leave struct{ Reason string }

	// Tick is the passing of time, at or after the Deadline. Directory takes it
	// too.
	Tick struct{}
)

func (EnvelopeReceived) linkEvent() {}
func (Submit) linkEvent()           {}
func (Connected) linkEvent()        {}
func (Disconnected) linkEvent()     {}
func (Fenced) linkEvent()           {}
func (FenceWanted) linkEvent()      {}
func (Progress) linkEvent()         {}
func (GossipDown) linkEvent()       {}
func (Silent) linkEvent()           {}
func (Probe) linkEvent()            {}
func (Leave) linkEvent()            {}
func (Tick) linkEvent()             {}
