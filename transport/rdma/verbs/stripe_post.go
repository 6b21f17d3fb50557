package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// takeLocked makes a chunk of what was cut into the chain, and puts the record of its
// arrival behind it.
func (st *stripe) takeLocked(w *write, part span) *chunk {
	local, _ := st.registered.keys()
	// An entry of this side is used again when its chunk has completed: there are as
	// many as requests. One of the peer's, when it has posted its receive again.
	own := uint64(st.size.Receives)*recordBytes + st.sent%uint64(st.size.Sends)*recordBytes
	record := st.records.Bytes()[own:][:recordBytes]
	binary.LittleEndian.PutUint64(record[0:], part.bytes)
	binary.LittleEndian.PutUint64(record[8:], st.sent+1) // never 0, which entries are at first
	x := &st.chain
	x.pieces = append(x.pieces, piece{st.recordsAddr() + own, recordBytes, local})
	x.rows = append(x.rows, row{
		pieces: x.pieces[len(x.pieces)-1:], remote: st.ring + st.sent%st.ringSize*recordBytes, rkey: st.ringKey,
	})
	st.sent++
	st.ids += 2
	c := &chunk{write: w, span: part, id: st.ids, requests: len(x.rows)}
	if len(st.chunks) == 0 {
		st.moved = time.Now()
	}
	st.used += c.requests
	st.onWay += part.bytes
	st.chunks = append(st.chunks, c)
	return c
}

// post cuts chunks and posts them, until the stripe is lost.
func (st *stripe) post() {
	defer close(st.posted)
	p := st.provider
	for {
		p.mu.Lock()
		c := st.cutLocked(st)
		p.mu.Unlock()
		if c != nil {
			immediate := c.write.target.immediate
			if n, err := st.queue.write(st.chain.rows, c.id, &immediate); err != nil {
				st.notPosted(c, n, err)
			}
			continue
		}
		select {
		case <-st.wakes:
			continue
		case <-st.dying:
		}
		p.mu.Lock()
		joined := st.joined
		p.mu.Unlock()
		if joined {
			if err := st.queue.fail(); err != nil {
				p.config.Log(Warn, err.Error())
			} else if c := st.short; c != nil {
				// What is posted now comes back at once, behind all that was before.
				_, _ = st.queue.write(st.chain.rows[len(st.chain.rows)-1:], c.id, nil)
			}
		}
		return
	}
}

// notPosted: n requests of a chunk were posted, the last one not. A queue that is full,
// though by the count it is not, gets the chunk again when something has completed.
func (st *stripe) notPosted(c *chunk, n int, err error) {
	st.provider.mu.Lock()
	defer st.provider.mu.Unlock()
	if n == 0 {
		full := errors.Is(err, syscall.ENOMEM) && len(st.chunks) > 1
		if full && !st.ending {
			st.untakeLocked(c)
			return
		}
		c.requests = 0 // nothing of it is there
	}
	// What was posted of it may land, and its end tells nobody. With the queue pair in
	// error nothing more does, and the chunk is of those that are lost.
	if n > 0 {
		st.short = c
	}
	st.strikeLocked(fmt.Errorf("%w: %d requests of a chain were posted, and not its end", err, n))
}

// untakeLocked takes back the newest chunk.
func (st *stripe) untakeLocked(c *chunk) {
	st.chunks = st.chunks[:len(st.chunks)-1]
	st.used -= c.requests
	st.onWay -= c.span.bytes
	st.sent--
	st.full = true // until something completes
	c.write.inFlight--
	st.againLocked(c)
}
