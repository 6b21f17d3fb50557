package pairing

import (
	"kvferry/kv"
	"kvferry/messages"
)

// Described is one engine as kv knows it: what Describe puts on the wire and
// Parse reads off it.
type Described struct {
	Engine messages.Engine
	Role   messages.Role
	Model  kv.Model
	// Sizes of the instance that the engine is a rank of.
	DP, PP, CP, TP int
	Split          kv.Split
	Kv             kv.Engine
	Regions        []*messages.Region // in the order of the indices in Kv
}

// Describe is d on the wire. Regions are shared with it; Kv.RegionBytes is what
// the regions say.
func Describe(d Described) *messages.EngineDescription {
	w := &messages.EngineDescription{
		Engine: d.Engine.Ref(),
		Role:   d.Role,
		Model:  &messages.Model{Id: d.Model.ID, Revision: d.Model.Revision},
		DpSize: uint32(d.DP), PpSize: uint32(d.PP), CpSize: uint32(d.CP), TpSize: uint32(d.TP), CpSplit: uint32(d.Split),
		Regions: d.Regions,
	}
	for _, c := range d.Model.Components {
		w.Model.Components = append(w.Model.Components, &messages.Component{
			Name: c.Name, Kind: uint32(c.Kind), Layers: packLayers(c.Layers),
			Heads: uint32(c.Heads), HeadBytes: c.HeadBytes, Dtype: uint32(c.DType), Optional: c.Optional,
			RowTokens: c.RowTokens, Window: c.Window, SlotRows: c.SlotRows,
		})
	}
	for n := range d.Kv.Shards {
		w.Shards = append(w.Shards, describeShard(&d.Kv.Shards[n]))
	}
	if m := d.Kv.Meta; m != (kv.MetaRows{}) {
		w.Meta = &messages.MetaRows{Region: m.Region, Offset: m.Offset, RowBytes: m.RowBytes, Rows: m.Rows}
	}
	return w
}

func describeShard(s *kv.Shard) *messages.Shard {
	w := &messages.Shard{
		Component: s.Component, HeadLow: uint32(s.Heads.Low), HeadHigh: uint32(s.Heads.High),
		PageTokens: s.PageTokens, PageStride: s.PageStride, RowStride: s.RowStride, HeadStride: s.HeadStride,
	}
	for _, t := range s.Layers {
		w.Layers = append(w.Layers, &messages.LayerTensor{
			Layer: uint32(t.Layer), Region: t.Region, Offset: t.Offset, Pages: t.Pages,
		})
	}
	return w
}

// packLayers writes ascending layers as few spans.
func packLayers(layers []int) []*messages.Span {
	var spans []*messages.Span
	for i := 0; i < len(layers); {
		s := &messages.Span{First: uint32(layers[i]), Count: 1}
		if i+1 < len(layers) {
			s.Step = uint32(layers[i+1] - layers[i])
		}
		j := i + 1
		for ; j < len(layers) && layers[j]-layers[j-1] == int(s.Step); j++ {
			s.Count++
		}
		if s.Count == 1 {
			s.Step = 0
		}
		spans = append(spans, s)
		i = j
	}
	return spans
}
