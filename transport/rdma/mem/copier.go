package mem

import (
	"errors"

	"kvferry/transport/rdma"
)

// copier lands one write.
type copier struct {
	from    *session // nil when the sender has nothing to do with it any more
	to      *session
	grant   *grant
	write   *rdma.Write
	sources [][]byte
	whole   bool // an arrival is told at its end

	landed uint64 // bytes
	locked bool
	room   int64 // bytes that may be copied before the locks are given back
}

// land copies the first bytes of the write, a chunk at a time, so that Revoke and
// Fence wait for a chunk at most.
func (c *copier) land(bytes uint64) outcome {
	defer c.unlock()
	for i := range c.write.Copies {
		cp := &c.write.Copies[i]
		source, target := c.sources[i], c.grant.memory[cp.Target.Region]
		for rows := rdma.RowsOf(cp); rows.Next(); {
			for at := uint64(0); at < rows.Bytes; {
				if c.landed == bytes {
					return outcome{Outcome: rdma.Landed}
				}
				if o := c.lock(); o.err != nil {
					return o
				}
				n := min(rows.Bytes-at, bytes-c.landed, uint64(c.room))
				copy(target[rows.Target+at:][:n], source[rows.Source+at:][:n])
				at += n
				c.landed += n
				c.room -= int64(n)
			}
		}
	}
	return c.arrive()
}

// arrive tells the receiver, while Revoke and Fence still wait for this write.
func (c *copier) arrive() outcome {
	if o := c.lock(); o.err != nil {
		return o
	}
	if c.whole {
		c.to.owner.events.Push(rdma.Arrived{
			Grant: c.grant.ID, Generation: c.to.id.Generation, Arrival: rdma.Arrival{Stripe: 0, Count: 1}, Bytes: c.landed,
		})
	}
	return outcome{Outcome: rdma.Landed}
}

// lock makes sure that the copy may go on. When a chunk is full it lets who waits
// go first.
func (c *copier) lock() outcome {
	if c.locked && c.room > 0 {
		return outcome{}
	}
	c.unlock()
	if c.from != nil {
		select {
		case <-c.from.stop:
			return c.broken("mem: the session ended before all of it landed")
		default:
		}
	}
	c.to.landing.Lock()
	c.grant.landing.Lock()
	c.locked, c.room = true, chunkBytes
	switch {
	case c.to.fenced:
		return c.broken("mem: the peer fenced the session")
	case c.grant.closed:
		c.to.owner.events.Push(rdma.Stale{Peer: c.to.id.Peer, Reason: "mem: the grant was revoked"})
		return outcome{rdma.Refused, errors.New("mem: the grant was revoked")}
	}
	return outcome{}
}

// broken is the outcome of a write that a session's end cut off.
func (c *copier) broken(text string) outcome {
	if c.landed == 0 {
		return outcome{rdma.NotPosted, errors.New(text)}
	}
	return outcome{rdma.Unknown, errors.New(text)}
}

func (c *copier) unlock() {
	if c.locked {
		c.grant.landing.Unlock()
		c.to.landing.Unlock()
		c.locked = false
	}
}
