package libvirt

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Pool is a storage pool that a host has from the start.
type Pool struct {
	Name string
	// Type is "dir", the default, "fs", "netfs", "logical", "zfs" or "rbd".
	Type string
	// Target is the folder; one under libvirt's own if empty.
	Target string
	// Capacity is its size in bytes; 1 TiB if zero.
	Capacity uint64
}

// StoragePool is a handle of a storage pool.
type StoragePool struct {
	handle

	uuid, name string
}

// pool is a storage pool as the daemon has it.
type pool struct {
	name, uuid string
	kind       string
	def        *libvirtxml.StoragePool
	persistent bool
	active     bool
	autostart  bool
	capacity   uint64
	volumes    map[string]*volume
	// jobs are the operations under way that need the volumes to stay as they are.
	jobs int
}

const defaultPoolSize = 1 << 40

// target is where the pool's volumes are.
func (p *pool) target() string {
	if p.def.Target != nil && p.def.Target.Path != "" {
		return p.def.Target.Path
	}

	if p.kind == "logical" {
		return "/dev/" + p.source()
	}

	if p.kind == "zfs" {
		return "/dev/zvol/" + p.source()
	}

	return p.source()
}

// place is what no two pools can be on.
func (p *pool) place() string {
	if p.files() {
		return p.target()
	}

	return p.source()
}

// source is the name of what the pool is on.
func (p *pool) source() string {
	if p.def.Source != nil && p.def.Source.Name != "" {
		return p.def.Source.Name
	}

	return p.name
}

// files says that volumes are files, of any format; others are devices, and raw.
func (p *pool) files() bool {
	return p.kind == "dir" || p.kind == "fs" || p.kind == "netfs"
}

// backend is what libvirt can do with the volumes of a type of pool.
type backend struct{ clone, transfer, resize, wipe bool }

var backends = map[string]backend{
	"dir":     {clone: true, transfer: true, resize: true, wipe: true},
	"fs":      {clone: true, transfer: true, resize: true, wipe: true},
	"netfs":   {clone: true, transfer: true, resize: true, wipe: true},
	"logical": {clone: true, transfer: true, wipe: true},
	"zfs":     {transfer: true},
	"rbd":     {clone: true, resize: true, wipe: true},
}

func noSupport(format string, args ...any) error {
	return failure(libvirt.ERR_NO_SUPPORT, libvirt.FROM_STORAGE, "this function is not supported by the connection driver: "+format, args...)
}

// grain is what sizes of the pool's devices are multiples of.
func (p *pool) grain() uint64 {
	switch p.kind {
	case "logical":
		return 4 << 20 // An extent.
	case "zfs":
		return 8 << 10 // A block.
	default:
		return 1
	}
}

func (h *Hypervisor) poolHandleLocked(c *Connect, p *pool) *StoragePool {
	return &StoragePool{handle: newHandleLocked(c), uuid: p.uuid, name: p.name}
}

func poolCall[T any](p *StoragePool, method, body string, effect func(*pool) (T, error)) (T, error) {
	if err := p.valid(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool", method); err != nil {
		var zero T

		return zero, err
	}

	return call(p.conn, request{op: "StoragePool." + method, object: p.name, body: body}, func() (T, error) {
		for _, found := range p.conn.h.pools {
			if found.uuid == p.uuid {
				return effect(found)
			}
		}

		var zero T

		return zero, failure(libvirt.ERR_NO_STORAGE_POOL, libvirt.FROM_STORAGE,
			"Storage pool not found: no storage pool with matching uuid '%s' (%s)", p.uuid, p.name)
	})
}

// activePoolCall is poolCall for what needs the pool to be active.
func activePoolCall[T any](p *StoragePool, method, body string, effect func(*pool) (T, error)) (T, error) {
	return poolCall(p, method, body, func(found *pool) (T, error) {
		if !found.active {
			var zero T

			return zero, inactivePool(found.name)
		}

		return effect(found)
	})
}

func inactivePool(name string) error {
	return notValid(libvirt.FROM_STORAGE, "storage pool '%s' is not active", name)
}

func (p *StoragePool) do(method string, effect func(*pool) error) error {
	_, err := poolCall(p, method, "", func(found *pool) (none, error) { return none{}, effect(found) })

	return err
}

// idle refuses what cannot be done while operations are under way.
func (p *pool) idle() error {
	if p.jobs > 0 {
		return internal(libvirt.FROM_STORAGE, "pool '%s' has asynchronous jobs running.", p.name)
	}

	return nil
}

// LookupStoragePoolByName returns a handle of the pool of that name.
func (c *Connect) LookupStoragePoolByName(name string) (*StoragePool, error) {
	return call(c, request{op: "Connect.LookupStoragePoolByName", object: name}, func() (*StoragePool, error) {
		p, ok := c.h.pools[name]
		if !ok {
			return nil, noPool(name)
		}

		return c.h.poolHandleLocked(c, p), nil
	})
}

// LookupStoragePoolByUUIDString returns a handle of the pool of that UUID.
func (c *Connect) LookupStoragePoolByUUIDString(id string) (*StoragePool, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, invalidUUID(libvirt.FROM_STORAGE)
	}

	return c.lookupPool("Connect.LookupStoragePoolByUUIDString", func(p *pool) bool { return p.uuid == parsed.String() },
		failure(libvirt.ERR_NO_STORAGE_POOL, libvirt.FROM_STORAGE, "Storage pool not found: no storage pool with matching uuid '%s'", parsed))
}

// LookupStoragePoolByTargetPath returns a handle of the active pool with that target.
func (c *Connect) LookupStoragePoolByTargetPath(path string) (*StoragePool, error) {
	return c.lookupPool("Connect.LookupStoragePoolByTargetPath", func(p *pool) bool { return p.active && p.target() == path },
		failure(libvirt.ERR_NO_STORAGE_POOL, libvirt.FROM_STORAGE, "Storage pool not found: no storage pool with matching target path '%s'", path))
}

func (c *Connect) lookupPool(op string, fits func(*pool) bool, missing error) (*StoragePool, error) {
	return call(c, request{op: op}, func() (*StoragePool, error) {
		for _, p := range c.h.pools {
			if fits(p) {
				return c.h.poolHandleLocked(c, p), nil
			}
		}

		return nil, missing
	})
}

// ListAllStoragePools returns handles of the pools that the flags pick.
func (c *Connect) ListAllStoragePools(flags libvirt.ConnectListAllStoragePoolsFlags) ([]StoragePool, error) {
	return call(c, request{op: "Connect.ListAllStoragePools"}, func() ([]StoragePool, error) {
		var out []StoragePool

		for _, p := range c.h.poolsLocked() {
			if p.fits(flags) {
				out = append(out, *c.h.poolHandleLocked(c, p))
			}
		}

		return out, nil
	})
}

func (h *Hypervisor) poolsLocked() []*pool {
	return slices.SortedFunc(maps.Values(h.pools), func(a, b *pool) int { return cmp.Compare(a.name, b.name) })
}

// poolTypes are the flags of lists for types of pools.
var poolTypes = map[string]libvirt.ConnectListAllStoragePoolsFlags{
	"dir":     libvirt.CONNECT_LIST_STORAGE_POOLS_DIR,
	"fs":      libvirt.CONNECT_LIST_STORAGE_POOLS_FS,
	"netfs":   libvirt.CONNECT_LIST_STORAGE_POOLS_NETFS,
	"logical": libvirt.CONNECT_LIST_STORAGE_POOLS_LOGICAL,
	"zfs":     libvirt.CONNECT_LIST_STORAGE_POOLS_ZFS,
	"rbd":     libvirt.CONNECT_LIST_STORAGE_POOLS_RBD,
}

func (p *pool) fits(flags libvirt.ConnectListAllStoragePoolsFlags) bool {
	either := func(yes, no libvirt.ConnectListAllStoragePoolsFlags, is bool) bool {
		return flags&(yes|no) == 0 || is && flags&yes != 0 || !is && flags&no != 0
	}

	var types libvirt.ConnectListAllStoragePoolsFlags
	for _, flag := range poolTypes {
		types |= flag
	}

	return either(libvirt.CONNECT_LIST_STORAGE_POOLS_ACTIVE, libvirt.CONNECT_LIST_STORAGE_POOLS_INACTIVE, p.active) &&
		either(libvirt.CONNECT_LIST_STORAGE_POOLS_PERSISTENT, libvirt.CONNECT_LIST_STORAGE_POOLS_TRANSIENT, p.persistent) &&
		either(libvirt.CONNECT_LIST_STORAGE_POOLS_AUTOSTART, libvirt.CONNECT_LIST_STORAGE_POOLS_NO_AUTOSTART, p.autostart) &&
		(flags&types == 0 || flags&poolTypes[p.kind] != 0)
}

// StoragePoolDefineXML defines a pool, which is inactive then.
func (c *Connect) StoragePoolDefineXML(xml string, _ libvirt.StoragePoolDefineFlags) (*StoragePool, error) {
	return call(c, request{op: "Connect.StoragePoolDefineXML", object: nameIn(xml), body: xml}, func() (*StoragePool, error) {
		p, err := c.h.definePoolLocked(xml)
		if err != nil {
			return nil, err
		}

		return c.h.poolHandleLocked(c, p), nil
	})
}

func (h *Hypervisor) definePoolLocked(xml string) (*pool, error) {
	def := &libvirtxml.StoragePool{}
	if err := def.Unmarshal(xml); err != nil {
		return nil, malformed(libvirt.FROM_STORAGE, "storage_pool_definition", err)
	}

	switch {
	case poolTypes[def.Type] == 0:
		return nil, xmlError(libvirt.FROM_XML, "Invalid value for attribute 'type' in element 'pool': '%s'.", def.Type)
	case def.Name == "":
		return nil, xmlError(libvirt.FROM_STORAGE, "missing pool source name element")
	case def.Type != "rbd" && def.Type != "logical" && def.Type != "zfs" && (def.Target == nil || def.Target.Path == ""):
		return nil, xmlError(libvirt.FROM_STORAGE, "missing storage pool target path")
	}

	before, exists := h.pools[def.Name]

	switch {
	case exists && def.UUID != before.uuid:
		return nil, failed(libvirt.FROM_STORAGE, "pool '%s' already exists with uuid %s", before.name, before.uuid)
	case def.UUID == "":
		def.UUID = h.newUUID()
	}

	for _, other := range h.pools {
		if other.uuid == def.UUID && other.name != def.Name {
			return nil, failed(libvirt.FROM_STORAGE, "pool '%s' is already defined with uuid %s", other.name, other.uuid)
		}
	}

	for _, other := range h.pools {
		if other.name != def.Name && other.kind == def.Type && other.place() == (&pool{name: def.Name, kind: def.Type, def: def}).place() {
			return nil, failed(libvirt.FROM_STORAGE, "Storage source conflict with pool: '%s'", other.name)
		}
	}

	if !exists {
		before = &pool{name: def.Name, uuid: def.UUID, capacity: defaultPoolSize, volumes: map[string]*volume{}}
		h.pools[def.Name] = before
		h.madeLocked(ledger.Object{Kind: "pool", ID: def.Name, Name: def.Name})
	}

	before.kind, before.def, before.persistent = def.Type, def, true
	h.poolEventLocked(before, poolLifecycleEvent, &libvirt.StoragePoolEventLifecycle{Event: libvirt.STORAGE_POOL_EVENT_DEFINED})

	return before, nil
}

// Free gives up the handle.
func (p *StoragePool) Free() error { return p.free(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (p *StoragePool) Ref() error { return p.ref(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool") }

// GetName is part of the handle, and makes no call.
func (p *StoragePool) GetName() (string, error) {
	return p.name, p.valid(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool", "GetName")
}

// GetUUIDString is part of the handle, and makes no call.
func (p *StoragePool) GetUUIDString() (string, error) {
	return p.uuid, p.valid(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool", "GetUUIDString")
}

// GetUUID is part of the handle, and makes no call.
func (p *StoragePool) GetUUID() ([]byte, error) {
	if err := p.valid(libvirt.ERR_INVALID_STORAGE_POOL, "StoragePool", "GetUUID"); err != nil {
		return nil, err
	}

	return hex.DecodeString(strings.ReplaceAll(p.uuid, "-", ""))
}

// IsActive says whether the pool is active.
func (p *StoragePool) IsActive() (bool, error) {
	return poolCall(p, "IsActive", "", func(found *pool) (bool, error) { return found.active, nil })
}

// IsPersistent says whether the pool is defined.
func (p *StoragePool) IsPersistent() (bool, error) {
	return poolCall(p, "IsPersistent", "", func(found *pool) (bool, error) { return found.persistent, nil })
}

// GetAutostart says whether the pool starts with its host.
func (p *StoragePool) GetAutostart() (bool, error) {
	return poolCall(p, "GetAutostart", "", func(found *pool) (bool, error) { return found.autostart, nil })
}

// SetAutostart says whether the pool starts with its host.
func (p *StoragePool) SetAutostart(autostart bool) error {
	return p.do("SetAutostart", func(found *pool) error {
		found.autostart = autostart

		return nil
	})
}

// GetInfo returns state and sizes.
func (p *StoragePool) GetInfo() (*libvirt.StoragePoolInfo, error) {
	return poolCall(p, "GetInfo", "", func(found *pool) (*libvirt.StoragePoolInfo, error) {
		if !found.active {
			return &libvirt.StoragePoolInfo{State: libvirt.STORAGE_POOL_INACTIVE}, nil
		}

		used := p.conn.h.usedLocked(found)

		return &libvirt.StoragePoolInfo{
			State: libvirt.STORAGE_POOL_RUNNING, Capacity: found.capacity, Allocation: used, Available: found.capacity - used,
		}, nil
	})
}

// usedLocked is the space that the pool's volumes take, whether or not libvirt has seen them.
func (h *Hypervisor) usedLocked(p *pool) uint64 {
	used := uint64(0)
	for _, f := range h.filesInLocked(p.target()) {
		used += f.allocation()
	}

	return min(used, p.capacity)
}

// GetXMLDesc returns the pool's description.
func (p *StoragePool) GetXMLDesc(libvirt.StorageXMLFlags) (string, error) {
	return poolCall(p, "GetXMLDesc", "", func(found *pool) (string, error) {
		def := *found.def
		size := func(n uint64) *libvirtxml.StoragePoolSize {
			return &libvirtxml.StoragePoolSize{Unit: "bytes", Value: n}
		}
		used := uint64(0)
		capacity := uint64(0)

		if found.active {
			used, capacity = p.conn.h.usedLocked(found), found.capacity
		}

		def.Capacity, def.Allocation, def.Available = size(capacity), size(used), size(capacity-used)

		if found.kind != "rbd" {
			target := libvirtxml.StoragePoolTarget{}
			if def.Target != nil {
				target = *def.Target
			}

			target.Path = found.target()
			def.Target = &target
		}

		if def.Source == nil {
			def.Source = &libvirtxml.StoragePoolSource{}
		}

		text, err := def.Marshal()
		if err != nil {
			return "", internal(libvirt.FROM_STORAGE, "%s", err)
		}

		return written(text), nil
	})
}

// Build makes what the pool is on.
func (p *StoragePool) Build(libvirt.StoragePoolBuildFlags) error {
	return p.do("Build", func(found *pool) error {
		if found.active {
			return notValid(libvirt.FROM_STORAGE, "storage pool '%s' is already active", found.name)
		}

		p.conn.h.poolEventLocked(found, poolLifecycleEvent, &libvirt.StoragePoolEventLifecycle{Event: libvirt.STORAGE_POOL_EVENT_CREATED})

		return nil
	})
}

// Create makes the pool active.
func (p *StoragePool) Create(libvirt.StoragePoolCreateFlags) error {
	return p.do("Create", func(found *pool) error {
		if found.active {
			return notValid(libvirt.FROM_STORAGE, "storage pool '%s' is already active", found.name)
		}

		p.conn.h.startPoolLocked(found)

		return nil
	})
}

func (h *Hypervisor) startPoolLocked(p *pool) {
	p.active = true
	h.refreshLocked(p)
	h.poolEventLocked(p, poolLifecycleEvent, &libvirt.StoragePoolEventLifecycle{Event: libvirt.STORAGE_POOL_EVENT_STARTED})
}

// Destroy makes the pool inactive. Its volumes stay.
func (p *StoragePool) Destroy() error {
	h := p.conn.h

	return p.do("Destroy", func(found *pool) error {
		if !found.active {
			return inactivePool(found.name)
		}

		if err := found.idle(); err != nil {
			return err
		}

		found.active, found.volumes = false, map[string]*volume{}
		h.poolEventLocked(found, poolLifecycleEvent, &libvirt.StoragePoolEventLifecycle{Event: libvirt.STORAGE_POOL_EVENT_STOPPED})

		return nil
	})
}

// Delete removes what an inactive pool is on.
func (p *StoragePool) Delete(libvirt.StoragePoolDeleteFlags) error {
	h := p.conn.h

	return p.do("Delete", func(found *pool) error {
		if found.active {
			return notValid(libvirt.FROM_STORAGE, "storage pool '%s' is still active", found.name)
		}

		if n := len(h.filesInLocked(found.target())); n > 0 {
			return system(libvirt.FROM_STORAGE, "Directory not empty", "failed to remove pool '%s'", found.target())
		}

		return nil
	})
}

// Undefine makes an inactive pool forgotten.
func (p *StoragePool) Undefine() error {
	h := p.conn.h

	return p.do("Undefine", func(found *pool) error {
		if found.active {
			return notValid(libvirt.FROM_STORAGE, "storage pool '%s' is still active", found.name)
		}

		delete(h.pools, found.name)
		h.goneLocked("pool", found.name)
		h.poolEventLocked(found, poolLifecycleEvent, &libvirt.StoragePoolEventLifecycle{Event: libvirt.STORAGE_POOL_EVENT_UNDEFINED})

		return nil
	})
}

// Refresh makes libvirt look at what the pool holds.
func (p *StoragePool) Refresh(uint32) error {
	h := p.conn.h

	_, err := activePoolCall(p, "Refresh", "", func(found *pool) (none, error) {
		if err := found.idle(); err != nil {
			return none{}, err
		}

		h.pauseLocked("StoragePool.Refresh")
		h.refreshLocked(found)
		h.poolEventLocked(found, poolRefreshEvent, nil)

		return none{}, nil
	})

	return err
}

// refreshLocked takes the files that are there for the pool's volumes.
func (h *Hypervisor) refreshLocked(p *pool) {
	present := h.filesInLocked(p.target())

	for name := range p.volumes {
		if present[name] == nil {
			delete(p.volumes, name)
		}
	}

	for name, f := range present {
		if p.volumes[name] == nil {
			p.volumes[name] = &volume{name: name, path: p.target() + "/" + name}
		}

		p.volumes[name].format = f.format()
	}
}
