package shm

import (
	"errors"
	"slices"

	"kvferry/transport/rdma"
)

var errQuiesced = errors.New("shm: the tag was quiesced")

// Post gives writes to a session.
func (p *Provider) Post(id rdma.SessionID, ws []*rdma.Write) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[id.Peer]
	if s == nil || s.id != id || s.state != up {
		return rdma.ErrNotConnected
	}
	if len(ws) > p.config.WindowWrites {
		return &rdma.RangeError{Field: "writes", Got: uint64(len(ws)), Want: uint64(p.config.WindowWrites), Text: "the window never takes so many at once"}
	}
	if err := rdma.CheckWrites(ws, p.regions.Length); err != nil {
		return err
	}
	if len(s.live)+len(ws) > p.config.WindowWrites {
		return rdma.ErrFull
	}
	for _, w := range ws {
		p.regions.UseSources(w, 1)
		p.tags.Posted(w.Tag)
		x := newWrite(w, p.regions)
		s.live = append(s.live, x)
		s.queue.Push(w.Tag, x)
	}
	s.wakeUp()
	return nil
}

// Quiesce ends every write under a tag. What has begun lands: that takes no peer.
func (p *Provider) Quiesce(tag rdma.Tag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions { // writes are unordered, so the order of sessions is nobody's
		for _, w := range slices.Clone(s.live) {
			if w.Tag == tag && !w.begun && w != s.current {
				p.completeLocked(s, w, rdma.NotPosted, errQuiesced)
			}
		}
	}
	if ev, now := p.tags.Quiesce(tag); now {
		p.events.Push(ev)
	}
}

// completeLocked tells how a write ended. Nothing reads its source any more.
func (p *Provider) completeLocked(s *session, w *write, o rdma.Outcome, why error) {
	p.regions.UseSources(w.Write, -1)
	w.ended = true // it may still be in the queue
	i := slices.Index(s.live, w)
	s.live = slices.Delete(s.live, i, i+1)
	ev := rdma.Completed{Session: s.id, ID: w.ID, Tag: w.Tag, Outcome: o, Err: why, Bytes: w.bytes}
	if o == rdma.Landed {
		ev.Arrivals = []rdma.Arrival{{Stripe: 0, Count: 1}}
	}
	p.events.Push(ev)
	due, quiesced := p.tags.Completed(w.Tag, s.id, o)
	for range due {
		p.events.Push(quiesced)
	}
}
