package pairing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"kvferry/kv"
	"kvferry/messages"
)

// Directory is what one node knows of all engines. Not safe for concurrent use.
type Directory struct {
	c   DirectoryConfig
	now time.Time
	out []DirectoryEffect

	neighbors map[messages.Node]*neighbor
	seats     map[place]*seat
	ordered   []*seat            // of them, by place
	rosters   map[string]*roster // by instance; those with an engine at least
	pairs     map[pairName]*pair

	local    []*claim // attached engines of this node, in the order of their places
	version  uint64   // of our catalog
	parts    [][]*messages.EngineDescription
	sequence uint64 // of our last word on any pair

	contested []*seat // taken, and others would have them; of this step
	unchanged bool    // this step changed nothing that a roster or a pair follows from

	stale  map[string]bool            // instances whose roster is to be built anew
	causes map[string]*messages.Cause // why the roster of an instance changed last
}

// place is one rank of one instance: at most one engine is in it.
type place struct {
	instance string
	rank     kv.Rank
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.instance, o.instance), p.rank.Compare(o.rank))
}

func (p place) String() string { return fmt.Sprintf("%s(%s)", p.instance, p.rank) }

// claim is one engine as its node describes it. It does not change.
type claim struct {
	Described
	node  messages.Node
	wire  *messages.EngineDescription
	local bool
}

func (c *claim) place() place { return place{c.Engine.Instance, c.Engine.Rank} }

// NewDirectory makes the Directory of a node that knows nobody.
func NewDirectory(c DirectoryConfig) *Directory {
	c.Limits = c.Limits.Resolve()
	return &Directory{
		c:         c,
		neighbors: map[messages.Node]*neighbor{},
		seats:     map[place]*seat{},
		rosters:   map[string]*roster{},
		pairs:     map[pairName]*pair{},
		version:   c.FirstVersion + 1,
		sequence:  c.FirstVersion,
		parts:     [][]*messages.EngineDescription{nil},
		stale:     map[string]bool{},
		causes:    map[string]*messages.Cause{},
	}
}

// Step takes one event at a time that never goes back, and returns what is to be
// done, in order.
func (d *Directory) Step(now time.Time, ev DirectoryEvent) []DirectoryEffect {
	d.now, d.out, d.unchanged = now, nil, false
	switch ev := ev.(type) {
	case Attach:
		d.onAttach(ev.Description)
	case Detach:
		d.onDetach(ev)
	case LinkUp:
		d.onLinkUp(ev)
	case LinkDown:
		d.onLinkDown(ev)
	case LinkSuspect:
		d.onLinkSuspect(ev)
	case LinkLost:
		d.onLinkLost(ev)
	case LinkFenced:
		d.onLinkFenced(ev)
	case NodeProbed:
		d.onNodeProbed(ev)
	case CatalogReceived:
		d.onCatalog(ev.From, ev.Catalog)
	case CatalogAcked:
		d.onCatalogAck(ev.From, ev.Ack)
	case ReadinessReceived:
		d.onReadiness(ev.From, ev.Readiness)
	case ReadinessAcked:
		d.onReadinessAck(ev.From, ev.Ack)
	case Tick:
		d.reprobe()
	default:
		panic(fmt.Sprintf("pairing: directory event %T", ev))
	}
	if !d.unchanged {
		d.rebuild()
		d.review()
	}
	d.speakAll()
	return d.out
}

func (d *Directory) emit(e DirectoryEffect) { d.out = append(d.out, e) }

// Deadline is when the next Tick is due; the zero time for never.
func (d *Directory) Deadline() time.Time {
	var t time.Time
	for _, n := range d.neighbors {
		t = earlier(t, d.owes(n))
	}
	for _, s := range d.seats {
		t = earlier(t, s.retryAt)
	}
	return t
}

func (d *Directory) onAttach(w *messages.EngineDescription) {
	e := w.GetEngine().Engine()
	described, err := Parse(w)
	if err == nil {
		err = d.room(w)
	}
	if err != nil {
		d.emit(Refused{Engine: e, Err: err})
		return
	}
	c := &claim{Described: described, node: d.c.Self, wire: w, local: true}
	s := d.seat(c.place())
	for _, o := range s.claims() {
		if o.Engine != e {
			continue
		}
		if conflict := differs(c, o); conflict != nil {
			d.emit(Refused{Engine: e, Err: conflict})
		} else if o == s.holder {
			d.emit(Attached{Engine: e})
		}
		return
	}
	s.newcomers = append(s.newcomers, c)
	d.settle(s)
}

// room says whether one more engine fits into our catalog.
func (d *Directory) room(w *messages.EngineDescription) error {
	if size, most := partSize(w), d.c.Limits.PartBytes-partHeader; size > most {
		return &FieldError{Field: "size", Got: fmt.Sprintf("%d bytes", size), Want: fmt.Sprintf("at most %d: one part of a catalog", most)}
	}
	if len(d.local) >= d.c.Limits.Engines {
		return &FieldError{Field: "engines of the node", Got: fmt.Sprint(len(d.local) + 1), Want: fmt.Sprintf("at most %d", d.c.Limits.Engines)}
	}
	return nil
}

func (d *Directory) onDetach(ev Detach) {
	s := d.seats[place{ev.Engine.Instance, ev.Engine.Rank}]
	if s == nil {
		return
	}
	if s.ending == ev.Engine {
		s.ending = messages.Engine{}
		d.settle(s)
		return
	}
	for _, c := range s.claims() {
		if c.local && c.Engine == ev.Engine {
			d.leave(s, c, ev.Cause)
			d.settle(s)
		}
	}
}

// sorted is the keys of a map in order: no order is ever that of a map.
func sorted[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), compare)
}

func compareNodes(a, b messages.Node) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Incarnation, b.Incarnation))
}

func compareStrings(a, b string) int { return cmp.Compare(a, b) }
