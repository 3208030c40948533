package runner

import (
	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func powerOnCommand[C any](p Program[C]) *cobra.Command {
	return orderCommand(p, &cobra.Command{
		Use:   "power-on",
		Short: "Switch machines on.",
		Long:  "Switches machines on, once: one that is shut down later stays off.\n",
	}, "on", func(request string) lifecycle.Order {
		return lifecycle.Order{Request: request, Power: driver.PowerOn}
	})
}
