// Package transfer is the protocol of one room, as two pure machines: Sender,
// one per room in each prefill engine, and Receiver, one per room in each decode
// engine. Each takes the time and one event and returns effects. It has no
// clock, no goroutine and no logger; the actors around it carry the effects out,
// and a simulator may. docs/protocol.md has the states, the transitions and the
// numbered invariants, equal to the code.
package transfer
