package rdma

import "slices"

// RoundRobin holds what waits to be sent, and gives it out one tag after another,
// so that a tag with much to send does not keep the others waiting. What is under
// one tag keeps its order. The zero value is empty. Its user locks it.
//
// Invariant: tags lists each key of waiting once, and no list in waiting is empty.
type RoundRobin[T any] struct {
	tags    []Tag
	waiting map[Tag][]T
	n       int
}

// Len is how many wait.
func (q *RoundRobin[T]) Len() int { return q.n }

// Push appends to the tag's list.
func (q *RoundRobin[T]) Push(tag Tag, v T) {
	if q.waiting == nil {
		q.waiting = map[Tag][]T{}
	}
	if len(q.waiting[tag]) == 0 {
		q.tags = append(q.tags, tag)
	}
	q.waiting[tag] = append(q.waiting[tag], v)
	q.n++
}

// Front is whose turn it is; false when nothing waits.
func (q *RoundRobin[T]) Front() (v T, ok bool) {
	if len(q.tags) == 0 {
		return v, false
	}
	return q.waiting[q.tags[0]][0], true
}

// Rotate gives the turn to the next tag; the front keeps its place in its own.
func (q *RoundRobin[T]) Rotate() {
	if len(q.tags) > 1 {
		q.tags = append(q.tags[1:], q.tags[0])
	}
}

// Pop takes the front out and gives the turn to the next tag.
func (q *RoundRobin[T]) Pop() {
	tag := q.tags[0]
	q.n--
	list := q.waiting[tag]
	var zero T
	list[0] = zero // nothing keeps what was taken
	if list = list[1:]; len(list) == 0 {
		delete(q.waiting, tag)
		q.tags = q.tags[1:]
		return
	}
	q.waiting[tag] = list
	q.Rotate()
}

// Drop takes all of one tag out.
func (q *RoundRobin[T]) Drop(tag Tag) []T {
	dropped := q.waiting[tag]
	if len(dropped) == 0 {
		return nil
	}
	delete(q.waiting, tag)
	q.tags = slices.DeleteFunc(q.tags, func(t Tag) bool { return t == tag })
	q.n -= len(dropped)
	return dropped
}

// DropAll takes everything out, in the order of the turns.
func (q *RoundRobin[T]) DropAll() []T {
	all := make([]T, 0, q.n)
	for _, tag := range q.tags {
		all = append(all, q.waiting[tag]...)
	}
	*q = RoundRobin[T]{}
	return all
}
