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
