package node

import (
	"strings"
	"testing"

	"kvferry/kv"
	"kvferry/transport/rdma"
)

// What an engine says of its memory is checked before anybody pairs with it, also
// when it knows no rank but its own.
func TestEngineConfigSaysWhatIsWrong(t *testing.T) {
	sound := func(t *testing.T) EngineConfig {
		d := kv.Deployment{
			Model: kv.Model{ID: "m", Components: []kv.Component{
				{Name: "k", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 2, HeadBytes: 16, DType: kv.BF16},
				{Name: "ssm", Kind: kv.Slot, Layers: []int{0}, Heads: 2, HeadBytes: 16, DType: kv.F32},
			}},
			TP: 2, PP: 1, DP: 1, PageTokens: 4, Layout: kv.NHD, MetaRows: 2, MetaRowBytes: 64,
		}
		i, reasons := d.Instance(4)
		if len(reasons) > 0 {
			t.Fatal(reasons)
		}
		i.Engines = i.Engines[1:] // it knows itself alone
		m, err := rdma.NewMemory("m", i.Engines[0].RegionBytes[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return EngineConfig{Instance: "p", Rank: kv.Rank{TP: 1}, Layout: i, Memory: []*rdma.Memory{m}}
	}
	for _, tc := range []struct {
		name  string
		spoil func(c *EngineConfig, e *kv.Engine)
		want  string // "": nothing is wrong
	}{
		{"nothing", func(*EngineConfig, *kv.Engine) {}, ""},
		{"another rank", func(c *EngineConfig, _ *kv.Engine) { c.Rank.TP = 0 }, "the layout has no dp 0 pp 0 cp 0 tp 0"},
		{"no rank of the sizes", func(c *EngineConfig, e *kv.Engine) { c.Rank.TP, e.Rank.TP = 2, 2 }, "beyond dp 1 pp 1 cp 1 tp 2"},
		{"no layout", func(c *EngineConfig, _ *kv.Engine) { c.Layout = nil }, "layout is missing"},
		{"no memory", func(c *EngineConfig, _ *kv.Engine) { c.Memory = nil }, "got 0 regions, the layout has 1"},
		{"metadata rows too small", func(_ *EngineConfig, e *kv.Engine) { e.Meta.RowBytes = 8 }, "at least 16 bytes"},
		{"metadata rows beyond the region", func(_ *EngineConfig, e *kv.Engine) { e.Meta.Offset += 64 }, "metadata rows begin at byte"},
		{"a tensor beyond the region", func(_ *EngineConfig, e *kv.Engine) { e.Shards[0].Layers[1].Pages++ }, "overlap"},
		{"a tensor far beyond the region", func(_ *EngineConfig, e *kv.Engine) { e.Shards[0].Layers[1].Offset = 1 << 40 }, "within the"},
		{"a tensor in another region", func(_ *EngineConfig, e *kv.Engine) { e.Shards[1].Layers[0].Region = 3 }, "region 3"},
		{"rows over one another", func(_ *EngineConfig, e *kv.Engine) { e.Shards[0].RowStride = 8 }, "row_stride is 8 bytes"},
		{"a component that is none", func(_ *EngineConfig, e *kv.Engine) { e.Shards[0].Component = "kk" }, "does not declare"},
		{"a split that is none", func(c *EngineConfig, _ *kv.Engine) { c.Layout.Split = 9 }, "cp_split"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sound(t)
			tc.spoil(&c, &c.Layout.Engines[0])
			err := c.check()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
