package main

import (
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func readAll(t *testing.T, text string) ([]traced, error) {
	t.Helper()
	r, err := newTraceReader("t", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var all []traced
	for {
		x, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, x)
	}
}

func TestBothTraceFormatsAreTold(t *testing.T) {
	long := `{"timestamp": 5, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 9], "x": "` + strings.Repeat("y", 200_000) + `"}`
	mooncake := `{"timestamp": 0, "input_length": 1030, "output_length": 500, "hash_ids": [1, 2, 3]}` + "\n\n" + long
	got, err := readAll(t, mooncake)
	want := []traced{{0, 1030, 0}, {5 * time.Millisecond, 1100, 1024}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("mooncake: got %v, %v, want %v", got, err, want)
	}
	azure := "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"
	got, err = readAll(t, azure)
	want = []traced{{0, 4808, 0}, {52 * time.Millisecond, 3180, 0}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("azure: got %v, %v, want %v", got, err, want)
	}
}

func TestTraceErrorsNameLineAndField(t *testing.T) {
	const good = `{"timestamp": 7, "input_length": 10, "hash_ids": [1]}` + "\n"
	const header = azureHeader + "\n"
	for text, want := range map[string]string{
		"": "line 1", "a,b\n": "line 1",
		good + `{"timestamp": 1}`:                                         "line 2: input_length is missing",
		good + `{"input_length": 1}`:                                      "line 2: timestamp is missing",
		good + "\n" + `{"timestamp": 8, "input_length": "x"}`:             "line 3: input_length is a string",
		good + `{"timestamp": 8, "input_length": -1}`:                     "line 2: input_length",
		good + `{"timestamp": 8, "input_length": 0}`:                      "line 2: input_length is 0",
		good + `{"timestamp": 8, "input_length": 1, "hash_ids": [1, 2]}`:  "line 2: hash_ids has 2 entries, want 1",
		good + `{"timestamp": 6, "input_length": 1}`:                      "line 2: timestamp",
		good + `{"timestamp": 8, "input`:                                  "line 2",
		good + strings.Repeat("x", traceLine+1):                           "line 2 is longer",
		header + "2023-11-16 18:17:03.97,1":                               "line 2: got 2 fields",
		header + "2023-11-16,1,1":                                         "line 2: TIMESTAMP",
		header + "2023-11-16 18:17:03.97,0,1":                             "line 2: ContextTokens",
		header + "2023-11-16 18:17:03.97,1,x":                             "line 2: GeneratedTokens",
		header + "2023-11-16 18:17:03.97,1,1\n2023-11-16 18:17:02.97,1,1": "line 3: timestamp",
	} {
		if _, err := readAll(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %v, want %q", text, err, want)
		}
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(`{"timestamp": 0, "input_length": 1030, "hash_ids": [1, 2, 3]}`)
	f.Add(azureHeader + "\n2023-11-16 18:17:03.9799600,4808,10\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, _ := readAll(t, text)
		for _, r := range all {
			if r.tokens < 1 || r.prefix > r.tokens || r.arrival < 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

const traces = "../../../shared/data/traces/"

func openTestTrace(t *testing.T, name string) *traceReader {
	t.Helper()
	f, err := os.Open(traces + name)
	if err != nil {
		t.Skip("the published traces are not here")
	}
	t.Cleanup(func() { f.Close() })
	r, err := newTraceReader(name, f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestThePublishedTracesReadToTheirEnd(t *testing.T) {
	for name, want := range map[string]int{
		"mooncake_conversation_trace.jsonl": 12031, "mooncake_synthetic_trace.jsonl": 3993,
		"azure_2023_code.csv": 8819, "azure_2023_conv.csv": 19366,
	} {
		rooms, err := takeRooms(openTestTrace(t, name), roomsMax, true, 1)
		if err != nil || len(rooms) != want {
			t.Errorf("%s: %d requests, %v, want %d", name, len(rooms), err, want)
		}
	}
}

// figures are what the made workload has to share with the published trace.
type figures struct {
	lengths  []uint64 // ascending
	mean     float64
	reuse    []float64   // of prompts with more than one known block, ascending
	shared   [10]float64 // by tenth of the lengths
	prefixes float64     // part of all tokens
}

func figuresOf(all []traced) *figures {
	f := new(figures)
	slices.SortStableFunc(all, func(a, b traced) int { return int(int64(a.tokens) - int64(b.tokens)) })
	tokens, known := uint64(0), uint64(0)
	for i, r := range all {
		f.lengths = append(f.lengths, r.tokens)
		tokens, known = tokens+r.tokens, known+r.prefix
		if r.prefix > traceBlock {
			f.reuse = append(f.reuse, float64(r.prefix)/float64(r.tokens))
			f.shared[i*10/len(all)] += 10 / float64(len(all))
		}
	}
	f.mean = float64(tokens) / float64(len(all))
	f.prefixes = float64(known) / float64(tokens)
	slices.Sort(f.reuse)
	return f
}

func take(t *testing.T, s source, n int) []traced {
	t.Helper()
	var all []traced
	for range n {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*math.Abs(want) {
		t.Errorf("%s: got %.4g, want %.4g", what, got, want)
	}
}

func TestTheFiguresInTheCodeAreThoseOfThePublishedTrace(t *testing.T) {
	f := figuresOf(take(t, openTestTrace(t, "mooncake_conversation_trace.jsonl"), 12031))
	near(t, "mean", f.mean, 12035, 0.001)
	for _, q := range mooncakeTokens {
		near(t, "length", q.value, float64(f.lengths[min(len(f.lengths)-1, int(q.at*float64(len(f.lengths))))]), 0.01)
	}
	for _, q := range mooncakeReuse {
		near(t, "reuse", q.value, f.reuse[min(len(f.reuse)-1, int(q.at*float64(len(f.reuse))))], 0.03)
	}
	for i, s := range mooncakeShared {
		near(t, "shared", s, f.shared[i], 0.05)
	}
}

func TestTheMadeWorkloadHasTheFiguresOfThePublishedTrace(t *testing.T) {
	f := figuresOf(take(t, newMade(3), 50_000))
	near(t, "mean", f.mean, 12035, 0.04)
	near(t, "median", float64(f.lengths[len(f.lengths)/2]), 6909, 0.04)
	near(t, "p99", float64(f.lengths[len(f.lengths)*99/100]), 85401, 0.05)
	near(t, "part of the tokens that is known", f.prefixes, 0.374, 0.08)
}

func TestTheSameSeedMakesTheSameWorkload(t *testing.T) {
	a, b := take(t, newMade(3), 100), take(t, newMade(3), 100)
	if !slices.Equal(a, b) {
		t.Fatal("two workloads of one seed differ")
	}
	if slices.Equal(a, take(t, newMade(4), 100)) {
		t.Fatal("two workloads of two seeds are alike")
	}
}

func TestScalingKeepsARequestARequest(t *testing.T) {
	for _, c := range []struct {
		in    traced
		scale float64
		want  traced
	}{
		{traced{tokens: 1000, prefix: 512}, 0.1, traced{tokens: 100, prefix: 51}},
		{traced{tokens: 1030, prefix: 1030}, 0.1, traced{tokens: 103, prefix: 103}},
		{traced{tokens: 3, prefix: 2}, 0.01, traced{tokens: 1}},
		{traced{tokens: 3, prefix: 2}, 2, traced{tokens: 6, prefix: 4}},
	} {
		if got := c.in.scaled(c.scale); got != c.want {
			t.Errorf("%+v x %v: got %+v, want %+v", c.in, c.scale, got, c.want)
		}
	}
}

func TestPaceStretchesArrivals(t *testing.T) {
	rooms := []demoRoom{{arrival: time.Second}, {arrival: 2 * time.Second}, {arrival: 5 * time.Second}}
	at := func() (out []time.Duration) {
		for _, r := range rooms {
			out = append(out, r.arrival)
		}
		return out
	}
	pace(rooms, 2)
	if got := at(); !slices.Equal(got, []time.Duration{0, 250 * time.Millisecond, time.Second}) {
		t.Errorf("got %v", got)
	}
	pace(rooms, 0)
	pace(rooms, 10) // all at once: evenly
	if got := at(); !slices.Equal(got, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}) {
		t.Errorf("got %v", got)
	}
}

func TestATraceThatIsTooShortIsSaid(t *testing.T) {
	r, err := newTraceReader("t", strings.NewReader(azureHeader+"\n2023-11-16 18:17:03.97,10,1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeRooms(r, 2, false, 1); err == nil || !strings.Contains(err.Error(), "has 1 requests, want 2") {
		t.Fatal(err)
	}
}
