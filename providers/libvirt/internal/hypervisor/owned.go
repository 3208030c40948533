package hypervisor

import (
	"context"
	"path"
	"slices"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// libvirt keeps metadata for domains, but none for volumes. So the domain is the claim on all that a machine has: it is defined, in one
// step, before the first volume is made, when no volume has one of the machine's names yet, says in its mark in which pools they
// will be, and is undefined after the last one has gone. A volume belongs to a request when its name is one that only this
// request's machine has, and one thing more, which its name cannot fake, holds for its pool:
//
//   - the request's domain says that it has volumes there; or, if somebody has taken the domain away,
//   - the volume with the seed's name begins with the request's mark, and is in that pool or names it; or
//   - the volume with the system disk's name, in that pool, lies on one of this provider's images.
//
// Removal takes the volume that is evidence after the others, and the domain last, so that the evidence lasts as long as they do.

// evidence says in which pools the volumes with the names of a request's machine belong to it.
type evidence struct {
	pools []string
	// by is for each pool the volume there that is the evidence; none where that is the domain.
	by map[string]string
}

func (e evidence) holds(pool string) bool { return slices.Contains(e.pools, pool) }

// prove looks for evidence of whose volumes are, by pool, which have names of the request's machine. The domain, nil for none, is one
// of ours.
func (h *Host) prove(ctx context.Context, ref driver.Ref, volumes map[string][]string, own *domain) (evidence, error) {
	found := evidence{by: map[string]string{}}

	if own != nil {
		found.pools = own.mark.Pools()

		return found, nil
	}

	n := machine.NamesOf(ref)

	for pool, names := range volumes {
		if slices.Contains(names, n.Seed) {
			m, ok, err := h.seedMark(ctx, pool, n.Seed)
			if err != nil {
				return evidence{}, err
			}

			if ok && m.Ref() == ref {
				found.pools = append(found.pools, append(m.DiskPools, pool)...)
				found.by[pool] = n.Seed

				continue
			}
		}

		if slices.Contains(names, n.Root) {
			root, err := h.volume(ctx, pool, n.Root)
			if err != nil && !driver.IsNotFound(err) {
				return evidence{}, err
			}

			if machine.IsImageData(ref.ProviderID, path.Base(root.Backing)) {
				found.pools = append(found.pools, pool)
				found.by[pool] = n.Root
			}
		}
	}

	return found, nil
}

// seedMark returns the mark that a seed begins with; false if there is none.
func (h *Host) seedMark(ctx context.Context, pool, name string) (machine.Mark, bool, error) {
	seed, err := h.volume(ctx, pool, name)
	if driver.IsNotFound(err) || err == nil && seed.Capacity < machine.MarkSize {
		return machine.Mark{}, false, nil
	}

	if err != nil {
		return machine.Mark{}, false, err
	}

	block, err := h.download(ctx, pool, name, 0, machine.MarkSize)

	switch {
	case err == errKeepsNoBytes || driver.IsNotFound(err): //nolint:errorlint // It is never wrapped.
		return machine.Mark{}, false, nil
	case err != nil:
		return machine.Mark{}, false, err
	}

	m, err := machine.ParseSeedMark(block)

	return m, err == nil, nil //nolint:nilerr // What is not a mark is none.
}

// volumesOf returns the volumes with names of the request's machine, by pool. Every pool is looked at, as only evidence says which are
// the machine's.
func (h *Host) volumesOf(ctx context.Context, ref driver.Ref) (map[string][]string, error) {
	pools, err := h.pools(ctx)
	if err != nil {
		return nil, err
	}

	found := map[string][]string{}

	for _, pool := range pools {
		all, err := h.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		if names := machine.VolumesOf(ref, all); len(names) > 0 {
			found[pool] = names
		}
	}

	return found, nil
}
