package tcp

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// write is the connection's writer: acks first, then a frame of whose turn it is.
func (c *conn) write() {
	for {
		sent, err := c.writeSome()
		if err != nil {
			c.fail(fmt.Errorf("tcp: stripe %d: write: %w", c.stripe, err))
			return
		}
		if sent {
			continue
		}
		select {
		case <-c.wake:
		case <-c.context.Done():
			return
		}
	}
}

// writeSome writes the acks that wait and one frame. It reports whether there was
// a frame.
func (c *conn) writeSome() (sent bool, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		if err := c.writeAll(); err != nil { // what the reader began, then the acks
			return false, err
		}
		if c.takeAcks(); c.out.left == 0 {
			break
		}
	}
	w := c.nextFrame()
	if w == nil {
		return false, nil
	}
	c.encodeFrame(w)
	if err := c.writeAll(); err != nil {
		return false, err
	}
	if c.out.summed {
		c.out.close()
		if err := c.writeAll(); err != nil {
			return false, err
		}
	}
	c.out.framed = false
	c.mu.Lock()
	c.sending = nil
	early := c.early
	c.early = 0
	c.mu.Unlock()
	if early != 0 {
		return true, c.settle(c.number, early) // only this goroutine makes numbers
	}
	return true, nil
}

// nextFrame cuts a frame, if there is something to send and room in the window.
func (c *conn) nextFrame() *write {
	c.mu.Lock()
	defer c.mu.Unlock()
	cfg := &c.provider.config
	if c.n == windowFrames || c.inFlight > 0 && c.inFlight+cfg.FrameBytes > cfg.WindowBytes {
		return nil
	}
	w, ok := c.queue.Front()
	for ok && (w.ended || w.refused) {
		c.queue.Pop()
		w, ok = c.queue.Front()
	}
	if !ok {
		return nil
	}
	o := &c.out
	o.body.reset()
	o.body.stripe = c.stripe
	o.made = append(o.made[:0], unix.Iovec{}) // the head, once it is encoded
	if cut(w.Write, w.sources, &w.at, &o.body, &o.made, uint64(cfg.FrameBytes)) {
		w.cut = true
		c.queue.Pop()
	} else {
		c.queue.Rotate()
	}
	w.begun = true
	w.inFlight++
	c.number++
	c.sending = w
	c.window[(c.first+c.n)%windowFrames] = sent{w, c.number, int(o.body.bytes)}
	c.n++
	c.inFlight += int(o.body.bytes)
	c.reading.Lock() // from now on a Quiesce finds the frame
	c.frame, c.abandoned = c.number, false
	c.reading.Unlock()
	return w
}

// encodeFrame makes out the frame that was cut.
func (c *conn) encodeFrame(w *write) {
	o := &c.out
	o.head = append(o.head[:0], make([]byte, headBytes)...)
	o.head = o.body.encode(o.head)
	h := head{kind: kindFrame, body: uint32(len(o.head) - headBytes), number: c.number, payload: o.body.bytes, write: w.id}
	if o.summed = c.provider.config.sums(c.number); o.summed {
		h.status = statusSummed
	}
	h.encode(o.head)
	o.made[0] = unix.Iovec{Base: &o.head[0], Len: uint64(len(o.head))}
	o.left = uint64(len(o.head)) + o.body.bytes
	o.skip, o.sum, o.padded = uint64(len(o.head)), 0, false
	if !o.summed {
		encodeTrailer(o.trailer[:], statusWhole, 0)
		o.made.buffer(o.trailer[:])
		o.left += trailerBytes
	}
	o.vec, o.framed = o.made, true
}

// settle takes an ack. The write completes with the last one, or when one of its
// frames was refused and no other is on its way.
func (c *conn) settle(number uint64, status uint8) error {
	c.mu.Lock()
	if c.n == 0 || c.window[c.first].number != number {
		c.mu.Unlock()
		return fmt.Errorf("ack of frame %d, which is not the oldest in flight", number)
	}
	if c.sending != nil && number == c.number {
		// The source is still being read, or was a moment ago.
		c.early = status
		c.mu.Unlock()
		return nil
	}
	done := c.window[c.first]
	c.window[c.first] = sent{}
	c.first = (c.first + 1) % windowFrames
	c.n--
	c.inFlight -= done.bytes
	w := done.write
	w.inFlight--
	switch {
	case w.ended: // and is told of, with what was known by then
	case status == statusLanded:
		w.landed[c.stripe]++
	default:
		w.refused = true
	}
	ends := !w.ended && w.inFlight == 0 && (w.cut || w.refused)
	if ends {
		w.ended = true
		delete(c.live, w.sequence)
	}
	outcome, why := rdma.Landed, error(nil)
	if w.refused {
		outcome, why = rdma.Refused, errRefused
	}
	c.mu.Unlock()
	c.wakeUp()
	if ends {
		c.provider.mu.Lock()
		c.provider.completeLocked(c.session, w, outcome, why)
		c.provider.mu.Unlock()
	}
	return nil
}
