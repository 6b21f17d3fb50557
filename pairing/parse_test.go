package pairing

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/kv"
	"kvferry/messages"
)

func drawDescribed(t *rapid.T) Described {
	size := func(name string) int { return rapid.IntRange(1, 6).Draw(t, name) }
	name := rapid.StringMatching(`[a-z0-9./-]{1,20}`)
	d := Described{
		Role: rapid.SampledFrom([]messages.Role{messages.Role_ROLE_PREFILL, messages.Role_ROLE_DECODE}).Draw(t, "role"),
		DP:   size("dp"), PP: size("pp"), CP: size("cp"), TP: size("tp"), Split: kv.Split(rapid.IntRange(0, 2).Draw(t, "split")),
		Model: kv.Model{ID: name.Draw(t, "id"), Revision: rapid.String().Filter(func(s string) bool { return len(s) <= maxName }).Draw(t, "revision")},
	}
	d.Kv.Rank = kv.Rank{
		DP: rapid.IntRange(0, d.DP-1).Draw(t, "rank dp"), PP: rapid.IntRange(0, d.PP-1).Draw(t, "rank pp"),
		CP: rapid.IntRange(0, d.CP-1).Draw(t, "rank cp"), TP: rapid.IntRange(0, d.TP-1).Draw(t, "rank tp"),
	}
	d.Engine = messages.Engine{Instance: name.Draw(t, "instance"), Rank: d.Kv.Rank, Incarnation: rapid.Uint64Min(1).Draw(t, "incarnation")}
	for range rapid.IntRange(1, 3).Draw(t, "regions") {
		bytes := rapid.Uint64().Draw(t, "bytes")
		d.Kv.RegionBytes = append(d.Kv.RegionBytes, bytes)
		d.Regions = append(d.Regions, &messages.Region{Bytes: bytes, Keys: []*messages.RegionKey{{Provider: "tcp", Region: 3, Opaque: []byte{1}}}})
	}
	region := func() uint32 { return uint32(rapid.IntRange(0, len(d.Regions)-1).Draw(t, "region")) }
	for range rapid.IntRange(1, 3).Draw(t, "components") {
		c := kv.Component{
			Name: name.Draw(t, "component"), Kind: kv.Kind(rapid.IntRange(1, 2).Draw(t, "kind")), Heads: rapid.IntRange(1, 64).Draw(t, "heads"),
			HeadBytes: rapid.Uint64().Draw(t, "head bytes"), DType: kv.DType(rapid.IntRange(1, 7).Draw(t, "dtype")), Optional: rapid.Bool().Draw(t, "optional"),
			RowTokens: rapid.Uint32().Draw(t, "row tokens"), Window: rapid.Uint64().Draw(t, "window"), SlotRows: rapid.Uint32().Draw(t, "slot rows"),
		}
		s := kv.Shard{
			Component: c.Name, PageTokens: rapid.Uint32().Draw(t, "page"), PageStride: rapid.Uint64().Draw(t, "page stride"),
			RowStride: rapid.Uint64().Draw(t, "token stride"), HeadStride: rapid.Uint64().Draw(t, "head stride"),
		}
		s.Heads.Low = rapid.IntRange(0, c.Heads-1).Draw(t, "low")
		s.Heads.High = rapid.IntRange(s.Heads.Low+1, c.Heads).Draw(t, "high")
		layer := 0
		for range rapid.IntRange(1, 12).Draw(t, "layers") {
			layer += rapid.IntRange(1, 3).Draw(t, "step")
			c.Layers = append(c.Layers, layer)
			s.Layers = append(s.Layers, kv.LayerTensor{Layer: layer, Region: region(), Offset: rapid.Uint64().Draw(t, "offset"), Pages: rapid.Uint32().Draw(t, "pages")})
		}
		d.Model.Components = append(d.Model.Components, c)
		d.Kv.Shards = append(d.Kv.Shards, s)
	}
	if rapid.Bool().Draw(t, "meta") {
		d.Kv.Meta = kv.MetaRows{Region: region(), Offset: rapid.Uint64().Draw(t, "meta offset"), RowBytes: rapid.Uint64().Draw(t, "row"), Rows: rapid.Uint32().Draw(t, "rows")}
	}
	return d
}

// TestDescriptionRoundTrip: what is described is what is parsed, over the wire.
func TestDescriptionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawDescribed(t)
		b, err := proto.Marshal(Describe(want))
		if err != nil {
			t.Fatal(err)
		}
		var w messages.EngineDescription
		if err := proto.Unmarshal(b, &w); err != nil {
			t.Fatal(err)
		}
		got, err := Parse(&w)
		if err != nil {
			t.Fatal(err)
		}
		if field, a, b := difference("", Describe(got).ProtoReflect(), Describe(want).ProtoReflect()); field != "" {
			t.Fatalf("%s: got %s, want %s", field, a, b)
		}
		got.Regions, want.Regions = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got\n%+v, want\n%+v", got, want)
		}
	})
}

// TestParseRefuses: every bound refuses by the name of its field.
func TestParseRefuses(t *testing.T) {
	whole := func() *messages.EngineDescription {
		d := Described{DP: 1, PP: 1, CP: 1, TP: 2, Role: messages.Role_ROLE_PREFILL, Engine: messages.Engine{Instance: "p", Incarnation: 1}}
		return Describe(small(d, 4, 4, 1<<20))
	}
	if _, err := Parse(whole()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field string
		spoil func(*messages.EngineDescription)
	}{
		{"engine.instance", func(w *messages.EngineDescription) { w.Engine = nil }},
		{"engine.instance", func(w *messages.EngineDescription) { w.Engine.Instance = strings.Repeat("x", maxName+1) }},
		{"engine.incarnation", func(w *messages.EngineDescription) { w.Engine.Incarnation = 0 }},
		{"engine.tp", func(w *messages.EngineDescription) { w.Engine.Tp = 2 }},
		{"engine.tp", func(w *messages.EngineDescription) { w.Engine.Tp = 1 << 31 }},
		{"role", func(w *messages.EngineDescription) { w.Role = 3 }},
		{"role", func(w *messages.EngineDescription) { w.Role = 0 }},
		{"dp_size", func(w *messages.EngineDescription) { w.DpSize = 0 }},
		{"tp_size", func(w *messages.EngineDescription) { w.TpSize = 1 << 31 }},
		{"sizes", func(w *messages.EngineDescription) {
			w.TpSize, w.PpSize, w.DpSize, w.CpSize = 1<<14, 1<<14, 1<<14, 1<<14
		}},
		{"model.components", func(w *messages.EngineDescription) { w.Model = nil }},
		{"model.components[0].name", func(w *messages.EngineDescription) { w.Model.Components[0].Name = "" }},
		{"model.components[0].kind", func(w *messages.EngineDescription) { w.Model.Components[0].Kind = 257 }},
		{"model.components[0].dtype", func(w *messages.EngineDescription) { w.Model.Components[0].Dtype = 8 }},
		{"model.components[0].dtype", func(w *messages.EngineDescription) { w.Model.Components[0].Dtype = 257 }},
		{"model.components[0].heads", func(w *messages.EngineDescription) { w.Model.Components[0].Heads = 0 }},
		{"model.components[0].layers", func(w *messages.EngineDescription) { w.Model.Components[0].Layers = nil }},
		{"model.components[0].layers[0].count", func(w *messages.EngineDescription) { w.Model.Components[0].Layers[0].Count = 1 << 31 }},
		{"model.components[0].layers[0].step", func(w *messages.EngineDescription) { w.Model.Components[0].Layers[0].Step = 0 }},
		{"model.components[0].layers[0] last layer", func(w *messages.EngineDescription) { w.Model.Components[0].Layers[0].Step = maxLayers }},
		{"model.components[0].layers[1].first", func(w *messages.EngineDescription) {
			w.Model.Components[0].Layers = append(w.Model.Components[0].Layers, &messages.Span{First: 1, Count: 1})
		}},
		{"model layers of all components", func(w *messages.EngineDescription) {
			c := proto.Clone(w.Model.Components[0]).(*messages.Component)
			c.Layers = []*messages.Span{{Count: maxLayers, Step: 1}}
			w.Model.Components = append(w.Model.Components, c)
		}},
		{"regions[0].keys", func(w *messages.EngineDescription) { w.Regions[0].Keys = make([]*messages.RegionKey, maxKeys+1) }},
		{"regions[0].keys[0].provider", func(w *messages.EngineDescription) { w.Regions[0].Keys[0].Provider = "" }},
		{"regions[0].keys[0].opaque", func(w *messages.EngineDescription) { w.Regions[0].Keys[0].Opaque = make([]byte, maxOpaque+1) }},
		{"shards[0].component", func(w *messages.EngineDescription) { w.Shards[0].Component = "" }},
		{"shards[0].head_high", func(w *messages.EngineDescription) { w.Shards[0].HeadHigh = 0 }},
		{"shards[0].head_low", func(w *messages.EngineDescription) { w.Shards[0].HeadLow = 1 << 31 }},
		{"shards[0].layers[1].layer", func(w *messages.EngineDescription) { w.Shards[0].Layers[1].Layer = maxLayers }},
		{"shards[0].layers[1].region", func(w *messages.EngineDescription) { w.Shards[0].Layers[1].Region = 1 }},
		{"meta.region", func(w *messages.EngineDescription) { w.Meta = &messages.MetaRows{Region: 1, Rows: 1} }},
	} {
		w := whole()
		c.spoil(w)
		_, err := Parse(w)
		var f *FieldError
		if !errors.As(err, &f) || f.Field != c.field {
			t.Errorf("got %v, want field %s refused", err, c.field)
		}
	}
}

// FuzzParse: whatever comes is refused, or is what its own description says.
func FuzzParse(f *testing.F) {
	d := Described{DP: 1, PP: 1, CP: 1, TP: 2, Role: messages.Role_ROLE_DECODE, Engine: messages.Engine{Instance: "d", Incarnation: 1}}
	b, err := proto.Marshal(Describe(small(d, 4, 4, 1<<20)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var w messages.EngineDescription
		if proto.Unmarshal(b, &w) != nil {
			return
		}
		got, err := Parse(&w)
		if err != nil {
			return
		}
		again, err := Parse(Describe(got))
		if err != nil {
			t.Fatalf("what was parsed is refused: %v", err)
		}
		got.Regions, again.Regions = nil, nil
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("got\n%+v, again\n%+v", got, again)
		}
	})
}
