package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"kvferry/kv"
)

// parseDeployment reads a deployment file, YAML or JSON. The error has all that
// is wrong with it, by line and field.
func parseDeployment(name string, text []byte) (*kv.Deployment, error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		// JSON is YAML but for its tabs, which stand only between values.
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: the file is empty", name)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want one document, found another behind it", name)
	}
	r := &fileReader{name: name}
	d := &kv.Deployment{}
	r.deployment(doc.Content[0], d)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return sound(name, d)
}

// fileReader walks the document. It goes on after an error, to find them all.
type fileReader struct {
	name string
	errs []error
}

func (r *fileReader) fail(n *yaml.Node, path, format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if path != "" {
		text = path + ": " + text
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.name, n.Line, text))
}

// field is a field that a mapping may have.
type field struct {
	name     string
	required bool
	read     func(n *yaml.Node, path string)
}

// mapping reads the fields of a mapping: each at most once, none that is unknown,
// all that are required.
func (r *fileReader) mapping(n *yaml.Node, path string, fields []field) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "want fields (%s)", fieldNames(fields))
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		k := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		switch {
		case k < 0:
			r.fail(key, at, "no such field, want %s", fieldNames(fields))
		case seen[key.Value]:
			r.fail(key, at, "is there twice")
		default:
			fields[k].read(resolve(value), at)
		}
		seen[key.Value] = true
	}
	for _, f := range fields {
		if f.required && !seen[f.name] {
			r.fail(n, join(path, f.name), "is missing")
		}
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func fieldNames(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

func (r *fileReader) deployment(n *yaml.Node, d *kv.Deployment) {
	r.mapping(n, "", []field{
		{"model", true, func(n *yaml.Node, path string) {
			r.mapping(n, path, []field{
				{"id", true, r.text(&d.Model.ID)},
				{"revision", false, func(n *yaml.Node, path string) {
					if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
						d.Model.Revision = n.Value // also none: "" is like no revision
						return
					}
					r.text(&d.Model.Revision)(n, path)
				}},
				{"components", true, func(n *yaml.Node, path string) { d.Model.Components = r.components(n, path) }},
			})
		}},
		{"parallel", true, func(n *yaml.Node, path string) {
			r.mapping(n, path, []field{
				{"tp", true, r.count(&d.TP)}, {"pp", true, r.count(&d.PP)}, {"dp", true, r.count(&d.DP)},
				{"cp", false, r.count(&d.CP)},
				{"cp_split", false, func(n *yaml.Node, path string) { parsed(r, n, path, &d.Split, kv.ParseSplit) }},
				{"dp_attention", false, r.flag(&d.DPAttention)},
			})
		}},
		{"pp_layers", false, func(n *yaml.Node, path string) {
			r.sequence(n, path, func(n *yaml.Node, path string) {
				var layers int
				r.count(&layers)(n, path)
				d.PPLayers = append(d.PPLayers, layers)
			})
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				r.fail(n, path, "has 0 entries, want one for each stage")
			}
		}},
		{"page_tokens", true, number(r, &d.PageTokens)},
		{"layout", true, func(n *yaml.Node, path string) { parsed(r, n, path, &d.Layout, kv.ParseLayout) }},
		{"page_align", false, number(r, &d.PageAlign)},
		{"slots", false, number(r, &d.Slots)},
	})
}

func (r *fileReader) components(n *yaml.Node, path string) []kv.Component {
	var out []kv.Component
	r.sequence(n, path, func(n *yaml.Node, path string) {
		var c kv.Component
		joinLayers(n)
		r.mapping(n, path, []field{
			{"name", true, r.text(&c.Name)},
			{"kind", true, func(n *yaml.Node, path string) { parsed(r, n, path, &c.Kind, kv.ParseKind) }},
			{"layers", true, func(n *yaml.Node, path string) { c.Layers = r.layers(n, path) }},
			{"heads", true, r.count(&c.Heads)},
			{"head_bytes", true, number(r, &c.HeadBytes)},
			{"dtype", true, func(n *yaml.Node, path string) { parsed(r, n, path, &c.DType, kv.ParseDType) }},
			{"optional", false, r.flag(&c.Optional)},
			{"row_tokens", false, number(r, &c.RowTokens)},
			{"window", false, number(r, &c.Window)},
			{"slot_rows", false, number(r, &c.SlotRows)},
			{"tensor", false, r.text(&c.Tensor)},
			{"layout", false, func(n *yaml.Node, path string) { parsed(r, n, path, &c.Layout, kv.ParseLayout) }},
			{"page_align", false, number(r, &c.PageAlign)},
		})
		if c.Name != "" && slices.ContainsFunc(out, func(o kv.Component) bool { return o.Name == c.Name }) {
			r.fail(n, path+".name", "component %q is there twice", c.Name)
		}
		out = append(out, c)
	})
	if n.Kind == yaml.SequenceNode && len(out) == 0 {
		r.fail(n, path, "want at least one component")
	}
	return out
}

// joinLayers puts a list of layers together again that stands without quotes
// within braces: to YAML, {layers: 0-31,40, heads: 8} has a field 40 of no value.
func joinLayers(n *yaml.Node) {
	for i := 2; i+1 < len(n.Content); {
		key, value := n.Content[i], n.Content[i+1]
		before, list := n.Content[i-2], n.Content[i-1]
		_, err := parseList(key.Value, maxLayer)
		if n.Kind != yaml.MappingNode || before.Value != "layers" || list.Kind != yaml.ScalarNode || err != nil || value.Tag != "!!null" || value.Value != "" {
			i += 2
			continue
		}
		list.Value += "," + key.Value
		list.Tag = "!!str"
		n.Content = slices.Delete(n.Content, i, i+2)
	}
}

func (r *fileReader) sequence(n *yaml.Node, path string, read func(n *yaml.Node, path string)) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, path, "want a list")
		return
	}
	for i, item := range n.Content {
		read(resolve(item), fmt.Sprintf("%s[%d]", path, i))
	}
}

// text reads a name. What looks like a number is one all the same.
func (r *fileReader) text(to *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
			r.fail(n, path, "want a text")
			return
		}
		*to = n.Value
	}
}

// count reads a whole number of at least 1.
func (r *fileReader) count(to *int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
			r.fail(n, path, "is %s, want a whole number", shown(n))
			return
		}
		v, err := parseCount(n.Value)
		if err != nil {
			r.fail(n, path, "%v", err)
			return
		}
		*to = v
	}
}

// number is count of another type of numbers.
func number[T uint32 | uint64](r *fileReader, to *T) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		var v int
		r.count(&v)(n, path)
		*to = T(v)
	}
}

// flag reads true or false.
func (r *fileReader) flag(to *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Tag != "!!bool" || n.Decode(to) != nil {
			r.fail(n, path, "is %s, want true or false", shown(n))
		}
	}
}

// parsed reads a scalar by its name in a fixed set.
func parsed[T any](r *fileReader, n *yaml.Node, path string, to *T, parse func(string) (T, error)) {
	if n.Kind != yaml.ScalarNode {
		r.fail(n, path, "want a name")
		return
	}
	v, err := parse(n.Value)
	if err != nil {
		r.fail(n, path, "%v", err)
		return
	}
	*to = v
}

func shown(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return strconv.Quote(n.Value)
	}
	return "no scalar"
}

// layers reads a count of layers, or a list such as 0-31,40.
func (r *fileReader) layers(n *yaml.Node, path string) []int {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!int" {
		var count int
		r.count(&count)(n, path)
		if count > maxLayer+1 {
			r.fail(n, path, "is %d, want 1 to %d", count, maxLayer+1)
			return nil
		}
		out := make([]int, count)
		for i := range out {
			out[i] = i
		}
		return out
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		r.fail(n, path, "is %s, want a count or a list such as 0-31,40", shown(n))
		return nil
	}
	ranges, err := parseList(n.Value, maxLayer)
	if err != nil {
		r.fail(n, path, "%v", err)
		return nil
	}
	var out []int
	for _, g := range ranges {
		for l := g.first; l <= g.last; l++ {
			out = append(out, int(l))
		}
		if len(out) > maxLayer+1 {
			break // some are there twice: said below
		}
	}
	slices.Sort(out)
	for i := 1; i < len(out); i++ {
		if out[i] == out[i-1] {
			r.fail(n, path, "layer %d is there twice in %q", out[i], n.Value)
			return nil
		}
	}
	return out
}

// maxLayer is the highest layer number that kv takes.
const maxLayer = 1<<14 - 1

// numbers is the range first to last, both in it.
type numbers struct{ first, last uint64 }

// parseList reads a list such as 3,7,10-12 of numbers up to limit.
func parseList(s string, limit uint64) ([]numbers, error) {
	var out []numbers
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := strconv.ParseUint(lo, 10, 64)
		last, err2 := strconv.ParseUint(hi, 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%q is no number and no range of them, want a list such as 3,7,10-12", part)
		}
		if first > last {
			return nil, fmt.Errorf("the range %s begins at %d and ends at %d", part, first, last)
		}
		if last > limit {
			return nil, fmt.Errorf("%d is too large, want at most %d", last, limit)
		}
		out = append(out, numbers{first, last})
	}
	return out, nil
}
