package transport

import (
	"errors"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

var (
	errFenced   = errors.New("the session is being fenced")
	errQuiesced = errors.New("the room is being quiesced")
)

// write is one write from when it was asked for until it completes.
type write struct {
	rdma.Write
	owner *actor.PID
	room  messages.RoomID
	name  rdma.WriteID // the room's own
}

// tag is the writes of one room: from the first, until nothing of it is in flight or
// unknown.
type tag struct {
	room    messages.RoomID
	using   map[*provider]bool // that were given a write of it
	writes  int                // that wait or are in flight
	of      string             // the id of the engine's PID
	owner   *actor.PID         // who asked to quiesce
	ending  *ending            // set when the engine is gone
	asked   int                // providers that have yet to answer
	doubt   bool               // a write of it ended as unknown
	unknown []rdma.Generation
}

func (a *Actor) onPostWrite(c actor.Context, m *actors.PostWrite) {
	refuse := func(err error) {
		c.Send(m.Owner, &actors.WriteNotTaken{Room: m.Room, Write: m.Write, Err: err})
	}
	s := a.sessions[m.Node.String()]
	if s == nil || !s.up {
		refuse(rdma.ErrNotConnected)
		return
	}
	copies, err := wireCopies(m, s.provider.Name())
	if err != nil {
		refuse(err)
		return
	}
	p := s.provider
	p.nextWrite++
	w := &write{
		Write: rdma.Write{ID: p.nextWrite, Tag: m.Tag, Grant: m.Grant, Copies: copies},
		owner: m.Owner, room: m.Room, name: m.Write,
	}
	t := a.tags[m.Tag]
	if t != nil && t.asked > 0 { // what is asked for is the end of all that was posted before
		refuse(errQuiesced)
		return
	}
	if t == nil {
		t = &tag{room: m.Room, of: m.Owner.Id, using: map[*provider]bool{}}
		a.tags[m.Tag] = t
	}
	t.using[p] = true
	t.writes++
	if s.queue.Len() > 0 || !a.post(c, s, w) { // behind those that wait already
		s.queue.Push(w.Tag, w)
	}
}

// post gives a write to the provider. False: the window is full, and the write has
// to wait.
func (a *Actor) post(c actor.Context, s *session, w *write) bool {
	switch err := s.provider.Post(s.id, []*rdma.Write{&w.Write}); {
	case err == nil:
		s.provider.writes[w.ID] = w
	case errors.Is(err, rdma.ErrFull):
		return false
	default:
		a.notTaken(c, w, err)
	}
	return true
}

func (a *Actor) completed(c actor.Context, p *provider, ev rdma.Completed, moved map[string]bool) {
	w := p.writes[ev.ID]
	if w == nil {
		panic(fmt.Sprintf("transport: provider %s completed write %d, which is not in flight", p.Name(), ev.ID))
	}
	delete(p.writes, ev.ID)
	if ev.Outcome == rdma.Landed {
		moved[ev.Session.Peer] = true
	}
	c.Send(w.owner, &actors.WriteDone{
		Room: w.room, Write: w.name, Generation: ev.Session.Generation,
		Outcome: ev.Outcome, Err: ev.Err, Bytes: ev.Bytes, Arrivals: ev.Arrivals,
	})
	a.ended(w, ev.Outcome)
	if s := a.sessionOf(ev.Session); s != nil && s.up {
		for w, ok := s.queue.Front(); ok && a.post(c, s, w); w, ok = s.queue.Front() {
			s.queue.Pop()
		}
	}
}

// dropQueue hands back what waits for a session that is over.
func (a *Actor) dropQueue(c actor.Context, s *session, err error) {
	for _, w := range s.queue.DropAll() {
		a.notTaken(c, w, err)
	}
}

// notTaken hands back a write that no provider has.
func (a *Actor) notTaken(c actor.Context, w *write, err error) {
	c.Send(w.owner, &actors.WriteNotTaken{Room: w.room, Write: w.name, Err: err})
	a.ended(w, rdma.NotPosted)
}

// ended counts a write that is over. A room of which nothing is in flight, and nothing
// unknown, has nothing that its provider could quiesce.
func (a *Actor) ended(w *write, o rdma.Outcome) {
	t := a.tags[w.Tag]
	t.writes--
	t.doubt = t.doubt || o == rdma.Unknown
	if t.writes == 0 && !t.doubt && t.asked == 0 && t.ending == nil { // else an answer is waited for
		delete(a.tags, w.Tag)
	}
}

func (a *Actor) onQuiesceRoom(c actor.Context, m *actors.QuiesceRoom) {
	for _, s := range a.sessions { // only this room's writes: their order among sessions is nobody's
		for _, w := range s.queue.Drop(m.Tag) {
			a.notTaken(c, w, errQuiesced)
		}
	}
	t := a.tags[m.Tag]
	if t == nil { // never posted, or all of it is known to have ended
		c.Send(m.Owner, &actors.RoomQuiesced{Room: m.Room, Tag: m.Tag})
		return
	}
	if t.owner = m.Owner; t.asked > 0 {
		return // one answer for all who ask meanwhile
	}
	for _, p := range a.providers {
		if t.using[p] {
			t.asked++
			p.Quiesce(m.Tag)
		}
	}
}

func (a *Actor) quiesced(c actor.Context, p *provider, ev rdma.Quiesced) {
	t := a.tags[ev.Tag]
	if t == nil || t.asked == 0 {
		panic(fmt.Sprintf("transport: provider %s quiesced tag %d, which nobody asked for", p.Name(), ev.Tag))
	}
	for _, session := range ev.Unknown {
		t.unknown = append(t.unknown, session.Generation)
	}
	if t.asked--; t.asked == 0 {
		delete(a.tags, ev.Tag)
		if t.ending != nil {
			t.ending.tags--
			a.endIfDone(t.ending)
			return
		}
		c.Send(t.owner, &actors.RoomQuiesced{Room: t.room, Tag: ev.Tag, Unknown: t.unknown})
	}
}

// wireCopies is the copies of a write in the provider's region names.
func wireCopies(m *actors.PostWrite, provider string) ([]rdma.Copy, error) {
	copies := make([]rdma.Copy, len(m.Copies))
	for i := range m.Copies {
		from := &m.Copies[i]
		source, err := wirePlace(from.Source, m.Source, provider)
		if err != nil {
			return nil, fmt.Errorf("copy %d: source: %w", i, err)
		}
		target, err := wirePlace(from.Target, m.Target, provider)
		if err != nil {
			return nil, fmt.Errorf("copy %d: target: %w", i, err)
		}
		copies[i] = rdma.Copy{Source: source, Target: target, Bytes: from.Bytes, Count: from.Count, Runs: wirePairs(copies[:i], m.Copies[:i], from.Runs)}
	}
	return copies, nil
}

func wirePlace(p kv.Place, regions []*messages.Region, provider string) (rdma.Place, error) {
	id, err := regionID(regions, p.Region, provider)
	return rdma.Place{Region: id, Offset: p.Offset, UnitStride: p.UnitStride, Stride: p.Stride}, err
}

// wirePairs converts runs, or finds them: copies of one plan share their runs,
// one copy after another, so that they are converted once for many copies.
func wirePairs(done []rdma.Copy, from []kv.Copy, runs []kv.PairRun) []rdma.PairRun {
	if len(runs) == 0 {
		return nil
	}
	for i := len(from) - 1; i >= max(0, len(from)-sharedRunsReach); i-- {
		if len(from[i].Runs) == len(runs) && &from[i].Runs[0] == &runs[0] {
			return done[i].Runs
		}
	}
	pairs := make([]rdma.PairRun, len(runs))
	for i, r := range runs {
		pairs[i] = rdma.PairRun(r)
	}
	return pairs
}

// sharedRunsReach is how far back the same runs are looked for. A plan cuts a
// tensor pair by the page borders of both sides, so the same runs come again
// after as many copies as there are cuts: few, unless page sizes are odd.
const sharedRunsReach = 16
