package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/destroy"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/google/uuid"
	"github.com/siderolabs/gen/optional"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

const pendingMachineStatusController = "PendingMachineStatusController"

// pendingControllers follow machines that came without a unique token of their own: each is given one through its tunnel, or
// another UUID if the one it came with is taken, and then joins again.
func pendingControllers(opts Options) []controller.QController {
	return []controller.QController{
		&keeper[*siderolink.PendingMachine]{
			name: pendingMachineStatusController,
			work: func(ctx context.Context, r controller.QRuntime, machine *siderolink.PendingMachine) error {
				if err := greet(ctx, r, machine, opts.Machines); err != nil {
					return err
				}

				return expire(ctx, r, machine, opts.Timing.PendingMachine)
			},
			release: func(ctx context.Context, r controller.QRuntime, machine *siderolink.PendingMachine) (bool, error) {
				status := siderolink.NewPendingMachineStatus(machine.Metadata().ID())

				return remove(ctx, r, status.Metadata(), pendingMachineStatusController)
			},
			mapped: []mapping{on[*tunnel](toPendingMachine)},
			outputs: []controller.Output{
				shares[*siderolink.PendingMachineStatus](), shares[*siderolink.PendingMachine](),
			},
		},
		destroy.NewController[*siderolink.PendingMachine](optional.None[uint]()),
	}
}

// toPendingMachine maps a tunnel to the pending machines that have its address.
func toPendingMachine(
	ctx context.Context, _ *zap.Logger, r controller.QRuntime, ptr controller.ReducedResourceMetadata,
) ([]resource.Pointer, error) {
	machines, err := all[*siderolink.PendingMachine](ctx, r)
	if err != nil {
		return nil, err
	}

	var found []resource.Pointer

	for _, machine := range machines {
		if addressOf(machine.TypedSpec().Value.NodeSubnet) == ptr.ID() {
			found = append(found, machine.Metadata())
		}
	}

	return found, nil
}

// greet gives the machine what it needs to join for good, once.
func greet(ctx context.Context, r controller.QRuntime, machine *siderolink.PendingMachine, machines Machines) error {
	address := addressOf(machine.TypedSpec().Value.NodeSubnet)

	t, ok, err := find[*tunnel](ctx, r, address)
	if err != nil || !ok || !t.TypedSpec().Up || t.TypedSpec().Report == nil {
		return err
	}

	_, conflict := machine.Metadata().Annotations().Get(siderolink.PendingMachineUUIDConflict)

	status := siderolink.NewPendingMachineStatus(machine.Metadata().ID())
	if known, ok, err := find[*siderolink.PendingMachineStatus](ctx, r, machine.Metadata().ID()); err != nil {
		return err
	} else if ok {
		status = known
	}

	what, value := talosapi.CommandUUID, uuid.NewString()

	if conflict {
		if _, done := status.Metadata().Annotations().Get(siderolink.PendingMachineUUIDConflict); done {
			return nil
		}
	} else {
		if status.TypedSpec().Value.Token != "" {
			return nil
		}

		what = talosapi.CommandUniqueToken

		if value, err = uniqueToken(t.TypedSpec().Report); err != nil {
			return err
		}
	}

	if !command(ctx, machines, address, what, value) {
		return errors.New("send to pending machine: no tunnel")
	}

	return ignoreRace(r.Modify(ctx, siderolink.NewPendingMachineStatus(machine.Metadata().ID()), func(res resource.Resource) error {
		if conflict {
			res.Metadata().Annotations().Set(siderolink.PendingMachineUUIDConflict, value)
		} else if status, ok := res.(*siderolink.PendingMachineStatus); ok {
			status.TypedSpec().Value.Token = value
		}

		return nil
	}))
}

// uniqueToken makes a node unique token. Its fingerprint tells machines with one UUID apart; Omni takes it from the network
// cards, which a report does not name, so it is taken from UUID and host name here.
func uniqueToken(report *talosapi.Report) (string, error) {
	token, err := jointoken.Generate()
	if err != nil {
		return "", err
	}

	hash := sha256.Sum256([]byte(report.UUID + "\n" + report.Hostname))

	return jointoken.NewNodeUniqueToken(hex.EncodeToString(hash[:]), token).Encode()
}

// expire removes a pending machine that was not updated for a while.
func expire(ctx context.Context, r controller.QRuntime, machine *siderolink.PendingMachine, after time.Duration) error {
	if left := after - time.Since(machine.Metadata().Updated()); left > 0 {
		return controller.NewRequeueInterval(left)
	}

	_, err := r.Teardown(ctx, machine.Metadata(), controller.WithOwner(""))

	return ignoreNotFound(err)
}
