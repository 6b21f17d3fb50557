package transport

import (
	"slices"

	"kvferry/transport/rdma"
)

// roundRobin holds writes that wait for a window, and gives them one room after
// another, so that a room with much to send does not keep the others waiting.
// Writes of one room keep their order.
//
// Invariant: rooms lists each tag of waiting once, and none of those is empty.
type roundRobin struct {
	rooms   []rdma.Tag
	waiting map[rdma.Tag][]*write
	writes  int
}

func (q *roundRobin) len() int { return q.writes }

func (q *roundRobin) push(w *write) {
	if q.waiting == nil {
		q.waiting = map[rdma.Tag][]*write{}
	}
	if len(q.waiting[w.Tag]) == 0 {
		q.rooms = append(q.rooms, w.Tag)
	}
	q.waiting[w.Tag] = append(q.waiting[w.Tag], w)
	q.writes++
}

// pop is the next write, nil when there is none.
func (q *roundRobin) pop() *write {
	if len(q.rooms) == 0 {
		return nil
	}
	tag := q.rooms[0]
	q.rooms = q.rooms[1:]
	w := q.waiting[tag][0]
	if rest := q.waiting[tag][1:]; len(rest) > 0 {
		q.waiting[tag] = rest
		q.rooms = append(q.rooms, tag)
	} else {
		delete(q.waiting, tag)
	}
	q.writes--
	return w
}

// drop takes the writes of one room out.
func (q *roundRobin) drop(tag rdma.Tag) []*write {
	dropped := q.waiting[tag]
	if len(dropped) == 0 {
		return nil
	}
	delete(q.waiting, tag)
	q.rooms = slices.DeleteFunc(q.rooms, func(t rdma.Tag) bool { return t == tag })
	q.writes -= len(dropped)
	return dropped
}
