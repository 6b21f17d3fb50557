package actors

import (
	"fmt"

	"kvferry/kv"
)

// Pools is all that an engine gives to rooms: pages of each of its pools, slots of
// its state, and metadata rows. The engine actor owns it.
type Pools struct {
	pages []pagePool
	slots *Pool // nil: the engine keeps no state
	rows  *Pool
}

type pagePool struct {
	kv.Pool
	free *Pool
}

// Claim is how much of each of Pools a room takes.
type Claim []uint32

// NewPools is the pools of a rank, all free.
func NewPools(i *kv.Instance, r kv.Rank, rows uint32) *Pools {
	p := &Pools{rows: NewPool(rows)}
	for _, pool := range i.Pools(r) {
		p.pages = append(p.pages, pagePool{pool, NewPool(pool.Pages)})
	}
	if slots, has := i.Slots(r); has {
		p.slots = NewPool(slots)
	}
	return p
}

// all are the pools in the order of a claim: pages by window, slots, rows.
func (p *Pools) all() []*Pool {
	all := make([]*Pool, 0, len(p.pages)+2)
	for _, pool := range p.pages {
		all = append(all, pool.free)
	}
	if p.slots != nil {
		all = append(all, p.slots)
	}
	return append(all, p.rows)
}

// Claim is what a request takes of which the tokens [prefix, length) are wanted.
// A prefill engine claims for a prefix of 0.
func (p *Pools) Claim(prefix, length uint64) Claim {
	var c Claim
	for _, pool := range p.pages {
		_, n := pool.Need(prefix, length)
		c = append(c, uint32(min(n, 1<<32-1)))
	}
	if p.slots != nil {
		c = append(c, 1)
	}
	return append(c, 1)
}

// Within answers whether a claim, beside others, is at most a share of each of the
// pools, in percent.
func (p *Pools) Within(c, others Claim, percent int) bool {
	for i, pool := range p.all() {
		share := uint64(pool.Total()) * uint64(percent) / 100
		other := uint64(0)
		if others != nil {
			other = uint64(others[i])
		}
		if uint64(c[i])+other > share {
			return false
		}
	}
	return true
}

// TooLarge says why a request never fits, with the numbers; "": it fits.
func (p *Pools) TooLarge(prefix, length uint64) string {
	c := p.Claim(prefix, length)
	for i, pool := range p.all() {
		if c[i] <= pool.Total() {
			continue
		}
		if i >= len(p.pages) {
			return "the engine has no slot or no metadata row"
		}
		return fmt.Sprintf("tokens %d to %d need %d pages of %d tokens%s, the pool has %d",
			prefix, length, c[i], p.pages[i].PageTokens, windowOf(p.pages[i].Window), pool.Total())
	}
	return ""
}

func windowOf(w uint64) string {
	if w == 0 {
		return ""
	}
	return fmt.Sprintf(" (window %d)", w)
}

// Free says what is free, for people.
func (p *Pools) Free() string {
	pages, total := p.Pages()
	return fmt.Sprintf("%d of %d pages and %d of %d rows are free", pages, total, p.rows.Free(), p.rows.Total())
}

// Pages is how many pages of all pools are free, and how many there are.
func (p *Pools) Pages() (free, total uint32) {
	for _, pool := range p.pages {
		free, total = free+pool.free.Free(), total+pool.free.Total()
	}
	return free, total
}

// Take takes what a request needs. False: it is not free, and nothing is taken.
func (p *Pools) Take(prefix, length uint64) (kv.Placement, bool) {
	c := p.Claim(prefix, length)
	for i, pool := range p.all() {
		if c[i] > pool.Free() {
			return kv.Placement{}, false
		}
	}
	var at kv.Placement
	for i, pool := range p.pages {
		pages, _ := pool.free.Take(c[i])
		first, _ := pool.Need(prefix, length)
		at.Tables = append(at.Tables, kv.PoolTable{Window: pool.Window, PageTable: kv.PageTable{First: first, Pages: pages}})
	}
	if p.slots != nil {
		slot, _ := p.slots.Take(1)
		at.Slot = slot[0]
	}
	row, _ := p.rows.Take(1)
	at.MetaRow = row[0]
	return at, true
}

// Give returns what Take gave.
func (p *Pools) Give(at kv.Placement) {
	for i, pool := range p.pages {
		pool.free.Give(at.Tables[i].Pages)
	}
	if p.slots != nil {
		p.slots.Give([]uint32{at.Slot})
	}
	p.rows.Give([]uint32{at.MetaRow})
}

// PagesOf is how many pages a placement has.
func PagesOf(at kv.Placement) int {
	n := 0
	for _, t := range at.Tables {
		n += len(t.Pages)
	}
	return n
}

// Add is a claim with another added; Sub, with one taken off.
func (c Claim) Add(o Claim) Claim { return c.each(o, func(a, b uint32) uint32 { return a + b }) }
func (c Claim) Sub(o Claim) Claim { return c.each(o, func(a, b uint32) uint32 { return a - b }) }

func (c Claim) each(o Claim, f func(a, b uint32) uint32) Claim {
	out := make(Claim, len(o))
	for i := range out {
		a := uint32(0)
		if c != nil {
			a = c[i]
		}
		out[i] = f(a, o[i])
	}
	return out
}
