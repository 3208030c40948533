package memory

import (
	"context"
	"fmt"
	"strconv"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// Find looks for the machine by its mark.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	vm, err := d.findVM(ctx, ref)
	if err != nil {
		return driver.Machine{}, err
	}

	return machine(ref, vm), nil
}

// List looks for all machines of the provider, and for volumes that have no machine: what a crash or a deleted machine left.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	ours := map[string]string{tagProvider: providerID}

	vms, err := d.client.ListVMs(ctx, ours)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", listed(err))
	}

	volumes, err := d.client.ListVolumes(ctx, ours)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", listed(err))
	}

	var machines []driver.Machine

	whole := map[driver.Ref]bool{}

	for _, vm := range vms {
		ref := driver.Ref{ProviderID: providerID, RequestID: vm.Tags[tagRequest]}
		whole[ref] = true
		machines = append(machines, machine(ref, vm))
	}

	for _, volume := range volumes {
		ref := driver.Ref{ProviderID: providerID, RequestID: volume.Tags[tagRequest]}
		left := driver.Machine{Ref: ref, State: string(volume.State), Incomplete: true, CreatedAt: volume.CreatedAt}

		switch {
		case ref.RequestID == "":
			// Somebody took the tag off. Its own id is all that tells an operator what to look for.
			left.ID = volume.ID
			machines = append(machines, left)
		case !whole[ref]:
			machines = append(machines, left)
		}
	}

	return machines, nil
}

func machine(ref driver.Ref, vm cloud.VM) driver.Machine {
	m := driver.Machine{
		Ref: ref, ID: vm.ID, UUID: vm.UUID, Power: driver.PowerOff, Boot: strconv.Itoa(vm.Boots), State: string(vm.State),
		CreatedAt: vm.CreatedAt,
	}

	switch vm.State {
	case cloud.Starting, cloud.Running, cloud.Rebooting:
		m.Power = driver.PowerOn
	}

	return m
}

func (d *Driver) findVM(ctx context.Context, ref driver.Ref) (cloud.VM, error) {
	vms, err := d.client.ListVMs(ctx, selector(ref))

	return first(vms, err, "machine of "+ref.String())
}

func (d *Driver) findVolume(ctx context.Context, ref driver.Ref) (cloud.Volume, error) {
	volumes, err := d.client.ListVolumes(ctx, selector(ref))

	return first(volumes, err, "volume of "+ref.String())
}

func (d *Driver) findImage(ctx context.Context, t driver.Task) (cloud.Image, error) {
	images, err := d.client.ListImages(ctx, imageSelector(t.Request.Ref, t.Image))

	return first(images, err, "image "+t.Image.Key())
}

// first returns the oldest of what was found, or NotFound.
func first[T any](found []T, err error, what string) (T, error) {
	var none T

	switch {
	case err != nil:
		return none, fmt.Errorf("find %s: %w", what, listed(err))
	case len(found) == 0:
		return none, driver.NotFound("the cloud has no %s", what)
	default:
		return found[0], nil
	}
}
