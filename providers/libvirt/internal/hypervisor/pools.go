package hypervisor

import (
	"context"
	"fmt"
	"maps"
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

// poolKind is what libvirt can do in storage pools of a type.
type poolKind struct {
	// overlays says that volumes are files of any format, which can lie on one another. Others are raw.
	overlays bool
	// images says that bytes can be brought into volumes: a boot image, and a seed.
	images bool
	// whole says that volumes take all of their space at once: what libvirt does instead is not what it is asked for.
	whole bool
}

// poolKinds are the types of storage pool in which libvirt makes volumes with the names that it is given. In the others, it finds
// volumes that are there (iscsi, iscsi-direct, scsi, mpath, gluster), or names them itself (disk).
var poolKinds = map[string]poolKind{
	"dir":      {overlays: true, images: true},
	"fs":       {overlays: true, images: true},
	"netfs":    {overlays: true, images: true},
	"vstorage": {overlays: true, images: true},
	"logical":  {images: true, whole: true},
	"zfs":      {images: true},
	"rbd":      {},
}

// kindsOf returns the types of pool that can do something.
func kindsOf(can func(poolKind) bool) []string {
	var kinds []string

	for _, kind := range slices.Sorted(maps.Keys(poolKinds)) {
		if can(poolKinds[kind]) {
			kinds = append(kinds, kind)
		}
	}

	return kinds
}

// pool is what is known of a storage pool.
type pool struct {
	poolKind

	name   string
	kind   string
	active bool
	source *libvirtxml.StoragePoolSource
}

// pool looks at a storage pool; NotFound says that there is none of that name.
func (h *Host) pool(ctx context.Context, name string) (pool, error) {
	return poolCall(ctx, h, name, fmt.Sprintf("look up storage pool %q", name), func(_ connection.Connect, p connection.StoragePool) (pool, error) {
		return readPool(name, p)
	})
}

func readPool(name string, p connection.StoragePool) (pool, error) {
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

	return pool{poolKind: poolKinds[doc.Type], name: name, kind: doc.Type, active: active, source: doc.Source}, nil
}

// checkPool refuses a storage pool that the class cannot mean for additional disks or, with images, for the system disk.
func (h *Host) checkPool(ctx context.Context, name string, images bool) error {
	got, err := h.pool(ctx, name)

	if driver.IsNotFound(err) {
		others, err := connection.Call(ctx, h.conn, "list storage pools", func(c connection.Connect) ([]string, error) { return poolNames(c, 0) })
		if err != nil {
			return err
		}

		return driver.Terminalf("libvirt has no pool %q; it has %s", name, list(others))
	}

	if err != nil {
		return err
	}

	_, known := poolKinds[got.kind]

	switch {
	case !known:
		return driver.Terminalf("pool %q is of type %q, in which libvirt cannot make volumes by name: want one of type %s",
			name, got.kind, list(kindsOf(func(poolKind) bool { return true })))
	case images && !got.images:
		return driver.Terminalf("pool %q is of type %q, into which libvirt cannot bring a boot image: want one of type %s, and use this one for additional disks",
			name, got.kind, list(kindsOf(func(k poolKind) bool { return k.images })))
	case !got.active:
		return fmt.Errorf("storage pool %q is not active; start it: virsh pool-start %s", name, name)
	default:
		return nil
	}
}

// pools returns the names of the active storage pools.
func (h *Host) pools(ctx context.Context) ([]string, error) {
	return connection.Call(ctx, h.conn, "list storage pools", func(c connection.Connect) ([]string, error) {
		return poolNames(c, libvirt.CONNECT_LIST_STORAGE_POOLS_ACTIVE)
	})
}

func poolNames(c connection.Connect, flags libvirt.ConnectListAllStoragePoolsFlags) ([]string, error) {
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
func poolCall[T any](ctx context.Context, h *Host, pool, what string, f func(connection.Connect, connection.StoragePool) (T, error)) (T, error) {
	return connection.Call(ctx, h.conn, what, func(c connection.Connect) (T, error) { return withPool(c, pool, f) })
}

func withPool[T any](c connection.Connect, pool string, f func(connection.Connect, connection.StoragePool) (T, error)) (T, error) {
	p, err := c.LookupStoragePoolByName(pool)
	if err != nil {
		var zero T

		return zero, err
	}

	defer func() { _ = p.Free() }()

	return f(c, p)
}

// refresh makes libvirt look at what the pool really holds. It refuses while another job works on the pool, which passes.
func (h *Host) refresh(ctx context.Context, pool string) error {
	for try := 1; ; try++ {
		err := h.refreshOnce(ctx, pool)
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

// refreshIfIdle is refresh for work that can do without, and that must not wait for what may take long.
func (h *Host) refreshIfIdle(ctx context.Context, pool string) error {
	if err := h.refreshOnce(ctx, pool); err != nil && !connection.Busy(err) {
		return err
	}

	return nil
}

func (h *Host) refreshOnce(ctx context.Context, pool string) error {
	_, err := poolCall(ctx, h, pool, fmt.Sprintf("refresh storage pool %q", pool), func(_ connection.Connect, p connection.StoragePool) (struct{}, error) {
		return struct{}{}, p.Refresh(0)
	})

	return err
}

// lockPool keeps other work of this process off a pool whose volumes are about to change.
func (h *Host) lockPool(ctx context.Context, pool string) (release func(), err error) {
	return h.poolLocks.acquire(ctx, fmt.Sprintf("storage pool %q", pool))
}

// lockCopies keeps this process's work that refreshes pools without overlays off its copies of volumes, and those apart: a copy makes its
// pool busy for as long as it takes, and libvirt works on few calls of one connection at a time.
func (h *Host) lockCopies(ctx context.Context, pools ...pool) (release func(), err error) {
	if !slices.ContainsFunc(pools, func(p pool) bool { return !p.overlays }) {
		return func() {}, nil
	}

	return h.poolLocks.acquire(ctx, "copies of volumes")
}

// withFreeSpace adds to an error that says that storage ran out how much there is.
func (h *Host) withFreeSpace(ctx context.Context, pool string, err error) error {
	if driver.KindOf(err) != driver.KindCapacity {
		return err
	}

	free, freeErr := poolCall(ctx, h, pool, fmt.Sprintf("look at storage pool %q", pool), func(_ connection.Connect, p connection.StoragePool) (uint64, error) {
		info, err := p.GetInfo()
		if err != nil {
			return 0, err
		}

		return info.Available, nil
	})
	if freeErr != nil {
		return err
	}

	return driver.Capacity(fmt.Errorf("%w; storage pool %q has %d MiB free", err, pool, free>>20))
}

// list joins names for a text.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}

	return strings.Join(names, ", ")
}
