package shm

import (
	"errors"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/memcopy"
)

// copier is the goroutine that copies what is posted to one session.
type copier struct {
	*session
	out     *outbound
	known   map[rdma.GrantID]*known
	sweepAt int // how many known grants there are when it looks which are over
	rows    [chunkRows]memcopy.Row
}

func newCopier(s *session) *copier {
	return &copier{session: s, out: s.out, known: map[rdma.GrantID]*known{}, sweepAt: knownMin}
}

// outcome is how a write ended; the zero value says that it has not.
type outcome struct {
	rdma.Outcome
	err error
}

// run copies, a turn of one tag after a turn of another, until the session leaves.
func (c *copier) run() {
	w := c.next(nil, outcome{})
	for !c.leaving.Load() {
		c.letGo()
		if w == nil {
			select {
			case <-c.wake:
			case <-c.context.Done():
			}
			w = c.next(nil, outcome{})
			continue
		}
		w = c.next(w, c.turn(w))
	}
	c.next(w, outcome{})
}

// next takes a write back after its turn, and gives the one whose turn it is.
func (c *copier) next(w *write, o outcome) *write {
	p := c.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	c.current = nil
	if w != nil {
		w.begun = w.copied
		if o.Outcome == 0 {
			c.queue.Rotate()
		} else {
			c.queue.Pop()
			p.completeLocked(c.session, w, o.Outcome, o.err)
		}
	}
	w, ok := c.queue.Front()
	for ok && w.ended {
		c.queue.Pop()
		w, ok = c.queue.Front()
	}
	if !ok || c.state != up {
		return nil
	}
	c.current = w
	return w
}

// turn copies a part of a write, a chunk at a time. Its zero value: there is more.
func (c *copier) turn(w *write) outcome {
	if w.grant == nil {
		k, err := c.admit(w.Write)
		if err != nil {
			return c.refuse(w, err)
		}
		w.start(k)
	}
	if w.grant.dead {
		return c.refuse(w, refusedRevoked)
	}
	stream := w.bytes >= streamBytesMin
	for budget := uint64(turnBytes); budget >= chunkBytes; {
		n, bytes := w.gather(&c.rows)
		if c.leaving.Load() {
			return c.cut(w, errCut)
		}
		if !c.begin(w.grant) {
			return c.refuse(w, refusedRevoked)
		}
		if c.provider.pause != nil {
			c.provider.pause()
		}
		memcopy.Rows(c.rows[:n], w.ahead(), stream)
		w.copied = true
		if w.left == 0 {
			return c.arrive(w)
		}
		c.end()
		budget -= bytes
	}
	return outcome{}
}

// begin stores the slot, then reads the entry: true as long as the grant is in force,
// and then no Revoke of it ends before the slot is cleared.
func (c *copier) begin(k *known) bool {
	c.out.board.slot().Store(uint64(k.word))
	if c.out.holds(k.word) {
		return true
	}
	c.end()
	return false
}

// end clears the slot, after everything that was copied.
func (c *copier) end() { c.out.board.slot().Store(0) }

// arrive tells the receiver of a write whose bytes are all there, while the slot
// still stands: a Revoke that does not see it sees the arrival. What was revoked
// during the last copy does not arrive.
func (c *copier) arrive(w *write) outcome {
	if !c.out.holds(w.grant.word) {
		c.end()
		return c.refuse(w, refusedRevoked)
	}
	c.out.board.arrive(w.grant.word.entry(), w.bytes)
	c.end()
	c.out.board.ring()
	return outcome{Outcome: rdma.Landed}
}

// refuse ends a write that the receiver's table does not allow, and has it counted
// there. An entry that the fence of the session cleared refuses nothing.
func (c *copier) refuse(w *write, err error) outcome {
	var r refusal
	switch {
	case c.out.over():
		return c.cut(w, errPeerOver)
	case !errors.As(err, &r):
		c.broke(err) // of the socket
		return c.cut(w, errCut)
	}
	c.out.board.refuse(r)
	c.out.board.ring()
	return outcome{rdma.Refused, r}
}

// cut ends a write because its session ends. Nothing of it is on its way.
func (c *copier) cut(w *write, err error) outcome {
	if w.copied {
		return outcome{rdma.Unknown, err}
	}
	return outcome{rdma.NotPosted, err}
}
