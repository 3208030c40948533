package runner

import (
	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func rebootCommand[C any](p Program[C]) *cobra.Command {
	return orderCommand(p, &cobra.Command{
		Use:   "reboot",
		Short: "Reboot machines once.",
		Long:  "Reboots machines, each once, also when the provider crashes meanwhile. One that is off is refused.\n",
	}, "rebooted", lifecycle.RebootOrder)
}
