package memory

import (
	"context"
	"maps"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// CreateVolume makes a disk. It answers before the disk is available.
func (c *Client) CreateVolume(ctx context.Context, spec VolumeSpec) (Volume, error) {
	return call(ctx, c, OpCreateVolume, spec.Name, spec, func() (Volume, error) {
		if spec.Name == "" || spec.SizeGiB <= 0 {
			return Volume{}, invalid("a volume needs a name and a size of at least 1 GiB")
		}

		if spec.ImageID != "" {
			image, ok := c.cloud.images[spec.ImageID]

			switch {
			case !ok:
				return Volume{}, notFound("image", spec.ImageID)
			case image.State != Available:
				return Volume{}, conflict("image %q is %s", spec.ImageID, image.State)
			}
		}

		volume := c.cloud.createVolumeLocked(spec)

		return volume.clone(), nil
	})
}

func (c *Cloud) createVolumeLocked(spec VolumeSpec) *Volume {
	volume := &Volume{
		ID: c.idLocked("volume"), Name: spec.Name, ImageID: spec.ImageID, SizeGiB: spec.SizeGiB,
		Tags: maps.Clone(spec.Tags), State: Creating, CreatedAt: time.Now(),
	}
	c.volumes[volume.ID] = volume
	c.ledger.Made(ledger.Object{Kind: "volume", ID: volume.ID, Name: volume.Name})
	c.afterLocked(OpCreateVolume, func() { volume.State = Available })

	return volume
}

// GetVolume returns the volume of that id.
func (c *Client) GetVolume(ctx context.Context, id string) (Volume, error) {
	return call(ctx, c, OpGetVolume, id, id, func() (Volume, error) {
		volume, ok := c.cloud.volumes[id]
		if !ok {
			return Volume{}, notFound("volume", id)
		}

		return volume.clone(), nil
	})
}

// ListVolumes returns the volumes that have all of these tags, the oldest first.
func (c *Client) ListVolumes(ctx context.Context, tags map[string]string) ([]Volume, error) {
	return call(ctx, c, OpListVolumes, "", tags, func() ([]Volume, error) {
		var out []Volume

		for _, v := range sorted(c.cloud.volumes, func(v *Volume) bool { return tagged(v.Tags, tags) }) {
			out = append(out, v.clone())
		}

		return out, nil
	})
}

// DeleteVolume deletes a volume that is attached to no machine. It answers before the volume is gone.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	_, err := call(ctx, c, OpDeleteVolume, id, id, func() (struct{}, error) {
		volume, ok := c.cloud.volumes[id]

		switch {
		case !ok:
			return struct{}{}, notFound("volume", id)
		case volume.State != Available:
			return struct{}{}, conflict("volume %q is %s", id, volume.State)
		case volume.VMID != "":
			return struct{}{}, conflict("volume %q is attached to machine %q", id, volume.VMID)
		}

		volume.State = Deleting
		c.cloud.afterLocked(OpDeleteVolume, func() {
			delete(c.cloud.volumes, id)
			c.cloud.ledger.Gone("volume", id)
		})

		return struct{}{}, nil
	})

	return err
}
