package kv

import (
	"fmt"
	"math"
)

// maxTokens bounds a token number, so that no sum of two overflows.
const maxTokens = 1 << 40

// Box is a part of the logical space that one writer sends to one receiver.
type Box struct {
	Component string
	Layers    []int // ascending
	Heads     HeadRange
	RowBytes  uint64 // of one row: one token of one head
}

// Pair is what one writer sends to one receiver of a room: the logical plan. It
// is small, knows no pages, and is the same on both sides. It is read only.
type Pair struct {
	Writer, Receiver Rank
	Prefix, Length   uint64 // the tokens [Prefix, Length) are sent
	Meta             bool   // the writer sends the metadata row too
	Boxes            []Box  // none if Prefix is Length

	moves                    []move
	sourceTokens             uint32 // of a page
	targetTokens             uint32
	sourcePages, targetPages uint32 // every tensor of the plan has at least these
	sourceMeta, targetMeta   MetaRows
}

// move is a box and how it lies in the memory of both sides.
type move struct {
	box            int
	source, target strides
	tensors        []tensorPair
}

// strides are the bytes from one row to the next of a side.
type strides struct{ page, token, head uint64 }

// tensorPair is one layer of a move: where its first head of its first token of
// page 0 is, on both sides.
type tensorPair struct {
	layer          int
	source, target placed
}

type placed struct {
	region uint32
	offset uint64
}

// Pair is what writer sends to receiver of the route for the tokens
// [prefix, length): nothing but the metadata row, or nothing at all, if the plan
// wants nothing of that writer.
func (f *Fit) Pair(r Route, writer, receiver Rank, prefix, length uint64) (*Pair, error) {
	w, n, err := f.parties(r, writer, receiver)
	if err != nil {
		return nil, err
	}
	if prefix > length {
		return nil, fmt.Errorf("prefix is %d, want at most the length %d", prefix, length)
	}
	if length > maxTokens {
		return nil, fmt.Errorf("length is %d tokens, want at most %d", length, uint64(maxTokens))
	}
	we, re := &f.prefill.Engines[w], &f.decode.Engines[n]
	p := &Pair{
		Writer: writer, Receiver: receiver, Prefix: prefix, Length: length,
		sourceTokens: f.prefill.pageTokens(), targetTokens: f.decode.pageTokens(),
		sourcePages: math.MaxUint32, targetPages: math.MaxUint32,
		sourceMeta: we.Meta, targetMeta: re.Meta,
	}
	var writers []int
	f.boxes(r, n, func(by int, c *Component, layers []int, heads HeadRange) {
		writers = insertSorted(writers, by)
		if by == w && prefix < length {
			p.add(Box{Component: c.Name, Layers: layers, Heads: heads, RowBytes: c.HeadBytes}, we.shard(c.Name), re.shard(c.Name))
		}
	})
	p.Meta = f.metaWriter(r, n, writers) == w
	return p, nil
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

// add appends a box and finds its rows on both sides.
func (p *Pair) add(b Box, source, target *Shard) {
	m := move{
		box:     len(p.Boxes),
		source:  strides{source.PageStride, source.TokenStride, source.HeadStride},
		target:  strides{target.PageStride, target.TokenStride, target.HeadStride},
		tensors: make([]tensorPair, 0, len(b.Layers)),
	}
	s, t := 0, 0
	for _, layer := range b.Layers {
		for source.Layers[s].Layer < layer {
			s++
		}
		for target.Layers[t].Layer < layer {
			t++
		}
		from, to := &source.Layers[s], &target.Layers[t]
		m.tensors = append(m.tensors, tensorPair{
			layer:  layer,
			source: placed{from.Region, from.Offset + uint64(b.Heads.Low-source.Heads.Low)*source.HeadStride},
			target: placed{to.Region, to.Offset + uint64(b.Heads.Low-target.Heads.Low)*target.HeadStride},
		})
		p.sourcePages = min(p.sourcePages, from.Pages)
		p.targetPages = min(p.targetPages, to.Pages)
	}
	p.Boxes = append(p.Boxes, b)
	p.moves = append(p.moves, m)
}

// pageTokens is the page size of a valid instance, 1 if it holds nothing.
func (i *Instance) pageTokens() uint32 {
	for n := range i.Engines {
		if t := i.Engines[n].PageTokens(); t > 0 {
			return t
		}
	}
	return 1
}
