package main

import (
	"fmt"
	"sync"

	"kvferry/kv"
)

// pageBook knows what the driver may expect in each page of its engine.
//
// On the decode side a page is clean while it holds canaries: from the start, or
// since a room that completed gave it back. The pages of a room that failed are
// the engine's before the driver can clean them, so they stay dirty until a later
// room that gets them completes; in a dirty page nothing is expected where
// nothing was granted.
type pageBook struct {
	cache *cache
	pools []kv.Pool

	mu        *sync.Mutex       // guards the rest: the opener and the rooms change it
	dirtyPage map[uint64][]bool // by window
	dirtySlot []bool
	dirtyRow  []bool
}

func newPageBook(c *cache) pageBook {
	slots, _ := c.instance.Slots(c.rank)
	b := pageBook{
		cache: c, pools: c.instance.Pools(c.rank), mu: new(sync.Mutex),
		dirtyPage: make(map[uint64][]bool), dirtySlot: make([]bool, slots), dirtyRow: make([]bool, c.meta.Rows),
	}
	for _, p := range b.pools {
		b.dirtyPage[p.Window] = make([]bool, p.Pages)
	}
	return b
}

// pageHold is where an engine keeps one room.
type pageHold struct {
	book *pageBook
	at   kv.Placement

	clean map[uint64]bool // by window: the last page, when it was taken
}

// take notes that a decode room was given its place.
func (b *pageBook) take(at kv.Placement) *pageHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &pageHold{book: b, at: at, clean: make(map[uint64]bool)}
	for _, t := range at.Tables {
		dirty := b.dirtyPage[t.Window]
		for _, p := range t.Pages {
			h.clean[t.Window] = !dirty[p]
			dirty[p] = true
		}
	}
	b.mark(&at, true)
	return h
}

// mark notes whether the slot and the row of a room are dirty.
func (b *pageBook) mark(at *kv.Placement, dirty bool) {
	if len(b.dirtySlot) > 0 {
		b.dirtySlot[at.Slot] = dirty
	}
	b.dirtyRow[at.MetaRow] = dirty
}

// check compares what came for a room, and looks at what lies beside it.
func (h *pageHold) check(room, tokens uint64) damage {
	var d damage
	c := h.book.cache
	c.checkMeta(&d, room, h.at.MetaRow)
	c.checkState(&d, room, h.at.Slot, tokens)
	for _, pool := range h.book.pools {
		table := h.at.Table(pool.Window)
		if len(table.Pages) == 0 {
			continue
		}
		at := kv.Placement{Tables: []kv.PoolTable{{Window: pool.Window, PageTable: table}}}
		from := table.First
		if pool.Window > 0 && tokens > pool.Window { // nobody needs what is before the window
			from = max(from, tokens-pool.Window)
		}
		c.check(&d, room, &at, from, tokens)
		if h.clean[pool.Window] {
			c.checkUnwritten(&d, &at, tokens, table.First+uint64(len(table.Pages))*pool.Stripe())
		}
	}
	return d
}

// restore puts canaries back, so that all is clean when it is freed.
func (h *pageHold) restore() {
	c, b := h.book.cache, h.book
	for _, pool := range b.pools {
		for _, p := range h.at.Table(pool.Window).Pages {
			c.page(pool, p, fillCanary)
		}
	}
	c.slot(h.at.Slot, fillCanary)
	fillCanaries(c.metaOf(h.at.MetaRow))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range h.at.Tables {
		for _, p := range t.Pages {
			b.dirtyPage[t.Window][p] = false
		}
	}
	b.mark(&h.at, false)
}

// sweep looks at all the memory that no room holds, when no room is open: a byte
// that is no canary was written by mistake.
func (b *pageBook) sweep(decode bool) damage {
	var d damage
	if !decode {
		return d
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pool := range b.pools {
		for p, dirty := range b.dirtyPage[pool.Window] {
			if !dirty {
				b.cache.page(pool, uint32(p), d.untouched)
			}
		}
	}
	for s, dirty := range b.dirtySlot {
		if !dirty {
			b.cache.slot(uint32(s), d.untouched)
		}
	}
	for r := range b.dirtyRow {
		if !b.dirtyRow[r] {
			d.add(wrongCanaries(b.cache.metaOf(uint32(r))), func() string { return fmt.Sprintf("not granted: metadata row %d", r) })
		}
	}
	return d
}
