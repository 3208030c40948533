package runner

import (
	"fmt"

	"github.com/spf13/cobra"
)

func schemaCommand[C any](p Program[C]) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the class data.",
		Long: `Prints the JSON schema of the class data: what the provider data of a machine class may say. It is what the provider tells Omni,
which draws a form from it. It asks nobody.`,
		Example: "  " + p.binary() + " schema | jq .properties",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), p.Schema)

			return err
		},
	}
}
