package verbs

import (
	"flag"
	"os"
	"testing"
)

// Tests that run at once here wait most of the time, for pauses and deadlines.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}
