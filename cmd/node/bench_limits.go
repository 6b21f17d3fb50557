package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"kvferry/cmd/node/bench"
)

func newBenchLimitsCommand() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "limits",
		Short: "Measure this machine's own ceilings",
		Long: `Limits measures what this machine can do at best with blocks of each size, without
KVFerry: copying them with one thread, and moving them between two processes over
TCP on loopback.

IN ORDER and the next three are copies of blocks, in order and in no order: with the
runtime's copy, with the next block fetched ahead, and past the caches as well. COPY
is the best of the three.

TCP is the raw loop: writev and readv between the pools of two processes over some
connections, an answer for each 8 MiB, blocks in no order on both sides. FROM and TO
are with blocks in no order on the sender's side alone, and on the receiver's.

SIZE is a number of bytes, or of KiB, MiB or GiB.`,
		Example: `  kvferry bench limits
  kvferry bench limits --blocks 4KiB,64KiB --seconds 1 --plot limits.svg`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return interruptible(c, func(ctx context.Context) error { return f.runLimits(ctx, c) })
		},
	}
	c.Flags().StringVar(&f.blocks, "blocks", "512,1KiB,2KiB,4KiB,16KiB,64KiB,256KiB,1MiB", "bytes of the blocks (SIZE,SIZE,...)")
	f.add(c, 0.3)
	return c
}

// limitSubjects is what a round of limits measures of each size: two times three ways
// to copy, and three times the raw loop.
const limitSubjects = 9

func (f *benchFlags) runLimits(ctx context.Context, c *cobra.Command) error {
	blocks, shared, err := f.read("blocks")
	if err != nil {
		return err
	}
	config := bench.LimitsConfig{Config: shared, Blocks: blocks}
	if err := config.Check(); err != nil {
		return wrongField(err, "blocks")
	}
	f.announce(c, limitSubjects*len(blocks))
	results, err := bench.MeasureLimits(ctx, config)
	if err != nil {
		return err
	}
	if f.output == "json" {
		encoder := json.NewEncoder(c.OutOrStdout())
		for i := range results {
			if err := encoder.Encode(&results[i]); err != nil {
				return err
			}
		}
	} else if err := f.writeLimits(c, results); err != nil {
		return err
	}
	return f.draw(f.limitsPicture(results))
}

func (f *benchFlags) writeLimits(c *cobra.Command, results []bench.Limits) error {
	t := table{head: []string{"BLOCK", "IN ORDER", "COPY()", "AHEAD", "PAST CACHES", "COPY", "TCP", "FROM", "TO", "TCP CPU S/GB"}}
	others := 0.0
	for i := range results {
		r := &results[i]
		others = max(others, r.OthersCores)
		t.add(humanBytes(r.Block), humanRate(r.Contiguous), humanRate(r.Copy), humanRate(r.Prefetch), humanRate(r.Stream), humanRate(r.CopyLimit),
			humanRate(r.TCPLimit), humanRate(r.TCPGathered), humanRate(r.TCPSpread), fmt.Sprintf("%.3f", r.TCPCPUPerGB))
	}
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "GB/s of one thread, and of the raw loop over %d connection%s; medians of %d round%s\n\n",
		f.connections, plural(f.connections), f.rounds, plural(f.rounds)); err != nil {
		return err
	}
	if err := t.write(out, ""); err != nil {
		return err
	}
	return writeOthers(out, others)
}

func (f *benchFlags) limitsPicture(results []bench.Limits) *plot {
	ordered, scattered := series{name: "copy in order, 1 thread"}, series{name: "copy scattered, 1 thread"}
	tcp := series{name: fmt.Sprintf("raw TCP loop, scattered, %d connection%s", f.connections, plural(f.connections))}
	others := 0.0
	for i := range results {
		r := &results[i]
		others = max(others, r.OthersCores)
		ordered.add(point{x: r.Block, y: r.Contiguous})
		scattered.add(point{x: r.Block, y: r.CopyLimit})
		tcp.add(point{x: r.Block, y: r.TCPLimit})
	}
	return f.picture("ceilings of this machine", "medians of "+f.roundsText(), others, ordered, scattered, tcp)
}
