// Testsummary reads the output of go test -json and prints, for each package, how
// its tests ended; then what failed, with its output, and what was skipped, with
// the reason.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// event is one line of go test -json, as cmd/test2json documents it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

type counts struct {
	passed, failed, skipped int
	seconds                 float64
}

func main() {
	if err := summarize(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
}

func summarize(in io.Reader, out io.Writer) error {
	packages := map[string]*counts{}
	output := map[string][]string{} // by package and test
	var failed, skipped []string
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // of the build
			continue
		}
		key := e.Package + " " + e.Test
		p := packages[e.Package]
		if p == nil {
			p = &counts{}
			packages[e.Package] = p
		}
		switch {
		case e.Action == "output":
			output[key] = append(output[key], e.Output)
		case e.Action == "pass" && e.Test != "":
			p.passed++
			delete(output, key)
		case e.Action == "fail":
			failed = append(failed, key)
			if e.Test != "" {
				p.failed++
			}
		case e.Action == "skip" && e.Test != "":
			p.skipped++
			skipped = append(skipped, key)
		}
		if e.Test == "" && e.Elapsed > 0 {
			p.seconds = e.Elapsed
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	report(out, packages, output, failed, skipped)
	return nil
}

func report(out io.Writer, packages map[string]*counts, output map[string][]string, failed, skipped []string) {
	var total counts
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		p := packages[name]
		if p.passed+p.failed+p.skipped == 0 {
			continue
		}
		fmt.Fprintf(out, "%-40s %5d passed %3d failed %3d skipped %7.1f s\n", name, p.passed, p.failed, p.skipped, p.seconds)
		total.passed, total.failed, total.skipped = total.passed+p.passed, total.failed+p.failed, total.skipped+p.skipped
	}
	for _, key := range failed {
		fmt.Fprintf(out, "\nFAILED %s\n%s", key, strings.Join(output[key], ""))
	}
	for _, key := range skipped {
		fmt.Fprintf(out, "\nskipped %s\n%s", key, strings.Join(output[key], ""))
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
}
