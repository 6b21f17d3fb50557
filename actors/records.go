package actors

import (
	"time"

	"kvferry/messages"
)

// Records keeps how rooms ended, for those who ask after the room's actor is
// gone: a peer that repeats a message, a caller that comes late. It is bounded
// by number and by age, and the oldest goes first.
type Records struct {
	limit int
	keep  time.Duration
	by    map[messages.RoomID]record
	last  map[uint64]uint32 // the newest attempt of each room in by
	order []messages.RoomID // as they were put; begin is the first that may still be in by
	begin int
}

type record struct {
	outcome *messages.Outcome
	peer    string // the instance on the other side, "" where it was not known
	at      time.Time
}

// NewRecords keeps at most limit records, each for keep.
func NewRecords(limit int, keep time.Duration) *Records {
	return &Records{limit: limit, keep: keep, by: map[messages.RoomID]record{}, last: map[uint64]uint32{}}
}

// Put keeps an outcome. The first one stands: a room has one outcome.
func (r *Records) Put(now time.Time, id messages.RoomID, peer string, o *messages.Outcome) {
	r.expire(now)
	if _, ok := r.by[id]; ok {
		return
	}
	if len(r.by) >= r.limit {
		r.dropOldest()
	}
	r.by[id] = record{outcome: o, peer: peer, at: now}
	r.order = append(r.order, id)
	if last, ok := r.last[id.Room]; !ok || last < id.Attempt {
		r.last[id.Room] = id.Attempt
	}
}

// Newest is the newest attempt of a room that is kept.
func (r *Records) Newest(room uint64) (uint32, bool) {
	attempt, ok := r.last[room]
	return attempt, ok
}

// Get is the outcome of a room, nil when none is kept.
func (r *Records) Get(now time.Time, id messages.RoomID) *messages.Outcome {
	r.expire(now)
	return r.by[id].outcome
}

// Len is how many are kept.
func (r *Records) Len() int { return len(r.by) }

func (r *Records) expire(now time.Time) {
	for r.begin < len(r.order) && now.Sub(r.by[r.order[r.begin]].at) >= r.keep {
		r.dropOldest()
	}
}

func (r *Records) dropOldest() {
	id := r.order[r.begin]
	delete(r.by, id)
	if r.last[id.Room] == id.Attempt {
		delete(r.last, id.Room)
	}
	r.begin++
	if r.begin > len(r.order)/2 {
		r.order = append(r.order[:0], r.order[r.begin:]...)
		r.begin = 0
	}
}
