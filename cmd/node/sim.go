package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kvferry/sim"
)

// simFlags are the flags of sim.
type simFlags struct {
	seed   uint64
	seeds  uint64
	trace  string
	shrink bool
	output string
	bug    string
}

func newSimCommand() *cobra.Command {
	var f simFlags
	c := &cobra.Command{
		Use:   "sim",
		Short: "Play bad days of a cluster from seeds, and check that nothing is lost, wrong or stuck",
		Long: `Sim plays a cluster with the real machines that pair nodes and carry rooms, with real
bytes in small pools, and around them a simulated network, gossip, network card and clocks.
A seed draws the deployment, the requests and the faults: cuts of one way, partitions,
crashes and restarts, pauses, clocks that jump, messages lost, late and twice, writes that
fail and have landed, or land later, fences that take long, pools that are full, callers
that give up. What must hold is checked all the time; then the faults end, and everything
has to end, and every count to be back.

With --seed alone one day is played, and its story told: a line for each thing that
happened, with the time of the world in milliseconds, where, and of which room. With --seeds
the days from --seed on are played on all processors. The same seed plays the same day, with
the same digest, on every machine.

Exit codes: 0; 1, a day failed, or the flags are wrong.`,
		Example: `  kvferry sim --seeds 20000
  kvferry sim --seed 1195 --trace story.jsonl
  kvferry sim --seed 1195 --shrink`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return interruptible(c, func(ctx context.Context) error { return f.run(ctx, c) })
		},
	}
	flags := c.Flags()
	flags.Uint64Var(&f.seed, "seed", 1, "the day, or with --seeds the first")
	flags.Uint64Var(&f.seeds, "seeds", 0, "how many days are played (default: one, which is told)")
	flags.StringVar(&f.trace, "trace", "", "file for the story, a JSON object a line")
	flags.BoolVar(&f.shrink, "shrink", false, "leave out faults of a day that fails, as long as it fails in the same way")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.StringVar(&f.bug, "bug", "", "plant a fault of the program, to see that it is found")
	_ = flags.MarkHidden("bug")
	return c
}

// simResult is sim -o json.
type simResult struct {
	Seed     uint64            `json:"seed"` // the first
	Seeds    uint64            `json:"seeds"`
	Failed   []simFailure      `json:"failed"`
	SeedsPer float64           `json:"seeds_per_s"`
	Digest   string            `json:"digest"`
	Rooms    int               `json:"rooms"`    // attempts that callers opened
	Complete int               `json:"complete"` // of them
	Days     map[string]uint64 `json:"days_with_fault"`
	Things   map[string]uint64 `json:"happened"`
	Left     []int             `json:"faults_left,omitempty"` // with --shrink
}

type simFailure struct {
	Seed uint64  `json:"seed"`
	Rule string  `json:"rule"`
	Text string  `json:"text"`
	Ms   float64 `json:"ms"` // of the world
}

func (f *simFlags) run(ctx context.Context, c *cobra.Command) error {
	switch {
	case f.output != "text" && f.output != "json":
		return malformed(`--output is %q, want text or json`, f.output)
	case f.seeds > 1 && (f.trace != "" || f.shrink):
		return malformed("--trace and --shrink are for one day: leave out --seeds")
	case f.bug != "" && !slices.Contains(sim.Bugs(), f.bug):
		return malformed("--bug is %q, want one of %v", f.bug, sim.Bugs())
	}
	if f.seeds > 1 {
		return f.many(ctx, c)
	}
	return f.one(c)
}

// one plays a day and tells it.
func (f *simFlags) one(c *cobra.Command) (err error) {
	out, options := c.OutOrStdout(), sim.Options{Bug: f.bug}
	result := simResult{Seed: f.seed, Seeds: 1, Failed: []simFailure{}}
	began := time.Now()
	if f.shrink {
		left, _ := sim.Shrink(f.seed, options)
		result.Left = left
		options.Keep = func(n int) bool { return slices.Contains(left, n) }
	}
	tell := []func(sim.Line){}
	if f.trace != "" {
		file, err := os.Create(f.trace)
		if err != nil {
			return malformed("--trace: %v", err)
		}
		w := bufio.NewWriter(file)
		lines := json.NewEncoder(w)
		tell = append(tell, func(l sim.Line) { _ = lines.Encode(l) }) // an error stays with w, and is seen at its flush
		defer func() {
			for _, e := range []error{w.Flush(), file.Close()} {
				if err == nil && e != nil {
					err = malformed("--trace: %v", e)
				}
			}
		}()
	}
	if f.output == "text" {
		tell = append(tell, func(l sim.Line) { printLine(out, l) })
	}
	if len(tell) > 0 {
		options.Story = func(l sim.Line) {
			for _, t := range tell {
				t(l)
			}
		}
	}
	r := sim.Run(f.seed, options)
	result.add(&r)
	result.Digest, result.SeedsPer = fmt.Sprintf("%016x", r.Digest), 1/time.Since(began).Seconds()
	result.Days, result.Things = r.Covered.Faults(), r.Covered.Things()
	if f.output == "json" {
		if err := json.NewEncoder(out).Encode(&result); err != nil {
			return err
		}
	} else {
		if f.shrink && r.Failed != nil {
			fmt.Fprintf(out, "\nof %d faults these are left: %v\n", r.Faults, result.Left)
		}
		fmt.Fprintf(out, "\nseed %d: %d attempts, %d complete, %v in the world, digest %s\n", f.seed, r.Rooms, r.Complete, r.Took.Round(time.Millisecond), result.Digest)
	}
	return result.verdict()
}

func printLine(out io.Writer, l sim.Line) {
	who := l.Who
	if l.Peer != "" {
		who += " > " + l.Peer
	}
	fmt.Fprintf(out, "%11.3f  %-28s %-7s %s\n", l.Ms, who, l.Room, l.What)
}

func (r *simResult) add(d *sim.Result) {
	r.Rooms, r.Complete = r.Rooms+d.Rooms, r.Complete+d.Complete
	if v := d.Failed; v != nil {
		r.Failed = append(r.Failed, simFailure{Seed: d.Seed, Rule: v.Rule, Text: v.Text, Ms: float64(v.At.Microseconds()) / 1000})
	}
}

func (r *simResult) verdict() error {
	if len(r.Failed) == 0 {
		return nil
	}
	v := r.Failed[0]
	return &exitError{code: 1, err: fmt.Errorf("seed %d: %s: %s (kvferry sim --seed %d tells it)", v.Seed, v.Rule, v.Text, v.Seed)}
}

// many plays days on all processors.
func (f *simFlags) many(ctx context.Context, c *cobra.Command) error {
	result := simResult{Seed: f.seed, Failed: []simFailure{}}
	var covered sim.Coverage
	// A day leaves some 700 KiB behind, of a heap that is small: collect less often.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	began, said := time.Now(), time.Now()
	digest := sim.Many(ctx, f.seed, f.seeds, sim.Options{Bug: f.bug}, func(r sim.Result) bool {
		result.Seeds++
		result.add(&r)
		covered.Add(&r.Covered)
		if now := time.Now(); now.Sub(said) >= time.Second {
			said = now
			fmt.Fprintf(c.ErrOrStderr(), "%d of %d days, %.0f a second, %d failed\n", result.Seeds, f.seeds, float64(result.Seeds)/now.Sub(began).Seconds(), len(result.Failed))
		}
		return true
	})
	result.Digest, result.SeedsPer = fmt.Sprintf("%016x", digest), float64(result.Seeds)/time.Since(began).Seconds()
	result.Days, result.Things = covered.Faults(), covered.Things()
	out := c.OutOrStdout()
	if f.output == "json" {
		if err := json.NewEncoder(out).Encode(&result); err != nil {
			return err
		}
	} else {
		result.print(out)
	}
	if err := ctx.Err(); err != nil {
		return &exitError{code: 1, err: err}
	}
	return result.verdict()
}

func (r *simResult) print(out io.Writer) {
	fmt.Fprintf(out, "%d days from seed %d: %d attempts of rooms, %d complete; %.0f days a second; digest %s\n", r.Seeds, r.Seed, r.Rooms, r.Complete, r.SeedsPer, r.Digest)
	for _, part := range []struct {
		title string
		count map[string]uint64
	}{{"days with", r.Days}, {"happened", r.Things}} {
		fmt.Fprintf(out, "\n  %s\n", part.title)
		for _, name := range slices.Sorted(maps.Keys(part.count)) {
			fmt.Fprintf(out, "  %10d  %s\n", part.count[name], name)
		}
	}
	fmt.Fprintln(out)
	for i, v := range r.Failed {
		if i == 10 {
			fmt.Fprintf(out, "... and %d more\n", len(r.Failed)-i)
			break
		}
		fmt.Fprintf(out, "seed %d failed: %s: %s (at %.3f ms)\n", v.Seed, v.Rule, v.Text, v.Ms)
	}
	if len(r.Failed) == 0 {
		fmt.Fprintln(out, "Nothing was lost, nothing wrong, nothing stuck.")
	}
}
