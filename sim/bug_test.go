package sim

import (
	"os"
	"testing"
)

// seedsForBug is within how many days each planted fault is found.
const seedsForBug = 10_000

// Each rule that a program of this kind could leave out is needed: without it a day goes
// wrong, and the simulator says so.
func TestPlantedBugsAreFound(t *testing.T) {
	if os.Getenv("KVFERRY_PLANTED") == "" {
		t.Skip("takes a minute without the race detector: KVFERRY_PLANTED=1")
	}
	for _, bug := range Bugs() {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= seedsForBug; seed++ {
				if r := Run(seed, Options{Bug: bug}); r.Failed != nil {
					t.Logf("FOUND %s | %s | %d", bug, r.Failed.Rule, seed)
					return
				}
			}
			t.Errorf("%s was not found within %d days", bug, seedsForBug)
		})
	}
}
