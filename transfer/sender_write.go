package transfer

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// writeState is where one write is.
type writeState uint8

const (
	writeTodo    writeState = iota // no byte of it is on the way
	writeFlying                    // the transport has it
	writeLanded                    // every byte is at the receiver
	writeUnknown                   // some may land until its generation is fenced
)

// write is one write of a plan: posted until it has landed.
type write struct {
	target     *target
	copies     []kv.Copy
	bytes      uint64
	state      writeState
	posts      int             // that may have moved a byte
	generation rdma.Generation // that carried the last of them
	arrivals   []rdma.Arrival  // that the receiver is to count, once landed
}

// plan turns chunks into writes, in order, for every receiver that has granted.
func (s *Sender) plan() {
	for _, t := range s.targets {
		for t.state == granted && t.next < len(s.chunks) {
			c := &s.chunks[t.next]
			copies, err := t.pair.Copies(kv.Chunk{
				From: c.From, To: c.To, Layers: s.layersOf(t.next), Source: c.Source, Last: c.Last, More: c.Layers > 0,
			}, &t.at)
			if err != nil {
				s.fail(s.causeOf(messages.CauseKind_CAUSE_BAD_CHUNK, "chunk [%d,%d): %v", c.From, c.To, err))
				return
			}
			if s.state == SenderWaiting {
				s.move(SenderWriting)
			}
			if !s.absoluteBy.isSet() {
				s.absoluteBy.set(s.now.Add(s.limits.writing(t.length)))
			}
			t.next++
			for _, piece := range split(copies, s.limits.WriteBytes) {
				w := &write{target: t, copies: piece, bytes: copyBytes(piece)}
				t.writes = append(t.writes, w)
				t.todo = append(t.todo, w)
			}
		}
	}
}

// layersOf is the layers that a chunk is the first to have.
func (s *Sender) layersOf(n int) kv.LayerRange {
	var r kv.LayerRange
	if n > 0 {
		r.Low = s.chunks[n-1].Layers // 0: that one was whole
	}
	if r.High = s.chunks[n].Layers; r.Low > 0 && r.High == 0 {
		r.High = math.MaxInt
	}
	return r
}

// post fills the window, the targets taking turns.
func (s *Sender) post() {
	if !s.open() {
		return
	}
	for _, t := range s.targets {
		if t.retryAt.passed(s.now) {
			t.retryAt.clear()
		}
	}
	for idle := 0; idle < len(s.targets) && len(s.flying) < s.limits.Window; s.turn++ {
		t := s.targets[s.turn%len(s.targets)]
		if len(t.todo) == 0 || t.retryAt.isSet() {
			idle++
			continue
		}
		idle = 0
		w := t.todo[0]
		t.todo = t.todo[1:]
		s.lastWrite++
		s.flying[s.lastWrite] = w
		s.posted = true
		w.state = writeFlying
		w.posts++
		s.emit(Post{To: t.receiver, Write: s.lastWrite, Grant: t.grant, Copies: w.copies, Bytes: w.bytes})
	}
}

// landing takes a write out of flight. nil: it was taken out when the transport
// had quiesced the room.
func (s *Sender) landing(id rdma.WriteID) *write {
	w := s.flying[id]
	if w == nil {
		if s.unpinned && id <= s.lastWrite {
			return nil
		}
		panic(fmt.Sprintf("transfer: sender %s: completion of write %d, which is not in flight", s.id, id))
	}
	delete(s.flying, id)
	return w
}

func (s *Sender) onNotTaken(ev NotTaken) {
	w := s.landing(ev.Write)
	if w == nil {
		return
	}
	var outside *rdma.RangeError
	if errors.As(ev.Err, &outside) {
		s.again(w)
		s.fail(s.causeOf(messages.CauseKind_CAUSE_TRANSPORT, "write to %s: %v", w.target.receiver, ev.Err))
		return
	}
	s.again(w)
}

// again queues a write of which nothing left. It waits a little: the transport
// has no connection, and says when there is a new one.
func (s *Sender) again(w *write) {
	w.posts--
	t := w.target
	w.state = writeTodo
	if !s.open() {
		return
	}
	s.queue(w)
	if t.retryAt.isSet() {
		return // of the same trouble as the write before
	}
	pause := s.limits.ResendFirst << min(t.pause, 16)
	t.retryAt.set(s.now.Add(min(pause, s.limits.ResendMost)))
	t.pause++
}

func (s *Sender) queue(w *write) {
	w.state = writeTodo
	w.target.todo = append(w.target.todo, w)
}

func (s *Sender) onWritten(ev Written) {
	w := s.landing(ev.Write)
	if w == nil {
		return
	}
	t := w.target
	w.generation = ev.Generation
	switch ev.Outcome {
	case rdma.Landed:
		w.state, w.arrivals = writeLanded, ev.Arrivals
		t.landed++
		t.pause = 0
		if w.bytes > 0 && s.open() {
			s.progressBy.set(s.now.Add(s.limits.Progress))
		}
	case rdma.NotPosted:
		s.again(w)
	case rdma.Refused:
		// Final. While the room lives its receiver should have taken it.
		w.state = writeTodo
		s.fail(s.causeOf(messages.CauseKind_CAUSE_TRANSPORT, "receiver %s refused a write: %v", t.receiver, ev.Err))
	case rdma.Unknown:
		t.unknown = addGeneration(t.unknown, ev.Generation)
		for _, a := range ev.Arrivals {
			t.partial = addCount(t.partial, stripe{ev.Generation, a.Stripe}, a.Count)
		}
		w.state = writeUnknown
		s.repost(w)
	default:
		panic(fmt.Sprintf("transfer: sender %s: write %d ended with outcome %d", s.id, ev.Write, ev.Outcome))
	}
}

// repost queues a write that is lost, or may be, once its generation is fenced.
func (s *Sender) repost(w *write) {
	if !s.open() {
		return
	}
	if w.posts >= s.limits.Posts {
		s.fail(s.causeOf(messages.CauseKind_CAUSE_TRANSPORT, "a write to %s was posted %d times and did not land", w.target.receiver, w.posts))
		return
	}
	if s.fencedBelow[w.target.receiver] > w.generation.Number {
		s.queue(w)
	}
}

func (s *Sender) onNewGeneration(ev NewGeneration) {
	for _, t := range s.targets {
		if !slices.Contains(ev.Engines, t.receiver) {
			continue
		}
		t.retryAt.clear()
		t.pause = 0
		for _, w := range t.writes {
			if w.state == writeUnknown {
				s.repost(w)
			}
		}
	}
}

// sayDone says done to each receiver that has all, and votes with the last.
func (s *Sender) sayDone() {
	all := true
	for _, t := range s.targets {
		if t.state == granted && !t.done && s.whole(t) {
			counts, bytes := t.arrivals()
			if len(counts) > s.limits.Entries {
				s.fail(s.causeOf(messages.CauseKind_CAUSE_NO_CAPACITY, "arrivals are on %d stripes, the limit is %d", len(counts), s.limits.Entries))
				return
			}
			t.done = true
			s.repeat(t.receiver, topicDone, t.grant, &messages.Done{Grant: t.grant[:], Arrivals: wireArrivals(counts), Bytes: bytes})
		}
		all = all && (t.state == excused || t.done)
	}
	if all {
		s.voteBy.set(s.absoluteBy.at.Add(s.limits.Vote))
		for _, d := range []*deadline{&s.absoluteBy, &s.answerBy, &s.chunkBy, &s.progressBy} {
			d.clear()
		}
		s.move(SenderVoted)
	}
}

// whole reports whether everything of a target has landed.
func (s *Sender) whole(t *target) bool {
	n := len(s.chunks)
	return n > 0 && s.chunks[n-1].Last && s.chunks[n-1].Layers == 0 && t.next == n && t.landed == len(t.writes)
}

// arrivals is what the receiver is to count, and the bytes of the plan. Where a write
// that did not land whole has left arrivals on a stripe, they are counted beside those of
// the others: else one of them would stand for one that was lost.
func (t *target) arrivals() (counts []count, bytes uint64) {
	for _, w := range t.writes {
		bytes += w.bytes
		for _, a := range w.arrivals {
			counts = addCount(counts, stripe{w.generation, a.Stripe}, a.Count)
		}
	}
	for i := range counts {
		counts[i].arrivals = addCapped(counts[i].arrivals, countOf(t.partial, counts[i].stripe))
	}
	return counts, bytes
}

// onMissing writes again what a generation carried whose arrivals were lost. It
// takes the vote back: that receiver cannot have landed.
func (s *Sender) onMissing(from messages.Engine, m *messages.Missing) {
	id, bad := grantID("grant", m.GetGrant())
	list, bad2 := generations("generations", m.GetGenerations(), &s.limits)
	t := s.target(from)
	switch {
	case bad != nil:
		s.misfit(from, bad)
		return
	case bad2 != nil:
		s.misfit(from, bad2)
		return
	case t == nil || t.state != granted || t.grant != id:
		s.misfit(from, differs("grant", id, "the grant of "+from.String()))
		return
	case s.ended():
		return // nothing more is written; the decider's word is on the way
	}
	s.send(from, &messages.MissingAck{})
	var lost []*write
	for _, w := range t.writes {
		if w.state == writeLanded && slices.Contains(list, w.generation) {
			lost = append(lost, w)
		}
	}
	if len(lost) == 0 {
		return // an old one that came again
	}
	t.done = false
	s.box.done(outKey{from, topicDone, t.grant})
	if s.state == SenderVoted {
		s.absoluteBy.set(s.voteBy.at.Add(-s.limits.Vote))
		s.voteBy.clear()
		s.move(SenderWriting)
	}
	for _, w := range lost {
		w.state, w.arrivals = writeUnknown, nil
		t.landed--
		s.repost(w)
	}
	if s.handed != nil {
		s.fail(s.handed)
	}
}

// watchProgress bounds how long writes stand still.
func (s *Sender) watchProgress() {
	if !s.open() {
		return
	}
	busy := len(s.flying) > 0
	for _, t := range s.targets {
		busy = busy || t.landed < len(t.writes)
	}
	switch {
	case !busy:
		s.progressBy.clear()
	case !s.progressBy.isSet():
		s.progressBy.set(s.now.Add(s.limits.Progress))
	}
}
