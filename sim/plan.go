package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"kvferry/kv"
	"kvferry/transfer"
)

// plan is what a seed draws before the day begins.
type plan struct {
	prefill, decode kv.Deployment
	fit             *kv.Fit
	hosts           []plannedHost
	card            cardKind
	limits          transfer.Limits
	pages           [2]uint32 // of a prefill engine, and of a decode engine
	requests        int
	busyFor         time.Duration // requests come in this time
	calmAt          time.Duration // faults are over
	kinds           []faultKind   // that may happen
	faults          int
	loss, twice     int  // of 1000 messages, while it is not calm
	old             int  // of 1000 that come again, seconds later
	scattered       bool // the free pages of a pool are in no order
	slowest         time.Duration
	cut             cuts // as it is now
	slowReceiver    int  // index of a host; -1: none
}

type plannedHost struct {
	name    string
	ppm     int64
	engines []attachment
}

// mild says whether nothing is an excuse for a request that fails: no fault, one request,
// which has the pools for itself, and few messages lost.
func (p *plan) mild() bool { return len(p.kinds) == 0 && p.requests == 1 && p.loss < 60 }

// String is the day in one line.
func (p plan) String() string {
	var hosts []string
	for _, h := range p.hosts {
		hosts = append(hosts, h.name)
	}
	names := make([]string, len(p.kinds))
	for i, k := range p.kinds {
		names[i] = k.String()
	}
	return fmt.Sprintf("hosts %s; prefill tp %d pp %d, %d pages; decode tp %d pp %d, %d pages; %s card; %d requests within %v; %d faults of: %s; loss %d/1000, twice %d/1000, up to %v late",
		strings.Join(hosts, " "), p.prefill.TP, p.prefill.PP, p.pages[0], p.decode.TP, p.decode.PP, p.pages[1], p.card,
		p.requests, p.busyFor, p.faults, strings.Join(names, ", "), p.loss, p.twice, p.slowest)
}

// The model is small, and has one of each: heads that are split, one that is
// replicated, rows of more than a token, and state.
var model = kv.Model{ID: "m", Components: []kv.Component{
	{Name: "k", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 2, HeadBytes: 2, DType: kv.UINT8},
	{Name: "latent", Kind: kv.Paged, Layers: []int{0, 1}, Heads: 1, HeadBytes: 3, DType: kv.UINT8},
	{Name: "index", Kind: kv.Paged, Layers: []int{1}, Heads: 1, HeadBytes: 2, RowTokens: 2, DType: kv.UINT8},
	{Name: "state", Kind: kv.Slot, Layers: []int{0}, Heads: 2, HeadBytes: 2, DType: kv.UINT8},
}}

const (
	prefillPageTokens = 4
	decodePageTokens  = 2
	tokensMost        = 12 // of a request
	metaRows          = 8 + scatters
	metaRowBytes      = 16
)

// shapes are tp and pp of a side, the small ones more often.
var shapes = [][2]int{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {2, 1}, {2, 1}, {2, 1}, {1, 2}, {1, 2}, {2, 2}}

// limitsOf are those of rooms, shorter than the defaults so that a day is short, with
// the same relations between them; now and then the defaults themselves.
func limitsOf(rng *rand.Rand) transfer.Limits {
	l := transfer.Limits{
		Wait: 5 * time.Second, WaitMax: 20 * time.Second, ResendFirst: 100 * time.Millisecond, ResendMost: 500 * time.Millisecond,
		Progress: 4 * time.Second, Stall: 9 * time.Second, Grace: 12 * time.Second, Word: 2 * time.Second, Decide: 3 * time.Second,
		Vote: 10 * time.Second, Drain: time.Second, Refence: 1500 * time.Millisecond, Local: 3 * time.Second, Linger: 6 * time.Second, EarlyKeep: 15 * time.Second,
	}
	if rng.IntN(16) == 0 {
		l = transfer.Limits{}
	}
	l.Window = 1 + rng.IntN(4)
	l.WriteBytes = 1 + rng.Uint64N(60)
	l.GrantRuns = 1 + rng.IntN(3)
	l, err := l.Resolve()
	if err != nil {
		panic(err)
	}
	return l
}

func draw(rng *rand.Rand) plan {
	var p plan
	a, b := shapes[rng.IntN(len(shapes))], shapes[rng.IntN(len(shapes))]
	p.prefill = kv.Deployment{Model: model, TP: a[0], PP: a[1], DP: 1, PageTokens: prefillPageTokens, Layout: kv.NHD, MetaRows: metaRows, MetaRowBytes: metaRowBytes}
	p.decode = kv.Deployment{Model: model, TP: b[0], PP: b[1], DP: 1, PageTokens: decodePageTokens, Layout: kv.HND, MetaRows: metaRows, MetaRowBytes: metaRowBytes}
	p.pages = [2]uint32{uint32(4 + rng.IntN(6)), uint32(7 + rng.IntN(12))}
	if p.scattered = rng.IntN(2) == 0; p.scattered {
		p.pages[0] += scatters
		p.pages[1] += scatters
	}
	p.fit = kv.MatchDeployments(&p.prefill, &p.decode, p.pages[0], p.pages[1])
	if !p.fit.Compatible() {
		panic(fmt.Sprint(p.fit.Reasons()))
	}
	drifts := rng.IntN(2) == 0
	place := func(prefix string, i *kv.Instance, together bool) {
		for n, e := range i.Engines {
			at := attachment{instance: prefix, rank: e.Rank, prefill: prefix == "p"}
			if together && n > 0 {
				last := &p.hosts[len(p.hosts)-1]
				last.engines = append(last.engines, at)
				continue
			}
			h := plannedHost{name: fmt.Sprintf("%s%d", prefix, n), engines: []attachment{at}}
			if drifts {
				h.ppm = int64(rng.IntN(40_000) - 20_000)
			}
			p.hosts = append(p.hosts, h)
		}
	}
	place("p", p.fit.Prefill(), rng.IntN(2) == 0)
	place("d", p.fit.Decode(), rng.IntN(2) == 0)
	p.card = cardKind(rng.IntN(int(cardKinds)))
	p.limits = limitsOf(rng)
	p.requests = 1 + rng.IntN(6)
	p.busyFor = time.Duration(500+rng.IntN(3000)) * time.Millisecond
	p.calmAt = p.busyFor + time.Duration(500+rng.IntN(4000))*time.Millisecond
	// Swarm: each day has some kinds of faults, and not the others. Some have none, or
	// few: what fails on them has no excuse.
	rare := []int{4, 4, 4, 12, 0}[rng.IntN(5)]
	for k := range faultKinds {
		if rare > 0 && rng.IntN(rare) == 0 {
			p.kinds = append(p.kinds, k)
		}
	}
	if len(p.kinds) > 0 {
		p.faults = 1 + rng.IntN(8)
	}
	if rng.IntN(3) == 0 {
		p.loss = rng.IntN(200)
	}
	if rng.IntN(3) == 0 {
		p.twice = rng.IntN(200)
	}
	if p.has(oldMessages) {
		p.old = 1 + rng.IntN(60)
	}
	p.slowest = []time.Duration{2 * time.Millisecond, 2 * time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}[rng.IntN(4)]
	slices.Sort(p.kinds)
	return p
}
