package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/actors/decode"
	"kvferry/actors/prefill"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// EngineConfig is an engine that a program attaches to its node.
type EngineConfig struct {
	// Instance names the instance that the engine belongs to, Rank its place there.
	Instance string
	Rank     kv.Rank

	// Layout is the instance: its model, its sizes, and at least this rank's
	// shards and metadata rows. The engine has one metadata row per room, of at
	// least actors.MetaHeader bytes.
	Layout *kv.Instance

	// Memory is the engine's regions, in the order of the indices that its shards
	// use. It stays mapped until Detach returned.
	Memory []*rdma.Memory

	// Near is what the memory is near to, so which RDMA devices carry it: devices by
	// name, a PCI address such as the GPU's, or a NUMA node. The zero value leaves what
	// SetNear of each Memory says, or that nothing is known: then all carry it.
	Near rdma.Near

	// Limits bounds what the engine holds; the zero value is ready to use.
	Limits actors.EngineLimits
}

// Result is how a room ended on this engine.
type Result struct {
	// Complete: every byte is where it belongs, on all receivers of the room. With
	// Excused it speaks of this engine's part alone.
	Complete bool
	// Excused: no receiver needed anything of this prefill engine, so it took no
	// part: all was cached, or another rank sent it.
	Excused bool
	// Cause says why not: the first cause, wherever it was seen.
	Cause string
	// Kind is the cause as a value that a program can act on.
	Kind messages.CauseKind
	// Bytes is what landed (prefill) or arrived (decode) for this engine.
	Bytes uint64
	// Copies is how many copies the plans had (prefill).
	Copies uint64
	// Took is from when the engine opened the room to its end.
	Took time.Duration
}

// SendRequest is the prefill leg of a room.
type SendRequest struct {
	Room    uint64
	Attempt uint32
	// Tokens is the length of the request.
	Tokens uint64
	// Wait is how long the room may wait for pages, and then for decode. 0: the
	// default of the limits.
	Wait time.Duration
}

// ReceiveRequest is the decode leg of a room.
type ReceiveRequest struct {
	Room    uint64
	Attempt uint32
	// Prefill is the instance that computes the room, PrefillDP the DP rank there.
	Prefill   string
	PrefillDP int
	// Prefix tokens are held already: [Prefix, Length) is wanted.
	Prefix, Length uint64
	Wait           time.Duration
}

// engine is what Prefill and Decode have in common.
type engine struct {
	node *Node
	id   messages.Engine
	pid  *actor.PID
	gone chan struct{} // closed when its actor has ended
}

// ErrDetached is what an engine answers that was detached, or whose actor failed.
var ErrDetached = errors.New("node: the engine is detached")

// ID is the engine's name on the wire: its instance, rank and incarnation.
func (e *engine) ID() messages.Engine { return e.id }

// Holding is what the engine holds now.
func (e *engine) Holding(ctx context.Context) (actors.Holding, error) {
	return askEngine(ctx, e, func(reply func(actors.Holding)) any { return &actors.Inspect{Reply: reply} })
}

// Detach takes the engine out of its roster, ends its rooms, and returns when
// nothing of it is in flight: then, and not after an error, its memory may be
// unmapped.
func (e *engine) Detach(ctx context.Context) error {
	open, err := ask(ctx, e.node, e.node.engines, func(reply func(int)) any {
		return &actors.StopEngine{Engine: e.id, Done: reply}
	})
	if err == nil && open > 0 {
		err = fmt.Errorf("node: engine %s: %d grants could not be closed: peers may still write its memory until the node stops", e.id, open)
	}
	return err
}

// Prefill is an attached prefill engine.
type Prefill struct{ engine }

// Decode is an attached decode engine.
type Decode struct{ engine }

// AttachPrefill attaches a prefill engine. It returns when its memory is
// registered and it is in its roster: then peers are told of it.
func (n *Node) AttachPrefill(ctx context.Context, c EngineConfig) (*Prefill, error) {
	e, err := n.attach(ctx, c, prefill.New)
	if err != nil {
		return nil, fmt.Errorf("attach prefill engine: %w", err)
	}
	return &Prefill{*e}, nil
}

// AttachDecode attaches a decode engine, as AttachPrefill does.
func (n *Node) AttachDecode(ctx context.Context, c EngineConfig) (*Decode, error) {
	e, err := n.attach(ctx, c, decode.New)
	if err != nil {
		return nil, fmt.Errorf("attach decode engine: %w", err)
	}
	return &Decode{*e}, nil
}

func (n *Node) attach(ctx context.Context, c EngineConfig, props func(actors.EngineConfig) (*actor.Props, error)) (*engine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Near.PCI != "" || c.Near.NUMA != nil || len(c.Near.Devices) > 0 {
		for _, m := range c.Memory {
			m.SetNear(c.Near)
		}
	}
	id := messages.Engine{Instance: c.Instance, Rank: c.Rank, Incarnation: n.newIncarnation()}
	attached := make(chan error, 1)
	p, err := props(actors.EngineConfig{
		Env: n.env, Self: id, Node: n.self, Layout: c.Layout, Memory: c.Memory, Limits: c.Limits, Rooms: n.config.Rooms,
		Registry: n.registry, Transport: n.transport, Peer: n.peer,
		Attached: func(err error) { attached <- err },
	})
	if err != nil {
		return nil, err
	}
	type spawned struct {
		pid *actor.PID
		err error
	}
	gone := make(chan struct{})
	s, err := ask(ctx, n, n.engines, func(reply func(spawned)) any {
		return &actors.SpawnEngine{
			Engine: id, Props: p, Gone: func() { close(gone) },
			Reply: func(pid *actor.PID, err error) { reply(spawned{pid, err}) },
		}
	})
	if err != nil { // it may be spawned yet
		n.env.System.Root.Send(n.engines, &actors.StopEngine{Engine: id, Done: func(int) {}})
		return nil, err
	}
	if s.err != nil {
		return nil, s.err
	}
	select {
	case err = <-attached:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-n.done:
		err = n.Err()
	}
	if err != nil {
		n.env.System.Root.Send(n.engines, &actors.StopEngine{Engine: id, Done: func(int) {}})
		return nil, err
	}
	return &engine{node: n, id: id, pid: s.pid, gone: gone}, nil
}

// check says what is wrong with what the caller gave.
func (c *EngineConfig) check() error {
	if err := actors.CheckName("instance", c.Instance); err != nil {
		return err
	}
	if c.Layout == nil {
		return errors.New("layout is missing")
	}
	for i := range c.Layout.Engines {
		e := &c.Layout.Engines[i]
		if e.Rank != c.Rank {
			continue
		}
		if e.Meta.Rows < 1 || e.Meta.RowBytes < actors.MetaHeader {
			return fmt.Errorf("meta: got %d rows of %d bytes, want at least 1 row of at least %d bytes", e.Meta.Rows, e.Meta.RowBytes, actors.MetaHeader)
		}
		if len(c.Memory) != len(e.RegionBytes) {
			return fmt.Errorf("memory: got %d regions, the layout has %d", len(c.Memory), len(e.RegionBytes))
		}
		for k, m := range c.Memory {
			if m.Len() != e.RegionBytes[k] {
				return fmt.Errorf("memory[%d]: got %d bytes, the layout has %d", k, m.Len(), e.RegionBytes[k])
			}
		}
		var errs []error
		for _, r := range c.Layout.ValidateRank(c.Rank) {
			errs = append(errs, r)
		}
		return errors.Join(errs...)
	}
	return fmt.Errorf("rank: the layout has no %s", c.Rank)
}

// ask sends a message that carries a reply func, and waits for the reply, the
// context or the end of the node.
func ask[T any](ctx context.Context, n *Node, to *actor.PID, message func(reply func(T)) any) (T, error) {
	return await(ctx, n, to, nil, nil, message)
}

// askEngine is ask of an engine's actor, which may be gone.
func askEngine[T any](ctx context.Context, e *engine, message func(reply func(T)) any) (T, error) {
	return await(ctx, e.node, e.pid, e.gone, ErrDetached, message)
}

// await is ask; gone, if it is not nil, ends it with an error.
func await[T any](ctx context.Context, n *Node, to *actor.PID, gone <-chan struct{}, goneErr error, message func(reply func(T)) any) (T, error) {
	var none T
	reply := make(chan T, 1)
	n.env.System.Root.Send(to, message(func(v T) { reply <- v }))
	select {
	case v := <-reply:
		return v, nil
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-n.done:
		return none, n.Err()
	case <-gone:
	}
	select { // it may have answered before it ended
	case v := <-reply:
		return v, nil
	default:
		return none, goneErr
	}
}
