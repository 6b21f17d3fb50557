package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"

	"kvferry/actors"
	"kvferry/kv"
)

// The demo proves that every byte arrived by filling what prefill computes with
// bytes that follow from where they belong, and by computing them again at the
// decode engine. A row of one head is the sequence
//
//	seed, seed+patternStep, seed+2*patternStep, ...
//
// of 64-bit words, little endian, where the seed is a mix of room, component,
// layer, head and row. So a row that comes from any other place, or from any
// other room, differs in nearly all its bytes; and filling costs an addition for
// eight bytes, less than the memory takes.
const (
	patternStep  = 0x9e3779b97f4a7c15
	patternHead  = 0xd6e8feb86659fd93
	patternToken = 0xa0761d6478bd642f

	// canary is what decode memory holds wherever nothing was granted. A byte that
	// lands there by mistake looks like it once in 256.
	canary = 0xc5

	metaComponent = "metadata" // stands for the metadata row in a pattern
)

// mix64 spreads every bit of x over all bits (a finalizer of multiplications and
// shifts; it is a bijection, so different inputs stay different).
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// patternBase is what the rows of one layer of one component of a room share.
func patternBase(room uint64, component string, layer int) uint64 {
	h := fnv.New64a()
	h.Write([]byte(component)) // a hash does not fail
	return mix64(mix64(mix64(room+patternStep)^h.Sum64()) + uint64(layer)*patternStep)
}

// patternSeed is the first word of a row.
func patternSeed(base uint64, head int, token uint64) uint64 {
	return mix64(base + uint64(head)*patternHead + token*patternToken)
}

// fillRow writes a row.
func fillRow(b []byte, seed uint64) {
	for len(b) >= 32 {
		w := b[:32]
		binary.LittleEndian.PutUint64(w, seed)
		binary.LittleEndian.PutUint64(w[8:], seed+patternStep)
		binary.LittleEndian.PutUint64(w[16:], seed+(2*patternStep&(1<<64-1)))
		binary.LittleEndian.PutUint64(w[24:], seed+(3*patternStep&(1<<64-1)))
		seed += 4 * patternStep & (1<<64 - 1)
		b = b[32:]
	}
	for ; len(b) > 0; seed += patternStep {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], seed)
		b = b[copy(b, w[:]):]
	}
}

// wrongInRow counts the bytes of a row that are not as fillRow writes them.
func wrongInRow(b []byte, seed uint64) uint64 {
	rest, word, differ := b, seed, uint64(0)
	for len(rest) >= 32 {
		w := rest[:32]
		differ |= binary.LittleEndian.Uint64(w) ^ word
		differ |= binary.LittleEndian.Uint64(w[8:]) ^ (word + patternStep)
		differ |= binary.LittleEndian.Uint64(w[16:]) ^ (word + (2 * patternStep & (1<<64 - 1)))
		differ |= binary.LittleEndian.Uint64(w[24:]) ^ (word + (3 * patternStep & (1<<64 - 1)))
		word += 4 * patternStep & (1<<64 - 1)
		rest = rest[32:]
	}
	if differ == 0 && len(rest) == 0 {
		return 0
	}
	wrong := uint64(0)
	for i := range b {
		word := seed + uint64(i/8)*patternStep
		if b[i] != byte(word>>(i%8*8)) {
			wrong++
		}
	}
	return wrong
}

// canaries is a piece of memory that nothing was written to.
var canaries = bytes.Repeat([]byte{canary}, 64<<10)

func fillCanaries(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, canaries):]
	}
}

// wrongCanaries counts the bytes that something has written.
func wrongCanaries(b []byte) uint64 {
	wrong := uint64(0)
	for len(b) > 0 {
		n := min(len(b), len(canaries))
		if !bytes.Equal(b[:n], canaries[:n]) {
			wrong += uint64(n - bytes.Count(b[:n], canaries[:1]))
		}
		b = b[n:]
	}
	return wrong
}

// damage is what a check found.
type damage struct {
	bytes uint64
	first string // where the first wrong byte is
}

func (d *damage) add(n uint64, where func() string) {
	if n == 0 {
		return
	}
	if d.bytes == 0 {
		d.first = where()
	}
	d.bytes += n
}

// place says where a row belongs.
type place struct {
	component   string
	layer, head int
	row         uint64 // a token, where there is a row for each; of state, of the slot
}

func (p place) String() string {
	return fmt.Sprintf("component %s, layer %d, head %d, row %d", p.component, p.layer, p.head, p.row)
}

// cache is the memory of one engine, by its layout.
type cache struct {
	instance *kv.Instance
	rank     kv.Rank
	meta     kv.MetaRows
	regions  [][]byte
}

// visitor turns rows into their seeds, places and bytes.
func (c *cache) visitor(room uint64, visit func(seed uint64, p place, row []byte)) func(kv.Row) {
	var of *kv.Component
	layer, base := 0, uint64(0)
	return func(r kv.Row) {
		if r.Component != of || r.Layer != layer { // rows come tensor by tensor
			of, layer = r.Component, r.Layer
			base = patternBase(room, of.Name, layer)
		}
		visit(patternSeed(base, r.Head, r.Row), place{of.Name, layer, r.Head, r.Row}, c.regions[r.Region][r.Offset:][:of.HeadBytes])
	}
}

// rows visits the rows of a room that the tokens [from, to) complete, as far as
// they have pages, with their seeds.
func (c *cache) rows(room uint64, at *kv.Placement, from, to uint64, visit func(seed uint64, p place, row []byte)) {
	c.instance.EachRow(c.rank, at, from, to, c.visitor(room, visit))
}

// state visits the rows of the state of a room of so many tokens.
func (c *cache) state(room uint64, slot uint32, tokens uint64, visit func(seed uint64, p place, row []byte)) {
	c.instance.EachState(c.rank, slot, tokens, c.visitor(room, visit))
}

// fill writes the pattern of a room's tokens [from, to).
func (c *cache) fill(room uint64, at *kv.Placement, from, to uint64) {
	c.rows(room, at, from, to, func(seed uint64, _ place, row []byte) { fillRow(row, seed) })
}

// fillState writes the pattern of the state of a room.
func (c *cache) fillState(room uint64, slot uint32, tokens uint64) {
	c.state(room, slot, tokens, func(seed uint64, _ place, row []byte) { fillRow(row, seed) })
}

// compare is a visit that compares rows with their pattern.
func (d *damage) compare(seed uint64, p place, row []byte) {
	if n := wrongInRow(row, seed); n > 0 {
		d.add(n, p.String)
	}
}

// untouched is a visit that looks for writes where nothing was granted.
func (d *damage) untouched(_ uint64, p place, row []byte) {
	if n := wrongCanaries(row); n > 0 {
		d.add(n, func() string { return "not granted: " + p.String() })
	}
}

// check compares a room's tokens [from, to) with their pattern.
func (c *cache) check(d *damage, room uint64, at *kv.Placement, from, to uint64) {
	c.rows(room, at, from, to, d.compare)
}

// checkState compares the state of a room with its pattern.
func (c *cache) checkState(d *damage, room uint64, slot uint32, tokens uint64) {
	c.state(room, slot, tokens, d.compare)
}

// checkUnwritten looks for writes to the rows of tokens [from, to) in pages.
func (c *cache) checkUnwritten(d *damage, at *kv.Placement, from, to uint64) {
	c.rows(0, at, from, to, d.untouched)
}

// flip spoils one byte of a row, if it is among those that the tokens [from, to)
// complete, or is of the state and last. False: it is not.
func (c *cache) flip(at *kv.Placement, from, to uint64, last bool, where place, offset uint64) bool {
	done := false
	spoil := func(_ uint64, p place, row []byte) {
		if p == where && offset < uint64(len(row)) {
			row[offset] ^= 1 << bits.TrailingZeros8(canary)
			done = true
		}
	}
	c.rows(0, at, from, to, spoil)
	if last {
		c.state(0, at.Slot, to, spoil)
	}
	return done
}

// page visits the rows of one page of a pool.
func (c *cache) page(pool kv.Pool, page uint32, visit func(seed uint64, p place, row []byte)) {
	at := kv.Placement{Tables: []kv.PoolTable{{Window: pool.Window, PageTable: kv.PageTable{Pages: []uint32{page}}}}}
	c.rows(0, &at, 0, pool.Stripe(), visit)
}

// slot visits the rows of one slot: those of a request that has all kinds of state.
func (c *cache) slot(slot uint32, visit func(seed uint64, p place, row []byte)) {
	c.state(0, slot, 1<<40-1, visit) // a multiple of no group
}

func fillCanary(_ uint64, _ place, row []byte) { fillCanaries(row) }

// middleLayer is a layer of which the engine holds some below and some from it on;
// 0 if it holds one layer.
func (c *cache) middleLayer() int {
	var layers []int
	for n := range c.instance.Engines {
		if e := &c.instance.Engines[n]; e.Rank == c.rank {
			for _, s := range e.Shards {
				for _, l := range s.Layers {
					layers = append(layers, l.Layer)
				}
			}
		}
	}
	slices.Sort(layers)
	layers = slices.Compact(layers)
	if len(layers) < 2 {
		return 0
	}
	return layers[len(layers)/2]
}

// metaOf is the part of a metadata row that is the engine's own.
func (c *cache) metaOf(row uint32) []byte {
	at := c.meta.Offset + uint64(row)*c.meta.RowBytes
	return c.regions[c.meta.Region][at+actors.MetaHeader : at+c.meta.RowBytes]
}

func metaSeed(room uint64) uint64 {
	return patternSeed(patternBase(room, metaComponent, 0), 0, 0)
}

// fillMeta writes the metadata of a room.
func (c *cache) fillMeta(room uint64, row uint32) { fillRow(c.metaOf(row), metaSeed(room)) }

// checkMeta compares the metadata of a room with its pattern.
func (c *cache) checkMeta(d *damage, room uint64, row uint32) {
	d.add(wrongInRow(c.metaOf(row), metaSeed(room)), func() string { return "the metadata row" })
}
