package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An engine panics on an effect that it has no case for. So whatever effect the
// code of a machine can make has a case in the engine that carries it out.
func TestEnginesCarryOutEveryEffectOfTheirMachines(t *testing.T) {
	read := func(pattern string) string {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		var all strings.Builder
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		return all.String()
	}
	effects := regexp.MustCompile(`func \((\w+)\) effect\(\)`).FindAllStringSubmatch(read("../transfer/effect.go"), -1)
	if len(effects) < 10 {
		t.Fatalf("%d effects, want at least 10", len(effects))
	}
	shared := read("../transfer/party.go") + read("../transfer/outbox.go")
	for machine, engine := range map[string]string{"../transfer/sender*.go": "../actors/prefill/*.go", "../transfer/receiver*.go": "../actors/decode/*.go"} {
		made, cases := shared+read(machine), read(engine)
		for _, e := range effects {
			if regexp.MustCompile(`[^.\w]`+e[1]+`\{`).MatchString(made) && !strings.Contains(cases, "case transfer."+e[1]+":") {
				t.Errorf("%s makes %s, and %s has no case for it", machine, e[1], engine)
			}
		}
	}
}
