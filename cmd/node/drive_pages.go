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

	mu        *sync.Mutex // guards the rest: the opener and the rooms change it
	dirtyPage []bool
	dirtyRow  []bool
}

func newPageBook(c *cache) pageBook {
	pages, rows := c.pages(), c.engine.Meta.Rows
	return pageBook{
		cache: c, mu: new(sync.Mutex),
		dirtyPage: make([]bool, pages), dirtyRow: make([]bool, rows),
	}
}

// pageHold is the pages and the row of one room.
type pageHold struct {
	book  *pageBook
	table kv.PageTable
	row   uint32

	clean []bool // of each page, when it was taken
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
