package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"kvferry/kv"
)

// deploymentFlags are the flags that say what is deployed on both sides.
type deploymentFlags struct {
	model, prefill, decode string
	example                string
	output                 string
	changed                func(flag string) bool // it was given, whatever its default; nil: none was
}

const deploymentHelp = `A deployment is a YAML or JSON file,

  model:
    id: my-model
    revision: "1"            # optional; compared
    components:
      - {name: k, kind: paged, layers: 32, heads: 8, head_bytes: 256, dtype: bf16}
      - {name: v, kind: paged, layers: 32, heads: 8, head_bytes: 256, dtype: bf16}
  parallel: {tp: 2, pp: 2, dp: 1}
  pp_layers: [15, 17]        # optional; default: as even as possible
  page_tokens: 16
  layout: nhd                # nhd: page, row, head; hnd: page, head, row; or an
                             # order such as page,layer,row,head

where layers is a count or a list such as 0-31,40. A component may also say

  optional: true             # sent if both sides have it
  row_tokens: 4              # tokens that one row stands for; page_tokens is a multiple
  window: 1024               # only so many of the last tokens are kept
  kind: slot                 # rows of a request, not of its tokens: slot_rows: 3;
                             # with row_tokens, of the group of tokens that is open
  tensor: conv               # lies beside the others of that name in one tensor
  layout: hnd                # of its tensor; so is page_align

and a deployment

  parallel: {tp: 16, pp: 1, dp: 16, dp_attention: true}  # dp ranks share the tp ranks
  parallel: {tp: 1, pp: 1, dp: 1, cp: 4, cp_split: tokens}
                             # copies; pages: a range each; tokens: they take turns
  page_align: 576            # bytes that the start of a page is a multiple of
  slots: 64                  # of each rank, of slot components

Or, with --model, it is a short form such as

  tp=2,pp=2,dp=1,page=16,layout=nhd,pp_layers=15,17
  tp=16,dp=16,dp_attention=true,page=64    cp=4,cp_split=pages    dcp=8

whose defaults are tp=1, pp=1, dp=1, page=16, layout=nhd; dcp=8 is cp=8,cp_split=tokens.
docs/kv.md explains all of it. Or, with --example, both
sides and their model are a published deployment. kvferry models lists the models
and the examples.`

func (f *deploymentFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.model, "model", "", "model of the short form, such as llama-3.1-8b; an unknown name lists all")
	c.Flags().StringVar(&f.prefill, "prefill", "", "prefill deployment: a file, or a short form such as tp=2,pp=2,page=16")
	c.Flags().StringVar(&f.decode, "decode", "", "decode deployment: a file, or the short form")
	c.Flags().StringVar(&f.example, "example", "", "published deployment instead of --model, --prefill and --decode; an unknown id lists all")
	f.changed = c.Flags().Changed
	c.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
}

// read reads both deployments. The error has all that is wrong with either.
func (f *deploymentFlags) read() (prefill, decode *kv.Deployment, err error) {
	if f.output != "text" && f.output != "json" {
		return nil, nil, malformed("--output is %q, want text or json", f.output)
	}
	if f.changed != nil && f.changed("example") {
		return f.readExample()
	}
	prefill, perr := readDeployment("prefill", f.prefill, f.model)
	decode, derr := readDeployment("decode", f.decode, f.model)
	if err := errors.Join(perr, derr); err != nil {
		return nil, nil, &exitError{exitMalformed, err}
	}
	if f.model != "" && isFile(f.prefill) && isFile(f.decode) {
		return nil, nil, malformed("--model %s is for the short form, but --prefill %s and --decode %s are files with models of their own",
			f.model, f.prefill, f.decode)
	}
	return prefill, decode, nil
}

// readExample is both deployments of an example, which leaves nothing for the flags
// that say what is deployed.
func (f *deploymentFlags) readExample() (prefill, decode *kv.Deployment, err error) {
	var errs []error
	for _, flag := range []string{"model", "prefill", "decode"} {
		if f.changed(flag) {
			errs = append(errs, fmt.Errorf("--%s is there beside --example %s, which has a model and both deployments: leave one out", flag, f.example))
		}
	}
	e, ok := kv.LookupExample(f.example)
	if !ok {
		errs = append(errs, fmt.Errorf("--example: there is no example %q, want one of %s", f.example, exampleNames()))
	}
	if len(errs) > 0 {
		return nil, nil, &exitError{exitMalformed, errors.Join(errs...)}
	}
	return &e.Prefill, &e.Decode, nil
}

// readDeployment reads what a flag says of a deployment: a file, or the short
// form of the named model. The error has all that is wrong, by file and field.
func readDeployment(flag, value, model string) (*kv.Deployment, error) {
	switch {
	case value == "":
		return nil, fmt.Errorf("--%s is missing: want a deployment file, or a short form such as tp=2,page=16 with --model", flag)
	case isFile(value):
		text, err := readFile(value)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return parseDeployment(value, text)
	}
	return parseShort("--"+flag, value, model)
}

// maxFile is the bytes of a deployment file: every layer of every component by its
// number is a megabyte.
const maxFile = 16 << 20

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes, want a deployment file of at most so many", name, maxFile)
	}
	return text, nil
}

// isFile tells a file from the short form: a name with no equals sign, or
// anything that is there.
func isFile(value string) bool {
	if !strings.Contains(value, "=") {
		return true
	}
	_, err := os.Stat(value)
	return err == nil
}

// sound adds the checks that need the whole deployment. where is the file or
// flag it came from.
func sound(where string, d *kv.Deployment) (*kv.Deployment, error) {
	var errs []error
	for _, r := range d.Malformed() {
		errs = append(errs, fmt.Errorf("%s: %s: %w", where, r.Field, r))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return d, nil
}

func modelNames() string {
	var names []string
	for _, m := range kv.Models() {
		names = append(names, m.ID)
	}
	return strings.Join(names, ", ")
}

func exampleNames() string {
	var names []string
	for _, e := range kv.Examples() {
		names = append(names, e.ID)
	}
	return strings.Join(names, ", ")
}
