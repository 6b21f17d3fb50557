package main

import (
	"strings"
	"testing"

	"kvferry/kv"
)

// everything is a file with every field that there is.
const everything = `model:
  id: hybrid
  revision: "2"
  components:
    - {name: k, kind: paged, layers: 0-2,5, heads: 4, head_bytes: 8, dtype: bf16}
    - {name: swa, kind: paged, layers: 3-3, heads: 2, head_bytes: 4, dtype: fp8_e4m3, window: 128}
    - {name: c4, kind: paged, layers: 1-1, heads: 1, head_bytes: 6, dtype: uint8, row_tokens: 4, layout: "layer,page,row,head", page_align: 64}
    - {name: c4.open, kind: slot, layers: 1-1, heads: 1, head_bytes: 4, dtype: f32, row_tokens: 4, slot_rows: 4}
    - {name: conv.q, kind: slot, layers: 4-4, heads: 2, head_bytes: 2, dtype: f16, slot_rows: 3, tensor: conv}
    - {name: conv.v, kind: slot, layers: 4-4, heads: 4, head_bytes: 2, dtype: f16, slot_rows: 3, tensor: conv}
    - {name: draft, kind: paged, layers: 61-61, heads: 2, head_bytes: 4, dtype: bf16, optional: true}
parallel: {tp: 4, pp: 2, dp: 2, cp: 2, cp_split: pages, dp_attention: true}
pp_layers: [2, 4]
page_tokens: 16
page_align: 576
slots: 3
layout: page,layer,row,head
`

// ofReadme is the file that the README shows.
const ofReadme = `model:
  id: my-model
  components:
    - {name: k, kind: paged, layers: 32, heads: 8, head_bytes: 256, dtype: bf16}
    - {name: v, kind: paged, layers: 32, heads: 8, head_bytes: 256, dtype: bf16}
parallel: {tp: 2, pp: 2, dp: 1}
pp_layers: [15, 17]
page_tokens: 16
layout: nhd
`

// deploymentSeeds are files that a fuzzer begins with, sound and not.
func deploymentSeeds() []string {
	seeds := []string{sound1, asJSON, ofReadme, everything}
	for _, change := range [][2]string{
		{"cp_split: pages", "cp_split: tokens"}, {"cp_split: pages", "cp_split: copies"}, {"cp_split: pages", "cp_split: none"},
		{"dp_attention: true", "dp_attention: 1"}, {"dp: 2, cp", "dp: 3, cp"},
		{"layout: page,layer,row,head", "layout: hnd"}, {"layout: page,layer,row,head", "layout: part,layer,page,head,row"},
		{"layout: page,layer,row,head", "layout: row,page,layer,head"}, {"layout: page,layer,row,head", "layout: page,page,row,head"},
		{"window: 128", "window: 2147483647"}, {"window: 128", "window: 1e300"}, {"window: 128", "window: 18446744073709551616"},
		{"head_bytes: 8", "head_bytes: 2147483646"}, {"page_tokens: 16", "page_tokens: 2147483647"}, {"page_align: 576", "page_align: 2147483647"},
		{"page_align: 64", "page_align: 2147483647"}, {"row,head\", page", "row\", page"}, {"dtype: f16, slot_rows: 3, tensor: conv}", "dtype: f16, slot_rows: 3, tensor: conv, layout: hnd}"},
		{"slots: 3", "slots: 2147483647"}, {"slot_rows: 4", "slot_rows: 65536"}, {"slot_rows: 4", "slot_rows: 65537"}, {"row_tokens: 4, layout", "row_tokens: 3, layout"},
		{"tp: 4", "tp: 2147483647"}, {"pp: 2", "pp: 2147483647"}, {"[2, 4]", "[2147483647, 2147483647]"}, {"[2, 4]", "[6]"}, {"[2, 4]", "[]"},
		{"0-2,5", "16383"}, {"0-2,5", "0-16383"}, {"0-2,5", "0-2,2"}, {"0-2,5", "5-2"}, {"0-2,5", "-1"},
		{"name: conv.v", "name: conv.q"}, {"tensor: conv}", "tensor: k}"}, {"slot_rows: 3, tensor", "slot_rows: 2, tensor"}, {"layers: 4-4, heads: 2", "layers: 3-4, heads: 2"},
		{"kind: slot", "kind: paged"}, {"window: 128", "window: 128, slot_rows: 2"}, {"slots: 3", "slots: 3\nslots: 4"}, {"optional: true", "optional: maybe"},
	} {
		seeds = append(seeds, strings.Replace(everything, change[0], change[1], 1))
	}
	return seeds
}

// fieldsOfFile are names of which every error about a field has one, and what
// errors about the whole file say.
var fieldsOfFile = []string{
	"model", "parallel", "pp_layers", "page_tokens", "layout", "page_align", "slots",
	"name", "kind", "layers", "heads", "head_bytes", "dtype", "optional", "row_tokens", "window", "slot_rows", "tensor", "components",
	"yaml:", "file is empty", "one document",
}

// FuzzDeployment: a file is refused by file and field, or it can be laid out or is
// refused by field, and matched with itself and with another.
func FuzzDeployment(f *testing.F) {
	for _, s := range deploymentSeeds() {
		f.Add([]byte(s))
	}
	for _, text := range []string{ofReadme, everything} {
		if _, err := parseDeployment("what the fuzzer begins with", []byte(text)); err != nil {
			f.Fatal(err)
		}
	}
	plain, err := parseDeployment("plain", []byte(sound1))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseDeployment("f", text)
		if err != nil {
			for _, e := range each(err) {
				if text, here := strings.CutPrefix(e.Error(), "f:"); !here || !namesOne(text) {
					t.Fatalf("an error that names no field: %v", e)
				}
			}
			return
		}
		if tooMany(d) {
			return
		}
		i, reasons := d.Instance(4)
		if (i == nil) == (len(reasons) == 0) {
			t.Fatalf("instance %v and reasons %v", i, reasons)
		}
		self, other := kv.MatchDeployments(d, d, 4, 4), kv.MatchDeployments(d, plain, 4, 4)
		if i != nil && !self.Compatible() {
			t.Fatalf("it has an instance and does not work with itself: %v", self.Reasons())
		}
		for _, r := range append(append(reasons, self.Reasons()...), other.Reasons()...) {
			if r.Field == "" || r.Text == "" {
				t.Fatalf("a reason that says nothing: %+v", r)
			}
		}
		kv.MatchDeployments(plain, d, 4, 4).Warnings()
	})
}

// each is the errors that were joined.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

func namesOne(text string) bool {
	for _, name := range fieldsOfFile {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

// tooMany answers whether a deployment has more tensors than a fuzzer has time for.
func tooMany(d *kv.Deployment) bool {
	tensors := uint64(0)
	for _, c := range d.Model.Components {
		tensors += uint64(len(c.Layers))
	}
	for _, n := range []int{d.TP, d.PP, d.DP, max(1, d.CP)} {
		if tensors *= uint64(n); tensors > 1<<12 {
			return true
		}
	}
	return false
}
