package pairing

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"kvferry/kv"
	"kvferry/messages"
)

// pair is two instances, one of which has an engine on this node.
type pair struct {
	name pairName

	// fit is the answer for these two rosters; nil before there are whole ones.
	fit           *kv.Fit
	prefill, over messages.RosterHash

	word   *messages.Readiness                // ours; replaced, never changed
	turned map[messages.Node]*messages.Reason // nodes with an engine whose place another one holds
	waits  []*messages.Reason                 // what else the pair waits for

	// told is the pairing that was told to be up; waiting: it is held back.
	told    *messages.Pairing
	waiting bool
	unfit   bool // it was told that the rosters do not work together
}

// maxWordReasons bounds what one word says.
const maxWordReasons = 64

// review considers every pair.
func (d *Directory) review() {
	var prefills, decodes []*roster
	for _, instance := range sorted(d.rosters, compareStrings) {
		r := d.rosters[instance]
		if r.role == messages.Role_ROLE_PREFILL {
			prefills = append(prefills, r)
		} else {
			decodes = append(decodes, r)
		}
	}
	d.contested = d.contested[:0]
	d.inOrder(func(s *seat) {
		if s.holder != nil && len(s.newcomers) > 0 {
			d.contested = append(d.contested, s)
		}
	})
	alive := map[pairName]bool{}
	for _, p := range prefills {
		for _, q := range decodes {
			if p.local || q.local {
				alive[pairName{p.instance, q.instance}] = true
			}
		}
	}
	for _, name := range sorted(d.pairs, pairName.compare) {
		if !alive[name] {
			d.bury(d.pairs[name])
		}
	}
	for _, p := range prefills {
		for _, q := range decodes {
			if name := (pairName{p.instance, q.instance}); alive[name] {
				d.consider(name, p, q)
			}
		}
	}
	for _, instance := range sorted(d.causes, compareStrings) {
		if d.rosters[instance] == nil {
			delete(d.causes, instance)
		}
	}
}

// bury ends a pair of which an instance is gone.
func (d *Directory) bury(p *pair) {
	d.down(p, d.rosters[p.name.prefill], d.rosters[p.name.decode])
	if p.unfit {
		d.tellUnfit(p, false)
	}
	delete(d.pairs, p.name)
	for _, n := range d.neighbors {
		delete(n.owed, p.name)
	}
}

// down tells that the rosters of a pairing have changed.
func (d *Directory) down(p *pair, prefill, decode *roster) {
	if p.told == nil {
		return
	}
	instance := p.name.decode
	if prefill == nil || !prefill.whole() || prefill.hash != p.told.PrefillRoster {
		instance = p.name.prefill
	}
	cause := d.causes[instance]
	if cause == nil {
		cause = d.cause(messages.CauseKind_CAUSE_ROSTER_CHANGED, "the roster of instance "+instance+" changed")
	}
	d.emit(PairDown{Prefill: p.name.prefill, Decode: p.name.decode, Cause: cause})
	p.told, p.waiting = nil, false
}

// consider says what is to be said of one pair now.
func (d *Directory) consider(name pairName, prefill, decode *roster) {
	p := d.pairs[name]
	if p == nil {
		p = &pair{name: name}
		d.pairs[name] = p
	}
	whole := prefill.whole() && decode.whole()
	if p.told != nil && (!whole || p.told.PrefillRoster != prefill.hash || p.told.DecodeRoster != decode.hash) {
		d.down(p, prefill, decode)
	}
	changed := false
	if whole && (p.fit == nil || p.prefill != prefill.hash || p.over != decode.hash) {
		p.fit = kv.Match(prefill.kv, decode.kv)
		p.prefill, p.over = prefill.hash, decode.hash
		changed = true
	}
	if unfit := whole && !p.fit.Compatible(); p.unfit != unfit || unfit && changed {
		d.tellUnfit(p, unfit)
	}
	nodes := d.counterparts(prefill, decode)
	d.speakFor(p, prefill, decode, nodes)
	p.waits = d.waits(p, nodes)
	switch {
	case p.word.GetReady() && len(p.waits) == 0:
		d.up(p, prefill, decode)
	case p.told != nil && !p.waiting:
		p.waiting = true
		d.emit(PairWaiting{Prefill: name.prefill, Decode: name.decode, Reasons: append(slices.Clone(p.word.GetReasons()), p.waits...)})
	}
}

// tellUnfit tells why the rosters of a pair do not work together, or that it is
// not known of them any more.
func (d *Directory) tellUnfit(p *pair, unfit bool) {
	e := PairUnfit{Prefill: p.name.prefill, Decode: p.name.decode}
	if p.unfit = unfit; unfit {
		e.Reasons = fitReasons(p.fit)
	}
	d.emit(e)
}

// fitReasons are the reasons of a fit on the wire.
func fitReasons(f *kv.Fit) []*messages.Reason {
	var out []*messages.Reason
	for _, r := range f.Reasons() {
		out = append(out, &messages.Reason{Field: r.Field, Component: r.Component, Prefill: r.Prefill, Decode: r.Decode, Text: r.Text})
	}
	return out
}

func (d *Directory) up(p *pair, prefill, decode *roster) {
	if p.told != nil && !p.waiting {
		return
	}
	if p.told == nil {
		p.told = &messages.Pairing{
			Fit: p.fit, Prefill: p.name.prefill, Decode: p.name.decode,
			PrefillRoster: prefill.hash, DecodeRoster: decode.hash,
			PrefillEngine: prefill.members(), DecodeEngine: decode.members(),
		}
	}
	p.waiting = false
	d.emit(PairUp{Pairing: p.told})
}

// counterparts are the nodes that this one has to reach for the pair, and that
// have to reach it: those of the other instance, and for a decode engine its
// siblings, since the decider has to reach all receivers.
func (d *Directory) counterparts(prefill, decode *roster) []messages.Node {
	var nodes []messages.Node
	if prefill.local {
		nodes = append(nodes, decode.nodes...)
	}
	if decode.local {
		nodes = append(append(nodes, prefill.nodes...), decode.nodes...)
	}
	slices.SortFunc(nodes, compareNodes)
	nodes = slices.Compact(nodes)
	return slices.DeleteFunc(nodes, func(n messages.Node) bool { return n == d.c.Self })
}

// speakFor makes our word on a pair, if it has changed, and who is owed it.
func (d *Directory) speakFor(p *pair, prefill, decode *roster, nodes []messages.Node) {
	w := &messages.Readiness{Prefill: p.name.prefill, Decode: p.name.decode}
	if prefill.whole() {
		w.PrefillRoster = prefill.hash[:]
	}
	if decode.whole() {
		w.DecodeRoster = decode.hash[:]
	}
	w.Reasons = append(prefill.reasons(), decode.reasons()...)
	if prefill.whole() && decode.whole() {
		w.Reasons = append(w.Reasons, fitReasons(p.fit)...)
	}
	w.Reasons = append(w.Reasons, shared(prefill, decode)...)
	w.Reasons = append(w.Reasons, d.unreached(nodes)...)
	w.Reasons = w.Reasons[:min(len(w.Reasons), maxWordReasons)]
	w.Ready = len(w.Reasons) == 0
	w.Sequence = p.word.GetSequence()
	turned := d.turned(p.name)
	if p.word == nil || !proto.Equal(w, p.word) || !maps.EqualFunc(turned, p.turned, func(a, b *messages.Reason) bool { return a.Text == b.Text }) {
		d.sequence++
		w.Sequence = d.sequence
		p.word, p.turned = w, turned
	}
	for _, n := range d.neighbors {
		if slices.Contains(nodes, n.node) || turned[n.node] != nil {
			if n.owed[p.name] == nil {
				n.owed[p.name] = &debt{}
			}
		} else {
			delete(n.owed, p.name)
		}
	}
}

// shared is the nodes that have engines of both instances. A node has no link with
// itself, so nothing could be sent there.
func shared(prefill, decode *roster) []*messages.Reason {
	var rs []*messages.Reason
	for _, node := range prefill.nodes {
		if slices.Contains(decode.nodes, node) {
			rs = append(rs, &messages.Reason{Field: "node", Prefill: node.String(), Decode: node.String(), Text: fmt.Sprintf(
				"prefill and decode engines are on the same node %s, which does not send to itself: attach them to different nodes", node)})
		}
	}
	return rs
}

// turned is the nodes whose engines of a pair are known here, and are not on the
// roster: they are told who is there.
func (d *Directory) turned(name pairName) map[messages.Node]*messages.Reason {
	var all map[messages.Node]*messages.Reason
	for _, s := range d.contested {
		if s.place.instance != name.prefill && s.place.instance != name.decode {
			continue
		}
		for _, c := range s.newcomers {
			if c.local || all[c.node] != nil {
				continue
			}
			if all == nil {
				all = map[messages.Node]*messages.Reason{}
			}
			all[c.node] = &messages.Reason{Field: "engine", Text: fmt.Sprintf(
				"engine %s: its place is held by %s on node %s", c.Engine, s.holder.Engine, s.holder.node)}
		}
	}
	return all
}

// wordFor is our word on a pair as one node is told it.
func (p *pair) wordFor(node messages.Node) *messages.Readiness {
	reason := p.turned[node]
	if reason == nil {
		return p.word
	}
	w := proto.Clone(p.word).(*messages.Readiness)
	w.Ready = false
	w.Reasons = append([]*messages.Reason{reason}, w.Reasons[:min(len(w.Reasons), maxWordReasons-1)]...)
	return w
}

// unreached is why this node does not reach some of these.
func (d *Directory) unreached(nodes []messages.Node) []*messages.Reason {
	var rs []*messages.Reason
	for _, node := range nodes {
		n := d.neighbors[node]
		switch {
		case n == nil || !n.up:
			rs = append(rs, &messages.Reason{Field: "link", Text: fmt.Sprintf("node %s has no connection with node %s", d.c.Self, node)})
		case n.suspect:
			rs = append(rs, &messages.Reason{Field: "link", Text: fmt.Sprintf("node %s gets no answer from node %s", d.c.Self, node)})
		case n.refusedBy != "":
			rs = append(rs, &messages.Reason{Field: "catalog", Text: fmt.Sprintf("node %s serves nothing of node %s: %s", node, d.c.Self, n.refusedBy)})
		}
	}
	return rs
}

// waits is what the other nodes have still to say.
func (d *Directory) waits(p *pair, nodes []messages.Node) []*messages.Reason {
	var rs []*messages.Reason
	for _, node := range nodes {
		var w *messages.Readiness
		if n := d.neighbors[node]; n != nil {
			w = n.words[p.name]
		}
		switch {
		case w == nil:
			rs = append(rs, &messages.Reason{Field: "readiness", Text: fmt.Sprintf("node %s has not said whether it is ready", node)})
		case !w.GetReady():
			for _, r := range w.GetReasons() {
				r := proto.Clone(r).(*messages.Reason)
				r.Text = fmt.Sprintf("node %s: %s", node, r.GetText())
				rs = append(rs, r)
			}
		case !bytes.Equal(w.GetPrefillRoster(), p.word.GetPrefillRoster()) || !bytes.Equal(w.GetDecodeRoster(), p.word.GetDecodeRoster()):
			rs = append(rs, &messages.Reason{Field: "readiness", Text: fmt.Sprintf("node %s is ready for other rosters", node)})
		}
	}
	return rs
}

// onReadiness takes a node's word on a pair.
func (d *Directory) onReadiness(from messages.Node, w *messages.Readiness) {
	if from == d.c.Self {
		return
	}
	n := d.neighbor(from)
	if n.superseded {
		return
	}
	if field, got, want := badWord(w); field != "" {
		d.emit(Ignored{From: from, Field: field, Got: got, Want: want})
		return
	}
	name := pairName{w.GetPrefill(), w.GetDecode()}
	known := n.words[name]
	if known == nil && len(n.words) >= d.c.Limits.Words {
		d.emit(Ignored{From: from, Field: "words", Got: fmt.Sprint(len(n.words) + 1), Want: fmt.Sprintf("at most %d", d.c.Limits.Words)})
		return
	}
	d.unchanged = known.GetSequence() >= w.GetSequence()
	if !d.unchanged {
		n.words[name] = w
		known = w
	}
	// Who says less than was said before has forgotten it, and hears how far it was.
	d.emit(SendTo{Node: from, Body: &messages.ReadinessAck{Prefill: name.prefill, Decode: name.decode, Sequence: known.GetSequence()}})
}

func badWord(w *messages.Readiness) (field, got, want string) {
	for _, f := range [...]struct {
		name string
		got  int
		lo   int
		hi   int
	}{
		{"readiness prefill", len(w.GetPrefill()), 1, maxName},
		{"readiness decode", len(w.GetDecode()), 1, maxName},
		{"readiness reasons", len(w.GetReasons()), 0, maxWordReasons},
	} {
		if f.got < f.lo || f.got > f.hi {
			return f.name, fmt.Sprint(f.got), fmt.Sprintf("%d to %d", f.lo, f.hi)
		}
	}
	const size = len(messages.RosterHash{})
	for _, h := range [...][]byte{w.GetPrefillRoster(), w.GetDecodeRoster()} {
		if len(h) != size && (len(h) != 0 || w.GetReady()) {
			return "readiness roster", fmt.Sprintf("%d bytes", len(h)), fmt.Sprint(size)
		}
	}
	if w.GetReady() == (len(w.GetReasons()) > 0) {
		return "readiness ready", fmt.Sprint(w.GetReady()), "true without reasons, or false with at least one"
	}
	return "", "", ""
}

func (d *Directory) onReadinessAck(from messages.Node, a *messages.ReadinessAck) {
	n := d.neighbors[from]
	name := pairName{a.GetPrefill(), a.GetDecode()}
	if n == nil || n.owed[name] == nil {
		return
	}
	if a.GetSequence() > d.sequence {
		// This Directory forgot how far an earlier one had counted.
		d.sequence = a.GetSequence()
		d.pairs[name].word = nil // to be said anew
		return
	}
	b := n.owed[name]
	b.acked = max(b.acked, a.GetSequence())
	d.unchanged = true
}
