package cluster

import (
	"cmp"
	"slices"
)

// View is who is there, as one node sees it. It is a pure value: Step returns the
// next one and what changed, and leaves the old one as it was.
//
// Gossip knows each incarnation under a name of its own, so for a while it may
// hold several incarnations alive that cannot all be there: two clash when they
// have the same node name, the same actor address or the same gossip address.
// What is Up never clashes:
//
//  1. A newcomer that clashes with nobody is Up.
//  2. A newcomer with a higher incarnation at the same address (of actors or of
//     gossip) replaces what was there, at once: an address has one process.
//  3. Any other newcomer is held. It is Up as soon as gossip calls dead, or
//     gone, all that it clashes with. So the number of an incarnation, which
//     comes from a clock, decides only between two at one address, and only until
//     gossip's probes have decided.
//  4. The death of an incarnation that is not Up says nothing. So the late death
//     of the old one does not cut its successor.
//  5. Nobody replaces this node itself.
type View struct {
	self   Member
	claims []claim // sorted by name and incarnation; never changed in place
}

// claim is one incarnation that gossip holds alive.
type claim struct {
	Member
	up bool
}

// Change is one thing that gossip said: Alive or Gone.
type Change interface{ change() }

// Alive says that gossip holds this incarnation alive.
type Alive struct{ Member Member }

// Gone says that gossip holds this incarnation dead or gone.
type Gone struct {
	Name        string
	Incarnation uint64
	Reason      Reason // Dead or Left
}

func (Alive) change() {}
func (Gone) change()  {}

// NewView is the view of a node that has heard of nobody.
func NewView(self Member) View { return View{self: self} }

// Step is the view after one change, and what is to be told of it, in order.
func (v View) Step(change Change) (View, []Event) {
	w := View{v.self, slices.Clone(v.claims)}
	switch c := change.(type) {
	case Alive:
		return w, w.alive(c.Member)
	case Gone:
		return w, w.gone(c)
	}
	panic("cluster: unknown change")
}

func (v *View) alive(m Member) []Event {
	if key(m) == key(v.self) {
		return nil
	}
	at, found := v.find(m.Name, m.Incarnation)
	if !found {
		v.claims = slices.Insert(v.claims, at, claim{Member: m})
		return v.settle(nil)
	}
	old := v.claims[at]
	if old.Member == m {
		return nil
	}
	v.claims[at] = claim{Member: m}
	var events []Event
	if old.up {
		events = append(events, Down{old.Member, Replaced})
	}
	return v.settle(events)
}

func (v *View) gone(g Gone) []Event {
	at, found := v.find(g.Name, g.Incarnation)
	if !found {
		return nil
	}
	old := v.claims[at]
	v.claims = slices.Delete(v.claims, at, at+1)
	if !old.up {
		return nil // rule 4
	}
	return v.settle([]Event{Down{old.Member, g.Reason}})
}

// settle raises what may be Up now, the highest incarnation first. It ends: each
// raise puts a higher incarnation in the place of lower ones, or adds one.
func (v *View) settle(events []Event) []Event {
	order := make([]int, len(v.claims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(v.claims[b].Incarnation, v.claims[a].Incarnation)
	})
	for raised := true; raised; {
		raised = false
		for _, i := range order {
			if v.claims[i].up {
				continue
			}
			replaced, ok := v.replaces(v.claims[i].Member)
			if !ok {
				continue
			}
			for _, j := range replaced {
				v.claims[j].up = false
				events = append(events, Down{v.claims[j].Member, Replaced})
			}
			v.claims[i].up = true
			events = append(events, Up{v.claims[i].Member})
			raised = true
		}
	}
	return events
}

// replaces says whether m may be Up, and which claims are not Up then.
func (v *View) replaces(m Member) (replaced []int, ok bool) {
	if clash(m, v.self) {
		return nil, false
	}
	for j, c := range v.claims {
		if !c.up || !clash(m, c.Member) {
			continue
		}
		if !samePlace(m, c.Member) || m.Incarnation <= c.Incarnation {
			return nil, false
		}
		replaced = append(replaced, j)
	}
	return replaced, true
}

// Members is everybody who is Up, and this node, by name.
func (v View) Members() []Member {
	members := []Member{v.self}
	for _, c := range v.claims {
		if c.up {
			members = append(members, c.Member)
		}
	}
	slices.SortFunc(members, compare)
	return members
}

// Held is who gossip holds alive but who is not Up, by name and incarnation.
func (v View) Held() []Member {
	var members []Member
	for _, c := range v.claims {
		if !c.up {
			members = append(members, c.Member)
		}
	}
	return members
}

// Against is who of those that are there m clashes with, by name.
func (v View) Against(m Member) []Member {
	var members []Member
	for _, other := range v.Members() {
		if key(other) != key(m) && clash(m, other) {
			members = append(members, other)
		}
	}
	return members
}

func (v *View) find(name string, incarnation uint64) (int, bool) {
	return slices.BinarySearchFunc(v.claims, Member{Name: name, Incarnation: incarnation},
		func(c claim, m Member) int { return compare(c.Member, m) })
}

func compare(a, b Member) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Incarnation, b.Incarnation))
}

type memberKey struct {
	name        string
	incarnation uint64
}

func key(m Member) memberKey { return memberKey{m.Name, m.Incarnation} }

func clash(a, b Member) bool { return a.Name == b.Name || samePlace(a, b) }

func samePlace(a, b Member) bool {
	return a.Address == b.Address || a.Gossip != "" && a.Gossip == b.Gossip
}
