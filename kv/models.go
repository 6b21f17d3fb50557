package kv

import "strings"

// attention is the geometry of a model that caches keys and values. All are
// cached in two bytes per element.
type attention struct {
	id                    string
	layers, heads, dim    int // dim: elements of one head, of keys and of values
	latentRank, latentPos int // MLA instead of heads: the two parts of the latent row
}

// models is the geometries that are known by name, from the configurations that
// the models are published with.
var models = []attention{
	{id: "llama-3.1-8b", layers: 32, heads: 8, dim: 128},
	{id: "llama-3.1-70b", layers: 80, heads: 8, dim: 128},
	{id: "llama-3.1-405b", layers: 126, heads: 8, dim: 128},
	{id: "qwen2.5-72b", layers: 80, heads: 8, dim: 128},
	{id: "qwen3-8b", layers: 36, heads: 8, dim: 128},
	{id: "qwen3-32b", layers: 64, heads: 8, dim: 128},
	{id: "qwen3-30b-a3b", layers: 48, heads: 4, dim: 128},
	{id: "qwen3-235b-a22b", layers: 94, heads: 4, dim: 128},
	{id: "qwen3-coder-480b-a35b", layers: 62, heads: 8, dim: 128},
	{id: "mixtral-8x7b", layers: 32, heads: 8, dim: 128},
	{id: "mixtral-8x22b", layers: 56, heads: 8, dim: 128},
	{id: "glm-4.5", layers: 92, heads: 8, dim: 128},
	{id: "glm-4.5-air", layers: 46, heads: 8, dim: 128},
	{id: "minimax-m2", layers: 62, heads: 8, dim: 128},
	{id: "phi-4", layers: 40, heads: 10, dim: 128},
	{id: "deepseek-v2-lite", layers: 27, latentRank: 512, latentPos: 64},
	{id: "deepseek-v3", layers: 61, latentRank: 512, latentPos: 64},
	{id: "kimi-k2", layers: 61, latentRank: 512, latentPos: 64},
}

// Models are the models that are known by name. The caller owns what it gets.
func Models() []Model {
	out := make([]Model, len(models))
	for i, a := range models {
		out[i] = a.model()
	}
	return out
}

// LookupModel finds a model by its name, whatever its case.
func LookupModel(name string) (Model, bool) {
	for _, a := range models {
		if strings.EqualFold(a.id, name) {
			return a.model(), true
		}
	}
	return Model{}, false
}

func (a attention) model() Model {
	layers := make([]int, a.layers)
	for i := range layers {
		layers[i] = i
	}
	part := func(name string, heads, dim int) Component {
		return Component{Name: name, Kind: Paged, Layers: layers, Heads: heads, HeadBytes: uint64(dim) * BF16.Bytes(), DType: BF16}
	}
	if a.latentRank > 0 {
		return Model{ID: a.id, Components: []Component{part("latent", 1, a.latentRank+a.latentPos)}}
	}
	return Model{ID: a.id, Components: []Component{part("k", a.heads, a.dim), part("v", a.heads, a.dim)}}
}

// TokenBytes is what one token takes in the whole model.
func (m *Model) TokenBytes() uint64 {
	n := uint64(0)
	for _, c := range m.Components {
		n += uint64(len(c.Layers)) * uint64(c.Heads) * c.HeadBytes
	}
	return n
}
