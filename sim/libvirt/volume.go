package libvirt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// StorageVol is a handle of a volume.
type StorageVol struct {
	handle

	pool, name, key string
}

// volume is a volume as the daemon has it. Its content, and what it says of its size, is in the file.
type volume struct {
	name, path, format string
	building           bool
	// inUse counts the clones that are being made of it.
	inUse int
}

func (h *Hypervisor) volumeHandleLocked(c *Connect, p *pool, v *volume) *StorageVol {
	return &StorageVol{handle: newHandleLocked(c), pool: p.name, name: v.name, key: v.path}
}

func volumeCall[T any](v *StorageVol, method string, effect func(*pool, *volume) (T, error)) (T, error) {
	var zero T

	if err := v.valid(libvirt.ERR_INVALID_STORAGE_VOL, "StorageVol", method); err != nil {
		return zero, err
	}

	return call(v.conn, request{op: "StorageVol." + method, object: v.name}, func() (T, error) {
		p, found, err := v.conn.h.volumeLocked(v.pool, v.name)
		if err != nil {
			return zero, err
		}

		return effect(p, found)
	})
}

func (h *Hypervisor) volumeLocked(poolName, name string) (*pool, *volume, error) {
	p, ok := h.pools[poolName]

	switch {
	case !ok:
		return nil, nil, noPool(poolName)
	case !p.active:
		return nil, nil, inactivePool(poolName)
	case p.volumes[name] == nil:
		return nil, nil, noVolume(name)
	default:
		return p, p.volumes[name], nil
	}
}

func (v *StorageVol) do(method string, effect func(*pool, *volume) error) error {
	_, err := volumeCall(v, method, func(p *pool, found *volume) (none, error) { return none{}, effect(p, found) })

	return err
}

// settled refuses what cannot be done to a volume that is being made or copied.
func (v *volume) settled() error {
	switch {
	case v.inUse > 0:
		return notValid(libvirt.FROM_STORAGE, "volume '%s' is still in use.", v.name)
	case v.building:
		return notValid(libvirt.FROM_STORAGE, "volume '%s' is still being allocated.", v.name)
	default:
		return nil
	}
}

// LookupStorageVolByName returns a handle of the volume of that name.
func (p *StoragePool) LookupStorageVolByName(name string) (*StorageVol, error) {
	return activePoolCall(p, "LookupStorageVolByName", "", func(found *pool) (*StorageVol, error) {
		v, ok := found.volumes[name]
		if !ok {
			return nil, noVolume(name)
		}

		return p.conn.h.volumeHandleLocked(p.conn, found, v), nil
	})
}

// LookupStorageVolByPath returns a handle of the volume with that path in any active pool.
func (c *Connect) LookupStorageVolByPath(path string) (*StorageVol, error) {
	return c.lookupVolume("Connect.LookupStorageVolByPath", path, noVolumeAt(path))
}

// LookupStorageVolByKey returns a handle of the volume with that key in any active pool.
func (c *Connect) LookupStorageVolByKey(key string) (*StorageVol, error) {
	return c.lookupVolume("Connect.LookupStorageVolByKey", key, failure(libvirt.ERR_NO_STORAGE_VOL, libvirt.FROM_STORAGE,
		"Storage volume not found: no storage vol with matching key %s", key))
}

func (c *Connect) lookupVolume(op, path string, missing error) (*StorageVol, error) {
	return call(c, request{op: op, object: path}, func() (*StorageVol, error) {
		for _, p := range c.h.poolsLocked() {
			for _, v := range p.volumes {
				if p.active && v.path == path {
					return c.h.volumeHandleLocked(c, p, v), nil
				}
			}
		}

		return nil, missing
	})
}

// ListAllStorageVolumes returns handles of the pool's volumes.
func (p *StoragePool) ListAllStorageVolumes(uint32) ([]StorageVol, error) {
	return activePoolCall(p, "ListAllStorageVolumes", "", func(found *pool) ([]StorageVol, error) {
		var out []StorageVol

		for _, v := range found.sorted() {
			out = append(out, *p.conn.h.volumeHandleLocked(p.conn, found, v))
		}

		return out, nil
	})
}

// ListStorageVolumes returns the names of the pool's volumes.
func (p *StoragePool) ListStorageVolumes() ([]string, error) {
	return activePoolCall(p, "ListStorageVolumes", "", func(found *pool) ([]string, error) {
		var out []string

		for _, v := range found.sorted() {
			out = append(out, v.name)
		}

		return out, nil
	})
}

// NumOfStorageVolumes returns their number.
func (p *StoragePool) NumOfStorageVolumes() (int, error) {
	return activePoolCall(p, "NumOfStorageVolumes", "", func(found *pool) (int, error) { return len(found.volumes), nil })
}

func (p *pool) sorted() []*volume {
	return slices.SortedFunc(maps.Values(p.volumes), func(a, b *volume) int { return cmp.Compare(a.name, b.name) })
}

// StorageVolCreateXML makes a volume.
func (p *StoragePool) StorageVolCreateXML(xml string, flags libvirt.StorageVolCreateFlags) (*StorageVol, error) {
	h := p.conn.h

	return activePoolCall(p, "StorageVolCreateXML", xml, func(found *pool) (*StorageVol, error) {
		def, err := h.parseVolumeLocked(found, xml)
		if err != nil {
			return nil, err
		}

		v, err := h.buildLocked(found, def, "StoragePool.StorageVolCreateXML", func() (*file, error) {
			return h.newVolumeFileLocked(found, def, flags)
		})
		if err != nil {
			return nil, err
		}

		return h.volumeHandleLocked(p.conn, found, v), nil
	})
}

// StorageVolCreateXMLFrom makes a volume with the content of another one, of any active pool, and at least its size.
func (p *StoragePool) StorageVolCreateXMLFrom(xml string, from *StorageVol, _ libvirt.StorageVolCreateFlags) (*StorageVol, error) {
	h := p.conn.h

	return activePoolCall(p, "StorageVolCreateXMLFrom", xml, func(found *pool) (*StorageVol, error) {
		origin, source, err := h.volumeLocked(from.pool, from.name)
		if err != nil {
			return nil, err
		}

		def, err := h.parseVolumeLocked(found, xml)

		switch {
		case code(err) == libvirt.ERR_STORAGE_VOL_EXIST:
			return nil, internal(libvirt.FROM_STORAGE, "storage volume name '%s' already in use.", nameIn(xml))
		case err != nil:
			return nil, err
		}

		if source.building {
			return nil, source.settled()
		}

		f := h.files[source.path]
		if f == nil {
			return nil, system(libvirt.FROM_STORAGE, noEntry, "cannot open volume '%s'", source.path)
		}

		def.capacity = roundUp(max(def.capacity, f.capacity()), found.grain())

		switch {
		case !backends[found.kind].clone:
			return nil, noSupport("storage pool does not support volume creation from an existing volume")
		case found.kind == "rbd" && origin != found:
			return nil, system(libvirt.FROM_STORAGE, noEntry, "failed to open the RBD image '%s'", source.name)
		}

		source.inUse++
		origin.jobs++

		v, err := h.buildLocked(found, def, "StoragePool.StorageVolCreateXMLFrom", func() (*file, error) {
			return h.copyLocked(f, found, def), nil
		})

		source.inUse--
		origin.jobs--

		if err != nil {
			return nil, err
		}

		return h.volumeHandleLocked(p.conn, found, v), nil
	})
}

// newVolume is the description of a volume to be made.
type newVolume struct {
	name, path, format     string
	capacity, allocation   uint64
	backing, backingFormat string
	mode                   string
	// version is that of the format.
	version uint32
}

func (h *Hypervisor) parseVolumeLocked(p *pool, xml string) (newVolume, error) {
	doc := libvirtxml.StorageVolume{}
	if err := doc.Unmarshal(xml); err != nil {
		return newVolume{}, malformed(libvirt.FROM_STORAGE, "storage_volume_definition", err)
	}

	def := newVolume{name: doc.Name, format: "raw", mode: "0600", version: 2, backing: backingPath(&doc)}

	switch {
	case def.name == "":
		return newVolume{}, xmlError(libvirt.FROM_STORAGE, "missing volume name element")
	case doc.Capacity == nil && def.backing == "":
		return newVolume{}, xmlError(libvirt.FROM_STORAGE, "missing capacity element")
	case p.volumes[def.name] != nil:
		return newVolume{}, failure(libvirt.ERR_STORAGE_VOL_EXIST, libvirt.FROM_STORAGE, "storage volume '%s' exists already", def.name)
	case strings.Contains(def.name, "/") && p.files():
		return newVolume{}, notValid(libvirt.FROM_STORAGE, "volume name '%s' cannot contain '/'", def.name)
	}

	def.path = p.target() + "/" + def.name

	var err error
	if def.capacity, err = bytesOf(doc.Capacity); err != nil {
		return newVolume{}, err
	}

	def.capacity = roundUp(def.capacity, p.grain())
	def.allocation = def.capacity

	if doc.Allocation != nil {
		if def.allocation, err = bytesOf(doc.Allocation); err != nil {
			return newVolume{}, err
		}
	}

	if doc.Target != nil {
		if doc.Target.Format != nil && p.files() {
			def.format = cmp.Or(doc.Target.Format.Type, "raw")
		}

		if doc.Target.Compat == "1.1" {
			def.version = 3
		}

		if doc.Target.Permissions != nil {
			def.mode = cmp.Or(doc.Target.Permissions.Mode, def.mode)
		}
	}

	if def.backing != "" && doc.BackingStore.Format != nil {
		def.backingFormat = doc.BackingStore.Format.Type
	}

	if def.format != "raw" && def.format != "qcow2" {
		return newVolume{}, unsupportedConfig(libvirt.FROM_STORAGE, "unknown volume format type %s", def.format)
	}

	return def, nil
}

func backingPath(doc *libvirtxml.StorageVolume) string {
	if doc.BackingStore == nil {
		return ""
	}

	return doc.BackingStore.Path
}

// buildLocked makes the volume that def describes, with the file that build returns. While the operation takes its time, the volume
// is there, being allocated, and its pool busy.
func (h *Hypervisor) buildLocked(p *pool, def newVolume, op string, build func() (*file, error)) (*volume, error) {
	if h.files[def.path] != nil {
		return nil, notValid(libvirt.FROM_STORAGE, "volume target path '%s' already exists", def.path)
	}

	f, err := build()
	if err != nil {
		return nil, err
	}

	if need := max(f.allocation(), f.reserved); need > p.capacity-h.usedLocked(p) {
		return nil, h.noRoom(def)
	}

	v := &volume{name: def.name, path: def.path, format: def.format, building: true}
	p.volumes[v.name], h.files[v.path] = v, f
	h.madeLocked(ledger.Object{Kind: "volume", ID: v.path, Name: v.name})

	p.jobs++
	h.pauseLocked(op)
	p.jobs--

	v.building = false

	return v, nil
}

func (h *Hypervisor) noRoom(def newVolume) error {
	if def.format == "raw" {
		return system(libvirt.FROM_STORAGE, noSpace, "cannot allocate %d bytes in file '%s'", def.allocation, def.path)
	}

	return internal(libvirt.FROM_STORAGE, "Child process (/usr/bin/qemu-img create -f %s %s %dK) unexpected exit status 1: qemu-img: %s: %s",
		def.format, def.path, def.capacity/1024, def.path, noSpace)
}

// newVolumeFileLocked is an empty volume.
func (h *Hypervisor) newVolumeFileLocked(p *pool, def newVolume, _ libvirt.StorageVolCreateFlags) (*file, error) {
	if def.backing != "" {
		below := h.files[def.backing]

		switch {
		case !p.files() && p.kind != "logical":
			return nil, noSupport("backing storage not supported for %s volumes", p.kind)
		case p.files() && def.format == "raw":
			return nil, noSupport("backing storage not supported for raw volumes")
		case below == nil:
			return nil, system(libvirt.FROM_STORAGE, noEntry, "inaccessible backing store volume %s", def.backing)
		}

		if def.capacity == 0 {
			def.capacity = below.capacity()
		}
	}

	f := newFile(0, def.mode)

	switch {
	case def.format == "qcow2":
		f.formatQcow2(def.version, roundUp(def.capacity, 1024), def.backing, cmp.Or(def.backingFormat, "raw"))
	case p.files():
		f.size, f.reserved = def.capacity, min(def.allocation, def.capacity)
	default:
		f.size = def.capacity
		f.reserved = p.reserve(def)
	}

	return f, nil
}

// reserve is the space that a new device takes for itself.
func (p *pool) reserve(def newVolume) uint64 {
	switch p.kind {
	case "logical":
		return def.capacity
	case "zfs":
		return min(def.allocation, def.capacity)
	default:
		return 0
	}
}

// copyLocked is a full copy of what a volume's guest would read, in the format of the description.
func (h *Hypervisor) copyLocked(f *file, p *pool, def newVolume) *file {
	flat := f
	for flat.header && flat.backing != "" && h.files[flat.backing] != nil {
		flat = h.files[flat.backing]
	}

	if def.format == "qcow2" {
		c := newFile(0, def.mode)
		c.formatQcow2(def.version, f.capacity(), "", "")
		c.reserved += uint64(len(flat.blocks)) * blockSize

		return c
	}

	c := flat.clone()
	c.mode, c.changed = def.mode, time.Now()
	c.header, c.backing = false, ""
	c.size = max(c.size, def.capacity)
	c.reserved = p.reserve(def)

	return c
}

// Free gives up the handle.
func (v *StorageVol) Free() error { return v.free(libvirt.ERR_INVALID_STORAGE_VOL, "StorageVol") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (v *StorageVol) Ref() error { return v.ref(libvirt.ERR_INVALID_STORAGE_VOL, "StorageVol") }

// GetName is part of the handle, and makes no call.
func (v *StorageVol) GetName() (string, error) {
	return v.name, v.valid(libvirt.ERR_INVALID_STORAGE_VOL, "StorageVol", "GetName")
}

// GetKey is part of the handle, and makes no call.
func (v *StorageVol) GetKey() (string, error) {
	return v.key, v.valid(libvirt.ERR_INVALID_STORAGE_VOL, "StorageVol", "GetKey")
}

// GetPath returns where the volume is on the host.
func (v *StorageVol) GetPath() (string, error) {
	return volumeCall(v, "GetPath", func(_ *pool, found *volume) (string, error) { return found.path, nil })
}

// LookupPoolByVolume returns a handle of the volume's pool.
func (v *StorageVol) LookupPoolByVolume() (*StoragePool, error) {
	return volumeCall(v, "LookupPoolByVolume", func(p *pool, _ *volume) (*StoragePool, error) {
		return v.conn.h.poolHandleLocked(v.conn, p), nil
	})
}

// GetInfo returns the volume's sizes.
func (v *StorageVol) GetInfo() (*libvirt.StorageVolInfo, error) { return v.info("GetInfo", 0) }

// GetInfoFlags is GetInfo; the flags may ask for the size of the file in the place of its allocation.
func (v *StorageVol) GetInfoFlags(flags libvirt.StorageVolInfoFlags) (*libvirt.StorageVolInfo, error) {
	return v.info("GetInfoFlags", flags)
}

func (v *StorageVol) info(method string, flags libvirt.StorageVolInfoFlags) (*libvirt.StorageVolInfo, error) {
	return volumeCall(v, method, func(p *pool, found *volume) (*libvirt.StorageVolInfo, error) {
		f, err := v.conn.h.fileOfLocked(found)
		if err != nil {
			return nil, err
		}

		info := &libvirt.StorageVolInfo{Type: p.volumeType(), Capacity: found.capacity(f), Allocation: f.allocation()}
		if !p.files() {
			info.Allocation = f.size
		}

		if flags&libvirt.STORAGE_VOL_GET_PHYSICAL != 0 {
			info.Allocation = f.size
		}

		return info, nil
	})
}

// fileOfLocked returns the volume's file, which somebody may have deleted.
func (h *Hypervisor) fileOfLocked(v *volume) (*file, error) {
	if f := h.files[v.path]; f != nil {
		return f, nil
	}

	return nil, noVolumeAt(v.path)
}

// capacity is the size of the volume's disk, as the format that libvirt believes it has tells it.
func (v *volume) capacity(f *file) uint64 {
	if v.format == "raw" {
		return f.size
	}

	return f.capacity()
}

func (p *pool) volumeType() libvirt.StorageVolType {
	switch {
	case p.files():
		return libvirt.STORAGE_VOL_FILE
	case p.kind == "rbd":
		return libvirt.STORAGE_VOL_NETWORK
	default:
		return libvirt.STORAGE_VOL_BLOCK
	}
}

// GetXMLDesc returns the volume's description.
func (v *StorageVol) GetXMLDesc(uint32) (string, error) {
	h := v.conn.h

	return volumeCall(v, "GetXMLDesc", func(p *pool, found *volume) (string, error) {
		f, err := h.fileOfLocked(found)
		if err != nil {
			return "", err
		}

		kinds := map[libvirt.StorageVolType]string{
			libvirt.STORAGE_VOL_FILE: "file", libvirt.STORAGE_VOL_BLOCK: "block", libvirt.STORAGE_VOL_NETWORK: "network",
		}
		size := func(n uint64) *libvirtxml.StorageVolumeSize {
			return &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: n}
		}
		doc := libvirtxml.StorageVolume{
			Type: kinds[p.volumeType()], Name: found.name, Key: found.path,
			Capacity: size(found.capacity(f)), Allocation: size(f.allocation()), Physical: size(f.size),
			Target: fileXML(found.path, found.format, f),
		}

		if !p.files() {
			doc.Allocation, doc.Physical = size(f.size), nil
		}

		if below := h.files[f.backing]; f.backing != "" {
			target := fileXML(f.backing, cmp.Or(f.backingFormat, "raw"), below)
			doc.BackingStore = &libvirtxml.StorageVolumeBackingStore{Path: target.Path, Format: target.Format, Permissions: target.Permissions}
		}

		text, err := doc.Marshal()
		if err != nil {
			return "", internal(libvirt.FROM_STORAGE, "%s", err)
		}

		return written(text), nil
	})
}

func fileXML(path, format string, f *file) *libvirtxml.StorageVolumeTarget {
	target := &libvirtxml.StorageVolumeTarget{Path: path, Format: &libvirtxml.StorageVolumeTargetFormat{Type: format}}

	if f == nil {
		return target
	}

	at := fmt.Sprintf("%d.%09d", f.changed.Unix(), f.changed.Nanosecond())
	target.Permissions = &libvirtxml.StorageVolumeTargetPermissions{Mode: f.mode, Owner: "0", Group: "0"}
	target.Timestamps = &libvirtxml.StorageVolumeTargetTimestamps{Atime: at, Mtime: at, Ctime: at}

	return target
}

// Delete deletes the volume.
func (v *StorageVol) Delete(libvirt.StorageVolDeleteFlags) error {
	h := v.conn.h

	return v.do("Delete", func(p *pool, found *volume) error {
		if err := found.settled(); err != nil {
			return err
		}

		h.pauseLocked("StorageVol.Delete")

		if p.volumes[found.name] == found {
			delete(p.volumes, found.name)
		}

		h.removeFileLocked("volume", found.path)

		return nil
	})
}

// Resize changes the size of the volume's disk; the flags say whether it may shrink, and whether the number is a difference.
func (v *StorageVol) Resize(capacity uint64, flags libvirt.StorageVolResizeFlags) error {
	h := v.conn.h

	return v.do("Resize", func(p *pool, found *volume) error {
		if err := found.settled(); err != nil {
			return err
		}

		f := h.files[found.path]
		if f == nil {
			return system(libvirt.FROM_NONE, noEntry, "Unable to open '%s'", found.path)
		}

		if !backends[p.kind].resize {
			return noSupport("storage pool does not support changing of volume capacity")
		}

		now := found.capacity(f)

		switch delta := flags&libvirt.STORAGE_VOL_RESIZE_DELTA != 0; {
		case delta && flags&libvirt.STORAGE_VOL_RESIZE_SHRINK != 0:
			capacity = now - min(capacity, now)
		case delta:
			capacity += now
		}

		switch {
		case capacity < f.allocation() && found.format == "raw" && capacity < now:
			return invalidArgument(libvirt.FROM_STORAGE, "can't shrink capacity below existing allocation")
		case capacity < now && flags&libvirt.STORAGE_VOL_RESIZE_SHRINK == 0:
			return invalidArgument(libvirt.FROM_STORAGE, "Can't shrink capacity below current capacity unless shrink flag explicitly specified")
		}

		if f.header {
			f.resizeQcow2(capacity)
		} else {
			f.truncate(capacity)
		}

		return nil
	})
}

// Wipe overwrites the volume with zeros.
func (v *StorageVol) Wipe(uint32) error {
	h := v.conn.h

	return v.do("Wipe", func(p *pool, found *volume) error {
		if !backends[p.kind].wipe {
			return noSupport("storage pool doesn't support volume wiping")
		}

		if err := found.settled(); err != nil {
			return err
		}

		f, err := h.fileOfLocked(found)
		if err != nil {
			return err
		}

		f.blocks = map[uint64][]byte{}
		f.reserved = f.size
		f.probe()

		return nil
	})
}

// bytesOf reads a size with its unit.
func bytesOf(s *libvirtxml.StorageVolumeSize) (uint64, error) {
	if s == nil {
		return 0, nil
	}

	return scale(s.Value, s.Unit, 1)
}

// scale turns a number with one of libvirt's units into bytes; unit is the number of bytes that no unit means.
func scale(n uint64, unit string, none uint64) (uint64, error) {
	const letters = "KMGTPE"

	switch lower := strings.ToLower(unit); {
	case unit == "":
		return n * none, nil
	case lower == "b" || lower == "byte" || lower == "bytes":
		return n, nil
	case lower[1:] == "" || lower[1:] == "ib" || lower[1:] == "b":
		if i := strings.IndexByte(letters, strings.ToUpper(unit)[0]); i >= 0 {
			base := uint64(1024)
			if lower[1:] == "b" {
				base = 1000
			}

			for range i + 1 {
				n *= base
			}

			return n, nil
		}
	}

	return 0, invalidArgument(libvirt.FROM_NONE, "unknown suffix '%s'", unit)
}
