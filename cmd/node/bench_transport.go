package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kvferry/cmd/node/bench"
)

type benchTransportFlags struct {
	benchFlags
	provider string
	batch    int
	rows     string
}

func newBenchTransportCommand() *cobra.Command {
	var f benchTransportFlags
	c := &cobra.Command{
		Use:   "transport",
		Short: "Measure a transport, and what it reaches of this machine's ceiling",
		Long: `Transport writes blocks from the pool of one process into the pool of another, as
fast as the provider takes them, and looks afterwards whether they are right. A write
is a batch of blocks, some writes are always on their way, and pools are much larger
than the caches.

The limit of tcp is the raw loop: writev and readv between the same blocks over as
many connections, an answer for each batch, nothing checked. The limit of the others is
the best way to copy the same blocks with one thread: a device of RDMA may be faster.
mem is one process. verbs connects the ports of this host with one another, as kvferry
doctor shows them.

With --rows strided a block is a row of a page of 64 KiB at the receiver, of which
every other row is written; at the sender the rows of a page are together: so it is
from TP 2 to TP 4. Then the same is measured with scattered blocks of 64 KiB.

SIZE is a number of bytes, or of KiB, MiB or GiB.

Exit codes: 0; 1, it failed, or bytes were wrong.`,
		Example: `  kvferry bench transport --provider tcp --block 64KiB --batch 128
  kvferry bench transport --provider shm --block 2KiB,4KiB,64KiB,1MiB --plot shm.svg
  kvferry bench transport --provider tcp --rows strided --block 512,2KiB -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return interruptible(c, func(ctx context.Context) error { return f.run(ctx, c) })
		},
	}
	c.Flags().StringVar(&f.provider, "provider", "tcp", "what moves the bytes: tcp, shm, mem or verbs")
	c.Flags().StringVar(&f.blocks, "block", "64KiB", "bytes of a block, or several (SIZE,SIZE,...)")
	c.Flags().IntVar(&f.batch, "batch", 0, fmt.Sprintf("blocks of a write (default: %s)", humanBytes(bench.BatchBytes)))
	c.Flags().StringVar(&f.rows, "rows", string(bench.Scattered), "how blocks lie: scattered or strided")
	f.add(c, 1)
	return c
}

func (f *benchTransportFlags) run(ctx context.Context, c *cobra.Command) error {
	switch {
	case !slices.Contains(bench.Providers, f.provider):
		return malformed("--provider is %q, want tcp, shm, mem or verbs", f.provider)
	case f.rows != string(bench.Scattered) && f.rows != string(bench.Strided):
		return malformed("--rows is %q, want scattered or strided", f.rows)
	case c.Flags().Changed("batch") && f.batch < 1:
		return malformed("--batch is %d, want at least 1", f.batch)
	}
	blocks, shared, err := f.read("block")
	if err != nil {
		return err
	}
	config := bench.TransportConfig{Config: shared, Provider: f.provider, Blocks: blocks, Batch: f.batch, Rows: bench.Rows(f.rows)}
	if err := config.Check(); err != nil {
		return wrongField(err, "block")
	}
	subjects := 4 // the provider, and three ways to copy
	if f.provider == "tcp" {
		subjects = 2
	}
	if config.Rows == bench.Strided {
		subjects++
	}
	f.announce(c, subjects*len(blocks))
	results, err := bench.MeasureTransport(ctx, config)
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
	} else if err := f.writeText(c, results); err != nil {
		return err
	}
	return f.draw(f.transportPicture(results))
}

// limitNames says what providers are compared with.
var limitNames = map[string]string{"tcp": "raw loop", "shm": "best copy, 1 thread", "mem": "best copy, 1 thread"}

// head is what holds for all results.
func (f *benchTransportFlags) head(r *bench.Transport) string {
	parts := []string{fmt.Sprintf("%s, %s rows", r.Provider, r.Rows)}
	if r.Connections > 0 {
		parts = append(parts, fmt.Sprintf("%d connection%s", r.Connections, plural(r.Connections)))
	}
	if r.Processes == 1 {
		parts = append(parts, "both sides in one process")
	} else {
		parts = append(parts, fmt.Sprintf("%d processes", r.Processes))
	}
	return strings.Join(parts, ", ")
}

func (f *benchTransportFlags) writeText(c *cobra.Command, results []bench.Transport) error {
	t := table{head: []string{"BLOCK", "BATCH", "GB/S", "LIMIT", "FRACTION", "CPU S/GB", "LIMIT'S", "LIMIT IS"}}
	strided := results[0].Rows == bench.Strided
	if strided {
		t.head = append(t.head, "64 KIB GB/S", "OF 64 KIB")
	}
	others := 0.0
	for i := range results {
		r := &results[i]
		others = max(others, r.OthersCores)
		cells := []string{humanBytes(r.Block), fmt.Sprint(r.Batch), humanRate(r.GBPerS), humanRate(r.LimitGBPerS),
			fmt.Sprintf("%.2f", r.Fraction), fmt.Sprintf("%.3f", r.CPUPerGB), fmt.Sprintf("%.3f", r.LimitCPUPerGB), r.Limit}
		if strided {
			cells = append(cells, humanRate(r.GBPerS64K), fmt.Sprintf("%.2f", r.FractionOf64K))
		}
		t.add(cells...)
	}
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%s; medians of %d round%s\n\n", f.head(&results[0]), f.rounds, plural(f.rounds)); err != nil {
		return err
	}
	if err := t.write(out, ""); err != nil {
		return err
	}
	return writeOthers(out, others)
}

func (f *benchTransportFlags) transportPicture(results []bench.Transport) *plot {
	provider, limit := series{name: f.provider}, series{name: "limit: " + limitNames[f.provider], dashed: true}
	wide := series{name: f.provider + ", scattered blocks of 64 KiB", dashed: true}
	others := 0.0
	for i := range results {
		r := &results[i]
		others = max(others, r.OthersCores)
		provider.add(pointOf(r.Block, r.GBPerS, r.Rounds, func(r *bench.Round) float64 { return r.GBPerS }))
		limit.add(pointOf(r.Block, r.LimitGBPerS, r.Rounds, func(r *bench.Round) float64 { return r.LimitGBPerS }))
		wide.add(pointOf(r.Block, r.GBPerS64K, r.Rounds, func(r *bench.Round) float64 { return r.GBPerS64K }))
	}
	all := []series{provider, limit}
	if results[0].Rows == bench.Strided {
		all = append(all, wide)
	}
	return f.picture(f.head(&results[0]), "medians of "+f.roundsText()+", bars from the least to the most", others, all...)
}
