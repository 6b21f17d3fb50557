package pairing

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// LinkEffect is one thing that the actor around a Link is to do, in order.
type LinkEffect interface{ linkEffect() }

type (
	// Transmit sends an envelope to the node at the peer's address, once.
	Transmit struct{ Envelope *messages.Envelope }

	// Connect starts the session {Peer: Peer.String(), Generation}. It is carried
	// out before any later Transmit: the peer may dial as soon as that comes.
	// Answered by Connected or Disconnected. Endpoint is the peer's, nil unless
	// Dial.
	Connect struct {
		Provider   string
		Generation rdma.Generation
		Dial       bool
		Endpoint   []byte
	}

	// FenceSession fences a generation, known to the provider or not. Answered by
	// Fenced.
	FenceSession struct{ Generation rdma.Generation }

	// Deliver hands on a body that came: *messages.Room, *messages.Catalog,
	// *messages.CatalogAck, *messages.Readiness or *messages.ReadinessAck. Each
	// comes at most once, in the order in which the peer sent them.
	Deliver struct{ Body any }

	// Up: the generation carries writes, and every lower one is fenced on both
	// sides. Rooms state again what is not acknowledged, and may post again.
	Up struct {
		Generation rdma.Generation
		Provider   string
	}

	// Down: the generation takes no more writes. FencedHere follows, and another
	// Up unless the Link ends.
	Down struct {
		Generation rdma.Generation
		Cause      *messages.Cause
	}

	// SuspectChanged: the peer misses answers, or does so no more. Resends to it
	// stop meanwhile.
	SuspectChanged struct{ Suspect bool }

	// FencedHere: no byte of the generation moves at this side any more, but under
	// Open. It may come again for a generation when FenceWanted asks again.
	FencedHere struct {
		Generation rdma.Generation
		Open       []rdma.OpenGrant
	}

	// Lost: this life of the peer is over for us: gossip or a Bye said so. Once.
	Lost struct{ Cause *messages.Cause }

	// Probed answers Probe.
	Probed struct{ Alive bool }

	// NotSent: a submitted body did not leave.
	NotSent struct {
		Body   any
		Reason string
	}

	// Misfit tells people why the two nodes do not come together (another cluster
	// label, no common version or provider), once per cause. Ours says whether
	// this side found it; the other side was told, or told us.
	Misfit struct {
		Ours  bool
		Field string
		Got   string
		Want  string
	}

	// ProviderFailed tells people that a provider could not connect, and why, once per
	// reason. The next that both have is tried.
	ProviderFailed struct{ Provider, Reason string }

	// Left: the peer acknowledged our Bye, or did not in time. Once.
	Left struct{ Acknowledged bool }

	// Closed is the last effect: nothing is in flight, and every generation of
	// this Link is fenced.
	Closed struct{}
)

func (Transmit) linkEffect()       {}
func (Connect) linkEffect()        {}
func (FenceSession) linkEffect()   {}
func (Deliver) linkEffect()        {}
func (Up) linkEffect()             {}
func (Down) linkEffect()           {}
func (SuspectChanged) linkEffect() {}
func (FencedHere) linkEffect()     {}
func (Lost) linkEffect()           {}
func (Probed) linkEffect()         {}
func (NotSent) linkEffect()        {}
func (Misfit) linkEffect()         {}
func (ProviderFailed) linkEffect() {}
func (Left) linkEffect()           {}
func (Closed) linkEffect()         {}
