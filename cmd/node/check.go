package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"kvferry/kv"
)

type rankJSON struct {
	TP int `json:"tp"`
	PP int `json:"pp"`
	CP int `json:"cp,omitempty"`
}

func rankOf(r kv.Rank) rankJSON { return rankJSON{TP: r.TP, PP: r.PP, CP: r.CP} }

func (r rankJSON) String() string {
	s := fmt.Sprintf("pp %d tp %d", r.PP, r.TP)
	if r.CP > 0 {
		s += fmt.Sprintf(" cp %d", r.CP)
	}
	return s
}

type reasonJSON struct {
	Field     string `json:"field"`
	Component string `json:"component"`
	Prefill   string `json:"prefill"`
	Decode    string `json:"decode"`
	Text      string `json:"text"`
}

type receiverJSON struct {
	Rank    rankJSON   `json:"rank"`
	Writers []rankJSON `json:"writers"`
}

type checkJSON struct {
	Compatible bool           `json:"compatible"`
	Reasons    []reasonJSON   `json:"reasons"`
	Warnings   []reasonJSON   `json:"warnings,omitempty"` // what works and costs
	Receivers  []receiverJSON `json:"receivers"`
}

func newCheckCommand() *cobra.Command {
	var f deploymentFlags
	c := &cobra.Command{
		Use:   "check --prefill P --decode D",
		Short: "Say whether two deployments work together, and who sends what to whom",
		Long: `Check says whether a prefill and a decode deployment work together before either
is started: per decode rank the writers that it will have and what each of them
sends, or every reason why not.

` + deploymentHelp + `

What works and costs is said too: rows below 512 bytes, writers that send far more
than the others, page sizes that cut every page.

Exit codes: 0, they work together; 1, a file is no deployment; 2, the deployments
are well-formed and cannot work, alone or together. 1 wins over 2.

The ranks are those of one data-parallel rank of each side: the others are alike.
Where several ranks hold the same data, one is elected by the number of the room;
shown is room 0.`,
		Example: `  kvferry check --prefill prefill.yaml --decode decode.yaml
  kvferry check --model llama-3.1-70b --prefill tp=2,pp=2,page=16 --decode tp=4,page=64,layout=hnd
  kvferry check --model deepseek-v3 --prefill tp=8 --decode prod.yaml -o json`,
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			prefill, decode, err := f.read()
			if err != nil {
				return err
			}
			fit := kv.MatchDeployments(prefill, decode, 1, 1)
			out := c.OutOrStdout()
			if f.output == "json" {
				err = writeJSON(out, checkOf(fit))
			} else {
				err = writeCheck(out, fit, prefill, decode)
			}
			if err == nil && !fit.Compatible() {
				err = &exitError{code: exitImpossible}
			}
			return err
		},
	}
	f.add(c)
	return c
}

// checkOf is the answer for scripts. Its lists are never nil.
func checkOf(fit *kv.Fit) checkJSON {
	out := checkJSON{Compatible: fit.Compatible(), Reasons: []reasonJSON{}, Receivers: []receiverJSON{}}
	for _, r := range fit.Reasons() {
		out.Reasons = append(out.Reasons, reasonJSON{r.Field, r.Component, r.Prefill, r.Decode, r.Text})
	}
	for _, r := range fit.Warnings() {
		out.Warnings = append(out.Warnings, reasonJSON{r.Field, r.Component, r.Prefill, r.Decode, r.Text})
	}
	if !fit.Compatible() {
		return out
	}
	for _, r := range fit.Receivers(kv.Route{}) {
		receiver := receiverJSON{Rank: rankOf(r), Writers: []rankJSON{}}
		for _, w := range fit.Candidates(kv.Route{}, r) {
			// Of the file's components, as in plan: who writes nothing but the metadata
			// row, which is KVFerry's own, is in the table for people alone.
			if p, err := fit.Pair(kv.Route{}, w, r, 0, sampleLength); err == nil && len(p.Boxes) > 0 {
				receiver.Writers = append(receiver.Writers, rankOf(w))
			}
		}
		out.Receivers = append(out.Receivers, receiver)
	}
	return out
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// sampleLength is the length of a request of which every component and every rank
// has something: many pages, and a multiple of no group of tokens.
const sampleLength = 1<<30 + 1

// describe says in a line how a model is deployed.
func describe(d *kv.Deployment) string {
	s := fmt.Sprintf("tp %d, pp %d, dp %d", d.TP, d.PP, d.DP)
	if d.DPAttention {
		s += fmt.Sprintf(" (dp attention: tp %d in each)", d.TP/d.DP)
	}
	if d.CP > 1 {
		s += fmt.Sprintf(", cp %d (%s)", d.CP, d.Split)
	}
	s += fmt.Sprintf(", pages of %d tokens, %s", d.PageTokens, d.Layout)
	if d.PageAlign > 1 {
		s += fmt.Sprintf(", page_align %d", d.PageAlign)
	}
	return s
}

// writeReasons lists why not, for people.
func writeReasons(w io.Writer, fit *kv.Fit) {
	n := len(fit.Reasons())
	fmt.Fprintf(w, "These deployments cannot work together, for %d reason%s:\n", n, plural(n))
	for _, r := range fit.Reasons() {
		fmt.Fprintf(w, "  - %s\n", r.Text)
	}
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// writeCheck writes the answer for people.
func writeCheck(w io.Writer, fit *kv.Fit, prefill, decode *kv.Deployment) error {
	fmt.Fprintf(w, "prefill  %s: %s\ndecode   %s: %s\n\n", prefill.Model.ID, describe(prefill), decode.Model.ID, describe(decode))
	if !fit.Compatible() {
		writeReasons(w, fit)
		return nil
	}
	fmt.Fprint(w, "These deployments work together.\n\n")
	if warnings := fit.Warnings(); len(warnings) > 0 {
		fmt.Fprint(w, "It costs more than it has to:\n")
		for _, r := range warnings {
			fmt.Fprintf(w, "  - %s\n", r.Text)
		}
		fmt.Fprintln(w)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RECEIVER\tWRITER\tSENDS\tLAYERS\tHEADS\tBYTES/TOKEN")
	for _, r := range fit.Receivers(kv.Route{}) {
		for _, writer := range fit.Candidates(kv.Route{}, r) {
			p, err := fit.Pair(kv.Route{}, writer, r, 0, sampleLength)
			if err != nil {
				return err
			}
			for _, l := range linesOf(p, &decode.Model) {
				fmt.Fprintf(t, "%s\t%s\t%s\n", rankOf(r), rankOf(writer), l)
			}
		}
	}
	return t.Flush()
}

// linesOf says what a writer sends: one line for the components of which it sends
// the same layers and heads, and as much of a request.
func linesOf(p *kv.Pair, m *kv.Model) []string {
	type line struct {
		names         []string
		layers, heads string
		part          string // "": of each token
		bytes         float64
	}
	var lines []*line
	for _, b := range p.Boxes {
		layers, heads := kv.FormatLayers(b.Layers), b.Heads.String()
		bytes, part := float64(uint64(len(b.Layers))*uint64(b.Heads.High-b.Heads.Low)*b.RowBytes), ""
		n := slices.IndexFunc(m.Components, func(c kv.Component) bool { return c.Name == b.Component })
		switch c := &m.Components[n]; {
		case c.Kind == kv.Slot:
			bytes, part = bytes*float64(b.Rows), "once"
		case c.Window > 0:
			part = fmt.Sprintf("last %d", c.Window)
		default:
			bytes /= float64(max(1, c.RowTokens)) * float64(b.Step)
		}
		k := slices.IndexFunc(lines, func(l *line) bool { return l.layers == layers && l.heads == heads && l.part == part })
		if k < 0 {
			k = len(lines)
			lines = append(lines, &line{layers: layers, heads: heads, part: part})
		}
		lines[k].names = append(lines[k].names, b.Component)
		lines[k].bytes += bytes
	}
	var out []string
	for _, l := range lines {
		bytes := strconv.FormatFloat(l.bytes, 'f', -1, 64)
		if l.bytes != math.Trunc(l.bytes) {
			bytes = strconv.FormatFloat(l.bytes, 'f', 1, 64)
		}
		if l.part != "" {
			bytes += " (" + l.part + ")"
		}
		out = append(out, fmt.Sprintf("%s\t%s\t%s\t%s", strings.Join(l.names, ", "), l.layers, l.heads, bytes))
	}
	if p.Meta {
		out = append(out, "metadata row\t-\t-\t-")
	}
	return out
}
