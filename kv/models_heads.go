package kv

// headModels are the models that cache keys and values of all tokens.
func headModels() []Model {
	var out []Model
	for _, m := range []struct {
		id                 string
		layers, heads, dim int
		drafts             int // layers behind the others, of the same shape
	}{
		{id: "llama-3.1-8b", layers: 32, heads: 8, dim: 128},
		{id: "llama-3.1-70b", layers: 80, heads: 8, dim: 128},
		{id: "llama-3.1-405b", layers: 126, heads: 8, dim: 128},
		// Some layers attend within chunks of 8,192 tokens. Which ones is unsure: all are
		// taken to keep all tokens.
		{id: "llama-4-maverick-17b-128e", layers: 48, heads: 8, dim: 128},
		{id: "qwen2.5-72b", layers: 80, heads: 8, dim: 128},
		{id: "qwen3-8b", layers: 36, heads: 8, dim: 128},
		{id: "qwen3-32b", layers: 64, heads: 8, dim: 128},
		{id: "qwen3-30b-a3b", layers: 48, heads: 4, dim: 128},
		{id: "qwen3-235b-a22b", layers: 94, heads: 4, dim: 128},
		{id: "qwen3-coder-480b-a35b", layers: 62, heads: 8, dim: 128},
		{id: "mixtral-8x7b", layers: 32, heads: 8, dim: 128},
		{id: "mixtral-8x22b", layers: 56, heads: 8, dim: 128},
		{id: "glm-4.5", layers: 92, heads: 8, dim: 128, drafts: 1},
		{id: "glm-4.5-air", layers: 46, heads: 8, dim: 128, drafts: 1},
		{id: "minimax-m2", layers: 62, heads: 8, dim: 128},
		{id: "phi-4", layers: 40, heads: 10, dim: 128},
	} {
		out = append(out, modelOf(m.id, keysValues(firstLayers(m.layers), m.heads, m.dim, m.dim),
			draftParts(keysValues(layersBehind(m.layers, m.drafts), m.heads, m.dim, m.dim))))
	}

	// Keys and values, and an indexer on all but the first three layers: one key of
	// 128 elements for all heads. That it is bf16, and that the draft layer has one,
	// are assumptions.
	index := func(layers []int) []Component { return sharedRows("index", layers, 128*BF16.Bytes(), BF16) }
	return append(out, modelOf("minimax-m3",
		keysValues(firstLayers(60), 4, 128, 128), index(everyLayer(60, 1, 3)),
		draftParts(keysValues(layersBehind(60, 1), 4, 128, 128), index(layersBehind(60, 1)))))
}

// windowModels are the models of which some layers, or all, keep the last tokens
// alone.
func windowModels() []Model {
	// alike has the same heads in both kinds of layers.
	alike := func(id string, layers int, full []int, window uint64, heads, dim int, more ...Component) Model {
		return modelOf(id, keysValues(full, heads, dim, dim), lastTokens(window, keysValues(otherLayers(layers, full), heads, dim, dim)), more)
	}
	fullOfMiMo := append([]int{0}, everyLayer(48, 6, 5)...)
	return []Model{
		modelOf("mistral-7b-v0.1", lastTokens(4096, keysValues(firstLayers(32), 8, 128, 128))),
		alike("gemma-2-27b", 46, everyLayer(46, 2, 1), 4096, 16, 128),
		alike("gemma-3-27b", 62, everyLayer(62, 6, 5), 1024, 16, 128),
		// Layers that attend to all tokens have fewer heads, twice as wide. Keys and
		// values are equal there, and are counted as engines store them: both.
		modelOf("gemma-4-31b", keysValues(everyLayer(60, 6, 5), 4, 512, 512), lastTokens(1024, keysValues(otherLayers(60, everyLayer(60, 6, 5)), 16, 256, 256))),
		modelOf("gemma-4-26b-a4b", keysValues(everyLayer(30, 6, 5), 2, 512, 512), lastTokens(1024, keysValues(otherLayers(30, everyLayer(30, 6, 5)), 8, 256, 256))),
		alike("gpt-oss-120b", 36, everyLayer(36, 2, 1), 128, 8, 64),
		alike("gpt-oss-20b", 24, everyLayer(24, 2, 1), 128, 8, 64),
		modelOf("mimo-v2-flash", keysValues(fullOfMiMo, 4, 192, 128), lastTokens(128, keysValues(otherLayers(48, fullOfMiMo), 8, 192, 128))),
		// The three draft layers are taken to go on with the pattern, so that they have
		// windows. No configuration says so.
		alike("step-3.7-flash", 45, everyLayer(45, 4, 0), 512, 8, 128, draftParts(lastTokens(512, keysValues(layersBehind(45, 3), 8, 128, 128)))...),
	}
}
