package transfer

import (
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// Effect is one thing that the actor around a machine is to do, in order.
type Effect interface{ effect() }

type (
	// Send sends a message of the room to another engine, once; the machine
	// repeats what has to be repeated.
	Send struct {
		To   messages.Engine
		Body any // one of the messages of messages.Room's body
	}

	// Post gives one write to the transport. The tag is the room's.
	Post struct {
		To     messages.Engine // the receiver
		Write  rdma.WriteID    // unique in the room
		Grant  rdma.GrantID
		Copies []kv.Copy
		Bytes  uint64
	}

	// Quiesce ends the writes of the room; answered by Quiesced.
	Quiesce struct{}

	// UnpinSources: the source pages are the engine's own again. Once.
	UnpinSources struct{}

	// InstallGrant installs a grant for one writer; answered by GrantInstalled.
	InstallGrant struct {
		Grant  rdma.GrantID
		Writer messages.Engine
		Ranges []kv.Range
	}

	// Revoke closes a grant as far as the provider can; answered by Revoked.
	Revoke struct{ Grant rdma.GrantID }

	// Fence asks for the end of the present generation with the node of this
	// engine, if it is still this one; answered by Fenced. What several rooms
	// ask for at once is one fence.
	Fence struct {
		Peer       messages.Engine
		Generation rdma.Generation // zero: whatever is up
	}

	// ReadMeta reads the metadata row of the room; answered by MetaRead.
	ReadMeta struct{ Row uint32 }

	// Record keeps the outcome with the engine, which answers for it after the
	// machine is gone. It is carried out before any later Send.
	Record struct{ Outcome *messages.Outcome }

	// Finish tells the caller how the room ended. Once. Unknown: the decider was
	// lost after this side's vote. After a complete outcome the pages hold the
	// KV; else they stay the room's until ReleasePages. Excused: no receiver
	// needs anything of this engine, which is no participant; the outcome, said
	// complete, is of its own part alone.
	Finish struct {
		Outcome *messages.Outcome
		Excused bool
	}

	// ReleasePages: the pages and the metadata row of the receiver are the
	// engine's own again. Once. With a complete outcome it comes with Finish, and
	// says that nothing of the room can write into them any more.
	ReleasePages struct{}

	// Quarantine: these grants cannot be closed now, for this reason. Their pages
	// stay the room's; ReleasePages follows when they can.
	Quarantine struct {
		Grants []rdma.GrantID
		Reason string
	}

	// Announced: prefill is known to have this room. Until then it counts against
	// the share of the decode pool for rooms that prefill has not announced.
	Announced struct{}

	// Tombstone: later local calls for this room are to be answered with the
	// outcome until the caller's limit (left by abort, expiry and decline).
	Tombstone struct{ Outcome *messages.Outcome }

	// Closed is the last effect: the machine has nothing left to do.
	Closed struct{}
)

func (Send) effect()         {}
func (Post) effect()         {}
func (Quiesce) effect()      {}
func (UnpinSources) effect() {}
func (InstallGrant) effect() {}
func (Revoke) effect()       {}
func (Fence) effect()        {}
func (ReadMeta) effect()     {}
func (Record) effect()       {}
func (Finish) effect()       {}
func (ReleasePages) effect() {}
func (Quarantine) effect()   {}
func (Announced) effect()    {}
func (Tombstone) effect()    {}
func (Closed) effect()       {}
