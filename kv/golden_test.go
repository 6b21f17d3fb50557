package kv

import (
	"fmt"
	"slices"
	"testing"
)

// The vectors of these tables are published behaviour of another system, for the
// same questions. Where that system is right, the one rule must give the same;
// where it is known to be wrong, the table has the right answer and says so.

// attentionOf is a deployment of k and v.
func attentionOf(layers, heads, tp int, ppLayers ...int) *Deployment {
	m := Model{ID: "golden"}
	all := make([]int, layers)
	for i := range all {
		all[i] = i
	}
	for _, name := range []string{"k", "v"} {
		m.Components = append(m.Components, Component{Name: name, Kind: Paged, Layers: all, Heads: heads, HeadBytes: 4, DType: BF16})
	}
	return &Deployment{Model: m, TP: tp, PP: max(1, len(ppLayers)), DP: 1, PPLayers: ppLayers, PageTokens: 4, Layout: NHD, MetaRows: 1, MetaRowBytes: 8}
}

func mustInstance(t testing.TB, d *Deployment) *Instance {
	t.Helper()
	i, reasons := d.Instance(16)
	if len(reasons) > 0 {
		t.Fatalf("no instance: %v", reasons)
	}
	return i
}

func mustMatch(t testing.TB, p, d *Deployment) *Fit {
	t.Helper()
	f := Match(mustInstance(t, p), mustInstance(t, d))
	if !f.Compatible() {
		t.Fatalf("not compatible: %v", f.Reasons())
	}
	return f
}

// slice is what one writer sends of heads: from its head Source on, N heads, to
// the receiver's head Target on.
type slice struct{ Source, N, Target int }

// slicesOf are the head slices of k that a receiver takes from each writer that
// holds it, whoever is elected: the union over rooms.
func slicesOf(f *Fit, receiver int) map[int][]slice {
	out := make(map[int][]slice)
	r := f.Receivers(Route{})[receiver]
	re := &f.decode.Engines[receiver]
	for room := range uint64(16) {
		for n, w := range f.Senders(Route{}) {
			p, err := f.Pair(Route{Room: room}, w, r, 0, 8)
			if err != nil {
				panic(err)
			}
			for _, b := range p.Boxes {
				if b.Component != "k" {
					continue
				}
				low := f.prefill.Engines[n].shard("k").Heads.Low
				s := slice{b.Heads.Low - low, b.Heads.High - b.Heads.Low, b.Heads.Low - re.shard("k").Heads.Low}
				if !slices.Contains(out[n], s) {
					out[n] = append(out[n], s)
				}
			}
		}
	}
	return out
}

func TestGoldenHeadSlices(t *testing.T) {
	type sent map[[2]int]slice // by writer and receiver
	for _, tc := range []struct {
		name           string
		from, to, head int
		want           sent
	}{
		{"4 to 2, 8 heads", 4, 2, 8, sent{{0, 0}: {0, 2, 0}, {1, 0}: {0, 2, 2}, {2, 1}: {0, 2, 0}, {3, 1}: {0, 2, 2}}},
		{"2 to 4, 8 heads", 2, 4, 8, sent{{0, 0}: {0, 2, 0}, {0, 1}: {2, 2, 0}, {1, 2}: {0, 2, 0}, {1, 3}: {2, 2, 0}}},
		{"1 to 4, 2 heads", 1, 4, 2, sent{{0, 0}: {0, 1, 0}, {0, 1}: {0, 1, 0}, {0, 2}: {1, 1, 0}, {0, 3}: {1, 1, 0}}},
		{"2 to 8, 4 heads", 2, 8, 4, sent{
			{0, 0}: {0, 1, 0}, {0, 1}: {0, 1, 0}, {0, 2}: {1, 1, 0}, {0, 3}: {1, 1, 0},
			{1, 4}: {0, 1, 0}, {1, 5}: {0, 1, 0}, {1, 6}: {1, 1, 0}, {1, 7}: {1, 1, 0}}},
		{"2 to 8, 2 heads: all from head 0 of a rank", 2, 8, 2, sent{
			{0, 0}: {0, 1, 0}, {0, 1}: {0, 1, 0}, {0, 2}: {0, 1, 0}, {0, 3}: {0, 1, 0},
			{1, 4}: {0, 1, 0}, {1, 5}: {0, 1, 0}, {1, 6}: {0, 1, 0}, {1, 7}: {0, 1, 0}}},
		{"8 to 2, 4 heads: 4 could write, 2 are elected", 8, 2, 4, sent{
			{0, 0}: {0, 1, 0}, {1, 0}: {0, 1, 0}, {2, 0}: {0, 1, 1}, {3, 0}: {0, 1, 1},
			{4, 1}: {0, 1, 0}, {5, 1}: {0, 1, 0}, {6, 1}: {0, 1, 1}, {7, 1}: {0, 1, 1}}},
		{"8 to 4, 2 heads", 8, 4, 2, sent{
			{0, 0}: {0, 1, 0}, {1, 0}: {0, 1, 0}, {2, 0}: {0, 1, 0}, {3, 0}: {0, 1, 0},
			{0, 1}: {0, 1, 0}, {1, 1}: {0, 1, 0}, {2, 1}: {0, 1, 0}, {3, 1}: {0, 1, 0},
			{4, 2}: {0, 1, 0}, {5, 2}: {0, 1, 0}, {6, 2}: {0, 1, 0}, {7, 2}: {0, 1, 0},
			{4, 3}: {0, 1, 0}, {5, 3}: {0, 1, 0}, {6, 3}: {0, 1, 0}, {7, 3}: {0, 1, 0}}},
		{"4 to 1, 8 heads", 4, 1, 8, sent{{0, 0}: {0, 2, 0}, {1, 0}: {0, 2, 2}, {2, 0}: {0, 2, 4}, {3, 0}: {0, 2, 6}}},
		{"1 to 8, 8 heads", 1, 8, 8, sent{
			{0, 0}: {0, 1, 0}, {0, 1}: {1, 1, 0}, {0, 2}: {2, 1, 0}, {0, 3}: {3, 1, 0},
			{0, 4}: {4, 1, 0}, {0, 5}: {5, 1, 0}, {0, 6}: {6, 1, 0}, {0, 7}: {7, 1, 0}}},
		{"4 to 4, 8 heads", 4, 4, 8, sent{{0, 0}: {0, 2, 0}, {1, 1}: {0, 2, 0}, {2, 2}: {0, 2, 0}, {3, 3}: {0, 2, 0}}},
		// That system loses a rank where sizes do not divide.
		{"3 to 2, 6 heads (wrong there: the third rank is never asked)", 3, 2, 6, sent{
			{0, 0}: {0, 2, 0}, {1, 0}: {0, 1, 2}, {1, 1}: {1, 1, 0}, {2, 1}: {0, 2, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := mustMatch(t, attentionOf(2, tc.head, tc.from), attentionOf(2, tc.head, tc.to))
			got := make(sent)
			for receiver := range tc.to {
				for writer, s := range slicesOf(f, receiver) {
					if len(s) != 1 {
						t.Fatalf("writer %d sends %v to receiver %d, want one slice", writer, s, receiver)
					}
					got[[2]int{writer, receiver}] = s[0]
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("slices by writer and receiver:\n got %v\nwant %v", got, tc.want)
			}
		})
	}
}

// TestGoldenReplicatedWriters: of those who hold the same heads, one writes.
func TestGoldenReplicatedWriters(t *testing.T) {
	f := mustMatch(t, attentionOf(2, 4, 8), attentionOf(2, 4, 2))
	for room := range uint64(4) {
		for _, r := range f.Receivers(Route{}) {
			if w := f.Candidates(Route{Room: room}, r); len(w) != 2 {
				t.Errorf("room %d: receiver %v has writers %v, want 2 of the 4 that hold its heads", room, r, w)
			}
		}
	}
}

func seq(from, to int) []int {
	var out []int
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func TestGoldenPipelineWindows(t *testing.T) {
	draft := func(d *Deployment, layers int) *Deployment {
		for _, name := range []string{"draft.k", "draft.v"} {
			d.Model.Components = append(d.Model.Components, Component{
				Name: name, Kind: Paged, Layers: seq(0, layers), Heads: 2, HeadBytes: 4, DType: BF16, Optional: true})
		}
		return d
	}
	for _, tc := range []struct {
		name            string
		prefill, decode *Deployment
		stages          [][]int // layers of k, and of v, that each stage sends
	}{
		{"16 layers, 8 and 8", attentionOf(16, 2, 1, 8, 8), attentionOf(16, 2, 1), [][]int{seq(0, 8), seq(8, 16)}},
		{"15 layers, 7 and 8 (wrong there: v gets k 14, v 0-5)", attentionOf(15, 2, 1, 7, 8), attentionOf(15, 2, 1), [][]int{seq(0, 7), seq(7, 15)}},
		{"draft of 2 beside 4, decode only", attentionOf(4, 2, 1), draft(attentionOf(4, 2, 1), 2), [][]int{seq(0, 4)}},
		{"draft of 1 beside 16, decode only", attentionOf(16, 2, 1), draft(attentionOf(16, 2, 1), 1), [][]int{seq(0, 16)}},
		{"draft of 4 beside 4, decode only (wrong there: v into draft k)", attentionOf(4, 2, 1), draft(attentionOf(4, 2, 1), 4), [][]int{seq(0, 4)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := mustMatch(t, tc.prefill, tc.decode)
			r := f.Receivers(Route{})[0]
			target := AllTokens(PageTable{Pages: []uint32{2, 3}}, 0)
			for n, w := range f.Senders(Route{}) {
				p, err := f.Pair(Route{}, w, r, 0, 8)
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(p.Boxes)
				want := fmt.Sprint([]Box{
					{"k", tc.stages[n], HeadRange{0, 2}, 4, 0, 1, 8},
					{"v", tc.stages[n], HeadRange{0, 2}, 4, 0, 1, 8},
				})
				if got != want {
					t.Errorf("stage %d sends %s, want %s", n, got, want)
				}
				if last := n == len(tc.stages)-1; p.Meta != last {
					t.Errorf("stage %d writes the metadata row: %v, want %v", n, p.Meta, last)
				}
				copies, err := p.Copies(Chunk{To: 8, Source: AllTokens(PageTable{Pages: []uint32{0, 1}}, 0)}, &target)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range copies {
					// Tensor n of an engine begins at n*16 pages of 32 bytes.
					at := uint64(slices.Index(tc.stages[n], c.Layer))
					to := uint64(c.Layer)
					if c.Component == "v" {
						at, to = at+uint64(len(tc.stages[n])), to+uint64(tc.decode.layers()[len(tc.decode.layers())-1]+1)
					}
					if c.Source.Offset != at*512 || c.Target.Offset != to*512 {
						t.Errorf("%s layer %d: from tensor at %d to %d, want %d to %d", c.Component, c.Layer, c.Source.Offset, c.Target.Offset, at*512, to*512)
					}
				}
			}
		})
	}
}

func TestGoldenContextParallelPages(t *testing.T) {
	want := [][2]int{{0, 4}, {4, 7}, {7, 10}}
	for n, w := range want {
		if lo, hi := share(10, 3, n); lo != w[0] || hi != w[1] {
			t.Errorf("10 pages over 3 ranks: rank %d has [%d,%d), want [%d,%d)", n, lo, hi, w[0], w[1])
		}
	}
}

func TestGoldenGrouping(t *testing.T) {
	one := func(s, t uint32) PairRun { return PairRun{s, t, 1, 1, 1} }
	for _, tc := range []struct {
		name           string
		source, target []uint32
		want           []PairRun
	}{
		{"two runs and a single", []uint32{10, 11, 12, 20, 21, 5}, []uint32{1, 2, 3, 4, 5, 6},
			[]PairRun{{10, 1, 3, 1, 1}, {20, 4, 2, 1, 1}, one(5, 6)}},
		{"target reversed: singles", []uint32{10, 11, 12, 20, 21, 5}, []uint32{6, 5, 4, 3, 2, 1},
			[]PairRun{one(10, 6), one(11, 5), one(12, 4), one(20, 3), one(21, 2), one(5, 1)}},
		{"one run", []uint32{4, 5, 6}, []uint32{7, 8, 9}, []PairRun{{4, 7, 3, 1, 1}}},
		{"a single before a run", []uint32{1, 10, 11, 12}, []uint32{3, 4, 5, 6}, []PairRun{one(1, 3), {10, 4, 3, 1, 1}}},
		{"constant steps", []uint32{2, 4, 6}, []uint32{1, 4, 7}, []PairRun{{2, 1, 3, 2, 3}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := lane{Pool{PageTokens: 4}, 4}
			r := rows{0, 1, uint64(len(tc.source)) * 4}
			groups := cut(r.count, l.walk(r, PageTable{Pages: tc.source}), l.walk(r, PageTable{Pages: tc.target}))
			if len(groups) != 1 || !slices.Equal(groups[0].runs, tc.want) {
				t.Errorf("groups are %+v, want one with runs %v", groups, tc.want)
			}
		})
	}
	groups := cut(0, walk{size: 4, step: 1}, walk{size: 4, step: 1})
	if len(groups) != 0 {
		t.Errorf("no tokens give groups %v, want none", groups)
	}
}
