package shm

import (
	"slices"

	"kvferry/transport/rdma"
)

// known is a grant of the peer that the copier has read.
type known struct {
	word    word
	permit  *rdma.Permit
	ids     []rdma.RegionID
	regions []*mapping
	dead    bool // a region was let go: its memory is not there any more
}

// target is the memory of a region that the grant names.
func (k *known) target(id rdma.RegionID) []byte { return k.regions[slices.Index(k.ids, id)].bytes }

// admit finds the grant of a write and asks it for every row. Its error is a refusal,
// or that of the socket.
func (c *copier) admit(w *rdma.Write) (*known, error) {
	k := c.known[w.Grant]
	if k == nil || !c.out.holds(k.word) {
		var err error
		if k, err = c.learn(w.Grant); err != nil {
			return nil, err
		}
	}
	for i := range w.Copies {
		if err := k.permit.Covers("target", &w.Copies[i]); err != nil {
			return nil, refusedOutside
		}
	}
	return k, nil
}

// learn reads a grant from the table.
func (c *copier) learn(id rdma.GrantID) (*known, error) {
	delete(c.known, id)
	k := &known{word: c.out.find(id)}
	if k.word == 0 {
		return nil, refusedUnknown
	}
	raw, err := c.read(id, k)
	if err != nil {
		return nil, err
	}
	g := rdma.Grant{ID: id}
	if g.Ranges, err = parseRanges(raw); err != nil {
		return nil, refusedBroken
	}
	var broken error // of the socket
	k.permit, err = rdma.Compile(&g, func(id rdma.RegionID) (uint64, bool) {
		i := slices.Index(k.ids, id)
		if i < 0 {
			m, e := c.out.region(id)
			if m == nil {
				broken = e
				return 0, false
			}
			i = len(k.ids)
			k.ids, k.regions = append(k.ids, id), append(k.regions, m)
		}
		return uint64(len(k.regions[i].bytes)), true
	})
	switch {
	case broken != nil:
		return nil, broken
	case err != nil:
		return nil, refusedBroken
	}
	c.remember(id, k)
	return k, nil
}

// read copies what a grant says out of the table, as boundedly as everything else.
func (c *copier) read(id rdma.GrantID, k *known) (raw []byte, err error) {
	v := c.out.view
	at := entryAt(k.word.entry())
	for n := uint64(1); uint64(len(raw)) < n; {
		if !c.begin(k) {
			return nil, refusedRevoked
		}
		// The word stands in the slot: what belongs to it does not change.
		low, high, _ := halves(id)
		offset, length := v.at(at+entryOffset).Load(), v.at(at+entryLength).Load()
		if v.at(at+entryLow).Load() != low || v.at(at+entryHigh).Load() != high {
			err = refusedUnknown
		} else if length > descriptionMax || offset < tableArena || offset > tableBytes-length {
			err = refusedBroken
		} else {
			n = length
			done := uint64(len(raw))
			raw = append(raw, v.bytes[offset+done:offset+min(done+chunkBytes, length)]...)
		}
		c.end()
		if err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// remember keeps a grant, and drops those that are over when they may be many.
func (c *copier) remember(id rdma.GrantID, k *known) {
	if len(c.known) >= c.sweepAt {
		for old, x := range c.known { // each by itself
			if !c.out.holds(x.word) {
				delete(c.known, old)
			}
		}
		c.sweepAt = max(knownMin, 2*len(c.known))
	}
	c.known[id] = k
}

// letGo unmaps the regions that the peer has deregistered. Writes that still name
// them find their grant dead.
func (c *copier) letGo() {
	for _, m := range c.out.takeGone() {
		for id, k := range c.known {
			if slices.Contains(k.regions, m) {
				k.dead = true
				delete(c.known, id)
			}
		}
		m.release()
	}
}
