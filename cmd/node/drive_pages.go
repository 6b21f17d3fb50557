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
//
// On the prefill side a room may fail, and its pages go to another one, while
// what computes it has not noticed yet. So who gets a page waits until who had it
// before has stopped writing.
type pageBook struct {
	cache *cache

	mu        *sync.Mutex // guards the rest: the opener and the rooms change it
	dirtyPage []bool
	dirtyRow  []bool
	pageOf    []chan struct{} // closed when the last writer of a page has stopped; nil: none
	rowOf     []chan struct{}
}

func newPageBook(c *cache) pageBook {
	pages, rows := c.pages(), c.engine.Meta.Rows
	return pageBook{
		cache: c, mu: new(sync.Mutex),
		dirtyPage: make([]bool, pages), dirtyRow: make([]bool, rows),
		pageOf: make([]chan struct{}, pages), rowOf: make([]chan struct{}, rows),
	}
}

// pageHold is the pages and the row of one room.
type pageHold struct {
	book  *pageBook
	table kv.PageTable
	row   uint32

	clean []bool // decode: of each page, when it was taken

	before []chan struct{} // prefill: who wrote there before
	own    chan struct{}
	from   uint64 // tokens that are computed
}

// take notes that a decode room was given pages.
func (b *pageBook) take(table kv.PageTable, row uint32) *pageHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &pageHold{book: b, table: table, row: row}
	for _, p := range table.Pages {
		h.clean = append(h.clean, !b.dirtyPage[p])
		b.dirtyPage[p] = true
	}
	b.dirtyRow[row] = true
	return h
}

// check compares what came for a room, and looks at what lies beside it.
func (h *pageHold) check(room, tokens uint64) damage {
	var d damage
	c := h.book.cache
	c.checkMeta(&d, room, h.row)
	if len(h.table.Pages) == 0 {
		return d
	}
	c.check(&d, room, h.table, h.table.First, tokens)
	last := len(h.table.Pages) - 1
	end := h.table.First + uint64(len(h.table.Pages))*uint64(c.engine.PageTokens())
	if h.clean[last] {
		c.checkUnwritten(&d, h.table, tokens, end)
	}
	return d
}

// restore puts canaries back, so that the pages are clean when they are freed.
func (h *pageHold) restore() {
	c, b := h.book.cache, h.book
	for _, p := range h.table.Pages {
		c.clearPage(p)
	}
	fillCanaries(c.meta(h.row))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range h.table.Pages {
		b.dirtyPage[p] = false
	}
	b.dirtyRow[h.row] = false
}

// pin notes that a prefill room was given pages.
func (b *pageBook) pin(table kv.PageTable, row uint32) *pageHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &pageHold{book: b, table: table, row: row, own: make(chan struct{})}
	seen := make(map[chan struct{}]bool)
	follow := func(owner *chan struct{}) {
		if o := *owner; o != nil && !seen[o] {
			seen[o] = true
			h.before = append(h.before, o)
		}
		*owner = h.own
	}
	for _, p := range table.Pages {
		follow(&b.pageOf[p])
	}
	follow(&b.rowOf[row])
	return h
}

// begin waits until nobody else writes to the pages.
func (h *pageHold) begin() {
	for _, o := range h.before {
		<-o
	}
}

// end says that nothing is written any more.
func (h *pageHold) end() { close(h.own) }

// sweep looks at all the memory that no room holds, when no room is open: a byte
// that is no canary was written by mistake.
func (b *pageBook) sweep(decode bool) damage {
	var d damage
	if !decode {
		return d
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.dirtyPage {
		if !b.dirtyPage[p] {
			b.cache.checkPage(&d, uint32(p))
		}
	}
	for r := range b.dirtyRow {
		if !b.dirtyRow[r] {
			d.add(wrongCanaries(b.cache.meta(uint32(r))), func() string { return fmt.Sprintf("not granted: metadata row %d", r) })
		}
	}
	return d
}
