package kv

import "strings"

// State that does not grow: of each request, the recurrent state of every head
// ("ssm") in f32 and the last inputs of a short convolution in bf16. The inputs
// are sections of one tensor, side by side; each is divided over TP by itself, so
// each is a component whose heads are the groups of channels that stay together.

// convRows is the inputs that a convolution of four taps keeps.
const convRows = 4 - 1

// headState is the state of heads of so many elements.
func headState(layers []int, heads, elements int) Component {
	return Component{Name: "ssm", Kind: Slot, Layers: layers, Heads: heads, HeadBytes: uint64(elements) * F32.Bytes(), DType: F32}
}

// convSection is one section of the state of the convolution.
func convSection(name string, layers []int, heads, channels int) Component {
	return Component{Name: "conv." + name, Kind: Slot, Layers: layers, Heads: heads, HeadBytes: uint64(channels) * BF16.Bytes(), DType: BF16,
		SlotRows: convRows, Tensor: "conv"}
}

// deltaNet is the state of linear attention by the delta rule, whose heads are 128
// wide: a matrix for each value head, and the inputs of query, key and value.
func deltaNet(layers []int, keyHeads, valueHeads int) []Component {
	const dim = 128
	return []Component{headState(layers, valueHeads, dim*dim),
		convSection("q", layers, keyHeads, dim), convSection("k", layers, keyHeads, dim), convSection("v", layers, valueHeads, dim)}
}

// mamba2 is the state of Mamba-2: B and C are shared by the heads of a group.
func mamba2(layers []int, heads, dim, groups, state int) []Component {
	return []Component{headState(layers, heads, dim*state),
		convSection("x", layers, heads, dim), convSection("b", layers, groups, state), convSection("c", layers, groups, state)}
}

// mamba1 is the state of Mamba-1, which has channels and no heads: 128 of them are
// called one here, so that they go over any TP that engines use. Only x passes
// through the convolution.
func mamba1(layers []int, channels, state int) []Component {
	const dim = 128
	return []Component{headState(layers, channels/dim, dim*state), convSection("x", layers, channels/dim, dim)}
}

// stateModels are the models of which some layers, or all, have state.
func stateModels() []Model {
	// Every fourth layer attends to all tokens, with heads of 256 elements.
	qwen := func(id string, layers, valueHeads, drafts int) Model {
		full := everyLayer(layers, 4, 3)
		return modelOf(id, keysValues(full, 2, 256, 256), deltaNet(otherLayers(layers, full), 16, valueHeads),
			draftParts(keysValues(layersBehind(layers, drafts), 2, 256, 256)))
	}
	// So it is here, but the last layer attends as well.
	fullOfKimi := append(everyLayer(93, 4, 3), 92)
	jamba := everyLayer(32, 8, 4)
	return []Model{
		qwen("qwen3-next-80b-a3b", 48, 32, 0),
		qwen("qwen3.5-35b-a3b", 40, 32, 0),
		qwen("qwen3.5-122b-a10b", 48, 64, 1),
		qwen("qwen3.5-397b-a17b", 60, 64, 0),
		modelOf("kimi-k3", latentRows(fullOfKimi), deltaNet(otherLayers(93, fullOfKimi), 96, 96)),
		// Attention and Mamba-2 side by side in every layer. B and C have 256 channels
		// each: one group, which every rank has.
		modelOf("falcon-h1-7b", keysValues(firstLayers(44), 2, 128, 128), mamba2(firstLayers(44), 24, 128, 1, 256)),
		modelOf("jamba-1.5-mini", keysValues(jamba, 8, 128, 128), mamba1(otherLayers(32, jamba), 8192, 16)),
		nemotronModel("nemotron-h-56b", "M-M-M-M*"+strings.Repeat("-M-M-M-M-M*", 9)+"-M-M-M-M-M-", 8, 256, 256, 0),
		nemotronModel("nemotron-3-nano-30b-a3b", "MEMEM*"+strings.Repeat("EMEMEM*", 4)+"EMEMEMEM*"+"EMEMEMEME", 2, 64, 128, 0),
		nemotronModel("nemotron-3-super-120b-a12b",
			"MEMEMEM*"+strings.Repeat("EMEMEMEM*", 2)+strings.Repeat("EMEMEMEMEM*", 4)+"EMEMEMEM*"+"EMEMEMEME", 2, 128, 128, 1),
		nemotronModel("nemotron-3-ultra-550b-a55b",
			"MEMEMEM*"+strings.Repeat("EMEMEM*"+"EMEMEMEM*"+"EMEMEMEM*", 3)+"EMEMEM*"+"EMEMEMEM*"+"EMEMEMEME", 2, 256, 128, 1),
	}
}

// nemotronModel is a model of layers that are one thing each: M is Mamba-2, * attends,
// the others (- and E) cache nothing. A draft layer attends.
func nemotronModel(id, pattern string, kvHeads, heads, state, drafts int) Model {
	return modelOf(id, keysValues(markedLayers(pattern, '*'), kvHeads, 128, 128), mamba2(markedLayers(pattern, 'M'), heads, 64, 8, state),
		draftParts(keysValues(layersBehind(len(pattern), drafts), kvHeads, 128, 128)))
}
