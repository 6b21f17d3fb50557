package bench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"kvferry/kv"
	"kvferry/messages"
)

const (
	// buildsMin and buildTime say how often a plan is built: what takes microseconds
	// is measured often.
	buildsMin = 5
	buildTime = 200 * time.Millisecond

	// rowsMax bounds the rows that are written out, 24 bytes each. Of a larger plan
	// the first copies are, and the time of all is in proportion.
	rowsMax = 1 << 25

	// writeOuts is how often rows are written out; the first time, which makes the
	// memory, does not count.
	writeOuts = 5
)

// PlanConfig is a request between two deployments that fit.
type PlanConfig struct {
	Prefill, Decode *kv.Deployment
	Prefix, Length  uint64 // the tokens [Prefix, Length) are wanted
	Together        int    // pages of each side that follow one another in its pool, at least 1
	Seed            uint64 // of the order of the others
}

// Plan is what planning costs one writer of a request, for one receiver.
type Plan struct {
	Writer   kv.Rank `json:"-"`
	Receiver kv.Rank `json:"-"`
	Tokens   uint64  `json:"tokens"`
	Bytes    uint64  `json:"bytes"` // that are moved

	BuildUS   float64 `json:"build_us"`   // median
	Records   int     `json:"records"`    // strided copies
	Runs      int     `json:"runs"`       // of pages, that copies share
	WireBytes int     `json:"wire_bytes"` // of the receiver's pages in its grant

	// The same plan written out row by row into a list that is used again, as planners
	// do that know no strides.
	ExpandedUS      float64 `json:"expanded_us"` // median
	ExpandedRecords uint64  `json:"expanded_records"`

	Ratio float64 `json:"ratio"` // of the two times
}

// MeasurePlan plans the first pair of ranks that move anything.
func MeasurePlan(c PlanConfig) (*Plan, error) {
	fit := kv.MatchDeployments(c.Prefill, c.Decode, 1, 1)
	if !fit.Compatible() {
		return nil, fit.Reasons()[0]
	}
	sources, targets := poolPages(fit.Prefill(), 0, c.Length), poolPages(fit.Decode(), c.Prefix, c.Length)
	if fit = kv.MatchDeployments(c.Prefill, c.Decode, sources, targets); !fit.Compatible() {
		return nil, fmt.Errorf("pools of %d and %d pages: %w", sources, targets, fit.Reasons()[0])
	}
	pair, err := firstPair(fit, c.Prefix, c.Length)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	chunk := kv.Chunk{To: c.Length, Source: placed(rng, c.Together, fit.Prefill(), pair.Writer, sources, 0, c.Length), Last: true}
	at := placed(rng, c.Together, fit.Decode(), pair.Receiver, targets, c.Prefix, c.Length)

	p := &Plan{Writer: pair.Writer, Receiver: pair.Receiver, Tokens: c.Length - c.Prefix, WireBytes: wireBytes(&at)}
	var copies []kv.Copy
	var builds []float64
	for start := time.Now(); len(builds) < buildsMin || time.Since(start) < buildTime; {
		since := time.Now()
		if copies, err = pair.Copies(chunk, &at); err != nil {
			return nil, err
		}
		builds = append(builds, microseconds(time.Since(since)))
	}
	p.BuildUS, p.Records, p.Runs = Median(builds), len(copies), runsOf(copies)
	for i := range copies {
		n := rowsOf(&copies[i])
		p.ExpandedRecords += n
		p.Bytes += n * copies[i].Bytes
	}
	p.ExpandedUS = writeOutTime(copies, p.ExpandedRecords)
	p.Ratio = p.ExpandedUS / p.BuildUS
	return p, nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// poolPages is a pool of which the request has half, in whichever rank needs most.
func poolPages(i *kv.Instance, prefix, length uint64) uint32 {
	most := 1
	for n := range i.Engines {
		for _, p := range i.Pools(i.Engines[n].Rank) {
			_, want := p.Need(prefix, length)
			most = max(most, want)
		}
	}
	return uint32(2 * most)
}

// firstPair is the first receiver that is sent rows, and the first who sends it some.
func firstPair(fit *kv.Fit, prefix, length uint64) (*kv.Pair, error) {
	for _, to := range fit.Receivers(kv.Route{}) {
		pairs, err := fit.Pairs(kv.Route{}, to, prefix, length)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			if len(p.Boxes) > 0 {
				return p, nil
			}
		}
	}
	return nil, fmt.Errorf("there is nothing to move of the tokens [%d,%d)", prefix, length)
}

// placed is a request in pages of a rank, of which so many are together and the rest in
// no order. The pool has twice as many as are wanted.
func placed(rng *rand.Rand, together int, i *kv.Instance, r kv.Rank, pool uint32, prefix, length uint64) (at kv.Placement) {
	for _, p := range i.Pools(r) {
		first, want := p.Need(prefix, length)
		n := max(1, min(together, want))
		order := rng.Perm(int(pool) / n)
		pages := make([]uint32, want)
		for k := range pages {
			pages[k] = uint32(order[k/n]*n + k%n)
		}
		at.Tables = append(at.Tables, kv.PoolTable{Window: p.Window, PageTable: kv.PageTable{First: first, Pages: pages}})
	}
	return at
}

// runsOf is the runs of all copies. Those that copies share are counted once.
func runsOf(copies []kv.Copy) (n int) {
	seen := map[*kv.PairRun]bool{}
	for i := range copies {
		if r := copies[i].Runs; len(r) > 0 && !seen[&r[0]] {
			seen[&r[0]] = true
			n += len(r)
		}
	}
	return n
}

// wireBytes is what the pages of a request take in the grant that names them.
func wireBytes(at *kv.Placement) int {
	g := &messages.Grant{}
	for _, t := range at.Tables {
		var spans []*messages.Span
		for _, r := range kv.PackPages(t.Pages) {
			spans = append(spans, &messages.Span{First: r.First, Count: r.Count, Step: r.Step})
		}
		if t.Window == 0 {
			g.FirstToken, g.Pages = t.First, spans
		} else if len(spans) > 0 {
			g.Windows = append(g.Windows, &messages.WindowPages{Window: t.Window, FirstToken: t.First, Pages: spans})
		}
	}
	return proto.Size(g)
}

func rowsOf(c *kv.Copy) uint64 {
	units := uint64(0)
	for _, r := range c.Runs {
		units += uint64(r.Count)
	}
	return units * uint64(c.Count[0]) * uint64(c.Count[1])
}

// rowCopy is a copy of one row, as a planner without strides lists it.
type rowCopy struct {
	source, target uint64
	bytes          uint32
}

// writeOutTime is the microseconds to write copies out as rows.
func writeOutTime(copies []kv.Copy, rows uint64) float64 {
	n, some := 0, uint64(0) // of copies, and their rows
	for n < len(copies) && (n == 0 || some+rowsOf(&copies[n]) <= rowsMax) {
		some += rowsOf(&copies[n])
		n++
	}
	out := writeOut(copies[:n], make([]rowCopy, 0, some))
	var times []float64
	for range writeOuts {
		since := time.Now()
		out = writeOut(copies[:n], out)
		times = append(times, microseconds(time.Since(since)))
	}
	return Median(times) * float64(rows) / float64(some)
}

// writeOut is the obvious loop.
func writeOut(copies []kv.Copy, out []rowCopy) []rowCopy {
	out = out[:0]
	for i := range copies {
		c := &copies[i]
		for _, run := range c.Runs {
			source := c.Source.Offset + uint64(run.Source)*c.Source.UnitStride
			target := c.Target.Offset + uint64(run.Target)*c.Target.UnitStride
			for range run.Count {
				for k := range uint64(c.Count[0]) {
					s, t := source+k*c.Source.Stride[0], target+k*c.Target.Stride[0]
					for range c.Count[1] {
						out = append(out, rowCopy{s, t, uint32(c.Bytes)})
						s += c.Source.Stride[1]
						t += c.Target.Stride[1]
					}
				}
				source += uint64(run.SourceStep) * c.Source.UnitStride
				target += uint64(run.TargetStep) * c.Target.UnitStride
			}
		}
	}
	return out
}
