package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func sweepCommand[C any](p Program[C]) *cobra.Command {
	var opts lifecycle.SweepOptions

	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Find what is left over in the cloud, and remove it on demand.",
		Long: `Looks once for what is left over: machines and other objects of the cloud that carry the provider's mark but whose request Omni
does not have any more, and requests whose removal does not come to an end. What carries no mark, or somebody else's, is never touched.

It is a dry run unless --remove is given. Something counts as left over when it was so for all of --grace, and the command takes as long.
To remove, it has to be the only process of the provider: stop the other one first, or let that remove with --sweep=remove.

It takes the settings of the provider, those in Omni too. ` + remote,
		Example: fmt.Sprintf("  %[1]s sweep\n  %[1]s sweep --remove --grace 10m", p.binary()),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Grace <= 0 {
				return fmt.Errorf("--grace %s: want a time as 1m", opts.Grace)
			}

			return withOmni(cmd, p, func(ctx context.Context, l *layers[C], st state.State) error {
				opts.Progress = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) } //nolint:errcheck // it is only told

				report, err := sweep(ctx, l, st, opts)
				if err != nil && len(report.Findings) == 0 {
					return err
				}

				// What was removed before the error is gone all the same.
				told := tellSweep(cmd.OutOrStdout(), report, opts.Remove)

				return cmp.Or(err, told)
			})
		},
	}

	p.defaults().bind(cmd.Flags(), p)
	cmd.Flags().BoolVar(&opts.Remove, "remove", false, "remove what is left over")
	cmd.Flags().DurationVar(&opts.Grace, "grace", time.Minute, "how long something has to be left over")
	cmd.Flags().BoolVar(&opts.TrustEmpty, "trust-empty", false, "remove also when Omni knows none of the cloud's machines: make sure first that it is the right Omni")

	return cmd
}

// sweep sweeps with the settings that the provider has.
func sweep[C any](ctx context.Context, l *layers[C], st state.State, opts lifecycle.SweepOptions) (lifecycle.SweepReport, error) {
	log := zap.NewNop()

	text, err := (&follower{st: st, providerID: l.local.Provider.ID, log: log}).read(ctx)
	if err != nil {
		return lifecycle.SweepReport{}, err
	}

	s, err := l.settings(text)
	if err != nil {
		return lifecycle.SweepReport{}, err
	}

	d, closeDriver, err := l.program.open(ctx, s.config, log)
	if err != nil {
		return lifecycle.SweepReport{}, err
	}
	defer closeDriver() //nolint:errcheck // the process ends

	return lifecycle.Sweep(ctx, lifecycle.Config{ID: s.Provider.ID, Driver: d, Logger: log, GonePlaces: s.Provider.GonePlaces}, st, opts)
}

// tellSweep writes what a sweep found. It returns an error if something should have been removed and is still there; what cannot
// be read is nobody's to remove.
func tellSweep(w io.Writer, report lifecycle.SweepReport, remove bool) error {
	left := 0

	if len(report.Findings) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "KIND\tREQUEST\tMACHINE\tSINCE\tREMOVED\tDETAIL") //nolint:errcheck // Flush tells

		for _, f := range report.Findings {
			gone := "no"

			switch {
			case f.Removed:
				gone = "yes"
			case f.Kind != lifecycle.FindingUnreadable:
				left++
			}

			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Kind, cell(f.RequestID), cell(cmp.Or(f.Machine.ID, f.Machine.State)), //nolint:errcheck // Flush tells
				age(time.Since(f.Since)), gone, cell(f.Detail))
		}

		if err := table.Flush(); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}

	fmt.Fprintf(w, "%s left over; the cloud has %s of this provider, Omni %s\n", //nolint:errcheck // the exit code tells
		plural(len(report.Findings), "thing"), plural(report.Machines, "machine"), plural(report.Requests, "request"))

	if report.Unseen != "" {
		fmt.Fprintf(w, "not all of the cloud was seen: %s\n", report.Unseen) //nolint:errcheck // the exit code tells
	}

	if report.Machines == 0 && report.Requests > 0 {
		fmt.Fprintln(w, "the cloud shows no machine of this provider, and Omni has requests: is it the right cloud?") //nolint:errcheck // the exit code tells
	}

	switch {
	case remove && report.Refused != "":
		return errors.New("nothing was removed: " + report.Refused)
	case remove && left > 0:
		return fmt.Errorf("%s could not be removed", plural(left, "thing"))
	case !remove && len(report.Findings) > 0:
		fmt.Fprintln(w, "nothing was removed: this was a dry run; --remove removes") //nolint:errcheck // the exit code tells
	}

	return nil
}
