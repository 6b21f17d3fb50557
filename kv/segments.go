package kv

import "math"

// segment is a piece of a sequence of rows that lies within one page of each side:
// rows rows from these rows of their pages.
type segment struct {
	source, target, rows uint32
}

// group is the pages that are cut alike, as runs of pairs of them.
type group struct {
	segment
	runs []PairRun
}

// walk is where a sequence of rows goes through the pages of one side.
type walk struct {
	pages []uint32
	size  uint32 // rows of a page
	page  uint64 // index of the page of the first row
	row   uint32 // and its place in that page
	step  uint32 // from one row to the next
}

// walk is how the rows go through the pages of a lane. The table covers them.
func (l lane) walk(r rows, t PageTable) walk {
	n, _ := l.turns()
	at := l.local(r.start)
	return walk{
		pages: t.Pages, size: l.pageRows, step: uint32(r.step / n),
		page: at/uint64(l.pageRows) - t.First/l.Stripe(), row: uint32(at % uint64(l.pageRows)),
	}
}

// left is how many rows of the sequence are in the present page.
func (w *walk) left() uint32 { return (w.size - w.row + w.step - 1) / w.step }

// skip goes on by n rows, which may end in another page.
func (w *walk) skip(n uint32) {
	at := uint64(w.row) + uint64(n)*uint64(w.step)
	w.page, w.row = w.page+at/uint64(w.size), uint32(at%uint64(w.size))
}

// period is how many rows of the sequence there are until it is at the same row of
// a page again.
func (w *walk) period() uint64 { return uint64(w.size / gcd(w.size, w.step)) }

// cutter cuts a sequence of rows at the borders of both sides' pages. Where page
// sizes do not divide one another there are as many groups as cuts in one common
// period, and two more at the ends.
type cutter struct {
	count                uint64
	source, target       walk
	natSource, natTarget uint32 // pages from one period to the next

	groups []growing
	last   int
}

// growing is a group in the making.
type growing struct {
	segment
	next                   int // the group that came after this one, the last time
	run                    PairRun
	lastSource, lastTarget uint32
	n                      int       // finished runs
	runs                   []PairRun // of the second pass
}

// cut returns the groups of count rows, which go so through both sides. It goes
// through the pages twice, to allocate once.
func cut(count uint64, source, target walk) []group {
	period := source.period() / gcd64(source.period(), target.period()) * target.period()
	c := &cutter{
		count: count, source: source, target: target,
		natSource: natural(period, &source), natTarget: natural(period, &target),
	}
	c.pass()
	total := 0
	for i := range c.groups {
		total += c.groups[i].n
	}
	all := make([]PairRun, 0, total)
	for i := range c.groups {
		n := c.groups[i].n
		c.groups[i] = growing{segment: c.groups[i].segment, next: c.groups[i].next, runs: all[0:0:n]}
		all = all[n:cap(all):cap(all)][:0]
	}
	c.last = 0
	c.pass()
	groups := make([]group, len(c.groups))
	for i := range c.groups {
		groups[i] = group{c.groups[i].segment, c.groups[i].runs}
	}
	return groups
}

// natural is the pages from one period of rows to the next. It only guides how runs
// are made: one that is out of range guides nothing.
func natural(period uint64, w *walk) uint32 {
	return uint32(min(period*uint64(w.step)/uint64(w.size), math.MaxUint32))
}

// pass goes once through the rows.
func (c *cutter) pass() {
	s, t := c.source, c.target
	for left := c.count; left > 0; {
		n := min(s.left(), t.left())
		if uint64(n) > left {
			n = uint32(left)
		}
		g := c.find(segment{s.row, t.row, n})
		if n == s.size && n == t.size && s.step == 1 && t.step == 1 {
			// Whole pages on both sides need no cutting.
			whole := left / uint64(n)
			sources, targets := s.pages[s.page:s.page+whole], t.pages[t.page:t.page+whole]
			for k := 0; k < len(sources); {
				c.add(g, sources[k], targets[k])
				k++
				k += g.follow(sources[k:], targets[k:])
			}
			left, s.page, t.page = left-whole*uint64(n), s.page+whole, t.page+whole
			continue
		}
		c.add(g, s.pages[s.page], t.pages[t.page])
		left -= uint64(n)
		s.skip(n)
		t.skip(n)
	}
	for i := range c.groups {
		c.groups[i].finish()
	}
}

// find returns the group of a segment. Groups follow one another as they did the
// last time, the ends of the range apart, so that it seldom has to search.
func (c *cutter) find(s segment) *growing {
	if c.last < len(c.groups) {
		if n := c.groups[c.last].next; n < len(c.groups) && c.groups[n].segment == s {
			c.last = n
			return &c.groups[n]
		}
	}
	at := len(c.groups)
	for i := range c.groups {
		if c.groups[i].segment == s {
			at = i
			break
		}
	}
	if at == len(c.groups) {
		c.groups = append(c.groups, growing{segment: s, next: at})
	}
	c.groups[c.last].next = at
	c.last = at
	return &c.groups[at]
}

// add puts a pair of pages to a group: to its run if it goes on with it.
func (c *cutter) add(g *growing, source, target uint32) {
	r := &g.run
	up := source > g.lastSource && target > g.lastTarget
	switch {
	case up && r.Count > 1 && source-g.lastSource == r.SourceStep && target-g.lastTarget == r.TargetStep:
		r.Count++
	case r.Count == 0:
		*r = PairRun{Source: source, Target: target, Count: 1, SourceStep: 1, TargetStep: 1}
	case up && r.Count == 1:
		r.SourceStep, r.TargetStep = source-g.lastSource, target-g.lastTarget
		r.Count = 2
	case up && r.Count == 2 && source-g.lastSource == c.natSource && target-g.lastTarget == c.natTarget:
		// Two pages at some distance are no run if the second begins a real one.
		r.Count, r.SourceStep, r.TargetStep = 1, 1, 1
		g.finish()
		*r = PairRun{Source: g.lastSource, Target: g.lastTarget, Count: 2, SourceStep: c.natSource, TargetStep: c.natTarget}
	default:
		g.finish()
		*r = PairRun{Source: source, Target: target, Count: 1, SourceStep: 1, TargetStep: 1}
	}
	g.lastSource, g.lastTarget = source, target
}

// follow takes the pages that go on with a run one by one on both sides, and says
// how many: the most frequent case needs no decision for each page. No page is the
// last of 32 bits, so that none follows 0.
func (g *growing) follow(sources, targets []uint32) int {
	r := &g.run
	if r.Count < 2 || r.SourceStep != 1 || r.TargetStep != 1 {
		return 0
	}
	n := 0
	s, t := g.lastSource, g.lastTarget
	for n < len(sources) && n < len(targets) && sources[n] == s+1 && targets[n] == t+1 {
		s, t = s+1, t+1
		n++
	}
	r.Count += uint32(n)
	g.lastSource, g.lastTarget = s, t
	return n
}

// finish ends the run of a group.
func (g *growing) finish() {
	if g.run.Count == 0 {
		return
	}
	g.n++
	if g.runs != nil {
		g.runs = append(g.runs, g.run)
	}
	g.run = PairRun{}
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
