package memory

import (
	"context"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// Remove takes the machine away, then its disk, as far as the cloud lets it go now. Only two empty lists say that it is done: an
// accepted delete is a promise, no fact. The image stays for the next machine.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	vms, err := d.client.ListVMs(ctx, selector(ref))
	if err != nil {
		return false, fmt.Errorf("list machines of %s: %w", ref, listed(err))
	}

	for _, vm := range vms {
		if err := d.removeVM(ctx, vm); err != nil && !driver.IsNotFound(err) {
			return false, err
		}
	}

	if vms, err = d.client.ListVMs(ctx, selector(ref)); err != nil || len(vms) > 0 {
		return false, left("machine", ref, err)
	}

	volumes, err := d.client.ListVolumes(ctx, selector(ref))
	if err != nil {
		return false, fmt.Errorf("list volumes of %s: %w", ref, listed(err))
	}

	for _, volume := range volumes {
		if volume.State != cloud.Available {
			continue
		}

		if err := classify(d.client.DeleteVolume(ctx, volume.ID)); err != nil && !driver.IsNotFound(err) {
			return false, fmt.Errorf("delete volume %q: %w", volume.Name, err)
		}
	}

	if volumes, err = d.client.ListVolumes(ctx, selector(ref)); err != nil || len(volumes) > 0 {
		return false, left("volume", ref, err)
	}

	return true, nil
}

// removeVM takes the next step that the machine's state allows. A machine between two states is left alone until it has arrived.
func (d *Driver) removeVM(ctx context.Context, vm cloud.VM) (err error) {
	if vm.State == cloud.Running {
		if err = d.client.StopVM(ctx, vm.ID); err != nil {
			return fmt.Errorf("stop machine %q: %w", vm.Name, classify(err))
		}

		if vm, err = d.client.GetVM(ctx, vm.ID); err != nil {
			return fmt.Errorf("get machine %q: %w", vm.Name, classify(err))
		}
	}

	if vm.State == cloud.Stopped {
		if err = d.client.DeleteVM(ctx, vm.ID); err != nil {
			return fmt.Errorf("delete machine %q: %w", vm.Name, classify(err))
		}
	}

	return nil
}

func left(kind string, ref driver.Ref, err error) error {
	if err != nil {
		return fmt.Errorf("look whether the %s of %s is gone: %w", kind, ref, listed(err))
	}

	return driver.Pending(pause, "the %s of %s is not gone yet", kind, ref)
}
