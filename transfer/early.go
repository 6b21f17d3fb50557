package transfer

import (
	"slices"
	"time"

	"kvferry/messages"
)

// EarlyVotes keeps the votes that reach a decider for rooms that its caller has
// not opened yet. The engine acknowledges what is kept and gives it to the
// Receiver when the room is opened. It is bounded in number, for each peer
// instance and in age; what does not fit is not acknowledged, and comes again.
//
// Invariants:
//
//  1. len(votes) <= Limits.EarlyVotes, and of one instance <= Limits.EarlyShare.
//  2. votes has one vote of each engine for each room, in the order of coming.
type EarlyVotes struct {
	limits Limits
	votes  []earlyVote
	shares map[string]int // by instance
}

type earlyVote struct {
	room messages.RoomID
	from messages.Engine
	body any
	at   time.Time
}

// NewEarlyVotes keeps nothing yet. l has been resolved.
func NewEarlyVotes(l Limits) *EarlyVotes {
	return &EarlyVotes{limits: l, shares: map[string]int{}}
}

// Keep keeps a vote and returns its acknowledgement; nil when it is no vote or
// there is no room for it. Of one engine the first stands, but that a failure
// replaces landed: it is the later word of who has voted.
func (v *EarlyVotes) Keep(now time.Time, id messages.RoomID, from messages.Engine, body any) any {
	var ack any
	switch b := body.(type) {
	case *messages.Landed:
		if b == nil {
			return nil
		}
		ack = &messages.LandedAck{}
	case *messages.Failed:
		if b == nil {
			return nil
		}
		ack = &messages.FailedAck{}
	default:
		return nil
	}
	v.expire(now)
	i := slices.IndexFunc(v.votes, func(e earlyVote) bool { return e.room == id && e.from == from })
	if i >= 0 {
		if _, failed := body.(*messages.Failed); failed {
			v.votes[i].body = body
		}
		return ack
	}
	if len(v.votes) >= v.limits.EarlyVotes || v.shares[from.Instance] >= v.limits.EarlyShare {
		return nil
	}
	v.votes = append(v.votes, earlyVote{id, from, body, now})
	v.shares[from.Instance]++
	return ack
}

// Take returns the votes for a room, in the order of coming, and keeps them no
// more.
func (v *EarlyVotes) Take(now time.Time, id messages.RoomID) []Received {
	v.expire(now)
	var out []Received
	v.remove(func(e earlyVote) bool {
		if e.room != id {
			return false
		}
		out = append(out, Received{From: e.from, Body: e.body})
		return true
	})
	return out
}

// Len is how many votes are kept.
func (v *EarlyVotes) Len() int { return len(v.votes) }

func (v *EarlyVotes) expire(now time.Time) {
	if len(v.votes) > 0 && now.Sub(v.votes[0].at) >= v.limits.EarlyKeep {
		v.remove(func(e earlyVote) bool { return now.Sub(e.at) >= v.limits.EarlyKeep })
	}
}

func (v *EarlyVotes) remove(gone func(earlyVote) bool) {
	v.votes = slices.DeleteFunc(v.votes, func(e earlyVote) bool {
		if !gone(e) {
			return false
		}
		if v.shares[e.from.Instance]--; v.shares[e.from.Instance] == 0 {
			delete(v.shares, e.from.Instance)
		}
		return true
	})
}
