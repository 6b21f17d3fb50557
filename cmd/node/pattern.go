package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"

	"kvferry/actors"
	"kvferry/kv"
)

// The demo proves that every byte arrived by filling what prefill computes with
// bytes that follow from where they belong, and by computing them again at the
// decode engine. A row, one head of one token, is the sequence
//
//	seed, seed+patternStep, seed+2*patternStep, ...
//
// of 64-bit words, little endian, where the seed is a mix of room, component,
// layer, head and token. So a row that comes from any other place, or from any
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
	token       uint64
}

func (p place) String() string {
	return fmt.Sprintf("component %s, layer %d, head %d, token %d", p.component, p.layer, p.head, p.token)
}

// cache is the memory of one engine, by its layout.
type cache struct {
	engine  *kv.Engine
	regions [][]byte
}

// rows visits the rows of a room's tokens [from, to) that lie in the pages of the
// table, with their seeds.
func (c *cache) rows(room uint64, table kv.PageTable, from, to uint64, visit func(seed uint64, p place, row []byte)) {
	for n := range c.engine.Shards {
		s := &c.engine.Shards[n]
		bytes := c.rowBytes(s)
		for l := range s.Layers {
			tensor := &s.Layers[l]
			base := patternBase(room, s.Component, tensor.Layer)
			memory := c.regions[tensor.Region][tensor.Offset:]
			row := func(page, token uint64, head int) {
				at := page*s.PageStride + (token%uint64(s.PageTokens))*s.TokenStride + uint64(head-s.Heads.Low)*s.HeadStride
				visit(patternSeed(base, head, token), place{s.Component, tensor.Layer, head, token}, memory[at:at+bytes])
			}
			c.pagesOf(s, table, from, to, func(page, lo, hi uint64) {
				if s.HeadStride < s.TokenStride {
					for token := lo; token < hi; token++ {
						for head := s.Heads.Low; head < s.Heads.High; head++ {
							row(page, token, head)
						}
					}
					return
				}
				for head := s.Heads.Low; head < s.Heads.High; head++ {
					for token := lo; token < hi; token++ {
						row(page, token, head)
					}
				}
			})
		}
	}
}

// pagesOf visits the pages of a table that hold tokens [from, to), with the
// tokens of each.
func (c *cache) pagesOf(s *kv.Shard, table kv.PageTable, from, to uint64, visit func(page, lo, hi uint64)) {
	size := uint64(s.PageTokens)
	for lo := from; lo < to; {
		hi := min(to, lo-lo%size+size)
		visit(uint64(table.Pages[(lo-table.First)/size]), lo, hi)
		lo = hi
	}
}

// rowBytes is the smaller of the two strides: layouts of deployments have no
// gaps within a page.
func (c *cache) rowBytes(s *kv.Shard) uint64 { return min(s.TokenStride, s.HeadStride) }

// fill writes the pattern of a room's tokens [from, to).
func (c *cache) fill(room uint64, table kv.PageTable, from, to uint64) {
	c.rows(room, table, from, to, func(seed uint64, _ place, row []byte) { fillRow(row, seed) })
}

// check compares a room's tokens [from, to) with their pattern.
func (c *cache) check(d *damage, room uint64, table kv.PageTable, from, to uint64) {
	c.rows(room, table, from, to, func(seed uint64, p place, row []byte) {
		if n := wrongInRow(row, seed); n > 0 {
			d.add(n, p.String)
		}
	})
}

// checkUnwritten looks for writes to the rows of tokens [from, to) of a page.
func (c *cache) checkUnwritten(d *damage, table kv.PageTable, from, to uint64) {
	c.rows(0, table, from, to, func(_ uint64, p place, row []byte) {
		if n := wrongCanaries(row); n > 0 {
			d.add(n, func() string { return "not granted: " + p.String() })
		}
	})
}

// flip spoils one byte of a row. False: the engine does not hold it.
func (c *cache) flip(table kv.PageTable, at place, offset uint64) bool {
	done := false
	c.rows(0, table, at.token, at.token+1, func(_ uint64, p place, row []byte) {
		if p == at && offset < uint64(len(row)) {
			row[offset] ^= 1 << bits.TrailingZeros8(canary)
			done = true
		}
	})
	return done
}

// page visits the memory of one page in every tensor.
func (c *cache) page(page uint32, visit func(s *kv.Shard, layer int, memory []byte)) {
	for n := range c.engine.Shards {
		s := &c.engine.Shards[n]
		for _, t := range s.Layers {
			at := t.Offset + uint64(page)*s.PageStride
			visit(s, t.Layer, c.regions[t.Region][at:at+s.PageStride])
		}
	}
}

// clearPage puts canaries into a page.
func (c *cache) clearPage(page uint32) {
	c.page(page, func(_ *kv.Shard, _ int, memory []byte) { fillCanaries(memory) })
}

// checkPage looks for writes to a page that nobody holds.
func (c *cache) checkPage(d *damage, page uint32) {
	c.page(page, func(s *kv.Shard, layer int, memory []byte) {
		if n := wrongCanaries(memory); n > 0 {
			d.add(n, func() string {
				return fmt.Sprintf("not granted: component %s, layer %d, page %d", s.Component, layer, page)
			})
		}
	})
}

// pages is how many pages every tensor of the engine has.
func (c *cache) pages() uint32 {
	for _, s := range c.engine.Shards {
		return s.Layers[0].Pages
	}
	return 0
}

// meta is the part of a metadata row that is the engine's own.
func (c *cache) meta(row uint32) []byte {
	m := &c.engine.Meta
	at := m.Offset + uint64(row)*m.RowBytes
	return c.regions[m.Region][at+actors.MetaHeader : at+m.RowBytes]
}

func metaSeed(room uint64) uint64 {
	return patternSeed(patternBase(room, metaComponent, 0), 0, 0)
}

// fillMeta writes the metadata of a room.
func (c *cache) fillMeta(room uint64, row uint32) { fillRow(c.meta(row), metaSeed(room)) }

// checkMeta compares the metadata of a room with its pattern.
func (c *cache) checkMeta(d *damage, room uint64, row uint32) {
	d.add(wrongInRow(c.meta(row), metaSeed(room)), func() string { return "the metadata row" })
}
