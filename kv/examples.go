package kv

import (
	"slices"
	"strings"
)

// Example is a deployment of prefill and decode that somebody has published: a
// recipe, a guide, a benchmark, or a report of what went wrong.
type Example struct {
	ID, Note        string
	Prefill, Decode Deployment
	// How many of each there are; 0 where it is not said, or any number.
	PrefillInstances, DecodeInstances int
}

// Examples are the deployments that are known by name. The caller owns what it
// gets. Pages and layouts are those of the engine where the source names none, and
// the cache is of the model's type, also where the source has it in fp8: neither
// changes who sends which layers and heads to whom.
//
// Not all that is published is here. Without the parallelism inside of one of the
// sides: sglang-gb200-1, sglang-gb200-2, k2-128h200, study-104h800,
// sglang-pp-dsv31, sglang-pp-qwen235, user-glm5.2-pp2, user-glm5.2-dp32. Without
// the model: mooncake-rbg.
func Examples() []Example {
	out := make([]Example, len(examples))
	for i, e := range examples {
		out[i] = e.example()
	}
	return out
}

// LookupExample finds an example by its id, whatever its case.
func LookupExample(id string) (Example, bool) {
	i := slices.IndexFunc(examples, func(e exampleRow) bool { return strings.EqualFold(e.id, id) })
	if i < 0 {
		return Example{}, false
	}
	return examples[i].example(), true
}

// engineDefaults is the page size and the layout of an inference engine.
type engineDefaults struct {
	page   uint32
	layout Layout
}

var (
	// What its NIXL connector asks for, and its default.
	vllm = engineDefaults{16, HND}
	// It leaves the size to the kernel: this is what its MLA kernels take.
	sglang = engineDefaults{latentPage, NHD}
	trtllm = engineDefaults{32, HND}
)

// pages is the engine with pages of so many tokens.
func (e engineDefaults) pages(n uint32) engineDefaults { return engineDefaults{n, e.layout} }

// exampleRow is an example as the table has it: the numbers that engines are
// started with.
type exampleRow struct {
	id, model       string
	engine          engineDefaults
	prefill, decode exampleSide
	note            string
}

// exampleSide is one side of an example.
type exampleSide struct {
	instances  int
	tp, pp, dp int  // 0 is 1
	attention  bool // the DP ranks share the TP ranks
	page       uint32
	noDraft    bool // runs without the draft model that the other side has
}

func (p *exampleRow) example() Example {
	m, _ := LookupModel(p.model)
	return Example{
		ID: p.id, Note: p.note,
		Prefill: p.prefill.deployment(m, p.engine), Decode: p.decode.deployment(m, p.engine),
		PrefillInstances: p.prefill.instances, DecodeInstances: p.decode.instances,
	}
}

func (s *exampleSide) deployment(m Model, e engineDefaults) Deployment {
	m.Components = cloneComponents(m.Components)
	if s.noDraft {
		m.Components = slices.DeleteFunc(m.Components, func(c Component) bool { return c.Optional })
	}
	d := Deployment{Model: m, TP: max(1, s.tp), PP: max(1, s.pp), DP: max(1, s.dp), DPAttention: s.attention, PageTokens: e.page, Layout: e.layout}
	if s.page > 0 {
		d.PageTokens = s.page
	}
	return d
}
