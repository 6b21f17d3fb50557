package kv

// latentModels are the models that cache a latent: MLA, some with an indexer.
func latentModels() []Model {
	mla := func(id string, layers, drafts int) Model {
		return modelOf(id, latentRows(firstLayers(layers)), draftParts(latentRows(layersBehind(layers, drafts))))
	}
	// An indexer is on every layer, or on those in owners while the others use what
	// the one before them found. The draft layer has its own.
	sparse := func(id string, layers int, owners []int) Model {
		return modelOf(id, latentRows(firstLayers(layers)), sparseIndex(owners), draftParts(latentRows(layersBehind(layers, 1)), sparseIndex(layersBehind(layers, 1))))
	}
	// The row of FlashMLA for fp8: 512 bytes of fp8, four scales in f32, and the
	// rotated key of 64 elements in bf16. Its pages hold 64 tokens.
	packed := func(layers []int) []Component { return sharedRows("latent", layers, 512+4*4+64*2, UINT8) }
	return []Model{
		mla("deepseek-v2-lite", 27, 0),
		mla("deepseek-v3", 61, 1),
		mla("kimi-k2", 61, 0),
		sparse("deepseek-v3.2", 61, firstLayers(61)),
		modelOf("deepseek-v3.2-fp8", packed(firstLayers(61)), sparseIndex(firstLayers(61)), draftParts(packed(layersBehind(61, 1)), sparseIndex(layersBehind(61, 1)))),
		sparse("glm-5", 78, firstLayers(78)),
		sparse("glm-5.2", 78, append([]int{0, 1}, everyLayer(78, 4, 2)...)),
	}
}

// compressedModels are the models that cache one row for several tokens.
func compressedModels() []Model {
	// Both begin otherwise, and then layers of 4 and of 128 tokens a row alternate.
	return []Model{
		compressedModel("deepseek-v4-flash", 43, nil),
		compressedModel("deepseek-v4-pro", 61, []int{0, 1}),
	}
}

// compressedModel is DeepSeek-V4 as SGLang caches it: rows for 4 tokens on the even
// layers from 2 on, with an indexer; rows for 128 tokens on the odd ones from 3 on
// and on more; and a window of 128 tokens on all, the draft layer too. All paged
// components are in pages of the same tokens, so pages hold a multiple of 128.
func compressedModel(id string, layers int, more []int) Model {
	// A latent row: 448 bytes of fp8, a rotated key of 64 elements in bf16, and eight
	// bytes of scales and padding.
	const rowBytes = 448 + 64*2 + 8
	few, many := everyLayer(layers, 2, 2), append(more, everyLayer(layers, 2, 3)...)
	row := func(name string, layers []int, bytes uint64, tokens uint32) Component {
		c := sharedRows(name, layers, bytes, UINT8)[0]
		c.RowTokens = tokens
		return c
	}
	// The size of what engines keep of the group that is still open is an assumption,
	// and no published figure: the input of the compressor, a row for each token of
	// the group, of the 512 elements of a latent (of the 128 of an index) in f32, as
	// they are before they are compressed and quantised.
	open := func(of Component, elements uint64) Component {
		return Component{Name: of.Name + ".open", Kind: Slot, Layers: of.Layers, Heads: 1, HeadBytes: elements * F32.Bytes(), DType: F32,
			RowTokens: of.RowTokens, SlotRows: of.RowTokens}
	}
	c4, index, c128 := row("c4", few, rowBytes, 4), row("c4.index", few, indexBytes, 4), row("c128", many, rowBytes, 128)
	swa := func(layers []int) []Component {
		c := row("swa", layers, rowBytes, 1)
		c.Window = 128
		return []Component{c}
	}
	return modelOf(id, []Component{c4, index, c128}, swa(firstLayers(layers)),
		[]Component{open(c4, 512), open(index, 128), open(c128, 512)}, draftParts(swa(layersBehind(layers, 1))))
}
