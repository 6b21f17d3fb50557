package main

import (
	"context"
	"fmt"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/node"
	"kvferry/transport/rdma"
)

// attach makes the memory of the engine and attaches it.
func (n *roomsNode) attach(ctx context.Context, o *roomsOrder) error {
	layout, reasons := o.Deployment.Instance(o.Pages)
	if len(reasons) > 0 {
		return reasons[0]
	}
	e := &layout.Engines[0] // there is one
	n.cache = &cache{instance: layout, rank: e.Rank, meta: e.Meta}
	var memory []*rdma.Memory
	for i, size := range e.RegionBytes {
		m, err := rdma.NewMemory(fmt.Sprintf("%s-%d", o.Role, i), size)
		if err != nil {
			return err
		}
		memory = append(memory, m)
		n.cache.regions = append(n.cache.regions, m.Bytes())
	}
	config := node.EngineConfig{
		Instance: o.Role, Rank: e.Rank, Layout: layout, Memory: memory,
		Limits: actors.EngineLimits{Rooms: o.OpenRooms, Waiting: o.OpenRooms, UnopenedRooms: o.OpenRooms},
	}
	var err error
	if o.Role == "prefill" {
		n.prefill, err = n.node.AttachPrefill(ctx, config)
	} else {
		n.decode, err = n.node.AttachDecode(ctx, config)
	}
	if err != nil || !o.Scatter {
		return err
	}
	return n.scatter(ctx, o)
}

// scatter holds every other page of the pool for good: it takes all of them, one a
// room, and frees those between. A room that was aborted leaves its page to its caller.
func (n *roomsNode) scatter(ctx context.Context, o *roomsOrder) error {
	const first = 1 << 40 // no round comes as far
	for i := range uint64(o.Pages) {
		id, tokens := first+i, uint64(o.Deployment.PageTokens)
		room, err := n.open(ctx, id, tokens)
		if err != nil {
			return err
		}
		room.Abort("only its page is wanted")
		if _, err := room.Wait(ctx); err != nil {
			return err
		}
		if i%2 == 1 {
			room.Free()
		}
	}
	return nil
}

// openBenchRoom is what both legs of a room have in common.
type openBenchRoom interface {
	Place() kv.Placement
	Abort(reason string)
	Wait(ctx context.Context) (node.Result, error)
	Free()
}

// open opens this side's leg of a room.
func (n *roomsNode) open(ctx context.Context, id, tokens uint64) (openBenchRoom, error) {
	if n.prefill != nil {
		return n.prefill.Open(ctx, node.SendRequest{Room: id, Tokens: tokens})
	}
	return n.decode.Receive(ctx, node.ReceiveRequest{Room: id, Prefill: "prefill", Length: tokens})
}
