package provider

import (
	"context"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Find looks for the machine by its mark.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	vm, err := d.findVM(ctx, ref)
	if err != nil {
		return driver.Machine{}, err
	}

	return machine(ref, vm), nil
}

// List looks for everything that carries the provider's mark.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	vms, err := d.cloud.ListVMs(ctx, map[string]string{tagProvider: providerID})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", listed(err))
	}

	var machines []driver.Machine

	for _, vm := range vms {
		if ref, ours := refOf(providerID, vm.Tags); ours {
			machines = append(machines, machine(ref, vm))
		}
	}

	return machines, nil
}

func (d *Driver) findVM(ctx context.Context, ref driver.Ref) (VM, error) {
	vms, err := d.cloud.ListVMs(ctx, selector(ref))

	switch {
	case err != nil:
		return VM{}, fmt.Errorf("find machine of %s: %w", ref, listed(err))
	case len(vms) == 0:
		return VM{}, driver.NotFound("the cloud has no machine of %s", ref)
	default:
		return vms[0], nil
	}
}

func machine(ref driver.Ref, vm VM) driver.Machine {
	m := driver.Machine{Ref: ref, ID: vm.ID, UUID: vm.UUID, Power: driver.PowerOff, State: "off"}
	if vm.On {
		m.Power, m.State = driver.PowerOn, "on"
	}

	return m
}
