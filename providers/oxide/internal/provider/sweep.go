package provider

import (
	"context"
	"errors"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Boot images that nothing has used for the configured time, and what imports that broke off have left, are deleted in the background, now and
// then, when the library looks at the machines: that shows that this process is the one that acts.
//
// A rack keeps nothing that says since when an image is not used, so the time counts from when this process has seen that nothing uses
// it. A new process begins to count anew.

// sweepTimeout bounds a sweep.
const sweepTimeout = 10 * time.Minute

// sweepIfDue starts a sweep if the last one began long enough ago. The first one is not before a whole interval has passed, so that
// commands that only look at what there is delete nothing.
func (d *Driver) sweepIfDue(providerID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	now := time.Now()
	if d.closed || now.Sub(d.swept) < d.config.SweepInterval {
		return
	}

	d.swept = now

	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(d.sweeping, sweepTimeout)
		defer cancel()

		if err := d.Sweep(ctx, providerID); err != nil && d.sweeping.Err() == nil {
			d.log.Warn("boot images that nothing uses may be left on the rack until the next sweep", zap.Error(err))
		}
	})
}

// Sweep deletes what dead imports have left, and the provider's images that nothing has used for the configured time. An image in use is
// one that a disk was made of, or that a request is about to need. With an error nothing, or a part, is deleted: what cannot be seen to be unused is
// kept.
func (d *Driver) Sweep(ctx context.Context, providerID string) error {
	d.scratch.act()

	all, err := d.whereabouts(ctx, providerID)
	if err != nil {
		return err
	}

	used := map[string]bool{}

	for _, in := range all {
		disks, err := d.rack.Disks(ctx, in.id)
		if err != nil {
			return err
		}

		for _, disk := range disks {
			used[disk.ImageId] = true
		}

		d.clearDead(ctx, providerID, in, disks)
	}

	if d.config.KeepImages {
		return nil
	}

	var errs []error

	for _, in := range append([]project{{name: "silo"}}, all...) {
		images, err := d.rack.Images(ctx, in.id)

		switch {
		case in.id == "" && rack.Denied(err):
			// The token is for projects alone, and has made no image of the silo.
			continue
		case err != nil:
			errs = append(errs, err)

			continue
		}

		for _, image := range images {
			if _, ours := machine.OwnsImage(providerID, image); !ours || image.ProjectId != in.id {
				continue
			}

			if err := d.sweepImage(ctx, imageRef{project: in.id, name: string(image.Name)}, image, used[image.Id]); err != nil {
				errs = append(errs, err)
			}
		}
	}

	return errors.Join(errs...)
}

func (d *Driver) sweepImage(ctx context.Context, ref imageRef, image oxide.Image, used bool) error {
	if used || d.use.reserved(ref) {
		d.use.wanted(ref)

		return nil
	}

	if time.Since(d.use.unusedSince(ref)) < d.config.ImageMaxAge {
		return nil
	}

	if err := d.rack.DeleteImage(ctx, image); err != nil && !driver.IsNotFound(err) {
		return err
	}

	d.use.forget(ref)
	d.log.Info("boot image deleted that nothing uses", zap.String("image", string(image.Name)))

	return nil
}
