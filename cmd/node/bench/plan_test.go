package bench

import (
	"testing"

	"kvferry/kv"
)

func planConfig(t *testing.T, tokens uint64) PlanConfig {
	t.Helper()
	model, ok := kv.LookupModel("llama-3.1-8b")
	if !ok {
		t.Fatal("the model is gone")
	}
	d := func(tp int) *kv.Deployment {
		return &kv.Deployment{Model: model, TP: tp, PP: 1, DP: 1, PageTokens: 16, Layout: kv.NHD}
	}
	return PlanConfig{Prefill: d(2), Decode: d(4), Length: tokens, Together: 1, Seed: 1}
}

func TestPlan(t *testing.T) {
	p, err := MeasurePlan(planConfig(t, 1024))
	if err != nil {
		t.Fatal(err)
	}
	// 32 layers of keys and values, 2 of 8 heads of 256 bytes for each token.
	if p.Records != 64 || p.ExpandedRecords != 64*1024 || p.Bytes != 64*1024*512 {
		t.Errorf("%d records, %d rows, %d bytes; want 64, %d, %d", p.Records, p.ExpandedRecords, p.Bytes, 64*1024, 64*1024*512)
	}
	// 64 pages in no order, in runs of one or two, of 4 to 12 bytes.
	if p.WireBytes < 32*4 || p.WireBytes > 64*12 {
		t.Errorf("%d bytes on the wire", p.WireBytes)
	}
	if !(p.BuildUS > 0) || !(p.ExpandedUS > 0) || p.Ratio != p.ExpandedUS/p.BuildUS {
		t.Errorf("%+v", p)
	}
}

func TestPagesTogetherAreOneRun(t *testing.T) {
	for together, most := range map[int]int{1: 64, 8: 8, 64: 1, 1000: 1} {
		c := planConfig(t, 1024) // 64 pages
		c.Together = together
		p, err := MeasurePlan(c)
		if err != nil {
			t.Fatal(err)
		}
		if p.Runs < 1 || p.Runs > most || p.Records != 64 {
			t.Errorf("%d together: %d runs, want at most %d; %d records", together, p.Runs, most, p.Records)
		}
	}
}

// TestWriteOutIsThePlan: the obvious loop writes what the plan says.
func TestWriteOutIsThePlan(t *testing.T) {
	c := kv.Copy{
		Source: kv.Place{Offset: 1000, UnitStride: 100, Stride: [2]uint64{50, 7}}, Target: kv.Place{Offset: 5, UnitStride: 200, Stride: [2]uint64{20, 9}},
		Bytes: 3, Count: [2]uint32{2, 2}, Runs: []kv.PairRun{{Source: 4, Target: 9, Count: 2, SourceStep: 2, TargetStep: 1}},
	}
	got := writeOut([]kv.Copy{c}, nil)
	want := []rowCopy{
		{1400, 1805, 3}, {1407, 1814, 3}, {1450, 1825, 3}, {1457, 1834, 3},
		{1600, 2005, 3}, {1607, 2014, 3}, {1650, 2025, 3}, {1657, 2034, 3},
	}
	if rowsOf(&c) != 8 || len(got) != 8 {
		t.Fatalf("%d rows, %d written", rowsOf(&c), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("row %d is %v, want %v", i, got[i], want[i])
		}
	}
}
