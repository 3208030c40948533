package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// A refresh that finds the pool busy is tried again after busyPause, busyTries times in all.
const (
	busyPause = 250 * time.Millisecond
	busyTries = 20
)

// filePools are the types of storage pool that keep volumes as files, which overlays need.
var filePools = []string{"dir", "fs", "netfs"}

// volume is what is known of a volume.
type volume struct {
	Name     string
	Path     string
	Backing  string
	Capacity uint64
}

// checkPool refuses a storage pool that the class cannot mean.
func (d *Driver) checkPool(ctx context.Context, name string) error {
	type pool struct {
		kind   string
		active bool
		others []string
	}

	got, err := connection.Call(ctx, d.conn, fmt.Sprintf("look up storage pool %q", name), func(c *libvirt.Connect) (pool, error) {
		p, err := c.LookupStoragePoolByName(name)
		if connection.Is(err, libvirt.ERR_NO_STORAGE_POOL) {
			others, err := poolNames(c, 0)

			return pool{others: others}, err
		}

		if err != nil {
			return pool{}, err
		}

		defer func() { _ = p.Free() }()

		active, err := p.IsActive()
		if err != nil {
			return pool{}, err
		}

		desc, err := p.GetXMLDesc(0)
		if err != nil {
			return pool{}, err
		}

		var doc libvirtxml.StoragePool
		if err := doc.Unmarshal(desc); err != nil {
			return pool{}, fmt.Errorf("read its description: %w", err)
		}

		return pool{kind: doc.Type, active: active}, nil
	})

	switch {
	case err != nil:
		return err
	case got.kind == "":
		return driver.Terminalf("libvirt has no pool %q; it has %s", name, list(got.others))
	case !slices.Contains(filePools, got.kind):
		return driver.Terminalf("pool %q is of type %q; disks need one that keeps files: %s", name, got.kind, list(filePools))
	case !got.active:
		return fmt.Errorf("storage pool %q is not active; start it: virsh pool-start %s", name, name)
	default:
		return nil
	}
}

// pools returns the names of the active storage pools.
func (d *Driver) pools(ctx context.Context) ([]string, error) {
	return connection.Call(ctx, d.conn, "list storage pools", func(c *libvirt.Connect) ([]string, error) {
		return poolNames(c, libvirt.CONNECT_LIST_STORAGE_POOLS_ACTIVE)
	})
}

func poolNames(c *libvirt.Connect, flags libvirt.ConnectListAllStoragePoolsFlags) ([]string, error) {
	pools, err := c.ListAllStoragePools(flags)
	if err != nil {
		return nil, err
	}

	names := make([]string, 0, len(pools))

	for i := range pools {
		name, err := pools[i].GetName()
		_ = pools[i].Free()

		if err != nil {
			return nil, err
		}

		names = append(names, name)
	}

	slices.Sort(names)

	return names, nil
}

// poolCall makes a call on a storage pool.
func poolCall[T any](ctx context.Context, d *Driver, pool, what string, f func(*libvirt.Connect, *libvirt.StoragePool) (T, error)) (T, error) {
	return connection.Call(ctx, d.conn, what, func(c *libvirt.Connect) (T, error) {
		p, err := c.LookupStoragePoolByName(pool)
		if err != nil {
			var zero T

			return zero, err
		}

		defer func() { _ = p.Free() }()

		return f(c, p)
	})
}

// refresh makes libvirt look at what the pool really holds. It refuses while another job works on the pool, which passes.
func (d *Driver) refresh(ctx context.Context, pool string) error {
	for try := 1; ; try++ {
		_, err := poolCall(ctx, d, pool, fmt.Sprintf("refresh storage pool %q", pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) (struct{}, error) {
			return struct{}{}, p.Refresh(0)
		})
		if err == nil || !connection.Busy(err) || try == busyTries {
			return err
		}

		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
}

// volumes returns the names of the pool's volumes.
func (d *Driver) volumes(ctx context.Context, pool string) ([]string, error) {
	return poolCall(ctx, d, pool, fmt.Sprintf("list volumes of storage pool %q", pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) ([]string, error) {
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
func (d *Driver) volume(ctx context.Context, pool, name string) (volume, error) {
	return poolCall(ctx, d, pool, fmt.Sprintf("look up volume %q in storage pool %q", name, pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) (volume, error) {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			return volume{}, err
		}

		defer func() { _ = v.Free() }()

		desc, err := v.GetXMLDesc(0)
		if err != nil {
			return volume{}, err
		}

		var doc libvirtxml.StorageVolume
		if err := doc.Unmarshal(desc); err != nil {
			return volume{}, fmt.Errorf("read its description: %w", err)
		}

		found := volume{Name: name}

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

// newVolume describes a volume to be made.
type newVolume struct {
	Name     string
	Format   string
	Capacity uint64
	// Backing is the path of the raw file that a qcow2 volume overlays; empty for none.
	Backing string
}

func (v newVolume) xml() (string, error) {
	doc := libvirtxml.StorageVolume{
		Name:     v.Name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: v.Capacity},
		// Space is taken as it is written.
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes"},
		Target: &libvirtxml.StorageVolumeTarget{
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: v.Format},
			// The hypervisor is handed the file when the machine starts; nobody else needs it.
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: "0600"},
		},
	}

	if v.Backing != "" {
		doc.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path: v.Backing, Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
		}
	}

	return doc.Marshal()
}

// createVolume makes a volume; one of that name must not exist. The pool has to be locked and refreshed: libvirt overwrites a
// file that it has not seen yet.
func (d *Driver) createVolume(ctx context.Context, pool string, v newVolume) error {
	desc, err := v.xml()
	if err != nil {
		return fmt.Errorf("describe volume %q: %w", v.Name, err)
	}

	_, err = poolCall(ctx, d, pool, fmt.Sprintf("create volume %q in storage pool %q", v.Name, pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) (struct{}, error) {
		made, err := p.StorageVolCreateXML(desc, 0)
		if err == nil {
			_ = made.Free()
		}

		return struct{}{}, err
	})

	return err
}

// deleteVolume deletes a volume; one that is not there is no error.
func (d *Driver) deleteVolume(ctx context.Context, pool, name string) error {
	_, err := poolCall(ctx, d, pool, fmt.Sprintf("delete volume %q from storage pool %q", name, pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) (struct{}, error) {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			return struct{}{}, err
		}

		defer func() { _ = v.Free() }()

		return struct{}{}, v.Delete(0)
	})
	if driver.IsNotFound(err) {
		return nil
	}

	return err
}

// lockPool keeps other work of this process off a pool whose volumes are about to change.
func (d *Driver) lockPool(ctx context.Context, pool string) (release func(), err error) {
	return d.poolLocks.acquire(ctx, fmt.Sprintf("storage pool %q", pool))
}

// list joins names for a text.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}

	return strings.Join(names, ", ")
}
