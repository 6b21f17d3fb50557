package verbs

import "kvferry/transport/rdma"

// cursor is where in the copies of a write the next chunk begins. It is a value: a copy
// of it begins there again.
type cursor struct {
	copy                  int
	rows                  rdma.Rows // of that copy, once begun
	begun                 bool
	source, target, bytes uint64 // what is left of the row at hand
}

// row goes to a row of which something is left, and reports false when there is none.
func (c *cursor) row(copies []rdma.Copy) bool {
	for c.bytes == 0 {
		if !c.begun {
			if c.copy == len(copies) {
				return false
			}
			c.rows, c.begun = rdma.RowsOf(&copies[c.copy]), true
		}
		if c.rows.Next() {
			c.source, c.target, c.bytes = c.rows.Source, c.rows.Target, c.rows.Bytes
		} else {
			c.copy++
			c.begun = false
		}
	}
	return true
}

// chain is requests in the making: for one stripe, in memory that is used again.
type chain struct {
	rows   []row
	pieces []piece
}

// bounds is what a stripe takes at once.
type bounds struct {
	card, rail int    // of this side and of the peer
	rows       int    // requests
	pieces     int    // of a request
	request    uint64 // bytes of a request
	bytes      uint64
}

// cut makes requests of the copies from the cursor on, at most b allows, and returns
// their bytes. Rows that follow each other at the target are one request as long as
// its pieces last; what crosses the end of a registration is cut there.
func (c *chain) cut(copies []rdma.Copy, sources []*region, targets []*remoteRegion, at *cursor, b bounds) (total uint64) {
	c.rows, c.pieces = c.rows[:0], c.pieces[:0]
	last := uint64(0) // bytes of the last request
	for total < b.bytes && at.row(copies) {
		source, target := sources[at.copy], targets[at.copy]
		lkey, sourceRest := source.local(b.card, at.source)
		rkey, targetRest := target.remote(b.rail, at.target)
		n := min(at.bytes, b.bytes-total, sourceRest, targetRest, b.request)
		from, to := source.addr+at.source, target.addr+at.target
		if k := len(c.rows) - 1; k >= 0 && c.rows[k].rkey == rkey && c.rows[k].remote+last == to && last+n <= b.request && c.gather(k, from, n, lkey, b.pieces) {
			last += n
		} else if len(c.rows) == b.rows {
			break
		} else {
			c.pieces = append(c.pieces, piece{from, uint32(n), lkey})
			c.rows = append(c.rows, row{pieces: c.pieces[len(c.pieces)-1:], remote: to, rkey: rkey})
			last = n
		}
		total += n
		at.source, at.target, at.bytes = at.source+n, at.target+n, at.bytes-n
	}
	return total
}

// gather adds memory to the last request, if it has room. The pieces of a request are
// the last ones of the chain, so they stay together.
func (c *chain) gather(k int, from, n uint64, lkey uint32, most int) bool {
	r := &c.rows[k]
	p := &r.pieces[len(r.pieces)-1]
	if p.lkey == lkey && p.addr+uint64(p.length) == from && uint64(p.length)+n <= 1<<31 {
		p.length += uint32(n)
		return true
	}
	if len(r.pieces) == most {
		return false
	}
	first := len(c.pieces) - len(r.pieces)
	c.pieces = append(c.pieces, piece{from, uint32(n), lkey})
	r.pieces = c.pieces[first:]
	return true
}
