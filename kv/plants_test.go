package kv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// There is a test here for each direction in which a byte can go to the wrong
// place by one: heads, layers, pages, padding, sections, windows, row groups, page
// ranges, turns, prefixes, slots. Each is small, without chance, and named for its
// direction. It moves memory by Pair.Copies, where each byte has a number of its own,
// and compares with the slow loop of the property test. Where a rank keeps a request,
// and what it has of the model, is written down or found the slow way too, so that
// nothing is right only by its own measure. An error of one that is put into the
// product in a direction has to fail its test: that is how they were tried.

// trip is a request between two deployments.
type trip struct {
	prefill, decode *Deployment
	prefix, length  uint64
	ends            []uint64 // where chunks end, ascending; one more ends at length
	cut             int      // above 0: of each chunk the layers below it go first
}

func (r trip) String() string {
	return fmt.Sprintf("tokens [%d,%d) in chunks to %v, layers cut at %d, from %+v to %+v", r.prefix, r.length, r.ends, r.cut, *r.prefill, *r.decode)
}

// chunks are the chunks of the request, without where the writer keeps it.
func (r trip) chunks() []Chunk {
	var out []Chunk
	from := uint64(0)
	for _, to := range append(slices.Clone(r.ends), r.length) {
		if to > r.length || to < r.length && to <= from {
			continue
		}
		c := Chunk{From: from, To: to, Last: to == r.length}
		if r.cut > 0 {
			c.Layers, c.More = LayerRange{0, r.cut}, true
			out = append(out, c)
			c.Layers, c.More = LayerRange{r.cut, 1000}, false
		}
		out = append(out, c)
		from = to
		if to == r.length {
			break
		}
	}
	return out
}

// laidOut is a deployment with room for a request, three slots and four metadata
// rows.
func laidOut(t *testing.T, d *Deployment, length uint64) *Instance {
	t.Helper()
	of := *d
	of.MetaRows, of.MetaRowBytes, of.Slots = 4, 24, 3
	i, reasons := of.Instance(uint32(length/uint64(d.PageTokens)) + 4)
	if len(reasons) > 0 {
		t.Fatalf("no instance: %v", reasons)
	}
	return i
}

// lies is where a rank keeps a request, found token by token. Pages are in order,
// backwards or shuffled, as the number says.
func (i *Instance) lies(e *Engine, prefix, length, order uint64) Placement {
	p := Placement{Slot: uint32(order+uint64(e.Rank.TP)) % 3, MetaRow: uint32(order+uint64(e.Rank.TP)) % 4}
	for n := range e.Shards {
		s := &e.Shards[n]
		c := i.Model.component(s.Component)
		if c.Kind != Paged || slices.ContainsFunc(p.Tables, func(t PoolTable) bool { return t.Window == c.Window }) {
			continue
		}
		from := prefix
		if c.Window > 0 && length > c.Window && prefix < length {
			from = i.floor(max(prefix, length-c.Window), s.PageTokens)
		}
		stripe := uint64(s.PageTokens)
		if i.Split == Interleaved {
			stripe *= uint64(i.CP)
		}
		var stripes []uint64
		for token := from; token < length; token++ {
			mine := i.Split != PageRanges || i.owner(token, 1, s.PageTokens, length) == e.Rank.CP
			if k := token / stripe; mine && prefix < length && (len(stripes) == 0 || stripes[len(stripes)-1] != k) {
				stripes = append(stripes, k)
			}
		}
		table := PoolTable{Window: c.Window}
		if len(stripes) > 0 {
			table.First = stripes[0] * stripe
		}
		pages := countTo(int(s.Layers[0].Pages))
		switch order % 3 {
		case 0:
			pages = pages[1:]
		case 1:
			slices.Reverse(pages)
		default:
			rand.New(rand.NewPCG(order, uint64(e.Rank.TP))).Shuffle(len(pages), func(a, b int) { pages[a], pages[b] = pages[b], pages[a] })
		}
		table.Pages = pages[:len(stripes)]
		p.Tables = append(p.Tables, table)
	}
	slices.SortFunc(p.Tables, func(a, b PoolTable) int { return int(a.Window) - int(b.Window) })
	return p
}

// origin is what a row is of the model. The metadata row is the component "".
type origin struct {
	component   string
	layer, head int
	row         uint64
}

// labels is the regions of an engine with a number in the place of each byte: that
// of its row's origin, times rowMost, and its place in the row, so that no two look
// alike. 0 is in the place of what is nobody's.
type labels [][]uint32

// rowMost is more bytes than a row has here.
const rowMost = 64

func newLabels(e *Engine) labels {
	out := make(labels, len(e.RegionBytes))
	for n, size := range e.RegionBytes {
		out[n] = make([]uint32, size)
	}
	return out
}

// ledger numbers origins.
type ledger map[origin]uint32

func (l ledger) number(o origin) uint32 {
	if l[o] == 0 {
		l[o] = uint32(len(l)) + 1
	}
	return l[o]
}

// full is the memory of an engine that has the rows of a request from a token on,
// by the slow loop, as far as has says.
func (l ledger) full(i *Instance, e *Engine, at *Placement, from, length uint64, has func(c *Component, row uint64) bool) labels {
	mem := newLabels(e)
	fill := func(region uint32, offset, bytes uint64, o origin) {
		label := l.number(o) * rowMost
		for n := range min(bytes, rowMost) {
			mem[region][offset+n] = label + uint32(n)
		}
	}
	i.rows(e, at, from, length, func(c *Component, layer, head int, row uint64, region uint32, offset uint64) {
		if has(c, row) {
			fill(region, offset, c.HeadBytes, origin{c.Name, layer, head, row})
		}
	})
	fill(e.Meta.Region, e.Meta.Offset+uint64(at.MetaRow)*e.Meta.RowBytes, e.Meta.RowBytes, origin{})
	return mem
}

// arrives moves the request in three rooms, and requires that every receiver has
// what the slow loop says, each byte written once.
func (r trip) arrives(t *testing.T) {
	t.Helper()
	arrivesBetween(t, r, laidOut(t, r.prefill, r.length), laidOut(t, r.decode, r.length))
}

// arrivesBetween is arrives between instances that may be no deployments.
func arrivesBetween(t *testing.T, r trip, p, d *Instance) {
	t.Helper()
	fit := Match(p, d)
	if !fit.Compatible() {
		t.Fatalf("%v: not compatible: %v", r, fit.Reasons())
	}
	l := make(ledger)
	for room := range uint64(3) {
		s := &scene{
			fit: fit, route: Route{PrefillDP: int(room) % p.DP, DecodeDP: int(room+1) % d.DP, Room: room},
			prefix: r.prefix, length: r.length, chunks: r.chunks(),
			source: map[Rank]*Placement{}, target: map[Rank]*Placement{},
		}
		sources := make(map[Rank]labels)
		for n := range p.Engines {
			e := &p.Engines[n]
			at := p.lies(e, 0, r.length, room+1)
			s.source[e.Rank] = &at
			sources[e.Rank] = l.full(p, e, &at, 0, r.length, func(*Component, uint64) bool { return true })
		}
		for n := range d.Engines {
			e := &d.Engines[n]
			if e.Rank.DP != s.route.DecodeDP {
				continue
			}
			at := d.lies(e, r.prefix, r.length, room)
			s.target[e.Rank] = &at
			due := l.full(d, e, &at, r.prefix, r.length, s.sent)
			if err := s.arrivesAt(e, sources, due); err != nil {
				t.Fatalf("room %d, receiver %v: %v\n%v", room, e.Rank, err, r)
			}
		}
	}
}

// sent answers whether prefill has a row of a component: of a window it keeps what
// begins at a page of its own.
func (s *scene) sent(c *Component, row uint64) bool {
	if s.fit.prefill.Model.component(c.Name) == nil {
		return false
	}
	for n := range s.fit.prefill.Engines {
		if h := s.fit.prefill.Engines[n].shard(c.Name); h != nil && c.Window > 0 && s.length > c.Window {
			return row >= s.fit.prefill.floor(s.length-c.Window, h.PageTokens)
		}
	}
	return true
}

// arrivesAt moves the request to one receiver and compares.
func (s *scene) arrivesAt(e *Engine, sources map[Rank]labels, due labels) error {
	mem := newLabels(e)
	for n := range s.fit.prefill.Engines {
		w := s.fit.prefill.Engines[n].Rank
		if w.DP != s.route.PrefillDP {
			continue
		}
		p, err := s.fit.Pair(s.route, w, e.Rank, s.prefix, s.length)
		if err != nil {
			return err
		}
		targets, err := p.Targets(s.target[e.Rank])
		if err != nil {
			return err
		}
		granted, left := newLabels(e), 0
		for k := range targets {
			g := &targets[k]
			g.expand(func(at uint64) {
				for b := range g.Bytes {
					granted[g.Region][at+b]++
					left++
				}
			})
		}
		for _, c := range s.chunks {
			c.Source = *s.source[w]
			copies, err := p.Copies(c, s.target[e.Rank])
			if err != nil {
				return err
			}
			for k := range copies {
				moved, err := copies[k].carry(sources[w], mem, granted)
				if err != nil {
					return fmt.Errorf("writer %v: %w: %+v", w, err, copies[k])
				}
				left -= moved
			}
		}
		if left != 0 {
			return fmt.Errorf("writer %v: %d bytes were granted and not written", w, left)
		}
	}
	for region := range due {
		for at, want := range due[region] {
			if got := mem[region][at]; got != want {
				return fmt.Errorf("region %d byte %d is byte %d of row %d of the request, want byte %d of row %d (row 0 is none)",
					region, at, got%rowMost, got/rowMost, want%rowMost, want/rowMost)
			}
		}
	}
	return nil
}

// carry moves the bytes of a copy, and says how many.
func (c *Copy) carry(from, to, granted labels) (moved int, err error) {
	c.expand(func(source, target uint64) {
		s, d := from[c.Source.Region], to[c.Target.Region]
		if err == nil && (source+c.Bytes > uint64(len(s)) || target+c.Bytes > uint64(len(d))) {
			err = fmt.Errorf("a row from byte %d to %d is outside of its region", source, target)
		}
		for b := uint64(0); err == nil && b < c.Bytes; b++ {
			if n := granted[c.Target.Region][target+b]; n != 1 {
				err = fmt.Errorf("byte %d is written and was granted %d times", target+b, n)
			} else if s[source+b] == 0 {
				err = fmt.Errorf("byte %d comes from byte %d, which is not of the request", target+b, source+b)
			} else if d[target+b] != 0 {
				err = fmt.Errorf("byte %d is written twice", target+b)
			}
			d[target+b] = s[source+b]
			moved++
		}
	})
	return moved, err
}

// gaps lays an instance out anew, with everything so many times as far apart.
func gaps(i *Instance, times uint64) *Instance {
	for n := range i.Engines {
		e := &i.Engines[n]
		for k := range e.Shards {
			s := &e.Shards[k]
			s.PageStride, s.RowStride, s.HeadStride = s.PageStride*times, s.RowStride*times, s.HeadStride*times
			for l := range s.Layers {
				s.Layers[l].Offset *= times
			}
		}
		e.Meta.Offset *= times
		e.RegionBytes[0] *= times
	}
	return i
}

// with is a copy of the deployment that is changed.
func (d *Deployment) with(change func(d *Deployment)) *Deployment {
	of := *d
	of.Model.Components = slices.Clone(d.Model.Components)
	change(&of)
	return &of
}

func (d *Deployment) withPages(tokens uint32) *Deployment {
	return d.with(func(d *Deployment) { d.PageTokens = tokens })
}

func (d *Deployment) withOrder(l Layout) *Deployment {
	return d.with(func(d *Deployment) { d.Layout = l })
}

func (d *Deployment) withSplit(cp int, s Split) *Deployment {
	return d.with(func(d *Deployment) { d.CP, d.Split = cp, s })
}

// declared is a deployment of components that are declared as they come: in bytes, on
// layers 0 and 1 if they name none.
func declared(tp int, page uint32, cs ...Component) *Deployment {
	d := &Deployment{Model: Model{ID: "m"}, TP: tp, PP: 1, DP: 1, PageTokens: page, Layout: NHD}
	for _, c := range cs {
		c.DType = UINT8
		if c.Kind == 0 {
			c.Kind = Paged
		}
		if c.Layers == nil {
			c.Layers = []int{0, 1}
		}
		d.Model.Components = append(d.Model.Components, c)
	}
	return d
}

func mlaOf(tp int, page uint32) *Deployment {
	return declared(tp, page, Component{Name: "latent", Heads: 1, HeadBytes: 3})
}

func TestHeadsGoToTheirPlace(t *testing.T) {
	for _, tc := range []struct {
		heads           int
		prefill, decode []HeadRange // by rank
	}{
		{8, []HeadRange{{0, 4}, {4, 8}}, []HeadRange{{0, 2}, {2, 4}, {4, 6}, {6, 8}}},
		{8, []HeadRange{{0, 2}, {2, 4}, {4, 6}, {6, 8}}, []HeadRange{{0, 8}}},
		{6, []HeadRange{{0, 2}, {2, 4}, {4, 6}}, []HeadRange{{0, 3}, {3, 6}}},
		{2, []HeadRange{{0, 2}}, []HeadRange{{0, 1}, {0, 1}, {1, 2}, {1, 2}}},
		{4, []HeadRange{{0, 1}, {0, 1}, {1, 2}, {1, 2}, {2, 3}, {2, 3}, {3, 4}, {3, 4}}, []HeadRange{{0, 2}, {2, 4}}},
		{10, []HeadRange{{0, 5}, {5, 10}}, []HeadRange{{0, 2}, {2, 4}, {4, 6}, {6, 8}, {8, 10}}},
	} {
		t.Run(fmt.Sprintf("%d heads %d to %d", tc.heads, len(tc.prefill), len(tc.decode)), func(t *testing.T) {
			p, d := attentionOf(2, tc.heads, len(tc.prefill)), attentionOf(2, tc.heads, len(tc.decode))
			for side, want := range map[*Deployment][]HeadRange{p: tc.prefill, d: tc.decode} {
				for n, e := range mustInstance(t, side).Engines {
					if got := e.Shards[0].Heads; got != want[n] {
						t.Errorf("rank %d of %d has heads %v, want %v", n, len(want), got, want[n])
					}
				}
			}
			for _, orders := range [][2]Layout{{NHD, NHD}, {NHD, HND}, {HND, NHD}, {HND, HND}} {
				r := trip{prefill: p.withOrder(orders[0]), decode: d.withOrder(orders[1]), prefix: 3, length: 18, ends: []uint64{7}}
				r.arrives(t)
				// And with a gap behind each head, so that nothing makes rows longer.
				arrivesBetween(t, r, gaps(laidOut(t, r.prefill, r.length), 3), gaps(laidOut(t, r.decode, r.length), 2))
			}
		})
	}
}

func TestLayersGoToTheirPlace(t *testing.T) {
	some := func(d *Deployment) *Deployment {
		return d.edit("v", func(c *Component) { c.Layers = []int{1, 2, 5} })
	}
	for _, tc := range []struct {
		name            string
		prefill, decode *Deployment
		stages          []string // layers of k of each prefill stage
	}{
		{"7 and 8 of 15", attentionOf(15, 2, 1, 7, 8), attentionOf(15, 2, 1), []string{"0-6", "7-14"}},
		{"8 and 7 of 15", attentionOf(15, 2, 1, 8, 7), attentionOf(15, 2, 1, 7, 8), []string{"0-7", "8-14"}},
		{"as even as possible", attentionOf(7, 2, 1).with(func(d *Deployment) { d.PP = 3 }), attentionOf(7, 2, 1, 6, 1), []string{"0-2", "3-4", "5-6"}},
		{"one stage to three", attentionOf(6, 2, 1), attentionOf(6, 2, 1, 1, 2, 3), []string{"0-5"}},
		{"some layers", some(attentionOf(6, 2, 1, 2, 4)), some(attentionOf(6, 2, 1, 5, 1)), []string{"0-1", "2-5"}},
		{"a layer number that is far", attentionOf(3, 2, 1, 2, 1).edit("v", func(c *Component) { c.Layers = []int{0, 1, 61} }).with(func(d *Deployment) { d.PPLayers = []int{2, 2} }),
			attentionOf(3, 2, 1).edit("v", func(c *Component) { c.Layers = []int{0, 1, 61} }), []string{"0-1", "2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for n, e := range mustInstance(t, tc.prefill).Engines {
				var got []int
				for _, l := range e.shard("k").Layers {
					got = append(got, l.Layer)
				}
				if FormatLayers(got) != tc.stages[n] {
					t.Errorf("stage %d has layers %s of k, want %s", n, FormatLayers(got), tc.stages[n])
				}
			}
			for _, cut := range []int{0, 1, 6, 7, 8} {
				for _, order := range []Layout{NHD, "page,layer,row,head"} {
					trip{prefill: tc.prefill.withOrder(order), decode: tc.decode, length: 9, ends: []uint64{5}, cut: cut}.arrives(t)
				}
			}
		})
	}
}

func TestPagesGoToTheirPlace(t *testing.T) {
	for _, sizes := range [][2]uint32{{4, 4}, {16, 64}, {64, 16}, {1, 32}, {3, 7}, {5, 4}, {6, 4}} {
		t.Run(fmt.Sprintf("pages of %d to %d", sizes[0], sizes[1]), func(t *testing.T) {
			for _, length := range []uint64{1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 130} {
				for _, ends := range [][]uint64{nil, {5, 16, 64}} {
					trip{prefill: attentionOf(1, 2, 1).withPages(sizes[0]), decode: attentionOf(1, 2, 1).withPages(sizes[1]).withOrder(HND), length: length, ends: ends}.arrives(t)
				}
			}
		})
	}
}

// TestPrefixStaysAsItIs: of the tokens that decode holds nothing is written, also
// within a page, whatever the chunks are.
func TestPrefixStaysAsItIs(t *testing.T) {
	for prefix := range uint64(18) {
		for _, pages := range [][2]uint32{{4, 4}, {4, 6}, {8, 2}} {
			for _, ends := range [][]uint64{nil, {4, 6, 13}} {
				trip{prefill: attentionOf(1, 2, 1).withPages(pages[0]), decode: attentionOf(1, 2, 1).withPages(pages[1]), prefix: prefix, length: 17, ends: ends}.arrives(t)
			}
		}
	}
}

// TestPaddedPagesGoToTheirPlace: a page may be longer than its rows.
func TestPaddedPagesGoToTheirPlace(t *testing.T) {
	for _, align := range [][2]uint64{{0, 7}, {16, 0}, {16, 24}, {1, 64}} {
		padded := func(align uint64) *Deployment {
			return attentionOf(2, 2, 1).with(func(d *Deployment) { d.PageAlign = align })
		}
		trip{prefill: padded(align[0]).withPages(3), decode: padded(align[1]).withPages(4), prefix: 2, length: 25, ends: []uint64{11}}.arrives(t)
	}
	for _, tc := range [][2]uint64{{0, 32}, {1, 32}, {32, 32}, {33, 33}, {7, 35}, {31, 62}, {576, 576}} {
		i := mustInstance(t, attentionOf(2, 2, 1).with(func(d *Deployment) { d.PageAlign = tc[0] }))
		if got := i.Engines[0].Shards[0].PageStride; got != tc[1] {
			t.Errorf("pages of 32 bytes at multiples of %d: page_stride is %d, want %d", tc[0], got, tc[1])
		}
	}
}

// TestSectionsGoToTheirPlace: components that lie side by side in one tensor are
// cut by heads each by itself, wherever the sections stand.
func TestSectionsGoToTheirPlace(t *testing.T) {
	sections := func(tp int, order Layout, tensors ...string) *Deployment {
		return declared(tp, 4,
			Component{Name: "k", Heads: 4, HeadBytes: 3, Tensor: tensors[0]},
			Component{Name: "v", Heads: 4, HeadBytes: 2, Tensor: tensors[0]},
			Component{Name: "conv.q", Kind: Slot, Heads: 4, HeadBytes: 1, SlotRows: 3, Tensor: tensors[1]},
			Component{Name: "conv.k", Kind: Slot, Heads: 4, HeadBytes: 1, SlotRows: 3, Tensor: tensors[1]},
			Component{Name: "conv.v", Kind: Slot, Heads: 8, HeadBytes: 2, SlotRows: 3, Tensor: tensors[1]},
		).withOrder(order)
	}
	orders := []Layout{NHD, HND, "part,layer,page,row,head", "layer,part,page,row,head", "page,layer,part,head,row"}
	for _, tps := range [][2]int{{1, 2}, {2, 1}, {4, 2}, {2, 8}} {
		t.Run(fmt.Sprintf("tp %d to %d", tps[0], tps[1]), func(t *testing.T) {
			for n, order := range orders {
				other := orders[(n+2)%len(orders)]
				trip{prefill: sections(tps[0], order, "kv", "conv"), decode: sections(tps[1], other, "kv", "conv"), prefix: 1, length: 10, ends: []uint64{6}}.arrives(t)
				trip{prefill: sections(tps[0], order, "kv", "conv"), decode: sections(tps[1], order, "", ""), length: 5}.arrives(t)
			}
		})
	}
}

// TestSectionsLieInOrder: the first component of a tensor stands first, the next
// where it ends.
func TestSectionsLieInOrder(t *testing.T) {
	d := declared(2, 4,
		Component{Name: "x", Kind: Slot, Heads: 8, HeadBytes: 1, SlotRows: 3, Tensor: "conv", Layers: []int{0}},
		Component{Name: "b", Kind: Slot, Heads: 4, HeadBytes: 1, SlotRows: 3, Tensor: "conv", Layers: []int{0}},
		Component{Name: "c", Kind: Slot, Heads: 4, HeadBytes: 1, SlotRows: 3, Tensor: "conv", Layers: []int{0}})
	for _, s := range mustInstance(t, d).Engines[1].Shards {
		want := map[string]uint64{"x": 0, "b": 4, "c": 6}[s.Component]
		if s.Layers[0].Offset != want || s.RowStride != 8 || s.PageStride != 24 {
			t.Errorf("%s begins at byte %d in rows of %d and slots of %d, want %d, 8 and 24", s.Component, s.Layers[0].Offset, s.RowStride, s.PageStride, want)
		}
	}
}

func TestStateGoesToItsSlot(t *testing.T) {
	state := func(tp int, order Layout) *Deployment {
		return declared(tp, 4, Component{Name: "k", Heads: 2, HeadBytes: 3},
			Component{Name: "ssm", Kind: Slot, Heads: 4, HeadBytes: 5, Layers: []int{0}},
			Component{Name: "conv", Kind: Slot, Heads: 8, HeadBytes: 2, SlotRows: 3, Layers: []int{1}}).withOrder(order)
	}
	for _, tps := range [][2]int{{1, 1}, {1, 2}, {4, 1}, {2, 4}} {
		for _, cut := range []int{0, 1} {
			trip{prefill: state(tps[0], NHD), decode: state(tps[1], HND), length: 9, ends: []uint64{4}, cut: cut}.arrives(t)
			trip{prefill: state(tps[0], HND), decode: state(tps[1], NHD), prefix: 9, length: 9, cut: cut}.arrives(t)
			trip{prefill: state(tps[0], NHD), decode: state(tps[1], NHD), length: 1, cut: cut}.arrives(t)
		}
	}
}

// windowOf is k of all tokens and swa of a window.
func windowOf(tp int, page uint32, window uint64) *Deployment {
	return declared(tp, page, Component{Name: "k", Heads: 2, HeadBytes: 2}, Component{Name: "swa", Heads: 2, HeadBytes: 3, Window: window})
}

// TestWindowsBeginAtAPage: the pool of a window has the pages from that in which
// its first token is, or the first that is wanted.
func TestWindowsBeginAtAPage(t *testing.T) {
	for _, tc := range []struct {
		page           uint32
		window         uint64
		prefix, length uint64
		first          uint64
		pages          int
	}{
		{16, 128, 0, 128, 0, 8}, {16, 128, 0, 129, 0, 9}, {16, 128, 0, 143, 0, 9}, {16, 128, 0, 144, 16, 8}, {16, 128, 0, 145, 16, 9},
		{16, 128, 0, 300, 160, 9}, {16, 128, 160, 300, 160, 9}, {16, 128, 176, 300, 176, 8}, {16, 128, 177, 300, 176, 8}, {16, 128, 299, 300, 288, 1},
		{4, 5, 0, 5, 0, 2}, {4, 5, 0, 8, 0, 2}, {4, 5, 0, 9, 4, 2}, {4, 5, 0, 10, 4, 2}, {4, 1, 0, 9, 8, 1}, {4, 1, 0, 8, 4, 1},
	} {
		i := mustInstance(t, windowOf(1, tc.page, tc.window))
		pool, _ := i.Pool(Rank{}, tc.window)
		if first, n := pool.Need(tc.prefix, tc.length); first != tc.first || n != tc.pages {
			t.Errorf("pages of %d, window %d, tokens [%d,%d): %d pages from token %d, want %d from %d", tc.page, tc.window, tc.prefix, tc.length, n, first, tc.pages, tc.first)
		}
	}
	for _, window := range []uint64{1, 4, 5, 16, 17} {
		t.Run(fmt.Sprintf("window %d", window), func(t *testing.T) {
			for _, pages := range [][2]uint32{{4, 4}, {4, 8}, {8, 4}, {3, 5}} {
				for _, length := range []uint64{1, 4, 5, 6, 16, 17, 23, 24, 25} {
					for _, prefix := range []uint64{0, 3, length - min(length, window+1), length - min(length, window), length - 1} {
						if prefix > length {
							continue
						}
						trip{prefill: windowOf(1, pages[0], window), decode: windowOf(2, pages[1], window), prefix: prefix, length: length, ends: []uint64{7, 20}}.arrives(t)
					}
				}
			}
		})
	}
}

// TestRowGroupsAreSentWhenComplete: a row of several tokens goes with the chunk
// that has its last, and the state of the group that is open goes at the end if
// there is one.
func TestRowGroupsAreSentWhenComplete(t *testing.T) {
	grouped := func(q, page uint32) *Deployment {
		return declared(1, page, Component{Name: "latent", Heads: 1, HeadBytes: 2},
			Component{Name: "c", Heads: 1, HeadBytes: 3, RowTokens: q},
			Component{Name: "open", Kind: Slot, Heads: 1, HeadBytes: 2, RowTokens: q, SlotRows: q})
	}
	for _, q := range []uint32{4, 8} {
		t.Run(fmt.Sprintf("rows of %d tokens", q), func(t *testing.T) {
			for length := uint64(1); length < 26; length++ {
				for _, prefix := range []uint64{0, 1, uint64(q) - 1, uint64(q), uint64(q) + 1} {
					if prefix <= length {
						trip{prefill: grouped(q, 8), decode: grouped(q, 16), prefix: prefix, length: length, ends: []uint64{3, 4, 9, 15, 16, 23}}.arrives(t)
					}
				}
			}
			fit := Match(mustInstance(t, grouped(q, 8)), mustInstance(t, grouped(q, 8)))
			for _, tc := range []struct {
				prefix, length, start, rows uint64
				open                        bool
			}{
				{0, uint64(q) - 1, 0, 0, true}, {0, uint64(q), 0, 1, false}, {0, uint64(q) + 1, 0, 1, true}, {0, 3 * uint64(q), 0, 3, false},
				{1, 2 * uint64(q), 0, 2, false}, // a row is wanted whole if one of its tokens is
				{uint64(q), 2*uint64(q) + 1, 1, 1, true}, {uint64(q) + 1, 2 * uint64(q), 1, 1, false},
			} {
				p, err := fit.Pair(Route{}, Rank{}, Rank{}, tc.prefix, tc.length)
				if err != nil {
					t.Fatal(err)
				}
				var start, rows uint64
				open := false
				for _, b := range p.Boxes {
					if b.Component == "c" {
						start, rows = b.Start, b.Rows
					}
					open = open || b.Component == "open"
				}
				if start != tc.start || rows != tc.rows || open != tc.open {
					t.Errorf("tokens [%d,%d): %d rows from %d and open state %v, want %d from %d and %v", tc.prefix, tc.length, rows, start, open, tc.rows, tc.start, tc.open)
				}
			}
		})
	}
}

// TestPageRangesMeet: the pages of a request are cut over the CP ranks, the earlier
// ranks take the rest, and what they send meets without a gap.
func TestPageRangesMeet(t *testing.T) {
	for _, tc := range []struct {
		cp, length int
		want       [][2]uint64 // rows of each rank
	}{
		{3, 40, [][2]uint64{{0, 16}, {16, 28}, {28, 40}}},
		{3, 37, [][2]uint64{{0, 16}, {16, 28}, {28, 37}}},
		{2, 12, [][2]uint64{{0, 8}, {8, 12}}},
		{4, 9, [][2]uint64{{0, 4}, {4, 8}, {8, 9}, {0, 0}}},
	} {
		fit := Match(mustInstance(t, mlaOf(1, 4).withSplit(tc.cp, PageRanges)), mustInstance(t, mlaOf(1, 4)))
		for cp, want := range tc.want {
			p, err := fit.Pair(Route{}, Rank{CP: cp}, Rank{}, 0, uint64(tc.length))
			if err != nil {
				t.Fatal(err)
			}
			var got [2]uint64
			for _, b := range p.Boxes {
				got = [2]uint64{b.Start, b.Start + b.Rows}
			}
			if got != want {
				t.Errorf("%d tokens over %d ranks: rank %d sends rows %v, want %v", tc.length, tc.cp, cp, got, want)
			}
		}
	}
	for _, cp := range []int{2, 3, 5} {
		for _, pages := range [][2]uint32{{4, 4}, {4, 16}, {8, 3}} {
			for _, length := range []uint64{1, 4, 5, 12, 13, 31, 40, 41} {
				trip{prefill: mlaOf(1, pages[0]).withSplit(cp, PageRanges), decode: mlaOf(2, pages[1]), prefix: length / 3, length: length, ends: []uint64{9, 30}}.arrives(t)
				trip{prefill: windowOf(1, pages[0], 11).withSplit(cp, PageRanges), decode: windowOf(1, pages[1], 11).withSplit(2, PageRanges), length: length}.arrives(t)
			}
		}
	}
}

// TestInterleavedRowsGoToTheirRank: row r is rank r mod n's, as its row r div n.
func TestInterleavedRowsGoToTheirRank(t *testing.T) {
	for _, sizes := range [][2]int{{1, 2}, {1, 3}, {2, 2}, {2, 3}, {4, 2}, {3, 1}} {
		for _, pages := range [][2]uint32{{4, 4}, {2, 8}, {16, 3}} {
			for _, length := range []uint64{1, 2, 7, 8, 9, 24, 37} {
				for _, prefix := range []uint64{0, 1, length / 2} {
					trip{prefill: mlaOf(2, pages[0]).withSplit(sizes[0], Interleaved), decode: mlaOf(1, pages[1]).withSplit(sizes[1], Interleaved), prefix: prefix, length: length, ends: []uint64{5, 16}}.arrives(t)
				}
			}
		}
	}
	for _, length := range []uint64{5, 16, 29} {
		trip{prefill: mlaOf(1, 4).withSplit(3, PageRanges), decode: mlaOf(1, 4).withSplit(2, Interleaved), prefix: 2, length: length, ends: []uint64{11}}.arrives(t)
		trip{prefill: windowOf(1, 4, 9), decode: windowOf(1, 4, 9).withSplit(2, Interleaved), length: length}.arrives(t)
	}
}
