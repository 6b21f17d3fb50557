package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/sim"
)

func runSim(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := newSimCommand()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&bytes.Buffer{})
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// A day is told, the same way each time; many days give one digest, whatever the order in
// which processors finish them.
func TestSim(t *testing.T) {
	text, err := runSim(t, "--seed", "7")
	if err != nil || !strings.Contains(text, "starts as p0#") || !strings.Contains(text, "the faults are over") || !strings.Contains(text, "digest ") {
		t.Errorf("error %v, told:\n%.500s", err, text)
	}
	if again, _ := runSim(t, "--seed", "7"); again != text {
		t.Error("the same seed is told differently")
	}
	var results [2]simResult
	for i := range results {
		out, err := runSim(t, "--seed", "100", "--seeds", "40", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out), &results[i]); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if r := results[0]; r.Seed != 100 || r.Seeds != 40 || len(r.Failed) != 0 || !(r.SeedsPer > 0) || r.Complete == 0 || r.Things["receivers checked byte by byte"] == 0 {
		t.Errorf("got %+v", r)
	}
	if results[0].Digest != results[1].Digest {
		t.Error("the digests differ")
	}
}

// A planted fault makes a day fail: exit code 1, the seed, the rule, a trace, and a smaller
// story of the same.
func TestSimOfADayThatFails(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "story.jsonl")
	seed := 1
	for seed < 10000 && sim.Run(uint64(seed), sim.Options{Bug: "unpin-early"}).Failed == nil {
		seed++
	}
	args := []string{"--seed", fmt.Sprint(seed), "--bug", "unpin-early", "--trace", trace, "-o", "json"}
	out, err := runSim(t, args...)
	code, text := exitOf(err)
	var r simResult
	if e := json.Unmarshal([]byte(out), &r); e != nil || code != 1 || len(r.Failed) != 1 || r.Failed[0].Rule != "read-after-free" || !strings.Contains(text, fmt.Sprintf("seed %d: read-after-free", seed)) {
		t.Fatalf("exit code %d, %q; %v: %s", code, text, e, out)
	}
	lines, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.Split(bytes.TrimSpace(lines), []byte("\n"))
	var l sim.Line
	if err := json.Unmarshal(last[len(last)-1], &l); err != nil || !slices.ContainsFunc(last, func(b []byte) bool { return bytes.Contains(b, []byte("VIOLATION read-after-free")) }) {
		t.Errorf("the trace has %d lines and no violation: %v", len(last), err)
	}
	out, err = runSim(t, append(args, "--shrink")...)
	var small simResult
	if e := json.Unmarshal([]byte(out), &small); e != nil || err == nil || len(small.Failed) != 1 || small.Failed[0].Rule != "read-after-free" {
		t.Errorf("shrunk: %v, %v: %s", e, err, out)
	}
}

func TestSimRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-o xml", `--output is "xml", want text or json`},
		{"--seeds 5 --shrink", "--trace and --shrink are for one day"},
		{"--seeds 5 --trace x", "--trace and --shrink are for one day"},
		{"--bug nothing", `--bug is "nothing", want one of`},
		{"--trace /nowhere/x", "--trace: open /nowhere/x"},
	} {
		_, err := runSim(t, strings.Fields(c.args)...)
		if code, text := exitOf(err); code != exitMalformed || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, %q; want %q", c.args, code, text, c.want)
		}
	}
}
