package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/transport/rdma/verbs/control"
)

func (st *stripe) strike(why error) {
	st.provider.mu.Lock()
	defer st.provider.mu.Unlock()
	st.strikeLocked(why)
}

// reap takes what completes, until the stripe is lost and drained; then it destroys it.
func (st *stripe) reap() {
	var done []completion
	idle := time.Now()
	for {
		var err error
		if done, err = st.queue.poll(done[:0]); err == nil && len(done) > 0 {
			err = st.take(done)
			idle = time.Now()
		}
		if err != nil {
			st.strike(err)
		}
		if st.isDying() {
			break
		}
		if err != nil || len(done) > 0 || time.Since(idle) < spinDefault {
			continue
		}
		if err := st.queue.arm(); err != nil {
			st.strike(err)
			continue
		}
		// What came before it was armed ends no wait.
		if done, err = st.queue.poll(done[:0]); err == nil && len(done) > 0 {
			if err = st.take(done); err == nil {
				idle = time.Now()
				continue
			}
		}
		if err == nil {
			err = st.queue.wait()
		}
		if err != nil {
			st.strike(err)
		}
	}
	st.drain(done)
	st.destroy()
}

func (st *stripe) isDying() bool {
	select {
	case <-st.dying:
		return true
	default:
		return false
	}
}

// drain waits until everything that was posted has come back: then this side's memory
// is not read any more. A device that is dead brings nothing back.
func (st *stripe) drain(done []completion) {
	<-st.posted
	for until := time.Now().Add(st.provider.config.drain); time.Now().Before(until); {
		var err error
		if done, err = st.queue.poll(done[:0]); err != nil {
			return
		}
		_ = st.take(done) // the stripe is lost already
		if len(done) > 0 {
			continue
		}
		st.provider.mu.Lock()
		left := len(st.chunks)
		for _, c := range st.chunks {
			if c.requests == 0 { // its last request has come back
				left--
			}
		}
		st.provider.mu.Unlock()
		if left == 0 && st.refilled == st.arrived+st.flushed {
			return
		}
		time.Sleep(drainPause)
	}
}

// drainPause is how long drain rests between polls.
const drainPause = 200 * time.Microsecond

// destroy ends the stripe. What the device refuses is asked for again: until it agrees
// the memory stays registered, and the session says that the stripe hangs.
func (st *stripe) destroy() {
	p := st.provider
	st.using.Lock()
	st.destroyed = true
	st.using.Unlock()
	for pause := destroyPause; ; pause = min(2*pause, destroyPauseMost) {
		err := st.queue.destroy()
		if err == nil {
			break
		}
		p.config.Log(Warn, err.Error())
		time.Sleep(pause)
	}
	if err := st.forgetRecords(); err != nil {
		p.config.Log(Warn, err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st.goneLocked()
	close(st.ended)
}

// forgetRecords ends the memory for records. What the device does not let go of stays
// mapped.
func (st *stripe) forgetRecords() error {
	if st.registered != nil {
		if err := st.registered.deregister(); err != nil {
			return err
		}
	}
	if st.records == nil { // there was none
		return nil
	}
	return st.records.Close()
}

// use calls the queue pair, unless it is destroyed or about to be.
func (st *stripe) use(call func() error) error {
	st.using.Lock()
	defer st.using.Unlock()
	if st.destroyed {
		return nil
	}
	return call()
}

// destroyPause is how long destroy rests at first, destroyPauseMost later.
const (
	destroyPause     = 10 * time.Millisecond
	destroyPauseMost = time.Second
)

// reads reports whether the device may still read a source of the write.
func (st *stripe) reads(w *write) bool {
	return slices.ContainsFunc(st.chunks, func(c *chunk) bool { return c.write == w && c.requests > 0 })
}

// take accounts for completions. An error is the stripe's end, or the session's.
func (st *stripe) take(done []completion) error {
	p := st.provider
	var failed error
	p.mu.Lock()
	defer p.mu.Unlock()
	ended := false
	for i := range done {
		c := &done[i]
		switch {
		case c.ID == receiveID && c.Status == statusSuccess && c.HasImm:
			if err := st.arrivalLocked(c.Imm); err != nil && failed == nil {
				failed = err
			}
		case c.ID == receiveID:
			st.flushed++
			if failed == nil {
				failed = st.failure(c)
			}
		case c.Status == statusSuccess:
			if err := st.completedLocked(c.ID); err != nil && failed == nil {
				failed = err
			}
			ended = true
		default:
			st.failedLocked(c.ID)
			// The first that is not a flush is the cause.
			if failed == nil || c.Status.Blame() != Flushed {
				failed = st.failure(c)
			}
		}
	}
	if ended {
		st.wakeUp()
	}
	if failed == nil || st.ending {
		return nil
	}
	var q *QueueError
	if errors.As(failed, &q) && q.Status.everywhere() {
		st.leaveLocked(down, failed) // no other stripe would do better
		return nil
	}
	return failed
}

func (st *stripe) failure(c *completion) error {
	return &QueueError{Device: st.card.name(), Status: c.Status, Vendor: c.Vendor}
}

// completedLocked: the last request of the oldest chunk has completed.
func (st *stripe) completedLocked(id uint64) error {
	if len(st.chunks) == 0 || st.chunks[0].id+1 != id {
		return fmt.Errorf("verbs: %s completed request %d, which is not the oldest", st.card.name(), id)
	}
	c := st.chunks[0]
	st.chunks[0] = nil
	st.chunks = st.chunks[1:]
	st.moved = time.Now()
	st.used -= c.requests
	st.onWay -= c.span.bytes
	st.full = false
	st.landed++
	st.endChunkLocked(c, st.number)
	return nil
}

// failedLocked: a request has come back without having landed, as far as is known.
func (st *stripe) failedLocked(id uint64) {
	for _, c := range st.chunks {
		if c.id+1 == id {
			c.requests = 0 // all of it has come back
		}
	}
}

// arrivalLocked: what a record tells of is visible in memory.
func (st *stripe) arrivalLocked(immediate uint32) error {
	record := st.records.Bytes()[st.arrived%uint64(st.size.Receives)*recordBytes:][:recordBytes]
	bytes, number := binary.LittleEndian.Uint64(record[0:]), binary.LittleEndian.Uint64(record[8:])
	if number != st.arrived+1 {
		st.flushed++ // drain counts what was posted
		return fmt.Errorf("verbs: %s: the record of arrival %d says that it is %d", st.card.name(), st.arrived+1, number)
	}
	st.arrived++
	st.provider.arrivedLocked(st.session, st.number, immediate, bytes)
	if st.ending || st.refilled-st.arrived > uint64(st.size.Receives)*(topUpPart-1)/topUpPart {
		return nil
	}
	n, err := st.queue.receive(int(st.arrived + uint64(st.size.Receives) - st.refilled))
	st.refilled += uint64(n)
	st.tellLocked(&control.Frame{Body: &control.Frame_Credits{Credits: &control.Credits{Stripe: st.number, Posted: st.refilled}}})
	return err
}
