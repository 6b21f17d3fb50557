package transfer

import (
	"fmt"
	"math"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// LengthMost bounds the tokens of a room that came off the wire; kv has the same
// bound.
const LengthMost = 1 << 40

// mismatch is what did not fit in a message: got, and what was wanted.
type mismatch struct{ field, got, want string }

func differs(field string, got, want any) *mismatch {
	return &mismatch{field, fmt.Sprint(got), fmt.Sprint(want)}
}

// grantID reads the id of a grant.
func grantID(field string, b []byte) (id rdma.GrantID, bad *mismatch) {
	if len(b) != len(id) {
		return id, differs(field, fmt.Sprintf("%d bytes", len(b)), fmt.Sprintf("%d bytes", len(id)))
	}
	copy(id[:], b)
	return id, nil
}

// hash reads a roster hash or a digest.
func hash(field string, b []byte) (h [32]byte, bad *mismatch) {
	if len(b) != len(h) {
		return h, differs(field, fmt.Sprintf("%d bytes", len(b)), fmt.Sprintf("%d bytes", len(h)))
	}
	copy(h[:], b)
	return h, nil
}

// rosters is the roster hashes of both sides.
type rosters struct{ prefill, decode messages.RosterHash }

func readRosters(prefill, decode []byte) (r rosters, bad *mismatch) {
	p, bad := hash("prefill_roster", prefill)
	if bad != nil {
		return r, bad
	}
	d, bad := hash("decode_roster", decode)
	return rosters{p, d}, bad
}

// grantPart is a part of a grant whose fields have the right form.
type grantPart struct {
	id             rdma.GrantID
	rosters        rosters
	prefix, length uint64
	remaining      time.Duration
	digest         [32]byte
	runs           []tableRun
	slot, metaRow  uint32
	part, parts    uint32
}

func readGrant(g *messages.Grant, l *Limits) (p grantPart, bad *mismatch) {
	if p.id, bad = grantID("id", g.GetId()); bad != nil {
		return p, bad
	}
	if p.rosters, bad = readRosters(g.GetPrefillRoster(), g.GetDecodeRoster()); bad != nil {
		return p, bad
	}
	if p.digest, bad = hash("digest", g.GetDigest()); bad != nil {
		return p, bad
	}
	p.prefix, p.length, p.slot, p.metaRow = g.GetPrefix(), g.GetLength(), g.GetSlot(), g.GetMetaRow()
	p.part, p.parts = g.GetPart(), g.GetParts()
	p.remaining = time.Duration(min(g.GetRemainingMs(), uint64(l.WaitMax/time.Millisecond))) * time.Millisecond
	switch {
	case p.length > LengthMost:
		return p, differs("length", p.length, fmt.Sprintf("at most %d", uint64(LengthMost)))
	case p.prefix > p.length:
		return p, differs("prefix", p.prefix, fmt.Sprintf("at most the length %d", p.length))
	case p.parts == 0 || p.parts > uint32(l.GrantParts):
		return p, differs("parts", p.parts, fmt.Sprintf("1 to %d", l.GrantParts))
	case p.part >= p.parts:
		return p, differs("part", p.part, fmt.Sprintf("below %d", p.parts))
	}
	p.runs, bad = readRuns(g, l)
	return p, bad
}

// tableRun is a run of pages of the pool of a window, whose table begins with the
// token first.
type tableRun struct {
	window, first uint64
	kv.Run
}

// writeRuns puts runs, ascending by window, into a grant.
func writeRuns(g *messages.Grant, runs []tableRun) {
	for _, r := range runs {
		span := &messages.Span{First: r.First, Count: r.Count, Step: r.Step}
		if r.window == 0 {
			g.FirstToken, g.Pages = r.first, append(g.Pages, span)
			continue
		}
		if n := len(g.Windows); n == 0 || g.Windows[n-1].Window != r.window {
			g.Windows = append(g.Windows, &messages.WindowPages{Window: r.window, FirstToken: r.first})
		}
		w := g.Windows[len(g.Windows)-1]
		w.Pages = append(w.Pages, span)
	}
}

// readRuns is what writeRuns wrote.
func readRuns(g *messages.Grant, l *Limits) ([]tableRun, *mismatch) {
	total := len(g.GetPages())
	for i, w := range g.GetWindows() {
		at := fmt.Sprintf("windows[%d]", i)
		total += len(w.GetPages())
		switch {
		case len(w.GetPages()) == 0:
			return nil, differs(at+".pages", "0 runs", "at least 1")
		case w.GetWindow() == 0:
			return nil, differs(at+".window", 0, "at least 1")
		case i > 0 && w.GetWindow() <= g.GetWindows()[i-1].GetWindow():
			return nil, differs(at+".window", w.GetWindow(), fmt.Sprintf("above %d, which stands before it", g.GetWindows()[i-1].GetWindow()))
		}
	}
	if total > l.GrantRuns {
		return nil, differs("pages", fmt.Sprintf("%d runs", total), fmt.Sprintf("at most %d", l.GrantRuns))
	}
	runs := make([]tableRun, 0, total)
	add := func(window, first uint64, spans []*messages.Span) {
		for _, s := range spans {
			runs = append(runs, tableRun{window, first, kv.Run{First: s.GetFirst(), Count: s.GetCount(), Step: s.GetStep()}})
		}
	}
	add(0, g.GetFirstToken(), g.GetPages())
	for _, w := range g.GetWindows() {
		add(w.GetWindow(), w.GetFirstToken(), w.GetPages())
	}
	return runs, nil
}

// unpackTables makes the tables of runs, ascending by window, of a receiver with
// these pools: none has more pages than it needs.
func unpackTables(runs []tableRun, pools []kv.Pool, prefix, length uint64) ([]kv.PoolTable, error) {
	var tables []kv.PoolTable
	for i := 0; i < len(runs); {
		window, first := runs[i].window, runs[i].first
		most := 0
		for _, p := range pools {
			if p.Window == window {
				_, most = p.Need(prefix, length)
			}
		}
		var list []kv.Run
		for ; i < len(runs) && runs[i].window == window; i++ {
			if runs[i].first != first {
				return nil, fmt.Errorf("pages of window %d: first token is %d in one part and %d in another", window, first, runs[i].first)
			}
			list = append(list, runs[i].Run)
		}
		pages, err := kv.UnpackPages(list, most)
		if err != nil {
			return nil, err
		}
		tables = append(tables, kv.PoolTable{Window: window, PageTable: kv.PageTable{First: first, Pages: pages}})
	}
	return tables, nil
}

// goesWith reports whether two parts are of one grant: all but the pages is
// equal, and what remains, which is of when each was sent.
func (p *grantPart) goesWith(q *grantPart) bool {
	return p.id == q.id && p.rosters == q.rosters && p.prefix == q.prefix && p.length == q.length &&
		p.digest == q.digest && p.slot == q.slot && p.metaRow == q.metaRow && p.parts == q.parts
}

// generations reads a list of generations, each once.
func generations(field string, list []*messages.Generation, l *Limits) ([]rdma.Generation, *mismatch) {
	if len(list) > l.Entries {
		return nil, differs(field, fmt.Sprintf("%d entries", len(list)), fmt.Sprintf("at most %d", l.Entries))
	}
	var out []rdma.Generation
	for i, g := range list {
		if g == nil || g.GetNumber() == 0 {
			return nil, differs(fmt.Sprintf("%s[%d]", field, i), "no generation", "a generation")
		}
		out = addGeneration(out, g.Rdma())
	}
	return out, nil
}

func addGeneration(list []rdma.Generation, g rdma.Generation) []rdma.Generation {
	for _, have := range list {
		if have == g {
			return list
		}
	}
	return append(list, g)
}

func wireGenerations(list []rdma.Generation) []*messages.Generation {
	var out []*messages.Generation
	for _, g := range list {
		out = append(out, messages.GenerationWire(g))
	}
	return out
}

// stripe is where arrivals are counted.
type stripe struct {
	generation rdma.Generation
	number     uint32
}

// count is how many arrivals there are, or have to be, on one stripe.
type count struct {
	stripe
	arrivals uint64
}

// readArrivals reads the arrivals that a done counts on.
func readArrivals(list []*messages.Arrivals, l *Limits) ([]count, *mismatch) {
	if len(list) > l.Entries {
		return nil, differs("arrivals", fmt.Sprintf("%d entries", len(list)), fmt.Sprintf("at most %d", l.Entries))
	}
	var out []count
	for i, a := range list {
		if a == nil || a.GetGeneration().GetNumber() == 0 {
			return nil, differs(fmt.Sprintf("arrivals[%d]", i), "no generation", "a generation")
		}
		out = addCount(out, stripe{a.GetGeneration().Rdma(), a.GetStripe()}, a.GetCount())
	}
	return out, nil
}

// addCount adds to the count of a stripe; the sum stays at the largest number
// rather than wrap.
func addCount(counts []count, s stripe, n uint64) []count {
	for i := range counts {
		if counts[i].stripe == s {
			counts[i].arrivals = addCapped(counts[i].arrivals, n)
			return counts
		}
	}
	return append(counts, count{s, n})
}

func addCapped(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// countOf is the count of a stripe, 0 when there is none.
func countOf(counts []count, s stripe) uint64 {
	for i := range counts {
		if counts[i].stripe == s {
			return counts[i].arrivals
		}
	}
	return 0
}

func wireArrivals(counts []count) []*messages.Arrivals {
	var out []*messages.Arrivals
	for _, c := range counts {
		out = append(out, &messages.Arrivals{
			Generation: messages.GenerationWire(c.generation), Stripe: c.number, Count: c.arrivals,
		})
	}
	return out
}

// rangeBytes is how many bytes ranges cover.
func rangeBytes(ranges []kv.Range) uint64 {
	n := uint64(0)
	for i := range ranges {
		r := &ranges[i]
		units := uint64(0)
		for _, run := range r.Runs {
			units += uint64(run.Count)
		}
		n += units * uint64(r.Count[0]) * uint64(r.Count[1]) * r.Bytes
	}
	return n
}
