// Package kv says what moves: what the cache of a model looks like in the
// memory of an engine, whether two deployments fit together, and which bytes
// to copy where. Everything here is a function of its arguments.
//
// There is one rule. A tensor that an engine registered is a box in the logical
// space (component, layer, head, token). What must move between a prefill engine
// and a decode engine is the intersection of their boxes, restricted to the
// tokens that decode does not have yet. Tensor parallelism, pipeline stages,
// replicated heads, page sizes and page-inner orders are boxes and strides;
// none of them has code of its own.
package kv

import "fmt"

// Kind says what a component has one row of.
type Kind uint8

const (
	// Paged components have one row per token and head, in pages.
	Paged Kind = iota + 1
)

// DType is the element type of a component.
type DType uint8

const (
	BF16 DType = iota + 1
	F16
	F32
	FP8E4M3
	FP8E5M2
	INT8
	UINT8
)

// Component is one kind of cached tensor of a model: "k", "v", "latent", ...
// Both sides of a pair declare it alike.
type Component struct {
	Name      string
	Kind      Kind
	Layers    []int  // the layers of the model that have it, ascending
	Heads     int    // of the whole model, at least 1; 1 for latent
	HeadBytes uint64 // of one row: one token of one head
	DType     DType
	Optional  bool // sent if both sides have it; missing on one side is no error
}

// Model is what is cached. Two deployments pair only if their models agree.
type Model struct {
	ID         string
	Revision   string // "" is a revision like any other: it must be equal
	Components []Component
}

// Rank is the place of an engine in its instance. Roster order is (DP, PP, CP, TP).
type Rank struct {
	DP, PP, CP, TP int
}

// Compare orders ranks by roster order.
func (r Rank) Compare(o Rank) int {
	for _, d := range [...]int{r.DP - o.DP, r.PP - o.PP, r.CP - o.CP, r.TP - o.TP} {
		if d != 0 {
			return d
		}
	}
	return 0
}

func (r Rank) String() string {
	return fmt.Sprintf("dp %d pp %d cp %d tp %d", r.DP, r.PP, r.CP, r.TP)
}

// Shard is what one engine holds of one component: a box, and how it lies in
// memory. The row of (page p, token t of the page, head h) of a layer starts at
//
//	Offset(layer) + p*PageStride + t*TokenStride + (h-Heads.Low)*HeadStride
type Shard struct {
	Component   string
	Layers      []LayerTensor // ascending by layer
	Heads       HeadRange
	PageTokens  uint32
	PageStride  uint64 // bytes; at least what the rows of a page span
	TokenStride uint64
	HeadStride  uint64
}

// RowOffset is where the row of a page, a token of the page, and a head of the
// model starts in the region of t, one of the shard's Layers. The head is one of
// the shard's.
func (s *Shard) RowOffset(t LayerTensor, page, token uint32, head int) uint64 {
	return t.Offset + uint64(page)*s.PageStride + uint64(token)*s.TokenStride + uint64(head-s.Heads.Low)*s.HeadStride
}

// LayerTensor is one layer of a shard: Pages pages from Offset of a region.
type LayerTensor struct {
	Layer  int
	Region uint32 // index into the regions that the engine registered
	Offset uint64
	Pages  uint32
}

// HeadRange is the heads [Low, High) of the model.
type HeadRange struct{ Low, High int }

func (h HeadRange) String() string { return fmt.Sprintf("[%d,%d)", h.Low, h.High) }

// MetaRows is where an engine keeps the metadata rows of its requests: Rows rows
// of RowBytes, one after another from Offset of a region. RowBytes is the same
// on both sides of a pair; 0 rows: the engine neither sends nor takes any.
type MetaRows struct {
	Region   uint32
	Offset   uint64
	RowBytes uint64
	Rows     uint32
}

// Engine is one rank of an instance and what it holds.
type Engine struct {
	Rank        Rank
	Shards      []Shard // at most one per component
	Meta        MetaRows
	RegionBytes []uint64 // length of each region that the engine registered
}

// PageTokens is how many tokens a page of the engine holds, 0 if it holds
// nothing. It is one number per instance: Validate refuses another.
func (e *Engine) PageTokens() uint32 {
	if len(e.Shards) == 0 {
		return 0
	}
	return e.Shards[0].PageTokens
}

// Instance is the engines that serve one model replica together.
type Instance struct {
	Model          Model
	DP, PP, CP, TP int      // sizes, at least 1
	Engines        []Engine // in roster order, one per rank
}

// PageTable lists the pages that hold consecutive tokens on one side: Pages[0]
// holds token First, and First is a multiple of that side's page size.
type PageTable struct {
	First uint64
	Pages []uint32
}

// Page is the page that holds a token, which the table covers, and the token's
// place in it.
func (t PageTable) Page(pageTokens uint32, token uint64) (page, within uint32) {
	return t.Pages[(token-t.First)/uint64(pageTokens)], uint32(token % uint64(pageTokens))
}

// Run is Count units: the i-th is unit First + i*Step.
type Run struct {
	First, Count, Step uint32
}

// Range is strided bytes of one side, as transport/rdma.Range has it: rows of
// Bytes at Offset + unit*UnitStride + i*Stride[0] + j*Stride[1].
type Range struct {
	Component  string // "" is the metadata row
	Layer      int
	Region     uint32
	Offset     uint64
	UnitStride uint64
	Bytes      uint64
	Count      [2]uint32
	Stride     [2]uint64
	Runs       []Run // shared between ranges of one plan
}

// PairRun is Count pairs of units: the i-th is (Source + i*SourceStep,
// Target + i*TargetStep).
type PairRun struct {
	Source, Target         uint32
	Count                  uint32
	SourceStep, TargetStep uint32
}

// Place is one side of a Copy.
type Place struct {
	Region     uint32
	Offset     uint64
	UnitStride uint64
	Stride     [2]uint64
}

// Copy is a strided family of row copies between one tensor pair, for every pair
// of units of Runs; as transport/rdma.Copy has it.
type Copy struct {
	Component      string // "" is the metadata row
	Layer          int
	Source, Target Place
	Bytes          uint64
	Count          [2]uint32
	Runs           []PairRun // shared between copies of one plan
}
