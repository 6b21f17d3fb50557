package shm

import (
	"fmt"
	"os"

	"kvferry/transport/rdma"
)

// inbound is what a peer can write here in one generation, and what it has written.
// It outlives its session where the peer was stopped inside a copy. The provider's
// lock guards it.
type inbound struct {
	provider *Provider
	session  rdma.SessionID
	sock     socket
	process  *process
	table    *table
	board    board
	file     *os.File // of the board

	words  map[*grant]word
	grants map[uint32]*grant // by entry
	handed map[rdma.RegionID]bool
	ended  bool // fenced: it is kept for what is open
}

func (p *Provider) newInbound(id rdma.SessionID, s socket, peer *process) (*inbound, error) {
	t, err := newTable()
	if err != nil {
		return nil, err
	}
	b, f, err := newBoard()
	if err != nil {
		t.release()
		return nil, err
	}
	return &inbound{
		provider: p, session: id, sock: s, process: peer, table: t, board: b, file: f,
		words: map[*grant]word{}, grants: map[uint32]*grant{}, handed: map[rdma.RegionID]bool{},
	}, nil
}

// offerLocked sends the peer all that it needs to write here: the regions of the
// grants that it has, the grants, then table and board.
func (in *inbound) offerLocked(k kind) error {
	for _, g := range in.provider.grants {
		if g.Peer != in.session.Peer || g.revoked {
			continue
		}
		if err := in.installLocked(g); err != nil {
			return err
		}
	}
	return in.sock.send(newMessage(k), int(in.table.file.Fd()), int(in.file.Fd()))
}

// installLocked puts a grant into force: its regions, which the peer has to find in
// its socket, first.
func (in *inbound) installLocked(g *grant) error {
	if err := in.handLocked(g); err != nil {
		return &handError{err}
	}
	w, err := in.table.install(g)
	if err != nil {
		return err
	}
	in.words[g] = w
	in.grants[w.entry()] = g
	return nil
}

// handError is an error of the session, not of the grant.
type handError struct{ err error }

func (e *handError) Error() string { return "hand over regions: " + e.err.Error() }
func (e *handError) Unwrap() error { return e.err }

// handLocked hands over the regions of a grant that the peer does not have.
func (in *inbound) handLocked(g *grant) error {
	var rs []handed
	var fds []int
	send := func() error {
		if len(rs) == 0 {
			return nil
		}
		err := in.sock.send(encodeRegions(rs), fds...)
		rs, fds = rs[:0], fds[:0]
		return err
	}
	for i := range g.Ranges {
		id := g.Ranges[i].Region
		if in.handed[id] {
			continue
		}
		in.handed[id] = true
		r := in.provider.memory[id]
		in.provider.collapseLocked(id)
		rs = append(rs, handed{id, r.Len()})
		fds = append(fds, int(r.File().Fd()))
		if len(rs) == messageRegions {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// goneLocked tells the peer that a region is deregistered.
func (in *inbound) goneLocked(id rdma.RegionID) error {
	if !in.handed[id] {
		return nil
	}
	delete(in.handed, id)
	return in.sock.send(encodeGone(id))
}

// clearLocked ends the grant here: no copy begins under it any more.
func (in *inbound) clearLocked(g *grant) {
	if w, ok := in.words[g]; ok && !in.ended {
		in.table.clear(w)
	}
}

// endLocked ends every grant here.
func (in *inbound) endLocked() {
	if in.ended {
		return
	}
	in.table.end()
	for _, w := range in.words {
		in.table.clear(w)
	}
}

// holdsLocked reports whether a copy under a cleared grant may still go on. The
// grant was cleared before the slot is read here; the copier stored the slot before
// it read the entry. So either it saw the entry cleared, or it is seen here.
func (in *inbound) holdsLocked(g *grant) bool {
	w, ok := in.words[g]
	return ok && in.board.slot().Load() == uint64(w) && !in.process.exited()
}

// heldLocked is the grant under which a copy goes on, nil when there is none.
func (in *inbound) heldLocked() *grant {
	w := word(in.board.slot().Load())
	if w == 0 {
		return nil
	}
	if g := in.grants[w.entry()]; g != nil && in.words[g] == w && !in.process.exited() {
		return g
	}
	return nil
}

// forgetLocked lets go of a grant that no copy holds, and tells what arrived.
func (in *inbound) forgetLocked(g *grant) {
	w, ok := in.words[g]
	if !ok {
		return
	}
	delete(in.words, g)
	delete(in.grants, w.entry())
	if in.ended {
		return
	}
	in.arriveLocked(w.entry(), g)
	in.board.forget(w.entry())
	in.table.free(w)
}

// drainLocked tells what arrived and what the peer refused since the last call.
func (in *inbound) drainLocked() {
	in.board.eachChanged(func(entry uint32) {
		if g := in.grants[entry]; g != nil {
			in.arriveLocked(entry, g)
		}
	})
	for r := range refusals {
		for range min(in.board.refused(r).Swap(0), refusedMax) {
			in.provider.events.Push(rdma.Stale{Peer: in.session.Peer, Reason: r.Error()})
		}
	}
}

func (in *inbound) arriveLocked(entry uint32, g *grant) {
	writes, bytes := in.board.take(entry)
	if writes == 0 {
		return
	}
	in.provider.events.Push(rdma.Arrived{
		Grant: g.ID, Generation: in.session.Generation, Arrival: rdma.Arrival{Stripe: 0, Count: writes}, Bytes: bytes,
	})
}

// settleLocked is the end of the fence. What is open keeps the board and the
// process; everything else is let go. It reports whether something is open.
func (in *inbound) settleLocked() (open bool) {
	if in.ended {
		return len(in.words) > 0
	}
	held := in.heldLocked() // first: where the slot is clear, what arrived under it is found
	in.drainLocked()
	in.ended = true
	in.table.release()
	for g, w := range in.words {
		if g != held {
			delete(in.words, g)
			delete(in.grants, w.entry())
		}
	}
	return held != nil
}

// releaseLocked lets go of the rest.
func (in *inbound) releaseLocked() {
	if !in.ended {
		in.table.release()
	}
	in.ended = true
	in.board.release()
	_ = in.file.Close()
	in.process.close()
	clear(in.words)
	clear(in.grants)
}

func (in *inbound) openReason() string {
	return fmt.Sprintf("the process of %s was stopped inside a copy of generation %s", in.session.Peer, in.session.Generation)
}
