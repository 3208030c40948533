package provider

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Find returns the machine of a request, or what is left of one.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	own, err := d.domain(ctx, ref)
	if err == nil {
		return own.machine(), nil
	}

	if !driver.IsNotFound(err) {
		return driver.Machine{}, err
	}

	left, leftErr := d.leftovers(ctx, func(volume string) (driver.Ref, bool) {
		of, ok := refOfVolume(ref.ProviderID, volume)

		return of, ok && of == ref
	})
	if leftErr != nil {
		return driver.Machine{}, leftErr
	}

	if m, ok := left[ref]; ok {
		return m, nil
	}

	return driver.Machine{}, err
}

// List returns the provider's machines and what is left of others.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	domains, err := d.domains(ctx, providerID)
	if err != nil {
		return nil, err
	}

	machines := map[driver.Ref]driver.Machine{}
	for _, own := range domains {
		machines[own.mark.ref()] = own.machine()
	}

	left, err := d.leftovers(ctx, func(volume string) (driver.Ref, bool) {
		ref, ok := refOfVolume(providerID, volume)
		_, whole := machines[ref]

		return ref, ok && !whole
	})
	if err != nil {
		return nil, err
	}

	maps.Copy(machines, left)

	return slices.SortedFunc(maps.Values(machines), func(a, b driver.Machine) int {
		return strings.Compare(a.RequestID, b.RequestID)
	}), nil
}

// leftovers returns the requests, among those that want picks by a volume's name, that have volumes but no domain.
func (d *Driver) leftovers(ctx context.Context, want func(volume string) (driver.Ref, bool)) (map[driver.Ref]driver.Machine, error) {
	pools, err := d.pools(ctx)
	if err != nil {
		return nil, err
	}

	left := map[driver.Ref]driver.Machine{}

	for _, pool := range pools {
		volumes, err := d.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		byRef := map[driver.Ref][]string{}

		for _, name := range volumes {
			if ref, ok := want(name); ok {
				byRef[ref] = append(byRef[ref], name)
			}
		}

		for ref, names := range byRef {
			owned, err := d.owns(ctx, ref, pool, names, nil)
			if err != nil {
				return nil, err
			}

			if owned {
				left[ref] = driver.Machine{Ref: ref, State: "no domain", Incomplete: true, Labels: map[string]string{"pool": pool}}
			}
		}
	}

	return left, nil
}
