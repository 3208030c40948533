package provider

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// An image is two volumes: the bytes, under a name that each attempt to upload chooses anew, and a small overlay on them under
// the image's own name. libvirt cannot rename a volume, but it makes an overlay in one step, so that the image is there under
// its name only once it is whole and checked, and bytes without an overlay that points to them are a broken upload.
//
// The overlay is ours when what it lies on has a name that only this provider's uploads have; a volume of the same name that
// lies on something else is left alone.
const (
	overlaySuffix = ".qcow2"
	dataSuffix    = ".raw"
)

// cleanupTimeout bounds the removal of an upload that failed, which happens also when the work was cancelled.
const cleanupTimeout = 30 * time.Second

// image is an uploaded boot image.
type image struct {
	// Path is where the raw bytes are on the hypervisor's host.
	Path string
	// Size is their number.
	Size uint64
}

// imageRef names an image in a pool.
type imageRef struct {
	pool, name string
}

// ensureImage returns the image, and uploads it if the pool has none. Callers that want the same image at the same time share
// the upload.
func (d *Driver) ensureImage(ctx context.Context, pool string, t driver.Task) (image, error) {
	if t.Image == nil {
		return image{}, errors.New("no boot image was handed over")
	}

	provider := t.Request.ProviderID
	ref := imageRef{pool: pool, name: imageName(provider, t.Image.Key())}

	d.reserveImage(t.Request.Ref, ref)

	return d.uploads.do(ctx, pool+"/"+ref.name, t.Progress, func(ctx context.Context, progress func(string)) (image, error) {
		found, err := d.findImage(ctx, provider, ref)
		if err == nil || !driver.IsNotFound(err) {
			return found, err
		}

		return d.uploadImage(ctx, provider, ref, t.Image, progress)
	})
}

// findImage looks for an image that is whole; NotFound says that there is none.
func (d *Driver) findImage(ctx context.Context, provider string, ref imageRef) (image, error) {
	overlay, err := d.volume(ctx, ref.pool, ref.name+overlaySuffix)
	if err != nil {
		return image{}, err
	}

	data := path.Base(overlay.Backing)
	if !isImageData(provider, data) {
		return image{}, foreignVolume(ref.pool, overlay.Name)
	}

	bytes, err := d.volume(ctx, ref.pool, data)
	if err != nil {
		return image{}, err
	}

	return image{Path: bytes.Path, Size: bytes.Capacity}, nil
}

func (d *Driver) uploadImage(ctx context.Context, provider string, ref imageRef, source driver.Image, progress func(string)) (_ image, err error) {
	data, err := d.createImageData(ctx, provider, ref)
	if err != nil {
		return image{}, err
	}

	defer func() {
		if err == nil {
			return
		}

		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()

		// What cannot be deleted now is deleted before the next upload.
		_ = d.deleteVolume(ctx, ref.pool, data)
	}()

	progress("fetching the boot image")

	r, err := source.Open(ctx)
	if err != nil {
		return image{}, fmt.Errorf("fetch boot image %s: %w", source.Key(), err)
	}

	defer func() { _ = r.Close() }()

	if err := d.upload(ctx, ref.pool, data, r, func(sent uint64) {
		progress(fmt.Sprintf("uploaded %d MiB of the boot image", sent>>20))
	}); err != nil && !errors.Is(err, errKeepsNoBytes) {
		return image{}, err
	}

	made, err := d.volume(ctx, ref.pool, data)
	if err != nil {
		return image{}, err
	}

	release, err := d.lockPool(ctx, ref.pool)
	if err != nil {
		return image{}, err
	}

	defer release()

	if err := d.createVolume(ctx, ref.pool, newVolume{
		Name: ref.name + overlaySuffix, Format: "qcow2", Capacity: made.Capacity, Backing: made.Path,
	}); err != nil {
		return image{}, err
	}

	return image{Path: made.Path, Size: made.Capacity}, nil
}

// createImageData clears away what broken uploads of the image have left and makes a volume for a new one.
func (d *Driver) createImageData(ctx context.Context, provider string, ref imageRef) (name string, err error) {
	release, err := d.lockPool(ctx, ref.pool)
	if err != nil {
		return "", err
	}

	defer release()

	if err := d.refresh(ctx, ref.pool); err != nil {
		return "", err
	}

	// What the refresh has brought to light may be somebody else's.
	if _, err := d.findImage(ctx, provider, ref); err == nil {
		return "", fmt.Errorf("boot image %q has just appeared in storage pool %q", ref.name, ref.pool)
	} else if !driver.IsNotFound(err) {
		return "", err
	}

	volumes, err := d.volumes(ctx, ref.pool)
	if err != nil {
		return "", err
	}

	broken := slices.DeleteFunc(volumes, func(name string) bool {
		return !strings.HasPrefix(name, ref.name+"-") || !isImageData(provider, name)
	})

	if err := d.deleteImageData(ctx, provider, ref.pool, broken); err != nil {
		return "", err
	}

	// An overlay whose bytes are gone points to nothing; findImage has seen that it is ours.
	if err := d.deleteVolume(ctx, ref.pool, ref.name+overlaySuffix); err != nil {
		return "", err
	}

	var attempt [4]byte

	_, _ = rand.Read(attempt[:]) // It never fails.
	name = ref.name + "-" + hex.EncodeToString(attempt[:]) + dataSuffix

	return name, d.createVolume(ctx, ref.pool, newVolume{Name: name, Format: "raw", Capacity: emptyVolume})
}

// reserveImage keeps an image from being swept away before the request's disk lies on it.
func (d *Driver) reserveImage(ref driver.Ref, image imageRef) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.reserved[ref] = image
}

func (d *Driver) unreserveImage(ref driver.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.reserved, ref)
}

func (d *Driver) isReserved(image imageRef) bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	for _, one := range d.reserved {
		if one == image {
			return true
		}
	}

	return false
}

// sweepImages deletes the provider's images on which no disk lies and for which no request waits.
func (d *Driver) sweepImages(ctx context.Context, provider string) error {
	pools, err := d.pools(ctx)
	if err != nil {
		return err
	}

	prefix := imagePrefix(provider)
	images := map[imageRef][]string{}

	for _, pool := range pools {
		volumes, err := d.volumes(ctx, pool)
		if err != nil {
			return err
		}

		for _, name := range volumes {
			if rest, ok := strings.CutPrefix(name, prefix); ok && len(rest) > hashLength {
				ref := imageRef{pool: pool, name: prefix + rest[:hashLength]}
				images[ref] = append(images[ref], name)
			}
		}
	}

	for ref, volumes := range images {
		if err := d.sweepImage(ctx, provider, ref, volumes); err != nil {
			return err
		}
	}

	return nil
}

func (d *Driver) sweepImage(ctx context.Context, provider string, ref imageRef, volumes []string) error {
	release, err := d.lockPool(ctx, ref.pool)
	if err != nil {
		return err
	}

	defer release()

	if d.isReserved(ref) {
		return nil
	}

	// The overlay goes first: an image without it is a broken upload and is cleared away in any case.
	overlay, err := d.volume(ctx, ref.pool, ref.name+overlaySuffix)

	switch {
	case driver.IsNotFound(err):
	case err != nil:
		return err
	case !isImageData(provider, path.Base(overlay.Backing)):
		return nil
	default:
		used, err := d.backings(ctx, provider)
		if err != nil || used[overlay.Backing] {
			return err
		}

		if err := d.deleteVolume(ctx, ref.pool, overlay.Name); err != nil {
			return err
		}
	}

	return d.deleteImageData(ctx, provider, ref.pool, slices.DeleteFunc(volumes, func(name string) bool {
		return !isImageData(provider, name)
	}))
}

// deleteImageData deletes volumes that hold an image's bytes, but for those on which a disk lies.
func (d *Driver) deleteImageData(ctx context.Context, provider, pool string, volumes []string) error {
	if len(volumes) == 0 {
		return nil
	}

	used, err := d.backings(ctx, provider)
	if err != nil {
		return err
	}

	for _, name := range volumes {
		data, err := d.volume(ctx, pool, name)
		if driver.IsNotFound(err) || err == nil && used[data.Path] {
			continue
		}

		if err != nil {
			return err
		}

		if err := d.deleteVolume(ctx, pool, name); err != nil {
			return err
		}
	}

	return nil
}

// backings returns the paths on which disks lie, in any pool and whoever made them, but for the provider's own images.
func (d *Driver) backings(ctx context.Context, provider string) (map[string]bool, error) {
	pools, err := d.pools(ctx)
	if err != nil {
		return nil, err
	}

	used := map[string]bool{}

	for _, pool := range pools {
		volumes, err := d.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		for _, name := range volumes {
			if strings.HasPrefix(name, imagePrefix(provider)) {
				continue
			}

			v, err := d.volume(ctx, pool, name)
			if err != nil && !driver.IsNotFound(err) {
				return nil, err
			}

			used[v.Backing] = true
		}
	}

	return used, nil
}

// foreignVolume is the error for a volume that has one of our names but was made by somebody else.
func foreignVolume(pool, name string) error {
	return fmt.Errorf("volume %q in storage pool %q is in the way: it was not made by this provider, which leaves it alone; move or delete it",
		name, pool)
}
