package hypervisor

import (
	"context"
	"maps"
	"slices"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// CreateVolumes claims the machine's names (see owned.go) and makes the system disk and the additional disks.
func (b Builder) CreateVolumes(ctx context.Context, t driver.Task) error {
	pools, err := b.pools(ctx)
	if err != nil {
		return visible(err)
	}

	// Usually a short look; the image may have gone since its phase.
	base, err := b.h.ensureImage(ctx, pools[b.data.StoragePool], t)
	if err != nil {
		return visible(err)
	}

	if size := b.data.DiskSize << 30; base.Size > size {
		return driver.Terminalf("disk_size: got %d GiB, but the boot image is larger: want at least %d GiB", b.data.DiskSize, (base.Size+1<<30-1)>>30)
	}

	// Before the machine's own lock, which its removal waits for.
	apart, err := b.h.lockCopies(ctx, slices.Collect(maps.Values(pools))...)
	if err != nil {
		return err
	}

	defer apart()

	return b.locked(ctx, func(ctx context.Context) error { return b.createDisks(ctx, t, pools, base) })
}

// pools returns the pools that the machine's disks are in, by name.
func (b Builder) pools(ctx context.Context) (map[string]pool, error) {
	pools := map[string]pool{}

	for _, name := range b.data.Pools() {
		p, err := b.h.pool(ctx, name)
		if err != nil {
			return nil, err
		}

		pools[name] = p
	}

	return pools, nil
}

// disk is a disk of a machine, in its pool. The volume of the system disk, which is the first one, is made from the boot image.
type disk struct {
	pool   pool
	volume machine.NewVolume
}

// disks are the machine's disks: the system disk and then the additional ones.
func (b Builder) disks(pools map[string]pool) []disk {
	one := func(p pool, name func(machine.Names) string, gib uint64) disk {
		v := machine.NewVolume{Name: name(b.names), Format: "qcow2", Capacity: gib << 30}
		if !p.overlays {
			v = machine.NewVolume{Name: name(b.names.Raw()), Format: "raw", Capacity: gib << 30, Whole: p.whole}
		}

		return disk{p, v}
	}

	disks := []disk{one(pools[b.data.StoragePool], func(n machine.Names) string { return n.Root }, b.data.DiskSize)}

	for i, extra := range b.data.AdditionalDisks {
		disks = append(disks, one(pools[b.data.PoolOf(i)], func(n machine.Names) string { return n.Disk(i) }, extra.Size))
	}

	return disks
}

func (b Builder) createDisks(ctx context.Context, t driver.Task, pools map[string]pool, base image) error {
	if err := b.h.checkDomainIsFree(ctx, b.req.Ref); err != nil {
		return err
	}

	disks := b.disks(pools)

	// A copy that was given up goes on.
	if what, found := b.h.unanswered(cloneTo(disks[0].volume.Name)); found {
		return driver.Pending(answerPause, "libvirt has not answered yet: %s", what)
	}

	own, err := b.h.domain(ctx, b.req.Ref)
	if err != nil && !driver.IsNotFound(err) {
		return err
	}

	if own != nil {
		made, err := b.made(ctx, own, disks)
		if err != nil {
			return err
		}

		if made {
			b.h.images.release(b.req.Ref)

			return nil
		}
	}

	own, present, err := b.claim(ctx, own)
	if err != nil {
		return err
	}

	for i, d := range disks {
		if slices.Contains(present[d.pool.name], d.volume.Name) {
			if !own.mark.Making {
				continue
			}

			if err := b.h.deleteVolume(ctx, d.pool.name, d.volume.Name); err != nil {
				return err
			}
		}

		if i == 0 {
			err = b.createSystemDisk(ctx, t, d, base)
		} else {
			err = b.createDisk(ctx, d)
		}

		if err != nil {
			return err
		}
	}

	if own.mark.Making {
		own.mark.Making = false

		if err := b.h.setMark(ctx, "mark the disks as made of", own.mark); err != nil {
			return err
		}
	}

	b.h.images.release(b.req.Ref)

	return nil
}

// createSystemDisk makes the system disk from the image, which stays as long as the request waits for it.
func (b Builder) createSystemDisk(ctx context.Context, t driver.Task, d disk, base image) error {
	if !d.pool.overlays {
		return b.h.copyImage(ctx, base, d.pool.name, d.volume, t.Progress)
	}

	d.volume.Backing = base.Path

	return b.createDisk(ctx, d)
}

func (b Builder) createDisk(ctx context.Context, d disk) error {
	release, err := b.h.lockPool(ctx, d.pool.name)
	if err != nil {
		return err
	}

	defer release()

	return b.h.createVolume(ctx, d.pool.name, d.volume)
}

// made says whether nothing is left to be done for the disks.
func (b Builder) made(ctx context.Context, own *domain, disks []disk) (bool, error) {
	if own.active() {
		return true, nil
	}

	if own.mark.Making {
		return false, nil
	}

	for _, d := range disks {
		_, err := b.h.volume(ctx, d.pool.name, d.volume.Name)
		if driver.IsNotFound(err) || err == nil && !own.claims(d.pool.name) {
			return false, nil
		}

		if err != nil {
			return false, err
		}
	}

	return true, nil
}
