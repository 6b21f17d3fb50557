package actors

import (
	"slices"
	"testing"
	"time"
)

func TestWaitingKeepsOrderAndExpires(t *testing.T) {
	start := time.Unix(0, 0)
	var w Waiting[string]
	if !w.Due().IsZero() {
		t.Error("due without anybody waiting")
	}
	w.Add("a", start.Add(3*time.Second))
	w.Add("b", start.Add(time.Second))
	w.Add("c", start.Add(2*time.Second))
	if got, want := w.Due(), start.Add(time.Second); !got.Equal(want) {
		t.Errorf("due %v, want %v", got, want)
	}
	if got := w.Expired(start.Add(2 * time.Second)); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("expired %v, want b and c: the deadline is inclusive", got)
	}
	w.Add("d", start.Add(time.Minute))
	all := func(string) bool { return true }
	if head, ok := w.First(all); !ok || head != "a" {
		t.Errorf("first %q, want a", head)
	}
	if head, ok := w.First(func(s string) bool { return s != "a" }); !ok || head != "d" {
		t.Errorf("first but a: %q, want d", head)
	}
	if got := w.Remove(func(s string) bool { return s == "a" }); !slices.Equal(got, []string{"a"}) {
		t.Errorf("removed %v", got)
	}
	if head, _ := w.First(all); head != "d" || w.Len() != 1 || !w.Has(func(s string) bool { return s == "d" }) {
		t.Errorf("first %q of %d, want d of 1", head, w.Len())
	}
	w.Remove(all)
	if _, ok := w.First(all); ok || w.Len() != 0 {
		t.Error("the queue is not empty")
	}
}
