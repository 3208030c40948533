package oxide

import (
	"net/http"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

type snapshot struct {
	meta
	disk      string
	blockSize int
	state     api.SnapshotState
	content   *content
}

func (s *snapshot) view() api.Snapshot {
	return api.Snapshot{
		Id: s.id, Name: api.Name(s.name), Description: s.description, ProjectId: s.scope, DiskId: s.disk,
		Size: api.ByteCount(s.content.size), State: s.state, //nolint:gosec // Sizes are positive.
		TimeCreated: took(s.created), TimeModified: took(s.modified),
	}
}

// finish ends the making of a snapshot.
func (s *snapshot) finish() {
	if s.state == api.SnapshotStateCreating {
		s.state = api.SnapshotStateReady
		s.touch()
	}
}

// newSnapshotLocked enters a snapshot, which is still being created.
func (r *Rack) newSnapshotLocked(d *disk, name, description string) (*snapshot, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}

	if err := r.snapshots.free(d.scope, name, ""); err != nil {
		return nil, err
	}

	if err := r.storageLocked(d.size); err != nil {
		return nil, err
	}

	s := &snapshot{
		meta: r.newMeta(name, description, d.scope), disk: d.id, blockSize: d.blockSize, state: api.SnapshotStateCreating,
		content: r.copyLocked(d.content, d.size),
	}

	r.snapshots.add(r.ledger, s, false)

	return s, nil
}

func (c *call) listSnapshots() (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.snapshots.in(in.id), (*snapshot).view)
}

func (c *call) viewSnapshot() (int, any, error) {
	s, err := find(c, &c.snapshots, c.path("snapshot"), false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, s.view(), nil
}

func (c *call) createSnapshot() (int, any, error) {
	body, err := decode[api.SnapshotCreate](c)
	if err != nil {
		return 0, nil, err
	}

	in, err := c.inProject(true)
	if err != nil {
		return 0, nil, err
	}

	d, err := within(&c.disks, in, string(body.Disk))

	switch {
	case err != nil:
		return 0, nil, err
	case d.kind == api.DiskTypeLocal:
		return 0, nil, invalidRequest("local disks do not support snapshots")
	case d.state != api.DiskStateStateDetached && d.state != api.DiskStateStateAttached:
		return 0, nil, invalidRequest("cannot snapshot disk in state %s", d.variant())
	}

	s, err := c.newSnapshotLocked(d, string(body.Name), body.Description)
	if err != nil {
		return 0, nil, err
	}

	c.pauseLocked(c.opts.Durations["snapshot_create"])
	s.finish()

	return http.StatusCreated, s.view(), nil
}

func (c *call) deleteSnapshot() (int, any, error) {
	s, err := find(c, &c.snapshots, c.path("snapshot"), true)
	if err != nil {
		return 0, nil, err
	}

	if s.state != api.SnapshotStateReady && s.state != api.SnapshotStateFaulted {
		return 0, nil, invalidRequest("snapshot cannot be deleted in state: %s", s.state)
	}

	s.state = api.SnapshotStateDestroyed
	c.snapshots.drop(c.ledger, s)
	c.dropContentLocked(s.content)
	c.pauseLocked(c.opts.Durations["snapshot_delete"])

	return http.StatusNoContent, nil, nil
}
