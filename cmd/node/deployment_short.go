package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kvferry/kv"
)

// parseShort reads the short form tp=2,pp=2,dp=1,page=16,layout=nhd,pp_layers=15,17
// of a deployment of a model that is known by name.
func parseShort(where, text, model string) (*kv.Deployment, error) {
	d := &kv.Deployment{TP: 1, PP: 1, DP: 1, PageTokens: 16}
	var errs []error
	if model == "" {
		errs = append(errs, fmt.Errorf("%s: the short form %q needs --model, one of %s", where, text, modelNames()))
	} else if m, ok := kv.LookupModel(model); ok {
		d.Model = m
	} else {
		errs = append(errs, fmt.Errorf("--model: there is no model %q, want one of %s", model, modelNames()))
	}
	seen := make(map[string]bool)
	key := ""
	for part := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(part), "=")
		if !found && (key == "pp_layers" || key == "layout") {
			// The list of pp_layers, or the order of the layout, goes on.
			name, value = key, name
		} else if seen[name] {
			errs = append(errs, fmt.Errorf("%s: %s is there twice", where, name))
			continue
		}
		key = name
		seen[name] = true
		if other := "cp_split"; seen["dcp"] && (seen["cp"] || seen[other]) {
			if seen["cp"] {
				other = "cp"
			}
			errs = append(errs, fmt.Errorf("%s: dcp and %s are there, want one: dcp=N is cp=N,cp_split=tokens", where, other))
			continue
		}
		if err := setShort(d, name, value, found || name == "pp_layers" || name == "layout"); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", where, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if d.Layout == "" {
		d.Layout = kv.NHD
	}
	return sound(where, d)
}

// setShort sets one field of the short form.
func setShort(d *kv.Deployment, name, value string, found bool) error {
	if !found {
		return fmt.Errorf("%q is no field with a value, want such as tp=2", name)
	}
	var err error
	switch name {
	case "tp":
		d.TP, err = parseCount(value)
	case "pp":
		d.PP, err = parseCount(value)
	case "dp":
		d.DP, err = parseCount(value)
	case "page":
		var n int
		n, err = parseCount(value)
		d.PageTokens = uint32(n)
	case "page_align":
		var n int
		n, err = parseCount(value)
		d.PageAlign = uint64(n)
	case "layout":
		if d.Layout != "" {
			value = string(d.Layout) + "," + value
		}
		d.Layout = kv.Layout(value) // an order goes on: sound looks at all of it
	case "cp":
		d.CP, err = parseCount(value)
	case "cp_split":
		d.Split, err = kv.ParseSplit(value)
	case "dcp":
		d.CP, err = parseCount(value)
		d.Split = kv.Interleaved
	case "dp_attention":
		if d.DPAttention, err = strconv.ParseBool(value); err != nil {
			err = fmt.Errorf("is %q, want true or false", value)
		}
	case "pp_layers":
		var n int
		n, err = parseCount(value)
		d.PPLayers = append(d.PPLayers, n)
	default:
		return fmt.Errorf("%s: no such field, want tp, pp, dp, dp_attention, cp, cp_split, dcp, page, page_align, layout or pp_layers", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// parseCount reads a number of something of which there is at least one.
func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("is %q, want a whole number", s)
	}
	if n < 1 || n > maxCount {
		return 0, fmt.Errorf("is %d, want 1 to %d", n, maxCount)
	}
	return n, nil
}

// maxCount is more than anything that is counted in a deployment.
const maxCount = 1<<31 - 1
