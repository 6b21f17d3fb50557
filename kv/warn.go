package kv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// smallRow is the bytes below which a row costs more than what it carries: a NIC
	// sends some hundred million messages a second at most, a core far fewer.
	smallRow = 512

	// unevenLoad is how much more than the average the busiest writer sends, in
	// percent, before it is said: stages that differ by a layer are no news.
	unevenLoad = 150

	// loadTokens and loadRooms are the requests that the load is taken from: a long
	// prompt, and as many rooms as spread the elections of any replication in use.
	loadTokens = 8192
	loadRooms  = 64

	// loadPairs bounds the pairs that are looked at for the load of all rooms: half a
	// second of work. Of larger deployments fewer rooms are taken, and at least one.
	loadPairs = 1 << 17
)

// Warnings are what works between the instances and costs more than it has to, in
// an order of their own: small rows, writers that send far more than others, page
// sizes that cut every page. None for instances that do not work together.
func (f *Fit) Warnings() []Reason {
	if !f.Compatible() {
		return nil
	}
	w := &warner{Fit: f}
	w.rows()
	w.pages()
	w.load()
	return sortReasons(w.warnings)
}

// warner collects the warnings of a fit.
type warner struct {
	*Fit
	warnings []Reason
}

func (f *warner) warn(field, component, prefill, decode, format string, a ...any) {
	f.warnings = append(f.warnings, Reason{Field: field, Component: component, Prefill: prefill, Decode: decode, Text: fmt.Sprintf(format, a...)})
}

// rows warns of components that go in small rows.
func (f *warner) rows() {
	small := make(map[string]uint64) // the bytes of its smallest rows
	whole := make(map[string]uint64) // what a page of the pair has of it
	for _, r := range f.Receivers(Route{}) {
		pairs, err := f.Pairs(Route{}, r, 0, loadTokens)
		if err != nil {
			return
		}
		for _, p := range pairs {
			for i := range p.moves {
				m := &p.moves[i]
				if m.track == slotTrack {
					continue // once in a request
				}
				box := &p.Boxes[m.box]
				if bytes, all := p.rowBytes(m); bytes < smallRow && (small[box.Component] == 0 || bytes < small[box.Component]) {
					small[box.Component], whole[box.Component] = bytes, all
				}
			}
		}
	}
	for n := range f.components {
		c := &f.components[n]
		bytes := small[c.Name]
		if bytes == 0 {
			continue
		}
		names := []string{c.Name}
		for k := n + 1; k < len(f.components); k++ { // what goes alike is said once
			if o := f.components[k].Name; small[o] == bytes {
				names = append(names, o)
				small[o] = 0
			}
		}
		advice := "start both sides with the same tp, cp and layout, or with heads outside of rows (layout hnd)"
		if whole[c.Name] == bytes {
			advice = "larger pages make longer rows"
		}
		f.warn("row_bytes", strings.Join(names, ", "), rowOrder(f.prefill, c), rowOrder(f.decode, c),
			"rows of `%s` are %d bytes, and rows below %d cost more than they carry: %s", strings.Join(names, "`, `"), bytes, smallRow, advice)
	}
}

// rowBytes is the bytes of the rows of a move, within a piece of pages that both
// sides have whole, and of all that the piece has.
func (p *Pair) rowBytes(m *move) (bytes, all uint64) {
	t := &p.tracks[m.track]
	sn, _ := t.source.turns()
	tn, _ := t.target.turns()
	count := min(uint64(t.source.pageRows)/(t.rows.step/sn), uint64(t.target.pageRows)/(t.rows.step/tn))
	box := &p.Boxes[m.box]
	heads := uint64(box.Heads.High - box.Heads.Low)
	r := rowsOf(uint32(max(1, count)), uint32(heads), box.RowBytes, m.source, m.target)
	return r.bytes, max(1, count) * heads * box.RowBytes
}

// rowOrder says how the first engine that holds a component lays out its rows.
func rowOrder(i *Instance, c *Component) string {
	for n := range i.Engines {
		if s := i.Engines[n].shard(c.Name); s != nil {
			return fmt.Sprintf("heads %s, row_stride %d, head_stride %d", s.Heads, s.RowStride, s.HeadStride)
		}
	}
	return ""
}

// pages warns of page sizes that do not divide one another.
func (f *warner) pages() {
	seen := make(map[uint64]bool)
	for n := range f.components {
		c := &f.components[n]
		if c.Kind != Paged || seen[c.Window] {
			continue
		}
		seen[c.Window] = true
		p, d := f.prefill.pageOf(c.Name), f.decode.pageOf(c.Name)
		if g := gcd(p, d); g < min(p, d) {
			f.warn("page_tokens", c.Name, strconv.Itoa(int(p)), strconv.Itoa(int(d)),
				"pages of %d tokens on prefill and %d on decode do not divide one another: every page is cut, into pieces of as little as %d tokens: use page sizes of which one divides the other",
				p, d, g)
		}
	}
}

// pageOf is the page size of a component.
func (i *Instance) pageOf(component string) uint32 {
	for n := range i.Engines {
		if s := i.Engines[n].shard(component); s != nil {
			return s.PageTokens
		}
	}
	return 1
}

// load warns of a writer that sends far more than the average.
func (f *warner) load() {
	senders := f.Senders(Route{})
	sent := make([]uint64, len(senders))
	total := uint64(0)
	receivers := f.Receivers(Route{})
	rooms, seen := min(loadRooms, 4*len(senders)), 0
	for room := 0; room < rooms && (room == 0 || seen+seen/room <= loadPairs); room++ {
		for _, r := range receivers {
			pairs, err := f.Pairs(Route{Room: uint64(room)}, r, 0, loadTokens)
			if err != nil {
				return
			}
			seen += len(pairs)
			for _, p := range pairs {
				n, _ := slices.BinarySearchFunc(senders, p.Writer, Rank.Compare)
				sent[n] += p.Bytes()
				total += p.Bytes()
			}
		}
	}
	busiest := 0
	for n := range sent {
		if sent[n] > sent[busiest] {
			busiest = n
		}
	}
	if mean := total / uint64(len(senders)); sent[busiest]*100 > mean*unevenLoad {
		f.warn("parallel", "", senders[busiest].String(), "",
			"prefill rank (%v) sends %d %% of the bytes of a request of %d tokens, the average of its %d ranks is %d %%: the request waits for it: even out pp_layers, or the layers of the components",
			senders[busiest], sent[busiest]*100/total, loadTokens, len(senders), 100/len(senders))
	}
}

// Bytes is what the pair sends of a request, without the metadata row.
func (p *Pair) Bytes() uint64 {
	n := uint64(0)
	for _, b := range p.Boxes {
		n += uint64(len(b.Layers)) * uint64(b.Heads.High-b.Heads.Low) * b.RowBytes * b.Rows
	}
	return n
}
