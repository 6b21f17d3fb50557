package verbs

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

// space is memory of one side: regions, one after another or with gaps, of which each
// card knows every registration by a key of its own.
type space struct {
	base  uint64 // address of bytes[0]
	bytes []byte
	cards int
	byKey []map[uint32][2]uint64 // by card: first and last+1 address of a registration
	last  uint32
}

func newSpace(base uint64, cards int) *space {
	s := &space{base: base, cards: cards}
	for range cards {
		s.byKey = append(s.byKey, map[uint32][2]uint64{})
	}
	return s
}

// add appends a region, and returns where it begins and the keys of its registrations.
func (s *space) add(gap, n, piece uint64) (addr uint64, keys [][]uint32) {
	s.bytes = append(s.bytes, make([]byte, gap+n)...)
	addr = s.base + uint64(len(s.bytes)) - n
	for card := range s.cards {
		keys = append(keys, nil)
		for at := uint64(0); at < n; at += piece {
			s.last = s.last*1664525 + 1013904223 // visits every number once
			keys[card] = append(keys[card], s.last)
			s.byKey[card][s.last] = [2]uint64{addr + at, addr + min(at+piece, n)}
		}
	}
	return addr, keys
}

// of is the bytes at an address, which all lie in the registration of the key.
func (s *space) of(card int, key uint32, addr, n uint64) ([]byte, error) {
	r, ok := s.byKey[card][key]
	if !ok || n == 0 || addr < r[0] || addr+n > r[1] {
		return nil, fmt.Errorf("%d bytes at %#x with key %#x of card %d, which is for %#x (%v)", n, addr, key, card, r, ok)
	}
	return s.bytes[addr-s.base:][:n], nil
}

// fixedKey is a registration that nobody made.
type fixedKey uint32

func (k fixedKey) keys() (local, remote uint32) { return uint32(k), ^uint32(k) }
func (k fixedKey) deregister() error            { return nil }

// cutWorld is copies between two spaces.
type cutWorld struct {
	from, to *space
	copies   []rdma.Copy
	sources  []*region
	targets  []*remoteRegion
}

func drawCutPlace(t *rapid.T, bytes uint64) rdma.Place {
	stride := func() uint64 {
		return rapid.OneOf(rapid.Just(bytes), rapid.Uint64Range(0, 4*bytes)).Draw(t, "stride")
	}
	return rdma.Place{Offset: rapid.Uint64Range(0, 50).Draw(t, "offset"), Stride: [2]uint64{3 * stride(), stride()}, UnitStride: 9 * stride()}
}

func drawCutWorld(t *rapid.T) *cutWorld {
	cards, rails := rapid.IntRange(1, 3).Draw(t, "cards"), rapid.IntRange(1, 3).Draw(t, "rails")
	w := &cutWorld{from: newSpace(1<<40, cards), to: newSpace(1<<63, rails)}
	for range rapid.IntRange(1, 3).Draw(t, "copies") {
		c := rdma.Copy{
			Bytes: rapid.SampledFrom([]uint64{1, 3, 16, 61, 200}).Draw(t, "bytes"),
			Count: [2]uint32{rapid.Uint32Range(1, 3).Draw(t, "outer"), rapid.Uint32Range(1, 3).Draw(t, "inner")},
		}
		c.Source, c.Target = drawCutPlace(t, c.Bytes), drawCutPlace(t, c.Bytes)
		for range rapid.IntRange(1, 3).Draw(t, "runs") {
			c.Runs = append(c.Runs, rdma.PairRun{
				Source: rapid.Uint32Range(0, 3).Draw(t, "source"), SourceStep: rapid.Uint32Range(0, 2).Draw(t, "source step"),
				Target: rapid.Uint32Range(0, 3).Draw(t, "target"), TargetStep: rapid.Uint32Range(0, 2).Draw(t, "target step"),
				Count: rapid.Uint32Range(1, 3).Draw(t, "count"),
			})
		}
		w.copies = append(w.copies, c)
		size := func(p *rdma.Place) uint64 { // units are below 8
			return p.Offset + 7*p.UnitStride + 2*p.Stride[0] + 2*p.Stride[1] + c.Bytes + rapid.Uint64Range(0, 9).Draw(t, "rest")
		}
		piece := func() uint64 {
			return rapid.OneOf(rapid.Uint64Range(5, 300), rapid.Just(uint64(1<<20))).Draw(t, "piece")
		}
		gap := rapid.SampledFrom([]uint64{0, 0, 7})
		n, of := size(&c.Source), piece()
		r := &region{bytes: n, piece: of}
		var keys [][]uint32
		r.addr, keys = w.from.add(gap.Draw(t, "gap"), n, of)
		for _, card := range keys {
			var known []registration
			for _, k := range card {
				known = append(known, fixedKey(k))
			}
			r.keys = append(r.keys, known)
		}
		w.sources = append(w.sources, r)
		n, of = size(&c.Target), piece()
		remote := &remoteRegion{bytes: n, piece: of}
		remote.addr, remote.keys = w.to.add(gap.Draw(t, "gap"), n, of)
		w.targets = append(w.targets, remote)
	}
	for i := range w.from.bytes {
		w.from.bytes[i] = byte(1 + i*i>>3 + 7*i)
	}
	return w
}

// obvious does the copies row by row, as the doc of rdma.Copy says.
func (w *cutWorld) obvious() (target []byte) {
	target = make([]byte, len(w.to.bytes))
	for k := range w.copies {
		c := &w.copies[k]
		from, to := w.from.bytes[w.sources[k].addr-w.from.base:], target[w.targets[k].addr-w.to.base:]
		at := func(p *rdma.Place, unit, i, j uint32) uint64 {
			return p.Offset + uint64(unit)*p.UnitStride + uint64(i)*p.Stride[0] + uint64(j)*p.Stride[1]
		}
		for _, run := range c.Runs {
			for u := range run.Count {
				for i := range c.Count[0] {
					for j := range c.Count[1] {
						s, d := at(&c.Source, run.Source+u*run.SourceStep, i, j), at(&c.Target, run.Target+u*run.TargetStep, i, j)
						copy(to[d:][:c.Bytes], from[s:][:c.Bytes])
					}
				}
			}
		}
	}
	return target
}

func (w *cutWorld) bytes() (n uint64) {
	for i := range w.copies {
		n += w.copies[i].Rows() * w.copies[i].Bytes
	}
	return n
}

// perform does what a device does with a chain, and says what is wrong with it.
func (w *cutWorld) perform(rows []row, b bounds, total uint64) error {
	if len(rows) > b.rows {
		return fmt.Errorf("%d rows, want at most %d", len(rows), b.rows)
	}
	sum, before := uint64(0), row{}
	for i, r := range rows {
		if len(r.pieces) == 0 || len(r.pieces) > b.pieces {
			return fmt.Errorf("row %d has %d pieces, want 1 to %d", i, len(r.pieces), b.pieces)
		}
		n := rowBytes(r)
		if n > b.request {
			return fmt.Errorf("row %d has %d bytes, want at most %d", i, n, b.request)
		}
		if i > 0 && before.rkey == r.rkey && before.remote+rowBytes(before) == r.remote &&
			len(before.pieces) < b.pieces && rowBytes(before)+uint64(r.pieces[0].length) <= b.request {
			return fmt.Errorf("rows %d and %d follow each other, and are two: %+v, %+v", i-1, i, before, r)
		}
		before = r
		to, err := w.to.of(b.rail, r.rkey, r.remote, n)
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		for k, p := range r.pieces {
			from, err := w.from.of(b.card, p.lkey, p.addr, uint64(p.length))
			if err != nil {
				return fmt.Errorf("row %d: piece %d: %w", i, k, err)
			}
			if k > 0 {
				if q := r.pieces[k-1]; q.lkey == p.lkey && q.addr+uint64(q.length) == p.addr {
					return fmt.Errorf("row %d: pieces %d and %d follow each other, and are two", i, k-1, k)
				}
			}
			to = to[copy(to, from):]
		}
		sum += n
	}
	if sum != total || total > b.bytes {
		return fmt.Errorf("%d bytes, said %d, want at most %d", sum, total, b.bytes)
	}
	return nil
}

func rowBytes(r row) (n uint64) {
	for _, p := range r.pieces {
		n += uint64(p.length)
	}
	return n
}

// Whatever a stripe allows, cutting and performing what was cut does what copying row by
// row does, a registration is never left, and a cursor that was kept begins there again.
func TestCutIsTheObviousCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawCutWorld(t)
		want := w.obvious()
		bound := func(most uint64) bounds {
			return bounds{
				card: rapid.IntRange(0, w.from.cards-1).Draw(t, "card"), rail: rapid.IntRange(0, w.to.cards-1).Draw(t, "rail"),
				rows: rapid.IntRange(1, 9).Draw(t, "rows"), pieces: rapid.IntRange(1, 5).Draw(t, "pieces"),
				request: rapid.SampledFrom([]uint64{1, 13, 64, 500, 1 << 30}).Draw(t, "request"),
				bytes:   min(most, rapid.SampledFrom([]uint64{1, 17, 128, 1000, 1 << 20}).Draw(t, "chunk")),
			}
		}
		// A chunk is cut, a record is put behind it, and both are performed.
		chunk := func(c *chain, at *cursor, b bounds, left uint64) uint64 {
			n := c.cut(w.copies, w.sources, w.targets, at, b)
			if n == 0 || n < min(b.bytes, left) && len(c.rows) < b.rows {
				t.Fatalf("%d of %d bytes in %d of %d rows", n, left, len(c.rows), b.rows)
			}
			c.pieces = append(c.pieces, piece{1, 2, 3})
			c.rows = append(c.rows, row{pieces: c.pieces[len(c.pieces)-1:]})
			if err := w.perform(c.rows[:len(c.rows)-1], b, n); err != nil {
				t.Fatalf("%v: %+v of %+v", err, b, w.copies)
			}
			return n
		}
		var c, other chain
		if rapid.Bool().Draw(t, "with room") { // as newStripe gives it
			c.rows, c.pieces = make([]row, 0, 10), make([]piece, 0, 50)
		} else {
			c.rows, c.pieces = make([]row, 0, 2), make([]piece, 0, rapid.IntRange(0, 3).Draw(t, "room"))
		}
		var at cursor
		for left := w.bytes(); left > 0; {
			kept, before := at, bytes.Clone(w.to.bytes)
			b := bound(left)
			n := chunk(&c, &at, b, left)
			left -= n
			if !rapid.Bool().Draw(t, "again") {
				continue
			}
			after := w.to.bytes
			w.to.bytes = before
			for again := n; again > 0; {
				again -= chunk(&other, &kept, bound(again), again)
			}
			if !bytes.Equal(w.to.bytes, after) {
				t.Fatalf("the second time it is not the same: %+v", w.copies)
			}
		}
		if n := c.cut(w.copies, w.sources, w.targets, &at, bounds{rows: 1, pieces: 1, request: 1, bytes: 1}); n != 0 {
			t.Fatalf("%d bytes after the last", n)
		}
		if !bytes.Equal(w.to.bytes, want) {
			t.Fatalf("the copies differ: %+v", w.copies)
		}
	})
}

// A row that is larger than a request is cut into requests of the largest size.
func TestCutOfOneLargeRow(t *testing.T) {
	big := &region{addr: 0, bytes: 8 << 30, piece: 8 << 30, keys: [][]registration{{fixedKey(1)}}}
	to := &remoteRegion{addr: 1 << 40, bytes: 8 << 30, piece: 8 << 30, keys: [][]uint32{{7}}}
	one := rdma.Copy{Bytes: 8 << 30, Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 1}}}
	var c chain
	var at cursor
	b := bounds{rows: 9, pieces: 4, request: chunkBytesMax, bytes: 3 << 30}
	n := c.cut([]rdma.Copy{one}, []*region{big}, []*remoteRegion{to}, &at, b)
	if n != 3<<30 || len(c.rows) != 3 {
		t.Fatalf("cut %d bytes in %d rows", n, len(c.rows))
	}
	for i, r := range c.rows {
		if len(r.pieces) != 1 || r.pieces[0] != (piece{uint64(i) << 30, 1 << 30, 1}) || r.remote != 1<<40+uint64(i)<<30 || r.rkey != 7 {
			t.Errorf("row %d: %+v", i, r)
		}
	}
}
