package bench

import (
	"fmt"
	"os"
	"testing"
)

// asPeer makes the test binary the other side.
const asPeer = "KVFERRY_TEST_AS_BENCH_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(asPeer) == "" {
		os.Exit(m.Run())
	}
	if err := Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// peerCommand starts the test binary as the other side.
func peerCommand(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asPeer, "1")
	return []string{self}
}
