package kv

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestValidateRefusesByName(t *testing.T) {
	for _, tc := range []struct {
		name        string
		spoil       func(i *Instance)
		field, text string
	}{
		{"no size", func(i *Instance) { i.TP = 0 }, "tp", "tp is 0, want 1"},
		{"sizes that overflow", func(i *Instance) { i.TP, i.DP, i.PP = math.MaxInt, math.MaxInt, math.MaxInt }, "tp", "want 1 to"},
		{"more ranks than engines", func(i *Instance) { i.DP = 3 }, "engines", "4 engines, want dp 3"},
		{"a rank twice", func(i *Instance) { i.Engines[1].Rank = i.Engines[0].Rank }, "rank", "rank dp 0 pp 0 cp 0 tp 0 is there twice"},
		{"a rank missing", func(i *Instance) { i.Engines[1].Rank.TP = 5 }, "rank", "rank dp 0 pp 0 cp 0 tp 1 is missing"},
		{"ranks out of order", func(i *Instance) { i.Engines[0], i.Engines[1] = i.Engines[1], i.Engines[0] }, "rank", "out of roster order"},
		{"no component", func(i *Instance) { i.Model.Components = nil }, "components", "components is 0"},
		{"a component twice", func(i *Instance) { i.Model.Components[1].Name = "k" }, "components", `"k" is declared twice`},
		{"a component with no name", func(i *Instance) { i.Model.Components[1].Name = "" }, "name", "has no name"},
		{"a name of two lines", func(i *Instance) { i.Model.Components[1].Name = "k\n  - all is well" }, "name", `component 1 is called "k\n`},
		{"a name with an escape", func(i *Instance) { i.Model.Components[1].Name = "\x1b[31mk" }, "name", "printable"},
		{"a name that is too long", func(i *Instance) { i.Model.Components[1].Name = strings.Repeat("k", 257) }, "name", "1 to 256"},
		{"a kind that is none", func(i *Instance) { i.Model.Components[0].Kind = 9 }, "kind", "kind 9"},
		{"a dtype that is none", func(i *Instance) { i.Model.Components[0].DType = 0 }, "dtype", "want one of bf16"},
		{"no heads", func(i *Instance) { i.Model.Components[0].Heads = 0 }, "heads", "heads is 0"},
		{"no head bytes", func(i *Instance) { i.Model.Components[0].HeadBytes = 0 }, "head_bytes", "head_bytes is 0"},
		{"a layer twice in a component", func(i *Instance) { i.Model.Components[0].Layers = []int{0, 1, 1} }, "layers", "layer 1 is there twice"},
		{"a negative layer", func(i *Instance) { i.Model.Components[0].Layers = []int{-1, 1} }, "layers", "is -1"},
		{"a shard of nothing declared", func(i *Instance) { i.Engines[0].Shards[0].Component = "x" }, "components", "does not declare"},
		{"a shard twice", func(i *Instance) { i.Engines[0].Shards[1] = i.Engines[0].Shards[0] }, "components", `component "k" twice`},
		{"heads outside of the component", func(i *Instance) { i.Engines[0].Shards[0].Heads = HeadRange{0, 9} }, "heads", "heads are [0,9), want a range within the 4"},
		{"heads that end before they begin", func(i *Instance) { i.Engines[0].Shards[0].Heads = HeadRange{2, 2} }, "heads", "heads are [2,2)"},
		{"negative heads", func(i *Instance) { i.Engines[0].Shards[0].Heads = HeadRange{math.MinInt, 2} }, "heads", "want a range"},
		{"no page", func(i *Instance) { i.Engines[0].Shards[0].PageTokens = 0 }, "page_tokens", "page_tokens is 0"},
		{"two page sizes", func(i *Instance) { i.Engines[3].Shards[0].PageTokens = 2 }, "page_tokens", "pages hold 2 tokens, those of rank dp 0 pp 0 cp 0 tp 0 4"},
		{"a layer of the shard twice", func(i *Instance) { s := &i.Engines[0].Shards[0]; s.Layers[1].Layer = s.Layers[0].Layer }, "layers", "layer 0 is there twice"},
		{"a layer that the component lacks", func(i *Instance) { i.Engines[0].Shards[0].Layers[1].Layer = 77 }, "layers", "holds layer 77, which the component does not have (0-3)"},
		{"layers out of order", func(i *Instance) { l := i.Engines[0].Shards[0].Layers; l[0], l[1] = l[1], l[0] }, "layers", "layer 0 stands behind layer 1"},
		{"no pages", func(i *Instance) { i.Engines[0].Shards[0].Layers[0].Pages = 0 }, "pages", "0 pages"},
		{"heads that alias", func(i *Instance) { i.Engines[0].Shards[0].HeadStride = 3 }, "head_stride", "head_stride is 3 bytes, want at least the 4"},
		{"heads at one place", func(i *Instance) { i.Engines[0].Shards[0].HeadStride = 0 }, "head_stride", "rows would overlap"},
		{"tokens that alias", func(i *Instance) { i.Engines[0].Shards[0].RowStride = 7 }, "row_stride", "row_stride is 7 bytes, want at least the 8"},
		{"tokens and heads that alias", func(i *Instance) { s := &i.Engines[0].Shards[0]; s.RowStride, s.HeadStride = 8, 8 }, "row_stride", "overlap"},
		{"pages that alias", func(i *Instance) { i.Engines[0].Shards[0].PageStride = 31 }, "page_stride", "page_stride is 31 bytes, want at least the 32"},
		{"a stride that overflows", func(i *Instance) { i.Engines[0].Shards[0].PageStride = math.MaxUint64 / 2 }, "page_stride", "at most"},
		{"a token stride that overflows", func(i *Instance) { i.Engines[0].Shards[0].RowStride = math.MaxUint64 - 8 }, "row_stride", "at most"},
		{"a page that is too large", func(i *Instance) { i.Engines[0].Shards[0].RowStride = maxRegion }, "row_stride", "a page spans more"},
		{"pages beyond the region", func(i *Instance) { i.Engines[0].Shards[1].Layers[1].Pages = 17 }, "offset", "want within the"},
		{"very many pages", func(i *Instance) {
			s := &i.Engines[0].Shards[0]
			s.PageStride, s.Layers[0].Pages = maxRegion, math.MaxUint32
		}, "offset", "beyond 2^64"},
		{"an offset that overflows", func(i *Instance) { i.Engines[0].Shards[0].Layers[0].Offset = math.MaxUint64 - 4 }, "offset", "beyond 2^64"},
		{"no such region", func(i *Instance) { i.Engines[0].Shards[0].Layers[0].Region = 1 }, "region", "region 1, want below the 1 regions"},
		{"a region that is no region", func(i *Instance) { i.Engines[0].RegionBytes[0] = math.MaxUint64 }, "region_bytes", "at most"},
		{"tensors that overlap", func(i *Instance) { i.Engines[0].Shards[0].Layers[1].Offset = 100 }, "offset", "k layer 0 and k layer 1 overlap"},
		{"tensors at one place", func(i *Instance) { s := i.Engines[0].Shards; s[1].Layers[0].Offset = s[0].Layers[0].Offset }, "offset", "overlap in region 0"},
		{"metadata over a tensor", func(i *Instance) { i.Engines[0].Meta.Offset = 8 }, "offset", "metadata rows"},
		{"metadata beyond the region", func(i *Instance) { i.Engines[0].Meta.Rows = math.MaxUint32 }, "offset", "metadata rows begin"},
		{"metadata of no bytes", func(i *Instance) { i.Engines[0].Meta.RowBytes = 0 }, "meta_row_bytes", "0 bytes"},
		{"metadata of two sizes", func(i *Instance) { i.Engines[1].Meta.RowBytes = 4 }, "meta_row_bytes", "want one size"},
		{"metadata on half of the last stage", func(i *Instance) { i.Engines[2].Meta.Rows = 0 }, "meta_rows", "on all ranks of the last stage or on none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := mustInstance(t, attentionOf(4, 4, 2, 2, 2))
			good := mustInstance(t, attentionOf(4, 4, 2, 2, 2))
			tc.spoil(i)
			found := false
			for _, r := range i.Validate() {
				found = found || r.Field == tc.field && strings.Contains(r.Text, tc.text)
			}
			if !found {
				t.Errorf("reasons are %v, want one about %s with %q", i.Validate(), tc.field, tc.text)
			}
			if Match(i, good).Compatible() || Match(good, i).Compatible() {
				t.Error("it fits")
			}
			if bytes.Equal(i.AppendCanonical(nil), good.AppendCanonical(nil)) {
				t.Error("its canonical bytes are those of a sound instance")
			}
		})
	}
}

func TestValidateSaysWhichSideAndStops(t *testing.T) {
	i := mustInstance(t, attentionOf(4, 4, 2))
	for n := range i.Engines {
		i.Engines[n].Shards[0].HeadStride = 1
	}
	good := mustInstance(t, attentionOf(4, 4, 2))
	p, d := Match(i, good).Reasons(), Match(good, i).Reasons()
	if len(p) != 2 || p[0].Prefill != "1" || p[0].Decode != "" || !strings.HasPrefix(p[0].Text, "prefill: ") {
		t.Errorf("prefill is at fault, reasons are %+v", p)
	}
	if len(d) != 2 || d[0].Decode != "1" || d[0].Prefill != "" || !strings.HasPrefix(d[0].Text, "decode: ") {
		t.Errorf("decode is at fault, reasons are %+v", d)
	}
	// What a fuzzer found: many faults, and then a region that is none.
	hostile := mustInstance(t, attentionOf(4, 128, 128))
	for n := range hostile.Engines {
		hostile.Engines[n].Shards[0].Layers[0].Region = 9
	}
	if n := len(hostile.Validate()); n != maxReasons {
		t.Errorf("128 ranks in no region give %d reasons, want %d", n, maxReasons)
	}
	big := mustInstance(t, attentionOf(4, 128, 128))
	for n := range big.Engines {
		big.Engines[n].Shards[0].PageStride = 1
	}
	if n := len(big.Validate()); n != maxReasons {
		t.Errorf("128 ranks at fault give %d reasons, want them to stop at %d", n, maxReasons)
	}
}

// TestInterleavedTensorsAreNoOverlap: K beside V in every page, or in every token,
// is a layout like any other; one byte less between them is not.
func TestInterleavedTensorsAreNoOverlap(t *testing.T) {
	interleave := func(page bool, less uint64) *Instance {
		i := mustInstance(t, attentionOf(4, 4, 2))
		for n := range i.Engines {
			e := &i.Engines[n]
			for c := range e.Shards {
				s := &e.Shards[c]
				own := uint64(8) // k or v of one token
				if page {
					own = s.PageStride
				} else {
					s.RowStride = 8 * own // 4 layers of k and v
				}
				for l := range s.Layers {
					s.Layers[l].Offset = uint64(c*len(s.Layers)+l)*own - min(less, uint64(c))
				}
				s.PageStride *= 8
			}
		}
		return i
	}
	for _, page := range []bool{true, false} {
		if rs := interleave(page, 0).Validate(); len(rs) > 0 {
			t.Errorf("interleaved by page %v: %v, want it to be valid", page, rs)
		}
		if rs := interleave(page, 1).Validate(); len(rs) == 0 {
			t.Errorf("interleaved by page %v with a byte in common: valid", page)
		}
	}
}

// TestTensorsThatMeetInTheNextPageOverlap: the end of one tensor's page may lie
// on the beginning of the other's next page.
func TestTensorsThatMeetInTheNextPageOverlap(t *testing.T) {
	for _, tc := range []struct {
		offset uint64 // of the second of two tensors with pages of 32 bytes, 128 apart
		valid  bool
	}{{32, true}, {96, true}, {97, false}, {112, false}, {31, false}, {128, false}, {127, false}, {160, true}} {
		i := mustInstance(t, attentionOf(2, 4, 2))
		for n := range i.Engines {
			e := &i.Engines[n]
			e.Shards = e.Shards[:1]
			s := &e.Shards[0]
			s.PageStride = 128
			s.Layers[0].Offset, s.Layers[1].Offset = 0, tc.offset
			e.RegionBytes[0] = 1 << 20
			e.Meta.Offset = 1 << 19
		}
		if rs := i.Validate(); (len(rs) == 0) != tc.valid {
			t.Errorf("second tensor at %d: reasons %v, want valid %v", tc.offset, rs, tc.valid)
		}
	}
}
