package kv

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestHeadsOf(t *testing.T) {
	for _, tc := range []struct {
		heads, tp int
		want      []HeadRange // by rank; none: no such deployment
	}{
		{8, 2, []HeadRange{{0, 4}, {4, 8}}},
		{6, 3, []HeadRange{{0, 2}, {2, 4}, {4, 6}}},
		{2, 4, []HeadRange{{0, 1}, {0, 1}, {1, 2}, {1, 2}}},
		{1, 3, []HeadRange{{0, 1}, {0, 1}, {0, 1}}},
		{10, 4, nil}, {4, 6, nil}, {0, 1, nil}, {4, 0, nil},
	} {
		if _, ok := HeadsOf(tc.heads, tc.tp, 0); ok != (tc.want != nil) {
			t.Errorf("%d heads over tp %d: possible %v, want %v", tc.heads, tc.tp, ok, tc.want != nil)
		}
		for r, want := range tc.want {
			if got, _ := HeadsOf(tc.heads, tc.tp, r); got != want {
				t.Errorf("%d heads over tp %d: rank %d holds %v, want %v", tc.heads, tc.tp, r, got, want)
			}
		}
	}
}

func TestSplitLayers(t *testing.T) {
	for _, tc := range []struct {
		layers, pp int
		want       []int
	}{{32, 2, []int{16, 16}}, {15, 2, []int{8, 7}}, {94, 4, []int{24, 24, 23, 23}}, {3, 3, []int{1, 1, 1}}} {
		if got := SplitLayers(tc.layers, tc.pp); !slices.Equal(got, tc.want) {
			t.Errorf("%d layers over %d stages: %v, want %v", tc.layers, tc.pp, got, tc.want)
		}
	}
}

// TestInstanceLiesAsPromised: one region, tensor after tensor, page after page,
// the metadata rows behind.
func TestInstanceLiesAsPromised(t *testing.T) {
	d := attentionOf(5, 4, 2, 2, 3)
	d.Layout, d.MetaRows = HND, 3
	i := mustInstance(t, d)
	e := &i.Engines[3] // pp 1 tp 1
	if e.Rank != (Rank{PP: 1, TP: 1}) {
		t.Fatalf("rank 3 is %v", e.Rank)
	}
	const page, tensor = 4 * 2 * 4, 16 * 4 * 2 * 4
	for n, s := range e.Shards {
		if s.Heads != (HeadRange{2, 4}) || s.PageStride != page || s.RowStride != 4 || s.HeadStride != 16 {
			t.Errorf("shard is %+v, want heads [2,4) in pages of %d bytes, token 4, head 16", s, page)
		}
		for k, l := range s.Layers {
			if want := (LayerTensor{Layer: 2 + k, Offset: uint64(n*3+k) * tensor, Pages: 16}); l != want {
				t.Errorf("%s: tensor %d is %+v, want %+v", s.Component, k, l, want)
			}
		}
	}
	if want := (MetaRows{Offset: 6 * tensor, RowBytes: 8, Rows: 3}); e.Meta != want || !slices.Equal(e.RegionBytes, []uint64{6*tensor + 24}) {
		t.Errorf("metadata %+v in %v, want %+v", e.Meta, e.RegionBytes, want)
	}
}

func TestComponentsOnSomeLayersFollowTheStages(t *testing.T) {
	d := attentionOf(6, 4, 1)
	d.edit("v", func(c *Component) { c.Layers = []int{0, 1, 9} })
	d.PP = 3 // of the layers 0-5 and 9: 3, 2, 2
	i := mustInstance(t, d)
	var got []string
	for n := range i.Engines {
		for _, s := range i.Engines[n].Shards {
			var layers []int
			for _, l := range s.Layers {
				layers = append(layers, l.Layer)
			}
			got = append(got, fmt.Sprintf("%d %s %s", n, s.Component, FormatLayers(layers)))
		}
	}
	if want := []string{"0 k 0-2", "0 v 0-1", "1 k 3-4", "2 k 5", "2 v 9"}; !slices.Equal(got, want) {
		t.Errorf("stages hold %q, want %q", got, want)
	}
}

func TestDeploymentsThatAreNone(t *testing.T) {
	for _, tc := range []struct {
		name      string
		spoil     func(d *Deployment)
		malformed bool
		field     string
		text      string
	}{
		{"tp", func(d *Deployment) { d.TP = 0 }, true, "parallel.tp", "is 0, want at least 1"},
		{"dp", func(d *Deployment) { d.DP = -3 }, true, "parallel.dp", "is -3"},
		{"page", func(d *Deployment) { d.PageTokens = 0 }, true, "page_tokens", "is 0"},
		{"layout", func(d *Deployment) { d.Layout = "" }, true, "layout", "want nhd or hnd, or an order"},
		{"more stages than layers", func(d *Deployment) { d.PP, d.PPLayers = 5, nil }, true, "parallel.pp", "at most the 4 layers"},
		{"pp_layers of another count", func(d *Deployment) { d.PPLayers = []int{4} }, true, "pp_layers", "1 entries, want 2"},
		{"pp_layers of another sum", func(d *Deployment) { d.PPLayers = []int{2, 3} }, true, "pp_layers", "sum to 5 layers, want the 4"},
		{"a stage of no layer", func(d *Deployment) { d.PPLayers = []int{4, 0} }, true, "pp_layers", "stage 1 has 0 layers"},
		{"a component twice", func(d *Deployment) { d.Model.Components[1].Name = "k" }, true, "components", "twice"},
		{"heads that do not go over tp", func(d *Deployment) { d.TP = 3 }, false, "heads", "k has 8 heads, which do not go over tp 3"},
		{"too many ranks", func(d *Deployment) { d.DP, d.TP = 1<<40, 8 }, false, "parallel", "more than 16384 engines"},
		{"too many tensors", func(d *Deployment) {
			d.DP, d.TP, d.PP, d.PPLayers, d.Model.Components[0].Layers = 1024, 8, 1, nil, seq(0, 16384)
		}, false, "parallel", "134250496 tensors"},
		{"dp attention that does not divide", func(d *Deployment) { d.DPAttention, d.TP, d.DP = true, 8, 3 }, true, "parallel.dp", "tp 8 does not divide over dp 3"},
		{"a tensor of two kinds of rows", func(d *Deployment) {
			d.edit("k", func(c *Component) { c.Tensor = "kv" })
			d.edit("v", func(c *Component) { c.Tensor, c.RowTokens = "kv", 2 })
		}, true, "tensor", "k and v are both in tensor"},
		{"a component's layout", func(d *Deployment) { d.edit("v", func(c *Component) { c.Layout = "page" }) }, true, "layout", "component \"v\": layout is"},
		{"pages of half a row", func(d *Deployment) { d.edit("v", func(c *Component) { c.RowTokens = 128 }) }, false, "page_tokens", "want a multiple of the 128 tokens of a row"},
		{"rows of half an element", func(d *Deployment) { d.edit("v", func(c *Component) { c.HeadBytes = 3 }) }, true, "head_bytes", "multiple of the 2 bytes of a bf16"},
		{"a window of a slot", func(d *Deployment) { d.edit("v", func(c *Component) { c.Kind, c.Window = Slot, 8 }) }, true, "window", "a slot component has no tokens"},
		{"slots of pages", func(d *Deployment) { d.edit("v", func(c *Component) { c.SlotRows = 8 }) }, true, "slot_rows", "has no slots"},
		{"a pool beyond 64 bits", func(d *Deployment) {
			d.edit("k", func(c *Component) { c.HeadBytes = maxHeadBytes })
			d.PageTokens = 60000
		}, false, "pages", "pages of every tensor of rank dp 0 pp 0 cp 0 tp 0 are more than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := attentionOf(4, 8, 2, 2, 2)
			tc.spoil(d)
			i, rs := d.Instance(1 << 30)
			if i != nil || len(rs) == 0 || rs[0].Field != tc.field || !strings.Contains(rs[0].Text, tc.text) {
				t.Errorf("reasons are %+v, want one about %s with %q", rs, tc.field, tc.text)
			}
			if got := len(d.Malformed()) > 0; got != tc.malformed {
				t.Errorf("malformed is %v, want %v", got, tc.malformed)
			}
		})
	}
}
