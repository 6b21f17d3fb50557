package kv

import (
	"encoding/csv"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rowModels is the models of rows of the collected figures, where the first word
// of the row's name is not the name of the model.
var rowModels = map[string]string{
	"DeepSeek-V3.2 (fp8_ds_mla KV)": "deepseek-v3.2-fp8",
}

// unexpressed is the rows that no model stands for, and why.
var unexpressed = map[string]string{}

// unpublished is the models that are no row: their configurations alone are
// published.
var unpublished = []string{"qwen3.5-122b-a10b", "gemma-4-26b-a4b"}

// modelFigures is what the collected figures say of a model.
type modelFigures struct {
	tokenBytes, layerBytes, layers             uint64
	windowBytes, windowLayers                  uint64
	stateBytes, stateLayers                    uint64
	kHeadBytes, vHeadBytes, heads, draftLayers uint64
}

// figuresOf is the same of a model here. The state of open groups is not in them:
// the collected figures do not count it.
func figuresOf(m *Model) modelFigures {
	var f modelFigures
	layers := func(of func(c *Component) bool) uint64 {
		var all []int
		for i := range m.Components {
			if c := &m.Components[i]; of(c) {
				all = append(all, c.Layers...)
			}
		}
		slices.Sort(all)
		return uint64(len(slices.Compact(all)))
	}
	f.tokenBytes = uint64(m.TokenBytes())
	for i := range m.Components {
		c := &m.Components[i]
		switch {
		case c.Optional || c.Kind == Slot && c.RowTokens > 1:
		case c.Kind == Slot:
			f.stateBytes += uint64(len(c.Layers)*c.Heads*int(c.slotRows())) * c.HeadBytes
		case c.Window > 0:
			f.windowBytes += uint64(len(c.Layers)*c.Heads) * c.HeadBytes * c.Window
		case c.Name == "k", c.Name == "v", c.Name == "latent":
			f.layerBytes += uint64(c.Heads) * c.HeadBytes
			f.heads = uint64(c.Heads)
			switch c.Name {
			case "k":
				f.kHeadBytes = c.HeadBytes
			case "v":
				f.vHeadBytes = c.HeadBytes
			}
		}
	}
	f.layers = layers(func(c *Component) bool { return !c.Optional && c.Kind == Paged && c.Window == 0 && c.RowTokens <= 1 })
	f.windowLayers = layers(func(c *Component) bool { return !c.Optional && c.Window > 0 })
	f.stateLayers = layers(func(c *Component) bool { return !c.Optional && c.Kind == Slot && c.RowTokens <= 1 })
	f.draftLayers = layers(func(c *Component) bool { return c.Optional })
	return f
}

// TestModelsAgreeWithThePublishedFigures compares the models with the collected
// figures, where they are at hand: row by row, all that a row says.
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
	var found []string
	for _, row := range rows[1:] {
		number := func(field string) uint64 {
			n, _ := strconv.ParseUint(row[slices.Index(rows[0], field)], 10, 64)
			return n
		}
		// "Kimi-K2 / K2.5" and "Phi-4 (14B)" are Kimi-K2 and Phi-4.
		name, _, _ := strings.Cut(row[0], " ")
		if other, ok := rowModels[row[0]]; ok {
			name = other
		}
		m, ok := LookupModel(name)
		if _, skipped := unexpressed[row[0]]; !ok && !skipped {
			t.Errorf("%s: no model", row[0])
		}
		if !ok {
			continue
		}
		found = append(found, m.ID)
		want := modelFigures{
			tokenBytes: number("bytes_per_token_total"), layerBytes: number("bytes_per_token_per_kv_layer"), layers: number("kv_layers"),
			windowBytes: number("swa_bytes_per_request_max"), windowLayers: number("swa_layers"),
			stateBytes: number("state_bytes_per_request"), stateLayers: number("state_layers"),
			draftLayers: number("mtp_layers"),
		}
		got := figuresOf(&m)
		if want.layers == 0 { // the row's heads are those of other components
			want.layerBytes = 0
		} else {
			want.heads = number("kv_heads")
			if number("kv_lora_rank") == 0 {
				want.kHeadBytes, want.vHeadBytes = number("head_dim_k")*number("dtype_bytes"), number("head_dim_v")*number("dtype_bytes")
			}
		}
		if got != want {
			t.Errorf("%s (%s):\n got %+v\nwant %+v", row[0], m.ID, got, want)
		}
		// A length at which every window is full and no group is open.
		const length = 1 << 20
		if bytes, want := m.RequestBytes(length), uint64(m.TokenBytes()*length)+got.windowBytes+got.stateBytes; bytes != want {
			t.Errorf("%s: a request of %d tokens has %d bytes, want %d", m.ID, length, bytes, want)
		}
	}
	for id, names := range sameCache {
		if slices.Contains(found, id) {
			found = append(found, names...)
		}
	}
	for _, m := range Models() {
		if !slices.Contains(found, m.ID) && !slices.Contains(unpublished, m.ID) {
			t.Errorf("%s is not in the collected figures", m.ID)
		}
	}
}

// TestEveryModelLaysOut: at any TP that its heads allow, and those are all but for
// phi-4, in any number of stages.
func TestEveryModelLaysOut(t *testing.T) {
	for _, m := range Models() {
		for _, tp := range []int{1, 2, 4, 8} {
			for _, pp := range []int{1, 4} {
				d := &Deployment{Model: m, TP: tp, PP: pp, DP: 1, PageTokens: 256, Layout: HND}
				_, reasons := d.Instance(2)
				if works := m.ID != "phi-4" || tp < 4; (len(reasons) == 0) != works {
					t.Errorf("%s at tp %d, pp %d works: %v, want %v: %v", m.ID, tp, pp, !works, works, reasons)
				}
			}
		}
	}
}

// TestRequestBytesAreThoseOfItsEngines: what a model counts is what one engine
// that holds all of it is sent, but for the rest of the first page of a window.
func TestRequestBytesAreThoseOfItsEngines(t *testing.T) {
	for _, m := range Models() {
		main := m
		main.Components = slices.DeleteFunc(slices.Clone(m.Components), func(c Component) bool { return c.Optional })
		i, reasons := (&Deployment{Model: main, TP: 1, PP: 1, DP: 1, PageTokens: 128, Layout: NHD}).Instance(1)
		if len(reasons) > 0 {
			t.Fatalf("%s: %v", m.ID, reasons)
		}
		for _, length := range []uint64{0, 1, 3, 4, 127, 128, 4095, 8192, 100_000, 1 << 20} {
			got, want := m.RequestBytes(length), i.RequestBytes(0, length)
			for n := range m.Components {
				c := &m.Components[n]
				if c.Window > 0 && !c.Optional && length > c.Window {
					want -= (length - c.Window) % 128 * c.rowBytes()
				}
			}
			if got != want {
				t.Errorf("%s: %d bytes of %d tokens, want %d", m.ID, got, length, want)
			}
		}
	}
}

func TestModelsByName(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range Models() {
		if m.ID != strings.ToLower(m.ID) || seen[m.ID] {
			t.Errorf("%s is there twice, or not in lower case", m.ID)
		}
		seen[m.ID] = true
		for _, name := range []string{m.ID, strings.ToUpper(m.ID)} {
			if got, ok := LookupModel(name); !ok || !reflect.DeepEqual(got, m) {
				t.Errorf("%s is %q (%v), want a model of that name", name, got.ID, ok)
			}
		}
	}
	for id := range sameCache {
		if !seen[id] {
			t.Errorf("others have the cache of %s, which is no model", id)
		}
	}
	if _, ok := LookupModel("llama"); ok {
		t.Error("llama is a model, want none of that name")
	}
}

// TestComponentsOfModels: the parts that the totals do not show.
func TestComponentsOfModels(t *testing.T) {
	for _, tc := range []struct {
		model string
		want  []string // name, layers, heads x bytes of a head, x rows of a slot
	}{
		{"deepseek-v3", []string{"latent 0-60 1x1152", "draft.latent 61 1x1152"}},
		{"glm-5.2", []string{"latent 0-77 1x1152", "index.k 0-2,6,10,14,18,22,26,30,34,38,42,46,50,54,58,62,66,70,74 1x128",
			"index.scale 0-2,6,10,14,18,22,26,30,34,38,42,46,50,54,58,62,66,70,74 1x4",
			"draft.latent 78 1x1152", "draft.index.k 78 1x128", "draft.index.scale 78 1x4"}},
		{"mimo-v2-flash", []string{"k 0,5,11,17,23,29,35,41,47 4x384", "v 0,5,11,17,23,29,35,41,47 4x256",
			"swa.k 1-4,6-10,12-16,18-22,24-28,30-34,36-40,42-46 8x384", "swa.v 1-4,6-10,12-16,18-22,24-28,30-34,36-40,42-46 8x256"}},
		{"nemotron-3-nano-30b-a3b", []string{"k 5,12,19,26,33,42 2x256", "v 5,12,19,26,33,42 2x256",
			"ssm 0,2,4,7,9,11,14,16,18,21,23,25,28,30,32,35,37,39,41,44,46,48,50 64x32768",
			"conv.x 0,2,4,7,9,11,14,16,18,21,23,25,28,30,32,35,37,39,41,44,46,48,50 64x128 x3",
			"conv.b 0,2,4,7,9,11,14,16,18,21,23,25,28,30,32,35,37,39,41,44,46,48,50 8x256 x3",
			"conv.c 0,2,4,7,9,11,14,16,18,21,23,25,28,30,32,35,37,39,41,44,46,48,50 8x256 x3"}},
		{"deepseek-v4-pro", []string{"c4 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x576", "c4.scale 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x8",
			"c4.index.k 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x128", "c4.index.scale 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x4",
			"c128 0-1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59 1x576", "c128.scale 0-1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59 1x8", "swa 0-60 1x576", "swa.scale 0-60 1x8",
			"c4.open 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x2048 x4",
			"c4.index.open 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60 1x512 x4",
			"c128.open 0-1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59 1x2048 x128", "draft.swa 61 1x576", "draft.swa.scale 61 1x8"}},
	} {
		m, _ := LookupModel(tc.model)
		var got []string
		for _, c := range m.Components {
			s := c.Name + " " + FormatLayers(c.Layers) + " " + strconv.Itoa(c.Heads) + "x" + strconv.FormatUint(c.HeadBytes, 10)
			if c.Kind == Slot && c.SlotRows > 0 {
				s += " x" + strconv.Itoa(int(c.SlotRows))
			}
			got = append(got, s)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n got %s\nwant %s", tc.model, strings.Join(got, "\n     "), strings.Join(tc.want, "\n     "))
		}
	}
}
