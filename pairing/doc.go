// Package pairing decides who may talk to whom, as two pure machines and one
// conversion.
//
// A Link is one side of a pair of node incarnations: it numbers what goes out,
// takes what fits, agrees on generations of the data connection with its peer,
// and watches whether the peer answers. It is the only sender and the only
// target of Envelopes between the two.
//
// A Directory is what one node knows of all engines: it tells the others which
// are attached here, takes what they tell, gathers rosters until they are whole,
// and says which instances work together.
//
// Describe and Parse convert between an engine as kv knows it and as the wire
// has it.
//
// Each machine takes the time and one event and returns effects, in order. It
// has no clock, no goroutine and no logger, and the same events give the same
// effects. docs/protocol-pairing.md has the states and transitions, equal to the
// code.
package pairing
