package kv

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// geometry is one way in which models or deployments differ, with a real one that
// differs so. The numbers of heads, the ratios of layers and the windows are the
// real ones; layers are fewer, and rows smaller by a constant.
type geometry struct {
	name            string
	prefill, decode *Deployment
	prefix, length  uint64
	want            []string // what writers send to the first and to the last receiver
	bytes           uint64   // to all receivers of a DP rank together
	refused         string   // instead: why they do not work together
}

// served is a model in a deployment: what it does not say is 1, pages of 16 tokens
// and NHD.
func served(d Deployment, cs ...Component) *Deployment {
	of := *declared(max(1, d.TP), 16, cs...)
	of.DP, of.PP, of.PPLayers, of.DPAttention = max(1, d.DP), max(1, d.PP, len(d.PPLayers)), d.PPLayers, d.DPAttention
	of.CP, of.Split, of.PageAlign = d.CP, d.Split, d.PageAlign
	if d.PageTokens > 0 {
		of.PageTokens = d.PageTokens
	}
	if d.Layout != "" {
		of.Layout = d.Layout
	}
	return &of
}

// gqa is keys and values of the first layers; 8 bytes stand for a head of 128.
func gqa(layers, heads int) []Component {
	return []Component{
		{Name: "k", Layers: seq(0, layers), Heads: heads, HeadBytes: 8},
		{Name: "v", Layers: seq(0, layers), Heads: heads, HeadBytes: 8},
	}
}

// gqaOn is gqa of some layers.
func gqaOn(layers []int, heads int) []Component {
	cs := gqa(1, heads)
	cs[0].Layers, cs[1].Layers = layers, layers
	return cs
}

// mla is latents of 512 + 64 of the first layers, and an index of some of them.
func mla(layers int, index ...int) []Component {
	cs := []Component{{Name: "latent", Layers: seq(0, layers), Heads: 1, HeadBytes: 18}}
	if len(index) > 0 {
		cs = append(cs, Component{Name: "index", Layers: index, Heads: 1, HeadBytes: 4})
	}
	return cs
}

// draft is a draft model's layer behind the model's.
func draft(cs []Component) []Component {
	return append(slices.Clone(cs), Component{Name: "draft", Layers: []int{100}, Heads: 1, HeadBytes: 18, Optional: true})
}

// recurrent is the state of the layers of a hybrid model: ssm of some heads, and a
// convolution with sections of so many heads, of three rows.
func recurrent(layers []int, ssm int, sections ...int) []Component {
	cs := []Component{{Name: "ssm", Kind: Slot, Layers: layers, Heads: ssm, HeadBytes: 16}}
	for n, heads := range sections {
		cs = append(cs, Component{Name: "conv." + []string{"a", "b", "c"}[n], Kind: Slot, Layers: layers, Heads: heads, HeadBytes: 2, SlotRows: 3, Tensor: "conv"})
	}
	return cs
}

// kimiK3 is latents of every fourth layer, and the state of the others, in sixteen
// stages of two layers.
func kimiK3() []Component {
	var full, linear []int
	for l := range 32 {
		if l%4 == 3 {
			full = append(full, l)
		} else {
			linear = append(linear, l)
		}
	}
	return append([]Component{{Name: "latent", Layers: full, Heads: 1, HeadBytes: 18}}, recurrent(linear, 96, 96, 96, 96)...)
}

// swa is keys and values that keep a window.
func swa(window uint64, layers []int, heads int, k, v uint64) []Component {
	return []Component{
		{Name: "swa.k", Layers: layers, Heads: heads, HeadBytes: k, Window: window},
		{Name: "swa.v", Layers: layers, Heads: heads, HeadBytes: v, Window: window},
	}
}

// deepseekV4 is a window, rows of 4 and of 128 tokens, and the state
// of the groups that are open.
func deepseekV4() []Component {
	return []Component{
		{Name: "swa", Layers: seq(0, 4), Heads: 1, HeadBytes: 5, Window: 128},
		{Name: "c4", Layers: []int{2}, Heads: 1, HeadBytes: 5, RowTokens: 4},
		{Name: "c4.index", Layers: []int{2}, Heads: 1, HeadBytes: 1, RowTokens: 4},
		{Name: "c128", Layers: []int{3}, Heads: 1, HeadBytes: 5, RowTokens: 128},
		{Name: "c4.open", Kind: Slot, Layers: []int{2}, Heads: 1, HeadBytes: 8, RowTokens: 4, SlotRows: 4},
		{Name: "c128.open", Kind: Slot, Layers: []int{3}, Heads: 1, HeadBytes: 8, RowTokens: 128, SlotRows: 128},
	}
}

// gptOss is as many layers that keep all tokens as of a window.
func gptOss() []Component { return append(gqa(2, 8), swa(128, []int{2, 3}, 8, 4, 4)...) }

// mimoV2 is keys and values of two sizes, and more heads of a window.
func mimoV2() []Component {
	return append([]Component{
		{Name: "k", Layers: []int{0}, Heads: 4, HeadBytes: 12}, {Name: "v", Layers: []int{0}, Heads: 4, HeadBytes: 8},
	}, swa(128, seq(1, 5), 8, 12, 8)...)
}

// gemma4 is heads of two sizes: few large ones, and many of a window.
func gemma4() []Component {
	return append([]Component{
		{Name: "k", Layers: []int{5}, Heads: 4, HeadBytes: 32}, {Name: "v", Layers: []int{5}, Heads: 4, HeadBytes: 32},
	}, swa(1024, seq(0, 5), 16, 16, 16)...)
}

func qwen35() []Component {
	return append(gqaOn([]int{3}, 2), recurrent([]int{0, 1, 2}, 64, 16, 16, 64)...)
}

func nemotron3() []Component {
	return append(gqaOn([]int{5}, 2), recurrent(seq(0, 5), 128, 128, 8, 8)...)
}

func falconH1() []Component { return append(gqa(2, 2), recurrent(seq(0, 2), 24)...) }

// minimaxM3 is keys and values, and an index of one head of most layers.
func minimaxM3() []Component { return append(gqa(4, 4), mla(4, 1, 2, 3)[1]) }

func geometries() []geometry {
	return []geometry{
		{
			name:    "phi-4 tp 2 to tp 4: 10 heads do not go over 4",
			prefill: served(Deployment{TP: 2}, gqa(2, 10)...),
			decode:  served(Deployment{TP: 4}, gqa(2, 10)...),
			refused: "decode: k has 10 heads, which do not go over tp 4: use a tp that divides 10 or a multiple of 10",
		},
		{
			name:    "phi-4 tp 5 to tp 2: 10 heads are cut within a rank",
			prefill: served(Deployment{TP: 5}, gqa(2, 10)...),
			decode:  served(Deployment{TP: 2}, gqa(2, 10)...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 0-1 heads [0,2) rows 0-19",
				"tp1 > tp0: k+v layers 0-1 heads [2,4) rows 0-19",
				"tp2 > tp0: k+v layers 0-1 heads [4,5) rows 0-19",
				"tp2 > tp1: k+v layers 0-1 heads [5,6) rows 0-19",
				"tp3 > tp1: k+v layers 0-1 heads [6,8) rows 0-19",
				"tp4 > tp1: k+v layers 0-1 heads [8,10) rows 0-19",
			},
			bytes: 6400,
		},
		{
			name:    "falcon-h1 tp 2 to tp 16: 24 ssm heads do not go over 16",
			prefill: served(Deployment{TP: 2}, falconH1()...),
			decode:  served(Deployment{TP: 16}, falconH1()...),
			refused: "decode: ssm has 24 heads, which do not go over tp 16: use a tp that divides 24 or a multiple of 24",
		},
		{
			name:    "3 to 2: neither size divides the other",
			prefill: served(Deployment{TP: 3}, gqa(2, 12)...),
			decode:  served(Deployment{TP: 2}, gqa(2, 12)...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 0-1 heads [0,4) rows 0-19",
				"tp1 > tp0: k+v layers 0-1 heads [4,6) rows 0-19",
				"tp1 > tp1: k+v layers 0-1 heads [6,8) rows 0-19",
				"tp2 > tp1: k+v layers 0-1 heads [8,12) rows 0-19",
			},
			bytes: 7680,
		},
		{
			name:    "qwen3-235b-a22b tp 4 to tp 8: 4 heads replicated",
			prefill: served(Deployment{TP: 4}, gqa(2, 4)...),
			decode:  served(Deployment{TP: 8}, gqa(2, 4)...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 0-1 heads [0,1) rows 0-19",
				"tp3 > tp7: k+v layers 0-1 heads [3,4) rows 0-19",
			},
			bytes: 5120,
		},
		{
			name:    "qwen3-235b-a22b tp 8 to tp 4: one of two holders writes",
			prefill: served(Deployment{TP: 8}, gqa(2, 4)...),
			decode:  served(Deployment{TP: 4}, gqa(2, 4)...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 0-1 heads [0,1) rows 0-19",
				"tp7 > tp3: k+v layers 0-1 heads [3,4) rows 0-19",
			},
			bytes: 2560,
		},
		{
			name:    "sglang-pp-qwen235 PP8 TP4 to tp 8: 94 layers as 12 and 11",
			prefill: served(Deployment{TP: 4, PP: 8}, gqa(14, 4)...),
			decode:  served(Deployment{TP: 8}, gqa(14, 4)...),
			length:  20,
			want: []string{
				"pp0 tp0 > tp0: k+v layers 0-1 heads [0,1) rows 0-19",
				"pp1 tp0 > tp0: k+v layers 2-3 heads [0,1) rows 0-19",
				"pp7 tp0 > tp0: k+v layers 13 heads [0,1) rows 0-19",
				"pp0 tp3 > tp7: k+v layers 0-1 heads [3,4) rows 0-19",
				"pp1 tp3 > tp7: k+v layers 2-3 heads [3,4) rows 0-19",
				"pp7 tp3 > tp7: k+v layers 13 heads [3,4) rows 0-19",
			},
			bytes: 35840,
		},
		{
			name:    "llama-3.1-405b PP4 to PP2: 126 layers as 32 and 31",
			prefill: served(Deployment{TP: 2, PP: 4}, gqa(6, 8)...),
			decode:  served(Deployment{TP: 2, PP: 2}, gqa(6, 8)...),
			length:  20,
			want: []string{
				"pp0 tp0 > pp0 tp0: k+v layers 0-1 heads [0,4) rows 0-19",
				"pp1 tp0 > pp0 tp0: k+v layers 2 heads [0,4) rows 0-19",
				"pp1 tp1 > pp1 tp1: k+v layers 3 heads [4,8) rows 0-19",
				"pp2 tp1 > pp1 tp1: k+v layers 4 heads [4,8) rows 0-19",
				"pp3 tp1 > pp1 tp1: k+v layers 5 heads [4,8) rows 0-19",
			},
			bytes: 15360,
		},
		{
			name:    "user-llama70b-p4d1: tp 4 to tp 1",
			prefill: served(Deployment{TP: 4}, gqa(2, 8)...),
			decode:  served(Deployment{}, gqa(2, 8)...),
			length:  20,
			want: []string{
				"tp0 > one: k+v layers 0-1 heads [0,2) rows 0-19",
				"tp1 > one: k+v layers 0-1 heads [2,4) rows 0-19",
				"tp3 > one: k+v layers 0-1 heads [6,8) rows 0-19",
			},
			bytes: 5120,
		},
		{
			name:    "llmd-bench-1 qwen3-32b: tp 1 to tp 8, pages of 128",
			prefill: served(Deployment{PageTokens: 128}, gqa(2, 8)...),
			decode:  served(Deployment{TP: 8, PageTokens: 128}, gqa(2, 8)...),
			length:  200,
			want: []string{
				"one > tp0: k+v layers 0-1 heads [0,1) rows 0-199",
				"one > tp7: k+v layers 0-1 heads [7,8) rows 0-199",
			},
			bytes: 51200,
		},
		{
			name:    "dynamo-qwen3-32b-a100: tp 2 to tp 4, and a prefix that does not end at a page",
			prefill: served(Deployment{TP: 2}, gqa(2, 8)...),
			decode:  served(Deployment{TP: 4}, gqa(2, 8)...),
			prefix:  21,
			length:  60,
			want: []string{
				"tp0 > tp0: k+v layers 0-1 heads [0,2) rows 21-59",
				"tp1 > tp3: k+v layers 0-1 heads [6,8) rows 21-59",
			},
			bytes: 9984,
		},
		{
			name:    "all is cached: the metadata row alone",
			prefill: served(Deployment{TP: 2}, gqa(2, 8)...),
			decode:  served(Deployment{TP: 2}, gqa(2, 8)...),
			prefix:  21,
			length:  21,
		},
		{
			name:    "dynamo-r1-sglang: tp 8 to dp 8, latents come from one of 8",
			prefill: served(Deployment{TP: 8}, mla(3)...),
			decode:  served(Deployment{TP: 8, DP: 8, DPAttention: true}, mla(3)...),
			length:  20,
			want: []string{
				"tp0 > dp0: latent layers 0-2 heads [0,1) rows 0-19",
			},
			bytes: 1080,
		},
		{
			name:    "deepseek TP16 DP16 attention to TP4: every decode rank has all",
			prefill: served(Deployment{TP: 16, DP: 16, DPAttention: true}, mla(3)...),
			decode:  served(Deployment{TP: 4}, mla(3)...),
			length:  20,
			want: []string{
				"dp0 > tp0: latent layers 0-2 heads [0,1) rows 0-19",
				"dp0 > tp3: latent layers 0-2 heads [0,1) rows 0-19",
			},
			bytes: 4320,
		},
		{
			name:    "sglang-doc-dsv3: TP16 DP8 attention on both sides",
			prefill: served(Deployment{TP: 16, DP: 8, DPAttention: true}, mla(3)...),
			decode:  served(Deployment{TP: 16, DP: 8, DPAttention: true}, mla(3)...),
			length:  20,
			want: []string{
				"dp0 tp0 > dp0 tp0: latent layers 0-2 heads [0,1) rows 0-19",
				"dp0 tp1 > dp0 tp1: latent layers 0-2 heads [0,1) rows 0-19",
			},
			bytes: 2160,
		},
		{
			name:    "dynamo-kimi-k2.5: dp attention 4 to tp 4, pages of 32",
			prefill: served(Deployment{TP: 4, DP: 4, DPAttention: true, PageTokens: 32}, mla(3)...),
			decode:  served(Deployment{TP: 4, PageTokens: 32}, mla(3)...),
			length:  40,
			want: []string{
				"dp0 > tp0: latent layers 0-2 heads [0,1) rows 0-39",
				"dp0 > tp3: latent layers 0-2 heads [0,1) rows 0-39",
			},
			bytes: 8640,
		},
		{
			name:    "deepseek-v3 tp 16 attention over dp 3",
			prefill: served(Deployment{TP: 16, DP: 3, DPAttention: true}, mla(3)...),
			decode:  served(Deployment{TP: 4}, mla(3)...),
			refused: "prefill: dp attention: tp 16 does not divide over dp 3: use a dp that divides tp",
		},
		{
			name:    "deepseek-v3.2 bf16 to fp8_ds_mla: rows of 1152 and of 656 bytes",
			prefill: served(Deployment{TP: 8}, mla(3)...),
			decode:  served(Deployment{TP: 8}, []Component{{Name: "latent", Layers: seq(0, 3), Heads: 1, HeadBytes: 10}}...),
			refused: "head_bytes of latent differ: prefill has 18 bytes for one row of one head, decode 10: check the head size and the cache dtype of both",
		},
		{
			name:    "glm-5.1 PP4 TP8 to DP8: 78 layers as 20 and 19, each with an index",
			prefill: served(Deployment{TP: 8, PP: 4}, mla(10, seq(0, 10)...)...),
			decode:  served(Deployment{TP: 8, DP: 8, DPAttention: true}, mla(10, seq(0, 10)...)...),
			length:  20,
			want: []string{
				"pp0 tp0 > dp0: latent+index layers 0-2 heads [0,1) rows 0-19",
				"pp1 tp0 > dp0: latent+index layers 3-5 heads [0,1) rows 0-19",
				"pp3 tp0 > dp0: latent+index layers 8-9 heads [0,1) rows 0-19",
			},
			bytes: 4400,
		},
		{
			name:    "glm-5.2 PP2 with CP prefill: 21 of 78 index layers, page ranges",
			prefill: served(Deployment{PP: 2, CP: 3, Split: PageRanges}, mla(26, 0, 1, 2, 6, 10, 18, 25)...),
			decode:  served(Deployment{TP: 8, DP: 8, DPAttention: true}, mla(26, 0, 1, 2, 6, 10, 18, 25)...),
			length:  100,
			want: []string{
				"pp0 cp0 > dp0: latent layers 0-12 heads [0,1) rows 0-47",
				"pp0 cp0 > dp0: index layers 0-2,6,10 heads [0,1) rows 0-47",
				"pp0 cp1 > dp0: latent layers 0-12 heads [0,1) rows 48-79",
				"pp0 cp1 > dp0: index layers 0-2,6,10 heads [0,1) rows 48-79",
				"pp1 cp2 > dp0: latent layers 13-25 heads [0,1) rows 80-99",
				"pp1 cp2 > dp0: index layers 18,25 heads [0,1) rows 80-99",
			},
			bytes: 49600,
		},
		{
			name:    "dynamo-glm5 TP4 to DP16: a draft model only on decode",
			prefill: served(Deployment{TP: 4}, mla(3, seq(0, 3)...)...),
			decode:  served(Deployment{TP: 16, DP: 16, DPAttention: true}, draft(mla(3, seq(0, 3)...))...),
			length:  20,
			want: []string{
				"tp0 > dp0: latent+index layers 0-2 heads [0,1) rows 0-19",
			},
			bytes: 1320,
		},
		{
			name:    "glm-4.5 with MTP on both sides: the draft layer is the last stage's",
			prefill: served(Deployment{PP: 2}, draft(mla(4))...),
			decode:  served(Deployment{}, draft(mla(4))...),
			length:  20,
			want: []string{
				"pp0 > one: latent layers 0-1 heads [0,1) rows 0-19",
				"pp1 > one: latent layers 2-3 heads [0,1) rows 0-19",
				"pp1 > one: draft layers 100 heads [0,1) rows 0-19",
			},
			bytes: 1800,
		},
		{
			name:    "minimax-m3 PP2 TP2 to tp 8: an index of one head beside 4 heads",
			prefill: served(Deployment{TP: 2, PP: 2}, minimaxM3()...),
			decode:  served(Deployment{TP: 8}, minimaxM3()...),
			length:  20,
			want: []string{
				"pp0 tp0 > tp0: k+v layers 0-1 heads [0,1) rows 0-19",
				"pp0 tp0 > tp0: index layers 1 heads [0,1) rows 0-19",
				"pp1 tp0 > tp0: k+v+index layers 2-3 heads [0,1) rows 0-19",
				"pp0 tp1 > tp7: k+v layers 0-1 heads [3,4) rows 0-19",
				"pp0 tp1 > tp7: index layers 1 heads [0,1) rows 0-19",
				"pp1 tp1 > tp7: k+v layers 2-3 heads [3,4) rows 0-19",
				"pp1 tp1 > tp7: index layers 2-3 heads [0,1) rows 0-19",
			},
			bytes: 12160,
		},
		{
			name:    "kimi-k3 PP16 to DCP 4: latents of every fourth layer, state of the others",
			prefill: served(Deployment{PP: 16}, kimiK3()...),
			decode:  served(Deployment{CP: 4, Split: Interleaved}, kimiK3()...),
			length:  50,
			want: []string{
				"pp0 > cp0: ssm layers 0-1 heads [0,96) rows 0-0",
				"pp0 > cp0: conv.a+conv.b+conv.c layers 0-1 heads [0,96) rows 0-2",
				"pp1 > cp0: latent layers 3 heads [0,1) rows 0-48 by 4",
				"pp1 > cp0: ssm layers 2 heads [0,96) rows 0-0",
				"pp1 > cp0: conv.a+conv.b+conv.c layers 2 heads [0,96) rows 0-2",
				"pp15 > cp0: latent layers 31 heads [0,1) rows 0-48 by 4",
				"pp15 > cp0: ssm layers 30 heads [0,96) rows 0-0",
				"pp15 > cp0: conv.a+conv.b+conv.c layers 30 heads [0,96) rows 0-2",
				"pp0 > cp3: ssm layers 0-1 heads [0,96) rows 0-0",
				"pp0 > cp3: conv.a+conv.b+conv.c layers 0-1 heads [0,96) rows 0-2",
				"pp1 > cp3: latent layers 3 heads [0,1) rows 3-47 by 4",
				"pp1 > cp3: ssm layers 2 heads [0,96) rows 0-0",
				"pp1 > cp3: conv.a+conv.b+conv.c layers 2 heads [0,96) rows 0-2",
				"pp15 > cp3: latent layers 31 heads [0,1) rows 3-47 by 4",
				"pp15 > cp3: ssm layers 30 heads [0,96) rows 0-0",
				"pp15 > cp3: conv.a+conv.b+conv.c layers 30 heads [0,96) rows 0-2",
			},
			bytes: 320544,
		},
		{
			name:    "dynamo-kimi-k3-gb200 tp 16 to tp 8: 96 heads of state",
			prefill: served(Deployment{TP: 16}, kimiK3()...),
			decode:  served(Deployment{TP: 8}, kimiK3()...),
			length:  20,
			want: []string{
				"tp0 > tp0: latent layers 3,7,11,15,19,23,27,31 heads [0,1) rows 0-19",
				"tp0 > tp0: ssm layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [0,6) rows 0-0",
				"tp0 > tp0: conv.a+conv.b+conv.c layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [0,6) rows 0-2",
				"tp1 > tp0: ssm layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [6,12) rows 0-0",
				"tp1 > tp0: conv.a+conv.b+conv.c layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [6,12) rows 0-2",
				"tp7 > tp7: latent layers 3,7,11,15,19,23,27,31 heads [0,1) rows 0-19",
				"tp14 > tp7: ssm layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [84,90) rows 0-0",
				"tp14 > tp7: conv.a+conv.b+conv.c layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [84,90) rows 0-2",
				"tp15 > tp7: ssm layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [90,96) rows 0-0",
				"tp15 > tp7: conv.a+conv.b+conv.c layers 0-2,4-6,8-10,12-14,16-18,20-22,24-26,28-30 heads [90,96) rows 0-2",
			},
			bytes: 101376,
		},
		{
			name:    "deepseek-v3 tp 8 to DCP 8: row r is rank r mod 8's",
			prefill: served(Deployment{TP: 8}, mla(2)...),
			decode:  served(Deployment{CP: 8, Split: Interleaved}, mla(2)...),
			prefix:  3,
			length:  50,
			want: []string{
				"tp0 > cp0: latent layers 0-1 heads [0,1) rows 8-48 by 8",
				"tp7 > cp7: latent layers 0-1 heads [0,1) rows 7-47 by 8",
			},
			bytes: 1692,
		},
		{
			name:    "deepseek-v3 DCP 2 to DCP 4",
			prefill: served(Deployment{CP: 2, Split: Interleaved}, mla(2)...),
			decode:  served(Deployment{CP: 4, Split: Interleaved}, mla(2)...),
			length:  50,
			want: []string{
				"cp0 > cp0: latent layers 0-1 heads [0,1) rows 0-48 by 4",
				"cp1 > cp3: latent layers 0-1 heads [0,1) rows 3-47 by 4",
			},
			bytes: 1800,
		},
		{
			name:    "llama-3.1-70b CP 2 prefill that holds all on both ranks",
			prefill: served(Deployment{TP: 2, CP: 2}, gqa(2, 8)...),
			decode:  served(Deployment{TP: 2}, gqa(2, 8)...),
			length:  20,
			want: []string{
				"cp0 tp0 > tp0: k+v layers 0-1 heads [0,4) rows 0-19",
				"cp1 tp1 > tp1: k+v layers 0-1 heads [4,8) rows 0-19",
			},
			bytes: 5120,
		},
		{
			name:    "gpt-oss tp 1 to tp 4: windows of 128 beside all tokens",
			prefill: served(Deployment{}, gptOss()...),
			decode:  served(Deployment{TP: 4}, gptOss()...),
			length:  300,
			want: []string{
				"one > tp0: k+v layers 0-1 heads [0,2) rows 0-299",
				"one > tp0: swa.k+swa.v layers 2-3 heads [0,2) rows 160-299",
				"one > tp3: k+v layers 0-1 heads [6,8) rows 0-299",
				"one > tp3: swa.k+swa.v layers 2-3 heads [6,8) rows 160-299",
			},
			bytes: 94720,
		},
		{
			name:    "gpt-oss windows of 128 in pages of 64 to pages of 16: from the later page",
			prefill: served(Deployment{PageTokens: 64}, gptOss()...),
			decode:  served(Deployment{}, gptOss()...),
			length:  300,
			want: []string{
				"one > one: k+v layers 0-1 heads [0,8) rows 0-299",
				"one > one: swa.k+swa.v layers 2-3 heads [0,8) rows 160-299",
			},
			bytes: 94720,
		},
		{
			name:    "gpt-oss windows of 128 in pages of 16 to pages of 64: from the later page",
			prefill: served(Deployment{}, gptOss()...),
			decode:  served(Deployment{PageTokens: 64}, gptOss()...),
			length:  300,
			want: []string{
				"one > one: k+v layers 0-1 heads [0,8) rows 0-299",
				"one > one: swa.k+swa.v layers 2-3 heads [0,8) rows 160-299",
			},
			bytes: 94720,
		},
		{
			name:    "gpt-oss with a prefix within the window: from the page of the prefix",
			prefill: served(Deployment{}, gptOss()...),
			decode:  served(Deployment{}, gptOss()...),
			prefix:  250,
			length:  300,
			want: []string{
				"one > one: k+v layers 0-1 heads [0,8) rows 250-299",
				"one > one: swa.k+swa.v layers 2-3 heads [0,8) rows 240-299",
			},
			bytes: 20480,
		},
		{
			name:    "mimo-v2-flash: K 192 and V 128, 4 heads and 8 of a window",
			prefill: served(Deployment{TP: 4}, mimoV2()...),
			decode:  served(Deployment{TP: 8}, mimoV2()...),
			length:  200,
			want: []string{
				"tp0 > tp0: k+v layers 0 heads [0,1) rows 0-199",
				"tp0 > tp0: swa.k+swa.v layers 1-4 heads [0,1) rows 64-199",
				"tp3 > tp7: k+v layers 0 heads [3,4) rows 0-199",
				"tp3 > tp7: swa.k+swa.v layers 1-4 heads [7,8) rows 64-199",
			},
			bytes: 119040,
		},
		{
			name:    "gemma-4 two KV groups, user-gemma4-p2d4: tp 2 to tp 4",
			prefill: served(Deployment{TP: 2}, gemma4()...),
			decode:  served(Deployment{TP: 4}, gemma4()...),
			length:  40,
			want: []string{
				"tp0 > tp0: k+v layers 5 heads [0,1) rows 0-39",
				"tp0 > tp0: swa.k+swa.v layers 0-4 heads [0,4) rows 0-39",
				"tp1 > tp3: k+v layers 5 heads [3,4) rows 0-39",
				"tp1 > tp3: swa.k+swa.v layers 0-4 heads [12,16) rows 0-39",
			},
			bytes: 112640,
		},
		{
			name:    "qwen3.5 GDN tp 4 to 8: conv sections q|k|v, and 2 heads replicated",
			prefill: served(Deployment{TP: 4}, qwen35()...),
			decode:  served(Deployment{TP: 8}, qwen35()...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 3 heads [0,1) rows 0-19",
				"tp0 > tp0: ssm layers 0-2 heads [0,8) rows 0-0",
				"tp0 > tp0: conv.a+conv.b layers 0-2 heads [0,2) rows 0-2",
				"tp0 > tp0: conv.c layers 0-2 heads [0,8) rows 0-2",
				"tp3 > tp7: k+v layers 3 heads [1,2) rows 0-19",
				"tp3 > tp7: ssm layers 0-2 heads [56,64) rows 0-0",
				"tp3 > tp7: conv.a+conv.b layers 0-2 heads [14,16) rows 0-2",
				"tp3 > tp7: conv.c layers 0-2 heads [56,64) rows 0-2",
			},
			bytes: 7360,
		},
		{
			name:    "user-qwen3.5-p4d8: tp 4 to dp 8, pages of 32 to 16",
			prefill: served(Deployment{TP: 4, PageTokens: 32}, qwen35()...),
			decode:  served(Deployment{TP: 8, DP: 8, DPAttention: true}, qwen35()...),
			length:  40,
			want: []string{
				"tp0 > dp0: k+v layers 3 heads [0,1) rows 0-39",
				"tp0 > dp0: ssm layers 0-2 heads [0,16) rows 0-0",
				"tp0 > dp0: conv.a+conv.b layers 0-2 heads [0,4) rows 0-2",
				"tp0 > dp0: conv.c layers 0-2 heads [0,16) rows 0-2",
				"tp1 > dp0: ssm layers 0-2 heads [16,32) rows 0-0",
				"tp1 > dp0: conv.a+conv.b layers 0-2 heads [4,8) rows 0-2",
				"tp1 > dp0: conv.c layers 0-2 heads [16,32) rows 0-2",
				"tp3 > dp0: ssm layers 0-2 heads [48,64) rows 0-0",
				"tp3 > dp0: conv.a+conv.b layers 0-2 heads [12,16) rows 0-2",
				"tp3 > dp0: conv.c layers 0-2 heads [48,64) rows 0-2",
			},
			bytes: 6080,
		},
		{
			name:    "nemotron-3-super tp 2 to tp 4: conv sections x|B|C of 128, 8 and 8 heads",
			prefill: served(Deployment{TP: 2}, nemotron3()...),
			decode:  served(Deployment{TP: 4}, nemotron3()...),
			length:  20,
			want: []string{
				"tp0 > tp0: k+v layers 5 heads [0,1) rows 0-19",
				"tp0 > tp0: ssm layers 0-4 heads [0,32) rows 0-0",
				"tp0 > tp0: conv.a layers 0-4 heads [0,32) rows 0-2",
				"tp0 > tp0: conv.b+conv.c layers 0-4 heads [0,2) rows 0-2",
				"tp1 > tp3: k+v layers 5 heads [1,2) rows 0-19",
				"tp1 > tp3: ssm layers 0-4 heads [96,128) rows 0-0",
				"tp1 > tp3: conv.a layers 0-4 heads [96,128) rows 0-2",
				"tp1 > tp3: conv.b+conv.c layers 0-4 heads [6,8) rows 0-2",
			},
			bytes: 15840,
		},
		{
			name:    "falcon-h1 tp 2 to tp 1, page,layer,row,head to hnd: state beside attention in every layer",
			prefill: served(Deployment{TP: 2, Layout: "page,layer,row,head"}, falconH1()...),
			decode:  served(Deployment{Layout: HND}, falconH1()...),
			length:  20,
			want: []string{
				"tp0 > one: k+v layers 0-1 heads [0,1) rows 0-19",
				"tp0 > one: ssm layers 0-1 heads [0,12) rows 0-0",
				"tp1 > one: k+v layers 0-1 heads [1,2) rows 0-19",
				"tp1 > one: ssm layers 0-1 heads [12,24) rows 0-0",
			},
			bytes: 2048,
		},
		{
			name:    "deepseek-v4-flash: rows per 4 and 128 tokens with open-group state",
			prefill: served(Deployment{TP: 4, PageTokens: 256}, deepseekV4()...),
			decode:  served(Deployment{TP: 4, PageTokens: 256}, deepseekV4()...),
			length:  302,
			want: []string{
				"tp0 > tp0: swa layers 0-3 heads [0,1) rows 0-301",
				"tp0 > tp0: c4+c4.index layers 2 heads [0,1) rows 0-74",
				"tp0 > tp0: c128 layers 3 heads [0,1) rows 0-1",
				"tp0 > tp0: c4.open layers 2 heads [0,1) rows 0-3",
				"tp0 > tp0: c128.open layers 3 heads [0,1) rows 0-127",
				"tp3 > tp3: swa layers 0-3 heads [0,1) rows 0-301",
				"tp3 > tp3: c4+c4.index layers 2 heads [0,1) rows 0-74",
				"tp3 > tp3: c128 layers 3 heads [0,1) rows 0-1",
				"tp3 > tp3: c4.open layers 2 heads [0,1) rows 0-3",
				"tp3 > tp3: c128.open layers 3 heads [0,1) rows 0-127",
			},
			bytes: 30224,
		},
		{
			name:    "deepseek-v4-flash at 384 tokens: no group is open",
			prefill: served(Deployment{PageTokens: 256}, deepseekV4()...),
			decode:  served(Deployment{PageTokens: 128}, deepseekV4()...),
			length:  384,
			want: []string{
				"one > one: swa layers 0-3 heads [0,1) rows 256-383",
				"one > one: c4+c4.index layers 2 heads [0,1) rows 0-95",
				"one > one: c128 layers 3 heads [0,1) rows 0-2",
			},
			bytes: 3151,
		},
		{
			name:    "deepseek-v4-flash in pages of 64: a row of 128 tokens is in no page",
			prefill: served(Deployment{PageTokens: 256}, deepseekV4()...),
			decode:  served(Deployment{PageTokens: 64}, deepseekV4()...),
			refused: "decode: rank dp 0 pp 0 cp 0 tp 0: component \"c128\": pages hold 64 tokens, want a multiple of the 128 tokens of a row",
		},
		{
			name:    "deepseek-v4-pro: pages padded to a multiple of 576 bytes",
			prefill: served(Deployment{PageTokens: 256, PageAlign: 576}, deepseekV4()...),
			decode:  served(Deployment{PageTokens: 256}, deepseekV4()...),
			length:  302,
			want: []string{
				"one > one: swa layers 0-3 heads [0,1) rows 0-301",
				"one > one: c4+c4.index layers 2 heads [0,1) rows 0-74",
				"one > one: c128 layers 3 heads [0,1) rows 0-1",
				"one > one: c4.open layers 2 heads [0,1) rows 0-3",
				"one > one: c128.open layers 3 heads [0,1) rows 0-127",
			},
			bytes: 7556,
		},
		{
			name:    "pages of 16 to 64",
			prefill: served(Deployment{}, gqa(1, 2)...),
			decode:  served(Deployment{PageTokens: 64}, gqa(1, 2)...),
			length:  100,
			want: []string{
				"one > one: k+v layers 0 heads [0,2) rows 0-99",
			},
			bytes: 3200,
		},
		{
			name:    "pages of 64 to 16",
			prefill: served(Deployment{PageTokens: 64}, gqa(1, 2)...),
			decode:  served(Deployment{}, gqa(1, 2)...),
			length:  100,
			want: []string{
				"one > one: k+v layers 0 heads [0,2) rows 0-99",
			},
			bytes: 3200,
		},
		{
			name:    "pages of 1 to 128",
			prefill: served(Deployment{PageTokens: 1}, gqa(1, 2)...),
			decode:  served(Deployment{PageTokens: 128}, gqa(1, 2)...),
			length:  60,
			want: []string{
				"one > one: k+v layers 0 heads [0,2) rows 0-59",
			},
			bytes: 1920,
		},
		{
			name:    "prefill serves 15 layers in stages of 7 and 8, decode 16",
			prefill: served(Deployment{PPLayers: []int{7, 8}}, gqa(15, 2)...),
			decode:  served(Deployment{}, gqa(16, 2)...),
			refused: "prefill holds layers 0-14 of `k`, decode stage 0 (tp 0) needs 15: start prefill with all 16 layers, or check that both load the same model",
		},
	}
}

// rankName is a rank without the directions in which its instance has one.
func rankName(i *Instance, r Rank) string {
	var out []string
	for _, d := range []struct {
		name    string
		n, size int
	}{{"dp", r.DP, i.DP}, {"pp", r.PP, i.PP}, {"cp", r.CP, i.CP}, {"tp", r.TP, i.TP}} {
		if d.size > 1 {
			out = append(out, fmt.Sprint(d.name, d.n))
		}
	}
	if len(out) == 0 {
		return "one"
	}
	return strings.Join(out, " ")
}

// sends says in lines what a pair sends: one line for the components that are sent
// alike.
func (p *Pair) sends() []string {
	var names [][]string
	var parts []string
	for _, b := range p.Boxes {
		rows := fmt.Sprintf("rows %d-%d", b.Start, b.Start+(b.Rows-1)*b.Step)
		if b.Step > 1 && b.Rows > 1 {
			rows += fmt.Sprintf(" by %d", b.Step)
		}
		part := fmt.Sprintf("layers %s heads %s %s", FormatLayers(b.Layers), b.Heads, rows)
		at := slices.Index(parts, part)
		if at < 0 {
			at = len(parts)
			parts, names = append(parts, part), append(names, nil)
		}
		names[at] = append(names[at], b.Component)
	}
	for n := range parts {
		parts[n] = strings.Join(names[n], "+") + " " + parts[n]
	}
	return parts
}

// sent is what the geometry expects, of a fit: lines as "writer > receiver: what"
// of the first two writers and the last of the first and the last receiver, and the
// bytes to all receivers of a DP rank.
func sent(t *testing.T, f *Fit, prefix, length uint64) (lines []string, bytes uint64) {
	t.Helper()
	receivers := f.Receivers(Route{})
	for n, r := range receivers {
		writers := f.Writers(Route{}, r, prefix, length)
		for k, w := range writers {
			p, err := f.Pair(Route{}, w, r, prefix, length)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range p.Boxes {
				bytes += uint64(len(b.Layers)) * uint64(b.Heads.High-b.Heads.Low) * b.RowBytes * b.Rows
			}
			if (n == 0 || n == len(receivers)-1) && (k < 2 || k == len(writers)-1) {
				for _, line := range p.sends() {
					lines = append(lines, rankName(f.prefill, w)+" > "+rankName(f.decode, r)+": "+line)
				}
			}
		}
	}
	return lines, bytes
}

// TestEveryGeometryHasARealOneBehindIt: what a model or a deployment does that
// others do not is a case here, by name: what is sent of a request, to the byte, or
// why it is refused.
func TestEveryGeometryHasARealOneBehindIt(t *testing.T) {
	for _, g := range geometries() {
		t.Run(g.name, func(t *testing.T) {
			f := MatchDeployments(g.prefill, g.decode, 64, 64)
			if g.refused != "" {
				if !slices.ContainsFunc(f.Reasons(), func(r Reason) bool { return r.Text == g.refused }) {
					t.Errorf("reasons are %q, want %q", f.Reasons(), g.refused)
				}
				return
			}
			if !f.Compatible() {
				t.Fatalf("reasons are %q, want none", f.Reasons())
			}
			lines, bytes := sent(t, f, g.prefix, g.length)
			if !slices.Equal(lines, g.want) || bytes != g.bytes {
				t.Errorf("%d bytes, want %d\n got %s\nwant %s", bytes, g.bytes, strings.Join(lines, "\n     "), strings.Join(g.want, "\n     "))
			}
			trip{prefill: g.prefill, decode: g.decode, prefix: g.prefix, length: g.length, ends: []uint64{g.length / 3, g.length / 2}}.arrives(t)
		})
	}
}

// TestDCPRanksMayShareHeadsOfState: the ranks of a TP group that interleave the rows
// of a latent cut the state by heads, as kimi-k3 does at tp 4 dcp 4. An instance says
// so by its boxes; a deployment has no words for it.
func TestDCPRanksMayShareHeadsOfState(t *testing.T) {
	d := laidOut(t, served(Deployment{CP: 4, Split: Interleaved}, kimiK3()...), 50)
	for n := range d.Engines {
		e := &d.Engines[n]
		for k := range e.Shards {
			if s := &e.Shards[k]; s.PageTokens == 0 {
				s.Heads, _ = HeadsOf(96, 4, e.Rank.CP)
			}
		}
	}
	p := laidOut(t, served(Deployment{PP: 16}, kimiK3()...), 50)
	_, bytes := sent(t, Match(p, d), 0, 50)
	if want := uint64(8*18*50 + 24*96*(16+3*3*2)); bytes != want {
		t.Errorf("%d bytes are sent, want each once: %d", bytes, want)
	}
	arrivesBetween(t, trip{length: 50, ends: []uint64{16}}, p, d)
	// And back, from the ranks that share.
	arrivesBetween(t, trip{length: 50, ends: []uint64{16}}, d, p)
}

// moved is the rows that a pair moves, as offsets at the source and the target, in
// the order of the target.
func moved(t *testing.T, p *Pair, c Chunk, at *Placement) (from, to []uint64) {
	t.Helper()
	copies, err := p.Copies(c, at)
	if err != nil {
		t.Fatal(err)
	}
	var all [][2]uint64
	for i := range copies {
		if bytes := copies[i].Bytes; copies[i].Component != "" {
			copies[i].expand(func(source, target uint64) {
				for b := range bytes {
					all = append(all, [2]uint64{source + b, target + b})
				}
			})
		}
	}
	slices.SortFunc(all, func(a, b [2]uint64) int { return int(a[1]) - int(b[1]) })
	for _, v := range all {
		from, to = append(from, v[0]), append(to, v[1])
	}
	return from, to
}

// pairOf is the pair of two ranks of two deployments, in room 0.
func pairOf(t *testing.T, prefill, decode *Deployment, writer, receiver Rank, length uint64) *Pair {
	t.Helper()
	p, err := mustMatch(t, prefill, decode).Pair(Route{}, writer, receiver, 0, length)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGoldenInterleavedTokens: the rows are of one byte, so that an offset is the
// number of a row: page 4, two ranks that take turns.
func TestGoldenInterleavedTokens(t *testing.T) {
	row := Component{Name: "latent", Layers: []int{0}, Heads: 1, HeadBytes: 1}
	whole, turns := declared(1, 4, row), declared(1, 4, row).withSplit(2, Interleaved)
	for _, tc := range []struct {
		name           string
		rank           int
		length         uint64
		from, to       uint64 // of the chunk
		source, target PageTable
		wantFrom       []uint64
		wantTo         []uint64
	}{
		{"rank 0 of 7 tokens", 0, 7, 0, 7, PageTable{Pages: []uint32{7, 9}}, PageTable{Pages: []uint32{3}}, []uint64{28, 30, 36, 38}, []uint64{12, 13, 14, 15}},
		{"rank 1 of 7 tokens", 1, 7, 0, 7, PageTable{Pages: []uint32{7, 9}}, PageTable{Pages: []uint32{3}}, []uint64{29, 31, 37}, []uint64{12, 13, 14}},
		{"rank 1 of a chunk from the third page on", 1, 12, 8, 12, PageTable{First: 8, Pages: []uint32{4}}, PageTable{Pages: []uint32{3, 5}}, []uint64{17, 19}, []uint64{20, 21}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pairOf(t, whole, turns, Rank{}, Rank{CP: tc.rank}, tc.length)
			at := AllTokens(tc.target, 0)
			from, to := moved(t, p, Chunk{From: tc.from, To: tc.to, Source: AllTokens(tc.source, 0)}, &at)
			if !slices.Equal(from, tc.wantFrom) || !slices.Equal(to, tc.wantTo) {
				t.Errorf("rows %v go to %v, want %v to %v", from, to, tc.wantFrom, tc.wantTo)
			}
		})
	}
}

// TestGoldenConvolutionSections: the numbers are channels of a byte: where a section
// begins at the source, where at the target, how many.
func TestGoldenConvolutionSections(t *testing.T) {
	conv := func(tp int) *Deployment {
		var cs []Component
		for n, channels := range []int{4, 4, 8} {
			cs = append(cs, Component{Name: "conv." + []string{"q", "k", "v"}[n], Kind: Slot, Layers: []int{0}, Heads: channels, HeadBytes: 1, Tensor: "conv"})
		}
		return declared(tp, 4, cs...)
	}
	rows := declared(1, 4, Component{Name: "conv", Kind: Slot, Layers: []int{0}, Heads: 16, HeadBytes: 2, SlotRows: 3})
	half := rows.with(func(d *Deployment) { d.TP = 2 })
	for _, tc := range []struct {
		name            string
		prefill, decode *Deployment
		writer, reader  int
		want            [][3]uint64
	}{
		{"scatter 1 to 2, first", conv(1), conv(2), 0, 0, [][3]uint64{{0, 0, 2}, {4, 2, 2}, {8, 4, 4}}},
		{"scatter 1 to 2, second", conv(1), conv(2), 0, 1, [][3]uint64{{2, 0, 2}, {6, 2, 2}, {12, 4, 4}}},
		{"gather 2 to 1, first", conv(2), conv(1), 0, 0, [][3]uint64{{0, 0, 2}, {2, 4, 2}, {4, 8, 4}}},
		{"gather 2 to 1, second", conv(2), conv(1), 1, 0, [][3]uint64{{0, 2, 2}, {2, 6, 2}, {4, 12, 4}}},
		{"three rows of 32 bytes, second half", rows, half, 0, 1, [][3]uint64{{16, 0, 16}, {48, 16, 16}, {80, 32, 16}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pairOf(t, tc.prefill, tc.decode, Rank{TP: tc.writer}, Rank{TP: tc.reader}, 5)
			copies, err := p.Copies(Chunk{To: 5, Last: true}, &Placement{})
			if err != nil {
				t.Fatal(err)
			}
			var got [][3]uint64
			for i := range copies {
				bytes := copies[i].Bytes
				copies[i].expand(func(source, target uint64) { got = append(got, [3]uint64{source, target, bytes}) })
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("source, target, bytes are %v, want %v", got, tc.want)
			}
		})
	}
}

// TestGoldenOpenGroupState: the state of 128 tokens is part of a request unless its
// length is a multiple of 128; it is in the slot that the engine names, be it that of
// the request or a place in a ring.
func TestGoldenOpenGroupState(t *testing.T) {
	d := declared(1, 128, Component{Name: "c128.open", Kind: Slot, Layers: []int{0}, Heads: 1, HeadBytes: 1, RowTokens: 128})
	i, reasons := d.with(func(d *Deployment) { d.Slots = 32 }).Instance(4)
	if len(reasons) > 0 {
		t.Fatal(reasons)
	}
	const ring, slot = 256, 7
	for _, tc := range []struct {
		length uint64
		want   []uint64 // the place in the ring
	}{{128, nil}, {129, []uint64{15}}, {256, nil}, {257, []uint64{14}}, {385, []uint64{15}}} {
		p, err := Match(i, i).Pair(Route{}, Rank{}, Rank{}, 0, tc.length)
		if err != nil {
			t.Fatal(err)
		}
		place := uint32(slot*(ring/128) + (tc.length-1)%ring/128)
		for _, source := range []uint32{place, slot} {
			from, to := moved(t, p, Chunk{To: tc.length, Last: true, Source: Placement{Slot: source}}, &Placement{Slot: 3})
			want, at := slices.Clone(tc.want), []uint64(nil)
			if len(want) > 0 {
				at = []uint64{3}
			}
			if len(want) > 0 && source == slot {
				want[0] = slot
			}
			if !slices.Equal(from, want) || !slices.Equal(to, at) {
				t.Errorf("%d tokens, state in slot %d: %v goes to %v, want %v to %v", tc.length, source, from, to, want, at)
			}
		}
	}
}

// TestGoldenLayersArePairedByNumber: of a stage that has layer 7, keys and values go
// to the second and the fifth tensor of a decode engine of the layers 3, 7 and 11.
func TestGoldenLayersArePairedByNumber(t *testing.T) {
	cs := gqaOn([]int{3, 7, 11}, 1)
	p := pairOf(t, declared(1, 4, cs...).with(func(d *Deployment) { d.PP = 3 }), declared(1, 4, cs...), Rank{PP: 1}, Rank{}, 4)
	at := AllTokens(PageTable{Pages: []uint32{0}}, 0)
	copies, err := p.Copies(Chunk{To: 4, Source: at}, &at)
	if err != nil {
		t.Fatal(err)
	}
	const tensor = 16 * 4 * 8 // bytes: pages, tokens of a page, of a row
	var got [][2]uint64
	for _, c := range copies {
		got = append(got, [2]uint64{c.Source.Offset / tensor, c.Target.Offset / tensor})
	}
	if want := [][2]uint64{{0, 1}, {1, 4}}; !slices.Equal(got, want) {
		t.Errorf("tensors are paired as %v, want %v", got, want)
	}
}
