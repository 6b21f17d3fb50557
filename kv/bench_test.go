package kv

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// benchPair is one rank of TP 2 to one of TP 4 of an 80-layer model: half of the
// heads that the writer has, in rows of 512 bytes.
func benchPair(b testing.TB, tokens uint64) *Pair {
	b.Helper()
	model, _ := LookupModel("llama-3.1-70b")
	d := func(tp int) *Instance {
		i, rs := (&Deployment{Model: model, TP: tp, PP: 1, DP: 1, PageTokens: 64, Layout: NHD, MetaRows: 1, MetaRowBytes: 64}).Instance(uint32(tokens / 64))
		if len(rs) > 0 {
			b.Fatal(rs)
		}
		return i
	}
	p, err := Match(d(2), d(4)).Pair(Route{}, Rank{}, Rank{}, 0, tokens)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func benchPages(n int, scattered bool) []uint32 {
	out := countTo(n)
	if scattered {
		rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out
}

const benchTokens = 131072

// BenchmarkPlan plans 131,072 tokens of 80 layers: all of it is for the tokens
// that one writer sends to one receiver.
func BenchmarkPlan(b *testing.B) {
	p := benchPair(b, benchTokens)
	for _, bc := range []struct {
		name      string
		scattered bool
	}{{"one run", false}, {"scattered pages", true}} {
		b.Run(bc.name, func(b *testing.B) {
			source := PageTable{Pages: benchPages(benchTokens/64, bc.scattered)}
			target := PageTable{Pages: benchPages(benchTokens/64, false)}
			c := Chunk{To: benchTokens, Source: AllTokens(source, 0), Last: true}
			at := AllTokens(target, 0)
			b.ReportAllocs()
			for b.Loop() {
				copies, err := p.Copies(c, &at)
				if err != nil || len(copies) != 161 {
					b.Fatalf("%d copies, want 161: %v", len(copies), err)
				}
			}
		})
	}
}

// tokenRecord is what an obvious planner makes of every token.
type tokenRecord struct {
	source, target uint64
	bytes          uint32
}

// tokenLoop is the obvious loop for the same plan: a record for every token of
// every layer, into a slice that is used again.
func tokenLoop(p *Pair, source, target []uint32, layers int, out []tokenRecord) []tokenRecord {
	out = out[:0]
	for i := range p.moves {
		m := &p.moves[i]
		box := &p.Boxes[m.box]
		bytes := uint32(uint64(box.Heads.High-box.Heads.Low) * box.RowBytes)
		for _, t := range m.tensors[:min(layers, len(m.tensors))] {
			for n, page := range source {
				s := t.source.offset + uint64(page)*m.source.page
				d := t.target.offset + uint64(target[n])*m.target.page
				for range 64 {
					out = append(out, tokenRecord{s, d, bytes})
					s += m.source.row
					d += m.target.row
				}
			}
		}
	}
	return out
}

func BenchmarkTokenLoop(b *testing.B) {
	p := benchPair(b, benchTokens)
	source, target := benchPages(benchTokens/64, true), benchPages(benchTokens/64, false)
	out := tokenLoop(p, source, target, 80, nil)
	for b.Loop() {
		out = tokenLoop(p, source, target, 80, out)
	}
	b.ReportMetric(float64(len(out)), "records")
}

// TestPlanIsFarFasterThanATokenLoop: at least a hundred times, for 131,072 tokens
// in scattered pages. Of the loop only 8 of the 80 layers are run, so that what is
// compared is a tenth of it; and the best of several runs of either, because a
// machine is busy with other things now and then.
func TestPlanIsFarFasterThanATokenLoop(t *testing.T) {
	p := benchPair(t, benchTokens)
	source, target := benchPages(benchTokens/64, true), benchPages(benchTokens/64, false)
	best := func(runs int, f func()) time.Duration {
		least := time.Duration(math.MaxInt64)
		for range runs {
			since := time.Now()
			f()
			least = min(least, time.Since(since))
		}
		return least
	}
	const layers = 8
	at := AllTokens(PageTable{Pages: target}, 0)
	c := Chunk{To: benchTokens, Source: AllTokens(PageTable{Pages: source}, 0), Last: true}
	plan := best(20, func() {
		if copies, err := p.Copies(c, &at); err != nil || len(copies) != 161 {
			t.Fatalf("%d copies, want 161: %v", len(copies), err)
		}
	})
	out := tokenLoop(p, source, target, layers, nil)
	loop := best(3, func() { out = tokenLoop(p, source, target, layers, out) }) * 80 / layers
	t.Logf("a loop over %d tokens makes %d records; the plan is %d times faster", benchTokens, len(out)*80/layers, loop/plan)
	if loop < 100*plan {
		t.Errorf("the loop takes %v, the plan %v: want at least 100 times as much", loop, plan)
	}
}

func BenchmarkMatch(b *testing.B) {
	model, _ := LookupModel("llama-3.1-405b")
	d := Deployment{Model: model, TP: 8, PP: 4, DP: 2, PageTokens: 16, Layout: NHD, MetaRows: 1, MetaRowBytes: 64}
	i, rs := d.Instance(100)
	if len(rs) > 0 {
		b.Fatal(rs)
	}
	for b.Loop() {
		if f := Match(i, i); !f.Compatible() {
			b.Fatal(f.Reasons())
		}
	}
}

func BenchmarkTargetsAndDigest(b *testing.B) {
	p := benchPair(b, benchTokens)
	target := AllTokens(PageTable{Pages: benchPages(benchTokens/64, true)}, 0)
	b.ReportAllocs()
	for b.Loop() {
		targets, err := p.Targets(&target)
		if err != nil {
			b.Fatal(err)
		}
		p.Digest([32]byte{}, [32]byte{}, targets)
	}
}

// TestPlanAllocatesPerTensorNotPerPage: sixteen times the pages, the same number
// of allocations and of records.
func TestPlanAllocatesPerTensorNotPerPage(t *testing.T) {
	f := mustMatch(t, attentionOf(8, 4, 2), attentionOf(8, 4, 4))
	count := func(pages int) (records int, allocs float64) {
		d := attentionOf(8, 4, 2)
		i, _ := d.Instance(uint32(pages))
		e := attentionOf(8, 4, 4)
		j, _ := e.Instance(uint32(pages))
		f = Match(i, j)
		p, err := f.Pair(Route{}, Rank{}, Rank{}, 0, uint64(pages)*4)
		if err != nil {
			t.Fatal(err)
		}
		c := Chunk{To: uint64(pages) * 4, Source: AllTokens(PageTable{Pages: benchPages(pages, true)}, 0)}
		target := AllTokens(PageTable{Pages: countTo(pages)}, 0)
		allocs = testing.AllocsPerRun(10, func() {
			copies, err := p.Copies(c, &target)
			if err != nil {
				t.Fatal(err)
			}
			records = len(copies)
		})
		return records, allocs
	}
	r1, a1 := count(256)
	r2, a2 := count(4096)
	if r1 != r2 || a1 != a2 || a1 > 8 {
		t.Errorf("256 pages: %d records, %v allocations; 4096 pages: %d, %v; want the same, and at most 8 allocations", r1, a1, r2, a2)
	}
}
