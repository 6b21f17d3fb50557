package kv

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Pool is the part of an engine's memory in which a request has pages of one
// kind: those of the components that keep the same window of tokens. Components
// of a pool share their page numbers.
type Pool struct {
	Window     uint64 // in tokens; 0: the components keep all
	PageTokens uint32 // rows that one page of this engine has, in tokens
	Pages      uint32 // every tensor of the pool has at least these

	split Split
	cp, n int // this rank's place, and the size
}

// Stripe is how many tokens of the request there are from one page of this engine
// to the next: those of a page, times the CP size where ranks take turns.
func (p Pool) Stripe() uint64 {
	if p.split == Interleaved {
		return uint64(p.PageTokens) * uint64(p.n)
	}
	return uint64(p.PageTokens)
}

// From is the first token that the pool has to keep of a request of which
// [prefix, length) is wanted: prefix, or with a window the start of the page in
// which max(prefix, length - window) is.
func (p Pool) From(prefix, length uint64) uint64 {
	if p.Window == 0 || prefix >= length {
		return prefix
	}
	from := max(prefix, length-min(length, p.Window))
	return from - from%p.Stripe()
}

// Need is the pages that hold this engine's part of the tokens [prefix, length):
// first is the First of their table, n is how many they are. A prefill engine
// keeps what a prefix of 0 asks for. There are none if prefix is length.
func (p Pool) Need(prefix, length uint64) (first uint64, n int) {
	stripe := p.Stripe()
	from := p.From(prefix, length)
	lo, hi := from/stripe, length/stripe
	if length%stripe > 0 {
		hi++
	}
	if prefix >= length {
		return from - from%stripe, 0
	}
	if p.split == PageRanges {
		mine, end := share(hi, uint64(p.n), uint64(p.cp))
		lo, hi = max(lo, mine), min(hi, end)
		lo = min(lo, hi)
	}
	return lo * stripe, int(hi - lo)
}

// Check answers whether a table has exactly the pages of Need.
func (p Pool) Check(side Side, t PageTable, prefix, length uint64) error {
	first, n := p.Need(prefix, length)
	stripe := p.Stripe()
	what := side.String() + " pages"
	if p.Window > 0 {
		what = fmt.Sprintf("%s of window %d", what, p.Window)
	}
	if t.First%stripe != 0 {
		return fmt.Errorf("%s: first token is %d, want a multiple of the %d tokens of a page", what, t.First, stripe)
	}
	if len(t.Pages) != n || n > 0 && t.First != first {
		return fmt.Errorf("%s: got %d pages from token %d, want %d pages from token %d for tokens [%d,%d) in pages of %d",
			what, len(t.Pages), t.First, n, first, prefix, length, stripe)
	}
	return nil
}

// Pools are the pools of a rank, by window. The instance has at least this rank's
// shards.
func (i *Instance) Pools(r Rank) []Pool {
	var out []Pool
	e := i.engine(r)
	if e == nil {
		return nil
	}
	for n := range e.Shards {
		s := &e.Shards[n]
		c := i.Model.component(s.Component)
		if c == nil || c.Kind != Paged {
			continue
		}
		at, found := slices.BinarySearchFunc(out, c.Window, func(p Pool, w uint64) int { return cmp.Compare(p.Window, w) })
		if !found {
			out = slices.Insert(out, at, Pool{Window: c.Window, PageTokens: s.PageTokens, Pages: s.fewest(), split: i.Split, cp: r.CP, n: i.CP})
		}
		out[at].Pages = min(out[at].Pages, s.fewest())
	}
	return out
}

// Pool is the pool of a window; false if the rank has none.
func (i *Instance) Pool(r Rank, window uint64) (Pool, bool) {
	for _, p := range i.Pools(r) {
		if p.Window == window {
			return p, true
		}
	}
	return Pool{}, false
}

// Slots is how many slots a rank has: what every tensor of its Slot components
// has. has: it holds such components, so that each request needs one.
func (i *Instance) Slots(r Rank) (slots uint32, has bool) {
	e := i.engine(r)
	if e == nil {
		return 0, false
	}
	for n := range e.Shards {
		s := &e.Shards[n]
		if c := i.Model.component(s.Component); c == nil || c.Kind != Slot {
			continue
		}
		if !has || s.fewest() < slots {
			slots, has = s.fewest(), true
		}
	}
	return slots, has
}

// engine finds a rank, nil if it is not there.
func (i *Instance) engine(r Rank) *Engine {
	n, ok := i.index(r) // where it is in a whole instance
	if !ok || n >= len(i.Engines) || i.Engines[n].Rank != r {
		n = slices.IndexFunc(i.Engines, func(e Engine) bool { return e.Rank == r })
	}
	if n < 0 {
		return nil
	}
	return &i.Engines[n]
}

// fewest is the pages that every layer of the shard has.
func (s *Shard) fewest() uint32 {
	if len(s.Layers) == 0 {
		return 0
	}
	pages := s.Layers[0].Pages
	for _, l := range s.Layers {
		pages = min(pages, l.Pages)
	}
	return pages
}

// rows is an ascending sequence of rows of a component: start, start+step, ...
type rows struct{ start, step, count uint64 }

// within is the rows of the sequence that are in [lo, hi).
func (r rows) within(lo, hi uint64) rows {
	if r.start < lo {
		skip := (lo - r.start + r.step - 1) / r.step
		if skip >= r.count {
			return rows{lo, r.step, 0}
		}
		r.start, r.count = r.start+skip*r.step, r.count-skip
	}
	if r.count > 0 && r.start+(r.count-1)*r.step >= hi {
		if hi <= r.start {
			return rows{r.start, r.step, 0}
		}
		r.count = (hi - r.start + r.step - 1) / r.step
	}
	return r
}

// lane is how one side keeps the rows of a component.
type lane struct {
	Pool
	pageRows uint32 // rows of a page
}

// turns is how many ranks take turns, and which turn this one has.
func (l lane) turns() (n, i uint64) {
	if l.split == Interleaved {
		return uint64(l.n), uint64(l.cp)
	}
	return 1, 0
}

// keeps is the rows [lo, hi) that are this rank's part of a request of a length,
// turns apart.
func (l lane) keeps(rowTokens uint32, prefix, length uint64) (lo, hi uint64) {
	q := uint64(rowTokens)
	lo, hi = l.From(prefix, length)/q, length/q
	if l.split == PageRanges {
		first, n := l.Need(prefix, length)
		lo, hi = max(lo, first/q), min(hi, (first+uint64(n)*l.Stripe())/q)
	}
	return lo, max(lo, hi)
}

// local is the place of a row that the rank keeps among all that it would keep of
// a request.
func (l lane) local(row uint64) uint64 {
	n, _ := l.turns()
	return row / n
}

// common is the rows that a writer keeps and a receiver needs, of a request of
// which [prefix, length) is wanted.
func common(source, target lane, rowTokens uint32, prefix, length uint64) rows {
	if prefix >= length {
		return rows{step: 1}
	}
	slo, shi := source.keeps(rowTokens, 0, length)
	tlo, thi := target.keeps(rowTokens, prefix, length)
	lo, hi := max(slo, tlo), min(shi, thi)
	sn, si := source.turns()
	tn, ti := target.turns()
	step := sn / gcd64(sn, tn) * tn
	// The first row that is both's turn: the source's turns, one after another.
	at := lo + (si+sn-lo%sn)%sn
	for range tn {
		if at%tn == ti {
			break
		}
		at += sn
	}
	if at%tn != ti || at >= hi {
		return rows{start: lo, step: step}
	}
	return rows{start: at, step: step, count: (hi - at + step - 1) / step}
}

func gcd64(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (s Split) String() string {
	switch s {
	case Copies:
		return "copies"
	case PageRanges:
		return "pages"
	case Interleaved:
		return "tokens"
	}
	return "split " + strconv.Itoa(int(s))
}

// ParseSplit reads a split by its name: copies, pages or tokens.
func ParseSplit(s string) (Split, error) {
	for _, v := range []Split{Copies, PageRanges, Interleaved} {
		if s == v.String() {
			return v, nil
		}
	}
	return 0, fmt.Errorf("cp_split is %q, want copies, pages or tokens", s)
}
