// Command kvferry carries KV caches from prefill to decode engines: it runs
// nodes, shows a whole cluster at work, checks deployments, shows plans, and lists
// the models that it knows.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// gcPercent is how much the Go heap may grow over what lives before it is collected.
// KV is not on that heap: what lives there is small, tens of megabytes with a thousand
// rooms open, so the runtime's 100 would collect it many times a second.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	code, text := exitOf(newRootCommand().Execute())
	if text != "" {
		fmt.Fprintln(os.Stderr, "kvferry: "+text)
	}
	os.Exit(code)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "kvferry",
		Short:         "Carry KV caches from prefill to decode engines",
		Long:          "KVFerry carries the KV cache of a request from the prefill engines that computed it\nto the decode engines that continue it.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newDemoCommand(), newRunCommand(), newCheckCommand(), newPlanCommand(), newModelsCommand(), newDoctorCommand(), newSimCommand(), newBenchCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), "kvferry "+version)
			return err
		},
	}
}
