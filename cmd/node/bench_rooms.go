package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/node"
)

// benchRoomsFlags are the flags of bench rooms.
type benchRoomsFlags struct {
	inFlight []int
	model    string
	page     int
	tokens   uint64
	bytes    string
	provider string
	seconds  float64
	rounds   int
	profile  string
	pool     string
	messages bool
	plot     string
	output   string
}

const (
	// benchRoomsInFlightMax is what one decode engine has open at most by default.
	benchRoomsInFlightMax = 4096

	// benchRoomsPage is the tokens of a page that serving engines have most often.
	benchRoomsPage = 16

	// benchRoomsPagesMax keeps the plan of a room, and the time to lay out its pages,
	// far below the time that its bytes take.
	benchRoomsPagesMax = 1 << 16

	// bytesModel and bytesPage are what --bytes moves unless told otherwise: pages of
	// 64 KiB in each tensor, which is what bench transport moves.
	bytesModel = "llama-3.1-8b"
	bytesPage  = 32
)

func newBenchRoomsCommand() *cobra.Command {
	var f benchRoomsFlags
	c := &cobra.Command{
		Use:   "rooms",
		Short: "Measure rooms through the actors of two nodes",
		Long: `Rooms starts two nodes on this machine, one with a prefill engine and one with a
decode engine, and moves rooms between them as fast as they go, with so many of them
in flight as --in-flight says. The loops that open rooms run inside of the nodes.

A room is measured at decode, from the call of Receive, which takes pages and grants
them, to the return of Wait, when every byte is where it belongs. Prefill has opened
the room and finished its only chunk before, where it is as fast: it keeps a few more
rooms open than decode. Rooms a second are those that completed in the last four
fifths of a round, when as many were in flight as wanted; where fewer than 100 did,
all of the round.

In the same rounds the two processes send small requests through the remoting that
their actors use, as many in flight, each answered at once: the limit. rtt is the
median of a request when no other is in flight.

Without --model the model has 2 layers of one head, and a page 16 KiB in 4 tensors.
With --bytes rooms are large, and the figure is their bytes a second, beside what
bench transport reaches with blocks of the same size; every other page of both pools
is held, so that the pages of a room do not follow one another. SIZE is a number of
bytes, or of KiB, MiB or GiB. Both sides are one engine.

Exit codes: 0; 1, it failed, a room failed, or bytes were wrong.`,
		Example: `  kvferry bench rooms
  kvferry bench rooms --in-flight 64 --seconds 5 --profile /tmp/rooms
  kvferry bench rooms --in-flight 1,4,16,64,256,1024 --plot rooms.svg
  kvferry bench rooms --bytes 1GiB -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return interruptible(c, func(ctx context.Context) error { return f.run(ctx, c) })
		},
	}
	flags := c.Flags()
	flags.IntSliceVar(&f.inFlight, "in-flight", []int{1, 64, 1024}, "rooms in flight, each measured by itself (default with --bytes: 1)")
	flags.StringVar(&f.model, "model", "", "model of both sides, such as llama-3.1-8b (default: a small one, or with --bytes "+bytesModel+")")
	flags.IntVar(&f.page, "page", 0, fmt.Sprintf("tokens of a page (default: %d, or with --bytes %d)", benchRoomsPage, bytesPage))
	flags.Uint64Var(&f.tokens, "tokens", 0, "tokens of a room (default: one page)")
	flags.StringVar(&f.bytes, "bytes", "", "bytes of a room instead of its tokens, rounded up to pages (SIZE)")
	flags.StringVar(&f.provider, "provider", "tcp", "what moves the bytes: "+strings.Join(node.Providers(), ", "))
	flags.Float64Var(&f.seconds, "seconds", 1, "seconds of one measurement, of which a round has several")
	flags.IntVar(&f.rounds, "rounds", benchRounds, "rounds, of which the medians are printed")
	flags.StringVar(&f.pool, "pool", benchPool, "with --bytes: memory of each side of bench transport, much more than the caches (SIZE)")
	flags.StringVar(&f.profile, "profile", "", "folder for profiles of both nodes, of the last round (pprof)")
	flags.BoolVar(&f.messages, "messages", false, "count the messages of actors too, in a round of its own")
	flags.StringVar(&f.plot, "plot", "", "draw a picture, an SVG file")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	return c
}

// check says what is wrong with the flags, and fills in what depends on others.
func (f *benchRoomsFlags) check(inFlightGiven bool) error {
	switch {
	case f.output != "text" && f.output != "json":
		return malformed("--output is %q, want text or json", f.output)
	case !slices.Contains(node.Providers(), f.provider):
		return malformed("--provider is %q, want %s", f.provider, strings.Join(node.Providers(), " or "))
	case !(f.seconds > 0 && f.seconds <= benchSecondsMax):
		return malformed("--seconds is %v, want more than 0 and at most %d", f.seconds, benchSecondsMax)
	case f.rounds < 1 || f.rounds > benchRoundsMax:
		return malformed("--rounds is %d, want 1 to %d", f.rounds, benchRoundsMax)
	case f.page < 0 || f.page > 1<<16:
		return malformed("--page is %d, want 1 to %d", f.page, 1<<16)
	case f.bytes != "" && f.tokens > 0:
		return malformed("--tokens is %d beside --bytes %s, want one of them", f.tokens, f.bytes)
	}
	if f.bytes != "" && !inFlightGiven {
		f.inFlight = []int{1}
	}
	if len(f.inFlight) == 0 {
		return malformed("--in-flight is empty, want numbers such as 1,64,1024")
	}
	for i, n := range f.inFlight {
		if n < 1 || n > benchRoomsInFlightMax {
			return malformed("--in-flight is %d, want 1 to %d", n, benchRoomsInFlightMax)
		}
		if slices.Contains(f.inFlight[:i], n) {
			return malformed("--in-flight has %d twice, want it once", n)
		}
	}
	return nil
}

func (f *benchRoomsFlags) run(ctx context.Context, c *cobra.Command) error {
	if err := f.check(c.Flags().Changed("in-flight")); err != nil {
		return err
	}
	size, err := f.size()
	if err != nil {
		return err
	}
	if err := checkPlot(f.plot); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return malformed("find the own executable: %w", err)
	}
	if f.profile != "" {
		if err := os.MkdirAll(f.profile, 0o755); err != nil {
			return malformed("--profile: %w", err)
		}
	}
	pool, err := parseSize("pool", f.pool)
	if err != nil {
		return err
	}
	p := &roomsPlay{
		flags: f, roomsSize: size, self: self, pool: pool,
		duration: time.Duration(f.seconds * float64(time.Second)), next: 1,
	}
	fmt.Fprintf(c.ErrOrStderr(), "measuring for about %s\n", max(time.Second, p.takes().Round(time.Second)))
	result, err := p.run(ctx)
	if err != nil {
		return malformed("%w", err)
	}
	if err := result.print(c.OutOrStdout(), f.output); err != nil {
		return err
	}
	return drawPlot(f.plot, result.picture())
}
