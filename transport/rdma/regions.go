package rdma

import "fmt"

// Regions is the registered memory of a provider, with the count of what refers
// to it. Its user locks it. The zero value is not ready: use NewRegions.
type Regions struct {
	last RegionID
	byID map[RegionID]*region
}

type region struct {
	memory *Memory
	bytes  []byte // nil: of a device
	length uint64
	users  int
}

// NewRegions has none.
func NewRegions() *Regions { return &Regions{byID: map[RegionID]*region{}} }

// Add registers memory under a new id.
func (r *Regions) Add(m *Memory) RegionID {
	r.last++
	r.byID[r.last] = &region{memory: m, bytes: m.Bytes(), length: m.Len()}
	return r.last
}

// Bytes is the memory of a region, nil when there is none of this id.
func (r *Regions) Bytes(id RegionID) []byte {
	if x := r.byID[id]; x != nil {
		return x.bytes
	}
	return nil
}

// Length is how long a region is, false when there is none of this id.
func (r *Regions) Length(id RegionID) (uint64, bool) {
	x := r.byID[id]
	if x == nil {
		return 0, false
	}
	return x.length, true
}

// Use adds users to a region, or takes them away.
func (r *Regions) Use(id RegionID, users int) {
	x := r.byID[id]
	if x.users += users; x.users < 0 {
		panic(fmt.Sprintf("rdma: region %d has %d users", id, x.users))
	}
}

// UseSources is Use for every source of a write.
func (r *Regions) UseSources(w *Write, users int) {
	for i := range w.Copies {
		r.Use(w.Copies[i].Source.Region, users)
	}
}

// UseTargets is Use for every range of a grant.
func (r *Regions) UseTargets(g *Grant, users int) {
	for i := range g.Ranges {
		r.Use(g.Ranges[i].Region, users)
	}
}

// Remove is Provider.Deregister. An id that is not known is a *RangeError.
func (r *Regions) Remove(id RegionID) error {
	x := r.byID[id]
	if x == nil {
		return &RangeError{Field: "region", Region: id, Text: "the region is not registered"}
	}
	if x.users > 0 {
		return fmt.Errorf("%w: region %d (%q) has %d users", ErrBusy, id, x.memory.Name(), x.users)
	}
	delete(r.byID, id)
	return nil
}
