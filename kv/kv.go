// Package kv says what moves: what the cache of a model looks like in the
// memory of an engine, whether two deployments fit together, and which bytes
// to copy where. Everything here is a function of its arguments.
//
// There is one rule. A tensor that an engine registered is a box in the logical
// space (component, layer, head, row). What must move between a prefill engine and
// a decode engine is the intersection of their boxes, restricted to the rows that
// decode needs and does not have yet. Tensor parallelism, pipeline stages, context
// parallelism, replicated heads, page sizes and page-inner orders are boxes and
// strides; none of them has code of its own. docs/kv.md has pictures.
package kv

import "fmt"

// Kind says what a component has one row of.
type Kind uint8

const (
	// Paged components have one row per RowTokens tokens and head, in pages.
	Paged Kind = iota + 1
	// Slot components have SlotRows rows per request and head, in slots: the state
	// of a mamba layer, or of a group of tokens that is not complete yet.
	Slot
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
	HeadBytes uint64 // of one row of one head
	DType     DType
	Optional  bool // sent if both sides have it; missing on one side is no error

	// RowTokens is how many tokens one row stands for: 1 (0 means 1), or 4 or 128 of
	// a compressed cache. A row exists when all its tokens are computed. A Slot
	// component with RowTokens above 1 is the state of the group that is still open:
	// it is needed only if the length is no multiple of RowTokens.
	RowTokens uint32
	// Window is how many of the last tokens a Paged component keeps; 0 for all.
	Window uint64
	// SlotRows is the rows of one slot of a Slot component; 0 means 1.
	SlotRows uint32

	// Tensor names the tensor that Deployment puts the component into, beside the
	// others of that name: the sections q, k and v of a convolution's state. "" for
	// one of its own. Layout and PageAlign are of that tensor, where they are not the
	// Deployment's: keys first in a page and then their scales is hnd. All three are a
	// matter of layout alone, and the two sides may differ.
	Tensor    string
	Layout    Layout
	PageAlign uint64
}

// rowTokens is the tokens of a row, at least 1.
func (c *Component) rowTokens() uint32 { return max(1, c.RowTokens) }

// slotRows is the rows of a slot, at least 1.
func (c *Component) slotRows() uint32 { return max(1, c.SlotRows) }

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
// memory. The row of (page p, row r of the page, head h) of a layer starts at
//
//	Offset(layer) + p*PageStride + r*RowStride + (h-Heads.Low)*HeadStride
//
// For a Slot component a page is a slot.
type Shard struct {
	Component  string
	Layers     []LayerTensor // ascending by layer
	Heads      HeadRange
	PageTokens uint32 // a multiple of the component's RowTokens; 0 for a Slot component
	PageStride uint64 // bytes; at least what the rows of a page span
	RowStride  uint64
	HeadStride uint64
}

// RowOffset is where the row of a page, a row of the page, and a head of the
// model starts in the region of t, one of the shard's Layers. The head is one of
// the shard's.
func (s *Shard) RowOffset(t LayerTensor, page, row uint32, head int) uint64 {
	return t.Offset + uint64(page)*s.PageStride + uint64(row)*s.RowStride + uint64(head-s.Heads.Low)*s.HeadStride
}

// pageRows is how many rows of the component a page, or a slot, has.
func (s *Shard) pageRows(c *Component) uint32 {
	if c.Kind == Slot {
		return c.slotRows()
	}
	return s.PageTokens / c.rowTokens()
}

// LayerTensor is one layer of a shard: Pages pages, or slots, from Offset of a
// region.
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

// Instance is the engines that serve one model replica together.
type Instance struct {
	Model          Model
	DP, PP, CP, TP int      // sizes, at least 1
	Split          Split    // of the tokens of a request, over the CP ranks
	Engines        []Engine // in roster order, one per rank
}

// Split is how the CP ranks of an instance share the tokens of a request. Slot
// components and metadata rows are never shared: each rank has its own.
type Split uint8

const (
	// Copies: every CP rank holds all tokens.
	Copies Split = iota
	// PageRanges: CP rank c holds the c-th part of the pages of the request, as even
	// as possible, the earlier ranks take the rest.
	PageRanges
	// Interleaved: CP rank c of n holds the rows r with r mod n = c, one after
	// another: decode context parallelism.
	Interleaved
)

// PageTable lists pages of one engine in the order of their tokens. Pages[k]
// holds what the engine has of the tokens from First + k*stripe to the next, where
// stripe is its Pool's; First is a multiple of it.
type PageTable struct {
	First uint64
	Pages []uint32
}

// Placement is where one engine keeps one request.
type Placement struct {
	Tables  []PoolTable // one per pool that the request has pages in
	Slot    uint32      // of the Slot components
	MetaRow uint32
}

// PoolTable is the pages of a request in one pool, which is named by the window
// of its components.
type PoolTable struct {
	Window uint64
	PageTable
}

// Table is the pages in the pool of a window; none if there are none.
func (p *Placement) Table(window uint64) PageTable {
	for i := range p.Tables {
		if p.Tables[i].Window == window {
			return p.Tables[i].PageTable
		}
	}
	return PageTable{}
}

// AllTokens is a placement of a request that has pages in the pool of window 0
// alone, which is the whole cache of most models.
func AllTokens(t PageTable, metaRow uint32) Placement {
	return Placement{Tables: []PoolTable{{PageTable: t}}, MetaRow: metaRow}
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
