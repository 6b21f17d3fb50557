package transfer

import (
	"fmt"
	"slices"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// grantState is where a grant is in this node.
type grantState uint8

const (
	grantInstalling grantState = iota
	grantLive
	grantRevoking
	grantOpen   // revoked, and the provider could not close it
	grantClosed // nothing lands under it any more
)

// writer is one prefill engine that this receiver has granted or excused.
type writer struct {
	engine messages.Engine
	named  bool // granted; else excused
	gates  bool // excused though a receiver with tokens to get would have elected it

	// Of a named writer.
	grant  rdma.GrantID
	state  grantState
	ranges []kv.Range // until they are installed
	bytes  uint64     // that the grant covers
	digest [32]byte
	sent   bool    // the grant has left
	counts []count // arrivals
	done   []count // arrivals that it counts on
	isDone bool

	fenced  []rdma.Generation // here, with this grant closed by it
	stuck   string            // why the last fence could not close the grant
	quiet   bool
	unknown []rdma.Generation // of quiet
	lost    bool

	acked bool // of an excused writer: it has acknowledged
}

// onPaired grants to the writers of the route and excuses the others.
func (r *Receiver) onPaired(ev Paired) {
	if r.pairing != nil {
		return
	}
	r.pairing = ev.Pairing
	routed := r.setRoute(kv.Route{PrefillDP: r.config.PrefillDP, DecodeDP: r.self.Rank.DP, Room: r.id.Room})
	if r.state == ReceiverTelling {
		r.declineLate()
		return
	}
	r.move(ReceiverGranting)
	switch {
	case ev.Pairing.Prefill != r.config.Prefill || !routed:
		r.fail(r.causeOf(messages.CauseKind_CAUSE_NOT_PAIRED, "no engine of %s dp %d can send to dp %d", r.config.Prefill, r.config.PrefillDP, r.self.Rank.DP))
		return
	case !r.isReceiver(r.self):
		r.fail(r.causeOf(messages.CauseKind_CAUSE_ROSTER_CHANGED, "the roster of %s does not have %s", ev.Pairing.Decode, r.self))
		return
	}
	r.elect()
	early := r.early
	r.early = nil
	for _, m := range early {
		r.onReceived(m)
	}
}

// elect plans for every writer, then installs the grants and excuses the rest.
func (r *Receiver) elect() {
	full := r.pairing.Fit.Candidates(r.route, r.self.Rank)
	named := r.pairing.Fit.Writers(r.route, r.self.Rank, r.config.Prefix, r.config.Length)
	nobody := r.electForAll(named)
	if n := r.parts(); n > r.limits.GrantParts {
		r.fail(r.causeOf(messages.CauseKind_CAUSE_NO_CAPACITY, "the pages of the room need a grant in %d parts, the limit is %d", n, r.limits.GrantParts))
		return
	}
	var writers []*writer
	for _, rank := range named {
		w, err := r.planFor(rank)
		if err != nil {
			r.fail(r.causeOf(messages.CauseKind_CAUSE_PLAN_DIFFERS, "plan for writer %s: %v", rank, err))
			return
		}
		writers = append(writers, w)
	}
	r.writers = writers
	for _, rank := range full {
		if !slices.Contains(named, rank) {
			r.addExcused(rank, true)
		}
	}
	for _, rank := range nobody {
		r.addExcused(rank, false)
	}
	for _, w := range r.writers {
		if !w.named {
			r.excuse(w)
			continue
		}
		r.emit(InstallGrant{Grant: w.grant, Writer: w.engine, Ranges: w.ranges})
		w.ranges = nil
	}
}

// electForAll is what the decider does for the whole room: it finds who is to
// hear the outcome, and returns the engines that nobody elected. own is whom it
// names itself. Whom other receivers excuse it does not know; those acknowledge
// an outcome too.
func (r *Receiver) electForAll(own []kv.Rank) (nobody []kv.Rank) {
	if !r.decides() {
		return nil
	}
	hear := slices.Clone(own)
	elected := r.pairing.Fit.Candidates(r.route, r.self.Rank)
	for _, e := range r.receivers {
		if e != r.self {
			r.participants = append(r.participants, e)
			hear = append(hear, r.pairing.Fit.Candidates(r.route, e.Rank)...)
		}
	}
	for _, rank := range r.pairing.Fit.Senders(r.route) {
		switch m, ok := r.pairing.Member(true, rank); {
		case !ok:
		case slices.Contains(hear, rank):
			r.participants = append(r.participants, m.Engine)
		case !slices.Contains(elected, rank):
			nobody = append(nobody, rank)
		}
	}
	return nobody
}

func (r *Receiver) planFor(rank kv.Rank) (*writer, error) {
	m, ok := r.pairing.Member(true, rank)
	if !ok {
		return nil, fmt.Errorf("the roster of %s has no such rank", r.pairing.Prefill)
	}
	pair, err := r.pairing.Fit.Pair(r.route, rank, r.self.Rank, r.config.Prefix, r.config.Length)
	if err != nil {
		return nil, err
	}
	ranges, err := pair.Targets(&r.config.At)
	if err != nil {
		return nil, err
	}
	for i := range ranges {
		r.hasMeta = r.hasMeta || ranges[i].Component == ""
	}
	return &writer{
		engine: m.Engine, named: true, grant: r.config.NewGrantID(), ranges: ranges, bytes: rangeBytes(ranges),
		digest: pair.Digest(r.pairing.PrefillRoster, r.pairing.DecodeRoster, ranges),
	}, nil
}

func (r *Receiver) addExcused(rank kv.Rank, gates bool) {
	if m, ok := r.pairing.Member(true, rank); ok {
		r.writers = append(r.writers, &writer{engine: m.Engine, gates: gates})
	}
}

func (r *Receiver) excuse(w *writer) {
	r.repeat(w.engine, topicExcused, rdma.GrantID{}, &messages.Excused{
		PrefillRoster: r.pairing.PrefillRoster[:], DecodeRoster: r.pairing.DecodeRoster[:],
	})
}

// onGrantInstalled lets the message that carries the grant leave, or closes a
// grant of a room that has ended meanwhile.
func (r *Receiver) onGrantInstalled(ev GrantInstalled) {
	w := r.writerBy(ev.Grant)
	if w == nil || w.state != grantInstalling {
		return
	}
	if ev.Err != nil {
		w.state = grantClosed // it was never in force
		r.fail(r.causeOf(messages.CauseKind_CAUSE_TRANSPORT, "grant for %s: %v", w.engine, ev.Err))
		return
	}
	w.state = grantLive
	if r.state == ReceiverDraining {
		r.revoke(w)
		return
	}
	w.sent = true
	r.emit(r.box.put(r.now, outKey{w.engine, topicGrant, w.grant}, func(now time.Time) []any { return r.grantParts(w, now) })...)
}

func (r *Receiver) parts() int {
	if r.runs == nil {
		for _, t := range r.config.At.Tables {
			for _, run := range kv.PackPages(t.Pages) {
				r.runs = append(r.runs, tableRun{t.Window, t.First, run})
			}
		}
	}
	return max(1, (len(r.runs)+r.limits.GrantRuns-1)/r.limits.GrantRuns)
}

// grantParts is a grant as it goes out now: each part within a message's bounds.
func (r *Receiver) grantParts(w *writer, now time.Time) []any {
	parts := r.parts()
	until := r.waitBy
	if !until.isSet() { // another writer has begun: what remains is of the writing
		until = r.absoluteBy
	}
	remaining := max(0, until.at.Sub(now))
	out := make([]any, 0, parts)
	for part := range parts {
		g := &messages.Grant{
			Id:            w.grant[:],
			PrefillRoster: r.pairing.PrefillRoster[:], DecodeRoster: r.pairing.DecodeRoster[:],
			Prefix: r.config.Prefix, Length: r.config.Length, RemainingMs: uint64(remaining / time.Millisecond),
			Digest: w.digest[:], Slot: r.config.At.Slot, MetaRow: r.config.At.MetaRow,
			Part: uint32(part), Parts: uint32(parts),
		}
		writeRuns(g, r.runs[part*r.limits.GrantRuns:min(len(r.runs), (part+1)*r.limits.GrantRuns)])
		out = append(out, g)
	}
	return out
}

// known tells the engine, once, that prefill has the room.
func (r *Receiver) known() {
	if !r.announced && !r.ended() {
		r.announced = true
		r.emit(Announced{})
	}
}

// declineLate tells the writers of a room that was dropped before it was paired.
func (r *Receiver) declineLate() {
	r.waitBy.clear()
	r.lingerBy.set(r.now.Add(r.limits.Linger))
	if !r.isReceiver(r.self) {
		return
	}
	if r.decides() {
		r.electForAll(r.pairing.Fit.Candidates(r.route, r.self.Rank))
		r.tellOutcome()
	} else {
		r.repeat(r.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: r.cause})
	}
	for _, rank := range r.pairing.Fit.Candidates(r.route, r.self.Rank) {
		if m, ok := r.pairing.Member(true, rank); ok {
			r.repeat(m.Engine, topicDeclined, rdma.GrantID{}, &messages.Declined{Cause: r.cause})
		}
	}
}
