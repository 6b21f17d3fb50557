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
	if head, ok := w.Head(); !ok || head != "a" {
		t.Errorf("head %q, want a", head)
	}
	if got := w.Remove(func(s string) bool { return s == "a" }); !slices.Equal(got, []string{"a"}) {
		t.Errorf("removed %v", got)
	}
	if head, _ := w.Head(); head != "d" || w.Len() != 1 || !w.Has(func(s string) bool { return s == "d" }) {
		t.Errorf("head %q of %d, want d of 1", head, w.Len())
	}
	w.Next()
	if _, ok := w.Head(); ok || w.Len() != 0 {
		t.Error("the queue is not empty")
	}
}
