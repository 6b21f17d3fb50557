package main

import (
	"context"

	"go.uber.org/zap"

	"kvferry/kv"
	"kvferry/node"
)

// layeredRooms: of so many rooms one is sent layer by layer.
const layeredRooms = 4

// openRooms opens rooms in the order of the commands, until the queue is closed.
func (d *driver) openRooms() {
	defer d.opener.Done()
	for l := range d.queue {
		play, err := d.openRoom(l)
		if err != nil {
			d.close(l, &driveEvent{Event: eventRoom, Room: l.command.Room, Reason: err.Error()})
			continue
		}
		d.opener.Add(1)
		go func() {
			defer d.opener.Done()
			d.close(l, play())
		}()
	}
}

// close tells how a leg ended.
func (d *driver) close(l *leg, e *driveEvent) {
	l.giveUp(nil)
	d.legsMu.Lock()
	delete(d.legs, l.command.Room)
	d.legsMu.Unlock()
	d.tell(e)
}

// openRoom waits for pages for a room. What it returns plays the room to its end.
func (d *driver) openRoom(l *leg) (play func() *driveEvent, err error) {
	if l.ctx.Err() != nil {
		return nil, context.Cause(l.ctx) // it never came to the engine
	}
	c := l.command
	var room openRoom
	if d.prefill != nil {
		s, err := d.prefill.Open(l.ctx, node.SendRequest{Room: c.Room, Attempt: c.Attempt, Tokens: c.Tokens, Wait: c.Wait})
		if err != nil {
			return nil, err
		}
		room, play = s, func() *driveEvent { return d.send(c, s) }
	} else {
		r, err := d.decode.Receive(l.ctx, node.ReceiveRequest{
			Room: c.Room, Attempt: c.Attempt, Prefill: c.Prefill, PrefillDP: c.PrefillDP,
			Prefix: c.Prefix, Length: c.Tokens, Wait: c.Wait,
		})
		if err != nil {
			return nil, err
		}
		at := r.Place()
		hold := d.pages.take(at)
		// What decode holds already of the first pages. It is written before another
		// room is opened: if this one fails, its pages may be the next one's.
		d.cache.fill(c.Room, &at, 0, c.Prefix)
		room, play = r, func() *driveEvent { return d.receive(c, r, hold) }
	}
	d.legsMu.Lock()
	defer d.legsMu.Unlock()
	if l.room = room; l.ctx.Err() != nil {
		room.Abort(context.Cause(l.ctx).Error()) // it was given up meanwhile
	}
	return play, nil
}

// send computes a room chunk by chunk, and waits for its end.
func (d *driver) send(c *driveCommand, s sendRoom) *driveEvent {
	defer s.Free() // whatever comes: nothing is computed after this
	e := &driveEvent{Event: eventRoom, Room: c.Room}
	ended := make(chan struct{})
	var result node.Result
	var err error
	go func() {
		defer close(ended)
		result, err = s.Wait(d.ctx)
	}()
	at, from := s.Place(), uint64(0)
	for _, to := range chunkEnds(c.Room, c.Tokens, c.Chunk) {
		if !d.compute(c, &at, from, to, ended) {
			break
		}
		if from == 0 {
			e.FirstSend = monotonic()
		}
		from = to
		if c.Room%layeredRooms == 0 {
			if half := d.cache.middleLayer(); half > 0 {
				s.ChunkLayers(to, half)
			}
		}
		s.Chunk(to)
	}
	<-ended
	d.finish(c, e, result, err)
	e.Copies = result.Copies
	return e
}

// compute fills the tokens [from, to) of a room, as far as decode lacks them: a
// byte of the others that is sent all the same is found there. Of a window whole
// pages are sent. The last chunk has the state and the metadata row too. False:
// the room has ended meanwhile.
func (d *driver) compute(c *driveCommand, at *kv.Placement, from, to uint64, ended <-chan struct{}) bool {
	const step = 256 // tokens between two looks at whether the room has ended
	var all, tails kv.Placement
	for _, t := range at.Tables {
		if t.Window == 0 {
			all.Tables = append(all.Tables, t)
		} else {
			tails.Tables = append(tails.Tables, t)
		}
	}
	for lo := from; lo < to; lo += step {
		select {
		case <-ended:
			return false
		default:
			hi := min(lo+step, to)
			d.cache.fill(c.Room, &tails, lo, hi)
			d.cache.fill(c.Room, &all, min(max(lo, c.Prefix), hi), hi)
		}
	}
	if to == c.Tokens {
		d.cache.fillState(c.Room, at.Slot, to)
		d.cache.fillMeta(c.Room, at.MetaRow)
	}
	select {
	case <-ended:
		return false
	default:
	}
	if f := c.Flip; f != nil {
		where := place{f.Component, f.Layer, f.Head, f.Row}
		if d.cache.flip(at, from, to, to == c.Tokens, where, f.Byte) {
			d.log.Info("spoiled a byte, as asked", zap.Uint64("room", c.Room), zap.Stringer("at", where))
		}
	}
	return true
}

// receive waits for a room, checks what came, and puts canaries back.
func (d *driver) receive(c *driveCommand, r receiveRoom, hold *pageHold) *driveEvent {
	e := &driveEvent{Event: eventRoom, Room: c.Room}
	result, err := r.Wait(d.ctx)
	e.Done = monotonic()
	d.finish(c, e, result, err)
	defer r.Free()
	if !e.OK {
		e.Done = 0
		return e // something may still come into the pages: they stay dirty
	}
	found := hold.check(c.Room, c.Tokens)
	e.WrongBytes, e.FirstWrong = found.bytes, found.first
	hold.restore()
	return e
}

func (d *driver) finish(c *driveCommand, e *driveEvent, result node.Result, err error) {
	switch {
	case err != nil:
		e.Reason = err.Error()
	case !result.Complete:
		e.Reason = result.Cause
	default:
		e.OK = true
	}
	e.Bytes = result.Bytes
	if !e.OK {
		if e.Reason == "" {
			e.Reason = "failed without a cause"
		}
		d.log.Warn("room failed", zap.Uint64("room", c.Room), zap.String("reason", e.Reason))
	}
}

// chunkEnds cuts a request as a prefill scheduler would: chunks of one size, and
// in every other room of a size that is no multiple of any page, because the
// budget of a step is shared with other requests.
func chunkEnds(room, tokens, chunk uint64) []uint64 {
	if chunk == 0 {
		chunk = chunkTokens
	}
	if room%2 == 1 && chunk > 2 {
		chunk = chunk - chunk%2 - 1
	}
	var ends []uint64
	for at := chunk; at < tokens; at += chunk {
		ends = append(ends, at)
	}
	return append(ends, tokens)
}
