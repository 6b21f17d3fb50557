// Package messages holds everything that crosses between actors or nodes: the
// protobuf messages of proto/kvferry/v1, and the Go names of the ids in them.
// Nothing here behaves.
package messages

import (
	"fmt"
	"strconv"

	"kvferry/kv"
	"kvferry/transport/rdma"
)

// ProtocolVersion is what this build speaks; ProtocolVersionMin is the oldest
// that it still speaks with.
const (
	ProtocolVersion    = 1
	ProtocolVersionMin = 1
)

// Node is one process life of a node.
type Node struct {
	Name        string
	Incarnation uint64
}

func (n Node) String() string { return n.Name + "#" + strconv.FormatUint(n.Incarnation, 16) }

// Ref is n on the wire.
func (n Node) Ref() *NodeRef { return &NodeRef{Name: n.Name, Incarnation: n.Incarnation} }

// Node is the Go form of a reference; a nil reference is the zero Node.
func (r *NodeRef) Node() Node { return Node{r.GetName(), r.GetIncarnation()} }

// Engine is one attachment of an engine.
type Engine struct {
	Instance    string
	Rank        kv.Rank
	Incarnation uint64
}

func (e Engine) String() string {
	return fmt.Sprintf("%s(%s)#%x", e.Instance, e.Rank, e.Incarnation)
}

// Ref is e on the wire.
func (e Engine) Ref() *EngineRef {
	return &EngineRef{
		Instance: e.Instance, Incarnation: e.Incarnation,
		Dp: uint32(e.Rank.DP), Pp: uint32(e.Rank.PP), Cp: uint32(e.Rank.CP), Tp: uint32(e.Rank.TP),
	}
}

// Engine is the Go form of a reference; a nil reference is the zero Engine.
func (r *EngineRef) Engine() Engine {
	return Engine{
		Instance: r.GetInstance(), Incarnation: r.GetIncarnation(),
		Rank: kv.Rank{DP: int(r.GetDp()), PP: int(r.GetPp()), CP: int(r.GetCp()), TP: int(r.GetTp())},
	}
}

// RoomID names one attempt of one request's transfer.
type RoomID struct {
	Room    uint64
	Attempt uint32
}

func (r RoomID) String() string { return fmt.Sprintf("%d.%d", r.Room, r.Attempt) }

// Wire is g on the wire.
func GenerationWire(g rdma.Generation) *Generation {
	return &Generation{Number: g.Number, Low: g.Low, High: g.High}
}

// Rdma is the Go form of a generation; nil is the zero one.
func (g *Generation) Rdma() rdma.Generation {
	return rdma.Generation{Number: g.GetNumber(), Low: g.GetLow(), High: g.GetHigh()}
}

// Member is one engine of a paired instance, and the node that it lives on.
type Member struct {
	Engine Engine
	Node   Node
	Kv     *kv.Engine
	// Regions are the registered regions of the engine in the order of the
	// indices that its shards use.
	Regions []*Region
}

// RosterHash is the generation of a roster: a hash of its engines by rank, with
// their incarnations and shards.
type RosterHash [32]byte

// Pairing is two instances that work together: what rooms between them are
// planned with. It is immutable.
type Pairing struct {
	Fit           *kv.Fit
	Prefill       string // instance names
	Decode        string
	PrefillRoster RosterHash
	DecodeRoster  RosterHash
	PrefillEngine []Member // in roster order
	DecodeEngine  []Member
}

// Member finds the engine with this rank. prefill says on which side.
func (p *Pairing) Member(prefill bool, r kv.Rank) (Member, bool) {
	members := p.DecodeEngine
	if prefill {
		members = p.PrefillEngine
	}
	for _, m := range members {
		if m.Engine.Rank == r {
			return m, true
		}
	}
	return Member{}, false
}
