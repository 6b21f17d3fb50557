package shm

import (
	"errors"
	"fmt"
	"time"

	"kvferry/transport/rdma"
)

// grant is a grant that is not closed.
type grant struct {
	rdma.Grant
	lists   lists
	revoked bool // nothing begins under it any more
	left    bool // a Revoke was answered open: its end is told
}

// granted is how much of a table the grants to one peer take.
type granted struct {
	grants int
	bytes  uint64
}

// Grant installs a grant.
func (p *Provider) Grant(g rdma.Grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return rdma.ErrClosed
	}
	if p.grants[g.ID] != nil {
		return fmt.Errorf("%w: grant %s", rdma.ErrExists, g.ID)
	}
	for i := range g.Ranges {
		r := &g.Ranges[i]
		field := fmt.Sprintf("ranges[%d]", i)
		n, ok := p.regions.Length(r.Region)
		if !ok {
			return &rdma.RangeError{Field: field, Region: r.Region, Text: "the region is not registered"}
		}
		if err := r.Check(field, n); err != nil {
			return err
		}
	}
	e := &grant{Grant: g, lists: listsOf(&g)}
	sum := p.granted[g.Peer]
	sum.grants++
	sum.bytes += e.lists.bytes
	if sum.grants > grantsMax || sum.bytes > describedMax || e.lists.bytes > descriptionMax {
		return fmt.Errorf("shm: grant %s takes %d bytes to describe, at most %d; with those that %s has, %d grants and %d bytes, at most %d and %d",
			g.ID, e.lists.bytes, descriptionMax, g.Peer, sum.grants, sum.bytes, grantsMax, uint64(describedMax))
	}
	if s := p.sessions[g.Peer]; s != nil && s.in != nil && s.state <= up {
		if err := s.in.installLocked(e); err != nil {
			var hand *handError
			if !errors.As(err, &hand) {
				return err
			}
			// The grant is fine; the next generation will have it.
			s.leaveLocked(down, err)
		}
	}
	p.regions.UseTargets(&e.Grant, 1)
	p.granted[g.Peer] = sum
	p.grants[g.ID] = e
	return nil
}

// Revoke closes a grant. It waits, not here, for a copy that is going on.
func (p *Provider) Revoke(id rdma.GrantID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.grants[id]
	if g == nil || p.closed { // Close fences everything
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
		return
	}
	g.revoked = true
	for _, in := range p.inbound[g.Peer] {
		in.clearLocked(g)
	}
	if p.closeLocked(g) {
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
		return
	}
	p.running.Go(func() {
		p.awaitCopy(func() bool { return p.grants[id] != g || p.closeLocked(g) })
		p.mu.Lock()
		defer p.mu.Unlock()
		closed := p.grants[id] != g || p.closeLocked(g)
		g.left = !closed
		p.events.Push(rdma.Revoked{Grant: id, Closed: closed})
	})
}

// closeLocked forgets a revoked grant, unless a copy under it goes on.
func (p *Provider) closeLocked(g *grant) bool {
	for _, in := range p.inbound[g.Peer] {
		if in.holdsLocked(g) {
			return false
		}
	}
	for _, in := range p.inbound[g.Peer] {
		in.forgetLocked(g)
	}
	delete(p.grants, g.ID)
	p.regions.UseTargets(&g.Grant, -1)
	sum := p.granted[g.Peer]
	if sum.grants--; sum.grants == 0 {
		delete(p.granted, g.Peer)
		return true
	}
	sum.bytes -= g.lists.bytes
	p.granted[g.Peer] = sum
	return true
}

// awaitCopy asks over is true, with the lock held, until it says so or a copy has
// taken longer than any copy does.
func (p *Provider) awaitCopy(over func() bool) {
	deadline := time.Now().Add(p.config.CopyTimeout)
	for pause := time.Duration(copyPauseMin); ; pause = min(2*pause, copyPauseMax) {
		p.mu.Lock()
		done := over()
		p.mu.Unlock()
		if done || time.Now().After(deadline) {
			return
		}
		time.Sleep(pause)
	}
}

// openLocked lists the grants to a peer under which something may still land.
func (p *Provider) openLocked(peer string) (open []rdma.OpenGrant) {
	for _, in := range p.inbound[peer] {
		if !in.ended {
			continue
		}
		if g := in.heldLocked(); g != nil {
			open = append(open, rdma.OpenGrant{Grant: g.ID, Reason: in.openReason()})
		}
	}
	return open
}

// watch waits until what a fence left open is closed.
func (p *Provider) watch(in *inbound) {
	t := time.NewTicker(stoppedPause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-p.stop.Done():
			return // Close looks a last time
		}
		p.mu.Lock()
		if in.heldLocked() == nil {
			p.dropInboundLocked(in)
			p.closeRevokedLocked(in.session.Peer)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// dropInboundLocked lets go of a generation under which nothing lands any more.
func (p *Provider) dropInboundLocked(in *inbound) {
	peer := in.session.Peer
	all := p.inbound[peer]
	kept := all[:0]
	for _, x := range all {
		if x != in {
			kept = append(kept, x)
		}
	}
	clear(all[len(kept):])
	if p.inbound[peer] = kept; len(kept) == 0 {
		delete(p.inbound, peer)
	}
	in.releaseLocked()
}

// closeRevokedLocked closes the grants that a revoke had left open, if it can now,
// and tells of them.
func (p *Provider) closeRevokedLocked(peer string) {
	for _, g := range p.grants { // each is closed by itself
		if g.Peer == peer && g.revoked && p.closeLocked(g) && g.left {
			p.events.Push(rdma.Revoked{Grant: g.ID, Closed: true})
		}
	}
}
