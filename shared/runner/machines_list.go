package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func listCommand[C any](p Program[C]) *cobra.Command {
	var output string

	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the machine requests of the provider with their machines.",
		Long: `Lists the machine requests of the provider, each with its machine, as Omni has them.

PLACE is shown where machines are made at one of several places. POWER is what was observed of machines that have joined. ADDRESS is what
the provider last saw of each network interface of a machine that runs, from the DHCP leases of its cloud or from an agent in the guest,
where there is one to ask; -o yaml has hardware addresses too. STAGE is the request's: requested, provisioning, provisioned, failed or
removing. ERROR is the last one, in short; -o yaml has all of it.

` + remote,
		Example: fmt.Sprintf("  %[1]s machines list\n  %[1]s machines list -o json | jq -r '.[] | select(.power == \"off\") | .request'", p.binary()),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, ok := map[string]func(io.Writer, []lifecycle.MachineInfo) error{
				"table": writeTable, "json": writeJSON, "yaml": writeYAML,
			}[output]
			if !ok {
				return fmt.Errorf("--output %q: want table, json or yaml", output)
			}

			return withOmni(cmd, p, func(ctx context.Context, l *layers[C], st state.State) error {
				ctx, cancel := context.WithTimeout(ctx, answerTimeout)
				defer cancel()

				infos, err := lifecycle.NewOperator(st, l.local.Provider.ID).Machines(ctx)
				if err != nil {
					return err
				}

				return write(cmd.OutOrStdout(), infos)
			})
		},
	}

	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")

	return cmd
}

func writeJSON(w io.Writer, infos []lifecycle.MachineInfo) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")

	return encoder.Encode(infos)
}

func writeYAML(w io.Writer, infos []lifecycle.MachineInfo) error {
	data, err := yaml.Marshal(infos)
	if err != nil {
		return fmt.Errorf("write the list: %w", err)
	}

	_, err = w.Write(data)

	return err
}

func writeTable(w io.Writer, infos []lifecycle.MachineInfo) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)

	header := []string{"REQUEST", "UUID", "MACHINE", "POWER", "ADDRESS", "STAGE", "PHASE", "AGE", "ERROR"}

	// Most clouds are one place, which needs no column.
	placed := slices.ContainsFunc(infos, func(info lifecycle.MachineInfo) bool { return info.Place != "" })
	row := func(cells []string, place string) {
		if placed {
			cells = slices.Insert(cells, 3, place)
		}

		fmt.Fprintln(table, strings.Join(cells, "\t")) //nolint:errcheck // Flush tells
	}

	row(header, "PLACE")

	for _, info := range infos {
		row([]string{
			info.Request, cell(info.UUID), cell(info.Machine), info.Power, cell(addresses(info)), info.Stage, cell(info.Phase), age(time.Since(info.Created)), cell(info.Error),
		}, cell(info.Place))
	}

	return table.Flush()
}

// addresses shows what each network interface of a machine has.
func addresses(info lifecycle.MachineInfo) string {
	texts := make([]string, len(info.Interfaces))
	for i, nic := range info.Interfaces {
		texts[i] = cmp.Or(strings.Join(nic.IPs, ","), nic.Missing, "none")
	}

	return strings.Join(texts, ", ")
}

// cell makes a text fit for a table. Texts may come from the cloud, and a terminal obeys control characters.
func cell(text string) string {
	const most = 100

	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most-1]) + "…"
	}

	return cmp.Or(text, "-")
}

// age shows how old something is in its largest unit.
func age(d time.Duration) string {
	const day = 24 * time.Hour

	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 2*day:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d/day))
	}
}
