package verbs

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// grant is a grant of this side that is in force, or was revoked and is still open.
type grant struct {
	rdma.Grant
	immediate uint32
	wire      *control.Grant
	revoked   bool
	told      *session // that may write under it, nil when none does

	// What came by that session, and what is still to come before the grant is closed.
	arrived map[uint32]uint64 // by stripe
	owed    map[uint32]uint64 // set when the peer has ended its writes
}

// settled reports whether all that the peer counts on was counted.
func (g *grant) settled() bool {
	if g.owed == nil {
		return false
	}
	for stripe, n := range g.owed {
		if g.arrived[stripe] < n {
			return false
		}
	}
	return true
}

// wireGrant describes a grant to a peer. Runs that ranges share go once.
func wireGrant(g *rdma.Grant, immediate uint32) *control.Grant {
	w := &control.Grant{Id: g.ID[:], Immediate: immediate}
	type same struct {
		first *rdma.Run
		n     int
	}
	seen := map[same]uint32{}
	for i := range g.Ranges {
		r := &g.Ranges[i]
		k := same{&r.Runs[0], len(r.Runs)}
		at, ok := seen[k]
		if !ok {
			runs := &control.Runs{Numbers: make([]uint32, 0, 3*len(r.Runs))}
			for _, x := range r.Runs {
				runs.Numbers = append(runs.Numbers, x.First, x.Count, x.Step)
			}
			at = uint32(len(w.Runs))
			seen[k] = at
			w.Runs = append(w.Runs, runs)
		}
		w.Ranges = append(w.Ranges, &control.Range{
			Region: uint64(r.Region), Offset: r.Offset, UnitStride: r.UnitStride, Bytes: r.Bytes,
			Outer: r.Count[0], Inner: r.Count[1], OuterStride: r.Stride[0], InnerStride: r.Stride[1], Runs: at,
		})
	}
	return w
}

// readGrant is the opposite. What it has not checked, Compile does.
func readGrant(w *control.Grant) (g rdma.Grant, err error) {
	if g.ID, err = readID(w.GetId()); err != nil {
		return g, err
	}
	runs := make([][]rdma.Run, len(w.GetRuns()))
	for i, r := range w.GetRuns() {
		n := r.GetNumbers()
		if len(n) == 0 || len(n)%3 != 0 {
			return g, fmt.Errorf("runs %d of grant %s have %d numbers, want some, 3 for each", i, g.ID, len(n))
		}
		for k := 0; k < len(n); k += 3 {
			runs[i] = append(runs[i], rdma.Run{First: n[k], Count: n[k+1], Step: n[k+2]})
		}
	}
	for i, r := range w.GetRanges() {
		if int(r.GetRuns()) >= len(runs) {
			return g, fmt.Errorf("range %d of grant %s has runs %d, want below %d", i, g.ID, r.GetRuns(), len(runs))
		}
		g.Ranges = append(g.Ranges, rdma.Range{
			Region: rdma.RegionID(r.GetRegion()), Offset: r.GetOffset(), UnitStride: r.GetUnitStride(), Bytes: r.GetBytes(),
			Count: [2]uint32{r.GetOuter(), r.GetInner()}, Stride: [2]uint64{r.GetOuterStride(), r.GetInnerStride()},
			Runs: runs[r.GetRuns()],
		})
	}
	return g, nil
}

func readID(b []byte) (id rdma.GrantID, err error) {
	if len(b) != len(id) {
		return id, fmt.Errorf("the id of a grant has %d bytes, want %d", len(b), len(id))
	}
	return rdma.GrantID(b), nil
}

// Grant installs a grant, and tells the peer of it if there is a session.
func (p *Provider) Grant(g rdma.Grant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return rdma.ErrClosed
	}
	if p.grants[g.ID] != nil {
		return fmt.Errorf("%w: grant %s", rdma.ErrExists, g.ID)
	}
	if _, err := rdma.Compile(&g, p.regions.Length); err != nil {
		return err
	}
	e := &grant{Grant: g}
	immediate, ok := p.slots.take(e)
	if !ok {
		return fmt.Errorf("verbs: %d grants are open, want at most %d", len(p.grants), 1<<slotBits)
	}
	e.immediate = immediate
	e.wire = wireGrant(&e.Grant, immediate)
	if n := proto.Size(&control.Frame{Body: &control.Frame_Grant{Grant: e.wire}}); n > frameMost {
		p.slots.release(immediate)
		return &rdma.RangeError{Field: "ranges", Got: uint64(n), Want: frameMost, Text: "the bytes of the grant's description are too many"}
	}
	p.regions.UseTargets(&e.Grant, 1)
	p.grants[g.ID] = e
	if s := p.sessions[g.Peer]; s != nil && s.state == up {
		s.tellGrantLocked(e)
	}
	return nil
}

// Revoke closes a grant if its peer cannot write under it. Otherwise it leaves it open,
// and asks the peer to end its writes: then it is closed, and that is told.
func (p *Provider) Revoke(id rdma.GrantID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.grants[id]
	switch {
	case e == nil || p.closed: // Close fences everything
		p.events.Push(rdma.Revoked{Grant: id, Closed: true})
		return
	case p.reachableLocked(e):
		p.events.Push(rdma.Revoked{Grant: id})
		if !e.revoked && e.told != nil && e.told.state == up {
			e.told.tellLocked(&control.Frame{Body: &control.Frame_Revoke{Revoke: &control.Revoke{Id: id[:]}}})
		}
		e.revoked = true
		return
	}
	e.revoked = true
	p.releaseLocked(e)
}

// reachableLocked reports whether something may still land under a grant: its peer was
// told of it, by a session that still has queue pairs, or had some that would not go.
func (p *Provider) reachableLocked(e *grant) bool {
	return e.told != nil || p.hung[e.Peer] > 0
}

// releaseLocked ends a revoked grant under which nothing lands any more.
func (p *Provider) releaseLocked(e *grant) {
	delete(p.grants, e.ID)
	p.slots.release(e.immediate)
	p.regions.UseTargets(&e.Grant, -1)
	p.events.Push(rdma.Revoked{Grant: e.ID, Closed: true})
}

// endedLocked is called when no queue pair of a session is left.
func (p *Provider) endedLocked(s *session) {
	for _, e := range p.grants { // each by itself
		if e.Peer != s.id.Peer {
			continue
		}
		if e.told == s {
			e.told, e.owed = nil, nil
			clear(e.arrived)
		}
		if e.revoked && !p.reachableLocked(e) {
			p.releaseLocked(e)
		}
	}
}

// arrivedLocked counts an arrival of a session. It is visible in memory.
func (p *Provider) arrivedLocked(s *session, stripe, immediate uint32, bytes uint64) {
	e := p.slots.find(immediate)
	if e == nil || e.told != s {
		p.events.Push(rdma.Stale{Peer: s.id.Peer, Reason: "verbs: an arrival for a grant that is not the peer's"})
		return
	}
	e.arrived[stripe]++
	p.events.Push(rdma.Arrived{
		Grant: e.ID, Generation: s.id.Generation, Arrival: rdma.Arrival{Stripe: stripe, Count: 1}, Bytes: bytes,
	})
	p.closeGrantLocked(e)
}

// closeGrantLocked closes a revoked grant whose peer has ended its writes, once all that
// it counts on was counted.
func (p *Provider) closeGrantLocked(e *grant) {
	if !e.revoked || !e.settled() {
		return
	}
	delete(e.told.owing, e)
	e.told = nil
	if !p.reachableLocked(e) {
		p.releaseLocked(e)
	}
}
