package actors

import (
	"time"

	"kvferry/messages"
)

// Records keeps how rooms ended, for those who ask after the room's actor is
// gone: a peer that repeats a message, a caller that comes late. It is bounded by
// number and by age. When it is full, the peer instance that has most of it loses
// its oldest: one peer with many short rooms does not push out what others need.
//
// Invariant: each room of by is once in the shelf of its peer, in the order in
// which they were put.
type Records struct {
	limit   int
	keep    time.Duration
	by      map[messages.RoomID]record
	last    map[uint64]uint32 // the newest attempt of each room in by
	shelves []*shelf          // one per peer; few
}

type record struct {
	outcome *messages.Outcome
	at      time.Time
}

// shelf is the records of the rooms with one peer instance, "" where it was not
// known.
type shelf struct {
	peer  string
	order []messages.RoomID
}

// NewRecords keeps at most limit records, each for keep.
func NewRecords(limit int, keep time.Duration) *Records {
	return &Records{limit: limit, keep: keep, by: map[messages.RoomID]record{}, last: map[uint64]uint32{}}
}

// Put keeps an outcome of a room with a peer instance. The first one stands: a
// room has one outcome.
func (r *Records) Put(now time.Time, id messages.RoomID, peer string, o *messages.Outcome) {
	r.expire(now)
	if _, ok := r.by[id]; ok {
		return
	}
	if len(r.by) >= r.limit {
		r.dropOldest(r.fullest())
	}
	r.by[id] = record{outcome: o, at: now}
	s := r.shelf(peer)
	s.order = append(s.order, id)
	if last, ok := r.last[id.Room]; !ok || last < id.Attempt {
		r.last[id.Room] = id.Attempt
	}
}

// Get is the outcome of a room, nil when none is kept.
func (r *Records) Get(now time.Time, id messages.RoomID) *messages.Outcome {
	r.expire(now)
	return r.by[id].outcome
}

// Newest is the newest attempt of a room that is kept.
func (r *Records) Newest(room uint64) (uint32, bool) {
	attempt, ok := r.last[room]
	return attempt, ok
}

// Len is how many are kept.
func (r *Records) Len() int { return len(r.by) }

func (r *Records) shelf(peer string) *shelf {
	for _, s := range r.shelves {
		if s.peer == peer {
			return s
		}
	}
	s := &shelf{peer: peer}
	r.shelves = append(r.shelves, s)
	return s
}

func (r *Records) fullest() *shelf {
	var most *shelf
	for _, s := range r.shelves {
		if most == nil || len(s.order) > len(most.order) {
			most = s
		}
	}
	return most
}

// expire drops what is too old, and the shelves of peers that have nothing left.
func (r *Records) expire(now time.Time) {
	kept := r.shelves[:0]
	for _, s := range r.shelves {
		for len(s.order) > 0 && now.Sub(r.by[s.order[0]].at) >= r.keep {
			r.dropOldest(s)
		}
		if len(s.order) > 0 {
			kept = append(kept, s)
		}
	}
	clear(r.shelves[len(kept):])
	r.shelves = kept
}

func (r *Records) dropOldest(s *shelf) {
	id := s.order[0]
	s.order = s.order[1:]
	delete(r.by, id)
	if r.last[id.Room] == id.Attempt {
		delete(r.last, id.Room)
	}
}
