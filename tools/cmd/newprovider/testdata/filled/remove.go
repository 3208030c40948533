package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// pause is how long the cloud is left alone while it deletes a machine.
const pause = 2 * time.Second

// Remove takes everything of a request away and reports done once the cloud's lists no longer have it.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	vms, err := d.cloud.ListVMs(ctx, selector(ref))
	if err != nil {
		return false, fmt.Errorf("list machines of %s: %w", ref, listed(err))
	}

	for _, vm := range vms {
		if err := classify(d.cloud.DeleteVM(ctx, vm.ID)); err != nil && !driver.IsNotFound(err) {
			return false, fmt.Errorf("delete machine %q: %w", vm.Name, err)
		}
	}

	vms, err = d.cloud.ListVMs(ctx, selector(ref))

	switch {
	case err != nil:
		return false, fmt.Errorf("look whether the machine of %s is gone: %w", ref, listed(err))
	case len(vms) > 0:
		return false, driver.Pending(pause, "the machine of %s is not gone yet", ref)
	default:
		return true, nil
	}
}
