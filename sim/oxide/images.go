package oxide

import (
	"net/http"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// image belongs to a project, or to the silo if its scope is empty.
type image struct {
	meta
	os, version string
	blockSize   int
	content     *content
}

func (i *image) view() api.Image {
	return api.Image{
		Id: i.id, Name: api.Name(i.name), Description: i.description, ProjectId: i.scope, Os: i.os, Version: i.version,
		BlockSize: api.BlockSize(i.blockSize), Size: api.ByteCount(i.content.size), //nolint:gosec // Sizes are positive.
		TimeCreated: took(i.created), TimeModified: took(i.modified),
	}
}

// listImages lists those of the project, or those of the silo.
func (c *call) listImages() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	if p.mark.Start.Scope == "" {
		if c.user.role < Viewer {
			return 0, nil, forbidden()
		}

		return listed(p, c.images.in(""), (*image).view)
	}

	in, err := c.projectOf(p.mark.Start.Scope, false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.images.in(in.id), (*image).view)
}

// imageOf returns the image of the path: by its name one of the project that is named, or of the silo if none is.
func (c *call) imageOf(changing bool) (*image, error) {
	text := c.path("image")

	if !isID(text) && c.query.Get("project") == "" {
		i, ok := c.images.named("", text)

		switch {
		case !ok:
			return nil, notFoundName("image", text)
		case changing && c.user.role < Collaborator:
			return nil, forbidden()
		}

		return i, nil
	}

	i, ok := c.images.byID(text)
	if ok && i.scope == "" && c.query.Get("project") == "" {
		if changing && c.user.role < Collaborator {
			return nil, forbidden()
		}

		return i, nil
	}

	return find(c, &c.images, text, changing)
}

func (c *call) viewImage() (int, any, error) {
	i, err := c.imageOf(false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, i.view(), nil
}

func (c *call) createImage() (int, any, error) {
	body, err := decode[api.ImageCreate](c)
	if err != nil {
		return 0, nil, err
	}

	scope := ""

	if c.query.Get("project") != "" {
		in, err := c.inProject(true)
		if err != nil {
			return 0, nil, err
		}

		scope = in.id
	} else if c.user.role < Collaborator {
		return 0, nil, forbidden()
	}

	source, ok := body.Source.Value.(*api.ImageSourceSnapshot)
	if !ok {
		return 0, nil, badBody("missing field `source`")
	}

	if err := checkName(string(body.Name)); err != nil {
		return 0, nil, err
	}

	s, ok := c.snapshots.byID(source.Id)

	switch {
	case !ok || c.user.in(s.scope) < Viewer:
		return 0, nil, notFoundID("snapshot", source.Id)
	case s.state != api.SnapshotStateReady:
		return 0, nil, invalidRequest("snapshot is in state %s", s.state)
	case scope != "" && s.scope != scope:
		return 0, nil, invalidRequest("snapshot does not belong to this project")
	}

	if err := c.images.free(scope, string(body.Name), ""); err != nil {
		return 0, nil, err
	}

	i := &image{
		meta: c.newMeta(string(body.Name), body.Description, scope), os: body.Os, version: body.Version, blockSize: s.blockSize,
		content: c.copyLocked(s.content, s.content.size),
	}

	c.images.add(c.ledger, i, true)
	c.pauseLocked(c.opts.Durations["image_create"])

	return http.StatusCreated, i.view(), nil
}

func (c *call) deleteImage() (int, any, error) {
	i, err := c.imageOf(true)
	if err != nil {
		return 0, nil, err
	}

	c.images.drop(c.ledger, i)
	c.dropContentLocked(i.content)

	return http.StatusNoContent, nil, nil
}

func (c *call) promoteImage() (int, any, error) {
	i, err := c.imageOf(true)

	switch {
	case err != nil:
		return 0, nil, err
	case i.scope == "":
		return 0, nil, invalidRequest("Image is already promoted")
	case c.user.role < Collaborator:
		return 0, nil, forbidden()
	}

	if err := c.images.free("", i.name, ""); err != nil {
		return 0, nil, err
	}

	i.scope = ""
	i.touch()

	return http.StatusAccepted, i.view(), nil
}

func (c *call) demoteImage() (int, any, error) {
	text := c.path("image")

	var (
		i  *image
		ok bool
	)

	// The project is the one that the image goes to, and is no part of its name.
	if isID(text) {
		if i, ok = c.images.byID(text); !ok {
			return 0, nil, notFoundID("image", text)
		}

		if i.scope != "" {
			return 0, nil, invalidRequest("Cannot demote a project image")
		}
	} else if i, ok = c.images.named("", text); !ok {
		return 0, nil, notFoundName("image", text)
	}

	in, err := c.inProject(true)

	switch {
	case err != nil:
		return 0, nil, err
	case c.user.role < Collaborator:
		return 0, nil, forbidden()
	}

	if err := c.images.free(in.id, i.name, ""); err != nil {
		return 0, nil, err
	}

	i.scope = in.id
	i.touch()

	return http.StatusAccepted, i.view(), nil
}
