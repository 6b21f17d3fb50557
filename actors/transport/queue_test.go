package transport

import (
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

// Between two writes of one room, every room that waited all the while is given
// one; the writes of a room keep their order; nothing is lost.
func TestQueueIsFairBetweenRoomsAndKeepsTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q roundRobin
		waiting := map[rdma.Tag][]rdma.WriteID{}
		next := rdma.WriteID(0)
		owed := map[rdma.Tag]map[rdma.Tag]bool{} // who is to be given one before this room again
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				tag := rdma.Tag(rapid.IntRange(1, 4).Draw(t, "tag"))
				next++
				q.push(&write{Write: rdma.Write{ID: next, Tag: tag}})
				waiting[tag] = append(waiting[tag], next)
			case 2:
				w := q.pop()
				if w == nil {
					if len(waiting) > 0 {
						t.Fatalf("nothing is given, and %v wait", waiting)
					}
					continue
				}
				if w.ID != waiting[w.Tag][0] {
					t.Fatalf("room %d: write %d is given, want %d", w.Tag, w.ID, waiting[w.Tag][0])
				}
				if len(owed[w.Tag]) > 0 {
					t.Fatalf("room %d is given again, and %v have waited since", w.Tag, owed[w.Tag])
				}
				owed[w.Tag] = map[rdma.Tag]bool{}
				for tag := range waiting {
					if tag != w.Tag {
						owed[w.Tag][tag] = true
					}
				}
				for _, rooms := range owed {
					delete(rooms, w.Tag)
				}
				if waiting[w.Tag] = waiting[w.Tag][1:]; len(waiting[w.Tag]) == 0 {
					delete(waiting, w.Tag)
				}
			case 3:
				tag := rdma.Tag(rapid.IntRange(1, 4).Draw(t, "dropped"))
				if got := len(q.drop(tag)); got != len(waiting[tag]) {
					t.Fatalf("room %d: %d writes are dropped, want %d", tag, got, len(waiting[tag]))
				}
				delete(waiting, tag)
				for _, rooms := range owed {
					delete(rooms, tag)
				}
			}
			total := 0
			for _, ids := range waiting {
				total += len(ids)
			}
			if q.len() != total {
				t.Fatalf("length is %d, want %d", q.len(), total)
			}
		}
	})
}
