package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"kvferry/kv"
)

// asMain runs a command of the program as main would.
func asMain(args ...string) (code int, stdout, stderr string) {
	root := newRootCommand()
	var out, err bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&err)
	root.SetArgs(args)
	code, text := exitOf(root.Execute())
	return code, out.String(), err.String() + text
}

// words is a text with one space between words, whatever columns it has.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestModelsLists(t *testing.T) {
	code, stdout, stderr := asMain("models")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"NAME CACHE LAYERS BYTES/TOKEN BYTES/REQUEST",
		"llama-3.1-8b k, v 32 131,072 1 GiB",
		"gemma-3-27b k, v, swa.k, swa.v 62 81,920 1.03 GiB",
		"glm-5.2 latent, index, [draft] 78 92,628 724 MiB",
		"deepseek-v4-flash c4, c4.index, c128, swa, c4.open, c4.index.open, c128.open, [draft] 43 3,850.25 33.1 MiB",
		"kimi-k3 latent, ssm, conv 93 27,648 645 MiB",
		"A request has 8,192 tokens.",
		"ID MODEL PREFILL DECODE FITS",
		"dynamo-llama70b-sn llama-3.3-70b 2 x tp=2,page=16,layout=hnd tp=4,page=16,layout=hnd yes",
		"user-glm5.1-pp4 glm-5.1 tp=8,pp=4,page=64,layout=nhd tp=8,dp=8,dp_attention=true,page=64,layout=nhd yes",
	} {
		if !strings.Contains(words(stdout), want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for _, m := range kv.Models() {
		if !strings.Contains(stdout, "\n"+m.ID+" ") {
			t.Errorf("%s is not listed", m.ID)
		}
	}
	for _, e := range kv.Examples() {
		if !strings.Contains(stdout, "\n"+e.ID+" ") {
			t.Errorf("%s is not listed", e.ID)
		}
	}
}

func TestModelsShowsOne(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"Gemma-3-27B --tokens 2000", []string{
			"gemma-3-27b: 62 layers, 81,920 bytes a token, 600,047,616 bytes a request of 2,000 tokens",
			"COMPONENT KEEPS HEADS HEAD_BYTES DTYPE BYTES/REQUEST LAYERS",
			"k all tokens 16 256 bf16 81,920,000 5,11,17,23,29,35,41,47,53,59",
			"swa.v the last 1024 tokens 16 256 bf16 218,103,808 0-4,6-10",
		}},
		{"deepseek-v4-pro --tokens 130", []string{
			"c4 a row of 4 tokens 1 576 uint8 552,960 2,4,6",
			"c128.open 128 rows of an open group of 128 tokens 1 2048 f32 8,126,464 0-1,3,5",
			"[draft.swa] the last 128 tokens 1 576 uint8 73,728 61",
		}},
		{"falcon-h1-7b", []string{"ssm a row of a request 24 131072 f32 138,412,032 0-43", "conv.b 3 rows of a request 1 512 bf16 67,584 0-43"}},
		{"dynamo-glm5", []string{
			"dynamo-glm5: a draft model on decode alone prefill tp=4,page=64,layout=nhd decode tp=16,dp=16,dp_attention=true,page=64,layout=nhd fits yes",
			"glm-5: 78 layers,",
		}},
	} {
		code, stdout, stderr := asMain(append([]string{"models"}, strings.Fields(tc.args)...)...)
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit code %d: %s", tc.args, code, stderr)
		}
		for _, want := range tc.want {
			if !strings.Contains(words(stdout), want) {
				t.Errorf("%s: no %q in\n%s", tc.args, want, stdout)
			}
		}
	}
}

// TestModelsJSONIsADeployment: what models says of a model and of a side of an
// example is what a deployment file takes.
func TestModelsJSONIsADeployment(t *testing.T) {
	code, stdout, stderr := asMain("models", "-o", "json", "--tokens", "1000")
	var got modelsJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" {
		t.Fatalf("exit code %d, %s: %v", code, stderr, err)
	}
	models, examples := kv.Models(), kv.Examples()
	if len(got.Models) != len(models) || len(got.Examples) != len(examples) {
		t.Fatalf("%d models and %d examples, want %d and %d", len(got.Models), len(got.Examples), len(models), len(examples))
	}
	deployment := func(name string, components []componentJSON, s sideJSON) *kv.Deployment {
		text, err := json.Marshal(map[string]any{"model": map[string]any{"id": name, "components": components},
			"parallel": s.Parallel, "page_tokens": s.PageTokens, "layout": s.Layout})
		if err != nil {
			t.Fatal(err)
		}
		d, err := parseDeployment(name, text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	components := make(map[string][]componentJSON)
	for i, m := range models {
		j := got.Models[i]
		components[m.ID] = j.Components
		s := sideJSON{PageTokens: 256, Layout: "nhd"}
		s.Parallel.TP, s.Parallel.PP, s.Parallel.DP = 1, 1, 1
		if d := deployment(j.Name, j.Components, s); !reflect.DeepEqual(d.Model, m) {
			t.Errorf("%s is %+v, want %+v", m.ID, d.Model, m)
		}
		if j.Tokens != 1000 || j.BytesPerToken != m.TokenBytes() || j.BytesPerRequest != m.RequestBytes(1000) || j.Layers < 1 {
			t.Errorf("%s: %d layers, %v bytes a token, %d bytes of %d tokens", m.ID, j.Layers, j.BytesPerToken, j.BytesPerRequest, j.Tokens)
		}
	}
	for i, e := range examples {
		j := got.Examples[i]
		for _, s := range []struct {
			side sideJSON
			want *kv.Deployment
		}{{j.Prefill, &e.Prefill}, {j.Decode, &e.Decode}} {
			d := deployment(j.Model, components[j.Model], s.side)
			d.Model.Components = s.want.Model.Components // without a draft model, it may be
			if !reflect.DeepEqual(d, s.want) {
				t.Errorf("%s: a side is %+v, want %+v", e.ID, d, s.want)
			}
		}
		if j.ID != e.ID || j.Note != e.Note || !j.Fits || j.Prefill.Instances != e.PrefillInstances || j.Decode.Instances != e.DecodeInstances {
			t.Errorf("%s is %+v", e.ID, j)
		}
	}
	if _, stdout, _ := asMain("models", "qwen3-8b", "-o", "json"); !strings.Contains(stdout, `"examples": []`) || strings.Count(stdout, `"bytes_per_token"`) != 1 {
		t.Errorf("one model is\n%s", stdout)
	}
}

// TestExampleThatDoesNotFit: there is none in the table, so one is made.
func TestExampleThatDoesNotFit(t *testing.T) {
	e, _ := kv.LookupExample("llmd-pd")
	e.Decode.TP = 3
	var out bytes.Buffer
	if err := writeModels(&out, nil, []kv.Example{e}, 1); err != nil || !strings.HasSuffix(out.String(), "  no\n") {
		t.Errorf("%v, no fit in\n%s", err, out.String())
	}
	if err := writeOne(&out, &e.Decode.Model, []kv.Example{e}, 1); err != nil || !strings.Contains(out.String(), "fits     no\n") {
		t.Errorf("%v, no fit in\n%s", err, out.String())
	}
}

func TestModelsRefuses(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"models nothing", `there is no model and no example "nothing"`},
		{"models --tokens 0", "--tokens is 0, want 1 to"},
		{"models --tokens 99999999999", "--tokens is 99999999999"},
		{"models -o xml", `--output is "xml", want text or json`},
		{"models phi-4 glm-5", "accepts at most 1 arg"},
		{"check --example nothing", `--example: there is no example "nothing", want one of sglang-doc-llama, sglang-doc-dsv3`},
		{"check --example=", `--example: there is no example ""`},
		{"check --example llmd-pd --model qwen3-8b", "--model is there beside --example llmd-pd"},
		{"plan --example llmd-pd --tokens 4 --prefill tp=2", "--prefill is there beside --example llmd-pd"},
		{"plan --example llmd-pd --tokens 4 --decode tp=2", "--decode is there beside --example llmd-pd"},
		{"plan --example llmd-pd", "--tokens is 0, want 1"},
		{"check --example llmd-pd -o xml", `--output is "xml"`},
	} {
		if code, stdout, stderr := asMain(strings.Fields(tc.args)...); code != 1 || stdout != "" || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q, want %q in %q", tc.args, code, stdout, tc.want, stderr)
		}
	}
}

func TestCheckAndPlanTakeExamples(t *testing.T) {
	code, stdout, stderr := asMain("check", "--example", "Dynamo-Llama70b-SN")
	for _, want := range []string{
		"prefill  llama-3.3-70b: tp 2, pp 1, dp 1, pages of 16 tokens, hnd",
		"decode   llama-3.3-70b: tp 4, pp 1, dp 1, pages of 16 tokens, hnd",
		"These deployments work together.",
	} {
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, %s: no %q in\n%s", code, stderr, want, stdout)
		}
	}
	// As the same deployments by the other flags.
	byHand := []string{"--model", "gpt-oss-120b", "--prefill", "tp=1,page=16,layout=hnd", "--decode", "tp=4,page=16,layout=hnd"}
	for _, command := range [][]string{{"check"}, {"check", "-o", "json"}, {"plan", "--tokens", "300"}, {"plan", "--tokens", "300", "-o", "json"}} {
		_, want, _ := asMain(append(command, byHand...)...)
		if code, got, stderr := asMain(append(command, "--example", "llmd-pd")...); code != 0 || got != want || want == "" {
			t.Errorf("%s: exit code %d, %s: not as by the other flags:\n%s", fmt.Sprint(command), code, stderr, got)
		}
	}
	if _, stdout, _ := asMain("check", "--example", "dynamo-glm5"); !strings.Contains(stdout, "latent, index") || strings.Contains(stdout, "draft") {
		t.Errorf("a draft model that prefill lacks is sent:\n%s", stdout)
	}
}
