package pairing

import (
	"fmt"
	"slices"

	"kvferry/messages"
)

// Pairs is every pair of a prefill and a decode instance that an engine of this
// node is part of, ordered by name.
func (d *Directory) Pairs() []PairStatus {
	var all []PairStatus
	for _, name := range sorted(d.pairs, pairName.compare) {
		p := d.pairs[name]
		prefill, decode := d.rosters[name.prefill], d.rosters[name.decode]
		all = append(all, PairStatus{
			Prefill: name.prefill, Decode: name.decode,
			State:       p.state(prefill, decode),
			PrefillHave: len(prefill.claims), PrefillWant: prefill.want, PrefillRoster: prefill.hash,
			DecodeHave: len(decode.claims), DecodeWant: decode.want, DecodeRoster: decode.hash,
			Reasons: append(slices.Clone(p.word.GetReasons()), p.waits...),
		})
	}
	return all
}

func (p *pair) state(prefill, decode *roster) PairState {
	switch {
	case !prefill.whole() || !decode.whole():
		return Gathering
	case !p.fit.Compatible():
		return Mismatched
	case p.told == nil || p.waiting:
		return Waiting
	}
	return Ready
}

// Engines is every engine that is known, ordered by instance and rank; of one
// rank the holder comes first, then the others in the order in which they came.
func (d *Directory) Engines() []EngineStatus {
	var all []EngineStatus
	d.inOrder(func(s *seat) {
		for _, c := range s.claims() {
			e := EngineStatus{Engine: c.Engine, Role: c.Role, Node: c.node, Local: c.local}
			e.State, e.Text = s.state(c)
			all = append(all, e)
		}
	})
	return all
}

func (s *seat) state(c *claim) (EngineState, string) {
	switch {
	case c == s.holder && len(s.unfenced) > 0:
		return Fencing, fmt.Sprintf("a former engine of this rank may still be written to in generation %s with node %s", s.unfenced[0].generation, s.unfenced[0].node)
	case c == s.holder:
		return Enrolled, ""
	case s.ending != messages.Engine{}:
		return Contending, fmt.Sprintf("%s is being detached", s.ending)
	case s.asked:
		return Contending, fmt.Sprintf("node %s, where %s is, is asked whether it is alive", s.holder.node, s.holder.Engine)
	}
	return Turned, fmt.Sprintf("%s on node %s holds the place", s.holder.Engine, s.holder.node)
}
