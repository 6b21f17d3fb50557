package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"
)

// demoRoom is one room that the demo plays.
type demoRoom struct {
	id      uint64        // from 1
	arrival time.Duration // since the play began; 0 in a closed loop
	tokens  uint64
	prefix  uint64
}

// quantile is a value of a distribution: the part `at` of it is below value.
type quantile struct{ at, value float64 }

// The made workload follows the conversation trace that Mooncake published with
// its paper (12,031 requests of one hour of a chat service): these figures are
// computed from it, and a test computes them again.
var (
	// mooncakeTokens is the length of the prompts: mean 12,035, median 6,909. The
	// distribution has a floor, the system prompt, and a long tail; no common
	// distribution has both, so the quantiles themselves are used, with straight
	// lines between them.
	mooncakeTokens = []quantile{
		{0, 891}, {0.05, 901}, {0.10, 964}, {0.20, 1662}, {0.30, 3263}, {0.40, 4993}, {0.50, 6909}, {0.60, 9570},
		{0.70, 13196}, {0.80, 17869}, {0.90, 27367}, {0.95, 39552}, {0.97, 52219}, {0.99, 85401}, {0.999, 121301}, {1, 126195},
	}

	// mooncakeShared is how many of the requests of each tenth of the lengths
	// begin as an earlier one did beyond the first 512 tokens, which all of them
	// share. It is by length because follow-up turns are longer than first ones.
	mooncakeShared = [10]float64{0.021, 0.187, 0.527, 0.333, 0.368, 0.449, 0.505, 0.530, 0.506, 0.445}

	// mooncakeReuse is the part of such a prompt that is known: most are a
	// conversation that goes on, and nearly whole.
	mooncakeReuse = []quantile{
		{0, 0.015}, {0.05, 0.148}, {0.10, 0.288}, {0.20, 0.519}, {0.30, 0.652}, {0.40, 0.765}, {0.50, 0.847},
		{0.60, 0.905}, {0.70, 0.937}, {0.80, 0.961}, {0.90, 0.981}, {0.95, 0.990}, {1, 1},
	}
)

// valueAt is the value below which the part u in [0, 1) of a distribution is.
func valueAt(qs []quantile, u float64) float64 {
	for i := 1; i < len(qs); i++ {
		if lo, hi := qs[i-1], qs[i]; u <= hi.at {
			return lo.value + (hi.value-lo.value)*(u-lo.at)/(hi.at-lo.at)
		}
	}
	return qs[len(qs)-1].value
}

// made makes an endless workload from a seed. Requests arrive independently of
// each other, one a second on average.
type made struct {
	rng *rand.Rand
	at  float64 // seconds
	any bool
}

func newMade(seed uint64) *made {
	return &made{rng: rand.New(rand.NewPCG(seed, 0x6b76666572727931))}
}

// Next is the next request. It never fails.
func (m *made) Next() (traced, error) {
	u := m.rng.Float64()
	tokens := uint64(valueAt(mooncakeTokens, u))
	prefix := uint64(traceBlock)
	shared, part := m.rng.Float64(), valueAt(mooncakeReuse, m.rng.Float64())
	if shared < mooncakeShared[int(u*10)] {
		prefix = max(prefix, uint64(part*float64(tokens))/traceBlock*traceBlock)
		if part > 0.995 {
			prefix = tokens // asked again, word for word
		}
	}
	if !m.any {
		prefix = 0 // nothing came before
	}
	r := traced{arrival: time.Duration(m.at * float64(time.Second)), tokens: tokens, prefix: min(prefix, tokens)}
	m.any = true
	m.at += m.rng.ExpFloat64()
	return r, nil
}

// scaled multiplies the token counts, and keeps a request a request.
func (r traced) scaled(scale float64) traced {
	tokens := max(1, uint64(math.Round(float64(r.tokens)*scale)))
	prefix := uint64(float64(r.prefix) * scale)
	if r.prefix == r.tokens {
		prefix = tokens
	}
	r.tokens, r.prefix = tokens, min(prefix, tokens)
	return r
}

// source is a trace or a made workload.
type source interface{ Next() (traced, error) }

// takeRooms takes n rooms of a source. all: at most n, as many as there are.
func takeRooms(s source, n int, all bool, scale float64) ([]demoRoom, error) {
	var rooms []demoRoom
	for len(rooms) < n {
		r, err := s.Next()
		if errors.Is(err, io.EOF) {
			if all && len(rooms) > 0 {
				break
			}
			return nil, fmt.Errorf("the trace has %d requests, want %d (--rooms)", len(rooms), n)
		}
		if err != nil {
			return nil, err
		}
		r = r.scaled(scale)
		rooms = append(rooms, demoRoom{id: uint64(len(rooms)) + 1, arrival: r.arrival, tokens: r.tokens, prefix: r.prefix})
	}
	return rooms, nil
}

// pace stretches the arrivals to so many rooms a second on average, in the
// rhythm of the source. 0: all are there at once.
func pace(rooms []demoRoom, rate float64) {
	if len(rooms) == 0 {
		return
	}
	first, span := rooms[0].arrival, rooms[len(rooms)-1].arrival-rooms[0].arrival
	for i := range rooms {
		switch {
		case rate == 0:
			rooms[i].arrival = 0
		case span == 0:
			rooms[i].arrival = time.Duration(float64(i) / rate * float64(time.Second))
		default:
			part := float64(rooms[i].arrival-first) / float64(span)
			rooms[i].arrival = time.Duration(part * float64(len(rooms)-1) / rate * float64(time.Second))
		}
	}
}

const (
	madeRooms  = 128 // enough for a p99 that means something
	traceRooms = 200
	madeScale  = 0.1 // of the token counts: memory of a small machine
	roomsMax   = 1 << 20
)

// readRooms is the first rooms of the trace, or of the made workload. rooms 0: as
// many of the trace as there are, at most traceRooms.
func readRooms(file string, rooms int, scale float64, seed uint64) ([]demoRoom, error) {
	if file == "" {
		return takeRooms(newMade(seed), rooms, false, scale)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	defer f.Close() // only read
	t, err := newTraceReader(file, f)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	all := rooms == 0
	if all {
		rooms = traceRooms
	}
	out, err := takeRooms(t, rooms, all, scale)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	return out, nil
}
