package kv

import "slices"

// The parts that models are put together from. Each returns components of its own:
// no two share a list of layers.

// modelOf is a model of some parts.
func modelOf(id string, parts ...[]Component) Model {
	return Model{ID: id, Components: cloneComponents(slices.Concat(parts...))}
}

func cloneComponents(cs []Component) []Component {
	out := slices.Clone(cs)
	for i := range out {
		out[i].Layers = slices.Clone(out[i].Layers)
	}
	return out
}

// keysValues is the cache of attention with heads: dimK and dimV are the elements
// of one head of keys and of values.
func keysValues(layers []int, heads, dimK, dimV int) []Component {
	part := func(name string, dim int) Component {
		return Component{Name: name, Kind: Paged, Layers: layers, Heads: heads, HeadBytes: uint64(dim) * BF16.Bytes(), DType: BF16}
	}
	return []Component{part("k", dimK), part("v", dimV)}
}

// latentRows is the cache of MLA: one row of a compressed key and value of 512
// elements and of a rotated key of 64, in all models that are known here.
func latentRows(layers []int) []Component {
	return sharedRows("latent", layers, (512+64)*BF16.Bytes(), BF16)
}

// sharedRows is a component with one row for all heads.
func sharedRows(name string, layers []int, bytes uint64, dtype DType) []Component {
	return []Component{{Name: name, Kind: Paged, Layers: layers, Heads: 1, HeadBytes: bytes, DType: dtype}}
}

// inOneTensor puts components into a tensor whose pages hold all rows of the first,
// then all rows of the next.
func inOneTensor(name string, cs ...[]Component) []Component {
	all := slices.Concat(cs...)
	for i := range all {
		all[i].Tensor, all[i].Layout = name, HND
	}
	return all
}

// sparseIndex is the side buffer in which sparse attention looks for the tokens to
// attend to: of each a key of 128 elements in fp8 and its scale in f32, 132 bytes.
// A page holds the keys, then the scales.
func sparseIndex(layers []int) []Component {
	return inOneTensor("index", sharedRows("index.k", layers, 128*FP8E4M3.Bytes(), FP8E4M3), sharedRows("index.scale", layers, F32.Bytes(), F32))
}

// lastTokens is components that keep the last tokens alone.
func lastTokens(window uint64, cs []Component) []Component {
	for i := range cs {
		cs[i].Name, cs[i].Window = "swa."+cs[i].Name, window
	}
	return cs
}

// draftParts is components of the layers that guess tokens ahead. Engines run with
// and without them, so they are optional. Those of no layers are left out: the
// model has none.
func draftParts(parts ...[]Component) []Component {
	cs := slices.DeleteFunc(slices.Concat(parts...), func(c Component) bool { return len(c.Layers) == 0 })
	for i := range cs {
		cs[i].Name, cs[i].Optional = "draft."+cs[i].Name, true
		if cs[i].Tensor != "" {
			cs[i].Tensor = "draft." + cs[i].Tensor
		}
	}
	return cs
}

// firstLayers is the layers [0, n).
func firstLayers(n int) []int { return everyLayer(n, 1, 0) }

// layersBehind is the n layers behind the first so many.
func layersBehind(layers, n int) []int { return everyLayer(layers+n, 1, layers) }

// everyLayer is the layers below n from first on, step apart.
func everyLayer(n, step, first int) []int {
	var out []int
	for l := first; l < n; l += step {
		out = append(out, l)
	}
	return out
}

// otherLayers is the layers below n that are not in some.
func otherLayers(n int, some []int) []int {
	return slices.DeleteFunc(firstLayers(n), func(l int) bool { return slices.Contains(some, l) })
}

// markedLayers is the layers at which a pattern has a mark.
func markedLayers(pattern string, mark byte) []int {
	var out []int
	for l := range len(pattern) {
		if pattern[l] == mark {
			out = append(out, l)
		}
	}
	return out
}
