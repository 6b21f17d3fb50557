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
	few, many := everyLayer(layers, 2, 2), append(more, everyLayer(layers, 2, 3)...)
	each := func(cs []Component, set func(c *Component)) []Component {
		for i := range cs {
			set(&cs[i])
		}
		return cs
	}
	// A latent row is 584 bytes: 448 of fp8, a rotated key of 64 elements in bf16, and
	// eight of scales and padding. A page holds the scales behind the rest, and is
	// padded to a multiple of 576 bytes.
	const latentBytes, scaleBytes = 448 + 64*2, 8
	latents := func(name string, layers []int, tokens uint32) []Component {
		return each(inOneTensor(name, sharedRows(name, layers, latentBytes, UINT8), sharedRows(name+".scale", layers, scaleBytes, UINT8)),
			func(c *Component) { c.RowTokens, c.PageAlign = tokens, latentBytes })
	}
	index := each(sparseIndex(few), func(c *Component) { c.Name, c.Tensor, c.RowTokens = "c4."+c.Name, "c4.index", 4 })
	// The size of what engines keep of the group that is still open is an assumption,
	// and no published figure: the input of the compressor, a row for each token of
	// the group, of the 512 elements of a latent (of the 128 of an index) in f32, as
	// they are before they are compressed and quantised.
	open := func(name string, layers []int, tokens uint32, elements uint64) Component {
		return Component{Name: name, Kind: Slot, Layers: layers, Heads: 1, HeadBytes: elements * F32.Bytes(), DType: F32, RowTokens: tokens, SlotRows: tokens}
	}
	swa := func(layers []int) []Component {
		return each(latents("swa", layers, 1), func(c *Component) { c.Window = 128 })
	}
	return modelOf(id, latents("c4", few, 4), index, latents("c128", many, 128), swa(firstLayers(layers)),
		[]Component{open("c4.open", few, 4, 512), open("c4.index.open", few, 4, 128), open("c128.open", many, 128, 512)},
		draftParts(swa(layersBehind(layers, 1))))
}
