package main

import (
	"time"

	"kvferry/kv"
)

// Bench rooms starts its nodes as `kvferry bench rooms-node` and talks to each over
// its standard input and output: one JSON object a line, an order in, an answer out.
// Only of a loop at prefill there are two orders for one answer. A node that reads
// the end of its input ends.

// Orders.
const (
	doStart  = "start"  // start a node and attach its engine
	doPair   = "pair"   // wait for the pairing, and for the other's remoting
	doRooms  = "rooms"  // move rooms: at decode for so long, at prefill until told
	doUntil  = "until"  // the loop at prefill ends before this room
	doEcho   = "echo"   // at decode: requests to prefill's remoting, for so long
	doUsage  = "usage"  // say what processor time was used
	doStop   = "stop"   // detach and end
	doFailed = "failed" // only as an answer: the order failed, and the process ends
)

// roomsOrder is what the parent tells a node.
type roomsOrder struct {
	Do string `json:"do"`

	// start
	Role       string         `json:"role,omitempty"` // prefill or decode
	Cluster    string         `json:"cluster,omitempty"`
	Join       string         `json:"join,omitempty"`
	Provider   string         `json:"provider,omitempty"`
	Deployment *kv.Deployment `json:"deployment,omitempty"`
	Pages      uint32         `json:"pages,omitempty"`
	OpenRooms  int            `json:"open_rooms,omitempty"` // that the engine may have
	Scatter    bool           `json:"scatter,omitempty"`    // hold every other page
	Messages   bool           `json:"messages,omitempty"`   // be able to count them

	// pair, echo
	Peer string `json:"peer,omitempty"` // of remoting

	// rooms, echo
	First    uint64        `json:"first,omitempty"` // number of the first room
	Tokens   uint64        `json:"tokens,omitempty"`
	InFlight int           `json:"in_flight,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
	Check    bool          `json:"check,omitempty"`   // fill rooms, and look at every byte
	Count    bool          `json:"count,omitempty"`   // messages
	Profile  string        `json:"profile,omitempty"` // file

	// until
	Until uint64 `json:"until,omitempty"`
}

// roomsAnswer answers one order.
type roomsAnswer struct {
	Did   string `json:"did"`
	Error string `json:"error,omitempty"` // failed

	// start
	Gossip   string `json:"gossip,omitempty"`
	Remoting string `json:"remoting,omitempty"`

	// rooms, echo
	Next     uint64            `json:"next,omitempty"` // the first number that was not used
	Figures  roomFigures       `json:"figures"`
	CPU      time.Duration     `json:"cpu,omitempty"`      // of this process, for the loop; usage: so far
	Rooms    int               `json:"rooms,omitempty"`    // or requests, that ended
	Messages map[string]uint64 `json:"messages,omitempty"` // by receiver and type
}

// roomFigures is what a loop came to.
type roomFigures struct {
	PerS float64       `json:"per_s,omitempty"`
	P50  time.Duration `json:"p50,omitempty"`
	P99  time.Duration `json:"p99,omitempty"`
}
