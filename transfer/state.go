package transfer

import (
	"fmt"
	"time"
)

// SenderState is where a Sender is.
type SenderState uint8

// The states of a Sender.
const (
	SenderWaiting  SenderState = iota // nothing is to be written yet: a grant or a chunk is missing
	SenderWriting                     // some of what it owes is not written
	SenderVoted                       // it has said done for all that it owes
	SenderDraining                    // the room has ended and its writes have not
	SenderQuiet                       // no write of it can move; others are being told
	SenderClosed                      // nothing is left to do
)

// ReceiverState is where a Receiver is.
type ReceiverState uint8

// The states of a Receiver.
const (
	ReceiverWaiting  ReceiverState = iota // the instances are not paired yet
	ReceiverGranting                      // writers are granted or excused; no byte has come
	ReceiverWriting                       // bytes come
	ReceiverChecking                      // all has landed; the metadata row is being read
	ReceiverRevoking                      // the grants are being revoked, before the vote
	ReceiverVoted                         // it has voted landed
	ReceiverDraining                      // the room has ended and not all grants are closed
	ReceiverTelling                       // the pages are the engine's again; others are being told
	ReceiverClosed                        // nothing is left to do
)

var (
	senderStates   = [...]string{"waiting", "writing", "voted", "draining", "quiet", "closed"}
	receiverStates = [...]string{"waiting", "granting", "writing", "checking", "revoking", "voted", "draining", "telling", "closed"}
)

func (s SenderState) String() string   { return senderStates[s] }
func (s ReceiverState) String() string { return receiverStates[s] }

// senderMoves and receiverMoves are the legal transitions, and when each is
// made. docs/protocol.md has the same tables. Whatever the machines do goes
// through them.
var senderMoves = map[[2]SenderState]string{
	{SenderWaiting, SenderWriting}:  "a grant and a chunk are there",
	{SenderWaiting, SenderQuiet}:    "the room fails, and nothing was posted",
	{SenderWaiting, SenderClosed}:   "excused by all that can answer; or the room fails and nobody is to be told",
	{SenderWriting, SenderVoted}:    "the last done that it owes is said",
	{SenderWriting, SenderDraining}: "the room fails, and writes were posted",
	{SenderWriting, SenderQuiet}:    "the room fails, and nothing was posted",
	{SenderVoted, SenderWriting}:    "a receiver misses arrivals",
	{SenderVoted, SenderDraining}:   "the outcome is failed or unknown, and writes were posted",
	{SenderVoted, SenderQuiet}:      "the outcome is failed or unknown, and nothing was posted",
	{SenderVoted, SenderClosed}:     "the outcome is complete",
	{SenderDraining, SenderQuiet}:   "the transport has quiesced the room",
	{SenderQuiet, SenderClosed}:     "all is told, or told for long enough",
}

var receiverMoves = map[[2]ReceiverState]string{
	{ReceiverWaiting, ReceiverGranting}:  "the instances are paired",
	{ReceiverWaiting, ReceiverTelling}:   "the room is dropped before it is paired",
	{ReceiverGranting, ReceiverWriting}:  "the first byte arrives, or a writer is done",
	{ReceiverGranting, ReceiverDraining}: "the room fails",
	{ReceiverWriting, ReceiverChecking}:  "every named writer is done and has arrived, and there is a metadata row",
	{ReceiverWriting, ReceiverRevoking}:  "every named writer is done and has arrived, and there is no metadata row",
	{ReceiverWriting, ReceiverDraining}:  "the room fails",
	{ReceiverChecking, ReceiverRevoking}: "the metadata row is of this room and attempt",
	{ReceiverChecking, ReceiverDraining}: "the room fails",
	{ReceiverRevoking, ReceiverVoted}:    "every revoke is answered",
	{ReceiverRevoking, ReceiverDraining}: "the room fails",
	{ReceiverVoted, ReceiverTelling}:     "the outcome is complete",
	{ReceiverVoted, ReceiverDraining}:    "the outcome is failed or unknown",
	{ReceiverDraining, ReceiverTelling}:  "every grant is closed",
	{ReceiverTelling, ReceiverClosed}:    "all is told, or told for long enough",
}

// deadline is a time at which something is due; the zero value is never.
type deadline struct{ at time.Time }

func (d *deadline) set(at time.Time)        { d.at = at }
func (d *deadline) clear()                  { d.at = time.Time{} }
func (d *deadline) isSet() bool             { return !d.at.IsZero() }
func (d *deadline) passed(n time.Time) bool { return d.isSet() && !n.Before(d.at) }

// earliest is the first of the times that are set.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

func illegal(machine string, from, to fmt.Stringer) string {
	return fmt.Sprintf("transfer: %s: no transition from %s to %s", machine, from, to)
}
