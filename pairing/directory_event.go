package pairing

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// DirectoryEvent is one thing that a Directory is told.
type DirectoryEvent interface{ directoryEvent() }

type (
	// Attach offers an engine of this node. Answered by Attached or Refused; by
	// neither if it is detached first.
	Attach struct{ Description *messages.EngineDescription }

	// Detach takes an engine of this node out: its writes have ended and its
	// grants are closed. An engine that is not attached is no error.
	Detach struct {
		Engine messages.Engine
		Cause  *messages.Cause
	}

	// LinkUp: a generation with the node is up. Address is where its actors are
	// reached: two lives of a node that have the same one are never both alive.
	LinkUp struct {
		Node       messages.Node
		Address    string
		Generation rdma.Generation
	}

	// LinkDown: the generation ended; another may follow.
	LinkDown struct{ Node messages.Node }

	// LinkSuspect: the pair misses answers, or does so no more.
	LinkSuspect struct {
		Node    messages.Node
		Suspect bool
	}

	// LinkLost: this life of the node is over for us. Its engines are lost.
	LinkLost struct {
		Node  messages.Node
		Cause *messages.Cause
	}

	// LinkFenced is a Link's FencedHere. It answers FenceNode, and comes for every
	// generation that was up, that of a lost node included.
	LinkFenced struct {
		Node       messages.Node
		Generation rdma.Generation
	}

	// NodeProbed answers ProbeNode. A node that has no Link is not alive.
	NodeProbed struct {
		Node  messages.Node
		Alive bool
	}

	// CatalogReceived, CatalogAcked, ReadinessReceived and ReadinessAcked are what
	// a Link delivered.
	CatalogReceived struct {
		From    messages.Node
		Catalog *messages.Catalog
	}
	CatalogAcked struct {
		From messages.Node
		Ack  *messages.CatalogAck
	}
	ReadinessReceived struct {
		From      messages.Node
		Readiness *messages.Readiness
	}
	ReadinessAcked struct {
		From messages.Node
		Ack  *messages.ReadinessAck
	}
)

func (Attach) directoryEvent()            {}
func (Detach) directoryEvent()            {}
func (LinkUp) directoryEvent()            {}
func (LinkDown) directoryEvent()          {}
func (LinkSuspect) directoryEvent()       {}
func (LinkLost) directoryEvent()          {}
func (LinkFenced) directoryEvent()        {}
func (NodeProbed) directoryEvent()        {}
func (CatalogReceived) directoryEvent()   {}
func (CatalogAcked) directoryEvent()      {}
func (ReadinessReceived) directoryEvent() {}
func (ReadinessAcked) directoryEvent()    {}
func (Tick) directoryEvent()              {}
