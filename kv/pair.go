package kv

import (
	"fmt"
	"math"
	"slices"
)

// maxTokens bounds a token number, so that no sum of two overflows.
const maxTokens = 1 << 40

// Box is a part of the logical space that one writer sends to one receiver.
type Box struct {
	Component string
	Layers    []int // ascending
	Heads     HeadRange
	RowBytes  uint64 // of one row of one head
	// Start, Step, Rows are the rows that are sent: Start, Start+Step, ... Of a Slot
	// component they are the rows of the slot.
	Start, Step, Rows uint64
}

// Pair is what one writer sends to one receiver of a room: the logical plan. It
// is small, knows no pages, and is the same on both sides. It is read only.
type Pair struct {
	Writer, Receiver Rank
	Prefix, Length   uint64 // the tokens [Prefix, Length) are wanted
	Meta             bool   // the writer sends the metadata row too
	Boxes            []Box  // none if nothing but the metadata row is sent

	moves                  []move
	tracks                 []track
	sourcePools            []Pool // of the writer
	targetPools            []Pool // of the receiver
	sourceSlots            uint32 // every Slot tensor of the plan has at least these
	targetSlots            uint32
	sourceMeta, targetMeta MetaRows
}

// track is what the components have in common that keep the same rows in the same
// pages.
type track struct {
	window         uint64
	rowTokens      uint32
	rows           rows
	source, target lane
}

// move is a box and how it lies in the memory of both sides.
type move struct {
	box            int
	track          int // index into Pair.tracks; slotTrack for a Slot component
	rows           uint32
	source, target strides
	tensors        []tensorPair
}

// slotTrack is the track of Slot components.
const slotTrack = -1

// strides are the bytes from one page, row and head to the next of a side, and
// from one row that is sent to the next.
type strides struct{ page, row, head, step uint64 }

func stridesOf(s *Shard) strides {
	return strides{page: s.PageStride, row: s.RowStride, head: s.HeadStride, step: s.RowStride}
}

// tensorPair is one layer of a move: where its first head of its first row of page
// 0 is, on both sides.
type tensorPair struct {
	layer          int
	source, target placed
}

type placed struct {
	region uint32
	offset uint64
}

// Pair is what writer sends to receiver of the route for a request of which the
// tokens [prefix, length) are wanted: nothing but the metadata row, or nothing at
// all, if the plan wants nothing of that writer.
func (f *Fit) Pair(r Route, writer, receiver Rank, prefix, length uint64) (*Pair, error) {
	w, n, err := f.parties(r, writer, receiver)
	if err != nil {
		return nil, err
	}
	if err := checkSpan(prefix, length); err != nil {
		return nil, err
	}
	p := f.newPair(w, n, prefix, length, f.decode.Pools(receiver))
	var writers []int
	f.boxes(r, n, func(b elected) {
		writers = insertSorted(writers, b.writer)
		if b.writer == w {
			p.add(b, f.prefill.Engines[w].shard(b.c.Name), f.decode.Engines[n].shard(b.c.Name))
		}
	})
	p.Meta = f.metaWriter(r, n, writers) == w
	return p, nil
}

// Pairs is Pair of each of the receiver's Candidates, in roster order, at the cost of
// little more than one.
func (f *Fit) Pairs(r Route, receiver Rank, prefix, length uint64) ([]*Pair, error) {
	_, n, err := f.parties(r, Rank{DP: r.PrefillDP}, receiver)
	if err != nil {
		return nil, err
	}
	if err := checkSpan(prefix, length); err != nil {
		return nil, err
	}
	var writers []int
	pairs := make(map[int]*Pair)
	pools := f.decode.Pools(receiver)
	pair := func(w int) *Pair {
		if pairs[w] == nil {
			pairs[w] = f.newPair(w, n, prefix, length, pools)
			writers = insertSorted(writers, w)
		}
		return pairs[w]
	}
	f.boxes(r, n, func(b elected) {
		pair(b.writer).add(b, f.prefill.Engines[b.writer].shard(b.c.Name), f.decode.Engines[n].shard(b.c.Name))
	})
	pair(f.metaWriter(r, n, writers)).Meta = true
	out := make([]*Pair, len(writers))
	for i, w := range writers {
		out[i] = pairs[w]
	}
	return out, nil
}

func checkSpan(prefix, length uint64) error {
	if prefix > length {
		return fmt.Errorf("prefix is %d, want at most the length %d", prefix, length)
	}
	if length > maxTokens {
		return fmt.Errorf("length is %d tokens, want at most %d", length, uint64(maxTokens))
	}
	return nil
}

// newPair is a pair without boxes, of engines by their places in the rosters.
func (f *Fit) newPair(w, n int, prefix, length uint64, targetPools []Pool) *Pair {
	we, re := &f.prefill.Engines[w], &f.decode.Engines[n]
	return &Pair{
		Writer: we.Rank, Receiver: re.Rank, Prefix: prefix, Length: length,
		sourcePools: f.prefill.Pools(we.Rank), targetPools: targetPools,
		sourceSlots: math.MaxUint32, targetSlots: math.MaxUint32,
		sourceMeta: we.Meta, targetMeta: re.Meta,
	}
}

// parties finds the two engines of a pair.
func (f *Fit) parties(r Route, writer, receiver Rank) (w, n int, err error) {
	if !f.Compatible() {
		return 0, 0, fmt.Errorf("plan: the instances do not work together: %w", f.reasons[0])
	}
	if r.PrefillDP < 0 || r.PrefillDP >= f.prefill.DP {
		return 0, 0, fmt.Errorf("prefill dp rank is %d, want 0 to %d", r.PrefillDP, f.prefill.DP-1)
	}
	if r.DecodeDP < 0 || r.DecodeDP >= f.decode.DP {
		return 0, 0, fmt.Errorf("decode dp rank is %d, want 0 to %d", r.DecodeDP, f.decode.DP-1)
	}
	w, ok := f.prefill.index(writer)
	if !ok || writer.DP != r.PrefillDP {
		return 0, 0, fmt.Errorf("writer is %v, which is no rank of prefill dp %d (pp %d cp %d tp %d)",
			writer, r.PrefillDP, f.prefill.PP, f.prefill.CP, f.prefill.TP)
	}
	n, ok = f.decode.index(receiver)
	if !ok || receiver.DP != r.DecodeDP {
		return 0, 0, fmt.Errorf("receiver is %v, which is no rank of decode dp %d (pp %d cp %d tp %d)",
			receiver, r.DecodeDP, f.decode.PP, f.decode.CP, f.decode.TP)
	}
	return w, n, nil
}

// add appends an elected box, if it has rows in this request, and finds its rows
// on both sides.
func (p *Pair) add(b elected, source, target *Shard) {
	m := move{
		box:     len(p.Boxes),
		source:  stridesOf(source),
		target:  stridesOf(target),
		tensors: make([]tensorPair, 0, len(b.layers)),
	}
	var sent rows
	if b.c.Kind == Slot {
		if !b.c.needed(p.Length) {
			return
		}
		m.track, m.rows = slotTrack, b.c.slotRows()
		sent = rows{0, 1, uint64(m.rows)}
	} else {
		m.track = p.track(b.c, source, target)
		sent = p.tracks[m.track].rows
	}
	if sent.count == 0 {
		return
	}
	s, t := 0, 0
	for _, layer := range b.layers {
		for source.Layers[s].Layer < layer {
			s++
		}
		for target.Layers[t].Layer < layer {
			t++
		}
		from, to := &source.Layers[s], &target.Layers[t]
		m.tensors = append(m.tensors, tensorPair{
			layer:  layer,
			source: placed{from.Region, from.Offset + uint64(b.heads.Low-source.Heads.Low)*source.HeadStride},
			target: placed{to.Region, to.Offset + uint64(b.heads.Low-target.Heads.Low)*target.HeadStride},
		})
	}
	if m.track == slotTrack {
		p.sourceSlots, p.targetSlots = min(p.sourceSlots, source.fewest()), min(p.targetSlots, target.fewest())
	} else {
		tr := &p.tracks[m.track]
		sn, _ := tr.source.turns()
		tn, _ := tr.target.turns()
		m.source.step *= sent.step / sn
		m.target.step *= sent.step / tn
	}
	p.Boxes = append(p.Boxes, Box{
		Component: b.c.Name, Layers: b.layers, Heads: b.heads, RowBytes: b.c.HeadBytes,
		Start: sent.start, Step: sent.step, Rows: sent.count,
	})
	p.moves = append(p.moves, m)
}

// track finds the track of a Paged component, or makes it.
func (p *Pair) track(c *Component, source, target *Shard) int {
	q := c.rowTokens()
	if at := slices.IndexFunc(p.tracks, func(t track) bool { return t.window == c.Window && t.rowTokens == q }); at >= 0 {
		return at
	}
	t := track{
		window: c.Window, rowTokens: q,
		source: lane{poolOf(p.sourcePools, c.Window), source.pageRows(c)},
		target: lane{poolOf(p.targetPools, c.Window), target.pageRows(c)},
	}
	t.rows = common(t.source, t.target, q, p.Prefix, p.Length)
	p.tracks = append(p.tracks, t)
	return len(p.tracks) - 1
}

// poolOf is the pool of a window, which is there.
func poolOf(pools []Pool, window uint64) Pool {
	return pools[slices.IndexFunc(pools, func(p Pool) bool { return p.Window == window })]
}

// needed answers whether a Slot component is part of a request of a length: the
// state of a group that is still open is none if the last group is complete.
func (c *Component) needed(length uint64) bool {
	return length > 0 && (c.rowTokens() == 1 || length%uint64(c.rowTokens()) > 0)
}
