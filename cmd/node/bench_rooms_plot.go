package main

import (
	"fmt"
	"slices"
)

// picture is how many rooms end, and how long each takes, by rooms in flight.
func (r *roomsResult) picture() *plot {
	rate := panel{x: "rooms in flight, logarithmic", y: "a second", xText: grouped, log: true, series: []series{
		{name: "rooms"}, {name: "limit: small requests of the remoting", dashed: true},
	}}
	byBytes := r.LimitGBPerS > 0
	if byBytes {
		rate.y, rate.log, rate.series = "GB/s", false, []series{{name: "rooms"}, {name: "limit: bench transport", dashed: true}}
	}
	times := panel{x: rate.x, y: "ms from grant to complete", xText: grouped, log: true, series: []series{
		{name: "p50"}, {name: "p99"}, {name: "round trip of the remoting, nothing else in flight", dashed: true},
	}}
	for i := range r.InFlight {
		c := &r.InFlight[i]
		x := uint64(c.InFlight)
		rooms := pointOf(x, c.RoomsPerS, c.Rounds, func(r *roomsRound) float64 { return r.RoomsPerS })
		limit := pointOf(x, c.RemotingPerS, c.Rounds, func(r *roomsRound) float64 { return r.RemotingPerS })
		if byBytes {
			rooms = rooms.times(float64(r.RoomBytes) / 1e9)
			limit = point{x: x, y: c.LimitGBPerS}
		}
		rate.series[0].add(rooms)
		rate.series[1].add(limit)
		times.series[0].add(pointOf(x, c.P50US, c.Rounds, func(r *roomsRound) float64 { return r.P50US }).times(1e-3))
		times.series[1].add(pointOf(x, c.P99US, c.Rounds, func(r *roomsRound) float64 { return r.P99US }).times(1e-3))
		times.series[2].add(point{x: x, y: r.RemotingRTTUS / 1000})
	}
	return &plot{
		title: r.head(), panels: []panel{rate, times},
		note: fmt.Sprintf("medians of %d round%s, bars from the least to the most", r.Rounds, plural(r.Rounds)),
	}
}

// add adds a point in its place: cases may come in any order.
func (s *series) add(p point) {
	i, _ := slices.BinarySearchFunc(s.points, p, func(a, b point) int { return int(a.x) - int(b.x) })
	s.points = slices.Insert(s.points, i, p)
}

// times is the point in another unit.
func (p point) times(unit float64) point {
	return point{x: p.x, y: p.y * unit, low: p.low * unit, high: p.high * unit}
}
