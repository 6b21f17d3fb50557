package actors

import (
	"fmt"
	"maps"
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// EngineConfig is what both kinds of engine actors are made of.
type EngineConfig struct {
	Env  *Env
	Self messages.Engine
	Node messages.Node // that it is attached to
	// Layout is the instance that the engine belongs to, with at least this
	// rank's shards and metadata rows.
	Layout *kv.Instance
	// Memory is the engine's regions, in the order of the indices of its shards.
	Memory []*rdma.Memory
	Limits EngineLimits
	Rooms  transfer.Limits

	Registry  *actor.PID
	Transport *actor.PID
	Peer      func(messages.Node) *actor.PID // the actor peers/<node>

	// Attached is called once, from the actor: nil when the engine is registered
	// and in its roster, else why not; then the actor has stopped.
	Attached func(error)
}

// RoomBase is what both kinds of engine actors keep of a room.
type RoomBase struct {
	ID      messages.RoomID
	PID     *actor.PID // its actor; nil when it is gone
	Pairing *messages.Pairing
	Peer    string // the instance on the other side, "" while it is not known
	Ended   func(*Ended)
	Outcome *messages.Outcome
	Excused bool // prefill: nobody needed anything of this engine
	Closed  bool // the machine has said Closed
}

// Engine is what both kinds of engine actors do alike: they know their peers,
// route the messages of rooms, remember how rooms ended, and tell rooms what
// happens to nodes. The actor that embeds it owns it.
type Engine struct {
	EngineConfig
	Kv      *kv.Engine
	Role    messages.Role
	Regions []*messages.Region // since the memory is registered
	Records *Records
	Pairs   map[string]*messages.Pairing // by peer instance

	rooms    map[messages.RoomID]*RoomBase
	byActor  map[string]*RoomBase       // by the id of its PID, as long as it lives
	attempts map[uint64]uint32          // the attempt of each room that is open
	waiting  map[string]bool            // peer instances whose new rooms wait
	unfit    map[string]*messages.Cause // peer instances that do not work with this one
	suspects map[messages.Node]bool
	dropped  map[string]uint64 // messages that did not fit, by why
	draining bool
	stopping bool
	drained  []func()
}

// NewEngine checks what the caller gave.
func NewEngine(c EngineConfig, role messages.Role) (*Engine, error) {
	limits, err := c.Limits.Resolve()
	if err != nil {
		return nil, err
	}
	c.Limits = limits
	if c.Rooms, err = c.Rooms.Resolve(); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(c.Layout.Engines, func(e kv.Engine) bool { return e.Rank == c.Self.Rank })
	if i < 0 {
		return nil, fmt.Errorf("engine %s: rank: the layout of the instance has no rank %s", c.Self.Instance, c.Self.Rank)
	}
	return &Engine{
		EngineConfig: c, Kv: &c.Layout.Engines[i], Role: role,
		Records:  NewRecords(limits.Records, limits.RecordsKeep),
		Pairs:    map[string]*messages.Pairing{},
		rooms:    map[messages.RoomID]*RoomBase{},
		byActor:  map[string]*RoomBase{},
		attempts: map[uint64]uint32{},
		waiting:  map[string]bool{},
		unfit:    map[string]*messages.Cause{},
		suspects: map[messages.Node]bool{},
		dropped:  map[string]uint64{},
	}, nil
}

// Start registers the engine's memory; Registered follows.
func (e *Engine) Start(c actor.Context) {
	c.Send(e.Transport, &RegisterMemory{Owner: c.Self(), Memory: e.Memory})
}

// Add keeps a room and spawns its actor.
func (e *Engine) Add(c actor.Context, r *RoomBase, props *actor.Props) {
	if e.rooms[r.ID] != nil {
		panic(fmt.Sprintf("engine %s: room %s is open already", e.Self, r.ID))
	}
	e.rooms[r.ID] = r
	e.attempts[r.ID.Room] = r.ID.Attempt
	pid, err := c.SpawnNamed(props, RoomName(r.ID.Room, r.ID.Attempt))
	if err != nil {
		panic(fmt.Sprintf("engine %s: room %s: %v", e.Self, r.ID, err)) // Remove comes after its actor is gone
	}
	r.PID = pid
	e.byActor[pid.Id] = r
}

// Remove forgets a room whose actor is gone and which has nothing in flight.
func (e *Engine) Remove(r *RoomBase) {
	delete(e.rooms, r.ID)
	if e.attempts[r.ID.Room] == r.ID.Attempt {
		delete(e.attempts, r.ID.Room)
	}
}

// Room is the open room of this id, nil when there is none.
func (e *Engine) Room(id messages.RoomID) *RoomBase { return e.rooms[id] }

// Open is how many rooms are open.
func (e *Engine) Open() int { return len(e.rooms) }

// Earlier is an earlier attempt of a room that is open and has no outcome yet; nil:
// there is none, and the later one may begin.
func (e *Engine) Earlier(id messages.RoomID) *RoomBase {
	attempt, ok := e.attempts[id.Room]
	r := e.rooms[messages.RoomID{Room: id.Room, Attempt: attempt}]
	if !ok || attempt >= id.Attempt || r == nil || r.Outcome != nil {
		return nil
	}
	return r
}

// RoomGone tells an engine that a room's actor is gone. The engine sends it to
// itself: the runtime's Terminated overtakes what the room's actor had sent
// before, and this does not.
type RoomGone struct{ Actor *actor.PID }

// OnTerminated passes the end of a room's actor on, behind all that it had sent.
func (e *Engine) OnTerminated(c actor.Context, m *actor.Terminated) {
	if !e.stopping { // the supervisor of engines ends what a stopped one had
		c.Send(c.Self(), &RoomGone{Actor: m.Who})
	}
}

// ByActor is the room whose actor this was, once: it has none now. nil when there is
// no such room.
func (e *Engine) ByActor(pid *actor.PID) *RoomBase {
	r := e.byActor[pid.Id]
	if r == nil {
		return nil
	}
	delete(e.byActor, pid.Id)
	r.PID = nil
	return r
}

// Tell gives an event to a room, unless its actor is gone.
func (e *Engine) Tell(c actor.Context, r *RoomBase, ev transfer.Event) {
	if r.PID != nil && !r.Closed {
		c.Send(r.PID, &RoomEvent{Event: ev})
	}
}

// TellID is Tell by id; what comes for a room that is gone is dropped.
func (e *Engine) TellID(c actor.Context, id messages.RoomID, ev transfer.Event) {
	if r := e.rooms[id]; r != nil {
		e.Tell(c, r, ev)
	}
}

// EachRoom calls f for every open room, in the order of their ids.
func (e *Engine) EachRoom(f func(*RoomBase)) {
	ids := slices.SortedFunc(maps.Keys(e.rooms), func(a, b messages.RoomID) int {
		if a.Room != b.Room {
			return compare(a.Room, b.Room)
		}
		return compare(a.Attempt, b.Attempt)
	})
	for _, id := range ids {
		if r := e.rooms[id]; r != nil {
			f(r)
		}
	}
}

func compare[T uint32 | uint64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Send sends a body of a room to another engine of it.
func (e *Engine) Send(c actor.Context, r *RoomBase, to messages.Engine, body any) {
	node, ok := e.nodeOf(r, to)
	if !ok {
		e.drop("no node is known for an engine of the room", zap.Stringer("to", to))
		return
	}
	e.reply(c, node, messages.NewRoom(r.ID, e.Self, to, body))
}

// reply sends a room message to a node; to this one without leaving it: ranks of
// one instance may share a node.
func (e *Engine) reply(c actor.Context, node messages.Node, m *messages.Room) {
	if node == e.Node {
		c.Send(c.Parent(), &FromPeer{Node: node, Body: m})
		return
	}
	c.Send(e.Peer(node), &ToPeer{Node: node, Body: m})
}

// nodeOf is the node of a member of the room's pairing.
func (e *Engine) nodeOf(r *RoomBase, to messages.Engine) (messages.Node, bool) {
	p := r.Pairing
	if p == nil {
		if p = e.pairOf(to.Instance); p == nil {
			return messages.Node{}, false
		}
	}
	m, ok := p.Member(to.Instance == p.Prefill, to.Rank)
	if !ok || m.Engine != to {
		return messages.Node{}, false
	}
	return m.Node, true
}

// RegionsOf is the regions and the node of a member of the room's pairing.
func (e *Engine) RegionsOf(r *RoomBase, of messages.Engine) ([]*messages.Region, messages.Node, bool) {
	if r.Pairing == nil {
		return nil, messages.Node{}, false
	}
	m, ok := r.Pairing.Member(of.Instance == r.Pairing.Prefill, of.Rank)
	return m.Regions, m.Node, ok && m.Engine == of
}

// Fence asks for the end of a generation with the node of a member of the room.
func (e *Engine) Fence(c actor.Context, r *RoomBase, f transfer.Fence) {
	node, ok := e.nodeOf(r, f.Peer)
	if !ok {
		panic(fmt.Sprintf("engine %s: room %s: fence of %s, which is not in the pairing", e.Self, r.ID, f.Peer))
	}
	c.Send(e.Peer(node), &FenceLink{Node: node, Generation: f.Generation, Reason: fmt.Sprintf("room %s cannot end without it", r.ID)})
}

// Finish tells the caller how its room ended, once.
func (r *RoomBase) Finish(o *messages.Outcome, bytes, copies uint64) {
	r.Outcome = o
	if r.Ended != nil {
		r.Ended(&Ended{Outcome: o, Excused: r.Excused, Bytes: bytes, Copies: copies})
		r.Ended = nil
	}
}

// drop counts what did not fit; the first of a kind is said.
func (e *Engine) drop(why string, fields ...zap.Field) {
	if e.dropped[why]++; e.dropped[why] == 1 {
		e.Env.Log.Warn("dropped a message; counted from now on",
			append(fields, zap.Stringer("engine", e.Self), zap.String("why", why))...)
	}
}
