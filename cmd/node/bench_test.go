package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kvferry/cmd/node/bench"
)

// asBenchPeer makes the test binary the other process of a measurement.
const asBenchPeer = "KVFERRY_TEST_AS_BENCH_PEER"

func init() {
	if os.Getenv(asBenchPeer) == "" {
		return
	}
	if err := bench.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runBench runs a command of bench.
func runBench(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	t.Setenv(asBenchPeer, "1")
	root := newRootCommand()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"bench"}, args...))
	err = root.ExecuteContext(t.Context())
	return b.String(), err
}

// benchSmall is a measurement as small as can be.
var benchSmall = []string{"--seconds", "0.1", "--rounds", "1", "--pool", "64MiB"}

func TestBenchTransport(t *testing.T) {
	for _, args := range [][]string{
		{"--provider", "tcp"}, {"--provider", "tcp", "--rows", "strided", "--block", "2KiB"},
		{"--provider", "shm", "--batch", "16"}, {"--provider", "mem", "--block", "64KiB,1MiB"},
	} {
		out, err := runBench(t, append(append([]string{"transport", "-o", "json"}, benchSmall...), args...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		for line := range strings.Lines(out) {
			var got map[string]any
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%v: %v in %s", args, err, out)
			}
			want := []string{"gb_per_s", "limit_gb_per_s", "fraction", "cpu_s_per_gb", "block", "batch"}
			if args[len(args)-1] == "2KiB" {
				want = append(want, "gb_per_s_64k", "fraction_of_64k")
			}
			for _, field := range want {
				if v, ok := got[field].(float64); !ok || !(v > 0) {
					t.Errorf("%v: %s is %v, want more than 0", args, field, got[field])
				}
			}
			if got["provider"] != args[1] || len(got["rounds"].([]any)) != 1 {
				t.Errorf("%v: %s", args, line)
			}
		}
	}
}

func TestBenchTransportText(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "mem.svg")
	out, err := runBench(t, append([]string{"transport", "--provider", "mem", "--block", "4KiB,64KiB", "--plot", picture}, benchSmall...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mem, scattered rows, both sides in one process; medians of 1 round\n", "BLOCK ", "\n4 KiB ", "\n64 KiB "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	text, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	isXML(t, string(text))
	if _, err := runBench(t, append([]string{"transport", "--rows", "strided", "--block", "2KiB", "--provider", "mem", "--plot", picture}, benchSmall...)...); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(picture); err != nil || !strings.Contains(string(text), ">mem, scattered blocks of 64 KiB</text>") {
		t.Errorf("%v in\n%s", err, text)
	}
}

func TestBenchLimits(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "limits.svg")
	out, err := runBench(t, append([]string{"limits", "--blocks", "64KiB", "-o", "json", "--plot", picture}, benchSmall...)...)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"block", "batch", "contiguous_gb_per_s", "copy_gb_per_s", "copy_prefetch_gb_per_s", "stream_prefetch_gb_per_s",
		"copy_limit_gb_per_s", "tcp_limit_gb_per_s", "tcp_gathered_gb_per_s", "tcp_spread_gb_per_s", "tcp_cpu_s_per_gb"} {
		if v, ok := got[field].(float64); !ok || !(v > 0) {
			t.Errorf("%s is %v, want more than 0", field, got[field])
		}
	}
	if _, err := os.Stat(picture); err != nil {
		t.Error(err)
	}
	if out, err = runBench(t, append([]string{"limits", "--blocks", "1MiB"}, benchSmall...)...); err != nil || !strings.Contains(out, "\n1 MiB ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBenchPlan(t *testing.T) {
	out, err := runBench(t, "plan", "--tokens", "4096", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"build_us", "records", "wire_bytes", "expanded_us", "expanded_records", "ratio", "tokens", "bytes"} {
		if v, ok := got[field].(float64); !ok || !(v > 0) {
			t.Errorf("%s is %v, want more than 0", field, got[field])
		}
	}
	if got["records"] != 160.0 || got["expanded_records"] != 160*4096.0 || got["runs"].(float64) < 48 || got["runs"].(float64) > 64 {
		t.Errorf("%s", out)
	}
	for _, example := range [][]string{
		{"--model", "qwen3-next-80b-a3b", "--prefill", "tp=2", "--decode", "tp=4,layout=hnd"},
		{"--model", "deepseek-v4-flash", "--prefill", "tp=1,cp=2,cp_split=pages,page=128", "--decode", "tp=1,dcp=2,page=256"},
		{"--prefix", "100"}, {"--together", "8"}, {"--together", "1000"},
	} {
		if out, err = runBench(t, append([]string{"plan", "--tokens", "4096"}, example...)...); err != nil || !strings.Contains(out, "\nplan ") {
			t.Errorf("%v: %v\n%s", example, err, out)
		}
	}
}

func TestBenchRefuses(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
		code int
	}{
		{"transport --provider udp", `--provider is "udp", want tcp, shm, mem or verbs`, exitMalformed},
		{"transport --rows wild", `--rows is "wild", want scattered or strided`, exitMalformed},
		{"transport --batch 0", "--batch is 0, want at least 1", exitMalformed},
		{"transport --batch 3 --rows strided --block 2KiB", "--batch is 3, want a multiple of the 16 blocks", exitMalformed},
		{"transport --block 4K", `--block is "4K", want a size such as 512, 4KiB`, exitMalformed},
		{"transport --block 4KiB,", `--block is "", want a size`, exitMalformed},
		{"transport --block 4KiB,4096", "--block has 4 KiB twice", exitMalformed},
		{"transport --block 12", "--block is 12, want a multiple of 8 bytes", exitMalformed},
		{"transport --block 64KiB --rows strided", "--block is 65536, want a number of bytes of which", exitMalformed},
		{"transport --pool 16MiB", "--pool is 16777216, want at least the 33554432 bytes", exitMalformed},
		{"transport --pool 99999999GiB", "--pool is ", exitMalformed},
		{"transport --connections 65", "--connections is 65, want 1 to 64", exitMalformed},
		{"transport --seconds 0", "--seconds is 0, want more than 0", exitMalformed},
		{"transport --seconds NaN", "--seconds is NaN, want more than 0", exitMalformed},
		{"transport --rounds 0", "--rounds is 0, want 1 to 1000", exitMalformed},
		{"transport -o xml", `--output is "xml", want text or json`, exitMalformed},
		{"transport --plot /nowhere/a.svg", "--plot: open /nowhere/a.svg", exitMalformed},
		{"limits --blocks 3", "--blocks is 3, want a multiple of 8 bytes", exitMalformed},
		{"limits --blocks x", `--blocks is "x", want a size`, exitMalformed},
		{"plan --tokens 0", "--tokens is 0, want 1 to", exitMalformed},
		{"plan --tokens 5 --prefix 5", "--prefix is 5, want 0 to less than the 5", exitMalformed},
		{"plan --together 0", "--together is 0, want at least 1", exitMalformed},
		{"plan --prefill tp=x", "--prefill", exitMalformed},
		{"plan --prefill tp=7", "", exitImpossible},
	} {
		out, err := runBench(t, strings.Fields(tc.args)...)
		code, text := exitOf(err)
		var e *exitError
		if code != tc.code || !errors.As(err, &e) || !strings.Contains(text, tc.want) || out != "" {
			t.Errorf("%s: exit code %d, %q; want %d and %q\n%s", tc.args, code, text, tc.code, tc.want, out)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{"1": 1, "512": 512, " 4KiB": 4 << 10, "64MiB": 64 << 20, "2GiB": 2 << 30} {
		if got, err := parseSize("block", text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "4kb", "4 KiB", "1.5MiB", "KiB", "8589934592GiB", "18446744073709551616"} {
		if n, err := parseSize("block", text); err == nil {
			t.Errorf("%q is %d, want an error", text, n)
		}
	}
}

func TestPlot(t *testing.T) {
	for _, p := range []plot{
		{title: "a <b> & c", note: "<&>", panels: []panel{
			{x: "bytes", y: "GB/s", xText: humanBytes, series: []series{
				{name: "one & only", points: []point{{x: 512, y: 1.5, low: 1, high: 2}, {x: 64 << 10, y: 23.7}, {x: 1 << 20, y: 0.01}}},
				{name: "<limit>", dashed: true, points: []point{{x: 512, y: 3}}},
			}},
			{x: "rooms", y: "ms", xText: grouped, log: true, series: []series{{name: "p50", points: []point{{x: 1, y: 0.3}, {x: 1024, y: 70}, {x: 8, y: 0}}}}},
		}},
		{title: "nothing moved", panels: []panel{
			{xText: humanBytes, series: []series{{name: "x", points: []point{{x: 4096}}}}},
			{xText: humanBytes, log: true, series: []series{{name: "x", points: []point{{x: 4096}}}}},
		}},
	} {
		var b strings.Builder
		if err := p.write(&b); err != nil {
			t.Fatal(err)
		}
		isXML(t, b.String())
		for _, bad := range []string{"NaN", "Inf"} {
			if strings.Contains(b.String(), bad) {
				t.Errorf("%s in the picture:\n%s", bad, b.String())
			}
		}
	}
}

func TestScalesHoldWhatIsDrawn(t *testing.T) {
	for _, tc := range []struct {
		log       bool
		low, high float64
		ticks     string
	}{
		{low: 0, high: 0, ticks: "[0 1]"},
		{low: 1, high: 23.7, ticks: "[0 5 10 15 20 25]"},
		{low: 1, high: 80_000, ticks: "[0 20000 40000 60000 80000]"},
		{low: 0, high: 0.3, ticks: "[0 0.1 0.2 0.3]"},
		{log: true, low: 0.3, high: 70, ticks: "[0.2 0.5 1 2 5 10 20 50 100]"},
		{log: true, low: 0.03, high: 700, ticks: "[0.1 1 10 100 1000]"},
		{log: true, low: 5, high: 5, ticks: "[5 10]"},
		{log: true, low: 0, high: 0, ticks: "[1 2 5 10]"},
	} {
		s := linear(tc.high)
		if tc.log {
			s = logarithmic(tc.low, tc.high)
		}
		var ticks []string
		for _, v := range s.ticks {
			ticks = append(ticks, strconv.FormatFloat(v, 'g', 6, 64))
		}
		if got := fmt.Sprint(ticks); got != tc.ticks {
			t.Errorf("%+v: ticks are %s", tc, got)
		}
		for _, v := range []float64{tc.low, tc.high} {
			if at := s.of(v); at < 0 || at > 1 {
				t.Errorf("%+v: %v stands at %v", tc, v, at)
			}
		}
	}
}

// isXML reads a text to its end: it is an SVG with a line.
func isXML(t *testing.T, text string) {
	t.Helper()
	names := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if s, ok := token.(xml.StartElement); ok {
			names[s.Name.Local]++
		}
	}
	if names["svg"] != 1 || names["polyline"] == 0 {
		t.Errorf("elements are %v", names)
	}
}
