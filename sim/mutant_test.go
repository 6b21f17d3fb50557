package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// mutant is a fault inside of the machines: one rule that their source leaves out.
type mutant struct {
	name  string
	rule  string // section of protocol.md, and what is left out
	edits []edit
	bug   string // a fault of the world that is planted too; see Bugs

	// why it is not found: which other rule keeps the same promise, what the days lack, or
	// that nothing needs the rule. "": it has to be found.
	why string
}

// edit replaces a text that a file has exactly once, inside of functions.
type edit struct{ file, old, new string }

const (
	mutantDays  = 10_000          // within which a mutant is found
	mutantFew   = 500             // that one is played whose table says why it is not found
	mutantLimit = 5 * time.Minute // of one that loops
)

func mutants() []mutant {
	var all []mutant
	for _, of := range [][]mutant{senderMutants, receiverMutants, linkMutants, directoryMutants, planMutants} {
		all = append(all, of...)
	}
	return all
}

// Each rule of the protocol is needed: a machine that leaves it out has a bad day. All
// mutants are in one binary, each behind a name in the environment. KVFERRY_PLANTED=all
// plays all days of those that are known not to be found, too.
func TestPlantedInMachines(t *testing.T) {
	mode := os.Getenv("KVFERRY_PLANTED")
	if mode == "" {
		t.Skip("takes two minutes on two idle cores: KVFERRY_PLANTED=1")
	}
	binary := buildMutants(t, mutants())
	// A day that goes wrong by itself says nothing of a mutant; TestSeeds is about it.
	var skip []string
	for line := range strings.Lines(playMutant(t, binary, mutant{}, mutantDays, "-all")) {
		t.Logf("without a mutant: %s", line)
		seed, _, _ := strings.Cut(line, " ")
		skip = append(skip, seed)
	}
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			days := mutantDays
			if m.why != "" && mode != "all" {
				days = mutantFew
			}
			began := time.Now()
			got := playMutant(t, binary, m, days, "-skip="+strings.Join(skip, ","))
			took := time.Since(began).Round(100 * time.Millisecond)
			switch {
			case got != "" && m.why != "":
				t.Errorf("FOUND although the table says why it is not: take that out\n%s | %s | %s | %v", m.name, m.rule, got, took)
			case got != "":
				t.Logf("FOUND | %s | %s | %s | %v", m.name, m.rule, got, took)
			case m.why != "":
				t.Logf("not found in %d days | %s | %s | %s | %v", days, m.name, m.rule, m.why, took)
			default:
				t.Errorf("NOT FOUND in %d days | %s | %s | %v", days, m.name, m.rule, took)
			}
		})
	}
}

// The table is true: every text is there, once, and the changed functions parse.
func TestMutantsFit(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range mutants() {
		if seen[m.name] {
			t.Errorf("%s is there twice", m.name)
		}
		seen[m.name] = true
	}
	s := newSchemata("..")
	for _, m := range mutants() {
		if err := s.add(m); err != nil {
			t.Error(err)
		}
	}
}

// buildMutants builds the program with every mutant in it.
func buildMutants(t *testing.T, all []mutant) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := newSchemata(root)
	for _, m := range all {
		if err := s.add(m); err != nil {
			t.Fatal(err)
		}
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, source := range s.files() {
		at := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(at, source, 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, path)] = at
	}
	j, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted")
	if err := os.WriteFile(list, j, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", list, "-o", binary, "./sim/testdata/planted")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// playMutant is the first bad day of a mutant, "" for none; with -all, each of them.
func playMutant(t *testing.T, binary string, m mutant, days int, more string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mutantLimit)
	defer cancel()
	play := exec.CommandContext(ctx, binary, fmt.Sprintf("-days=%d", days), "-bug="+m.bug, more)
	play.Env = append(os.Environ(), plantedEnv+"="+m.name, "GOGC=400", fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0)))
	out, err := play.Output()
	if ctx.Err() != nil {
		return "loops: no day after that ends"
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "dies: " + firstLine(string(exit.Stderr))
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}
