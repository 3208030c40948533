package provider

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// libvirt keeps metadata for domains, but none for volumes. A volume belongs to a request when its name is one that only this
// request's machine has, and one thing more, which its name cannot fake, holds for its pool:
//
//   - a domain of ours says that its volumes are there; or
//   - the volume with the system disk's name lies on one of this provider's images. It is the first volume that is made, in
//     one step with what it lies on, and none of the others may exist before it: it is the claim on them; or
//   - the volume with the seed's name ends in the request's mark.
//
// Removal takes the system disk after the other volumes and the domain last, so that the evidence lasts as long as they do.

// markSize is the length of the block behind a seed's file system that holds the mark.
const markSize = 2048

// maxSeed is the largest volume that can be a seed.
const maxSeed = 8 << 20

// volumesOf picks the names that the request's machine would have.
func volumesOf(ref driver.Ref, volumes []string) []string {
	var own []string

	for _, name := range volumes {
		if of, ok := refOfVolume(ref.ProviderID, name); ok && of == ref {
			own = append(own, name)
		}
	}

	return own
}

// owns says whether the volumes in a pool that have names of the request's machine belong to it. The domain, nil for none, is
// one of ours.
func (d *Driver) owns(ctx context.Context, ref driver.Ref, pool string, volumes []string, own *domain) (bool, error) {
	n := namesOf(ref)

	if own != nil && own.mark.Pool == pool {
		return true, nil
	}

	if slices.Contains(volumes, n.Root) {
		root, err := d.volume(ctx, pool, n.Root)
		if err != nil && !driver.IsNotFound(err) {
			return false, err
		}

		if isImageData(ref.ProviderID, path.Base(root.Backing)) {
			return true, nil
		}
	}

	if slices.Contains(volumes, n.Seed) {
		return d.seedIsMarked(ctx, ref, pool, n.Seed)
	}

	return false, nil
}

// markSeed puts the request's mark behind the file system, where readers of ISO 9660 do not look.
func markSeed(iso []byte, m mark) ([]byte, error) {
	element, err := m.element()
	if err != nil {
		return nil, err
	}

	if len(element) > markSize {
		return nil, fmt.Errorf("mark the seed of %q: the mark has %d bytes of at most %d", m.ref(), len(element), markSize)
	}

	block := make([]byte, markSize)
	copy(block, element)

	return slices.Concat(iso, block), nil
}

func (d *Driver) seedIsMarked(ctx context.Context, ref driver.Ref, pool, name string) (bool, error) {
	seed, err := d.volume(ctx, pool, name)
	if driver.IsNotFound(err) {
		return false, nil
	}

	if err != nil || seed.Capacity < markSize || seed.Capacity > maxSeed {
		return false, err
	}

	block, err := d.download(ctx, pool, name, seed.Capacity-markSize, markSize)
	if err == errKeepsNoBytes { //nolint:errorlint // It is never wrapped.
		return false, nil
	}

	if err != nil {
		return false, err
	}

	m, err := parseMark(string(bytes.TrimRight(block, "\x00")))

	return err == nil && m.ref() == ref, nil
}

// inOrderOfRemoval sorts a machine's volumes: the secret seed first, the system disk last.
func inOrderOfRemoval(n names, volumes []string) []string {
	rank := func(name string) int {
		switch name {
		case n.Seed:
			return 0
		case n.Root:
			return 2
		default:
			return 1
		}
	}

	return slices.SortedStableFunc(slices.Values(volumes), func(a, b string) int { return rank(a) - rank(b) })
}
