package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// The messages below stay within a node. They are sent by pointer and never
// changed after they are sent.

// What the gossip adapter tells. (members -> peers)
type (
	// NodeUp: this process life of a node was seen. Address is how its actors
	// are reached.
	NodeUp struct {
		Node    messages.Node
		Address string
	}
	// NodeDown: gossip says that it died, left or was replaced.
	NodeDown struct {
		Node  messages.Node
		Cause *messages.Cause
	}
	// NodeSilent: a node whose link is suspect did not answer gossip either. Gossip
	// has not called it dead yet.
	NodeSilent struct {
		Node  messages.Node
		Cause *messages.Cause
	}
)

// Between the actors and peers/<node>, the only one that talks to that node.
type (
	// ToPeer is a body for another node: *Room, *Catalog, *Readiness or one of
	// their acknowledgements. It is lost if the pair is not up: whoever sends it
	// repeats it. (registry, engines -> peers)
	ToPeer struct {
		Node messages.Node
		Body any
	}
	// FromPeer is a body that came. (peers -> registry, engines)
	FromPeer struct {
		Node messages.Node
		Body any
	}
	// LinkUp: a generation with the node is up, and every lower one is fenced on
	// both sides. (peers -> registry, engines)
	LinkUp struct {
		Node       messages.Node
		Address    string
		Provider   string
		Generation rdma.Generation
	}
	// LinkDown: the generation ended; another may follow. (peers -> registry, engines)
	LinkDown struct {
		Node       messages.Node
		Generation rdma.Generation
		Cause      *messages.Cause
	}
	// LinkSuspect: the pair misses answers, or does so no more. (peers ->
	// registry, engines)
	LinkSuspect struct {
		Node    messages.Node
		Suspect bool
	}
	// LinkFenced: this side fenced a generation. (peers -> registry, engines)
	LinkFenced struct {
		Node       messages.Node
		Generation rdma.Generation
		Open       []rdma.OpenGrant
	}
	// LinkLost: this process life of the node is over for us. (peers -> registry,
	// engines)
	LinkLost struct {
		Node  messages.Node
		Cause *messages.Cause
	}
	// FenceLink asks for the end of a generation, or of whatever is up when it is
	// zero. (engines, registry -> peers)
	FenceLink struct {
		Node       messages.Node
		Generation rdma.Generation
		Reason     string
	}
	// ProbeNode asks whether a node answers now; answered by NodeProbed.
	// (registry -> peers)
	ProbeNode struct{ Node messages.Node }
	// NodeProbed answers ProbeNode. (peers -> registry)
	NodeProbed struct {
		Node  messages.Node
		Alive bool
	}
)

// Between engines and the registry.
type (
	// AttachEngine offers a local engine to the registry. Answered to Engines by
	// EngineAttached. (engines -> registry)
	AttachEngine struct {
		Description *messages.EngineDescription
		Reply       *actor.PID
	}
	// EngineAttached answers AttachEngine. Err says what was refused and why.
	EngineAttached struct {
		Engine messages.Engine
		Err    error
	}
	// DetachEngine takes an engine out of its roster. (engines -> registry)
	DetachEngine struct {
		Engine messages.Engine
		Cause  *messages.Cause
	}
	// PairUp: two instances work together from now on, with these rosters.
	// (registry -> engines)
	PairUp struct{ Pairing *messages.Pairing }
	// PairWaiting: new rooms of the pair wait until PairUp or PairDown; open ones
	// go on, and a grant that comes is served. (registry -> engines)
	PairWaiting struct{ Prefill, Decode string }
	// PairUnfit: the instances do not work together, and no room of theirs is ever
	// paired; nil: that is not so any more. (registry -> engines)
	PairUnfit struct {
		Prefill, Decode string
		Cause           *messages.Cause
	}
	// PairDown: the pairing has ended; another PairUp has other rosters.
	// (registry -> engines)
	PairDown struct {
		Prefill, Decode string
		Cause           *messages.Cause
	}
	// EngineLost: this attachment of an engine is over. (registry -> engines)
	EngineLost struct {
		Engine messages.Engine
		Cause  *messages.Cause
	}
)

// Between engines or peers and the transport actor.
type (
	// RegisterMemory registers the memory of an engine with every provider.
	// Answered by MemoryRegistered. (engine -> transport)
	RegisterMemory struct {
		Owner  *actor.PID
		Memory []*rdma.Memory
	}
	// MemoryRegistered has one Region per memory, in order.
	MemoryRegistered struct {
		Regions []*messages.Region
		Err     error
	}
	// EndOwner ends all that an engine's actor had asked for: its writes, its
	// grants and its memory. Done is called when that is done, with the number of
	// grants that could not be closed; their memory stays registered. (engines ->
	// transport)
	EndOwner struct {
		Owner *actor.PID
		Done  func(open int)
	}

	// ConnectSession starts a session. What becomes of it is told to Reply as
	// SessionUp, SessionDown and SessionFenced. (peers -> transport)
	ConnectSession struct {
		Node       messages.Node
		Provider   string
		Generation rdma.Generation
		Dial       bool
		Endpoint   []byte
		Reply      *actor.PID
	}
	// FenceSession ends a generation. Answered by SessionFenced. (peers -> transport)
	FenceSession struct {
		Node       messages.Node
		Generation rdma.Generation
		Reply      *actor.PID
	}
	// SessionUp: the session carries writes. (transport -> peers)
	SessionUp struct {
		Node       messages.Node
		Generation rdma.Generation
	}
	// SessionDown: the session ended by itself. (transport -> peers)
	SessionDown struct {
		Node       messages.Node
		Generation rdma.Generation
		Err        error
	}
	// SessionFenced: no byte of the generation moves any more, but under Open.
	// (transport -> peers)
	SessionFenced struct {
		Node       messages.Node
		Generation rdma.Generation
		Open       []rdma.OpenGrant
	}
	// DataMoved: something of this node completed or arrived. At most one is sent
	// per batch of events. (transport -> peers)
	DataMoved struct{ Node messages.Node }

	// PostWrite gives a write of a room to the present session with a node.
	// Answered to Owner by WriteDone, or WriteNotTaken. (prefill -> transport)
	PostWrite struct {
		Owner  *actor.PID
		Room   messages.RoomID
		Tag    rdma.Tag
		Node   messages.Node
		Write  rdma.WriteID // unique in the room
		Grant  rdma.GrantID
		Source []*messages.Region // of the writer's engine
		Target []*messages.Region // of the receiver's engine
		Copies []kv.Copy
	}
	// WriteDone ends a write. (transport -> prefill)
	WriteDone struct {
		Room       messages.RoomID
		Write      rdma.WriteID
		Generation rdma.Generation
		Outcome    rdma.Outcome
		Err        error
		Bytes      uint64
		Arrivals   []rdma.Arrival
	}
	// WriteNotTaken: there is no session, or the copies are malformed.
	WriteNotTaken struct {
		Room  messages.RoomID
		Write rdma.WriteID
		Err   error
	}
	// QuiesceRoom ends the writes of a tag; answered to Owner by RoomQuiesced.
	// (prefill -> transport)
	QuiesceRoom struct {
		Owner *actor.PID
		Room  messages.RoomID
		Tag   rdma.Tag
	}
	// RoomQuiesced lists the generations on which a write was unknown.
	RoomQuiesced struct {
		Room    messages.RoomID
		Tag     rdma.Tag
		Unknown []rdma.Generation
	}

	// InstallGrant puts a grant in force. Answered to Owner by GrantInstalled;
	// later by GrantArrived. (decode -> transport)
	InstallGrant struct {
		Owner   *actor.PID
		Room    messages.RoomID
		Grant   rdma.GrantID
		Writer  messages.Node
		Regions []*messages.Region // of the receiver's engine
		Ranges  []kv.Range
	}
	// GrantInstalled answers InstallGrant.
	GrantInstalled struct {
		Room  messages.RoomID
		Grant rdma.GrantID
		Err   error
	}
	// GrantArrived counts arrivals. (transport -> decode)
	GrantArrived struct {
		Room       messages.RoomID
		Grant      rdma.GrantID
		Generation rdma.Generation
		Arrival    rdma.Arrival
		Bytes      uint64
	}
	// RevokeGrant closes a grant as far as possible; answered by GrantRevoked.
	// (decode -> transport)
	RevokeGrant struct {
		Owner *actor.PID
		Room  messages.RoomID
		Grant rdma.GrantID
	}
	// GrantRevoked answers RevokeGrant. What it says is open may be told once more,
	// unasked, when it is closed.
	GrantRevoked struct {
		Room   messages.RoomID
		Grant  rdma.GrantID
		Closed bool
	}
)

// Handle is one caller's hold on a room, from Env.NextID: what it says of the room
// later names it, so that it never speaks for another caller of the same id.
type Handle uint64

// What the program that embeds a node says to its engines. The funcs are called
// from the engine's actor: they must not block.
type (
	// OpenSend announces a room to a prefill engine.
	OpenSend struct {
		Room   messages.RoomID
		Handle Handle
		Tokens uint64        // length of the request
		Wait   time.Duration // for capacity and for decode; 0: the default
		Opened func(*Opened, error)
		Ended  func(*Ended) // once, after Opened without an error
	}
	// Opened is what a room holds until it ends.
	Opened struct{ At kv.Placement }
	// SendChunk says that tokens up to To are computed: in all layers if it is Whole,
	// else in those below Layers.
	SendChunk struct {
		Room   messages.RoomID
		Handle Handle
		To     uint64
		Whole  bool
		Layers int
	}
	// OpenReceive asks a decode engine for a room.
	OpenReceive struct {
		Room           messages.RoomID
		Handle         Handle
		Prefill        string
		PrefillDP      int
		Prefix, Length uint64
		Wait           time.Duration
		Opened         func(*Opened, error)
		Ended          func(*Ended)
	}
	// AbortRoom gives up a room of either side.
	AbortRoom struct {
		Room   messages.RoomID
		Handle Handle
		Reason string
	}
	// FreePages says that the caller does not touch the pages of its room any more.
	// They are given away again when KVFerry does not either.
	FreePages struct {
		Room   messages.RoomID
		Handle Handle
	}

	// Ended is how a room ended, for the caller.
	Ended struct {
		Outcome *messages.Outcome
		Excused bool // prefill: no receiver needed anything of this engine
		Bytes   uint64
		Copies  uint64 // planned copies, on the prefill side
	}
)

// LeavePeers says goodbye to every peer. Done is called when each has answered or
// its time is over. (node -> peers)
type LeavePeers struct {
	Reason string
	Done   func()
}
