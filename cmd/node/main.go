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

func main() {
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
	root.AddCommand(newDemoCommand(), newRunCommand(), newCheckCommand(), newPlanCommand(), newModelsCommand(), newBenchCommand(), newVersionCommand())
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
