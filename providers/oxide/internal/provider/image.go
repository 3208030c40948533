package provider

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// bootImage is an image that is ready.
type bootImage struct {
	id string
	// size is the number of bytes.
	size uint64
}

// imageRef names an image. The project is empty for one of the silo.
type imageRef struct{ project, name string }

// wanted is the image that a request needs.
type wanted struct {
	ref     driver.Ref
	project project
	image   imageRef
	source  driver.Image
	version string
}

// bootImage returns the image for a request, and imports it if there is none. Requests that want the same image at the same time share the
// import, which goes on as long as one of them waits for it.
func (m *maker) bootImage(ctx context.Context, t driver.Task) (bootImage, error) {
	if t.Image == nil {
		return bootImage{}, errors.New("no boot image was handed over")
	}

	w := wanted{ref: m.ref, project: m.project, source: t.Image, version: t.Request.TalosVersion}
	w.image.name = machine.ImageName(m.ref.ProviderID, t.Image.Key(), t.Request.TalosVersion)

	if m.data.ImageScope != machine.ScopeSilo {
		w.image.project = m.project.id
	}

	m.use.reserve(m.ref, w.image)

	return m.imports.Do(ctx, w.image.project+"/"+w.image.name, t.Progress, func(ctx context.Context, progress func(string)) (bootImage, error) {
		if err := m.tidy(ctx, m.ref.ProviderID, m.project); err != nil {
			return bootImage{}, err
		}

		found, err := m.findImage(ctx, w, w.image.project)
		if !driver.IsNotFound(err) {
			return found, err
		}

		// One that was imported, but not given to the silo yet.
		if w.image.project == "" {
			found, err := m.findImage(ctx, w, w.project.id)
			if err == nil {
				return m.promote(ctx, w, found)
			}

			if !driver.IsNotFound(err) {
				return bootImage{}, err
			}
		}

		return m.importImage(ctx, w, progress)
	})
}

// findImage looks for an image in a project, or in the silo for an empty one. NotFound says that there is none.
func (d *Driver) findImage(ctx context.Context, w wanted, in string) (bootImage, error) {
	found, err := d.rack.Image(ctx, in, w.image.name)
	if err != nil {
		return bootImage{}, err
	}

	if key, ours := machine.OwnsImage(w.ref.ProviderID, found); !ours || key != w.source.Key() {
		return bootImage{}, fmt.Errorf("image %q is in the way: it was not made by this provider, which leaves it alone; rename or delete it", found.Name)
	}

	return bootImage{id: found.Id, size: uint64(found.Size)}, nil
}

// promote gives an image to the silo. Somebody may have been quicker: then that one's is the silo's, and this one goes.
func (d *Driver) promote(ctx context.Context, w wanted, image bootImage) (bootImage, error) {
	own := oxide.Image{Id: image.id, Name: oxide.Name(w.image.name)}

	_, err := d.rack.PromoteImage(ctx, own)
	if err == nil {
		return image, nil
	}

	if !rack.Exists(err) {
		return bootImage{}, err
	}

	if err := d.rack.DeleteImage(ctx, own); err != nil && !driver.IsNotFound(err) {
		return bootImage{}, err
	}

	return d.findImage(ctx, w, "")
}

// importImage makes an image: a scratch disk is filled, a snapshot of it taken, and the image made of that. The image is there in one step
// once all is there and checked, whatever happens before. The scratch has names of its own in each attempt, so that one that broke off
// is in nobody's way, and goes in the end.
func (d *Driver) importImage(ctx context.Context, w wanted, progress func(string)) (_ bootImage, err error) {
	progress("fetching the boot image")

	source, err := openImage(ctx, w.source)
	if err != nil {
		return bootImage{}, err
	}

	defer source.close()

	var attempt [8]byte

	_, _ = rand.Read(attempt[:]) // It never fails.

	scratch := machine.NewScratch(w.ref, w.source.Key(), d.config.Version, attempt)

	body, err := scratch.Disk(wholeGiB(source.size))
	if err != nil {
		return bootImage{}, driver.Terminal(err)
	}

	d.scratch.begin(ctx, scratch.Mark.Attempt)

	defer d.endAttempt(ctx, w.project, scratch)

	disk, err := d.rack.CreateDisk(ctx, w.project.id, body)
	if err != nil {
		return bootImage{}, rack.Terminal(err)
	}

	if err := d.fill(ctx, disk, source, progress); err != nil {
		return bootImage{}, err
	}

	snapshot, err := d.finalize(ctx, w.project, disk, scratch.Name)
	if err != nil {
		return bootImage{}, err
	}

	image, err := d.publish(ctx, w, snapshot)
	if err != nil {
		return bootImage{}, err
	}

	progress("boot image: 100 %")

	return image, nil
}

// fill writes the image to the disk.
func (d *Driver) fill(ctx context.Context, disk oxide.Disk, source *source, progress func(string)) error {
	if _, err := d.awaitDisk(ctx, disk, oxide.DiskStateStateImportReady); err != nil {
		return err
	}

	if err := d.rack.StartWrites(ctx, disk); err != nil {
		return err
	}

	if err := d.write(ctx, disk, source, progress); err != nil {
		return err
	}

	return d.rack.StopWrites(ctx, disk)
}

// finalize makes a disk of what was written, and a snapshot of it.
func (d *Driver) finalize(ctx context.Context, in project, disk oxide.Disk, name string) (oxide.Snapshot, error) {
	if err := d.rack.Finalize(ctx, disk, name); err != nil {
		return oxide.Snapshot{}, err
	}

	if _, err := d.awaitDisk(ctx, disk, oxide.DiskStateStateDetached); err != nil {
		return oxide.Snapshot{}, err
	}

	for began := time.Now(); ; {
		snapshot, err := d.rack.Snapshot(ctx, in.id, name)
		if err != nil {
			return oxide.Snapshot{}, err
		}

		switch snapshot.State {
		case oxide.SnapshotStateReady:
			return snapshot, nil
		case oxide.SnapshotStateFaulted, oxide.SnapshotStateDestroyed:
			return oxide.Snapshot{}, fmt.Errorf("snapshot %q of the boot image is %s", name, snapshot.State)
		}

		if time.Since(began) > stuck {
			return oxide.Snapshot{}, fmt.Errorf("snapshot %q of the boot image has been %s for %s", name, snapshot.State, stuck)
		}

		if err := sleep(ctx, soon); err != nil {
			return oxide.Snapshot{}, err
		}
	}
}

// publish makes the image of the snapshot. Of two that import it at the same time the first one's counts.
func (d *Driver) publish(ctx context.Context, w wanted, snapshot oxide.Snapshot) (bootImage, error) {
	body, err := machine.ImageOf(w.ref.ProviderID, w.source.Key(), w.version, d.config.Version, snapshot.Id)
	if err != nil {
		return bootImage{}, driver.Terminal(err)
	}

	var made bootImage

	created, err := d.rack.CreateImage(ctx, w.project.id, body)

	switch {
	case rack.Exists(err):
		made, err = d.findImage(ctx, w, w.project.id)
		if err != nil {
			return bootImage{}, err
		}
	case err != nil:
		return bootImage{}, err
	default:
		made = bootImage{id: created.Id, size: uint64(created.Size)}
	}

	if w.image.project == "" {
		return d.promote(ctx, w, made)
	}

	return made, nil
}

// stuck is how long the rack may take for a step of an import in which no bytes are sent.
const stuck = 15 * time.Minute

// awaitDisk waits until a disk is in a state, and fails when it will not come to it.
func (d *Driver) awaitDisk(ctx context.Context, disk oxide.Disk, want oxide.DiskStateState) (oxide.Disk, error) {
	for began := time.Now(); ; {
		switch state := disk.State.State(); state {
		case want:
			return disk, nil
		case oxide.DiskStateStateFaulted, oxide.DiskStateStateDestroyed, oxide.DiskStateStateMaintenance:
			return disk, fmt.Errorf("disk %q of the boot image's import is %s", disk.Name, state)
		}

		if time.Since(began) > stuck {
			return disk, fmt.Errorf("disk %q of the boot image's import has been %s for %s", disk.Name, disk.State.State(), stuck)
		}

		if err := sleep(ctx, soon/4); err != nil {
			return disk, err
		}

		var err error
		if disk, err = d.rack.Disk(ctx, disk.Id); err != nil {
			return disk, err
		}
	}
}

// wholeGiB is the size of the smallest disk that holds size bytes.
func wholeGiB(size uint64) uint64 {
	const gib = 1 << 30

	return max((size+gib-1)/gib, 1) * gib
}
