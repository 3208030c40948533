package provider

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// answerPause is how long to wait for a call that has not been answered yet.
const answerPause = 2 * time.Second

// Remove takes away the machine of a request and all its volumes, in whatever pool, and the boot images that nothing uses any
// more.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	release, err := d.lockMachine(ctx, ref)
	if err != nil {
		return false, err
	}

	defer release()

	d.settle(ref)
	d.unreserveImage(ref)

	// A call that was given up may still make something.
	if what, found := d.conn.Unanswered(namesOf(ref).Domain); found {
		return false, driver.Pending(answerPause, "libvirt has not answered yet: %s", what)
	}

	own, err := d.domain(ctx, ref)
	if err != nil && !driver.IsNotFound(err) {
		return false, err
	}

	if own != nil && own.active() {
		if err := d.cutOff(ctx, ref); err != nil {
			return false, err
		}
	}

	if err := d.removeVolumes(ctx, ref, own); err != nil {
		return false, err
	}

	if own != nil {
		if err := d.undefine(ctx, ref); err != nil {
			return false, err
		}
	}

	switch left, err := d.Find(ctx, ref); {
	case driver.IsNotFound(err):
	case err != nil:
		return false, err
	default:
		return false, driver.Pending(answerPause, "libvirt still has %s of request %q: %s", left.ID, ref.RequestID, left.State)
	}

	if !d.config.KeepImages {
		// The machine is gone; an image that stays is swept with the next one.
		if err := d.sweepImages(ctx, ref.ProviderID); err != nil {
			d.config.Logger.Warn("boot images that nothing uses are left in the storage pools", zap.Error(err))
		}
	}

	return true, nil
}

func (d *Driver) removeVolumes(ctx context.Context, ref driver.Ref, own *domain) error {
	pools, err := d.pools(ctx)
	if err != nil {
		return err
	}

	if own != nil && !slices.Contains(pools, own.mark.Pool) {
		if err := d.checkPoolIsGone(ctx, own.mark.Pool); err != nil {
			return err
		}
	}

	for _, pool := range pools {
		if err := d.removeVolumesFrom(ctx, ref, pool, own); err != nil {
			return err
		}
	}

	return nil
}

func (d *Driver) removeVolumesFrom(ctx context.Context, ref driver.Ref, pool string, own *domain) error {
	all, err := d.volumes(ctx, pool)
	if err != nil || len(volumesOf(ref, all)) == 0 {
		return err
	}

	release, err := d.lockPool(ctx, pool)
	if err != nil {
		return err
	}

	defer release()

	// What somebody has deleted behind libvirt's back must not be in the way.
	if err := d.refresh(ctx, pool); err != nil {
		return err
	}

	if all, err = d.volumes(ctx, pool); err != nil {
		return err
	}

	present := volumesOf(ref, all)

	owned, err := d.owns(ctx, ref, pool, present, own)
	if err != nil || !owned {
		return err
	}

	for _, name := range inOrderOfRemoval(namesOf(ref), present) {
		if err := d.deleteVolume(ctx, pool, name); err != nil {
			return err
		}
	}

	return d.refresh(ctx, pool)
}

// checkPoolIsGone refuses to leave volumes behind in a pool that is only switched off. A pool that libvirt does not know any
// more holds nothing that could be removed through it.
func (d *Driver) checkPoolIsGone(ctx context.Context, pool string) error {
	known, err := connection.Call(ctx, d.conn, fmt.Sprintf("look up storage pool %q", pool), func(c *libvirt.Connect) (bool, error) {
		all, err := poolNames(c, 0)

		return slices.Contains(all, pool), err
	})
	if err != nil || !known {
		return err
	}

	return fmt.Errorf("storage pool %q, where the machine's volumes are, is not active; start it: virsh pool-start %s", pool, pool)
}

// undefine removes the domain with all that libvirt keeps for it. Not every driver knows every flag, and not every one that it
// does not know is refused in the same way.
func (d *Driver) undefine(ctx context.Context, ref driver.Ref) error {
	const (
		state     = libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
		firmware  = libvirt.DOMAIN_UNDEFINE_NVRAM
		checkmark = libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
		tpm       = libvirt.DOMAIN_UNDEFINE_TPM
	)

	err := d.change(ctx, ref, "undefine", func(dom *libvirt.Domain) error {
		var err error

		for _, flags := range []libvirt.DomainUndefineFlagsValues{
			state | firmware | checkmark | tpm, state | firmware | checkmark, state | firmware, state, 0,
		} {
			if err = dom.UndefineFlags(flags); !connection.Is(err, libvirt.ERR_INVALID_ARG, libvirt.ERR_NO_SUPPORT) {
				return err
			}
		}

		return err
	})
	if driver.IsNotFound(err) {
		return nil
	}

	return err
}
