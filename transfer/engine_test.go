package transfer

import (
	"encoding/binary"
	"fmt"
	"time"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// send opens the prefill leg of an engine, as its caller does.
func (e *engine) send(wait time.Duration) {
	if e.machine != nil {
		e.step(Open{Wait: wait})
		return
	}
	if e.record != nil {
		return // the caller is answered from the record
	}
	e.beginSender(true, wait)
}

func (e *engine) beginSender(announced bool, wait time.Duration) {
	m, effects := NewSender(e.w.now, SenderConfig{Self: e.id, Room: e.w.room, Limits: e.w.limits, Announced: announced, Wait: wait})
	e.machine = m
	e.w.log("%s: begins %s", e.name, m.State())
	e.carry(effects)
	e.autoPair()
}

// receive opens the decode leg of an engine.
func (e *engine) receive(wait time.Duration) {
	e.prefix = e.w.setting.prefix[""]
	if p, ok := e.w.setting.prefix[e.name]; ok {
		e.prefix = p
	}
	m, effects, err := NewReceiver(e.w.now, ReceiverConfig{
		Self: e.id, Room: e.w.room, Limits: e.w.limits, Prefill: "p", PrefillDP: e.w.setting.dp - 1, Prefix: e.prefix, Length: e.w.setting.length,
		At: e.targetPages(), Wait: wait, NewGrantID: e.w.newGrantID,
	})
	if err != nil {
		e.w.t.Fatal(err)
	}
	e.machine = m
	e.w.log("%s: begins %s", e.name, m.State())
	e.carry(effects)
	e.autoPair()
	for _, v := range e.early.Take(e.w.now, e.w.room) {
		e.step(v)
	}
}

func (e *engine) autoPair() {
	if !e.w.setting.held {
		e.pair()
	}
}

func (e *engine) pair() {
	if e.machine != nil && !e.paired {
		e.paired = true
		e.step(Paired{Pairing: e.w.pairing})
		for _, other := range e.w.engines {
			if other.dead {
				e.step(PeerLost{Engine: other.id})
			}
		}
	}
}

func (w *world) newGrantID() rdma.GrantID {
	id := rdma.GrantID{0: byte(len(w.grants) + 1)}
	w.grants = append(w.grants, &placed{id: id})
	return id
}

// step gives an event to a machine, checks it, and carries out its effects.
func (e *engine) step(ev Event) {
	if e.machine == nil || e.dead {
		return
	}
	before := e.machine.State()
	valid := func() error { return nil }
	switch m := e.machine.(type) {
	case *Sender:
		valid, m.watch = m.valid, e.w.watch("sender")
	case *Receiver:
		valid, m.watch = m.valid, e.w.watch("receiver")
	}
	effects := e.machine.Step(e.w.now, ev)
	if after := e.machine.State(); after != before {
		e.w.log("%s: %s -> %s", e.name, before, after)
	}
	if err := valid(); err != nil {
		e.w.fail("%v", err)
	}
	e.carry(effects)
}

// watch notes the transitions of a kind of machine.
func (w *world) watch(kind string) func(from, to fmt.Stringer) {
	return func(from, to fmt.Stringer) { w.moved[kind+" "+from.String()+" "+to.String()] = true }
}

func (e *engine) carry(effects []Effect) {
	for _, effect := range effects {
		e.w.log("%s: %s", e.name, e.w.describe(effect))
		e.carryOne(effect)
	}
}

func (e *engine) carryOne(effect Effect) {
	w := e.w
	switch f := effect.(type) {
	case Send:
		w.transmit(e, w.engine(f.To), f.Body)
	case Post:
		w.post(e, f)
	case Quiesce:
		w.quiesce(e)
	case UnpinSources:
		e.unpinned++
		w.checkUnpin(e)
	case InstallGrant:
		w.install(e, f)
	case Revoke:
		w.revoke(e, f.Grant)
	case Fence:
		w.local = append(w.local, localEvent{do: func() { w.fenceOf(e, f) }})
	case ReadMeta:
		row := e.memory[e.kv.Meta.Offset:]
		id := messages.RoomID{Room: binary.LittleEndian.Uint64(row), Attempt: binary.LittleEndian.Uint32(row[8:])}
		w.later(e, MetaRead{Room: id})
	case Record:
		if e.record == nil {
			e.record = f.Outcome
		}
	case Finish:
		e.finishes = append(e.finishes, f)
		w.checkFinish(e, f)
	case ReleasePages:
		e.released++
		w.checkRelease(e)
	case Closed:
		e.machine, e.closed = nil, true
	case Quarantine:
		w.quarant++
	case Announced, Tombstone:
	default:
		w.fail("%s: effect %T", e.name, effect)
	}
}

// take is what an engine does with a message of the room.
func (e *engine) take(from *engine, body any) {
	if e.machine != nil {
		e.step(Received{From: from.id, Body: body})
		return
	}
	var reply any
	switch {
	case e.record == nil && e.prefill && Opens(body):
		e.paired = false
		e.beginSender(false, 0)
		e.step(Received{From: from.id, Body: body})
		return
	case e.record == nil && !e.prefill:
		if o, ok := body.(*messages.Outcome); ok && !o.GetComplete() {
			e.record = o // for the caller that comes later
		}
		if reply = e.early.Keep(e.w.now, e.w.room, from.id, body); reply == nil {
			reply = AnswerFor(nil, body)
		}
	default:
		reply = AnswerFor(e.record, body)
	}
	if reply != nil {
		e.w.log("%s: the engine answers %s", e.name, describeBody(reply))
		e.w.transmit(e, from, reply)
	}
}
