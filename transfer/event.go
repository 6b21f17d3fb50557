package transfer

import (
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// Event is one thing that happened to a room. Sender and Receiver each take
// those that name them.
type Event interface{ event() }

type (
	// Received is a message of the room from another engine. The actor has
	// checked that room, attempt and target incarnation fit; the machine checks
	// the rest.
	Received struct {
		From messages.Engine
		Body any // one of the messages of messages.Room's body: *messages.Grant, *messages.Done, ...
	}

	// Chunk is what one prefill step finished: tokens [From, To), in pages that
	// stay valid until UnpinSources. It may come layer by layer: then the same
	// tokens come several times, with Layers going up and at last 0. (Sender)
	Chunk struct {
		From, To uint64
		Layers   int          // only the layers below this number are finished; 0: all
		Source   kv.Placement // where this engine keeps the request
		Last     bool         // To is the length; with all layers the metadata row is finished too
	}

	// Paired tells that the two instances work together now. A Sender gets it for
	// the decode instance that it hears from. It may come again with newer
	// rosters: a room keeps the first that it used.
	Paired struct{ Pairing *messages.Pairing }

	// Unpaired tells that the pairing of this peer instance ended: an engine of
	// it is dead or was replaced.
	Unpaired struct {
		Instance string
		Cause    *messages.Cause
	}

	// PeerLost tells that an engine of the room is gone: its node died or left,
	// or it was detached.
	PeerLost struct {
		Engine messages.Engine
		Cause  *messages.Cause
	}

	// Suspect tells that the pair with the node of these engines is suspect, or is
	// so no more. Resends to it stop meanwhile.
	Suspect struct {
		Engines []messages.Engine
		Suspect bool
	}

	// NewGeneration tells that every generation of the pair with the node of these
	// engines below Number is fenced on both sides, and Number is up.
	NewGeneration struct {
		Engines []messages.Engine
		Number  uint64
	}

	// NotTaken tells that the provider did not take a write: it stays with the
	// machine. Err says why. (Sender)
	NotTaken struct {
		Write rdma.WriteID
		Err   error
	}

	// Written is the completion of a write. (Sender)
	Written struct {
		Write      rdma.WriteID
		Generation rdma.Generation
		Outcome    rdma.Outcome
		Err        error
		Arrivals   []rdma.Arrival
	}

	// Quiesced answers Quiesce: nothing of this room reads a source or writes any
	// more, but what generations Unknown carried. (Sender)
	Quiesced struct{ Unknown []rdma.Generation }

	// GrantInstalled answers InstallGrant. (Receiver)
	GrantInstalled struct {
		Grant rdma.GrantID
		Err   error
	}

	// Arrived tells of arrivals counted under a grant of the room. (Receiver)
	Arrived struct {
		Grant      rdma.GrantID
		Generation rdma.Generation
		rdma.Arrival
		Bytes uint64
	}

	// Revoked answers Revoke. Of a grant that was left open it may come once more, when
	// what kept it open has ended. (Receiver)
	Revoked struct {
		Grant  rdma.GrantID
		Closed bool
	}

	// Fenced tells that the session of one generation with the node of these
	// engines is fenced here: by Fence of this machine, or for another reason.
	// Open lists the grants that the fence could not close. Both sides take it.
	Fenced struct {
		Engines    []messages.Engine
		Generation rdma.Generation
		Open       []rdma.OpenGrant
	}

	// MetaRead answers ReadMeta with what the landed row says. (Receiver)
	MetaRead struct{ Room messages.RoomID }

	// Abort is the caller of this side giving up.
	Abort struct{ Cause *messages.Cause }

	// Tick is the passing of time, at or after the machine's Deadline.
	Tick struct{}
)

func (Received) event()       {}
func (Chunk) event()          {}
func (Paired) event()         {}
func (Unpaired) event()       {}
func (PeerLost) event()       {}
func (Suspect) event()        {}
func (NewGeneration) event()  {}
func (NotTaken) event()       {}
func (Written) event()        {}
func (Quiesced) event()       {}
func (GrantInstalled) event() {}
func (Arrived) event()        {}
func (Revoked) event()        {}
func (Fenced) event()         {}
func (MetaRead) event()       {}
func (Abort) event()          {}
func (Tick) event()           {}
