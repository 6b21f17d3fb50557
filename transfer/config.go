package transfer

import (
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// SenderConfig is one room as one prefill engine knows it when it begins.
type SenderConfig struct {
	Self   messages.Engine
	Room   messages.RoomID
	Limits Limits

	// Announced: the caller of the prefill leg has opened the room. False when a
	// grant came first; Announce is then an event of its own (Open).
	Announced bool

	// Wait is how long the room may wait for the other side. 0: Limits.Wait.
	Wait time.Duration
}

// ReceiverConfig is one room as one decode engine knows it when it begins.
type ReceiverConfig struct {
	Self      messages.Engine
	Room      messages.RoomID
	Limits    Limits
	Prefill   string // the instance that computes it
	PrefillDP int    // the DP rank there

	// Prefix tokens are held already; [Prefix, Length) is wanted, into At.
	Prefix, Length uint64
	At             kv.Placement

	// Wait is how long the room may wait for prefill. 0: Limits.Wait.
	Wait time.Duration

	// NewGrantID draws the id of a grant. Chance is an argument.
	NewGrantID func() rdma.GrantID
}

// Open is the caller of the prefill leg announcing a room that a grant had
// opened before. (Sender)
type Open struct {
	Wait time.Duration // 0: Limits.Wait
}

func (Open) event() {}

// Machine is what an actor drives.
type Machine interface {
	// Step takes one event at a time that never goes back, and returns what is to
	// be done, in order.
	Step(now time.Time, ev Event) []Effect

	// Deadline is when the next Tick is due; the zero time for never.
	Deadline() time.Time

	// State names the state, for people and tests.
	State() string
}
