package pairing

import "time"

// Link is one side of a pair of node incarnations. Not safe for concurrent use.
type Link struct {
	c LinkConfig
}

// NewLink makes the Link to one life of a peer. Its Deadline is now: the first
// Tick says hello. It panics on a config that no caller may give: no Nonce, no
// peer, or this node itself as the peer.
func NewLink(now time.Time, c LinkConfig) *Link { return &Link{c: c} }

// Step takes one event at a time that never goes back, and returns what is to be
// done, in order. After Closed nothing is.
func (l *Link) Step(now time.Time, ev LinkEvent) []LinkEffect { return nil }

// Deadline is when the next Tick is due; the zero time for never.
func (l *Link) Deadline() time.Time { return time.Time{} }

// State names the state, for people and tests.
func (l *Link) State() string { return "" }
