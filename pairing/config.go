package pairing

import (
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// LinkConfig is what a Link is made with.
type LinkConfig struct {
	Self, Peer messages.Node // two different ones
	Cluster    string        // label; only equal ones talk

	// Endpoints are this side's, the best provider first.
	Endpoints []*messages.Endpoint

	// FirstNumber is at least as high as every number that an earlier Link
	// between the same two incarnations gave: nanoseconds since this node started
	// will do, for nobody sends faster. A Link that starts too low is not heard
	// until a hello or ping of the peer tells it how high it was.
	FirstNumber uint64

	// Unfenced are generations that an earlier Link of this peer connected and
	// did not see fenced. They are fenced before anything else.
	Unfenced []rdma.Generation

	// Nonce draws a number that nobody guesses and that does not repeat. Jitter
	// comes from it too.
	Nonce func() uint64

	// VersionMin and VersionMax are the protocol versions that this side speaks;
	// 0: those of package messages.
	VersionMin, VersionMax uint32

	Limits Limits
}

// DirectoryConfig is what a Directory is made with.
type DirectoryConfig struct {
	Self messages.Node

	// FirstVersion is at least as high as every catalog version and readiness
	// sequence that an earlier Directory of this node incarnation gave:
	// nanoseconds since this node started will do.
	FirstVersion uint64

	Limits Limits
}

// PairStatus is what people see of two instances.
type PairStatus struct {
	Prefill, Decode string
	State           PairState

	// How many engines of each are known, of how many; of 0 while none is known.
	PrefillHave, PrefillWant int
	DecodeHave, DecodeWant   int

	// Zero while the instance is not whole.
	PrefillRoster, DecodeRoster messages.RosterHash

	// Reasons is every reason why the pair takes no new rooms.
	Reasons []*messages.Reason
}

// PairState says how far two instances are.
type PairState uint8

const (
	// Gathering: an instance is not whole, or what it replaces is not fenced yet.
	Gathering PairState = iota + 1
	// Mismatched: the deployments do not work together.
	Mismatched
	// Waiting: links are missing or suspect, or another node is not ready yet.
	Waiting
	// Ready: the pair takes new rooms.
	Ready
)

func (s PairState) String() string {
	switch s {
	case Gathering:
		return "gathering"
	case Mismatched:
		return "mismatched"
	case Waiting:
		return "waiting"
	case Ready:
		return "ready"
	}
	return "unknown"
}

// EngineStatus is what people see of one engine.
type EngineStatus struct {
	Engine messages.Engine
	Role   messages.Role
	Node   messages.Node
	Local  bool
	State  EngineState
	Text   string // why it is refused or not in service yet
}

// EngineState says whether an engine is on the roster of its instance.
type EngineState uint8

const (
	// Enrolled: it is on the roster.
	Enrolled EngineState = iota + 1
	// Fencing: it is on the roster, and nothing pairs with it before what it
	// replaced is fenced.
	Fencing
	// Contending: the holder of its place is being asked whether it is alive.
	Contending
	// Turned: it was refused, and is considered again when its place is free.
	Turned
)

func (s EngineState) String() string {
	switch s {
	case Enrolled:
		return "enrolled"
	case Fencing:
		return "fencing"
	case Contending:
		return "contending"
	case Turned:
		return "refused"
	}
	return "unknown"
}
