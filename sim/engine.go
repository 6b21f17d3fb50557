package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/pairing"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// What memory holds where nothing of a room is.
const (
	poisonSource = 0xE5 // of a prefill engine: not computed, or given back
	poisonTarget = 0xD7 // of a decode engine: not written, or given back
)

// engine is an engine's actor, as far as rooms see it.
type engine struct {
	p        *process
	name     string
	id       messages.Engine
	prefill  bool
	instance *kv.Instance
	kv       *kv.Engine
	memory   []byte
	pools    *actors.Pools
	taken    uint32 // pages that are nobody's of this day
	records  *actors.Records
	early    *transfer.EarlyVotes
	serving  bool
	ended    bool // another one has its place
	pairing  *messages.Pairing
	waits    bool // new rooms wait
	suspects []messages.Node
	rooms    []*room // oldest first
	held     []*room // that have ended, whose callers have not freed their pages
	waiting  actors.Waiting[*leg]
	queued   alarm
}

func newEngine(p *process, id messages.Engine, prefill bool, i *kv.Instance, k *kv.Engine) *engine {
	e := &engine{
		p: p, name: p.id.Name + "/" + id.Rank.String(), id: id, prefill: prefill, instance: i, kv: k, memory: make([]byte, k.RegionBytes[0]),
		pools: actors.NewPools(i, id.Rank, k.Meta.Rows), records: actors.NewRecords(256, time.Minute), early: transfer.NewEarlyVotes(p.w.plan.limits),
	}
	if p.w.plan.scattered {
		e.scatter()
	}
	e.queued = alarm{p: p, due: e.waiting.Due, tick: e.serve}
	e.poison(e.memory)
	return e
}

// scatters is how many pages somebody else has for the whole day, on a day on which the
// free ones are scattered: a run of two, one that is taken, and so on.
const scatters = 3

func (e *engine) scatter() {
	tokens := uint64(decodePageTokens)
	if e.prefill {
		tokens = prefillPageTokens
	}
	var free []kv.Placement
	for range scatters {
		two, ok := e.pools.Take(0, 2*tokens)
		if !ok {
			break
		}
		free = append(free, two)
		if _, ok = e.pools.Take(0, tokens); ok {
			e.taken++
		}
	}
	for _, at := range free {
		e.pools.Give(at)
	}
}

func (e *engine) poison(b []byte) {
	with := byte(poisonTarget)
	if e.prefill {
		with = poisonSource
	}
	for i := range b {
		b[i] = with
	}
}

func (e *engine) attached(id messages.Engine) {
	if id == e.id {
		e.serving = true
		e.serve()
	}
}

// died: its process did. The callers are gone with it.
func (e *engine) died() {
	for _, r := range e.rooms {
		if r.leg != nil {
			r.leg.engineDied()
		}
	}
	for _, r := range e.held {
		if r.leg != nil {
			r.leg.engineDied()
		}
	}
	for _, l := range e.waiting.Remove(func(*leg) bool { return true }) {
		l.engineDied()
	}
}

func (e *engine) room(id messages.RoomID) *room {
	for _, r := range e.rooms {
		if r.id == id {
			return r
		}
	}
	return nil
}

// holds says whether a room still holds its pages, or its caller does.
func (e *engine) holds(r *room) bool { return r.holding }

// peer is the instance on the other side; there are two.
func (e *engine) peer() string {
	if e.prefill {
		return "d"
	}
	return "p"
}

func (e *engine) onPairUp(p *messages.Pairing) {
	e.pairing, e.waits = p, false
	for _, r := range slices.Clone(e.rooms) {
		e.pair(r)
	}
}

// pair gives a room its pairing, if there is one now.
func (e *engine) pair(r *room) {
	if e.pairing == nil || r.pairing != nil || r.peer == "" || !e.prefill && e.waits {
		return
	}
	r.pairing = e.pairing
	r.step(transfer.Paired{Pairing: e.pairing})
	for _, node := range e.suspects {
		if at := r.at(node); len(at) > 0 {
			r.step(transfer.Suspect{Engines: at, Suspect: true})
		}
	}
}

func (e *engine) onPairDown(d pairing.PairDown) {
	if e.p.w.bug("pair-kept") {
		return
	}
	e.pairing, e.waits = nil, false
	for _, r := range slices.Clone(e.rooms) {
		if r.peer != "" {
			r.step(transfer.Unpaired{Instance: r.peer, Cause: d.Cause})
		}
	}
}

func (e *engine) onEngineLost(l pairing.EngineLost) {
	if l.Engine == e.id {
		e.ended = true
		e.p.w.fail("replaced", "engine %s was replaced while its process lives", e.id)
		return
	}
	for _, r := range slices.Clone(e.rooms) {
		if r.pairing == nil {
			continue
		}
		if m, ok := r.pairing.Member(l.Engine.Instance == r.pairing.Prefill, l.Engine.Rank); ok && m.Engine == l.Engine {
			r.step(transfer.PeerLost{Engine: l.Engine, Cause: l.Cause})
		}
	}
}

func (e *engine) onSuspect(node messages.Node, suspect bool) {
	e.suspects = slices.DeleteFunc(e.suspects, func(n messages.Node) bool { return n == node })
	if suspect {
		e.suspects = append(e.suspects, node)
	}
	for _, r := range slices.Clone(e.rooms) {
		if at := r.at(node); len(at) > 0 {
			r.step(transfer.Suspect{Engines: at, Suspect: suspect})
		}
	}
}

func (e *engine) onLinkFenced(node messages.Node, f pairing.FencedHere) {
	for _, r := range slices.Clone(e.rooms) {
		if at := r.at(node); len(at) > 0 {
			if e.p.w.bug("open-grants-dropped") {
				f.Open = nil
			}
			r.step(transfer.Fenced{Engines: at, Generation: f.Generation, Open: f.Open})
		}
	}
}

// arrive takes a message of a room, as the actor of an engine does.
func (e *engine) arrive(node messages.Node, wire *messages.Room) {
	if e.ended || !e.serving {
		return
	}
	id, from, body := wire.ID(), wire.GetFrom().Engine(), wire.Unwrap()
	reply := func(body any) {
		if body != nil {
			e.send(node, messages.NewRoom(id, e.id, from, body))
		}
	}
	if to := wire.GetTo().Engine(); to != e.id && !e.p.w.bug("target-incarnation") {
		if _, ok := body.(*messages.Answer); !ok {
			reply(&messages.Answer{Field: "to", Got: to.String(), Want: e.id.String()})
		}
		return
	}
	r := e.room(id)
	if r == nil {
		if record := e.records.Get(e.p.time(), id); record != nil {
			reply(transfer.AnswerFor(record, body))
			return
		}
	}
	if !e.knows(r, node, from) {
		return
	}
	if r == nil && !e.admits(id, from, body, reply) {
		return
	}
	if r = e.room(id); r == nil && e.prefill {
		r = e.beginSend(id, nil)
	}
	if r == nil {
		e.keep(id, from, body, reply)
		return
	}
	if r.peer == "" && from.Instance != e.id.Instance {
		r.peer = from.Instance
		e.pair(r)
	}
	if _, ok := body.(*messages.Grant); ok {
		r.granted = true
	}
	r.step(transfer.Received{From: from, Body: body})
}

// knows says whether the message is from an engine of a peer, where that lives.
func (e *engine) knows(r *room, node messages.Node, from messages.Engine) bool {
	p := e.pairing
	if r != nil && r.pairing != nil {
		p = r.pairing
	}
	if p == nil {
		return false
	}
	m, ok := p.Member(from.Instance == p.Prefill, from.Rank)
	return ok && m.Engine == from && m.Node == node
}

// admits says whether a message may open a room, or be kept for one that is to come.
func (e *engine) admits(id messages.RoomID, from messages.Engine, body any, reply func(any)) bool {
	if newest, ok := e.newest(id.Room); ok && newest != id.Attempt && !e.p.w.bug("attempt-ignored") {
		if id.Attempt < newest {
			reply(transfer.AnswerFor(e.superseded(id, newest), body))
			return false
		}
		if r := e.earlier(id); r != nil {
			r.step(transfer.Abort{Cause: e.superseded(r.id, id.Attempt).Cause})
			return false
		}
	}
	opens := transfer.Opens(body)
	if !e.prefill {
		switch b := body.(type) {
		case *messages.Landed, *messages.Failed:
			opens = true
		case *messages.Outcome:
			opens = !b.GetComplete()
		}
	}
	if !opens {
		reply(transfer.AnswerFor(nil, body))
	}
	return opens
}

// keep holds what comes for a room that its caller has not opened.
func (e *engine) keep(id messages.RoomID, from messages.Engine, body any, reply func(any)) {
	if o, ok := body.(*messages.Outcome); ok {
		if e.p.w.bug("unknown-failure-forgotten") {
			reply(&messages.OutcomeAck{})
			return
		}
		if from.Instance == e.id.Instance {
			e.records.Put(e.p.time(), id, from.Instance, o)
			reply(&messages.OutcomeAck{})
		}
		return
	}
	ack := e.early.Keep(e.p.time(), id, from, body)
	if e.p.w.bug("votes-dropped") {
		e.early.Take(e.p.time(), id)
	}
	reply(ack)
}

func (e *engine) newest(number uint64) (uint32, bool) {
	best, found := e.records.Newest(number)
	for _, r := range e.rooms {
		if r.id.Room == number && (!found || r.id.Attempt > best) {
			best, found = r.id.Attempt, true
		}
	}
	return best, found
}

// earlier is an earlier attempt that has no outcome yet.
func (e *engine) earlier(id messages.RoomID) *room {
	for _, r := range e.rooms {
		if r.id.Room == id.Room && r.id.Attempt < id.Attempt && r.outcome == nil {
			return r
		}
	}
	return nil
}

func (e *engine) superseded(id messages.RoomID, by uint32) *messages.Outcome {
	return &messages.Outcome{Cause: e.cause(messages.CauseKind_CAUSE_SUPERSEDED, fmt.Sprintf("attempt %d has begun", by))}
}

func (e *engine) cause(kind messages.CauseKind, text string) *messages.Cause {
	return &messages.Cause{Kind: kind, Text: text, Origin: e.id.String()}
}

// send sends a room message to a node, or to another engine of this one.
func (e *engine) send(node messages.Node, m *messages.Room) {
	if node == e.p.id {
		e.p.deliver(node, m)
		return
	}
	e.p.soon(func() { e.p.submit(node, m) })
}

// open opens a leg for its caller, or lets it wait for pages.
func (e *engine) open(l *leg) {
	if why := e.refusal(l); why != nil {
		l.refused(why)
		return
	}
	if r := e.earlier(l.id); r != nil {
		r.step(transfer.Abort{Cause: e.superseded(r.id, l.id.Attempt).Cause})
	}
	e.waiting.Add(l, e.p.time().Add(e.p.w.plan.limits.Wait))
	e.serve()
}

// refusal is why a leg is not opened.
func (e *engine) refusal(l *leg) *messages.Cause {
	switch {
	case e.ended || !e.serving:
		return e.cause(messages.CauseKind_CAUSE_DETACHED, "not attached")
	case e.pools.TooLarge(l.prefix, l.length) != "":
		return e.cause(messages.CauseKind_CAUSE_NO_CAPACITY, e.pools.TooLarge(l.prefix, l.length))
	}
	if r := e.room(l.id); r != nil && r.leg != nil {
		panic("a leg is opened twice")
	}
	return e.over(l.id)
}

// over is how a room has ended here already.
func (e *engine) over(id messages.RoomID) *messages.Cause {
	if o := e.records.Get(e.p.time(), id); o != nil {
		if o.GetCause() != nil {
			return o.Cause
		}
		return e.cause(messages.CauseKind_CAUSE_PROTOCOL, "it has completed")
	}
	if newest, ok := e.newest(id.Room); ok && newest > id.Attempt {
		return e.superseded(id, newest).Cause
	}
	return nil
}

// serve opens legs that wait, as far as the pools go.
func (e *engine) serve() {
	if e.ended || e.p.dead {
		return
	}
	for _, l := range e.waiting.Expired(e.p.time()) {
		e.giveUp(l, e.cause(messages.CauseKind_CAUSE_NO_CAPACITY, "waited for pages"))
	}
	for {
		l, ok := e.waiting.First(func(l *leg) bool { return e.earlier(l.id) == nil })
		if !ok {
			break
		}
		if why := e.over(l.id); why != nil {
			e.dequeue(l)
			l.refused(why)
			continue
		}
		at, ok := e.pools.Take(l.prefix, l.length)
		if !ok {
			break
		}
		e.dequeue(l)
		e.begin(l, at)
	}
	e.queued.arm()
}

func (e *engine) dequeue(l *leg) { e.waiting.Remove(func(x *leg) bool { return x == l }) }

// giveUp ends the waiting of a leg. Prefill may have the room already: then it hears.
func (e *engine) giveUp(l *leg, why *messages.Cause) {
	if r := e.room(l.id); r != nil {
		r.step(transfer.Abort{Cause: why})
	}
	l.refused(why)
	if e.prefill || e.pairing == nil || e.room(l.id) != nil {
		e.records.Put(e.p.time(), l.id, e.peer(), &messages.Outcome{Cause: why})
		return
	}
	e.decline(l, why)
}

// begin opens a room for a leg that has its pages.
func (e *engine) begin(l *leg, at kv.Placement) {
	if !e.prefill {
		e.clearMeta(at.MetaRow)
		r := e.newRoom(l.id, l)
		r.place, r.holding, r.peer = at, true, e.peer()
		e.receive(r, l.prefix, l.length, at, nil)
		return
	}
	if r := e.room(l.id); r != nil { // a grant came first
		r.leg, l.room = l, r
		r.place, r.holding = at, true
		r.step(transfer.Open{Wait: e.p.w.plan.limits.Wait})
		l.opened()
		return
	}
	r := e.beginSend(l.id, l)
	r.place, r.holding = at, true
	l.opened()
}

func (e *engine) beginSend(id messages.RoomID, l *leg) *room {
	r := e.newRoom(id, l)
	m, effects := transfer.NewSender(e.p.time(), transfer.SenderConfig{Self: e.id, Room: id, Limits: e.p.w.plan.limits, Announced: l != nil})
	r.machine = m
	r.carry(effects)
	r.alarm.arm()
	return r
}

// decline is a receiver without pages, which only tells the writers.
func (e *engine) decline(l *leg, why *messages.Cause) {
	r := e.newRoom(l.id, nil)
	r.peer, r.declines = e.peer(), true
	e.receive(r, l.length, l.length, kv.Placement{}, why)
}

func (e *engine) receive(r *room, prefix, length uint64, at kv.Placement, giveUp *messages.Cause) {
	m, effects, err := transfer.NewReceiver(e.p.time(), transfer.ReceiverConfig{
		Self: e.id, Room: r.id, Limits: e.p.w.plan.limits, Prefill: "p", Prefix: prefix, Length: length, At: at, NewGrantID: e.p.w.newGrantID,
	})
	if err != nil {
		panic(err)
	}
	r.machine = m
	r.carry(effects)
	if giveUp != nil {
		r.step(transfer.Abort{Cause: giveUp})
	} else if r.leg != nil {
		r.leg.opened()
	}
	e.pair(r)
	for _, v := range e.early.Take(e.p.time(), r.id) {
		r.step(v)
	}
	r.alarm.arm()
}

func (w *world) newGrantID() (id rdma.GrantID) {
	w.grants++
	n := w.grants
	if w.bug("grant-ids-reused") {
		n = w.grants % 3
	}
	binary.BigEndian.PutUint64(id[:], n)
	return id
}

func (e *engine) newRoom(id messages.RoomID, l *leg) *room {
	r := &room{engine: e, id: id, leg: l, name: id.String(), grants: map[rdma.GrantID]bool{}}
	r.alarm = alarm{p: e.p, due: r.due, tick: func() { r.step(transfer.Tick{}) }}
	if l != nil {
		l.room = r
	}
	e.rooms = append(e.rooms, r)
	return r
}

// giveBack returns the pages of a room of which both have let go.
func (e *engine) giveBack(r *room) {
	r.holding = false
	e.held = slices.DeleteFunc(e.held, func(x *room) bool { return x == r })
	e.eachRow(r.place, 0, tokensMost, func(_ kv.Row, b []byte) { e.poison(b) })
	e.eachState(r.place, tokensMost, func(_ kv.Row, b []byte) { e.poison(b) })
	e.pools.Give(r.place)
	if !e.p.w.bug("waiters-forgotten") {
		e.serve()
	}
}

// eachRow visits the rows of a placement.
func (e *engine) eachRow(at kv.Placement, from, to uint64, visit func(kv.Row, []byte)) {
	e.instance.EachRow(e.id.Rank, &at, from, to, func(row kv.Row) { visit(row, e.memory[row.Offset:][:row.Component.HeadBytes]) })
}

// eachState visits the state of a request.
func (e *engine) eachState(at kv.Placement, length uint64, visit func(kv.Row, []byte)) {
	e.instance.EachState(e.id.Rank, at.Slot, length, func(row kv.Row) { visit(row, e.memory[row.Offset:][:row.Component.HeadBytes]) })
}

func (e *engine) metaRow(i uint32) []byte {
	return e.memory[e.kv.Meta.Offset+uint64(i)*e.kv.Meta.RowBytes:][:e.kv.Meta.RowBytes]
}

func (e *engine) clearMeta(i uint32) { clear(e.metaRow(i)) }

func (e *engine) stampMeta(i uint32, id messages.RoomID) {
	binary.LittleEndian.PutUint64(e.metaRow(i), id.Room)
	binary.LittleEndian.PutUint32(e.metaRow(i)[8:], id.Attempt)
}

func (e *engine) readMeta(i uint32) messages.RoomID {
	return messages.RoomID{Room: binary.LittleEndian.Uint64(e.metaRow(i)), Attempt: binary.LittleEndian.Uint32(e.metaRow(i)[8:])}
}
