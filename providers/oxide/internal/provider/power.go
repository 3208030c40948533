package provider

import (
	"context"
	"fmt"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// powerOf is the power state of an instance. One that the rack repairs or moves is on: it comes back by itself.
func powerOf(state oxide.InstanceState) driver.Power {
	switch state {
	case oxide.InstanceStateStarting, oxide.InstanceStateRunning, oxide.InstanceStateRebooting, oxide.InstanceStateMigrating, oxide.InstanceStateRepairing:
		return driver.PowerOn
	case oxide.InstanceStateStopped, oxide.InstanceStateFailed:
		return driver.PowerOff
	default:
		return driver.PowerUnknown
	}
}

// SetPower switches the machine. One that is on its way somewhere is waited for.
func (d *Driver) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	_, i, err := d.find(ctx, ref)
	if err != nil {
		return err
	}

	switch {
	case powerOf(i.RunState) == want:
		return nil
	case i.RunState == oxide.InstanceStateStopped:
		_, err = d.rack.StartInstance(ctx, i)
	case i.RunState == oxide.InstanceStateFailed:
		if _, err = d.rack.StopInstance(ctx, i); err == nil {
			err = driver.Pending(soon, "instance %q has failed; it is stopped before it is started", i.Name)
		}
	case powerOf(i.RunState) == driver.PowerOn:
		_, err = d.rack.StopInstance(ctx, i)
	default:
		err = driver.Pending(pause, "%s", stateOf(i))
	}

	return err
}

// Reboot restarts the machine.
func (d *Driver) Reboot(ctx context.Context, ref driver.Ref) error {
	_, i, err := d.find(ctx, ref)
	if err != nil {
		return err
	}

	switch i.RunState {
	case oxide.InstanceStateRunning:
		_, err = d.rack.RebootInstance(ctx, i)

		return err
	case oxide.InstanceStateRebooting:
		return nil
	case oxide.InstanceStateStopped, oxide.InstanceStateFailed:
		return fmt.Errorf("instance %q is %s: switch it on instead", i.Name, i.RunState)
	default:
		return driver.Pending(pause, "%s", stateOf(i))
	}
}
