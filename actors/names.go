package actors

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/asynkron/protoactor-go/actor"
)

// DefaultPrefix is the name of the root actor, and so the start of all names.
const DefaultPrefix = "kvferry"

// The names that actors spawn their children with; the runtime puts the name of
// the parent and a slash before them.
const (
	MembersName   = "members"
	RegistryName  = "registry"
	PeersName     = "peers"
	EnginesName   = "engines"
	TransportName = "transport"
)

// NameMax is how long a node, engine or prefix name may be, in bytes. Names
// travel in gossip metadata, which holds 512 bytes.
const NameMax = 64

// CheckName says why name cannot be part of an actor's name; what is the kind of
// thing that is named, for the error. A name is 1 to NameMax of [A-Za-z0-9._-]:
// no slash, because PIDs of children are flat strings, and no '$', which the
// runtime uses for its own.
func CheckName(what, name string) error {
	if name == "" || len(name) > NameMax {
		return fmt.Errorf("%s name: got %d bytes, want 1 to %d", what, len(name), NameMax)
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return fmt.Errorf("%s name: got %q, want only letters, digits, '.', '_' and '-'", what, name)
		}
	}
	return nil
}

func nameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-", c) >= 0
}

// Names is where one node's tree stands in its actor system: the ids of its
// actors, to make PIDs of. The zero value has the DefaultPrefix. It is immutable.
type Names struct{ prefix string }

// NewNames puts the tree under another root, for a host with several nodes in one
// system or with actors of that name. Nodes that talk to each other have equal
// prefixes. An empty prefix is the default.
func NewNames(prefix string) (Names, error) {
	if prefix == "" {
		return Names{}, nil
	}
	if err := CheckName("prefix", prefix); err != nil {
		return Names{}, err
	}
	return Names{prefix}, nil
}

// Root is the id of the actor above all others of the node.
func (n Names) Root() string {
	if n.prefix == "" {
		return DefaultPrefix
	}
	return n.prefix
}

// Members is the id of the actor that owns gossip.
func (n Names) Members() string { return n.under(MembersName) }

// Registry is the id of the actor that knows engines and pairings.
func (n Names) Registry() string { return n.under(RegistryName) }

// Peers is the id of the supervisor of the peer actors.
func (n Names) Peers() string { return n.under(PeersName) }

// Peer is the id of the actor for one other node. The name must have passed
// CheckName.
func (n Names) Peer(node string) string { return n.under(PeersName) + "/" + node }

// PeerPrefix is what the ids of all peer actors start with: the only targets
// that messages of other nodes may have.
func (n Names) PeerPrefix() string { return n.under(PeersName) + "/" }

// Engines is the id of the supervisor of the engine actors.
func (n Names) Engines() string { return n.under(EnginesName) }

// Engine is the id of the actor of one engine. The name must have passed CheckName.
func (n Names) Engine(engine string) string { return n.under(EnginesName) + "/" + engine }

// Room is the id of the actor of one room in one engine.
func (n Names) Room(engine string, room uint64, attempt uint32) string {
	return n.Engine(engine) + "/" + RoomName(room, attempt)
}

// Transport is the id of the actor that owns providers and sessions.
func (n Names) Transport() string { return n.under(TransportName) }

func (n Names) under(child string) string { return n.Root() + "/" + child }

// RoomName is the name that an engine spawns a room's actor with.
func RoomName(room uint64, attempt uint32) string {
	return "room-" + strconv.FormatUint(room, 10) + "." + strconv.FormatUint(uint64(attempt), 10)
}

// PID is the actor with this id on the node whose actors are at address.
func PID(address, id string) *actor.PID { return actor.NewPID(address, id) }
