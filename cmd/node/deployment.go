package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"kvferry/kv"
)

// deploymentFlags are the flags that say what is deployed on both sides.
type deploymentFlags struct {
	model, prefill, decode string
	output                 string
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
  layout: nhd                # nhd: page, token, head; hnd: page, head, token

where layers is a count or a list such as 0-31,40, and a component may say
optional: true. Or, with --model, it is a short form such as

  tp=2,pp=2,dp=1,page=16,layout=nhd,pp_layers=15,17

whose defaults are tp=1, pp=1, dp=1, page=16, layout=nhd.`

func (f *deploymentFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.model, "model", "", "model of the short form, such as llama-3.1-8b; an unknown name lists all")
	c.Flags().StringVar(&f.prefill, "prefill", "", "prefill deployment: a file, or tp=..,pp=..,dp=..,page=..,layout=..,pp_layers=..")
	c.Flags().StringVar(&f.decode, "decode", "", "decode deployment: a file, or the short form")
	c.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
}

// read reads both deployments. The error has all that is wrong with either.
func (f *deploymentFlags) read() (prefill, decode *kv.Deployment, err error) {
	if f.output != "text" && f.output != "json" {
		return nil, nil, malformed("--output is %q, want text or json", f.output)
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

// readDeployment reads what a flag says of a deployment: a file, or the short
// form of the named model. The error has all that is wrong, by file and field.
func readDeployment(flag, value, model string) (*kv.Deployment, error) {
	switch {
	case value == "":
		return nil, fmt.Errorf("--%s is missing: want a deployment file, or a short form such as tp=2,page=16 with --model", flag)
	case isFile(value):
		text, err := os.ReadFile(value)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return parseDeployment(value, text)
	}
	return parseShort("--"+flag, value, model)
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
