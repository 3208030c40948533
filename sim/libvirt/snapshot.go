package libvirt

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// DomainSnapshot is a handle of a snapshot.
type DomainSnapshot struct {
	handle

	domain, domainName, name string
}

// snapshot is a snapshot as the daemon has it. It keeps what was on the disks.
type snapshot struct {
	name, parent string
	state        libvirt.DomainState
	def          *libvirtxml.DomainSnapshot
	domain       *libvirtxml.Domain
	disks        map[string]*file
}

func (s *snapshot) bookID(m *machine) string { return m.uuid + "/" + s.name }

// CreateSnapshotXML takes a snapshot of the domain's disks, and of its memory if it is on and the flags do not say otherwise.
func (d *Domain) CreateSnapshotXML(doc string, flags libvirt.DomainSnapshotCreateFlags) (*DomainSnapshot, error) {
	h := d.conn.h

	return domainCall(d, "CreateSnapshotXML", doc, func(m *machine) (*DomainSnapshot, error) {
		def := &libvirtxml.DomainSnapshot{}
		if err := def.Unmarshal(doc); err != nil {
			return nil, malformed(libvirt.FROM_DOMAIN_SNAPSHOT, "domain_snapshot", err)
		}

		var made *snapshot

		err := h.jobLocked(m, "SnapshotCreateXML", func() (err error) {
			made, err = h.snapshotLocked(m, def, flags)

			return err
		})
		if err != nil {
			return nil, err
		}

		return h.snapshotHandleLocked(d.conn, m, made), nil
	})
}

func (h *Hypervisor) snapshotLocked(m *machine, def *libvirtxml.DomainSnapshot, flags libvirt.DomainSnapshotCreateFlags) (*snapshot, error) {
	def.Name = cmp.Or(def.Name, fmt.Sprintf("%d", time.Now().Unix()))

	switch {
	case m.snapshotNamed(def.Name) != nil:
		return nil, failed(libvirt.FROM_DOMAIN, "domain moment %s already exists", def.Name)
	case !m.persistent() && flags&libvirt.DOMAIN_SNAPSHOT_CREATE_HALT != 0:
		return nil, notValid(libvirt.FROM_QEMU, "cannot halt after transient domain snapshot")
	case flags&libvirt.DOMAIN_SNAPSHOT_CREATE_DISK_ONLY == 0:
		if name := h.rawDiskLocked(m.current()); name != "" {
			return nil, unsupportedConfig(libvirt.FROM_QEMU, "internal snapshot for disk %s unsupported for storage type raw", name)
		}
	}

	s := &snapshot{name: def.Name, state: m.state, def: def, domain: cloneDomain(m.definition()), disks: map[string]*file{}}
	if m.snapshot != nil {
		s.parent = m.snapshot.name
	}

	if m.state == libvirt.DOMAIN_RUNNING {
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(libvirt.DOMAIN_EVENT_SUSPENDED_PAUSED))
		m.enter(libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_SNAPSHOT))
	}

	h.pauseLocked("Domain.CreateSnapshotXML")

	if h.domains[m.uuid] != m {
		return nil, noDomain(m.uuid, m.name)
	}

	for _, disk := range m.current().Devices.Disks {
		if path := h.diskPathLocked(&disk); h.files[path] != nil && disk.ReadOnly == nil {
			s.disks[path] = h.files[path].clone()
		}
	}

	if s.state == libvirt.DOMAIN_RUNNING && m.active() {
		m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_UNPAUSED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_RESUMED, int(libvirt.DOMAIN_EVENT_RESUMED_UNPAUSED))
	}

	m.snapshots, m.snapshot = append(m.snapshots, s), s
	h.madeLocked(ledger.Object{Kind: "snapshot", ID: s.bookID(m), Name: s.name})

	if flags&libvirt.DOMAIN_SNAPSHOT_CREATE_HALT != 0 && m.active() {
		h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_FROM_SNAPSHOT, libvirt.DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT)
	}

	return s, nil
}

// rawDiskLocked returns the target of a disk that cannot hold a snapshot.
func (h *Hypervisor) rawDiskLocked(def *libvirtxml.Domain) string {
	for _, disk := range def.Devices.Disks {
		if disk.ReadOnly == nil && disk.Source != nil && (disk.Driver == nil || disk.Driver.Type != "qcow2") {
			return disk.Target.Dev
		}
	}

	return ""
}

// oldDiskLocked says whether the domain has a disk of the version of qcow2 that libvirt makes unless it is asked for another one.
func (h *Hypervisor) oldDiskLocked(def *libvirtxml.Domain) bool {
	return slices.ContainsFunc(def.Devices.Disks, func(disk libvirtxml.DomainDisk) bool {
		f := h.files[h.diskPathLocked(&disk)]

		return f != nil && f.header && f.version < 3
	})
}

func (m *machine) snapshotNamed(name string) *snapshot {
	for _, s := range m.snapshots {
		if s.name == name {
			return s
		}
	}

	return nil
}

func (h *Hypervisor) snapshotHandleLocked(c *Connect, m *machine, s *snapshot) *DomainSnapshot {
	return &DomainSnapshot{handle: newHandleLocked(c), domain: m.uuid, domainName: m.name, name: s.name}
}

// ListAllSnapshots returns handles of the domain's snapshots.
func (d *Domain) ListAllSnapshots(libvirt.DomainSnapshotListFlags) ([]DomainSnapshot, error) {
	return domainCall(d, "ListAllSnapshots", "", func(m *machine) ([]DomainSnapshot, error) {
		var out []DomainSnapshot

		for _, s := range m.snapshots {
			out = append(out, *d.conn.h.snapshotHandleLocked(d.conn, m, s))
		}

		return out, nil
	})
}

// SnapshotNum returns the number of the domain's snapshots.
func (d *Domain) SnapshotNum(libvirt.DomainSnapshotListFlags) (int, error) {
	return domainCall(d, "SnapshotNum", "", func(m *machine) (int, error) { return len(m.snapshots), nil })
}

// SnapshotLookupByName returns a handle of the snapshot of that name.
func (d *Domain) SnapshotLookupByName(name string, _ uint32) (*DomainSnapshot, error) {
	return domainCall(d, "SnapshotLookupByName", "", func(m *machine) (*DomainSnapshot, error) {
		s := m.snapshotNamed(name)
		if s == nil {
			return nil, noSnapshot(name)
		}

		return d.conn.h.snapshotHandleLocked(d.conn, m, s), nil
	})
}

func noSnapshot(name string) error {
	return failure(libvirt.ERR_NO_DOMAIN_SNAPSHOT, libvirt.FROM_QEMU,
		"Domain snapshot not found: no domain snapshot with matching name '%s'", name)
}

func snapshotCall[T any](s *DomainSnapshot, method string, effect func(*machine, *snapshot) (T, error)) (T, error) {
	var zero T

	if err := s.valid(libvirt.ERR_INVALID_DOMAIN_SNAPSHOT, "DomainSnapshot", method); err != nil {
		return zero, err
	}

	return call(s.conn, request{op: "DomainSnapshot." + method, object: s.domainName}, func() (T, error) {
		m, ok := s.conn.h.domains[s.domain]
		if !ok {
			return zero, noDomain(s.domain, s.domainName)
		}

		found := m.snapshotNamed(s.name)
		if found == nil {
			return zero, noSnapshot(s.name)
		}

		return effect(m, found)
	})
}

// Free gives up the handle.
func (s *DomainSnapshot) Free() error {
	return s.free(libvirt.ERR_INVALID_DOMAIN_SNAPSHOT, "DomainSnapshot")
}

// GetName is part of the handle, and makes no call.
func (s *DomainSnapshot) GetName() (string, error) {
	return s.name, s.valid(libvirt.ERR_INVALID_DOMAIN_SNAPSHOT, "DomainSnapshot", "GetName")
}

// GetXMLDesc returns the snapshot's description.
func (s *DomainSnapshot) GetXMLDesc(libvirt.DomainSnapshotXMLFlags) (string, error) {
	return snapshotCall(s, "GetXMLDesc", func(m *machine, found *snapshot) (string, error) {
		def := *found.def
		def.State = snapshotState(found.state)
		def.Domain = found.domain

		if found.parent != "" {
			def.Parent = &libvirtxml.DomainSnapshotParent{Name: found.parent}
		}

		text, err := def.Marshal()
		if err != nil {
			return "", internal(libvirt.FROM_DOMAIN_SNAPSHOT, "%s", err)
		}

		return written(text), nil
	})
}

func snapshotState(state libvirt.DomainState) string {
	switch state {
	case libvirt.DOMAIN_RUNNING:
		return "running"
	case libvirt.DOMAIN_PAUSED:
		return "paused"
	default:
		return "shutoff"
	}
}

// IsCurrent says whether the domain is based on the snapshot.
func (s *DomainSnapshot) IsCurrent(uint32) (bool, error) {
	return snapshotCall(s, "IsCurrent", func(m *machine, found *snapshot) (bool, error) { return m.snapshot == found, nil })
}

// Delete deletes the snapshot, and those that are based on it if the flags say so.
func (s *DomainSnapshot) Delete(flags libvirt.DomainSnapshotDeleteFlags) error {
	h := s.conn.h

	_, err := snapshotCall(s, "Delete", func(m *machine, found *snapshot) (none, error) {
		return none{}, h.jobLocked(m, "SnapshotDelete", func() error {
			gone := map[string]bool{found.name: flags&libvirt.DOMAIN_SNAPSHOT_DELETE_CHILDREN_ONLY == 0}

			if flags&(libvirt.DOMAIN_SNAPSHOT_DELETE_CHILDREN|libvirt.DOMAIN_SNAPSHOT_DELETE_CHILDREN_ONLY) != 0 {
				for _, other := range m.snapshots { // Parents come first.
					if _, below := gone[other.parent]; below && other.parent != "" {
						gone[other.name] = true
					}
				}
			}

			m.snapshots = slices.DeleteFunc(m.snapshots, func(o *snapshot) bool {
				if gone[o.name] {
					h.goneLocked("snapshot", o.bookID(m))
				}

				return gone[o.name]
			})

			for _, other := range m.snapshots {
				if gone[other.parent] {
					other.parent = found.parent
				}
			}

			if m.snapshot != nil && gone[m.snapshot.name] {
				m.snapshot = m.snapshotNamed(found.parent)
			}

			return nil
		})
	})

	return err
}

// RevertToSnapshot puts the disks back to what they were, and the domain into the state that it was in.
func (s *DomainSnapshot) RevertToSnapshot(flags libvirt.DomainSnapshotRevertFlags) error {
	h := s.conn.h

	_, err := snapshotCall(s, "RevertToSnapshot", func(m *machine, found *snapshot) (none, error) {
		return none{}, h.jobLocked(m, "RevertToSnapshot", func() error {
			if m.active() {
				h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_FROM_SNAPSHOT, libvirt.DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT)
			}

			for path, f := range found.disks {
				h.files[path] = f.clone()
			}

			m.snapshot = found
			run := found.state == libvirt.DOMAIN_RUNNING && flags&libvirt.DOMAIN_SNAPSHOT_REVERT_PAUSED == 0 ||
				flags&libvirt.DOMAIN_SNAPSHOT_REVERT_RUNNING != 0

			if run {
				if err := h.resumeFromLocked(m, found); err != nil {
					return err
				}
			}

			m.def, m.known = cloneDomain(found.domain), true
			m.def.ID = nil
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_DEFINED, int(libvirt.DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT))

			return nil
		})
	})

	return err
}

// resumeFromLocked lets a domain go on from a snapshot.
func (h *Hypervisor) resumeFromLocked(m *machine, s *snapshot) error {
	live := cloneDomain(s.domain)
	if err := h.fillFirmware(live); err != nil {
		return err
	}

	if err := h.checkStartLocked(m, live); err != nil {
		return err
	}

	h.onLocked(m, live)
	h.pauseLocked("Domain.Create")

	if m.killed || h.closed {
		h.haltLocked(m, libvirt.DOMAIN_SHUTOFF_FAILED)

		return failed(libvirt.FROM_QEMU, "domain is not running")
	}

	h.provideLocked(m)
	m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_FROM_SNAPSHOT))
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_FROM_SNAPSHOT))
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_RESUMED, int(libvirt.DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT))
	h.bootLocked(m)

	return nil
}

// DomainCheckpoint is a handle of a checkpoint.
type DomainCheckpoint struct {
	handle

	domain, domainName, name string
}

// checkpoint is a checkpoint as the daemon has it.
type checkpoint struct {
	name string
	def  *libvirtxml.DomainCheckpoint
}

func (c *checkpoint) bookID(m *machine) string { return m.uuid + "/" + c.name }

func (m *machine) checkpointNamed(name string) *checkpoint {
	for _, c := range m.checkpoints {
		if c.name == name {
			return c
		}
	}

	return nil
}

// CreateCheckpointXML begins to keep track of what changes on the disks of a domain that is on.
func (d *Domain) CreateCheckpointXML(doc string, _ libvirt.DomainCheckpointCreateFlags) (*DomainCheckpoint, error) {
	h := d.conn.h

	return domainCall(d, "CreateCheckpointXML", doc, func(m *machine) (*DomainCheckpoint, error) {
		def := &libvirtxml.DomainCheckpoint{}
		if err := def.Unmarshal(doc); err != nil {
			return nil, malformed(libvirt.FROM_DOMAIN_CHECKPOINT, "domain_checkpoint", err)
		}

		def.Name = cmp.Or(def.Name, fmt.Sprintf("%d", time.Now().Unix()))

		switch {
		case !m.active():
			return nil, failure(libvirt.ERR_OPERATION_UNSUPPORTED, libvirt.FROM_QEMU, "Operation not supported: cannot create checkpoint for inactive domain")
		case m.checkpointNamed(def.Name) != nil:
			return nil, failed(libvirt.FROM_DOMAIN, "domain moment %s already exists", def.Name)
		}

		if h.oldDiskLocked(m.live) {
			return nil, internal(libvirt.FROM_QEMU, "unable to execute QEMU command 'transaction': Can't make bitmap '%s' persistent in "+
				"'libvirt-1-format': Cannot store dirty bitmaps in qcow2 v2 files", def.Name)
		}

		c := &checkpoint{name: def.Name, def: def}
		m.checkpoints = append(m.checkpoints, c)
		h.madeLocked(ledger.Object{Kind: "checkpoint", ID: c.bookID(m), Name: c.name})

		return &DomainCheckpoint{handle: newHandleLocked(d.conn), domain: m.uuid, domainName: m.name, name: c.name}, nil
	})
}

// ListAllCheckpoints returns handles of the domain's checkpoints.
func (d *Domain) ListAllCheckpoints(libvirt.DomainCheckpointListFlags) ([]DomainCheckpoint, error) {
	return domainCall(d, "ListAllCheckpoints", "", func(m *machine) ([]DomainCheckpoint, error) {
		var out []DomainCheckpoint

		for _, c := range m.checkpoints {
			out = append(out, DomainCheckpoint{handle: newHandleLocked(d.conn), domain: m.uuid, domainName: m.name, name: c.name})
		}

		return out, nil
	})
}

// Free gives up the handle.
func (c *DomainCheckpoint) Free() error {
	return c.free(libvirt.ERR_INVALID_DOMAIN_CHECKPOINT, "DomainCheckpoint")
}

// GetName is part of the handle, and makes no call.
func (c *DomainCheckpoint) GetName() (string, error) {
	return c.name, c.valid(libvirt.ERR_INVALID_DOMAIN_CHECKPOINT, "DomainCheckpoint", "GetName")
}

// Delete deletes the checkpoint of a domain that is on, or what libvirt knows of it if the flags say so.
func (c *DomainCheckpoint) Delete(flags libvirt.DomainCheckpointDeleteFlags) error {
	if err := c.valid(libvirt.ERR_INVALID_DOMAIN_CHECKPOINT, "DomainCheckpoint", "Delete"); err != nil {
		return err
	}

	h := c.conn.h

	return do(c.conn, request{op: "DomainCheckpoint.Delete", object: c.domainName}, func() error {
		m, ok := h.domains[c.domain]
		if !ok {
			return noDomain(c.domain, c.domainName)
		}

		found := m.checkpointNamed(c.name)

		switch {
		case found == nil:
			return failure(libvirt.ERR_NO_DOMAIN_CHECKPOINT, libvirt.FROM_QEMU,
				"Domain checkpoint not found: no domain checkpoint with matching name '%s'", c.name)
		case !m.active() && flags&libvirt.DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY == 0:
			return failure(libvirt.ERR_OPERATION_UNSUPPORTED, libvirt.FROM_QEMU, "Operation not supported: cannot delete checkpoint for inactive domain")
		}

		m.checkpoints = slices.DeleteFunc(m.checkpoints, func(o *checkpoint) bool { return o == found })
		h.goneLocked("checkpoint", found.bookID(m))

		return nil
	})
}
