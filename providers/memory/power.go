package memory

import (
	"context"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// SetPower switches the machine on or off. A machine that is between two states is waited for.
func (d *Driver) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	vm, err := d.findVM(ctx, ref)
	if err != nil {
		return err
	}

	switch {
	case machine(ref, vm).Power == want:
		return nil
	case vm.State == cloud.Stopped:
		err = d.client.StartVM(ctx, vm.ID)
	case vm.State == cloud.Running:
		err = d.client.StopVM(ctx, vm.ID)
	default:
		return driver.Pending(pause, "machine %q is %s", vm.Name, vm.State)
	}

	if err != nil {
		return fmt.Errorf("switch machine %q %s: %w", vm.Name, want, classify(err))
	}

	return nil
}

// Reboot restarts the machine. The cloud refuses it for one that does not run.
func (d *Driver) Reboot(ctx context.Context, ref driver.Ref) error {
	vm, err := d.findVM(ctx, ref)
	if err != nil {
		return err
	}

	if err := d.client.RebootVM(ctx, vm.ID); err != nil {
		return fmt.Errorf("reboot machine %q: %w", vm.Name, classify(err))
	}

	return nil
}

// Watch passes the cloud's events on.
func (d *Driver) Watch(ctx context.Context, providerID string, changed func(driver.Ref)) error {
	return classify(d.client.WatchVMs(ctx, func(e cloud.Event) {
		if ref, ok := refOf(providerID, e.VM.Tags); ok {
			changed(ref)
		}
	}))
}
