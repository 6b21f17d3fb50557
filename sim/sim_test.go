package sim

import (
	"flag"
	"testing"
)

var (
	seeds = flag.Uint64("seeds", 300, "how many seeds are played")
	base  = flag.Uint64("base", 1, "the first of them")
)

func TestSeeds(t *testing.T) {
	var events, rooms, complete int
	failed := 0
	for s := *base; s < *base+*seeds; s++ {
		r := Run(s, Options{})
		events, rooms, complete = events+r.Events, rooms+r.Rooms, complete+r.Complete
		if r.Failed != nil {
			failed++
			if failed < 30 {
				t.Errorf("seed %d: %v", s, r.Failed)
			}
		}
	}
	t.Logf("%d events, %d attempts, %d complete, %d failed", events, rooms, complete, failed)
}

var story = flag.Uint64("story", 0, "tell this seed")

func TestStory(t *testing.T) {
	if *story == 0 {
		t.Skip("no seed: -story N")
	}
	r := Run(*story, Options{Story: func(l Line) { t.Logf("%9.3f ms %-12s %-4s %-6s %s", l.Ms, l.Who, l.Peer, l.Room, l.What) }})
	t.Log(r.Failed)
}

// The same seed plays the same day.
func TestSameSeedSameDay(t *testing.T) {
	for s := uint64(1); s <= 60; s++ {
		var lines [2][]Line
		var days [2]Result
		for i := range days {
			days[i] = Run(s, Options{Story: func(l Line) { lines[i] = append(lines[i], l) }})
		}
		if days[0].Digest != days[1].Digest || days[0].Events != days[1].Events {
			t.Errorf("seed %d: digests %x and %x, %d and %d events", s, days[0].Digest, days[1].Digest, days[0].Events, days[1].Events)
		}
		for k := range min(len(lines[0]), len(lines[1])) {
			if lines[0][k] != lines[1][k] {
				t.Fatalf("seed %d: line %d is %+v, and then %+v", s, k, lines[0][k], lines[1][k])
			}
		}
		if r := Run(s, Options{}); r.Digest != days[0].Digest {
			t.Errorf("seed %d: the day is another when nobody listens", s)
		}
	}
}
