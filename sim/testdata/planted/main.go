// Planted plays days until one goes wrong, and says which and how: "seed rule: text".
// The test of planted faults builds it from changed sources.
package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/sim"
)

func main() {
	days := flag.Uint64("days", 10_000, "how many days are played, from seed 1 on")
	bug := flag.String("bug", "", "a fault of the world that is planted too")
	skip := flag.String("skip", "", "days that do not count, separated by commas")
	all := flag.Bool("all", false, "go on after a bad day")
	flag.Parse()
	skipped := strings.Split(*skip, ",")
	sim.Many(context.Background(), 1, *days, sim.Options{Bug: *bug}, func(r sim.Result) bool {
		if r.Failed == nil || slices.Contains(skipped, strconv.FormatUint(r.Seed, 10)) {
			return true
		}
		text, _, _ := strings.Cut(r.Failed.Text, "\n")
		fmt.Printf("%d %s: %s\n", r.Seed, r.Failed.Rule, text)
		return *all
	})
}
