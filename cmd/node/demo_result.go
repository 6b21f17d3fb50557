package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// demoResult is what -o json prints.
type demoResult struct {
	Rooms         int           `json:"rooms"`
	Failed        int           `json:"failed"`
	WrongBytes    uint64        `json:"wrong_bytes"`
	Bytes         uint64        `json:"bytes"` // that arrived at decode engines
	Seconds       float64       `json:"seconds"`
	GBPerS        float64       `json:"gb_per_s"`
	P50           float64       `json:"p50_ms"` // first send to decode complete
	P99           float64       `json:"p99_ms"`
	PlannedCopies uint64        `json:"planned_copies"`
	Nodes         []nodeResult  `json:"nodes"`
	Failures      []roomFailure `json:"failures"`

	took []time.Duration // of the rooms that completed
}

type nodeResult struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	PID   int    `json:"pid"`
	Rooms int    `json:"rooms"`
	Bytes uint64 `json:"bytes"` // written by prefill, arrived at decode
}

// roomFailure is a room that did not end well. Room 0 stands for the memory that
// was in no room.
type roomFailure struct {
	Room   uint64 `json:"room"`
	Reason string `json:"reason"`
}

func newDemoResult() *demoResult {
	return &demoResult{Nodes: []nodeResult{}, Failures: []roomFailure{}}
}

// fail notes a room that did not end well.
func (r *demoResult) fail(room uint64, reason string) {
	if room > 0 {
		r.Rooms++
	}
	r.Failed++
	r.Failures = append(r.Failures, roomFailure{room, reason})
}

// add notes a room that ended.
func (r *demoResult) add(room *playedRoom) {
	r.Bytes += room.bytes
	r.PlannedCopies += room.copies
	r.WrongBytes += room.wrong.bytes
	reason := room.reason
	switch {
	case room.death != "" && reason == "":
		reason = room.death
	case room.death != "":
		reason = room.death + "; " + reason
	case reason == "" && room.wrong.bytes > 0:
		reason = fmt.Sprintf("%d wrong bytes, the first at %s", room.wrong.bytes, room.wrong.first)
	}
	if reason != "" {
		r.fail(room.id, reason)
		return
	}
	r.Rooms++
	if room.sent > 0 && room.got > 0 {
		r.took = append(r.took, room.got-room.sent)
	}
}

// summarize computes what follows from the rooms.
func (p *play) summarize() {
	r := p.result
	r.Seconds = p.last.Sub(p.started).Seconds()
	if r.Seconds > 0 {
		r.GBPerS = float64(r.Bytes) / r.Seconds / 1e9
	}
	slices.Sort(r.took)
	r.P50, r.P99 = millis(percentile(r.took, 50)), millis(percentile(r.took, 99))
	slices.SortStableFunc(r.Failures, func(a, b roomFailure) int { return int(int64(a.Room) - int64(b.Room)) })
	for _, n := range p.nodes {
		r.Nodes = append(r.Nodes, nodeResult{n.name, n.role, n.pid, n.rooms, n.bytes})
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile is the smallest value that so many percent do not exceed; 0 of none.
func percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

// failuresShown is how many failures the text lists; -o json has all.
const failuresShown = 20

func (r *demoResult) print(w io.Writer, output string, s *sized) error {
	if output == "json" {
		return writeJSON(w, r)
	}
	fmt.Fprintf(w, "\n%s, prefill %s -> %d x decode %s\n", s.prefill.Model.ID, describe(s.prefill), s.flags.decodeInstances, describe(s.decode))
	total := table{head: []string{"rooms", "moved", "seconds", "GB/s", "p50", "p99", "planned copies", "wrong bytes", "failed"}}
	total.add(fmt.Sprint(r.Rooms), humanBytes(r.Bytes), fmt.Sprintf("%.2f", r.Seconds), fmt.Sprintf("%.2f", r.GBPerS),
		humanMillis(time.Duration(r.P50*float64(time.Millisecond))), humanMillis(time.Duration(r.P99*float64(time.Millisecond))),
		grouped(r.PlannedCopies), grouped(r.WrongBytes), fmt.Sprint(r.Failed))
	if err := total.write(w, "  "); err != nil {
		return err
	}
	fmt.Fprintf(w, "p50 and p99: from the first send of a room to its completion at decode\n\n")
	nodes := table{head: []string{"node", "role", "pid", "rooms", "moved"}}
	for _, n := range r.Nodes {
		nodes.add(n.Name, n.Role, fmt.Sprint(n.PID), fmt.Sprint(n.Rooms), humanBytes(n.Bytes))
	}
	if err := nodes.write(w, "  "); err != nil {
		return err
	}
	if r.Failed == 0 {
		_, err := fmt.Fprintf(w, "\nEvery byte arrived where it belongs.\n")
		return err
	}
	fmt.Fprintln(w, "\nfailures:")
	for _, f := range r.Failures[:min(len(r.Failures), failuresShown)] {
		what := fmt.Sprintf("room %d", f.Room)
		if f.Room == 0 {
			what = "memory"
		}
		fmt.Fprintf(w, "  %s: %s\n", what, f.Reason)
	}
	if more := len(r.Failures) - failuresShown; more > 0 {
		fmt.Fprintf(w, "  and %d more: -o json lists all\n", more)
	}
	return nil
}
