package oxide

import (
	"fmt"
	"net/http"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

type disk struct {
	meta
	size      int64
	blockSize int
	kind      api.DiskType
	readOnly  bool
	state     api.DiskStateState
	// instance is the id of the one that the disk is attached to, or about to be; empty for none.
	instance string
	// image and snapshot are the ids of what it was made from.
	image, snapshot string
	content         *content
	// pantry says that the disk was made for an import, which is not finalized yet.
	pantry bool
}

func (m *meta) touch() { m.modified = time.Now().UTC() }

func (d *disk) enter(s api.DiskStateState) {
	d.state = s
	d.touch()
}

func (d *disk) view() api.Disk {
	return api.Disk{
		Id: d.id, Name: api.Name(d.name), Description: d.description, ProjectId: d.scope, BlockSize: api.BlockSize(d.blockSize),
		DevicePath: "/mnt/" + d.name, DiskType: d.kind, ImageId: d.image, SnapshotId: d.snapshot, ReadOnly: new(d.readOnly),
		Size: api.ByteCount(d.size), State: d.stateView(), TimeCreated: took(d.created), TimeModified: took(d.modified),
	}
}

func (d *disk) stateView() api.DiskState {
	switch d.state {
	case api.DiskStateStateCreating:
		return api.DiskState{Value: &api.DiskStateCreating{}}
	case api.DiskStateStateImportReady:
		return api.DiskState{Value: &api.DiskStateImportReady{}}
	case api.DiskStateStateImportingFromBulkWrites:
		return api.DiskState{Value: &api.DiskStateImportingFromBulkWrites{}}
	case api.DiskStateStateFinalizing:
		return api.DiskState{Value: &api.DiskStateFinalizing{}}
	case api.DiskStateStateMaintenance:
		return api.DiskState{Value: &api.DiskStateMaintenance{}}
	case api.DiskStateStateAttaching:
		return api.DiskState{Value: &api.DiskStateAttaching{Instance: d.instance}}
	case api.DiskStateStateAttached:
		return api.DiskState{Value: &api.DiskStateAttached{Instance: d.instance}}
	case api.DiskStateStateDetaching:
		return api.DiskState{Value: &api.DiskStateDetaching{Instance: d.instance}}
	case api.DiskStateStateFaulted:
		return api.DiskState{Value: &api.DiskStateFaulted{}}
	case api.DiskStateStateDestroyed:
		return api.DiskState{Value: &api.DiskStateDestroyed{}}
	default:
		return api.DiskState{Value: &api.DiskStateDetached{}}
	}
}

// variant is a state as the control plane prints it for its developers.
func (d *disk) variant() string {
	names := map[api.DiskStateState]string{
		api.DiskStateStateCreating: "Creating", api.DiskStateStateDetached: "Detached", api.DiskStateStateImportReady: "ImportReady",
		api.DiskStateStateImportingFromBulkWrites: "ImportingFromBulkWrites", api.DiskStateStateFinalizing: "Finalizing",
		api.DiskStateStateMaintenance: "Maintenance", api.DiskStateStateFaulted: "Faulted", api.DiskStateStateDestroyed: "Destroyed",
	}

	if name, ok := names[d.state]; ok {
		return name
	}

	with := map[api.DiskStateState]string{
		api.DiskStateStateAttaching: "Attaching", api.DiskStateStateAttached: "Attached", api.DiskStateStateDetaching: "Detaching",
	}

	return fmt.Sprintf("%s(%s)", with[d.state], d.instance)
}

func (c *call) listDisks() (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.disks.in(in.id), (*disk).view)
}

func (c *call) viewDisk() (int, any, error) {
	d, err := find(c, &c.disks, c.path("disk"), false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, d.view(), nil
}

func (c *call) createDisk() (int, any, error) {
	body, err := decode[api.DiskCreate](c)
	if err != nil {
		return 0, nil, err
	}

	in, err := c.inProject(true)
	if err != nil {
		return 0, nil, err
	}

	d, err := c.newDiskLocked(in, body)
	if err != nil {
		return 0, nil, err
	}

	// The answer has the disk as it was recorded, before it was made.
	view := d.view()

	c.pauseLocked(c.opts.Durations["disk_create"])
	c.readyLocked(d)

	return http.StatusCreated, view, nil
}

// newDiskLocked checks what is asked for and enters the disk, which is still being created.
func (r *Rack) newDiskLocked(in *project, body api.DiskCreate) (*disk, error) {
	if err := checkName(string(body.Name)); err != nil {
		return nil, err
	}

	d := &disk{
		meta: r.newMeta(string(body.Name), body.Description, in.id), size: int64(body.Size), //nolint:gosec // It is checked below.
		blockSize: 512, kind: api.DiskTypeDistributed, state: api.DiskStateStateCreating,
	}

	from, err := r.sourceLocked(in, d, body)
	if err != nil {
		return nil, err
	}

	if err := d.checkSize(); err != nil {
		return nil, err
	}

	if err := r.disks.free(in.id, d.name, ""); err != nil {
		return nil, err
	}

	if err := r.storageLocked(d.size); err != nil {
		return nil, err
	}

	if from != nil {
		d.content = r.copyLocked(from, d.size)
	} else {
		d.content = newContent(d.size)
	}

	r.disks.add(r.ledger, d, false)

	return d, nil
}

// sourceLocked reads what a disk is made from, and returns its content, nil for none.
func (r *Rack) sourceLocked(in *project, d *disk, body api.DiskCreate) (*content, error) {
	var source any

	switch backend := body.DiskBackend.Value.(type) {
	case *api.DiskBackendLocal:
		d.kind, d.blockSize = api.DiskTypeLocal, 4096

		return nil, nil //nolint:nilnil // There is none, as the contract says.
	case *api.DiskBackendDistributed:
		source = backend.DiskSource.Value
	default:
		return nil, badBody("missing field `disk_backend`")
	}

	switch source := source.(type) {
	case *api.DiskSourceBlank:
		d.blockSize = int(source.BlockSize)
	case *api.DiskSourceImportingBlocks:
		d.blockSize, d.pantry = int(source.BlockSize), true
	case *api.DiskSourceImage:
		return r.imageSourceLocked(in, d, source)
	case *api.DiskSourceSnapshot:
		return r.snapshotSourceLocked(in, d, source)
	default:
		return nil, badBody("missing field `disk_source`")
	}

	if d.blockSize != 512 && d.blockSize != 2048 && d.blockSize != 4096 {
		return nil, badBody("invalid block size")
	}

	return nil, nil //nolint:nilnil // As above.
}

func (r *Rack) imageSourceLocked(in *project, d *disk, source *api.DiskSourceImage) (*content, error) {
	i, ok := r.images.byID(source.ImageId)

	switch {
	case !ok:
		return nil, notFoundID("image", source.ImageId)
	case i.scope != "" && i.scope != in.id:
		return nil, invalidRequest("image does not belong to this project")
	case i.content.size > d.size:
		return nil, invalidRequest("disk size %d must be greater than or equal to image size %d", d.size, i.content.size)
	}

	d.image, d.blockSize, d.readOnly = i.id, i.blockSize, source.ReadOnly != nil && *source.ReadOnly

	return i.content, nil
}

func (r *Rack) snapshotSourceLocked(in *project, d *disk, source *api.DiskSourceSnapshot) (*content, error) {
	s, ok := r.snapshots.byID(source.SnapshotId)

	switch {
	case !ok:
		return nil, notFoundID("snapshot", source.SnapshotId)
	case s.scope != in.id:
		return nil, invalidRequest("snapshot does not belong to this project")
	case s.content.size > d.size:
		return nil, invalidRequest("disk size %d must be greater than or equal to snapshot size %d", d.size, s.content.size)
	}

	d.snapshot, d.blockSize, d.readOnly = s.id, s.blockSize, source.ReadOnly != nil && *source.ReadOnly

	return s.content, nil
}

func (d *disk) checkSize() error {
	switch {
	case d.size%int64(d.blockSize) != 0:
		return invalidValue("size and block_size", "total size must be a multiple of block size %d", d.blockSize)
	case d.size < minDisk:
		return invalidValue("size", "total size must be at least 1 GiB")
	case d.size%minDisk != 0:
		return invalidValue("size", "total size must be a multiple of 1 GiB")
	case d.kind == api.DiskTypeDistributed && d.size > maxDisk:
		return invalidValue("size", "total size must be less than 1023 GiB")
	}

	return nil
}

// readyLocked ends the making of a disk.
func (r *Rack) readyLocked(d *disk) {
	if d.state != api.DiskStateStateCreating {
		return
	}

	d.enter(api.DiskStateStateDetached)

	if d.pantry {
		d.enter(api.DiskStateStateImportReady)
	}
}

func (c *call) deleteDisk() (int, any, error) {
	d, err := find(c, &c.disks, c.path("disk"), true)
	if err != nil {
		return 0, nil, err
	}

	if d.state != api.DiskStateStateDetached && d.state != api.DiskStateStateFaulted {
		return 0, nil, invalidRequest("disk cannot be deleted in state %q", d.state)
	}

	// It is gone for everybody else from here on.
	c.dropDiskLocked(d)
	c.pauseLocked(c.opts.Durations["disk_delete"])

	return http.StatusNoContent, nil, nil
}

func (r *Rack) dropDiskLocked(d *disk) {
	d.enter(api.DiskStateStateDestroyed)
	r.dropContentLocked(d.content)
	r.disks.drop(r.ledger, d)
}

func (c *call) startBulkWrite() (int, any, error) {
	return c.setImport(api.DiskStateStateImportReady, api.DiskStateStateImportingFromBulkWrites)
}

func (c *call) stopBulkWrite() (int, any, error) {
	return c.setImport(api.DiskStateStateImportingFromBulkWrites, api.DiskStateStateImportReady)
}

func (c *call) setImport(from, to api.DiskStateState) (int, any, error) {
	d, err := find(c, &c.disks, c.path("disk"), true)
	if err != nil {
		return 0, nil, err
	}

	if d.state != from {
		return 0, nil, invalidRequest("cannot set disk in state %s to %q", d.variant(), to)
	}

	// Nothing that writes to a local disk on behalf of a client exists.
	if d.kind == api.DiskTypeLocal {
		return 0, nil, internal()
	}

	d.enter(to)

	return http.StatusNoContent, nil, nil
}

func (c *call) bulkWrite() (int, any, error) {
	body, err := decode[api.ImportBlocksBulkWrite](c)
	if err != nil {
		return 0, nil, err
	}

	if body.Offset == nil {
		return 0, nil, badBody("missing field `offset`")
	}

	d, err := find(c, &c.disks, c.path("disk"), true)
	if err != nil {
		return 0, nil, err
	}

	if d.state != api.DiskStateStateImportingFromBulkWrites {
		return 0, nil, invalidRequest("cannot import blocks with a bulk write for disk in state %s", d.variant())
	}

	data, err := decodeBase64(body.Base64EncodedData)
	if err != nil {
		return 0, nil, invalidRequest("error base64 decoding data: %s", err)
	}

	size, offset := int64(len(data)), int64(*body.Offset) //nolint:gosec // A negative one is refused below.

	switch {
	case size == 0 || size > maxChunk || size%int64(d.blockSize) != 0 || offset%int64(d.blockSize) != 0:
		return 0, nil, invalidRequest("data of %d bytes at offset %d cannot be written in blocks of %d bytes, %d bytes at most", size,
			*body.Offset, d.blockSize, maxChunk)
	case offset < 0 || offset > d.size-size:
		return 0, nil, invalidRequest("data of %d bytes at offset %d is beyond the end of the disk", size, *body.Offset)
	}

	if err := c.writeLocked(d.content, data, offset); err != nil {
		c.ledger.Note("disk %s: %s", d.id, err)

		return 0, nil, internal()
	}

	return http.StatusNoContent, nil, nil
}

func (c *call) finalizeImport() (int, any, error) {
	body, err := decode[api.FinalizeDisk](c)
	if err != nil {
		return 0, nil, err
	}

	d, err := find(c, &c.disks, c.path("disk"), true)
	if err != nil {
		return 0, nil, err
	}

	if d.state != api.DiskStateStateImportReady {
		return 0, nil, invalidRequest("cannot finalize disk in state %s", d.variant())
	}

	var made *snapshot

	if body.SnapshotName != "" {
		if made, err = c.newSnapshotLocked(d, string(body.SnapshotName), "snapshot of finalized disk "+d.name); err != nil {
			return 0, nil, err
		}
	}

	d.enter(api.DiskStateStateFinalizing)
	c.pauseLocked(c.opts.Durations["disk_finalize_import"])

	if made != nil {
		made.finish()
	}

	if d.state == api.DiskStateStateFinalizing {
		d.pantry = false
		d.enter(api.DiskStateStateDetached)
	}

	return http.StatusNoContent, nil, nil
}
