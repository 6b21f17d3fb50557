package kv

import (
	"slices"
	"strings"
	"testing"
)

// component edits a component of a deployment.
func (d *Deployment) edit(name string, change func(c *Component)) *Deployment {
	change(d.Model.component(name))
	return d
}

func TestMatchRefusesEveryDifferenceByName(t *testing.T) {
	base := func() *Deployment { return attentionOf(6, 4, 2) }
	for _, tc := range []struct {
		name            string
		decode          *Deployment
		field, comp     string
		prefill, values string
		text            string
	}{
		{"model", func() *Deployment { d := base(); d.Model.ID = "other"; return d }(), "id", "", "golden", "other", "same model"},
		{"revision on one side only", func() *Deployment { d := base(); d.Model.Revision = "2"; return d }(), "revision", "", "", "2", "same revision"},
		{"head bytes", base().edit("v", func(c *Component) { c.HeadBytes = 8 }), "head_bytes", "v", "4", "8", "check the head size"},
		{"heads", base().edit("v", func(c *Component) { c.Heads = 8 }), "heads", "v", "4", "8", "whole model"},
		{"dtype", base().edit("k", func(c *Component) { c.DType = F16 }), "dtype", "k", "bf16", "f16", "same cache dtype"},
		{"layers", base().edit("k", func(c *Component) { c.Layers = seq(0, 5) }), "layers", "k", "0-5", "0-4", "prefill stage 0 (tp 0-1) sends 5: start decode with all 6 layers"},
		{"component missing", func() *Deployment { d := base(); d.Model.Components = d.Model.Components[:1]; return d }(),
			"components", "v", "declared", "missing", "optional"},
		{"metadata rows", func() *Deployment { d := base(); d.MetaRowBytes = 16; return d }(), "meta_row_bytes", "", "8", "16", "same metadata row"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := Match(mustInstance(t, base()), mustInstance(t, tc.decode))
			rs := f.Reasons()
			if f.Compatible() || len(rs) != 1 {
				t.Fatalf("reasons are %v, want one", rs)
			}
			r := rs[0]
			if r.Field != tc.field || r.Component != tc.comp || r.Prefill != tc.prefill || r.Decode != tc.values || !strings.Contains(r.Text, tc.text) {
				t.Errorf("got %+v, want field %q of %q, %q and %q, and %q", r, tc.field, tc.comp, tc.prefill, tc.values, tc.text)
			}
			if _, err := f.Pair(Route{}, Rank{}, Rank{}, 0, 1); err == nil || !strings.Contains(err.Error(), r.Text) {
				t.Errorf("a plan of what does not fit: %v, want the reason", err)
			}
			if f.Candidates(Route{}, Rank{}) != nil || f.MetaWriter(Route{}, Rank{}) != (Rank{}) {
				t.Error("writers of what does not fit")
			}
		})
	}
}

func TestMatchGivesAllReasonsInOneOrder(t *testing.T) {
	d := attentionOf(6, 4, 2)
	d.Model.ID, d.Model.Revision = "other", "9"
	d.edit("k", func(c *Component) { c.DType, c.HeadBytes = F32, 8 })
	d.edit("v", func(c *Component) { c.Name = "w" })
	p, q := mustInstance(t, attentionOf(6, 4, 2)), mustInstance(t, d)
	var fields []string
	for _, r := range Match(p, q).Reasons() {
		fields = append(fields, r.Field+" "+r.Component)
	}
	want := []string{"components v", "components w", "dtype k", "head_bytes k", "id ", "revision "}
	if !slices.Equal(fields, want) {
		t.Errorf("reasons are about %q, want %q", fields, want)
	}
}

func TestOptionalComponentIsSentWhereBothHaveIt(t *testing.T) {
	with := func(optional bool) *Deployment {
		d := attentionOf(2, 2, 1)
		d.Model.Components = append(d.Model.Components, Component{Name: "draft.k", Kind: Paged, Layers: []int{0}, Heads: 1, HeadBytes: 2, DType: BF16, Optional: optional})
		return d
	}
	boxes := func(f *Fit) string {
		p, err := f.Pair(Route{}, Rank{}, Rank{}, 0, 4)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, b := range p.Boxes {
			names = append(names, b.Component)
		}
		return strings.Join(names, " ")
	}
	if got := boxes(mustMatch(t, with(true), attentionOf(2, 2, 1))); got != "k v" {
		t.Errorf("one side has it: %s is sent, want k v", got)
	}
	if got := boxes(mustMatch(t, with(true), with(false))); got != "k v draft.k" {
		t.Errorf("both sides have it: %s is sent, want k v draft.k", got)
	}
	if f := Match(mustInstance(t, attentionOf(2, 2, 1)), mustInstance(t, with(false))); f.Compatible() {
		t.Error("a component that is not optional is missing on one side, and that is no reason")
	}
}

func TestMatchRefusesWhatNobodyHolds(t *testing.T) {
	whole := func() *Instance { return mustInstance(t, attentionOf(6, 4, 2, 3, 3)) }
	for _, tc := range []struct {
		name  string
		side  Side
		spoil func(*Instance)
		field string
		text  string
	}{
		{"a layer of a prefill stage", Prefill, func(i *Instance) {
			for n := range i.Engines[2:] {
				s := &i.Engines[2+n].Shards[1]
				s.Layers = s.Layers[:2]
			}
		}, "layers", "prefill holds layers 0-4 of `v`, decode stage 1 (tp 0-1) needs 5: start prefill with all 6 layers, or check that both load the same model"},
		{"heads of a prefill rank", Prefill, func(i *Instance) { i.Engines[1].Shards[0].Heads.Low = 3 },
			"heads", "prefill holds heads [0,2) [3,4) of layers 0-2 of `k`, decode stage 0 (tp 1) needs [2,3): start prefill with ranks that hold all 4 heads"},
		{"a whole component of a decode stage", Decode, func(i *Instance) {
			i.Engines[0].Shards = i.Engines[0].Shards[1:]
			i.Engines[1].Shards = i.Engines[1].Shards[1:]
		}, "layers", "decode holds layers 3-5 of `k`, prefill stage 0 (tp 0-1) sends 0-2: start decode with all 6 layers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, d := whole(), whole()
			if tc.side == Prefill {
				tc.spoil(p)
			} else {
				tc.spoil(d)
			}
			rs := Match(p, d).Reasons()
			if len(rs) != 1 || rs[0].Field != tc.field || !strings.Contains(rs[0].Text, tc.text) || rs[0].Prefill == "" || rs[0].Decode == "" {
				t.Errorf("reasons are %+v, want one about %s with %q", rs, tc.field, tc.text)
			}
		})
	}
}

// TestElectionSpreads: replicated data comes from another rank for another
// receiver and for another room, and from one of those who hold it.
func TestElectionSpreads(t *testing.T) {
	latent := func(tp int) *Deployment {
		d := attentionOf(4, 1, tp)
		d.Model.Components = d.Model.Components[:1]
		d.Model.Components[0].Name = "latent"
		return d
	}
	f := mustMatch(t, latent(4), latent(2))
	seen := make(map[Rank]int)
	for room := range uint64(8) {
		var writers []Rank
		for _, r := range f.Receivers(Route{}) {
			w := f.Candidates(Route{Room: room}, r)
			if len(w) != 1 {
				t.Fatalf("room %d: %v has writers %v, want one", room, r, w)
			}
			if m := f.MetaWriter(Route{Room: room}, r); m != w[0] {
				t.Errorf("room %d: %v writes the metadata row of %v, want %v who writes anyway", room, m, r, w[0])
			}
			writers = append(writers, w[0])
			seen[w[0]]++
		}
		if writers[0] == writers[1] {
			t.Errorf("room %d: %v writes to both receivers, want two of the four", room, writers[0])
		}
	}
	for _, r := range f.Senders(Route{}) {
		if seen[r] != 4 {
			t.Errorf("%v writes %d times in 8 rooms, want 4", r, seen[r])
		}
	}
}

func TestRoutesBeyondTheSizeAreRefusedByValue(t *testing.T) {
	d := attentionOf(2, 2, 2)
	d.DP = 2
	f := mustMatch(t, d, d)
	for _, tc := range []struct {
		name             string
		route            Route
		writer, receiver Rank
		prefix, length   uint64
		want             string
	}{
		{"prefill dp", Route{PrefillDP: 2}, Rank{}, Rank{}, 0, 1, "prefill dp rank is 2, want 0 to 1"},
		{"decode dp", Route{DecodeDP: -1}, Rank{}, Rank{}, 0, 1, "decode dp rank is -1, want 0 to 1"},
		{"writer of another dp rank", Route{PrefillDP: 1}, Rank{}, Rank{}, 0, 1, "writer is dp 0 pp 0 cp 0 tp 0"},
		{"no such receiver", Route{}, Rank{}, Rank{TP: 2}, 0, 1, "receiver is dp 0 pp 0 cp 0 tp 2"},
		{"prefix", Route{}, Rank{}, Rank{}, 9, 8, "prefix is 9, want at most the length 8"},
		{"length", Route{}, Rank{}, Rank{}, 0, 1 << 60, "length is 1152921504606846976"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := f.Pair(tc.route, tc.writer, tc.receiver, tc.prefix, tc.length); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
	if f.Receivers(Route{DecodeDP: 2}) != nil || f.Senders(Route{PrefillDP: -1}) != nil || f.Candidates(Route{PrefillDP: 7}, Rank{}) != nil {
		t.Error("ranks of a dp rank beyond the size, want none")
	}
}

func TestPlanNeverTruncates(t *testing.T) {
	f := mustMatch(t, attentionOf(2, 2, 1), attentionOf(2, 2, 1))
	p, err := f.Pair(Route{}, Rank{}, Rank{}, 5, 20)
	if err != nil {
		t.Fatal(err)
	}
	good := PageTable{First: 4, Pages: []uint32{1, 2, 3, 4}}
	source := PageTable{Pages: []uint32{0, 1, 2, 3, 4}}
	for _, tc := range []struct {
		name   string
		target PageTable
		chunk  Chunk
		meta   uint32
		want   string
	}{
		{"target too short", PageTable{4, []uint32{1, 2, 3}}, Chunk{To: 20, Source: AllTokens(source, 0)}, 0, "got 3 pages from token 4, want 4 pages from token 4"},
		{"target too long", PageTable{4, []uint32{1, 2, 3, 4, 5}}, Chunk{To: 20, Source: AllTokens(source, 0)}, 0, "got 5 pages"},
		{"target from another token", PageTable{0, []uint32{1, 2, 3, 4, 5}}, Chunk{To: 20, Source: AllTokens(source, 0)}, 0, "from token 0, want 4 pages from token 4"},
		{"target not at a page", PageTable{5, []uint32{1, 2, 3, 4}}, Chunk{To: 20, Source: AllTokens(source, 0)}, 0, "multiple of the 4 tokens"},
		{"target beyond the pool", PageTable{4, []uint32{1, 2, 3, 16}}, Chunk{To: 20, Source: AllTokens(source, 0)}, 0, "decode page is 16, want below the 16 pages"},
		{"source too short", good, Chunk{To: 20, Source: AllTokens(PageTable{Pages: []uint32{0, 1, 2, 3}}, 0)}, 0, "prefill pages: got 4 pages from token 0, want 5"},
		{"source begins behind", good, Chunk{To: 20, Source: AllTokens(PageTable{First: 8, Pages: []uint32{2, 3, 4}}, 0)}, 0, "first token is 8, want at most 4"},
		{"source beyond the pool", good, Chunk{To: 20, Source: AllTokens(PageTable{Pages: []uint32{0, 1, 2, 3, 99}}, 0)}, 0, "prefill page is 99"},
		{"chunk backwards", good, Chunk{From: 9, To: 8}, 0, "chunk begins at token 9 and ends at 8"},
		{"chunk beyond the length", good, Chunk{From: 16, To: 21, Source: AllTokens(source, 0)}, 0, "chunk ends at token 21, want at most 20"},
		{"chunk far beyond it", good, Chunk{To: 1<<64 - 1, Source: AllTokens(source, 0)}, 0, "chunk ends at token 18446744073709551615, want at most 20"},
		{"last before the end", good, Chunk{To: 16, Source: AllTokens(source, 0), Last: true}, 0, "the last chunk ends at token 16, want 20"},
		{"target metadata row", good, Chunk{To: 20, Source: AllTokens(source, 0)}, 1, "decode metadata row is 1, want below 1"},
		{"source metadata row", good, Chunk{To: 20, Source: AllTokens(source, 7), Last: true}, 0, "prefill metadata row is 7, want below 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			target := AllTokens(tc.target, tc.meta)
			if _, err := p.Copies(tc.chunk, &target); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
	twice, at := AllTokens(PageTable{4, []uint32{1, 2, 1, 4}}, 0), AllTokens(good, 0)
	if _, err := p.Targets(&twice); err == nil || !strings.Contains(err.Error(), "page 1 is there twice") {
		t.Errorf("a page twice: %v", err)
	}
	for _, c := range []Chunk{{}, {To: 4}, {From: 20, To: 20}} {
		if copies, err := p.Copies(c, &at); err != nil || len(copies) != 0 {
			t.Errorf("chunk [%d,%d) of tokens that are not sent: %v, %v", c.From, c.To, copies, err)
		}
	}
}
