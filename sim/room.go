package sim

import (
	"fmt"
	"slices"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transfer"
	"kvferry/transport/rdma"
)

// room is a room in one engine: its machine, and what the engine holds for it.
type room struct {
	engine   *engine
	id       messages.RoomID
	name     string
	machine  transfer.Machine // nil: closed
	alarm    alarm
	leg      *leg // its caller; nil: only a grant has opened it, or it declines
	pairing  *messages.Pairing
	peer     string
	place    kv.Placement
	holding  bool // pages are taken for it
	letGo    bool // the machine has
	freed    bool // the caller has
	declines bool
	outcome  *messages.Outcome
	closed   bool
	ending   bool                  // its writes are being quiesced, and then it is forgotten
	grants   map[rdma.GrantID]bool // that may be written under
	granted  bool                  // a receiver counts on it; else it is no participant
}

func (r *room) who() string { return r.engine.name }

// at is the engines of the room's pairing on a node.
func (r *room) at(node messages.Node) (engines []messages.Engine) {
	if r.pairing == nil {
		return nil
	}
	for _, side := range [][]messages.Member{r.pairing.PrefillEngine, r.pairing.DecodeEngine} {
		for _, m := range side {
			if m.Node == node && m.Engine != r.engine.id {
				engines = append(engines, m.Engine)
			}
		}
	}
	return engines
}

// step gives an event to the machine, and does what it asks for.
func (r *room) step(ev transfer.Event) {
	if r.machine == nil || r.engine.p.dead {
		return
	}
	w := r.engine.p.w
	before := r.machine.State()
	effects := r.machine.Step(r.engine.p.time(), ev)
	if after := r.machine.State(); after != before {
		w.tell(r.who(), "", r.name, "%s -> %s (%T)", before, after, ev)
	}
	r.carry(effects)
	r.alarm.arm()
}

// due is when its machine is to be woken.
func (r *room) due() time.Time {
	if r.machine == nil {
		return time.Time{}
	}
	return r.machine.Deadline()
}

func (r *room) carry(effects []transfer.Effect) {
	for _, effect := range effects {
		r.do(effect)
	}
}

// do carries out one effect, as the actor of an engine does.
func (r *room) do(effect transfer.Effect) {
	e, p := r.engine, r.engine.p
	w := p.w
	switch f := effect.(type) {
	case transfer.Send:
		r.send(f)
	case transfer.Post:
		r.post(f)
	case transfer.Quiesce:
		p.soon(func() { p.card.quiesce(r) })
	case transfer.UnpinSources:
		r.unpin()
	case transfer.InstallGrant:
		node := r.nodeOf(f.Writer)
		r.grants[f.Grant] = true
		p.soon(func() { p.card.install(r, f.Grant, node, f.Ranges) })
	case transfer.Revoke:
		p.soon(func() { p.card.revoke(f.Grant) })
	case transfer.Fence:
		node := r.nodeOf(f.Peer)
		p.soon(func() { p.fenceLink(node, f.Generation, "room "+r.name) })
	case transfer.ReadMeta:
		id := e.readMeta(f.Row)
		p.soon(func() { r.step(transfer.MetaRead{Room: id}) })
	case transfer.Record:
		if !w.bug("records-forgotten") {
			e.records.Put(p.time(), r.id, r.peer, f.Outcome)
		}
		r.outcome = f.Outcome
	case transfer.Tombstone:
		if !w.bug("no-tombstone") {
			e.records.Put(p.time(), r.id, r.peer, f.Outcome)
		}
	case transfer.Finish:
		r.finish(f)
	case transfer.ReleasePages:
		r.release()
	case transfer.Quarantine:
		w.covered.add(coverQuarantine)
		w.tell(r.who(), "", r.name, "quarantine: %s", f.Reason)
	case transfer.Closed:
		r.close()
	case transfer.Announced:
	default:
		panic(fmt.Sprintf("a room asked for %T", effect))
	}
}

func (r *room) send(f transfer.Send) {
	e := r.engine
	p := r.pairing
	if p == nil {
		p = e.pairing
	}
	if p == nil {
		return // nobody knows where it is: it is repeated
	}
	m, ok := p.Member(f.To.Instance == p.Prefill, f.To.Rank)
	if !ok || m.Engine != f.To {
		return
	}
	e.p.w.tell(r.who(), m.Node.Name, r.name, "says %T", f.Body)
	e.send(m.Node, messages.NewRoom(r.id, e.id, f.To, f.Body))
}

func (r *room) nodeOf(x messages.Engine) messages.Node {
	m, ok := r.pairing.Member(x.Instance == r.pairing.Prefill, x.Rank)
	if !ok || m.Engine != x {
		panic(fmt.Sprintf("room %s speaks of %s, which is not in its pairing", r.id, x))
	}
	return m.Node
}

func (r *room) post(f transfer.Post) {
	w := r.engine.p.w
	if r.pairing == nil {
		w.fail("early-post", "room %s posts before it is paired", r.id)
		return
	}
	if !r.holding {
		w.fail("read-after-free", "room %s posts from pages that it does not hold", r.id)
		return
	}
	node := r.nodeOf(f.To)
	r.engine.p.soon(func() { r.engine.p.card.post(r, node, f.Write, f.Grant, f.Copies) })
}

// What the card and the links tell.

func (r *room) onGrantInstalled(id rdma.GrantID) { r.step(transfer.GrantInstalled{Grant: id}) }

func (r *room) onArrived(id rdma.GrantID, g rdma.Generation, a rdma.Arrival, n uint64) {
	r.step(transfer.Arrived{Grant: id, Generation: g, Arrival: a, Bytes: n})
}

func (r *room) onRevoked(id rdma.GrantID, closed bool) {
	r.step(transfer.Revoked{Grant: id, Closed: closed})
}

// grantClosed: nothing lands under it any more.
func (r *room) grantClosed(id rdma.GrantID) { delete(r.grants, id) }

func (r *room) onNotTaken(id rdma.WriteID, err error) { r.step(transfer.NotTaken{Write: id, Err: err}) }

func (r *room) onWritten(c completion) {
	if c.outcome == rdma.Unknown && r.engine.p.w.bug("repost-without-fence") {
		defer r.step(transfer.NewGeneration{Engines: r.at(c.peer), Number: c.gen.Number + 1})
	}
	r.step(transfer.Written{Write: c.id, Generation: c.gen, Outcome: c.outcome, Err: c.err, Arrivals: c.arrivals})
}

func (r *room) onLinkUp(node messages.Node, number uint64) {
	if at := r.at(node); len(at) > 0 {
		r.step(transfer.NewGeneration{Engines: at, Number: number})
	}
}

func (r *room) onQuiesced(unknown []rdma.Generation) {
	if r.ending {
		r.forget()
		return
	}
	r.step(transfer.Quiesced{Unknown: unknown})
}

// unpin is the machine letting go of source pages.
func (r *room) unpin() {
	if !r.holding || r.letGo {
		return // a grant alone had opened it
	}
	r.letGo = true
	r.give()
}

// release is the machine letting go of target pages.
func (r *room) release() {
	w := r.engine.p.w
	if r.declines {
		return
	}
	if r.letGo && (w.bug("free-on-abort") || w.bug("release-by-deadline")) {
		return
	}
	if r.letGo {
		w.fail("released-twice", "room %s releases its pages twice", r.id)
		return
	}
	// A grant may be open still: its writer has said that it is quiet, or that all has
	// landed. What comes all the same is a violation when it does.
	for id := range r.grants {
		if g := r.engine.p.card.grants[id]; g != nil {
			g.released = true
		}
	}
	r.letGo = true
	r.give()
}

// give returns the pages when both have let go.
func (r *room) give() {
	if !r.letGo {
		return
	}
	if r.freed || r.leg == nil || r.engine.p.w.bug("free-ignored") {
		r.engine.giveBack(r)
		return
	}
	if !slices.Contains(r.engine.held, r) {
		r.engine.held = append(r.engine.held, r)
	}
}

// free is the caller letting go.
func (r *room) free() {
	r.freed = true
	if r.holding {
		r.give()
	}
}

func (r *room) finish(f transfer.Finish) {
	w := r.engine.p.w
	r.outcome = f.Outcome
	w.tell(r.who(), "", r.name, "finishes: %s", outcomeText(f))
	w.note('f', r.id.Room, uint64(r.id.Attempt), uint64(r.engine.p.host.index))
	w.truth(r.id).heard(r, f)
	if r.leg != nil {
		r.leg.finished(f)
	}
	failed := !f.Outcome.GetComplete() && r.holding && !r.letGo
	switch {
	case failed && !r.engine.prefill && w.bug("free-on-abort"), failed && r.engine.prefill && w.bug("unpin-early"):
		r.letGo = true
		r.give()
	case failed && w.bug("release-by-deadline"):
		w.after(300*time.Millisecond, func() {
			if !r.letGo && r.holding {
				r.letGo = true
				r.give()
			}
		})
	}
}

func outcomeText(f transfer.Finish) string {
	text := "failed: " + f.Outcome.GetCause().GetText()
	if f.Outcome.GetComplete() {
		text = "complete"
	}
	if f.Excused {
		text += ", excused"
	}
	return text
}

// close ends the room's actor; what it has in flight is quiesced before it is forgotten.
func (r *room) close() {
	r.machine, r.closed = nil, true
	if r.engine.prefill {
		r.ending = true
		p := r.engine.p
		p.soon(func() { p.card.quiesce(r) })
		return
	}
	r.forget()
}

func (r *room) forget() {
	e := r.engine
	e.rooms = slices.DeleteFunc(e.rooms, func(x *room) bool { return x == r })
	if r.holding && !r.letGo { // of a sender that was closed without unpinning
		r.letGo = true
		r.give()
	}
	e.serve()
}
