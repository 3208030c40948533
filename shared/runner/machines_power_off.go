package runner

import (
	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func powerOffCommand[C any](p Program[C]) *cobra.Command {
	return orderCommand(p, &cobra.Command{
		Use:   "power-off",
		Short: "Switch machines off.",
		Long:  "Switches machines off. They stay off, also when the provider is started again, until somebody switches them on.\n",
	}, "off", func(request string) lifecycle.Order {
		return lifecycle.Order{Request: request, Power: driver.PowerOff}
	})
}
