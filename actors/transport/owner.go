package transport

import (
	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
	"kvferry/messages"
)

// ending is an engine whose actor is gone, until all it had in flight is ended.
type ending struct {
	owner  string // PID id
	done   func(open int)
	tags   int // that have yet to be quiesced
	grants int // that have yet to be revoked
	memory []*messages.Region
	open   int // that a revoke left open, and that are open still
}

// onEndOwner quiesces and revokes what a dead or stopped engine had in flight,
// then deregisters its memory.
func (a *Actor) onEndOwner(c actor.Context, m *actors.EndOwner) {
	// Its memory is no longer found by its name, which another engine may have before
	// the last grant is closed.
	e := &ending{owner: m.Owner.Id, done: m.Done, memory: a.memory[m.Owner.Id]}
	delete(a.memory, e.owner)
	a.endings[e] = true
	for id, t := range a.tags {
		if t.of == e.owner && t.ending == nil {
			e.tags++
			t.ending = e
			a.onQuiesceRoom(c, &actors.QuiesceRoom{Owner: m.Owner, Room: t.room, Tag: id})
		}
	}
	for id, g := range a.grants {
		if g.owner.Id == e.owner && g.ending == nil {
			e.grants++
			g.ending = e
			a.onRevokeGrant(c, &actors.RevokeGrant{Owner: m.Owner, Room: g.room, Grant: id})
		}
	}
	a.endIfDone(e)
}

// endIfDone deregisters the memory when nothing of the engine is in flight. That a
// grant is open is told; the memory goes when it is closed, if ever.
func (a *Actor) endIfDone(e *ending) {
	if e.tags > 0 || e.grants > 0 {
		return
	}
	if e.open == 0 && a.endings[e] {
		a.deregister(e.memory)
		delete(a.endings, e)
	}
	if e.done != nil {
		done := e.done
		e.done = nil
		done(e.open)
	}
}
