package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kv"
)

// sizeOf sizes a demo of a model on a machine with so much free memory.
func sizeOf(t *testing.T, model, prefill, decode string, memory uint64, change func(*demoFlags)) (*sized, error) {
	t.Helper()
	f := &demoFlags{seed: 1, decodeInstances: 2}
	if change != nil {
		change(f)
	}
	if err := (&demoFlags{timeout: time.Second, scale: f.scale}).check(); err != nil {
		t.Fatal(err)
	}
	f.timeout = time.Second
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	p, err := parseShort("--prefill", prefill, model)
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseShort("--decode", decode, model)
	if err != nil {
		t.Fatal(err)
	}
	return sizeDemo(f, p, d, memory)
}

func TestEveryDemoMovesFourGiBWithinTheMemoryThatIsFree(t *testing.T) {
	for _, c := range []struct{ model, prefill, decode string }{
		{"llama-3.1-8b", "tp=2", "tp=1"}, {"deepseek-v2-lite", "tp=4", "tp=2"}, {"deepseek-v2-lite", "tp=1", "tp=1"},
		{"qwen3-235b-a22b", "tp=8,pp=2", "tp=2"}, {"llama-3.1-405b", "tp=8,pp=3", "tp=8,pp=2"}, {"kimi-k2", "tp=2", "tp=1,dp=2"},
	} {
		for _, memory := range []uint64{3 << 30, 8 << 30, 64 << 30} {
			s, err := sizeOf(t, c.model, c.prefill, c.decode, memory, nil)
			if err != nil {
				t.Errorf("%v with %s: %v", c, humanBytes(memory), err)
				continue
			}
			if s.moved() < 4<<30 {
				t.Errorf("%v with %s: moves %s: %q", c, humanBytes(memory), humanBytes(s.moved()), s.notes)
			}
			used := uint64(s.flags.decodeInstances) * regions(s.fit.Decode())
			if used += regions(s.fit.Prefill()); used > memory*6/10 {
				t.Errorf("%v: uses %s of %s: %q", c, humanBytes(used), humanBytes(memory), s.notes)
			}
		}
	}
}

func regions(i *kv.Instance) uint64 {
	n := uint64(0)
	for e := range i.Engines {
		n += i.Engines[e].RegionBytes[0]
	}
	return n
}

func TestFewerLayersAreSaidWithTheReason(t *testing.T) {
	s, err := sizeOf(t, "qwen3-235b-a22b", "tp=8,pp=2", "tp=2", 8<<30, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.notes, func(n string) bool { return strings.HasPrefix(n, "layers 94 -> ") && strings.Contains(n, ": ") }) {
		t.Fatalf("%q", s.notes)
	}
}

func TestWhatDoesNotFitIsRefusedWithNumbers(t *testing.T) {
	for _, c := range []struct {
		memory uint64
		change func(*demoFlags)
		want   string
	}{
		{1 << 20, nil, "ask for a smaller --scale"},
		{8 << 30, func(f *demoFlags) { f.layers = 33 }, "--layers is 33, want 2 (one for each stage) to 32"},
		{8 << 30, func(f *demoFlags) { f.layers = 1 }, "--layers is 1, want 2"},
		{1 << 30, func(f *demoFlags) { f.layers = 32 }, "ask for a smaller --scale or fewer --layers"},
	} {
		if _, err := sizeOf(t, "llama-3.1-8b", "tp=1,pp=2", "tp=1", c.memory, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	_, err := sizeOf(t, "phi-4", "tp=4", "tp=1", 8<<30, nil)
	if code, text := exitOf(err); code != exitImpossible || !strings.Contains(text, "10 heads") {
		t.Errorf("got %d, %s", code, text)
	}
}

func TestTheLargestStagesShrinkAndAllKeepALayer(t *testing.T) {
	for _, c := range []struct {
		stages []int
		n      int
		want   []int
	}{{[]int{15, 17}, 32, []int{15, 17}}, {[]int{15, 17}, 30, []int{15, 15}}, {[]int{1, 30, 1}, 3, []int{1, 1, 1}}, {[]int{4, 8}, 7, []int{4, 3}}} {
		if got := shrinkStages(c.stages, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%v to %d: got %v, want %v", c.stages, c.n, got, c.want)
		}
	}
}

func TestMemAvailable(t *testing.T) {
	if n, err := memAvailable("MemTotal: 9 kB\nMemAvailable:   24081920 kB\n"); err != nil || n != 24081920<<10 {
		t.Fatal(n, err)
	}
	for _, text := range []string{"", "MemAvailable: x kB\n"} {
		if _, err := memAvailable(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
