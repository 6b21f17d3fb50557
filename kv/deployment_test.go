package kv

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
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

// TestModelsAgreeWithThePublishedFigures compares the table in the product with
// the collected figures, where they are at hand.
func TestModelsAgreeWithThePublishedFigures(t *testing.T) {
	f, err := os.Open("../../shared/data/models.csv")
	if err != nil {
		t.Skip("the collected figures are not here: ", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := make(map[string]int)
	for n, name := range rows[0] {
		column[name] = n
	}
	found := make(map[string]bool)
	for _, row := range rows[1:] {
		// "Kimi-K2 / K2.5" and "Phi-4 (14B)" are Kimi-K2 and Phi-4.
		name, _, _ := strings.Cut(row[column["name"]], " ")
		m, ok := LookupModel(name)
		if !ok || found[m.ID] {
			continue
		}
		found[m.ID] = true
		number := func(field string) int {
			n, _ := strconv.Atoi(row[column[field]])
			return n
		}
		c := m.Components[0]
		bytes := uint64(0)
		for _, c := range m.Components {
			bytes += uint64(c.Heads) * c.HeadBytes
		}
		if len(c.Layers) != number("kv_layers") || c.Heads != number("kv_heads") || bytes != uint64(number("bytes_per_token_per_kv_layer")) ||
			m.TokenBytes() != uint64(number("bytes_per_token_total")) {
			t.Errorf("%s: %d layers of %d heads, %d bytes per token and layer, %d in all; %v has %d, %d, %d, %d", m.ID, len(c.Layers), c.Heads, bytes,
				m.TokenBytes(), row[0], number("kv_layers"), number("kv_heads"), number("bytes_per_token_per_kv_layer"), number("bytes_per_token_total"))
		}
	}
	for _, m := range Models() {
		if !found[m.ID] {
			t.Errorf("%s is not in the collected figures", m.ID)
		}
	}
}

func TestModelsByName(t *testing.T) {
	for _, name := range []string{"llama-3.1-8b", "Llama-3.1-70B", "LLAMA-3.1-405b", "qwen3-8b", "qwen3-32b", "Qwen3-235B-A22B", "mixtral-8x7b",
		"glm-4.5", "minimax-m2", "phi-4", "deepseek-v2-lite", "deepseek-v3", "kimi-k2"} {
		m, ok := LookupModel(name)
		if !ok || m.ID != strings.ToLower(name) {
			t.Errorf("%s is %q (%v), want a model of that name", name, m.ID, ok)
		}
		d := &Deployment{Model: m, TP: 1, PP: 2, DP: 1, PageTokens: 16, Layout: NHD}
		if _, rs := d.Instance(2); len(rs) > 0 {
			t.Errorf("%s: %v", name, rs)
		}
	}
	if _, ok := LookupModel("llama"); ok {
		t.Error("llama is a model, want none of that name")
	}
	if m, _ := LookupModel("deepseek-v3"); m.Components[0].Name != "latent" || m.Components[0].HeadBytes != 1152 || m.Components[0].Heads != 1 {
		t.Errorf("deepseek-v3 has %+v, want one latent row of 1152 bytes", m.Components[0])
	}
}
