package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// kvferry runs the two commands of this folder as main would.
func kvferry(args ...string) (code int, stdout, stderr string) {
	root := &cobra.Command{Use: "kvferry", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(newCheckCommand(), newPlanCommand())
	var out, err bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&err)
	root.SetArgs(args)
	code, text := exitOf(root.Execute())
	return code, out.String(), err.String() + text
}

const sound1 = `model:
  id: m
  revision: "1"
  components:
    - {name: k, kind: paged, layers: 4, heads: 4, head_bytes: 8, dtype: bf16}
    - {name: v, kind: paged, layers: 0-3, heads: 4, head_bytes: 4, dtype: bf16}
parallel: {tp: 2, pp: 2, dp: 1}
pp_layers: [1, 3]
page_tokens: 4
layout: nhd
`

// files writes deployment files and returns their names.
func files(t *testing.T, texts ...string) []string {
	t.Helper()
	var out []string
	for n, text := range texts {
		name := filepath.Join(t.TempDir(), []string{"prefill.yaml", "decode.yaml"}[n])
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out = append(out, name)
	}
	return out
}

func replace(old, with string) string { return strings.Replace(sound1, old, with, 1) }

const asJSON = "{\"model\":{\"id\":\"m\",\"revision\":\"1\",\"components\":[\n\t{\"name\":\"k\",\"kind\":\"paged\",\"layers\":4,\"heads\":4,\"head_bytes\":8,\"dtype\":\"bf16\"},\n" +
	"\t{\"name\":\"v\",\"kind\":\"paged\",\"layers\":\"0-3\",\"heads\":4,\"head_bytes\":4,\"dtype\":\"bf16\"}]},\n" +
	"\t\"parallel\":{\"tp\":1,\"pp\":1,\"dp\":2},\n\t\"page_tokens\":8,\"layout\":\"hnd\"}\n"

func TestCheckJSON(t *testing.T) {
	for _, tc := range []struct {
		name            string
		prefill, decode string
		code            int
		want            string
	}{
		{"they fit", sound1, asJSON, 0, `{
  "compatible": true,
  "reasons": [],
  "warnings": [
    {
      "field": "row_bytes",
      "component": "k",
      "prefill": "heads [0,2), row_stride 16, head_stride 8",
      "decode": "heads [0,4), row_stride 8, head_stride 64",
      "text": "rows of ` + "`k`" + ` are 8 bytes, and rows below 512 cost more than they carry: start both sides with the same tp, cp and layout, or with heads outside of rows (layout hnd)"
    },
    {
      "field": "row_bytes",
      "component": "v",
      "prefill": "heads [0,2), row_stride 8, head_stride 4",
      "decode": "heads [0,4), row_stride 4, head_stride 32",
      "text": "rows of ` + "`v`" + ` are 4 bytes, and rows below 512 cost more than they carry: start both sides with the same tp, cp and layout, or with heads outside of rows (layout hnd)"
    }
  ],
  "receivers": [
    {
      "rank": {
        "tp": 0,
        "pp": 0
      },
      "writers": [
        {
          "tp": 0,
          "pp": 0
        },
        {
          "tp": 1,
          "pp": 0
        },
        {
          "tp": 0,
          "pp": 1
        },
        {
          "tp": 1,
          "pp": 1
        }
      ]
    }
  ]
}
`},
		{"they do not", sound1, replace("dtype: bf16", "dtype: f16"), 2, `{
  "compatible": false,
  "reasons": [
    {
      "field": "dtype",
      "component": "k",
      "prefill": "bf16",
      "decode": "f16",
      "text": "dtype of k differs: prefill caches bf16, decode f16: start both with the same cache dtype"
    }
  ],
  "receivers": []
}
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := files(t, tc.prefill, tc.decode)
			code, stdout, stderr := kvferry("check", "--prefill", f[0], "--decode", f[1], "-o", "json")
			if code != tc.code || stdout != tc.want || stderr != "" {
				t.Errorf("exit code %d, want %d; stderr %q\n got %s\nwant %s", code, tc.code, stderr, stdout, tc.want)
			}
		})
	}
}

// TestCheckRefuses: what is no deployment is code 1, what cannot work is code 2,
// with all that an operator needs to find it.
func TestCheckRefuses(t *testing.T) {
	for _, tc := range []struct {
		name            string
		prefill, decode string
		code            int
		want            []string // on either output
	}{
		{"empty", sound1, "", 1, []string{"decode.yaml: the file is empty"}},
		{"no YAML", sound1, "model: [", 1, []string{"decode.yaml: yaml:"}},
		{"no mapping", sound1, "- 1\n", 1, []string{"decode.yaml:1: want fields (model, parallel"}},
		{"two documents", sound1, sound1 + "---\n" + sound1, 1, []string{"want one document"}},
		{"unknown field", replace("layout: nhd", "layout: nhd\nlayuot: nhd"), sound1, 1, []string{"prefill.yaml:11: layuot: no such field"}},
		{"unknown field inside", replace("dtype: bf16}", "dtype: bf16, size: 3}"), sound1, 1, []string{"prefill.yaml:5: model.components[0].size: no such field"}},
		{"field twice", replace("layout: nhd", "layout: nhd\nlayout: nhd"), sound1, 1, []string{"layout: is there twice"}},
		{"missing field", replace("page_tokens: 4\n", ""), sound1, 1, []string{"page_tokens: is missing"}},
		{"missing field of a component", replace(", head_bytes: 8", ""), sound1, 1, []string{"model.components[0].head_bytes: is missing"}},
		{"unknown layout", replace("layout: nhd", "layout: hdn"), sound1, 1, []string{`layout: layout is "hdn", want nhd or hnd`}},
		{"unknown dtype", replace("dtype: bf16", "dtype: bf17"), sound1, 1, []string{`dtype is "bf17", want one of bf16 f16 f32`}},
		{"unknown kind", replace("kind: paged", "kind: pagged"), sound1, 1, []string{`kind is "pagged"`}},
		{"a number below 1", replace("tp: 2", "tp: 0"), sound1, 1, []string{"parallel.tp: is 0, want 1"}},
		{"a negative number", replace("heads: 4", "heads: -4"), sound1, 1, []string{"model.components[0].heads: is -4"}},
		{"a number that is none", replace("page_tokens: 4", "page_tokens: many"), sound1, 1, []string{`page_tokens: is "many", want a whole number`}},
		{"a number that is huge", replace("page_tokens: 4", "page_tokens: 99999999999999999999"), sound1, 1, []string{"page_tokens: is"}},
		{"pp_layers of another count", replace("[1, 3]", "[4]"), sound1, 1, []string{"pp_layers has 1 entries, want 2"}},
		{"pp_layers of another sum", replace("[1, 3]", "[1, 4]"), sound1, 1, []string{"pp_layers sum to 5 layers, want the 4"}},
		{"pp_layers below 1", replace("[1, 3]", "[0, 4]"), sound1, 1, []string{"pp_layers[0]: is 0"}},
		{"no pp_layers", replace("[1, 3]", "[]"), sound1, 1, []string{"pp_layers: has 0 entries"}},
		{"more stages than layers", replace("pp: 2, dp: 1}\npp_layers: [1, 3]", "pp: 5, dp: 1}"), sound1, 1, []string{"parallel.pp: pp is 5 stages, want at most the 4"}},
		{"a component twice", replace("name: v", "name: k"), sound1, 1, []string{`model.components[1].name: component "k" is there twice`}},
		{"a layer twice", replace("layers: 0-3", "layers: 0-3,2"), sound1, 1, []string{"layer 2 is there twice"}},
		{"a layer twice, in quotes", replace("layers: 0-3", "layers: \"0-3,2\""), sound1, 1, []string{"layer 2 is there twice"}},
		{"a list of layers without quotes", replace("layers: 0-3", "layers: 0,1-2,3"), sound1, 0, []string{"work together"}},
		{"layers backwards", replace("layers: 0-3", "layers: 3-0"), sound1, 1, []string{"begins at 3 and ends at 0"}},
		{"very many layers", replace("layers: 4", "layers: 2000000000"), sound1, 1, []string{"model.components[0].layers: is 2000000000"}},
		{"all at once", replace("tp: 2", "tp: 0"), replace("dtype: bf16", "dtype: x"), 1, []string{"parallel.tp: is 0", `dtype is "x"`}},
		{"1 wins over 2", replace("tp: 2", "tp: 3"), replace("page_tokens: 4", "page_tokens: 0"), 1, []string{"page_tokens: is 0"}},
		{"heads that do not go over tp", replace("tp: 2", "tp: 3"), sound1, 2, []string{"prefill: k has 4 heads, which do not go over tp 3", "prefill: v has 4 heads"}},
		{"every reason, alone and together", replace("tp: 2", "tp: 3"), replace("id: m", "id: other"), 2, []string{"k has 4 heads", `prefill serves "m", decode "other"`}},
		{"a revision on one side", sound1, replace("  revision: \"1\"\n", ""), 2, []string{`model revision differs: prefill has "1", decode ""`}},
		{"a component on one side", sound1, replace("    - {name: v, kind: paged, layers: 0-3, heads: 4, head_bytes: 4, dtype: bf16}\n", ""), 2, []string{"prefill has component v, decode has not"}},
		{"other layers", sound1, replace("layers: 4", "layers: 5") + "# 5 layers\n", 1, []string{"pp_layers sum to 4 layers, want the 5"}},
		{"an optional component on one side", replace("head_bytes: 4, dtype: bf16}", "head_bytes: 4, dtype: bf16, optional: true}"),
			replace("    - {name: v, kind: paged, layers: 0-3, heads: 4, head_bytes: 4, dtype: bf16}\n", ""), 0, []string{"work together"}},
		{"JSON with tabs", sound1, asJSON, 0, []string{"work together", "metadata row", "k, v"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := files(t, tc.prefill, tc.decode)
			code, stdout, stderr := kvferry("check", "--prefill", f[0], "--decode", f[1])
			if code != tc.code {
				t.Errorf("exit code is %d, want %d: %s%s", code, tc.code, stdout, stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("no %q in\n%s%s", want, stdout, stderr)
				}
			}
		})
	}
}

func TestShortForm(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		model, prefill, decode string
		code                   int
		want                   string
	}{
		{"defaults", "Llama-3.1-8B", "tp=1", "dp=1", 0, "tp 1, pp 1, dp 1, pages of 16 tokens, nhd"},
		{"everything", "qwen3-8b", "tp=2,pp=2,dp=2,page=64,layout=hnd,pp_layers=15,21", "tp=4", 0, "tp 2, pp 2, dp 2, pages of 64 tokens, hnd"},
		{"pp_layers in the middle", "qwen3-8b", "pp=2,pp_layers=15,21,tp=4", "tp=4", 0, "0-14"},
		{"heads that do not go over tp", "phi-4", "tp=4", "tp=2", 2, "k has 10 heads, which do not go over tp 4"},
		{"no model", "", "tp=2", "tp=2", 1, `the short form "tp=2" needs --model`},
		{"unknown model", "gpt", "tp=2", "tp=2", 1, `there is no model "gpt", want one of llama-3.1-8b`},
		{"unknown field", "qwen3-8b", "tp=2,ep=2", "tp=2", 1, "--prefill: ep: no such field"},
		{"field twice", "qwen3-8b", "tp=2,tp=2", "tp=2", 1, "--prefill: tp is there twice"},
		{"dcp and cp", "qwen3-8b", "tp=1", "cp=4,dcp=2", 1, "dcp and cp are there, want one"},
		{"cp and dcp", "qwen3-8b", "tp=1", "dcp=4,cp=2", 1, "dcp and cp are there, want one"},
		{"dcp and a split", "qwen3-8b", "tp=1", "dcp=4,cp_split=pages", 1, "dcp and cp_split are there, want one"},
		{"no truth", "qwen3-8b", "dp_attention=yes", "tp=1", 1, `dp_attention: is "yes", want true or false`},
		{"no value", "qwen3-8b", "tp=2,hnd", "tp=2", 1, `"hnd" is no field with a value`},
		{"below 1", "qwen3-8b", "tp=0", "tp=2", 1, "--prefill: tp: is 0"},
		{"layout", "qwen3-8b", "layout=x", "tp=2", 1, `layout is "x"`},
		{"pp_layers of another sum", "qwen3-8b", "pp=2,pp_layers=15,20", "tp=2", 1, "sum to 35 layers, want the 36"},
		{"more stages than layers", "qwen3-8b", "pp=37", "tp=2", 1, "at most the 36 layers"},
		{"no such file", "qwen3-8b", "nowhere.yaml", "tp=2", 1, "--prefill: open nowhere.yaml"},
		{"an endless file", "qwen3-8b", "/dev/zero", "tp=2", 1, "/dev/zero has more than 16777216 bytes"},
		{"no decode", "qwen3-8b", "tp=2", "", 1, "--decode is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := kvferry("check", "--model", tc.model, "--prefill", tc.prefill, "--decode", tc.decode)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("exit code is %d, want %d, and %q in\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
	if code, _, stderr := kvferry("check", "--model", "qwen3-8b", "--prefill", "tp=2", "--decode", "tp=2", "-o", "xml"); code != 1 || !strings.Contains(stderr, `--output is "xml"`) {
		t.Errorf("exit code is %d: %s", code, stderr)
	}
}

func TestPlanArguments(t *testing.T) {
	for _, tc := range []struct {
		name string
		args string
		code int
		want string
	}{
		{"no tokens", "", 1, "--tokens is 0, want 1"},
		{"negative tokens", "--tokens -1", 1, "--tokens is -1"},
		{"prefix beyond tokens", "--tokens 10 --prefix 11", 1, "--prefix is 11, want 0 to the 10"},
		{"negative prefix", "--tokens 10 --prefix -1", 1, "--prefix is -1"},
		{"too few pages", "--tokens 40 --src-pages 3,4", 1, "--src-pages has 2 pages, want 3 for tokens [0,40) in pages of 16"},
		{"too many pages", "--tokens 40 --prefix 20 --dst-pages 0-9", 1, "--dst-pages has 10 pages, want 2 for tokens [20,40) in pages of 16"},
		{"very many pages", "--tokens 40 --src-pages 0-4294967290", 1, "--src-pages has 4294967291 pages, want at most 4194304"},
		{"a page twice", "--tokens 40 --src-pages 3,7,3", 1, "--src-pages has page 3 twice"},
		{"a page twice in a range", "--tokens 40 --src-pages 3,2-3", 1, "--src-pages has page 3 twice"},
		{"no number", "--tokens 40 --src-pages 3,x,4", 1, `"x" is no number`},
		{"a range backwards", "--tokens 40 --src-pages 7-5", 1, "begins at 7 and ends at 5"},
		{"a page beyond 32 bits", "--tokens 4 --src-pages 4294967295", 1, "want at most 4294967294"},
		{"a pool beyond 64 bits", "--tokens 4 --src-pages 4294967294", 0, ""},
		{"nothing to send", "--tokens 40 --prefix 40", 0, "{\"copies\":[]}\n"},
		{"pages for nothing to send", "--tokens 40 --prefix 40 --dst-pages 1", 1, "--dst-pages has 1 page, want 0"},
		{"unknown flag", "--tokens 40 --nonsense", 1, "nonsense"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{"plan", "--model", "llama-3.1-8b", "--prefill", "tp=2", "--decode", "tp=4", "-o", "json"}, strings.Fields(tc.args)...)
			code, stdout, stderr := kvferry(args...)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("exit code is %d, want %d, and %q in\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
	// A rank whose part lies before the prefix has none of the listed pages.
	for _, tc := range []struct{ page, list string }{{"1", "0-15"}, {"16", "7"}} {
		code, stdout, stderr := kvferry("plan", "--model", "llama-3.1-8b", "--prefill", "tp=1", "--decode", "cp=2,cp_split=pages,page="+tc.page,
			"--tokens", "64", "--prefix", "48", "--dst-pages", tc.list)
		if code != 0 || !strings.Contains(stdout, "16 tokens from token 48 on: 2097152 bytes") {
			t.Errorf("pages of %s: exit code %d, %s%s", tc.page, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := kvferry("plan", "--model", "phi-4", "--prefill", "tp=4", "--decode", "tp=1", "--tokens", "4"); code != 2 || stdout != "" || !strings.Contains(stderr, "10 heads") {
		t.Errorf("a plan of what cannot work: exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestPlanGolden(t *testing.T) {
	f := files(t, replace("layers: 4, heads: 4", "layers: 4, heads: 4, optional: true"), replace("    - {name: k, kind: paged, layers: 4, heads: 4, head_bytes: 8, dtype: bf16}\n", ""))
	const head = `{"writer":{"tp":0,"pp":0},"receiver":{"tp":0,"pp":0},"component":"v","layer":0,`
	for _, tc := range []struct {
		name, args string
		want       string // of the first tensor
	}{
		{"contiguous on both sides", "--tokens 10 --src-pages 3,7,8 --dst-pages 0,1,2",
			head + `"src_offset":96,"dst_offset":0,"rows":1,"row_bytes":32,"src_stride":0,"dst_stride":0},` + "\n" +
				head + `"src_offset":224,"dst_offset":32,"rows":1,"row_bytes":48,"src_stride":0,"dst_stride":0}`},
		{"from a prefix", "--tokens 10 --prefix 6 --src-pages 3,7,8 --dst-pages 5-6",
			head + `"src_offset":240,"dst_offset":176,"rows":1,"row_bytes":32,"src_stride":0,"dst_stride":0}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := kvferry(append([]string{"plan", "--prefill", f[0], "--decode", f[1], "-o", "json"}, strings.Fields(tc.args)...)...)
			if code != 0 || !strings.HasPrefix(stdout, "{\"copies\":[\n"+tc.want+",\n") {
				t.Errorf("exit code %d %s\n got %s\nwant %s", code, stderr, stdout, tc.want)
			}
		})
	}
	code, stdout, _ := kvferry("plan", "--model", "llama-3.1-8b", "--prefill", "tp=2", "--decode", "tp=4", "--tokens", "20")
	if want := "pp 0 tp 0  pp 0 tp 1  k          0-31    512         0           20    512        1024        512"; code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("no %q in\n%s", want, stdout)
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, command := range []string{"check", "plan"} {
		code, stdout, _ := kvferry(command, "--help")
		for _, want := range []string{"Examples:", "--prefill", "kvferry " + command + " --model", "Exit codes:"} {
			if code != 0 || !strings.Contains(stdout, want) {
				t.Errorf("%s --help: no %q in\n%s", command, want, stdout)
			}
		}
	}
}

func FuzzDeploymentFile(f *testing.F) {
	f.Add([]byte(sound1))
	f.Add([]byte(asJSON))
	f.Add([]byte(replace("[1, 3]", "&a [*a, 1]")))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseDeployment("f", text)
		if (d == nil) == (err == nil) {
			t.Fatalf("deployment %v and error %v", d, err)
		}
		if d != nil {
			i, reasons := d.Instance(4)
			if (i == nil) == (len(reasons) == 0) {
				t.Fatalf("instance %v and reasons %v", i, reasons)
			}
		}
	})
}
