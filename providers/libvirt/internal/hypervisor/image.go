package hypervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// An image is two volumes: the bytes, under a name that each attempt to upload chooses anew, and a small one that says that they are
// whole. libvirt cannot rename a volume, but it makes a small one in one step, so that the image is there only once it is whole and
// checked, and bytes that nothing points to are a broken upload.
//
// Where volumes can lie on one another, the small one is an overlay on the bytes, under the image's own name. It is ours when what it
// lies on has a name that only this provider's uploads have; a volume of the same name that lies on something else is left alone.
// Elsewhere it is a volume whose name goes with that of the bytes.
const overlaySuffix = ".qcow2"

// smallVolume is the size of volumes on devices whose names alone say something. It is a multiple of all block sizes.
const smallVolume = 1 << 20

// cleanupTimeout bounds the removal of an upload that failed, which happens also when the work was cancelled.
const cleanupTimeout = 30 * time.Second

// image is an uploaded boot image.
type image struct {
	// Data is the volume with the raw bytes, Path where it is on the hypervisor's host.
	Data, Path string
	// Size is the number of bytes.
	Size uint64
}

// imageRef names an image in a pool.
type imageRef struct {
	pool, name string
}

// ensureImage returns the image, and uploads it if the pool has none. Callers that want the same image at the same time share
// the upload.
func (h *Host) ensureImage(ctx context.Context, p pool, t driver.Task) (image, error) {
	if t.Image == nil {
		return image{}, errors.New("no boot image was handed over")
	}

	provider := t.Request.ProviderID
	ref := imageRef{pool: p.name, name: machine.ImageName(provider, t.Image.Key())}

	h.images.reserve(t.Request.Ref, ref)

	return h.uploads.Do(ctx, p.name+"/"+ref.name, t.Progress, func(ctx context.Context, progress func(string)) (image, error) {
		found, err := h.findImage(ctx, provider, p, ref)
		if err == nil || !driver.IsNotFound(err) {
			return found, err
		}

		return h.uploadImage(ctx, provider, p, ref, t.Image, progress)
	})
}

// findImage looks for an image that is whole; NotFound says that there is none.
func (h *Host) findImage(ctx context.Context, provider string, p pool, ref imageRef) (image, error) {
	data, err := h.findImageData(ctx, provider, p, ref)
	if err != nil {
		return image{}, err
	}

	bytes, err := h.volume(ctx, ref.pool, data)
	if err != nil {
		return image{}, err
	}

	return image{Data: data, Path: bytes.Path, Size: bytes.Capacity}, nil
}

// findImageData returns the name of the volume that is said to hold the bytes.
func (h *Host) findImageData(ctx context.Context, provider string, p pool, ref imageRef) (string, error) {
	if p.overlays {
		overlay, err := h.volume(ctx, ref.pool, ref.name+overlaySuffix)
		if err != nil {
			return "", err
		}

		data := path.Base(overlay.Backing)
		if !machine.IsImageData(provider, data) {
			return "", foreignVolume(ref.pool, overlay.Name)
		}

		return data, nil
	}

	volumes, err := h.volumes(ctx, ref.pool)
	if err != nil {
		return "", err
	}

	for _, name := range volumes {
		data, ok := machine.DataOfReady(provider, name)
		if of, _ := machine.ImageOfVolume(provider, name); ok && of == ref.name && slices.Contains(volumes, data) {
			return data, nil
		}
	}

	return "", driver.NotFound("storage pool %q has no boot image %q", ref.pool, ref.name)
}

func (h *Host) uploadImage(ctx context.Context, provider string, p pool, ref imageRef, source driver.Image, progress func(string)) (_ image, err error) {
	progress("fetching the boot image")

	size := uint64(emptyVolume)

	if !p.overlays {
		if size, err = measure(ctx, source); err != nil {
			return image{}, err
		}
	}

	r, err := source.Open(ctx)
	if err != nil {
		return image{}, err
	}

	defer func() { _ = r.Close() }()

	data, err := h.createImageData(ctx, provider, p, ref, size)
	if err != nil {
		return image{}, err
	}

	publishing := false

	defer func() {
		// Whether an image is published of which libvirt has not said so, the next look at it shows. Till then somebody may use it.
		if err == nil || publishing && errors.Is(err, connection.ErrUnreachable) {
			return
		}

		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()

		// What cannot be deleted now is deleted before the next upload.
		_ = h.deleteVolume(ctx, ref.pool, data)
	}()

	say := percent("boot image", r, progress)

	if err := h.upload(ctx, target{pool: ref.pool, name: data, fixed: !p.overlays}, r, say); err != nil && !errors.Is(err, errKeepsNoBytes) {
		return image{}, err
	}

	publishing = true

	made, err := h.publishImage(ctx, p, ref, data)
	if err != nil {
		return image{}, err
	}

	progress("boot image: 100 %")

	return made, nil
}

// publishImage says that the bytes are whole, in one step.
func (h *Host) publishImage(ctx context.Context, p pool, ref imageRef, data string) (image, error) {
	made, err := h.volume(ctx, ref.pool, data)
	if err != nil {
		return image{}, err
	}

	release, err := h.lockPool(ctx, ref.pool)
	if err != nil {
		return image{}, err
	}

	defer release()

	v := machine.NewVolume{Name: ref.name + overlaySuffix, Format: "qcow2", Capacity: made.Capacity, Backing: made.Path}
	if !p.overlays {
		v = machine.NewVolume{Name: machine.ImageReady(data), Format: "raw", Capacity: smallVolume, Whole: p.whole}
	}

	if err := h.createVolume(ctx, ref.pool, v); err != nil {
		return image{}, err
	}

	return image{Data: data, Path: made.Path, Size: made.Capacity}, nil
}

// createImageData clears away what broken uploads of the image have left and makes a volume for a new one.
func (h *Host) createImageData(ctx context.Context, provider string, p pool, ref imageRef, size uint64) (name string, err error) {
	apart, err := h.lockCopies(ctx, p)
	if err != nil {
		return "", err
	}

	defer apart()

	release, err := h.lockPool(ctx, ref.pool)
	if err != nil {
		return "", err
	}

	defer release()

	if err := h.refresh(ctx, ref.pool); err != nil {
		return "", err
	}

	// What the refresh has brought to light may be somebody else's.
	if _, err := h.findImage(ctx, provider, p, ref); err == nil {
		return "", fmt.Errorf("boot image %q has just appeared in storage pool %q", ref.name, ref.pool)
	} else if !driver.IsNotFound(err) {
		return "", err
	}

	if err := h.clearImage(ctx, provider, ref); err != nil {
		return "", err
	}

	var attempt [4]byte

	_, _ = rand.Read(attempt[:]) // It never fails.
	name = machine.ImageData(ref.name, attempt)

	return name, h.createVolume(ctx, ref.pool, machine.NewVolume{Name: name, Format: "raw", Capacity: size, Whole: p.whole})
}

// clearImage deletes all volumes of an image that is not whole, of which findImage has seen that they are ours, but for those on which
// a disk lies.
func (h *Host) clearImage(ctx context.Context, provider string, ref imageRef) error {
	volumes, err := h.volumes(ctx, ref.pool)
	if err != nil {
		return err
	}

	parts := slices.DeleteFunc(volumes, func(name string) bool {
		of, ok := machine.ImageOfVolume(provider, name)

		return !ok || of != ref.name
	})
	if len(parts) == 0 {
		return nil
	}

	used, err := h.usersOf(ctx, provider, map[imageRef][]string{ref: parts})
	if err != nil {
		return err
	}

	if user, ok := used[ref]; ok {
		parts = slices.DeleteFunc(parts, func(name string) bool { return machine.IsImageData(provider, name) })
		h.config.Logger.Warn("bytes of a boot image that is not whole are kept: " + user)
	}

	return h.deleteImage(ctx, ref, parts)
}

// deleteImage deletes the volumes of an image, first that which says that it is whole, last that which says since when it is not used.
func (h *Host) deleteImage(ctx context.Context, ref imageRef, parts []string) error {
	rank := func(name string) int {
		switch path.Ext(name) {
		case overlaySuffix, ".ready":
			return 0
		case ".unused":
			return 2
		default:
			return 1
		}
	}

	for _, name := range slices.SortedStableFunc(slices.Values(parts), func(a, b string) int { return rank(a) - rank(b) }) {
		if err := h.deleteVolume(ctx, ref.pool, name); err != nil {
			return err
		}
	}

	return nil
}

// copyImage makes a machine's system disk in a pool without overlays: a full copy of the image, made by libvirt where it can do that for
// this type of pool, else by way of the provider.
func (h *Host) copyImage(ctx context.Context, from image, pool string, v machine.NewVolume, progress func(string)) error {
	progress("copying the boot image")

	err := h.cloneVolume(ctx, pool, from.Data, v)
	if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
		err = h.streamImage(ctx, from, pool, v, progress)
	}

	if err != nil {
		return err
	}

	// Some copies are as large as what they were made from, whatever was asked for.
	return h.growVolume(ctx, pool, v.Name, v.Capacity)
}

func (h *Host) streamImage(ctx context.Context, from image, pool string, v machine.NewVolume, progress func(string)) error {
	if err := h.createVolume(ctx, pool, v); err != nil {
		return err
	}

	r, err := h.open(ctx, pool, from.Data)
	if err != nil {
		return err
	}

	defer func() { _ = r.Close() }()

	return h.upload(ctx, target{pool: pool, name: v.Name, fixed: true}, r, percentOf("copy of the boot image", from.Size, progress))
}

// measured is a source that knows how far it has been read. That of package bootasset does.
type measured interface {
	// Progress returns how much has been fetched and how much there is, negative if that is not known.
	Progress() (fetched, total int64)
}

// percent says how far an upload is, in percent if its source can tell and else in mebibytes. It never goes back, and leaves the last
// step to who knows that the upload is whole.
func percent(what string, source io.Reader, progress func(string)) func(sent uint64) {
	m, ok := source.(measured)
	if !ok {
		return func(sent uint64) { progress(fmt.Sprintf("%s: %d MiB", what, sent>>20)) }
	}

	return func(sent uint64) {
		fetched, total := m.Progress()
		if total <= 0 {
			progress(fmt.Sprintf("%s: %d MiB", what, sent>>20))

			return
		}

		progress(fmt.Sprintf("%s: %d %%", what, min(99, fetched*100/total)))
	}
}

// percentOf is percent for a source of a known size.
func percentOf(what string, size uint64, progress func(string)) func(sent uint64) {
	return func(sent uint64) { progress(fmt.Sprintf("%s: %d %%", what, min(99, sent*100/max(size, 1)))) }
}

// foreignVolume is the error for a volume that has one of our names but was made by somebody else.
func foreignVolume(pool, name string) error {
	return fmt.Errorf("volume %q in storage pool %q is in the way: it was not made by this provider, which leaves it alone; move or delete it",
		name, pool)
}
