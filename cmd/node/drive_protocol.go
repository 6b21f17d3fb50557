package main

import (
	"context"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/node"
)

// The demo starts its nodes as `kvferry run --drive` and talks to each over its
// standard input and output: one JSON object a line, commands in, events out.
// A node that reads the end of its input stops.

// Operations of a driveCommand.
const (
	opAttach  = "attach"  // make the memory of an engine and attach it; answered by attached
	opPair    = "pair"    // wait until the engine's instance is paired with all Peers; answered by paired
	opSend    = "send"    // the prefill leg of a room; answered by room
	opReceive = "receive" // the decode leg of a room; answered by room
	opAbort   = "abort"   // give a room up; the room answers
	opStop    = "stop"    // end all rooms, look at all memory, detach, answer stopped, and end
)

// Kinds of a driveEvent.
const (
	eventReady    = "ready"    // the node listens
	eventAttached = "attached" //
	eventPaired   = "paired"   //
	eventRoom     = "room"     // a leg of a room ended
	eventStopped  = "stopped"  // with what the last look at the memory found
	eventFailed   = "failed"   // the command before cannot be done; the process ends
)

// driveCommand is what the demo tells a node to do.
type driveCommand struct {
	Op string `json:"op"`

	// attach
	Role       string         `json:"role,omitempty"` // prefill or decode
	Instance   string         `json:"instance,omitempty"`
	Rank       kv.Rank        `json:"rank"`
	Deployment *kv.Deployment `json:"deployment,omitempty"`
	Pages      uint32         `json:"pages,omitempty"` // of each tensor

	// pair
	Peers []string `json:"peers,omitempty"` // instances of the other role

	// send, receive, abort
	Room      uint64     `json:"room,omitempty"`
	Attempt   uint32     `json:"attempt,omitempty"`
	Prefill   string     `json:"prefill,omitempty"`
	PrefillDP int        `json:"prefill_dp,omitempty"`
	Prefix    uint64     `json:"prefix,omitempty"`
	Tokens    uint64     `json:"tokens,omitempty"`
	Chunk     uint64     `json:"chunk,omitempty"` // tokens of a chunk; 0: chunkTokens
	Flip      *flippedAt `json:"flip,omitempty"`
	Reason    string     `json:"reason,omitempty"`

	// Wait bounds attach and pair, and how long a room waits for pages.
	Wait time.Duration `json:"wait,omitempty"`
}

// flippedAt is a byte that a prefill engine spoils before it is sent.
type flippedAt struct {
	Component string `json:"component"`
	Layer     int    `json:"layer"`
	Head      int    `json:"head"`
	Row       uint64 `json:"row"`
	Byte      uint64 `json:"byte"` // of the row
}

// driveEvent is what a node tells the demo.
type driveEvent struct {
	Event string `json:"event"`

	// ready
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"` // of its gossip
	PID     int    `json:"pid,omitempty"`

	// failed
	Error string `json:"error,omitempty"`

	// room, and stopped for the memory outside of rooms
	Room       uint64 `json:"room,omitempty"`
	OK         bool   `json:"ok,omitempty"` // complete, whatever the check found
	Reason     string `json:"reason,omitempty"`
	WrongBytes uint64 `json:"wrong_bytes,omitempty"`
	FirstWrong string `json:"first_wrong,omitempty"`
	Bytes      uint64 `json:"bytes,omitempty"`
	Copies     uint64 `json:"copies,omitempty"`
	// On the monotonic clock of the machine, which all processes share: when the
	// first chunk was given to the engine, and when the room was complete. 0: never.
	FirstSend time.Duration `json:"first_send,omitempty"`
	Done      time.Duration `json:"done,omitempty"`
}

// What the driver needs of a node; *node.Node in production.
type (
	driveNode interface {
		Self() messages.Node
		GossipAddress() string
		WaitPaired(ctx context.Context, prefill, decode string) error
		AttachPrefill(ctx context.Context, c node.EngineConfig) (prefillEngine, error)
		AttachDecode(ctx context.Context, c node.EngineConfig) (decodeEngine, error)
		Done() <-chan struct{}
		Err() error
	}
	detacher interface {
		Detach(ctx context.Context) error
	}

	prefillEngine interface {
		detacher
		Open(ctx context.Context, q node.SendRequest) (sendRoom, error)
	}
	decodeEngine interface {
		detacher
		Receive(ctx context.Context, q node.ReceiveRequest) (receiveRoom, error)
	}
	openRoom interface {
		Place() kv.Placement
		Abort(reason string)
		Wait(ctx context.Context) (node.Result, error)
	}
	sendRoom interface {
		openRoom
		Chunk(to uint64)
		ChunkLayers(to uint64, layers int)
		Free()
	}
	receiveRoom interface {
		openRoom
		Free()
	}
)

// realNode is a node as the driver needs it.
type realNode struct{ *node.Node }

type realPrefill struct{ *node.Prefill }

type realDecode struct{ *node.Decode }

func (n realNode) AttachPrefill(ctx context.Context, c node.EngineConfig) (prefillEngine, error) {
	p, err := n.Node.AttachPrefill(ctx, c)
	return realPrefill{p}, err
}

func (n realNode) AttachDecode(ctx context.Context, c node.EngineConfig) (decodeEngine, error) {
	d, err := n.Node.AttachDecode(ctx, c)
	return realDecode{d}, err
}

func (p realPrefill) Open(ctx context.Context, q node.SendRequest) (sendRoom, error) {
	return p.Prefill.Open(ctx, q)
}

func (d realDecode) Receive(ctx context.Context, q node.ReceiveRequest) (receiveRoom, error) {
	return d.Decode.Receive(ctx, q)
}
