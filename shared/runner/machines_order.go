package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/spf13/cobra"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// orderHelp is what the help of every command that orders something says.
const orderHelp = `
REQUEST is the id of a machine request; "machines list" shows them. The wish is left in Omni for the running provider, and the command
waits until that has carried it out. Refused are machines that have not joined Omni yet or are being removed, and what an annotation
on the machine request, or an InfraMachine, decides.

` + remote

// orderCommand makes a command that orders something of machines. done says in a word what a machine is then.
func orderCommand[C any](p Program[C], cmd *cobra.Command, done string, order func(request string) lifecycle.Order) *cobra.Command {
	var (
		timeout time.Duration
		noWait  bool
	)

	cmd.Example = fmt.Sprintf("  %[1]s machines %[2]s workers-x7k2p9\n  %[1]s machines %[2]s --timeout 10m workers-x7k2p9 workers-bq4m2d", p.binary(), cmd.Name())
	cmd.Use += " REQUEST..."
	cmd.Long += orderHelp
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, requests []string) error {
		if timeout <= 0 {
			return fmt.Errorf("--timeout %s: want a time as 2m", timeout)
		}

		return withOmni(cmd, p, func(ctx context.Context, l *layers[C], st state.State) error {
			o := orders{cmd: cmd, operator: lifecycle.NewOperator(st, l.local.Provider.ID), done: done}

			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()

			if noWait {
				return o.leave(ctx, requests, order)
			}

			return o.carryOut(ctx, requests, order)
		})
	}

	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "leave the wish for the provider, also when none is running, and do not wait")

	return cmd
}

// orders is one run of a command that orders something.
type orders struct {
	cmd      *cobra.Command
	operator *lifecycle.Operator
	done     string
}

func (o orders) say(request, text string) {
	fmt.Fprintf(o.cmd.OutOrStdout(), "%s: %s\n", request, text) //nolint:errcheck // the exit code tells
}

// leave places the orders and does not wait.
func (o orders) leave(ctx context.Context, requests []string, order func(string) lifecycle.Order) error {
	var errs []error

	for _, request := range requests {
		if err := o.operator.Place(ctx, order(request)); err != nil {
			errs = append(errs, err)
		} else {
			o.say(request, "left for the provider")
		}
	}

	return oneLine(errs)
}

// carryOut places the orders, then waits for them. What is refused for one machine says nothing of the others.
func (o orders) carryOut(ctx context.Context, requests []string, order func(string) lifecycle.Order) error {
	if err := o.operator.Alive(ctx); err != nil {
		return fmt.Errorf("%w; start it, or leave the wish for it with --no-wait", err)
	}

	var (
		placed []lifecycle.Order
		errs   []error
	)

	for _, request := range requests {
		order := order(request)

		if err := o.operator.Place(ctx, order); err != nil {
			errs = append(errs, err)
		} else {
			placed = append(placed, order)
		}
	}

	progress := func(order lifecycle.Order, text string) {
		fmt.Fprintf(o.cmd.ErrOrStderr(), "%s: %s\n", order.Request, text) //nolint:errcheck // it is only told
	}

	o.operator.Await(ctx, placed, progress, func(order lifecycle.Order, err error) {
		if err != nil {
			errs = append(errs, err)
		} else {
			o.say(order.Request, o.done)
		}
	})

	return oneLine(errs)
}
