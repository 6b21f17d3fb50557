package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{7, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(tc.of); got != tc.want {
			t.Errorf("median of %v is %v, want %v", tc.of, got, tc.want)
		}
	}
}

// TestSubjectsTakeTurns: once each to warm up, then in turn, there and back.
func TestSubjectsTakeTurns(t *testing.T) {
	said := ""
	var all []*subject
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, &subject{name: name, pass: 7, run: func(_ context.Context, d time.Duration, least int) (Rate, error) {
			if warm := d == 0; warm != (least == 7) {
				t.Errorf("%s: %v, at least %d", name, d, least)
			}
			said += name
			return Rate{Bytes: 1, Elapsed: 1}, nil
		}})
	}
	if err := takeTurns(t.Context(), all, 2, time.Second); err != nil {
		t.Fatal(err)
	}
	if said != "abcabccba" || len(all[0].rates) != 2 {
		t.Errorf("order is %s, %d rates; want abcabccba and 2", said, len(all[0].rates))
	}
	all[1].run = func(context.Context, time.Duration, int) (Rate, error) { return Rate{}, errors.ErrUnsupported }
	if err := takeTurns(t.Context(), all, 2, time.Second); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error is %v, want that of a subject", err)
	}
}
