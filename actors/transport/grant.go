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

// grant is a grant that this node gave, until every provider has closed it.
type grant struct {
	room    messages.RoomID
	owner   *actor.PID
	writer  messages.Node
	asked   map[*provider]bool   // those that have yet to answer Revoke
	revoked bool                 // all have answered
	open    map[*provider]string // those that could not close it, and why
	ending  *ending              // set when the engine is gone
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
	a.grants[m.Grant] = &grant{
		room: m.Room, owner: m.Owner, writer: m.Writer, asked: map[*provider]bool{}, open: map[*provider]string{},
	}
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
	if len(g.asked) > 0 {
		return // being revoked: one answer for all who ask meanwhile
	}
	for _, p := range a.providers {
		g.asked[p] = true
		p.Revoke(m.Grant)
	}
}

// revoked takes what a provider says of a grant: its answer, or that what had kept
// the grant open has ended.
func (a *Actor) revoked(c actor.Context, p *provider, ev rdma.Revoked) {
	g := a.grants[ev.Grant]
	if g == nil {
		return // never wholly installed, or closed
	}
	answers := g.asked[p]
	delete(g.asked, p)
	if ev.Closed {
		delete(g.open, p)
	} else if g.open[p] == "" {
		g.open[p] = "the revoke left it open"
	}
	closed := len(g.open) == 0
	switch {
	case len(g.asked) > 0, !answers && !(g.revoked && closed):
		return
	case answers && g.ending != nil:
		g.ending.grants--
		g.ending.open++ // until it is forgotten
	}
	g.revoked = g.revoked || answers
	a.forgetIfClosed(ev.Grant)
	if g.ending != nil {
		a.endIfDone(g.ending)
		return
	}
	c.Send(g.owner, &actors.GrantRevoked{Room: g.room, Grant: ev.Grant, Closed: closed})
}

// forgetIfClosed forgets a grant that was revoked and that no provider has open.
func (a *Actor) forgetIfClosed(id rdma.GrantID) {
	g := a.grants[id]
	if !g.revoked || len(g.asked) > 0 || len(g.open) > 0 {
		return
	}
	delete(a.grants, id)
	if g.ending != nil {
		g.ending.open--
	}
}

// fencedGrants takes what the fence of one provider left open, and returns what all of
// them have open of the node: a session moves from one provider to another, and what
// the first could not close is not closed by a fence of the second. Who had revoked a
// grant that the fence has closed is told: its room may hear of the fence itself too early
// to make anything of it, and the node may be gone when it asks.
func (a *Actor) fencedGrants(c actor.Context, p *provider, writer messages.Node, left []rdma.OpenGrant) (open []rdma.OpenGrant) {
	for id, g := range a.grants {
		if g.writer != writer {
			continue
		}
		if i := slices.IndexFunc(left, func(o rdma.OpenGrant) bool { return o.Grant == id }); i >= 0 {
			g.open[p] = left[i].Reason
		} else if g.open[p] != "" {
			delete(g.open, p)
			if len(g.open) == 0 && g.revoked && g.ending == nil {
				c.Send(g.owner, &actors.GrantRevoked{Room: g.room, Grant: id, Closed: true})
			}
		}
		a.forgetIfClosed(id)
		if g.ending != nil {
			a.endIfDone(g.ending)
		}
	}
	return a.openGrants(writer)
}

// openGrants is what providers could not close of the grants to a node.
func (a *Actor) openGrants(writer messages.Node) (open []rdma.OpenGrant) {
	for id, g := range a.grants { // a set: the order is nobody's
		if g.writer != writer {
			continue
		}
		for _, p := range a.providers {
			if reason := g.open[p]; reason != "" {
				open = append(open, rdma.OpenGrant{Grant: id, Reason: reason})
				break
			}
		}
	}
	return open
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
