package runner

import "github.com/spf13/cobra"

func machinesCommand[C any](p Program[C]) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machines",
		Short: "Look at the provider's machines, switch and reboot them.",
		Long:  "Looks at the provider's machines in Omni, and asks the running provider to switch or reboot them.\n\n" + remote,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}

	p.defaults().bindOmni(cmd.PersistentFlags())

	cmd.AddCommand(listCommand(p), powerOnCommand(p), powerOffCommand(p), rebootCommand(p))

	return cmd
}
