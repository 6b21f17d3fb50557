package actors

import (
	"testing"
	"time"

	"kvferry/messages"
)

func TestRecordsKeepTheFirstOutcomeForATime(t *testing.T) {
	now := time.Unix(0, 0)
	r := NewRecords(10, time.Minute)
	id := messages.RoomID{Room: 7, Attempt: 1}
	r.Put(now, id, "p", &messages.Outcome{Complete: true})
	r.Put(now, id, "p", &messages.Outcome{Cause: &messages.Cause{Text: "late"}})
	if !r.Get(now, id).GetComplete() {
		t.Error("a second outcome replaced the first")
	}
	if got := r.Get(now, messages.RoomID{Room: 7}); got != nil {
		t.Errorf("another attempt has outcome %v", got)
	}
	if newest, ok := r.Newest(7); !ok || newest != 1 {
		t.Errorf("newest %d %v, want 1", newest, ok)
	}
	if r.Get(now.Add(time.Minute), id) != nil || r.Len() != 0 {
		t.Error("kept for longer than asked")
	}
	if _, ok := r.Newest(7); ok {
		t.Error("the newest attempt outlived its record")
	}
}

func TestRecordsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	r := NewRecords(3, time.Hour)
	for i := range uint64(100) {
		r.Put(now.Add(time.Duration(i)), messages.RoomID{Room: i}, "", &messages.Outcome{Complete: true})
	}
	if r.Len() != 3 || len(r.last) != 3 || len(r.shelves) != 1 || len(r.shelves[0].order) != 3 {
		t.Errorf("%d records, %d newest, %d shelves; want 3, 3, 1", r.Len(), len(r.last), len(r.shelves))
	}
	if r.Get(now, messages.RoomID{Room: 99}) == nil || r.Get(now, messages.RoomID{Room: 96}) != nil {
		t.Error("not the newest are kept")
	}
}

func TestOnePeerDoesNotPushOutTheRecordsOfOthers(t *testing.T) {
	now := time.Unix(0, 0)
	r := NewRecords(10, time.Hour)
	quiet := messages.RoomID{Room: 1}
	r.Put(now, quiet, "quiet", &messages.Outcome{Complete: true})
	for i := range uint64(1000) {
		r.Put(now, messages.RoomID{Room: 100 + i}, "busy", &messages.Outcome{Complete: true})
	}
	if r.Get(now, quiet) == nil || r.Len() != 10 {
		t.Errorf("%d records, and that of the quiet peer is %v", r.Len(), r.Get(now, quiet))
	}
	if r.expire(now.Add(time.Hour)); r.Len() != 0 || len(r.shelves) != 0 {
		t.Errorf("%d records on %d shelves are left", r.Len(), len(r.shelves))
	}
}
