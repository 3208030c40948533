package hypervisor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// cloneTimeout is the longest that libvirt may take to copy a volume.
const cloneTimeout = 50 * time.Minute

// volume is what is known of a volume.
type volume struct {
	Name string
	// Kind is how the hypervisor reaches it: "file", "block" or "network".
	Kind     string
	Path     string
	Backing  string
	Capacity uint64
}

// volumes returns the names of the pool's volumes.
func (h *Host) volumes(ctx context.Context, pool string) ([]string, error) {
	return poolCall(ctx, h, pool, fmt.Sprintf("list volumes of storage pool %q", pool), func(_ connection.Connect, p connection.StoragePool) ([]string, error) {
		volumes, err := p.ListAllStorageVolumes(0)
		if err != nil {
			return nil, err
		}

		names := make([]string, 0, len(volumes))

		for i := range volumes {
			name, err := volumes[i].GetName()
			_ = volumes[i].Free()

			if err != nil {
				return nil, err
			}

			names = append(names, name)
		}

		slices.Sort(names)

		return names, nil
	})
}

// volume looks at one volume; a NotFound error says that the pool has none of that name.
func (h *Host) volume(ctx context.Context, pool, name string) (volume, error) {
	return volumeCall(ctx, h, pool, name, "look up", func(v connection.StorageVol) (volume, error) {
		desc, err := v.GetXMLDesc(0)
		if err != nil {
			return volume{}, err
		}

		var doc libvirtxml.StorageVolume
		if err := doc.Unmarshal(desc); err != nil {
			return volume{}, fmt.Errorf("read its description: %w", err)
		}

		found := volume{Name: name, Kind: doc.Type}

		if doc.Target != nil {
			found.Path = doc.Target.Path
		}

		if doc.BackingStore != nil {
			found.Backing = doc.BackingStore.Path
		}

		if doc.Capacity != nil {
			found.Capacity = doc.Capacity.Value
		}

		return found, nil
	})
}

// volumeCall makes a call on a volume.
func volumeCall[T any](ctx context.Context, h *Host, pool, name, verb string, f func(connection.StorageVol) (T, error)) (T, error) {
	what := fmt.Sprintf("%s volume %q in storage pool %q", verb, name, pool)

	return poolCall(ctx, h, pool, what, func(_ connection.Connect, p connection.StoragePool) (T, error) {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			var zero T

			return zero, err
		}

		defer func() { _ = v.Free() }()

		return f(v)
	})
}

// createVolume makes a volume; one of that name must not exist. The pool has to be locked and refreshed: libvirt overwrites a
// file that it has not seen yet.
func (h *Host) createVolume(ctx context.Context, pool string, v machine.NewVolume) error {
	desc, err := v.XML()
	if err != nil {
		return fmt.Errorf("describe volume %q: %w", v.Name, err)
	}

	_, err = poolCall(ctx, h, pool, fmt.Sprintf("create volume %q in storage pool %q", v.Name, pool), func(_ connection.Connect, p connection.StoragePool) (struct{}, error) {
		made, err := p.StorageVolCreateXML(desc, 0)
		if err == nil {
			_ = made.Free()
		}

		return struct{}{}, err
	})

	return h.withFreeSpace(ctx, pool, err)
}

// cloneTo is how calls that copy volumes begin to describe themselves.
func cloneTo(name string) string { return fmt.Sprintf("copy the boot image to volume %q", name) }

// cloneVolume makes a volume with the content of another one of the same pool. libvirt copies on its own, for as long as it takes.
func (h *Host) cloneVolume(ctx context.Context, pool, from string, v machine.NewVolume) error {
	desc, err := v.XML()
	if err != nil {
		return fmt.Errorf("describe volume %q: %w", v.Name, err)
	}

	what := fmt.Sprintf("%s in storage pool %q", cloneTo(v.Name), pool)

	_, err = connection.CallWithin(ctx, h.copies, cloneTimeout, what, func(c connection.Connect) (struct{}, error) {
		return withPool(c, pool, func(_ connection.Connect, p connection.StoragePool) (struct{}, error) {
			source, err := p.LookupStorageVolByName(from)
			if err != nil {
				return struct{}{}, err
			}

			defer func() { _ = source.Free() }()

			made, err := p.StorageVolCreateXMLFrom(desc, source, 0)
			if err == nil {
				_ = made.Free()
			}

			return struct{}{}, err
		})
	})

	return h.withFreeSpace(ctx, pool, err)
}

// growVolume makes a volume at least as large as capacity says.
func (h *Host) growVolume(ctx context.Context, pool, name string, capacity uint64) error {
	v, err := h.volume(ctx, pool, name)
	if err != nil || v.Capacity >= capacity {
		return err
	}

	_, err = volumeCall(ctx, h, pool, name, "grow", func(v connection.StorageVol) (struct{}, error) {
		return struct{}{}, v.Resize(capacity, 0)
	})

	return h.withFreeSpace(ctx, pool, err)
}

// deleteVolume deletes a volume; one that is not there is no error.
func (h *Host) deleteVolume(ctx context.Context, pool, name string) error {
	_, err := volumeCall(ctx, h, pool, name, "delete", func(v connection.StorageVol) (struct{}, error) {
		return struct{}{}, v.Delete(libvirt.STORAGE_VOL_DELETE_NORMAL)
	})
	if driver.IsNotFound(err) {
		return nil
	}

	return err
}
