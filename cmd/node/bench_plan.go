package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"kvferry/cmd/node/bench"
	"kvferry/kv"
)

type benchPlanFlags struct {
	deploymentFlags
	tokens, prefix int64
	together       int
	seed           uint64
}

func newBenchPlanCommand() *cobra.Command {
	var f benchPlanFlags
	c := &cobra.Command{
		Use:   "plan",
		Short: "Measure what planning costs",
		Long: `Plan measures what it costs a prefill rank to find out which bytes of a request of N
tokens it sends to a decode rank: the first pair of ranks that moves anything, and
pages in no order on both sides. With --together some of them follow one another, as
they do in a pool that is not full.

The plan is strided copies of RUNS of pages. EXPANDED is the same plan written out row by row, as
planners do that know no strides; ON THE WIRE is what the decode rank's pages take in
its grant.

` + deploymentHelp + `

Exit codes: 0; 1, a file is no deployment, or there is nothing to plan; 2, the
deployments cannot work.`,
		Example: `  kvferry bench plan
  kvferry bench plan --model llama-3.1-8b --prefill tp=2 --decode tp=4,layout=hnd --tokens 32768 -o json`,
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.add(c)
	for flag, d := range map[string]struct {
		value *string
		text  string
	}{"model": {&f.model, "llama-3.1-70b"}, "prefill": {&f.prefill, "tp=2,page=64"}, "decode": {&f.decode, "tp=4,page=64"}} {
		*d.value = d.text
		c.Flags().Lookup(flag).DefValue = d.text
	}
	c.Flags().Int64Var(&f.tokens, "tokens", 131072, "tokens of the request (N), at least 1")
	c.Flags().Int64Var(&f.prefix, "prefix", 0, "tokens that decode has already (M), less than N")
	c.Flags().IntVar(&f.together, "together", 1, "pages of each side that follow one another, at least 1")
	c.Flags().Uint64Var(&f.seed, "seed", 1, "seed of the order of the pages")
	return c
}

type benchPlanJSON struct {
	Writer   rankJSON `json:"writer"`
	Receiver rankJSON `json:"receiver"`
	*bench.Plan
}

func (f *benchPlanFlags) run(c *cobra.Command) error {
	if !c.Flags().Changed("model") && isFile(f.prefill) && isFile(f.decode) {
		f.model = "" // the default is for the short form; files have models of their own
	}
	prefill, decode, err := f.read()
	if err != nil {
		return err
	}
	if f.tokens < 1 || f.tokens > maxPlanTokens {
		return malformed("--tokens is %d, want 1 to %d", f.tokens, maxPlanTokens)
	}
	if f.prefix < 0 || f.prefix >= f.tokens {
		return malformed("--prefix is %d, want 0 to less than the %d of --tokens", f.prefix, f.tokens)
	}
	if f.together < 1 {
		return malformed("--together is %d, want at least 1", f.together)
	}
	if fit := kv.MatchDeployments(prefill, decode, 1, 1); !fit.Compatible() {
		writeReasons(c.ErrOrStderr(), fit)
		return &exitError{code: exitImpossible}
	}
	p, err := bench.MeasurePlan(bench.PlanConfig{Prefill: prefill, Decode: decode, Prefix: uint64(f.prefix), Length: uint64(f.tokens), Together: f.together, Seed: f.seed})
	if err != nil {
		return malformed("%w", err)
	}
	j := benchPlanJSON{rankOf(p.Writer), rankOf(p.Receiver), p}
	if f.output == "json" {
		return json.NewEncoder(c.OutOrStdout()).Encode(j)
	}
	return f.writeText(c, &j)
}

func (f *benchPlanFlags) writeText(c *cobra.Command, j *benchPlanJSON) error {
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%s tokens, %s from %s to %s, pages %s\n\n", grouped(j.Tokens), humanBytes(j.Bytes), j.Writer, j.Receiver, f.orderText()); err != nil {
		return err
	}
	t := table{head: []string{"", "RECORDS", "RUNS", "TIME", "ON THE WIRE"}}
	t.add("plan", grouped(uint64(j.Records)), grouped(uint64(j.Runs)), humanMicros(j.BuildUS), humanBytes(uint64(j.WireBytes)))
	t.add("expanded", grouped(j.ExpandedRecords), "", humanMicros(j.ExpandedUS), "")
	if err := t.write(out, ""); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nThe plan takes 1/%.0f of the time.\n", j.Ratio)
	return err
}

// orderText is how pages lie.
func (f *benchPlanFlags) orderText() string {
	if f.together == 1 {
		return "in no order"
	}
	return fmt.Sprintf("%s together", grouped(uint64(f.together)))
}

// humanMicros is a number of microseconds in milliseconds.
func humanMicros(us float64) string {
	return humanMillis(time.Duration(us * float64(time.Microsecond)))
}
