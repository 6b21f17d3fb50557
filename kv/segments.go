package kv

// segment is a piece of a token range that lies within one page of each side:
// tokens tokens from these tokens of their pages.
type segment struct {
	source, target, tokens uint32
}

// group is the pages that are cut alike, as runs of pairs of them.
type group struct {
	segment
	runs []PairRun
}

// cutter cuts a token range at the borders of both sides' pages. Where page
// sizes do not divide one another there are as many groups as cuts in one common
// period, and two more at the ends.
type cutter struct {
	from, to             uint64
	source, target       PageTable
	sourceSize, tarSize  uint32 // tokens of a page
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

// cut returns the groups of the tokens [from, to), which both tables cover. It
// goes through the pages twice, to allocate once.
func cut(from, to uint64, source, target PageTable, sourceSize, targetSize uint32) []group {
	g := gcd(sourceSize, targetSize)
	c := &cutter{
		from: from, to: to, source: source, target: target, sourceSize: sourceSize, tarSize: targetSize,
		natSource: targetSize / g, natTarget: sourceSize / g,
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

// pass goes once through the token range.
func (c *cutter) pass() {
	s := uint32(c.from % uint64(c.sourceSize))
	t := uint32(c.from % uint64(c.tarSize))
	sp := (c.from - c.source.First) / uint64(c.sourceSize)
	tp := (c.from - c.target.First) / uint64(c.tarSize)
	for at := c.from; at < c.to; {
		n := min(c.sourceSize-s, c.tarSize-t)
		if left := c.to - at; uint64(n) > left {
			n = uint32(left)
		}
		g := c.find(segment{s, t, n})
		if n == c.sourceSize && n == c.tarSize {
			// Whole pages on both sides need no cutting.
			whole := (c.to - at) / uint64(n)
			sources, targets := c.source.Pages[sp:sp+whole], c.target.Pages[tp:tp+whole]
			for k := 0; k < len(sources); {
				c.add(g, sources[k], targets[k])
				k++
				k += g.follow(sources[k:], targets[k:])
			}
			at, sp, tp = at+whole*uint64(n), sp+whole, tp+whole
			continue
		}
		c.add(g, c.source.Pages[sp], c.target.Pages[tp])
		at += uint64(n)
		if s += n; s == c.sourceSize {
			s, sp = 0, sp+1
		}
		if t += n; t == c.tarSize {
			t, tp = 0, tp+1
		}
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
