package memory

import (
	"context"
	"maps"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// ImportImage lets the cloud fetch an image. It answers before the image is available. A name that is taken is a conflict.
func (c *Client) ImportImage(ctx context.Context, name, url string, tags map[string]string) (Image, error) {
	return call(ctx, c, OpImportImage, name, importArgs{name, url, tags}, func() (Image, error) {
		if name == "" || url == "" {
			return Image{}, invalid("an image needs name and URL")
		}

		for _, i := range c.cloud.images {
			if i.Name == name {
				return Image{}, conflict("image name %q is taken", name)
			}
		}

		image := c.cloud.importLocked(name, url, tags)

		return image.clone(), nil
	})
}

func (c *Cloud) importLocked(name, url string, tags map[string]string) *Image {
	image := &Image{
		ID: c.idLocked("image"), Name: name, URL: url, Tags: maps.Clone(tags), State: Creating, CreatedAt: time.Now(),
	}
	c.images[image.ID] = image
	c.ledger.Made(ledger.Object{Kind: "image", ID: image.ID, Name: name, Keep: true})

	if c.opts.Fetch == nil {
		c.afterLocked(OpImportImage, func() { image.State = Available })

		return image
	}

	c.tasks.Go(func() {
		err := c.opts.Fetch(c.ctx, url)

		c.mu.Lock()
		defer c.mu.Unlock()

		if err != nil {
			image.State, image.Reason = Failed, err.Error()

			return
		}

		c.afterLocked(OpImportImage, func() { image.State = Available })
	})

	return image
}

// GetImage returns the image of that id.
func (c *Client) GetImage(ctx context.Context, id string) (Image, error) {
	return call(ctx, c, OpGetImage, id, id, func() (Image, error) {
		image, ok := c.cloud.images[id]
		if !ok {
			return Image{}, notFound("image", id)
		}

		return image.clone(), nil
	})
}

// ListImages returns the images that have all of these tags, the oldest first.
func (c *Client) ListImages(ctx context.Context, tags map[string]string) ([]Image, error) {
	return call(ctx, c, OpListImages, "", tags, func() ([]Image, error) {
		var out []Image

		for _, i := range sorted(c.cloud.images, func(i *Image) bool { return tagged(i.Tags, tags) }) {
			out = append(out, i.clone())
		}

		return out, nil
	})
}

// DeleteImage deletes an image that is not being made. Volumes made from it stay.
func (c *Client) DeleteImage(ctx context.Context, id string) error {
	_, err := call(ctx, c, OpDeleteImage, id, id, func() (struct{}, error) {
		image, ok := c.cloud.images[id]

		switch {
		case !ok:
			return struct{}{}, notFound("image", id)
		case image.State == Creating || image.State == Deleting:
			return struct{}{}, conflict("image %q is %s", id, image.State)
		}

		image.State = Deleting
		c.cloud.afterLocked(OpDeleteImage, func() {
			delete(c.cloud.images, id)
			c.cloud.ledger.Gone("image", id)
		})

		return struct{}{}, nil
	})

	return err
}
