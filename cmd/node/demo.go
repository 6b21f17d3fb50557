package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"kvferry/kv"
	"kvferry/node"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	deploymentFlags
	decodeInstances int
	rooms           int
	rate            float64
	seed            uint64
	trace           string
	scale           float64
	layers          int
	flipByte        bool
	provider        string
	timeout         time.Duration
}

func newDemoCommand() *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo",
		Short: "Start a cluster on this machine, move KV caches through it, and check every byte",
		Long: `Demo starts a whole cluster on this machine, one process for each engine of one
prefill instance and of some decode instances. The nodes find each other by
gossip; then a stream of requests goes through them. What prefill computes is a
pattern of room, component, layer, head and token, and each decode engine compares
what it got with it, in its own process; wherever nothing was granted it keeps
canaries, and looks at them too.

Requests follow the lengths and shared prefixes of a published trace of a chat
service, a tenth as long, or come from a file with --trace: the JSON lines of the
Mooncake traces, or the CSV of the Azure ones.

So that it runs in some 20 seconds and in the memory that is free, the demo gives
the model fewer layers and the engines small pools, and says so. --layers sets
their number.

` + deploymentHelp + `

Exit codes: 0, every room completed and every byte was right; 1, anything else.`,
		Example: `  kvferry demo
  kvferry demo --model deepseek-v2-lite --prefill tp=4 --decode tp=2
  kvferry demo --model llama-3.1-70b --prefill tp=4,pp=2,page=16 --decode tp=2,page=64,layout=hnd
  kvferry demo --trace conversation_trace.jsonl --rooms 200 --scale 0.1 -o json
  kvferry demo --flip-byte`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the demo at once, and its nodes with it
			return f.run(ctx, c)
		},
	}
	f.add(c)
	flags := c.Flags()
	for name, value := range map[string]*string{"model": &f.model, "prefill": &f.prefill, "decode": &f.decode} {
		*value = map[string]string{"model": "llama-3.1-8b", "prefill": "tp=2", "decode": "tp=1"}[name]
		flags.Lookup(name).DefValue = *value
	}
	flags.IntVar(&f.decodeInstances, "decode-instances", 0, "decode instances (default: 2 of one engine, else 1)")
	flags.IntVar(&f.rooms, "rooms", 0, fmt.Sprintf("requests (default: %d and enough for 4 GiB, or the first %d of --trace)", madeRooms, traceRooms))
	flags.Float64Var(&f.rate, "rate", 0, "requests a second; 0: as fast as they go, a few at a time")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the requests, and of the byte that --flip-byte spoils")
	flags.StringVar(&f.trace, "trace", "", "file of requests instead of made ones")
	flags.Float64Var(&f.scale, "scale", 0, fmt.Sprintf("factor on token counts (default: %v, or 1 with --trace)", madeScale))
	flags.IntVar(&f.layers, "layers", 0, "layers of the model (default: as many as memory and 20 seconds allow)")
	flags.BoolVar(&f.flipByte, "flip-byte", false, "spoil one byte on the way, to see that the check sees it: exit code 1")
	flags.StringVar(&f.provider, "provider", "", fmt.Sprintf("what moves the bytes: %s (default: what nodes of one host choose)", strings.Join(node.Providers(), ", ")))
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "limit of the whole demo")
	return c
}

// check says what is wrong with the flags that are the demo's own.
func (f *demoFlags) check() error {
	switch {
	case f.decodeInstances < 0 || f.decodeInstances > 64:
		return malformed("--decode-instances is %d, want 1 to 64", f.decodeInstances)
	case f.rooms < 0 || f.rooms > roomsMax:
		return malformed("--rooms is %d, want 1 to %d", f.rooms, roomsMax)
	case !(f.rate >= 0 && f.rate <= 1e6):
		return malformed("--rate is %v, want 0 to 1000000", f.rate)
	case !(f.scale >= 0 && f.scale <= 1000):
		return malformed("--scale is %v, want more than 0 and at most 1000", f.scale)
	case f.layers < 0:
		return malformed("--layers is %d, want at least 1", f.layers)
	case f.provider != "" && !slices.Contains(node.Providers(), f.provider):
		return malformed("--provider is %q, want one of %s", f.provider, strings.Join(node.Providers(), ", "))
	case f.timeout <= 0:
		return malformed("--timeout is %v, want more than 0", f.timeout)
	}
	if f.scale == 0 {
		if f.scale = 1; f.trace == "" {
			f.scale = madeScale
		}
	}
	return nil
}

// run plays the demo and prints what came of it.
func (f *demoFlags) run(ctx context.Context, c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	if !c.Flags().Changed("model") && isFile(f.prefill) && isFile(f.decode) {
		f.model = "" // the default is for the short form; files have models of their own
	}
	prefill, decode, err := f.read()
	if err != nil {
		return err
	}
	if f.decodeInstances == 0 {
		if f.decodeInstances = 1; decode.TP*decode.PP*decode.DP == 1 {
			f.decodeInstances = 2
		}
	}
	memory, err := freeMemory()
	if err != nil {
		return malformed("%w", err)
	}
	s, err := sizeDemo(f, prefill, decode, memory)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return malformed("find the own executable: %w", err)
	}
	logs, err := os.MkdirTemp("", "kvferry-demo-")
	if err != nil {
		return malformed("%w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("the demo took longer than --timeout %v", f.timeout))
	defer cancel()
	say, progress := c.OutOrStdout(), c.ErrOrStderr()
	if f.output == "json" {
		say = c.ErrOrStderr()
	}
	p := newPlay(s, &processes{executable: self, logs: logs, cluster: fmt.Sprintf("demo-%d", os.Getpid()), provider: f.provider}, say)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.progress = progress
	}
	result, err := p.run(ctx)
	if result != nil {
		if printErr := result.print(c.OutOrStdout(), f.output, s); printErr != nil {
			err = errors.Join(err, printErr)
		}
	}
	good := err == nil && result != nil && result.Failed == 0 && result.WrongBytes == 0
	if good || f.flipByte && err == nil && result.Failed == 1 && result.WrongBytes > 0 {
		if removeErr := os.RemoveAll(logs); removeErr != nil {
			return malformed("%w", removeErr)
		}
	} else if files, _ := filepath.Glob(filepath.Join(logs, "*")); len(files) > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "The logs of the nodes are in %s\n", logs)
	}
	switch {
	case err != nil:
		return malformed("%w", err)
	case !good:
		return &exitError{code: exitMalformed}
	}
	return nil
}

// ranks is the engines of an instance, in roster order.
func ranks(i *kv.Instance) []kv.Rank {
	var all []kv.Rank
	for n := range i.Engines {
		all = append(all, i.Engines[n].Rank)
	}
	return all
}
