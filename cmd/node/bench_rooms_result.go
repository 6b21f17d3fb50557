package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"kvferry/cmd/node/bench"
)

// roomsResult is what -o json prints. Figures are medians of the rounds, fractions
// and factors ratios of medians.
type roomsResult struct {
	Provider      string            `json:"provider"`
	Model         string            `json:"model"`
	Tokens        uint64            `json:"tokens"`
	RoomBytes     uint64            `json:"room_bytes"`
	Rounds        int               `json:"rounds"`
	RemotingRTTUS float64           `json:"remoting_rtt_us"` // p50, one request in flight
	LimitGBPerS   float64           `json:"limit_gb_per_s,omitempty"`
	InFlight      []roomsCaseResult `json:"in_flight"`
}

// roomsCaseResult is one number of rooms in flight.
type roomsCaseResult struct {
	InFlight      int     `json:"in_flight"`
	RoomsPerS     float64 `json:"rooms_per_s"`
	P50US         float64 `json:"p50_us"`
	P99US         float64 `json:"p99_us"`
	CPUUSPerRoom  float64 `json:"cpu_us_per_room"` // of both nodes
	RemotingPerS  float64 `json:"remoting_per_s,omitempty"`
	CPUUSPerReq   float64 `json:"cpu_us_per_request,omitempty"` // of remoting, both nodes
	RateFraction  float64 `json:"rate_fraction,omitempty"`      // rooms_per_s / remoting_per_s
	LatencyFactor float64 `json:"latency_factor"`               // p50_us / remoting_rtt_us

	GBPerS      float64 `json:"gb_per_s"`
	LimitGBPerS float64 `json:"limit_gb_per_s,omitempty"` // of bench transport
	Fraction    float64 `json:"fraction,omitempty"`

	Messages []roomsMessages `json:"messages,omitempty"`
	Rounds   []roomsRound    `json:"rounds"`
}

// roomsRound is one round.
type roomsRound struct {
	RoomsPerS    float64 `json:"rooms_per_s"`
	P50US        float64 `json:"p50_us"`
	P99US        float64 `json:"p99_us"`
	RemotingPerS float64 `json:"remoting_per_s,omitempty"`
}

// roomsMessages is how often a kind of actor hears a message, for each room.
type roomsMessages struct {
	Node    string  `json:"node"`
	What    string  `json:"what"` // receiver <- message
	PerRoom float64 `json:"per_room"`
}

// compare orders by node and name: who hears what stands together.
func (m roomsMessages) compare(o roomsMessages) int {
	return cmp.Or(cmp.Compare(m.Node, o.Node), cmp.Compare(m.What, o.What))
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// middle is the median of something of each round.
func middle[T any](of []T, what func(T) float64) float64 {
	var all []float64
	for _, v := range of {
		all = append(all, what(v))
	}
	return bench.Median(all)
}

// over is a ratio; 0 where there is nothing to compare with.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (p *roomsPlay) result() *roomsResult {
	r := &roomsResult{
		Provider: p.flags.provider, Model: p.deployment.Model.ID, Tokens: p.tokens, RoomBytes: p.bytes, Rounds: p.flags.rounds,
		RemotingRTTUS: middle(p.rtt, microseconds), LimitGBPerS: bench.Median(p.limits),
	}
	perS := func(f roomFigures) float64 { return f.PerS }
	for _, c := range p.cases {
		one := roomsCaseResult{
			InFlight: c.inFlight, RoomsPerS: middle(c.rooms, perS), CPUUSPerRoom: middle(c.roomCPU, microseconds),
			CPUUSPerReq:  middle(c.requestCPU, microseconds),
			P50US:        middle(c.rooms, func(f roomFigures) float64 { return microseconds(f.P50) }),
			P99US:        middle(c.rooms, func(f roomFigures) float64 { return microseconds(f.P99) }),
			RemotingPerS: middle(c.remoting, perS), LimitGBPerS: r.LimitGBPerS, Messages: c.messages,
		}
		one.RateFraction, one.LatencyFactor = over(one.RoomsPerS, one.RemotingPerS), over(one.P50US, r.RemotingRTTUS)
		one.GBPerS = one.RoomsPerS * float64(p.bytes) / 1e9
		one.Fraction = over(one.GBPerS, one.LimitGBPerS)
		for i, f := range c.rooms {
			round := roomsRound{RoomsPerS: f.PerS, P50US: microseconds(f.P50), P99US: microseconds(f.P99)}
			if i < len(c.remoting) {
				round.RemotingPerS = c.remoting[i].PerS
			}
			one.Rounds = append(one.Rounds, round)
		}
		r.InFlight = append(r.InFlight, one)
	}
	return r
}

// head is what holds for all cases.
func (r *roomsResult) head() string {
	return fmt.Sprintf("%s, rooms of %s (%s tokens of %s), 2 processes", r.Provider, humanBytes(r.RoomBytes), grouped(r.Tokens), r.Model)
}

func (r *roomsResult) print(w io.Writer, output string) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	if _, err := fmt.Fprintf(w, "%s; medians of %d round%s\nremoting: round trip %.0f us\n\n",
		r.head(), r.Rounds, plural(r.Rounds), r.RemotingRTTUS); err != nil {
		return err
	}
	t := table{head: []string{"IN FLIGHT", "ROOMS/S", "P50 US", "P99 US", "ROUND TRIPS", "CPU US", "GB/S"}}
	byBytes := r.LimitGBPerS > 0
	if byBytes {
		t.head = append(t.head, "LIMIT", "FRACTION")
	} else {
		t.head = append(t.head, "REMOTING/S", "CPU US", "FRACTION")
	}
	for i := range r.InFlight {
		c := &r.InFlight[i]
		cells := []string{
			fmt.Sprint(c.InFlight), humanRoomsPerS(c.RoomsPerS), grouped(uint64(c.P50US)), grouped(uint64(c.P99US)),
			fmt.Sprintf("%.1f", c.LatencyFactor), grouped(uint64(c.CPUUSPerRoom)), humanRate(c.GBPerS),
		}
		if byBytes {
			cells = append(cells, humanRate(c.LimitGBPerS), fmt.Sprintf("%.2f", c.Fraction))
		} else {
			cells = append(cells, grouped(uint64(c.RemotingPerS)), humanRate(c.CPUUSPerReq), fmt.Sprintf("%.3f", c.RateFraction))
		}
		t.add(cells...)
	}
	if err := t.write(w, ""); err != nil {
		return err
	}
	return r.printMessages(w)
}

// humanRoomsPerS is a rate with three digits, or whole.
func humanRoomsPerS(v float64) string {
	if v >= 100 {
		return grouped(uint64(v))
	}
	return humanRate(v)
}

// printMessages lists what was counted, and how much it comes to.
func (r *roomsResult) printMessages(w io.Writer) error {
	for i := range r.InFlight {
		c := &r.InFlight[i]
		if len(c.Messages) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "\nmessages of a room, %d in flight:\n", c.InFlight); err != nil {
			return err
		}
		t, sum := table{head: []string{"NODE", "MESSAGE", "A ROOM"}}, 0.0
		for _, m := range c.Messages {
			sum += m.PerRoom
			if m.PerRoom >= 0.01 { // the rest is of the pair of nodes
				t.add(m.Node, m.What, fmt.Sprintf("%.2f", m.PerRoom))
			}
		}
		t.add("both", "all", fmt.Sprintf("%.1f", sum))
		if err := t.write(w, "  "); err != nil {
			return err
		}
	}
	return nil
}
