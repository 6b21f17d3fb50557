package transport

import (
	"fmt"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// grant is a grant that this node gave, until it is closed.
type grant struct {
	room   messages.RoomID
	owner  *actor.PID
	writer messages.Node
	asked  int     // providers that have yet to answer Revoke
	open   bool    // one of them could not close it
	ending *ending // set when the engine is gone
}

// onInstallGrant installs a grant with every provider: which of them carries the
// writes may change with the next generation.
func (a *Actor) onInstallGrant(c actor.Context, m *actors.InstallGrant) {
	answer := func(err error) {
		c.Send(m.Owner, &actors.GrantInstalled{Room: m.Room, Grant: m.Grant, Err: err})
	}
	if a.grants[m.Grant] != nil {
		answer(rdma.ErrExists)
		return
	}
	for i, p := range a.providers {
		ranges, err := wireRanges(m.Ranges, m.Regions, p.Name())
		if err == nil {
			err = p.Grant(rdma.Grant{ID: m.Grant, Peer: m.Writer.String(), Ranges: ranges})
		}
		if err != nil {
			// Nobody knows the id yet, so nothing can land under it.
			for _, q := range a.providers[:i] {
				q.Revoke(m.Grant)
			}
			answer(fmt.Errorf("grant with %s: %w", p.Name(), err))
			return
		}
	}
	a.grants[m.Grant] = &grant{room: m.Room, owner: m.Owner, writer: m.Writer}
	answer(nil)
}

func (a *Actor) arrived(c actor.Context, ev rdma.Arrived, moved map[string]bool) {
	g := a.grants[ev.Grant]
	if g == nil {
		return // of a grant that was closed meanwhile
	}
	moved[g.writer.String()] = true
	c.Send(g.owner, &actors.GrantArrived{
		Room: g.room, Grant: ev.Grant, Generation: ev.Generation, Arrival: ev.Arrival, Bytes: ev.Bytes,
	})
}

func (a *Actor) onRevokeGrant(c actor.Context, m *actors.RevokeGrant) {
	g := a.grants[m.Grant]
	if g == nil { // never in force, or closed already
		c.Send(m.Owner, &actors.GrantRevoked{Room: m.Room, Grant: m.Grant, Closed: true})
		return
	}
	if g.asked > 0 {
		return // being revoked: one answer for all who ask meanwhile
	}
	g.open = false
	g.asked = len(a.providers)
	for _, p := range a.providers {
		p.Revoke(m.Grant)
	}
}

func (a *Actor) revoked(c actor.Context, ev rdma.Revoked) {
	g := a.grants[ev.Grant]
	if g == nil || g.asked == 0 {
		return // of a grant that was never wholly installed
	}
	g.open = g.open || !ev.Closed
	if g.asked--; g.asked > 0 {
		return
	}
	if !g.open {
		delete(a.grants, ev.Grant)
	}
	if g.ending != nil {
		if g.ending.grants--; g.open {
			g.ending.open++
		}
		a.endIfDone(g.ending)
		return
	}
	c.Send(g.owner, &actors.GrantRevoked{Room: g.room, Grant: ev.Grant, Closed: !g.open})
}

// closeGrants forgets the grants to a node that a revoke had left open and that
// its fence closed.
func (a *Actor) closeGrants(writer messages.Node, open []rdma.OpenGrant) {
	for id, g := range a.grants {
		stays := slices.ContainsFunc(open, func(o rdma.OpenGrant) bool { return o.Grant == id })
		if g.writer == writer && g.open && g.asked == 0 && !stays {
			delete(a.grants, id)
		}
	}
}

func wireRanges(from []kv.Range, regions []*messages.Region, provider string) ([]rdma.Range, error) {
	ranges := make([]rdma.Range, len(from))
	for i := range from {
		r := &from[i]
		id, err := regionID(regions, r.Region, provider)
		if err != nil {
			return nil, fmt.Errorf("range %d: %w", i, err)
		}
		ranges[i] = rdma.Range{
			Region: id, Offset: r.Offset, UnitStride: r.UnitStride, Bytes: r.Bytes,
			Count: r.Count, Stride: r.Stride, Runs: wireRuns(ranges[:i], from[:i], r.Runs),
		}
	}
	return ranges, nil
}

// wireRuns is wirePairs for one side.
func wireRuns(done []rdma.Range, from []kv.Range, runs []kv.Run) []rdma.Run {
	if len(runs) == 0 {
		return nil
	}
	for i := len(from) - 1; i >= max(0, len(from)-sharedRunsReach); i-- {
		if len(from[i].Runs) == len(runs) && &from[i].Runs[0] == &runs[0] {
			return done[i].Runs
		}
	}
	out := make([]rdma.Run, len(runs))
	for i, r := range runs {
		out[i] = rdma.Run(r)
	}
	return out
}
