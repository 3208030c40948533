package runner

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand(binary string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version.",
		Example: "  " + binary + " version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), binary, Version())

			return err
		},
	}
}

// version is set by release builds with -ldflags '-X …/shared/runner.version=v1.2.3'.
var version string

// Version is the program's version: that of the release, else the commit it was built from, else "devel".
func Version() string {
	if version != "" {
		return version
	}

	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return "devel-" + setting.Value[:min(12, len(setting.Value))]
			}
		}
	}

	return "devel"
}
