package pairing

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"kvferry/messages"
)

// assembly is the parts of one version of a catalog that have come so far.
type assembly struct {
	version uint64
	parts   []*messages.Catalog // nil where one is missing
	missing int
	engines int
}

// Bytes of a Catalog message around its engines, and around each of them, at
// most.
const (
	partHeader = 64
	partEntry  = 8
)

// partSize is what one engine takes of a part.
func partSize(w *messages.EngineDescription) int { return proto.Size(w) + partEntry }

// changed makes the next version of our catalog, in as few parts as the limit
// allows. There is always one.
func (d *Directory) changed() {
	slices.SortFunc(d.local, func(a, b *claim) int { return a.place().compare(b.place()) })
	d.version++
	d.parts = [][]*messages.EngineDescription{nil}
	size := partHeader
	for _, c := range d.local {
		n := partSize(c.wire)
		if size+n > d.c.Limits.PartBytes {
			d.parts = append(d.parts, nil)
			size = partHeader
		}
		last := len(d.parts) - 1
		d.parts[last] = append(d.parts[last], c.wire)
		size += n
	}
}

// sayCatalog says all of it: parts count only together.
func (d *Directory) sayCatalog(n *neighbor) {
	for i, engines := range d.parts {
		d.emit(SendTo{Node: n.node, Body: &messages.Catalog{
			Version: d.version, Part: uint32(i), Parts: uint32(len(d.parts)), Engines: engines, Have: n.version,
		}})
	}
}

func (d *Directory) onCatalogAck(from messages.Node, a *messages.CatalogAck) {
	n := d.neighbors[from]
	if n == nil {
		return
	}
	if a.GetVersion() > d.version {
		// This Directory forgot how far an earlier one had counted.
		d.version = a.GetVersion()
		d.changed()
		return
	}
	n.catalog.acked = max(n.catalog.acked, a.GetVersion())
	d.unchanged = a.GetVersion() != d.version || n.refusedBy == a.GetRefused()
	if a.GetVersion() == d.version {
		n.refusedBy = a.GetRefused()
	}
}

// onCatalog takes one part.
func (d *Directory) onCatalog(from messages.Node, c *messages.Catalog) {
	if from == d.c.Self {
		return
	}
	n := d.neighbor(from)
	if n.superseded {
		return // said by a life whose address another one has now
	}
	if c.GetHave() < n.catalog.acked {
		// It forgot what it had acknowledged.
		n.catalog.acked, n.catalog.said = c.GetHave(), 0
		for _, b := range n.owed {
			*b = debt{}
		}
	}
	switch v := c.GetVersion(); {
	case v <= n.version:
		// Known. Who says less than was said before has forgotten it, and hears how
		// far it was.
		d.ackCatalog(n)
	case v < n.assembly.version:
		// A late part of a version that was never whole.
	case d.malformed(n, c):
	default:
		d.assemble(n, c)
	}
}

// malformed refuses a version with a part that cannot be.
func (d *Directory) malformed(n *neighbor, c *messages.Catalog) bool {
	most := uint32(d.c.Limits.Parts)
	switch size := proto.Size(c); {
	case c.GetParts() == 0 || c.GetParts() > most:
		d.refuseCatalog(n, c.GetVersion(), "catalog parts", fmt.Sprint(c.GetParts()), fmt.Sprintf("1 to %d", most))
	case c.GetPart() >= c.GetParts():
		d.refuseCatalog(n, c.GetVersion(), "catalog part", fmt.Sprint(c.GetPart()), fmt.Sprintf("below %d", c.GetParts()))
	case size > d.c.Limits.PartBytes:
		d.refuseCatalog(n, c.GetVersion(), "catalog part bytes", fmt.Sprint(size), fmt.Sprintf("at most %d", d.c.Limits.PartBytes))
	default:
		return false
	}
	return true
}

func (d *Directory) assemble(n *neighbor, c *messages.Catalog) {
	a := &n.assembly
	if a.version != c.GetVersion() {
		*a = assembly{version: c.GetVersion(), parts: make([]*messages.Catalog, c.GetParts()), missing: int(c.GetParts())}
	}
	if len(a.parts) != int(c.GetParts()) {
		d.emit(Ignored{From: n.node, Field: "catalog parts", Got: fmt.Sprint(c.GetParts()), Want: fmt.Sprint(len(a.parts))})
		return
	}
	if a.parts[c.GetPart()] != nil {
		return
	}
	a.parts[c.GetPart()] = c
	a.missing--
	if a.engines += len(c.GetEngines()); a.engines > d.c.Limits.Engines {
		d.refuseCatalog(n, a.version, "catalog engines", fmt.Sprint(a.engines), fmt.Sprintf("at most %d", d.c.Limits.Engines))
		return
	}
	if a.missing == 0 {
		d.serve(n)
	}
}

// serve reads a whole catalog, and takes all of it or nothing.
func (d *Directory) serve(n *neighbor) {
	version := n.assembly.version
	claims, seen := []*claim(nil), map[place]bool{}
	for _, part := range n.assembly.parts {
		for _, w := range part.GetEngines() {
			described, err := Parse(w)
			if err != nil {
				f := err.(*FieldError)
				d.refuseCatalog(n, version, f.Field, f.Got, f.Want)
				return
			}
			c := &claim{Described: described, node: n.node, wire: w}
			if seen[c.place()] {
				d.refuseCatalog(n, version, "engine", c.place().String()+" twice", "one engine of each rank")
				return
			}
			seen[c.place()] = true
			claims = append(claims, c)
		}
	}
	n.version, n.refused, n.assembly = version, "", assembly{}
	d.ackCatalog(n)
	d.apply(n, claims)
}

// apply replaces what a node said before. Descriptions of attachments that are
// known stay as they are. Newcomers come first: one that takes the place of a
// former attachment on its own node is not overtaken by those of others.
func (d *Directory) apply(n *neighbor, claims []*claim) {
	stays := map[messages.Engine]bool{}
	for _, c := range claims {
		stays[c.Engine] = true
		s := d.seat(c.place())
		known := slices.IndexFunc(s.claims(), func(o *claim) bool { return o.Engine == c.Engine })
		if known >= 0 {
			o := s.claims()[known]
			if conflict := differs(c, o); conflict != nil {
				d.emit(Ignored{From: n.node, Field: fmt.Sprintf("engine %s: %s", c.Engine, conflict.Field), Got: conflict.Got, Want: conflict.Want})
			}
			if o.node == n.node {
				continue
			}
		}
		n.claims = append(n.claims, c)
		s.newcomers = append(slices.Clone(s.newcomers), c)
	}
	d.inOrder(d.settle)
	for _, c := range slices.Clone(n.claims) {
		if !stays[c.Engine] {
			d.withdraw(n, []*claim{c}, d.cause(messages.CauseKind_CAUSE_DETACHED, fmt.Sprintf("engine %s was detached from node %s", c.Engine, n.node)))
		}
	}
	d.inOrder(d.settle)
}

// refuseCatalog serves nothing of a node, not even what it said before: that is
// not what it says now.
func (d *Directory) refuseCatalog(n *neighbor, version uint64, field, got, want string) {
	n.version, n.assembly = version, assembly{}
	n.refused = fmt.Sprintf("catalog %d: %s is %s, want %s", version, field, got, want)
	d.emit(Ignored{From: n.node, Field: field, Got: got, Want: want})
	d.ackCatalog(n)
	d.withdraw(n, n.claims, d.cause(messages.CauseKind_CAUSE_PROTOCOL, fmt.Sprintf("node %s: %s", n.node, n.refused)))
	d.inOrder(d.settle)
}

func (d *Directory) ackCatalog(n *neighbor) {
	d.emit(SendTo{Node: n.node, Body: &messages.CatalogAck{Version: n.version, Refused: n.refused}})
}
