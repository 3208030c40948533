package hypervisor

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Find returns the machine of a request, or what is left of one.
func (h *Host) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	own, err := h.domain(ctx, ref)
	if err == nil {
		return h.machine(own), nil
	}

	if !driver.IsNotFound(err) {
		return driver.Machine{}, err
	}

	left, leftErr := h.leftovers(ctx, func(volume string) (driver.Ref, bool) {
		of, ok := machine.RefOfVolume(ref.ProviderID, volume)

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
func (h *Host) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	defer h.sweepIfDue(providerID)

	domains, err := h.domains(ctx, providerID)
	if err != nil {
		return nil, err
	}

	machines := map[driver.Ref]driver.Machine{}
	for _, own := range domains {
		machines[own.mark.Ref()] = h.machine(own)
	}

	left, err := h.leftovers(ctx, func(volume string) (driver.Ref, bool) {
		ref, ok := machine.RefOfVolume(providerID, volume)
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
func (h *Host) leftovers(ctx context.Context, want func(volume string) (driver.Ref, bool)) (map[driver.Ref]driver.Machine, error) {
	pools, err := h.pools(ctx)
	if err != nil {
		return nil, err
	}

	byRef := map[driver.Ref]map[string][]string{}

	for _, pool := range pools {
		volumes, err := h.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		for _, name := range volumes {
			ref, ok := want(name)
			if !ok {
				continue
			}

			if byRef[ref] == nil {
				byRef[ref] = map[string][]string{}
			}

			byRef[ref][pool] = append(byRef[ref][pool], name)
		}
	}

	left := map[driver.Ref]driver.Machine{}

	for ref, volumes := range byRef {
		proof, err := h.prove(ctx, ref, volumes, nil)
		if err != nil {
			return nil, err
		}

		for _, pool := range slices.Sorted(maps.Keys(volumes)) {
			if proof.holds(pool) {
				left[ref] = driver.Machine{
					Ref: ref, Place: h.config.Name, State: "no domain", Incomplete: true, Labels: h.labels(map[string]string{"pool": pool}),
				}

				break
			}
		}
	}

	return left, nil
}
