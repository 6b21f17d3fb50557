package node

import (
	"context"
	"sync"
	"time"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
)

// room is what Send and Receive have in common: the caller's side of one room.
type room struct {
	engine *engine
	id     messages.RoomID
	handle actors.Handle
	opened *actors.Opened
	since  time.Time
	ended  chan *actors.Ended // one

	mu     sync.Mutex // Wait may be called by several goroutines
	result *Result
}

// room is a caller's side of a room that is yet to be opened.
func (e *engine) room(id uint64, attempt uint32) room {
	return room{
		engine: e, id: messages.RoomID{Room: id, Attempt: attempt},
		handle: actors.Handle(e.node.env.NextID()), ended: make(chan *actors.Ended, 1),
	}
}

// Place is where the engine keeps the room: its pages in each pool, its slot, and
// its metadata row, of which the first actors.MetaHeader bytes are KVFerry's.
func (r *room) Place() kv.Placement { return r.opened.At }

// Pages is the pages of the components that keep all tokens: all pages of most
// models.
func (r *room) Pages() kv.PageTable { return r.opened.At.Table(0) }

// MetaRow is the metadata row of Place.
func (r *room) MetaRow() uint32 { return r.opened.At.MetaRow }

// Abort gives the room up. Wait tells how it ended: it may have completed.
func (r *room) Abort(reason string) {
	r.engine.node.env.System.Root.Send(r.engine.pid, &actors.AbortRoom{Room: r.id, Handle: r.handle, Reason: reason})
}

// Free says, once, that the caller does not touch the pages any more: it neither
// computes into them nor reads them. They are given away again when KVFerry does
// not either, which may be later: after a failure, when nothing of the room can
// read or write them. Every room that was opened has to be freed, however it ended.
func (r *room) Free() {
	r.engine.node.env.System.Root.Send(r.engine.pid, &actors.FreePages{Room: r.id, Handle: r.handle})
}

// Wait waits for the end of the room. After it returned without an error it
// returns the same again. An error is the context's, or the node's end.
func (r *room) Wait(ctx context.Context) (Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result != nil {
		return *r.result, nil
	}
	select {
	case e := <-r.ended:
		return r.end(e), nil
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	case <-r.engine.node.done:
		return Result{}, r.engine.node.Err()
	case <-r.engine.gone:
	}
	select { // it may have ended before its engine did
	case e := <-r.ended:
		return r.end(e), nil
	default:
		return r.end(&actors.Ended{Outcome: &messages.Outcome{Cause: &messages.Cause{
			Kind: messages.CauseKind_CAUSE_DETACHED, Text: "the engine's actor is gone", Origin: r.engine.id.String(),
		}}}), nil
	}
}

// end keeps how the room ended.
func (r *room) end(e *actors.Ended) Result {
	cause := e.Outcome.GetCause()
	r.result = &Result{
		Complete: e.Outcome.GetComplete(), Excused: e.Excused, Kind: cause.GetKind(), Cause: causeText(cause),
		Bytes: e.Bytes, Copies: e.Copies, Took: r.engine.node.env.Clock.Now().Sub(r.since),
	}
	return *r.result
}

// causeText reads: aborted: the client went away (decode-1(...)).
func causeText(c *messages.Cause) string {
	if c == nil {
		return ""
	}
	text := c.Text
	if c.Origin != "" {
		text += " (" + c.Origin + ")"
	}
	return text
}

// Send is the prefill leg of one room.
type Send struct{ room }

// Receive is the decode leg of one room.
type Receive struct{ room }

// Open announces a room and takes source pages for it, waiting for them as long
// as the request says. *actors.RefusedError says why it cannot be opened.
func (p *Prefill) Open(ctx context.Context, q SendRequest) (*Send, error) {
	s := &Send{p.room(q.Room, q.Attempt)}
	err := s.open(ctx, func(opened func(*actors.Opened, error), ended func(*actors.Ended)) any {
		return &actors.OpenSend{Room: s.id, Handle: s.handle, Tokens: q.Tokens, Wait: q.Wait, Opened: opened, Ended: ended}
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Receive asks for a room and takes pages for it, waiting for them as long as the
// request says. *actors.RefusedError says why it cannot be opened.
func (d *Decode) Receive(ctx context.Context, q ReceiveRequest) (*Receive, error) {
	r := &Receive{d.room(q.Room, q.Attempt)}
	err := r.open(ctx, func(opened func(*actors.Opened, error), ended func(*actors.Ended)) any {
		return &actors.OpenReceive{
			Room: r.id, Handle: r.handle, Prefill: q.Prefill, PrefillDP: q.PrefillDP, Prefix: q.Prefix, Length: q.Length, Wait: q.Wait,
			Opened: opened, Ended: ended,
		}
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// open asks for the room. A caller whose context ends meanwhile does not leave a
// room behind: it is aborted.
func (r *room) open(ctx context.Context, message func(opened func(*actors.Opened, error), ended func(*actors.Ended)) any) error {
	type answer struct {
		opened *actors.Opened
		err    error
	}
	a, err := askEngine(ctx, r.engine, func(reply func(answer)) any {
		return message(
			func(o *actors.Opened, err error) { reply(answer{o, err}) },
			func(e *actors.Ended) { r.ended <- e },
		)
	})
	if err != nil {
		r.Abort("the caller stopped waiting for pages")
		r.Free()
		return err
	}
	r.opened, r.since = a.opened, r.engine.node.env.Clock.Now()
	return a.err
}

// Chunk says that the tokens before to are computed, so that they may be sent.
// The last chunk ends at the length of the request; the state and the metadata row
// have to be written before it. What does not fit fails the room.
func (s *Send) Chunk(to uint64) {
	s.chunk(&actors.SendChunk{Room: s.id, Handle: s.handle, To: to, Whole: true})
}

// ChunkLayers says that the layers below a number, at least 1, are computed for the
// tokens before to, while those above are not: a chunk may be sent layer by layer.
// Calls for a chunk go up, and Chunk ends it.
func (s *Send) ChunkLayers(to uint64, layers int) {
	s.chunk(&actors.SendChunk{Room: s.id, Handle: s.handle, To: to, Layers: layers})
}

func (s *Send) chunk(m *actors.SendChunk) { s.engine.node.env.System.Root.Send(s.engine.pid, m) }
