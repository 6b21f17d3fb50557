package pairing

import "time"

// Directory is what one node knows of all engines. Not safe for concurrent use.
type Directory struct {
	c DirectoryConfig
}

// NewDirectory makes the Directory of a node that knows nobody.
func NewDirectory(c DirectoryConfig) *Directory { return &Directory{c: c} }

// Step takes one event at a time that never goes back, and returns what is to be
// done, in order.
func (d *Directory) Step(now time.Time, ev DirectoryEvent) []DirectoryEffect { return nil }

// Deadline is when the next Tick is due; the zero time for never.
func (d *Directory) Deadline() time.Time { return time.Time{} }

// Pairs is every pair of a prefill and a decode instance that an engine of this
// node is part of, ordered by name.
func (d *Directory) Pairs() []PairStatus { return nil }

// Engines is every engine that is known, ordered by instance, rank and
// incarnation.
func (d *Directory) Engines() []EngineStatus { return nil }
