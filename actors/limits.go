package actors

import (
	"fmt"
	"time"
)

// How the lanes of a node take turns.
const (
	// lanesBehind is how long a mailbox waits for a lane that is there: as long as
	// waking another processor takes, some tens of microseconds.
	lanesBehind = 20 * time.Microsecond

	// lanesGuard is how long nothing may be taken from the queue before another lane
	// begins. What waits that long waits for an actor that blocks, which none should.
	lanesGuard = time.Millisecond

	// lanesThroughput is how many messages a mailbox runs before it lets other
	// goroutines go first: the runtime's default.
	lanesThroughput = 300
)

// EngineLimits bounds what one engine actor holds. A zero field takes its
// default; the zero value is ready to use.
type EngineLimits struct {
	// Rooms is how many rooms may be open at once. Each costs an actor and a
	// machine, some kilobytes; 4096 is more than one engine decodes at once.
	Rooms int

	// Waiting is how many callers may wait for pages. More are refused with "no
	// capacity", so that whoever routes requests learns it at once.
	Waiting int

	// UnopenedRooms is how many rooms of a prefill engine may have been opened by
	// a grant that the caller of the prefill leg has not followed. They hold no
	// pages here.
	UnopenedRooms int

	// UnannouncedShare is the part of each decode pool (pages, slots, metadata rows),
	// in percent, that rooms may hold which prefill has not announced. With less than 100, two full pools
	// never wait for each other: rooms that prefill works on still get pages.
	UnannouncedShare int

	// Records is how many outcomes are remembered for those who ask late, and
	// RecordsKeep for how long. A peer repeats for less than a minute.
	Records     int
	RecordsKeep time.Duration

	// Wait is how long a caller waits for pages that does not say so itself.
	Wait time.Duration
}

// Resolve is l with defaults in the zero fields, or what is wrong with it.
func (l EngineLimits) Resolve() (EngineLimits, error) {
	for _, f := range []struct {
		name  string
		value *int
		def   int
		max   int
	}{
		{"Rooms", &l.Rooms, 4096, 1 << 20},
		{"Waiting", &l.Waiting, 4096, 1 << 20},
		{"UnopenedRooms", &l.UnopenedRooms, 1024, 1 << 20},
		{"UnannouncedShare", &l.UnannouncedShare, 75, 100},
		{"Records", &l.Records, 65536, 1 << 24},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 1 || *f.value > f.max {
			return l, fmt.Errorf("engine limits: %s is %d, want 1 to %d", f.name, *f.value, f.max)
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"RecordsKeep", &l.RecordsKeep, 2 * time.Minute},
		{"Wait", &l.Wait, 30 * time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 0 {
			return l, fmt.Errorf("engine limits: %s is %v, want more than 0", f.name, *f.value)
		}
	}
	return l, nil
}
