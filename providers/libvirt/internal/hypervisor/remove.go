package hypervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// answerPause is how long to wait for a call that has not been answered yet.
const answerPause = 2 * time.Second

// Remove takes away the machine of a request and all its volumes, in whatever pool.
func (h *Host) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	release, err := h.lockMachine(ctx, ref)
	if err != nil {
		return false, err
	}

	defer release()

	h.settle(ref)
	h.images.release(ref)

	// A call that was given up may still make something.
	if what, found := h.unanswered(machine.NamesOf(ref).Domain); found {
		return false, driver.Pending(answerPause, "libvirt has not answered yet: %s", what)
	}

	own, err := h.domain(ctx, ref)
	if err != nil && !driver.IsNotFound(err) {
		return false, err
	}

	if own != nil && own.active() {
		// Without it, what libvirt keeps for the domain would stay behind. It may be refused, as when the host's emulator has changed.
		if err := h.keep(ctx, own); err != nil {
			h.config.Logger.Warn("a domain that was undefined while it runs is removed without what libvirt keeps for it",
				zap.String("domain", own.name), zap.Error(err))
		}

		if err := h.cutOff(ctx, ref); err != nil {
			return false, err
		}
	}

	if own != nil {
		if err := h.removeSnapshots(ctx, ref, own); err != nil {
			return false, err
		}

		if err := h.removeListed(ctx, own.mark.Volumes); err != nil {
			return false, err
		}
	}

	if err := h.removeVolumes(ctx, ref, own); err != nil {
		return false, err
	}

	// Before the domain, which tells the hardware addresses that the class has set.
	if err := h.removeReservations(ctx, ref, own); err != nil {
		return false, err
	}

	if own != nil {
		if err := h.undefine(ctx, ref); err != nil {
			return false, err
		}
	}

	switch left, err := h.Find(ctx, ref); {
	case driver.IsNotFound(err):
	case err != nil:
		return false, err
	default:
		return false, driver.Pending(answerPause, "libvirt still has %s of request %q: %s", left.ID, ref.RequestID, left.State)
	}

	return true, nil
}

func (h *Host) removeVolumes(ctx context.Context, ref driver.Ref, own *domain) error {
	volumes, err := h.volumesOf(ctx, ref)
	if err != nil {
		return err
	}

	if own != nil {
		if err := h.checkPoolsAreSeen(ctx, own.mark.Pools()); err != nil {
			return err
		}
	}

	proof, err := h.prove(ctx, ref, volumes, own)
	if err != nil {
		return err
	}

	// Pools with the evidence for others come after those.
	last := func(pool string) int {
		if proof.by[pool] != "" {
			return 1
		}

		return 0
	}

	pools := slices.SortedStableFunc(maps.Keys(volumes), func(a, b string) int {
		return cmp.Or(last(a)-last(b), strings.Compare(a, b))
	})

	for _, pool := range pools {
		if !proof.holds(pool) {
			continue
		}

		if err := h.removeVolumesFrom(ctx, ref, pool, proof.by[pool]); err != nil {
			return err
		}
	}

	return nil
}

// removeVolumesFrom deletes the volumes with names of the request's machine, which are its own, from a pool.
func (h *Host) removeVolumesFrom(ctx context.Context, ref driver.Ref, name, evidence string) error {
	release, err := h.lockPool(ctx, name)
	if err != nil {
		return err
	}

	defer release()

	// What somebody has deleted behind libvirt's back must not be in the way.
	if err := h.refreshIfIdle(ctx, name); err != nil {
		return err
	}

	all, err := h.volumes(ctx, name)
	if err != nil {
		return err
	}

	p, err := h.pool(ctx, name)
	if err != nil {
		return err
	}

	n := machine.NamesOf(ref)

	for _, volume := range machine.InOrderOfRemoval(n, machine.VolumesOf(ref, all), evidence) {
		remove := func() error { return h.deleteVolume(ctx, name, volume) }
		if volume == n.Seed {
			remove = func() error { return h.deleteSeed(ctx, p, volume) }
		}

		if err := remove(); err != nil {
			return err
		}
	}

	return h.refreshIfIdle(ctx, name)
}

// deleteSeed deletes a seed with what it says.
func (h *Host) deleteSeed(ctx context.Context, p pool, name string) error {
	if !p.overlays {
		if err := h.blankSeed(ctx, p.name, name); err != nil {
			return err
		}
	}

	return h.deleteVolume(ctx, p.name, name)
}

// blankSeed overwrites a seed on a device, which whoever gets that space next could read, but for the mark.
func (h *Host) blankSeed(ctx context.Context, pool, name string) error {
	seed, err := h.volume(ctx, pool, name)
	if driver.IsNotFound(err) || err == nil && seed.Capacity <= machine.MarkSize {
		return nil
	}

	if err != nil {
		return err
	}

	blank := io.LimitReader(blankReader{}, int64(min(seed.Capacity, largestSeed)-machine.MarkSize)) //nolint:gosec // It is small.

	err = h.upload(ctx, target{pool: pool, name: name, fixed: true, offset: machine.MarkSize, dense: true}, blank, func(uint64) {})
	if errors.Is(err, errKeepsNoBytes) {
		return nil
	}

	return err
}

// largestSeed is more than any seed has; the device that it lies on may be larger.
const largestSeed = 16 << 20

// blankReader is zeros without end.
type blankReader struct{}

func (blankReader) Read(p []byte) (int, error) {
	clear(p)

	return len(p), nil
}

// checkPoolsAreSeen refuses to leave volumes behind in a pool that is only switched off. A pool that libvirt does not know any
// more holds nothing that could be removed through it.
func (h *Host) checkPoolsAreSeen(ctx context.Context, pools []string) error {
	inactive, err := connection.Call(ctx, h.conn, "list inactive storage pools", func(c connection.Connect) ([]string, error) {
		return poolNames(c, libvirt.CONNECT_LIST_STORAGE_POOLS_INACTIVE)
	})
	if err != nil {
		return err
	}

	for _, pool := range pools {
		if slices.Contains(inactive, pool) {
			return fmt.Errorf("storage pool %q, where volumes of the machine are, is not active; start it: virsh pool-start %s", pool, pool)
		}
	}

	return nil
}

// undefine removes the domain with all that libvirt keeps for it. Not every driver knows every flag, and not every one that it
// does not know is refused in the same way.
func (h *Host) undefine(ctx context.Context, ref driver.Ref) error {
	const (
		state     = libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
		firmware  = libvirt.DOMAIN_UNDEFINE_NVRAM
		checkmark = libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
		tpm       = libvirt.DOMAIN_UNDEFINE_TPM
	)

	err := h.change(ctx, ref, "undefine", func(dom connection.Domain) error {
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
