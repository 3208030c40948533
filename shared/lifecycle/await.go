package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// awaitPause is the pause between two looks at an order.
const awaitPause = 500 * time.Millisecond

// Await waits until the running provider has carried orders out, for as long as ctx lasts. progress is told in a line what an order
// waits for, whenever that changes. ended is told of each order once: nil, or why it is not done. An order that was
// not carried out in time stays.
func (o *Operator) Await(ctx context.Context, orders []Order, progress func(Order, string), ended func(Order, error)) {
	left, told := slices.Clone(orders), make(map[Order]string, len(orders))

	for {
		left = slices.DeleteFunc(left, func(order Order) bool {
			over, text, err := o.look(ctx, order)

			switch {
			case over:
			case ctx.Err() != nil:
				over, err = true, fmt.Errorf("%s of the machine of %q is not done in time (%s); the provider goes on with it",
					order, order.Request, cmp.Or(told[order], "nothing was heard of it"))
			case status.Code(err) == codes.Unavailable:
				text = "Omni does not answer"
			case err != nil:
				over, err = true, fmt.Errorf("%s of the machine of %q: %w", order, order.Request, err)
			}

			if !over && text != told[order] {
				told[order] = text

				progress(order, text)
			}

			if over {
				ended(order, err)
			}

			return over
		})

		if len(left) == 0 {
			return
		}

		sleep(ctx, awaitPause)
	}
}

// look says whether an order is done, and if not what it waits for. An error says that it never will be.
func (o *Operator) look(ctx context.Context, order Order) (done bool, text string, err error) {
	if err := o.Alive(ctx); err != nil {
		return false, "", fmt.Errorf("%w; the order stays for the next one", err)
	}

	rec, err := o.record(ctx, order.Request)
	if err != nil {
		return false, "", err
	}

	of, err := find[*infra.MachineRequestStatus](ctx, o, infra.NewMachineRequestStatus(order.Request))
	if err != nil {
		return false, "", err
	}

	if of == nil {
		return false, "", errors.New("the request is gone")
	}

	observed, err := find[*infra.MachineStatus](ctx, o, infra.NewMachineStatus(of.TypedSpec().Value.Id))
	if err != nil {
		return false, "", err
	}

	trouble := of.TypedSpec().Value.Error

	switch {
	case order.waits(rec) && trouble != "":
		return false, "the provider tries again: " + trouble, nil
	case order.waits(rec):
		return false, "waiting for the provider", nil
	case order.seen(observed):
		return true, "", nil
	case trouble != "":
		return false, "", errors.New(trouble)
	default:
		return false, "waiting for the provider to see it done", nil
	}
}

// waits reports whether the provider has yet to do something about the order.
func (r Order) waits(rec *record) bool {
	if r.RebootID != "" {
		return rec.spec.RebootWish == r.RebootID
	}

	return rec.spec.PowerWish == r.Power.String()
}

// seen reports whether the order's outcome was observed; nothing may have been.
func (r Order) seen(observed *infra.MachineStatus) bool {
	if observed == nil {
		return false
	}

	if r.RebootID != "" {
		return observed.TypedSpec().Value.LastRebootId == r.RebootID
	}

	return r.Power != driver.PowerUnknown && observedPower(observed) == r.Power
}
