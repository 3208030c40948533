package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// pause is how long the cloud is left alone while it works.
const pause = time.Second

// phaseTime limits a phase. Each only asks the cloud, which does by itself what takes longer.
const phaseTime = 2 * time.Minute

// brief ends a phase whose calls get no answer, so that it holds nothing up for long.
func brief(ensure func(context.Context, driver.Task) error) func(context.Context, driver.Task) error {
	return func(ctx context.Context, t driver.Task) error {
		ctx, cancel := context.WithTimeout(ctx, phaseTime)
		defer cancel()

		return ensure(ctx, t)
	}
}

// maker makes one machine. Each phase looks first, by the mark, and makes only what is missing: a phase that is repeated after
// a crash or a lost reply finds what the first try made.
type maker struct {
	*Driver

	data       classData
	vm, volume string
}

// ensureImage has the cloud import the boot image, once for all machines that boot from it. A failed import is cleared away, so
// that the next try starts afresh.
func (m maker) ensureImage(ctx context.Context, t driver.Task) error {
	select {
	case m.importing <- struct{}{}:
		defer func() { <-m.importing }()
	case <-ctx.Done():
		return ctx.Err()
	}

	image, err := m.findImage(ctx, t)
	if driver.IsNotFound(err) {
		name := t.Request.ProviderID + "-" + t.Image.Key()
		image, err = m.client.ImportImage(ctx, name, t.Image.URL(), imageMark(t.Request.Ref, t.Image))
	}

	switch {
	case err != nil:
		return fmt.Errorf("import image %q: %w", t.Image.Key(), classify(err))
	case image.State == cloud.Failed:
		if err := m.client.DeleteImage(ctx, image.ID); err != nil {
			return fmt.Errorf("delete failed image %q: %w", image.Name, classify(err))
		}

		return fmt.Errorf("import image %q: the cloud cannot fetch %s: %s", image.Name, t.Image.URL(), image.Reason)
	default:
		return await("image", image.Name, image.State, cloud.Available)
	}
}

// createVolume makes the boot disk from the image.
func (m maker) createVolume(ctx context.Context, t driver.Task) error {
	volume, err := m.findVolume(ctx, t.Request.Ref)
	if driver.IsNotFound(err) {
		var image cloud.Image
		if image, err = m.findImage(ctx, t); err != nil {
			return err
		}

		volume, err = m.client.CreateVolume(ctx, cloud.VolumeSpec{
			Name: m.volume, ImageID: image.ID, SizeGiB: m.data.DiskSize, Tags: mark(t.Request.Ref),
		})
	}

	if err != nil {
		return fmt.Errorf("create volume %q: %w", m.volume, classify(err))
	}

	return await("volume", m.volume, volume.State, cloud.Available)
}

// createVM makes the machine, switched off. The join configuration travels in its user data, which the cloud shows to nobody.
func (m maker) createVM(ctx context.Context, t driver.Task) error {
	vm, err := m.findVM(ctx, t.Request.Ref)
	if driver.IsNotFound(err) {
		var volume cloud.Volume
		if volume, err = m.findVolume(ctx, t.Request.Ref); err != nil {
			return err
		}

		vm, err = m.client.CreateVM(ctx, cloud.VMSpec{
			Name: m.vm, Cores: m.data.Cores, MemoryMiB: m.data.Memory, VolumeIDs: []string{volume.ID},
			UUID: t.Request.Identity.UUID, UserData: t.Join.UserData, Tags: mark(t.Request.Ref),
		})
	}

	if err != nil {
		return fmt.Errorf("create machine %q: %w", m.vm, classify(err))
	}

	return await("machine", m.vm, vm.State, cloud.Stopped, cloud.Starting, cloud.Running)
}

// startVM switches the machine on.
func (m maker) startVM(ctx context.Context, t driver.Task) error {
	vm, err := m.findVM(ctx, t.Request.Ref)
	if err != nil {
		return err
	}

	if vm.State == cloud.Stopped {
		if err := m.client.StartVM(ctx, vm.ID); err != nil {
			return fmt.Errorf("start machine %q: %w", m.vm, classify(err))
		}

		if vm, err = m.client.GetVM(ctx, vm.ID); err != nil {
			return fmt.Errorf("get machine %q: %w", m.vm, classify(err))
		}
	}

	return await("machine", m.vm, vm.State, cloud.Running)
}

// await returns nil when the object is in a state that was waited for, and asks to be called again otherwise.
func await(kind, name string, got cloud.State, want ...cloud.State) error {
	for _, state := range want {
		if got == state {
			return nil
		}
	}

	return driver.Pending(pause, "%s %q is %s", kind, name, got)
}
