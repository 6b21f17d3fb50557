package sim

import "time"

// queue is what is to happen, by time, and in the order in which it was put for one time.
type queue struct {
	heap []entry
	last uint64
}

type entry struct {
	at    time.Duration
	order uint64
	do    func()
}

func (a *entry) before(b *entry) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

// put adds what happens at a time.
func (q *queue) put(at time.Duration, do func()) {
	q.last++
	q.heap = append(q.heap, entry{at, q.last, do})
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			return
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

// next takes the first out, false when there is none.
func (q *queue) next() (e entry, ok bool) {
	if len(q.heap) == 0 {
		return e, false
	}
	e = q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = entry{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < last && q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return e, true
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
