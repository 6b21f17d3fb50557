package mem

import (
	"errors"
	"slices"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

// write is a write that was accepted.
type write struct {
	*rdma.Write
	sources   [][]byte      // the memory of each copy's source
	stopped   chan struct{} // closed when the tag is quiesced: it need not begin
	stopWrite func()
}

func (w *write) stop() { w.stopWrite() }

func (p *Provider) newWrite(w *rdma.Write) *write {
	x := &write{Write: w, stopped: make(chan struct{})}
	x.stopWrite = sync.OnceFunc(func() { close(x.stopped) })
	for i := range w.Copies {
		x.sources = append(x.sources, p.regions.Bytes(w.Copies[i].Source.Region))
	}
	return x
}

// outcome is how an attempt to land ended.
type outcome struct {
	rdma.Outcome
	err error
}

// work sends what is posted until the session leaves up, then completes the rest.
func (s *session) work() {
	defer close(s.done)
	for {
		w := s.next()
		if w == nil {
			select {
			case <-s.wake:
				continue
			case <-s.stop:
			}
			s.finish()
			return
		}
		o := s.send(w)
		s.owner.net.mu.Lock()
		s.current = nil
		s.owner.completeLocked(s, w, o.Outcome, o.err)
		s.owner.net.mu.Unlock()
	}
}

// next takes the next write, nil when there is none or the session is over.
func (s *session) next() *write {
	s.owner.net.mu.Lock()
	defer s.owner.net.mu.Unlock()
	w, ok := s.queue.Front()
	if !ok || s.state != up {
		return nil
	}
	s.queue.Pop()
	s.current = w
	return w
}

// finish completes what never began, and tells a session that broke.
func (s *session) finish() {
	s.owner.net.mu.Lock()
	defer s.owner.net.mu.Unlock()
	for _, w := range s.queue.DropAll() {
		s.owner.completeLocked(s, w, rdma.NotPosted, s.why)
	}
	if s.state == down {
		s.owner.events.Push(rdma.Disconnected{Session: s.id, Err: s.why})
	}
}

// send gives one write its fate.
func (s *session) send(w *write) outcome {
	n := s.owner.net
	var f Fate
	if n.config.Fate != nil {
		f = n.config.Fate(s.owner.name, s.peer.owner.name, w.Write)
	}
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.stop:
			return outcome{rdma.NotPosted, errors.New("mem: the session ended before it began")}
		case <-w.stopped:
			return outcome{rdma.NotPosted, errQuiesced}
		}
	}
	to := s.peer
	g, err := to.admit(w.Write)
	if err != nil {
		to.owner.events.Push(rdma.Stale{Peer: to.id.Peer, Reason: err.Error()})
		return outcome{rdma.Refused, err}
	}
	switch {
	case f.Vanish:
		return outcome{rdma.Unknown, errors.New("mem: the write vanished")}
	case f.Late > 0:
		return s.sendLate(w, g, f.Late)
	}
	bytes := w.Bytes()
	if f.Tear {
		bytes /= 2
	}
	c := copier{from: s, to: to, grant: g, write: w.Write, sources: w.sources, whole: !f.Tear}
	o := c.land(bytes)
	switch {
	case f.Tear:
		n.mu.Lock()
		n.cutLocked(s.owner.name, to.owner.name)
		n.mu.Unlock()
		return outcome{rdma.Unknown, errors.New("mem: the link broke half way")}
	case f.Lost && o.Outcome == rdma.Landed:
		return outcome{rdma.Unknown, errors.New("mem: the completion was lost")}
	}
	return o
}

// errOutside does not say where: reasons are counted by their text.
var errOutside = errors.New("mem: rows outside of the grant")

// admit finds the grant of a write at the side where it is to land.
func (s *session) admit(w *rdma.Write) (*grant, error) {
	s.owner.net.mu.Lock()
	g := s.owner.grants[w.Grant]
	s.owner.net.mu.Unlock()
	if g == nil {
		return nil, errors.New("mem: the grant is not known")
	}
	if g.Peer != s.id.Peer {
		return nil, errors.New("mem: the grant is another peer's")
	}
	for i := range w.Copies {
		if err := g.permit.Covers("target", &w.Copies[i]); err != nil {
			return nil, errOutside
		}
	}
	return g, nil
}

// lateCopy is a write that left its sender and has not arrived.
type lateCopy struct {
	timer *time.Timer
}

// sendLate keeps what the source holds now and lands it later.
func (s *session) sendLate(w *write, g *grant, after time.Duration) outcome {
	kept := copier{to: s.peer, grant: g, write: w.Write, whole: true}
	regions := map[rdma.RegionID][]byte{}
	for i := range w.Copies {
		id := w.Copies[i].Source.Region
		if regions[id] == nil {
			regions[id] = slices.Clone(w.sources[i])
		}
		kept.sources = append(kept.sources, regions[id])
	}
	to, l := s.peer, &lateCopy{}
	to.landing.Lock()
	defer to.landing.Unlock()
	if !to.fenced {
		l.timer = time.AfterFunc(after, func() {
			kept.land(kept.write.Bytes())
			to.landing.Lock()
			defer to.landing.Unlock()
			to.late = slices.DeleteFunc(to.late, func(o *lateCopy) bool { return o == l })
		})
		to.late = append(to.late, l)
	}
	return outcome{rdma.Unknown, errors.New("mem: the write is late")}
}
