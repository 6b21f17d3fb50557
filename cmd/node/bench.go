package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kvferry/cmd/node/bench"
)

func newBenchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine, and what KVFerry reaches of it",
		Long: `Bench measures. Whatever moves bytes is measured in turn with a loop that does
nothing else, in the same run, and printed as a fraction of that: a machine that is
busy slows both. GB are 1e9 bytes; sizes of memory are powers of two.`,
	}
	c.AddCommand(newBenchTransportCommand(), newBenchLimitsCommand(), newBenchPlanCommand(), newBenchRoomsCommand(),
		newBenchPeerCommand(), newBenchRoomsNodeCommand())
	return c
}

// newBenchPeerCommand is the other process of a measurement. It ends with its input.
func newBenchPeerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "peer", Short: "Be the other process of a measurement", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return bench.Serve(c.InOrStdin(), c.OutOrStdout()) },
	}
}

// benchFlags are the flags that transport and limits share.
type benchFlags struct {
	blocks      string
	connections int
	seconds     float64
	rounds      int
	pool        string
	plot        string
	output      string
}

const (
	// benchSecondsMax and benchRoundsMax bound a measurement to what somebody waits for.
	benchSecondsMax = 3600
	benchRoundsMax  = 1000

	// benchConnections is as many as the tcp provider makes, which has the same bounds.
	benchConnections    = 4
	benchConnectionsMax = 64

	benchRounds = 3 // the fewest that have a middle
	benchPool   = "1GiB"
	benchPools  = 3 // of both sides, and one that the loops of one process copy to
)

func (f *benchFlags) add(c *cobra.Command, seconds float64) {
	c.Flags().IntVar(&f.connections, "connections", benchConnections, "TCP connections, or queue pairs of verbs")
	c.Flags().Float64Var(&f.seconds, "seconds", seconds, "seconds of one measurement, of which a round has several")
	c.Flags().IntVar(&f.rounds, "rounds", benchRounds, "rounds, of which the medians are printed")
	c.Flags().StringVar(&f.pool, "pool", benchPool, "memory of each side, much more than the caches (SIZE)")
	c.Flags().StringVar(&f.plot, "plot", "", "draw a picture, an SVG file")
	c.Flags().StringVarP(&f.output, "output", "o", "text", "text, or json: an object on a line for each block")
}

// read reads the flags. name is that of the flag with the blocks.
func (f *benchFlags) read(name string) (blocks []uint64, c bench.Config, err error) {
	c = bench.Config{Connections: f.connections, Rounds: f.rounds, Duration: time.Duration(f.seconds * float64(time.Second))}
	switch {
	case f.output != "text" && f.output != "json":
		err = malformed("--output is %q, want text or json", f.output)
	case f.connections < 1 || f.connections > benchConnectionsMax:
		err = malformed("--connections is %d, want 1 to %d", f.connections, benchConnectionsMax)
	case !(f.seconds > 0 && f.seconds <= benchSecondsMax):
		err = malformed("--seconds is %v, want more than 0 and at most %d", f.seconds, benchSecondsMax)
	case f.rounds < 1 || f.rounds > benchRoundsMax:
		err = malformed("--rounds is %d, want 1 to %d", f.rounds, benchRoundsMax)
	}
	if err != nil {
		return nil, c, err
	}
	if c.Pool, err = parseSize("pool", f.pool); err != nil {
		return nil, c, err
	}
	free, err := freeMemory()
	if err != nil {
		return nil, c, err
	}
	if c.Pool > free/benchPools {
		return nil, c, malformed("--pool is %s, want at most %s: there are up to %d, in the %s of memory that are free",
			humanBytes(c.Pool), humanBytes(free/benchPools), benchPools, humanBytes(free))
	}
	for text := range strings.SplitSeq(f.blocks, ",") {
		block, err := parseSize(name, text)
		if err != nil {
			return nil, c, err
		}
		if slices.Contains(blocks, block) {
			return nil, c, malformed("--%s has %s twice", name, humanBytes(block))
		}
		blocks = append(blocks, block)
	}
	if err := checkPlot(f.plot); err != nil {
		return nil, c, err
	}
	self, err := os.Executable()
	c.Peer = []string{self, "bench", "peer"}
	return blocks, c, err
}

// parseSize reads a size of memory.
func parseSize(flag, text string) (uint64, error) {
	digits, shift := strings.TrimSpace(text), 0
	for unit, s := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if d, ok := strings.CutSuffix(digits, unit); ok {
			digits, shift = d, s
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n > math.MaxInt64>>shift {
		return 0, malformed("--%s is %q, want a size such as 512, 4KiB, 64MiB or 1GiB", flag, text)
	}
	return n << shift, nil
}

// wrongField is an error of a measurement's Check, with the flag for the field. blocks
// is that of the blocks.
func wrongField(err error, blocks string) error {
	var e *bench.FieldError
	if !errors.As(err, &e) {
		return err
	}
	flag := e.Field
	if flag == "block" {
		flag = blocks
	}
	return malformed("--%s is %d, want %s", flag, e.Got, e.Want)
}

// interruptible runs a measurement that ends, in order, with a signal.
func interruptible(c *cobra.Command, run func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends this process, and the other with it
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		return malformed("interrupted")
	}
	return err
}

// announce says how long a measurement takes, to whoever waits for it.
func (f *benchFlags) announce(c *cobra.Command, subjects int) {
	d := time.Duration(float64(subjects*f.rounds) * f.seconds * float64(time.Second))
	fmt.Fprintf(c.ErrOrStderr(), "measuring for about %s\n", max(time.Second, d.Round(time.Second)))
}

func (f *benchFlags) draw(p *plot) error { return drawPlot(f.plot, p) }

// picture is a panel of GB/s by blocks.
func (f *benchFlags) picture(title, how string, others float64, all ...series) *plot {
	if others > othersCoresMax {
		how += fmt.Sprintf("; others used up to %.1f of %d cores", others, runtime.NumCPU())
	}
	return &plot{title: title, note: how, panels: []panel{{x: "bytes of a block, logarithmic", y: "GB/s", xText: humanBytes, series: all}}}
}

func (f *benchFlags) roundsText() string {
	return fmt.Sprintf("%d round%s", f.rounds, plural(f.rounds))
}

// checkPlot says before the measuring, and not after, that a picture cannot be written.
func checkPlot(path string) error {
	if path == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return malformed("--plot: %w", err)
	}
	_ = file.Close() // nothing was written
	return nil
}

// drawPlot writes a picture, if one is wanted.
func drawPlot(path string, p *plot) error {
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return malformed("--plot: %w", err)
	}
	err = p.write(file)
	if e := file.Close(); err == nil {
		err = e
	}
	return err
}

// othersCoresMax is what others may use before figures are worth less.
const othersCoresMax = 0.2

// writeOthers says that the machine was not quiet.
func writeOthers(w io.Writer, cores float64) error {
	if cores <= othersCoresMax {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nOthers used up to %.1f of %d cores meanwhile: a quiet machine is faster.\n", cores, runtime.NumCPU())
	return err
}

// humanRate is GB/s with three digits.
func humanRate(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
