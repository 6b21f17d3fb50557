package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"kvferry/kv"
)

// componentJSON is a component as deployment files have it.
type componentJSON struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Layers    string `json:"layers"`
	Heads     int    `json:"heads"`
	HeadBytes uint64 `json:"head_bytes"`
	DType     string `json:"dtype"`
	Optional  bool   `json:"optional,omitempty"`
	RowTokens uint32 `json:"row_tokens,omitempty"`
	Window    uint64 `json:"window,omitempty"`
	SlotRows  uint32 `json:"slot_rows,omitempty"`
	Tensor    string `json:"tensor,omitempty"`
	Layout    string `json:"layout,omitempty"`
	PageAlign uint64 `json:"page_align,omitempty"`
}

type modelJSON struct {
	Name            string          `json:"name"`
	Components      []componentJSON `json:"components"`
	Layers          int             `json:"layers"` // that cache anything, without those of a draft model
	BytesPerToken   float64         `json:"bytes_per_token"`
	BytesPerRequest uint64          `json:"bytes_per_request"`
	Tokens          uint64          `json:"tokens"`
}

// sideJSON is one side of an example, as deployment files have it.
type sideJSON struct {
	Instances int `json:"instances"` // 0: not said, or any number
	Parallel  struct {
		TP          int  `json:"tp"`
		PP          int  `json:"pp"`
		DP          int  `json:"dp"`
		DPAttention bool `json:"dp_attention,omitempty"`
	} `json:"parallel"`
	PageTokens uint32 `json:"page_tokens"`
	Layout     string `json:"layout"`
}

type exampleJSON struct {
	ID      string   `json:"id"`
	Model   string   `json:"model"`
	Prefill sideJSON `json:"prefill"`
	Decode  sideJSON `json:"decode"`
	Fits    bool     `json:"fits"`
	Note    string   `json:"note"`
}

type modelsJSON struct {
	Models   []modelJSON   `json:"models"`
	Examples []exampleJSON `json:"examples"`
}

func newModelsCommand() *cobra.Command {
	var tokens int64
	var output string
	c := &cobra.Command{
		Use:   "models [NAME]",
		Short: "List the models and the deployments that are known by name",
		Long: `Models lists what --model and --example take: the models and what they cache, and
published deployments of them. With the name of either it shows that one in detail.

BYTES/TOKEN is what each token adds to a request for good. BYTES/REQUEST is all of
a request of N tokens: also the last tokens of sliding windows, and the state of
layers that have some. LAYERS are those that cache anything. What is in brackets
is a draft model's: no total has it.

FITS says whether the two sides of an example work together; kvferry check
--example says how, or why not.

Exit codes: 0; 1, there is no such model or example.`,
		Example: `  kvferry models
  kvferry models gemma-3-27b --tokens 32768
  kvferry models user-glm5.1-pp4
  kvferry models deepseek-v3 -o json`,
		Args:         cobra.MaximumNArgs(1),
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return malformed("--output is %q, want text or json", output)
			}
			if tokens < 1 || tokens > maxCount {
				return malformed("--tokens is %d, want 1 to %d", tokens, maxCount)
			}
			models, examples, err := chosen(args)
			if err != nil {
				return err
			}
			switch out := c.OutOrStdout(); {
			case output == "json":
				return writeJSON(out, modelsOf(models, examples, uint64(tokens)))
			case len(args) == 0:
				return writeModels(out, models, examples, uint64(tokens))
			default:
				return writeOne(out, &models[0], examples, uint64(tokens))
			}
		},
	}
	c.Flags().Int64Var(&tokens, "tokens", 8192, "tokens of the request (N), at least 1")
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

// chosen is what the argument names: a model, or an example and its model; without
// one, all.
func chosen(args []string) ([]kv.Model, []kv.Example, error) {
	if len(args) == 0 {
		return kv.Models(), kv.Examples(), nil
	}
	if m, ok := kv.LookupModel(args[0]); ok {
		return []kv.Model{m}, nil, nil
	}
	if e, ok := kv.LookupExample(args[0]); ok {
		m, _ := kv.LookupModel(e.Prefill.Model.ID)
		return []kv.Model{m}, []kv.Example{e}, nil
	}
	return nil, nil, malformed("there is no model and no example %q: kvferry models lists them", args[0])
}

// modelsOf is the answer for scripts. Its lists are never nil.
func modelsOf(models []kv.Model, examples []kv.Example, tokens uint64) modelsJSON {
	out := modelsJSON{Models: []modelJSON{}, Examples: []exampleJSON{}}
	for i := range models {
		m := &models[i]
		j := modelJSON{Name: m.ID, Layers: len(cachedLayers(m)), BytesPerToken: m.TokenBytes(), BytesPerRequest: m.RequestBytes(tokens), Tokens: tokens}
		for _, c := range m.Components {
			j.Components = append(j.Components, componentJSON{
				Name: c.Name, Kind: c.Kind.String(), Layers: kv.FormatLayers(c.Layers), Heads: c.Heads, HeadBytes: c.HeadBytes, DType: c.DType.String(),
				Optional: c.Optional, RowTokens: c.RowTokens, Window: c.Window, SlotRows: c.SlotRows, Tensor: c.Tensor,
				Layout: string(c.Layout), PageAlign: c.PageAlign,
			})
		}
		out.Models = append(out.Models, j)
	}
	for i := range examples {
		e := &examples[i]
		out.Examples = append(out.Examples, exampleJSON{
			ID: e.ID, Model: e.Prefill.Model.ID, Fits: works(e), Note: e.Note,
			Prefill: sideOf(&e.Prefill, e.PrefillInstances), Decode: sideOf(&e.Decode, e.DecodeInstances),
		})
	}
	return out
}

func sideOf(d *kv.Deployment, instances int) sideJSON {
	s := sideJSON{Instances: instances, PageTokens: d.PageTokens, Layout: string(d.Layout)}
	s.Parallel.TP, s.Parallel.PP, s.Parallel.DP, s.Parallel.DPAttention = d.TP, d.PP, d.DP, d.DPAttention
	return s
}

// works answers whether the two sides of an example work together.
func works(e *kv.Example) bool {
	return kv.MatchDeployments(&e.Prefill, &e.Decode, 1, 1).Compatible()
}

// cachedLayers are the layers of which anything is cached, but for a draft model's.
func cachedLayers(m *kv.Model) []int {
	var all []int
	for _, c := range m.Components {
		if !c.Optional {
			all = append(all, c.Layers...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// cached says in short what a model caches: the sections of a tensor once, and once
// in brackets what is a draft model's.
func cached(m *kv.Model) string {
	var names []string
	for _, c := range m.Components {
		name := c.Name
		if c.Tensor != "" {
			name = c.Tensor
		}
		if c.Optional {
			name, _, _ = strings.Cut(name, ".")
			name = "[" + name + "]"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// keeps says how much of a request a component has rows of.
func keeps(c *kv.Component) string {
	rows := "a row"
	if c.SlotRows > 1 {
		rows = fmt.Sprintf("%d rows", c.SlotRows)
	}
	switch {
	case c.Kind == kv.Slot && c.RowTokens > 1:
		return fmt.Sprintf("%s of an open group of %d tokens", rows, c.RowTokens)
	case c.Kind == kv.Slot:
		return rows + " of a request"
	case c.Window > 0:
		return fmt.Sprintf("the last %d tokens", c.Window)
	case c.RowTokens > 1:
		return fmt.Sprintf("a row of %d tokens", c.RowTokens)
	}
	return "all tokens"
}

// perToken writes bytes of a token, of which compressed rows make fractions.
func perToken(n float64) string {
	whole := uint64(n)
	if n == float64(whole) {
		return grouped(whole)
	}
	return grouped(whole) + strings.TrimPrefix(strconv.FormatFloat(n-float64(whole), 'f', 2, 64), "0")
}

// shortOf is a side in the short form that --prefill and --decode take.
func shortOf(d *kv.Deployment, instances int) string {
	var s strings.Builder
	if instances > 1 {
		fmt.Fprintf(&s, "%d x ", instances)
	}
	fmt.Fprintf(&s, "tp=%d", d.TP)
	if d.PP > 1 {
		fmt.Fprintf(&s, ",pp=%d", d.PP)
	}
	if d.DP > 1 {
		fmt.Fprintf(&s, ",dp=%d", d.DP)
	}
	if d.DPAttention {
		s.WriteString(",dp_attention=true")
	}
	fmt.Fprintf(&s, ",page=%d,layout=%s", d.PageTokens, d.Layout)
	return s.String()
}

// writeModels lists models and examples for people.
func writeModels(w io.Writer, models []kv.Model, examples []kv.Example, tokens uint64) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tCACHE\tLAYERS\tBYTES/TOKEN\tBYTES/REQUEST")
	for i := range models {
		m := &models[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", m.ID, cached(m), len(cachedLayers(m)), perToken(m.TokenBytes()), humanBytes(m.RequestBytes(tokens)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nA request has %s tokens.\n\n", grouped(tokens))
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tMODEL\tPREFILL\tDECODE\tFITS")
	for i := range examples {
		e := &examples[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.ID, e.Prefill.Model.ID,
			shortOf(&e.Prefill, e.PrefillInstances), shortOf(&e.Decode, e.DecodeInstances), yesOrNo(works(e)))
	}
	return t.Flush()
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// writeOne writes a model in detail, below the example that it is of, if any.
func writeOne(w io.Writer, m *kv.Model, examples []kv.Example, tokens uint64) error {
	for i := range examples {
		e := &examples[i]
		fmt.Fprintf(w, "%s: %s\nprefill  %s\ndecode   %s\nfits     %s\n\n", e.ID, e.Note,
			shortOf(&e.Prefill, e.PrefillInstances), shortOf(&e.Decode, e.DecodeInstances), yesOrNo(works(e)))
	}
	fmt.Fprintf(w, "%s: %d layers, %s bytes a token, %s bytes a request of %s tokens\n\n",
		m.ID, len(cachedLayers(m)), perToken(m.TokenBytes()), grouped(m.RequestBytes(tokens)), grouped(tokens))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COMPONENT\tKEEPS\tHEADS\tHEAD_BYTES\tDTYPE\tBYTES/REQUEST\tLAYERS")
	for _, c := range m.Components {
		name, alone := c.Name, c
		if alone.Optional = false; c.Optional {
			name = "[" + name + "]"
		}
		bytes := (&kv.Model{Components: []kv.Component{alone}}).RequestBytes(tokens)
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", name, keeps(&c), c.Heads, c.HeadBytes, c.DType, grouped(bytes), kv.FormatLayers(c.Layers))
	}
	return t.Flush()
}
