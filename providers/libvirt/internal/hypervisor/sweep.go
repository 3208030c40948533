package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Boot images that nothing has used for the configured time are deleted in the background, now and then, when the library looks at the
// machines: that shows that this process is the one that acts. A look at a pool's names is all that it takes as long as each image has a
// user that is soon found.
//
// Since when an image is not used is kept in the name of a small volume beside it, so that it outlives the provider in every type of
// pool, needs no clock but the provider's own, and costs nothing while the image is used.
const (
	// DefaultImageMaxAge and DefaultSweepInterval are those of Config.
	DefaultImageMaxAge   = 24 * time.Hour
	DefaultSweepInterval = 10 * time.Minute
	// sweepTimeout bounds a sweep.
	sweepTimeout = 5 * time.Minute
)

// sweepIfDue starts a sweep if the last one began long enough ago. The first one is not before a whole interval has passed, so that
// commands that only look at what there is delete nothing.
func (h *Host) sweepIfDue(provider string) {
	if h.config.KeepImages {
		return
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Now()
	if h.closed || now.Sub(h.swept) < h.config.SweepInterval {
		return
	}

	h.swept = now

	h.background.Go(func() {
		ctx, cancel := context.WithTimeout(h.life, sweepTimeout)
		defer cancel()

		if err := h.SweepImages(ctx, provider); err != nil && h.life.Err() == nil {
			h.config.Logger.Warn("boot images that nothing uses may be left in the storage pools until the next sweep", zap.Error(err))
		}
	})
}

// SweepImages deletes the provider's images that nothing has used for the configured time, and notes of the others since when nothing
// has. What cannot be seen to be unused is kept.
func (h *Host) SweepImages(ctx context.Context, provider string) error {
	began := time.Now()

	images, err := h.imagesOf(ctx, provider)
	if err != nil {
		return err
	}

	maps.DeleteFunc(images, func(ref imageRef, _ []string) bool { return h.images.reserved(ref) })

	if len(images) == 0 {
		return nil
	}

	used, err := h.usersOf(ctx, provider, images)
	if err != nil {
		return err
	}

	if err := h.addUnseen(ctx, provider, images, used); err != nil {
		return err
	}

	var errs []error

	for ref, parts := range images {
		if _, ok := used[ref]; ok {
			err = h.noteUse(ctx, provider, ref, parts)
		} else {
			err = h.sweepImage(ctx, provider, ref, parts, began)
		}

		if err != nil {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// imagesOf returns the volumes of the provider's images.
func (h *Host) imagesOf(ctx context.Context, provider string) (map[imageRef][]string, error) {
	pools, err := h.pools(ctx)
	if err != nil {
		return nil, err
	}

	images := map[imageRef][]string{}

	for _, pool := range pools {
		volumes, err := h.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		for _, name := range volumes {
			if image, ok := machine.ImageOfVolume(provider, name); ok {
				ref := imageRef{pool: pool, name: image}
				images[ref] = append(images[ref], name)
			}
		}
	}

	return images, nil
}

// noteUse takes back that an image is not used.
func (h *Host) noteUse(ctx context.Context, provider string, ref imageRef, parts []string) error {
	for _, name := range parts {
		if _, ok := machine.UnusedSince(provider, name); ok {
			if err := h.deleteVolume(ctx, ref.pool, name); err != nil {
				return err
			}
		}
	}

	return nil
}

// addUnseen looks again for users of the images that are about to be deleted, in what their pools really hold: libvirt does not see by
// itself what another host has made in a pool that both share, or somebody without libvirt.
func (h *Host) addUnseen(ctx context.Context, provider string, images map[imageRef][]string, used map[imageRef]string) error {
	due := map[imageRef][]string{}

	for ref, parts := range images {
		since, _ := h.unusedSince(provider, ref, parts)
		if _, ok := used[ref]; !ok && time.Since(since) >= h.config.ImageMaxAge {
			due[ref] = parts
		}
	}

	if len(due) == 0 {
		return nil
	}

	looked := map[string]bool{}

	for ref := range due {
		if looked[ref.pool] {
			continue
		}

		if err := h.lookAgain(ctx, ref.pool); err != nil {
			return fmt.Errorf("look for users of boot images: %w", err)
		}

		looked[ref.pool] = true
	}

	found, err := h.usersOf(ctx, provider, due)
	maps.Copy(used, found)

	return err
}

// unusedSince returns since when an image is not used, which is now if nothing says so, and the name of the volume that says so; empty
// if there is none, or the process knows better.
func (h *Host) unusedSince(provider string, ref imageRef, parts []string) (since time.Time, noted string) {
	since = h.images.lastUse(ref)

	for _, name := range parts {
		if at, ok := machine.UnusedSince(provider, name); ok && (noted == "" || at.After(since)) {
			since, noted = laterOf(since, at), name
		}
	}

	if since.IsZero() {
		since = time.Now()
	}

	return since, noted
}

// sweepImage deletes an image of which a look that began at that time has found no user, if that has been so for long enough, else it
// notes since when.
func (h *Host) sweepImage(ctx context.Context, provider string, ref imageRef, parts []string, began time.Time) error {
	release, err := h.lockPool(ctx, ref.pool)
	if err != nil {
		return err
	}

	defer release()

	// What was looked at before the lock was there may be wanted by now, or have got its user since.
	if h.images.reserved(ref) || h.images.lastUse(ref).After(began) {
		return nil
	}

	since, noted := h.unusedSince(provider, ref, parts)

	if age := time.Since(since); age >= h.config.ImageMaxAge {
		hidden, err := h.hiddenPool(ctx)
		if err != nil {
			return err
		}

		if hidden == "" {
			return h.retireImage(ctx, provider, ref, parts, age)
		}

		h.config.Logger.Warn("a boot image that nothing seems to use is kept: volumes in a pool that is not active may lie on it",
			zap.String("pool", ref.pool), zap.String("image", ref.name), zap.String("inactive", hidden))
	}

	if machine.ImageUnused(ref.name, since) == noted {
		return nil
	}

	p, err := h.pool(ctx, ref.pool)
	if err != nil {
		return err
	}

	// The new note comes before the old ones go.
	v := machine.NewVolume{Name: machine.ImageUnused(ref.name, since), Format: "raw", Capacity: emptyVolume, Whole: p.whole}
	if !p.overlays {
		v.Capacity = smallVolume
	}

	if err := h.createVolume(ctx, ref.pool, v); err != nil {
		return err
	}

	return h.noteUse(ctx, provider, ref, parts)
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

// retireImage deletes an image that is not used.
func (h *Host) retireImage(ctx context.Context, provider string, ref imageRef, parts []string, age time.Duration) error {
	if overlay := ref.name + overlaySuffix; slices.Contains(parts, overlay) {
		v, err := h.volume(ctx, ref.pool, overlay)

		switch {
		case driver.IsNotFound(err):
		case err != nil:
			return err
		case !machine.IsImageData(provider, path.Base(v.Backing)):
			return nil // It is somebody else's.
		}
	}

	if err := h.deleteImage(ctx, ref, parts); err != nil {
		return err
	}

	h.images.forget(ref)
	h.config.Logger.Info("a boot image that nothing used is deleted",
		zap.String("pool", ref.pool), zap.String("image", ref.name), zap.Duration("unused", age.Round(time.Second)))

	return nil
}

// usersOf returns what uses the images, of which the volumes are given, whoever it belongs to: a volume that lies on one, in any pool, or
// a domain that has one for a disk.
func (h *Host) usersOf(ctx context.Context, provider string, images map[imageRef][]string) (map[imageRef]string, error) {
	byPath, err := h.pathsOf(ctx, images)
	if err != nil {
		return nil, err
	}

	used := map[imageRef]string{}

	if err := h.addDomains(ctx, byPath, used); err != nil {
		return nil, err
	}

	pools, err := h.pools(ctx)
	if err != nil {
		return nil, err
	}

	for _, pool := range pools {
		if err := h.addOverlays(ctx, provider, pool, byPath, used, len(images)); err != nil {
			return nil, err
		}
	}

	return used, nil
}

// pathsOf returns which image is where. A volume whose image goes meanwhile is left out.
func (h *Host) pathsOf(ctx context.Context, images map[imageRef][]string) (map[string]imageRef, error) {
	byPath := map[string]imageRef{}

	for ref, parts := range images {
		for _, name := range parts {
			v, err := h.volume(ctx, ref.pool, name)
			if driver.IsNotFound(err) {
				continue
			}

			if err != nil {
				return nil, err
			}

			byPath[v.Path] = ref
		}
	}

	return byPath, nil
}

// hiddenPool returns a pool whose volumes may be overlays and cannot be seen, empty for none.
func (h *Host) hiddenPool(ctx context.Context) (string, error) {
	return connection.Call(ctx, h.conn, "list inactive storage pools", func(c connection.Connect) (string, error) {
		names, err := poolNames(c, libvirt.CONNECT_LIST_STORAGE_POOLS_INACTIVE)
		if err != nil {
			return "", err
		}

		for _, name := range names {
			p, err := withPool(c, name, func(_ connection.Connect, p connection.StoragePool) (pool, error) { return readPool(name, p) })
			if connection.Is(err, libvirt.ERR_NO_STORAGE_POOL) {
				continue
			}

			if err != nil || p.overlays && !p.active {
				return name, err
			}
		}

		return "", nil
	})
}

// inXML writes a text as libvirt does in an attribute.
var inXML = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&apos;", `"`, "&quot;")

// addDomains notes the images that domains name in their descriptions.
func (h *Host) addDomains(ctx context.Context, byPath map[string]imageRef, used map[imageRef]string) error {
	found, err := connection.Call(ctx, h.conn, "look for domains on boot images", func(c connection.Connect) (map[string]string, error) {
		all, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}

		var first error

		found := map[string]string{}

		for i := range all {
			name, nameErr := all[i].GetName()
			desc, descErr := all[i].GetXMLDesc(0)
			_ = all[i].Free()

			if err := errors.Join(nameErr, descErr); err != nil && !connection.Is(descErr, libvirt.ERR_NO_DOMAIN) && first == nil {
				first = err
			}

			for path := range byPath {
				if strings.Contains(desc, "'"+inXML.Replace(path)+"'") {
					found[path] = name
				}
			}
		}

		return found, first
	})

	for path, domain := range found {
		used[byPath[path]] = fmt.Sprintf("domain %q has it", domain)
	}

	return err
}

// addOverlays notes the images on which volumes of a pool lie, but for the images' own, until all images have a user. The volumes of the
// provider's machines come first: they most likely are users.
func (h *Host) addOverlays(
	ctx context.Context, provider, pool string, byPath map[string]imageRef, used map[imageRef]string, images int,
) error {
	volumes, err := h.volumes(ctx, pool)
	if err != nil {
		return err
	}

	rank := func(name string) int {
		if _, ok := machine.RefOfVolume(provider, name); ok {
			return 0
		}

		return 1
	}

	slices.SortStableFunc(volumes, func(a, b string) int { return rank(a) - rank(b) })

	for _, name := range volumes {
		if len(used) == images {
			return nil
		}

		if _, own := machine.ImageOfVolume(provider, name); own {
			continue
		}

		v, err := h.volume(ctx, pool, name)
		if driver.IsNotFound(err) {
			continue
		}

		if err != nil {
			return err
		}

		if ref, ok := byPath[v.Backing]; ok {
			used[ref] = fmt.Sprintf("volume %q in storage pool %q lies on it", name, pool)
		}
	}

	return nil
}
