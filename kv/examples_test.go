package kv

import (
	"encoding/csv"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestExamplesFit states of each example whether its two sides work together, and
// how many receivers one data-parallel rank of decode has.
func TestExamplesFit(t *testing.T) {
	want := map[string]int{ // 0: they do not
		"sglang-doc-llama": 1, "sglang-doc-dsv3": 2, "sglang-96h100": 1, "deepseek-official": 1, "sglang-ascend-r1-1p1d": 1, "sglang-k3-pp16": 16,
		"dynamo-r1-trtllm-gb200": 1, "dynamo-r1-sglang": 1, "dynamo-r1-vllm-hopper": 1, "dynamo-llama70b-mn": 8, "dynamo-llama70b-sn": 4,
		"dynamo-qwen3-32b-a100": 4, "dynamo-gptoss-trtllm": 4, "dynamo-gptoss-vllm-b200": 1, "dynamo-glm5": 1, "dynamo-kimi-k2.5": 4,
		"dynamo-kimi-k3-gb200": 16, "dynamo-dsv4-flash-b200": 4, "dynamo-dsv4-pro": 8, "dynamo-qwen3.5-122b": 1, "dynamo-nemotron3-super": 2,
		"llmd-pd": 4, "llmd-wide-ep": 1, "llmd-bench-1": 8, "llmd-bench-2": 8, "llmd-bench-3": 8, "llmd-bench-4": 4, "llmd-bench-5": 4, "llmd-bench-6": 4,
		"aiconf-qwen3-32b": 4, "mooncake-vllm-bench": 8, "prodstack-pd": 1, "user-glm5.1-pp4": 1, "user-llama70b-p4d1": 1, "user-gemma4-p2d4": 4,
		"user-qwen3.5-p4d8": 1, "user-qwen3-32b-p2d1": 1,
	}
	for _, e := range Examples() {
		receivers, stated := want[e.ID]
		if !stated {
			t.Errorf("%s: nothing is stated of it", e.ID)
		}
		delete(want, e.ID)
		f := MatchDeployments(&e.Prefill, &e.Decode, 1, 1)
		if f.Compatible() != (receivers > 0) {
			t.Errorf("%s: compatible is %v, want %v: %v", e.ID, f.Compatible(), receivers > 0, f.Reasons())
		}
		if !f.Compatible() {
			continue
		}
		if got := len(f.Receivers(Route{})); got != receivers {
			t.Errorf("%s: %d receivers, want %d", e.ID, got, receivers)
		}
	}
	for id := range want {
		t.Errorf("%s is no example", id)
	}
}

func TestExamplesByName(t *testing.T) {
	seen := make(map[string]bool)
	for _, e := range Examples() {
		if seen[e.ID] {
			t.Errorf("%s is there twice", e.ID)
		}
		seen[e.ID] = true
		if _, ok := LookupModel(e.Prefill.Model.ID); !ok || e.Decode.Model.ID != e.Prefill.Model.ID {
			t.Errorf("%s serves %q and %q, want one known model", e.ID, e.Prefill.Model.ID, e.Decode.Model.ID)
		}
		if got, ok := LookupExample(strings.ToUpper(e.ID)); !ok || got.ID != e.ID {
			t.Errorf("%s is %q (%v)", e.ID, got.ID, ok)
		}
		e.Prefill.Model.Components[0].Layers[0] = 1000 // the caller's, and nobody else's
		if e.Decode.Model.Components[0].Layers[0] == 1000 {
			t.Errorf("%s: both sides share a list of layers", e.ID)
		}
	}
	if _, ok := LookupExample("none"); ok {
		t.Error("none is an example")
	}
}

// TestExamplesAreTheCollectedOnes: each collected deployment is an example, or is
// one of those that cannot be, as Examples says.
func TestExamplesAreTheCollectedOnes(t *testing.T) {
	f, err := os.Open("../../shared/data/deployments.csv")
	if err != nil {
		t.Skip("the collected deployments are not here: ", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	left := []string{"sglang-gb200-1", "sglang-gb200-2", "k2-128h200", "study-104h800", "sglang-pp-dsv31", "sglang-pp-qwen235",
		"user-glm5.2-pp2", "user-glm5.2-dp32", "mooncake-rbg"}
	ids := make(map[string]bool)
	for _, row := range rows[1:] {
		ids[row[0]] = true
		e, ok := LookupExample(row[0])
		if ok == slices.Contains(left, row[0]) {
			t.Errorf("%s: example %v, and left out %v", row[0], ok, slices.Contains(left, row[0]))
		}
		for field, got := range map[string]int{
			"p_instances": e.PrefillInstances, "p_tp": e.Prefill.TP, "p_dp": e.Prefill.DP, "p_pp": e.Prefill.PP,
			"d_instances": e.DecodeInstances, "d_tp": e.Decode.TP, "d_dp": e.Decode.DP, "d_pp": e.Decode.PP, "page_or_block": int(e.Prefill.PageTokens),
		} {
			// What is no number is blank, a choice, or in words.
			if want, err := strconv.Atoi(row[slices.Index(rows[0], field)]); ok && err == nil && got != want {
				t.Errorf("%s: %s is %d, want %d", row[0], field, got, want)
			}
		}
	}
	for _, e := range Examples() {
		if !ids[e.ID] {
			t.Errorf("%s is not among the collected deployments", e.ID)
		}
	}
}
