package libvirt

import (
	"encoding/hex"
	"strings"

	"libvirt.org/go/libvirt"
)

// Domain is a handle of a domain.
type Domain struct {
	handle

	uuid, name string
	id         int // What it was when the handle was made, -1 while off; starting and stopping by this handle change it.
}

func (h *Hypervisor) domainHandleLocked(c *Connect, m *machine) *Domain {
	return &Domain{handle: newHandleLocked(c), uuid: m.uuid, name: m.name, id: m.id}
}

// domainCall makes a call about the domain of a handle.
func domainCall[T any](d *Domain, method, body string, effect func(*machine) (T, error)) (T, error) {
	if err := d.valid(libvirt.ERR_INVALID_DOMAIN, "Domain", method); err != nil {
		var zero T

		return zero, err
	}

	return call(d.conn, request{op: "Domain." + method, object: d.name, body: body}, func() (T, error) {
		m, ok := d.conn.h.domains[d.uuid]
		if !ok {
			var zero T

			return zero, noDomain(d.uuid, d.name)
		}

		return effect(m)
	})
}

func (d *Domain) do(method string, effect func(*machine) error) error {
	_, err := domainCall(d, method, "", func(m *machine) (none, error) { return none{}, effect(m) })

	return err
}

// Free gives up the handle.
func (d *Domain) Free() error { return d.free(libvirt.ERR_INVALID_DOMAIN, "Domain") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (d *Domain) Ref() error { return d.ref(libvirt.ERR_INVALID_DOMAIN, "Domain") }

// GetName is part of the handle, and makes no call.
func (d *Domain) GetName() (string, error) {
	return d.name, d.valid(libvirt.ERR_INVALID_DOMAIN, "Domain", "GetName")
}

// GetUUIDString is part of the handle, and makes no call.
func (d *Domain) GetUUIDString() (string, error) {
	return d.uuid, d.valid(libvirt.ERR_INVALID_DOMAIN, "Domain", "GetUUIDString")
}

// GetUUID is part of the handle, and makes no call.
func (d *Domain) GetUUID() ([]byte, error) {
	if err := d.valid(libvirt.ERR_INVALID_DOMAIN, "Domain", "GetUUID"); err != nil {
		return nil, err
	}

	return hex.DecodeString(strings.ReplaceAll(d.uuid, "-", ""))
}

// GetID is part of the handle, and makes no call. That the domain is off is an error without number.
func (d *Domain) GetID() (uint, error) {
	if err := d.valid(libvirt.ERR_INVALID_DOMAIN, "Domain", "GetID"); err != nil {
		return ^uint(0), err
	}

	d.conn.h.mu.Lock()
	defer d.conn.h.mu.Unlock()

	if d.id < 0 {
		return uint(^uint32(0)), libvirt.Error{}
	}

	return uint(d.id), nil
}

// GetState returns the state and its reason.
func (d *Domain) GetState() (libvirt.DomainState, int, error) {
	type answer struct {
		state  libvirt.DomainState
		reason int
	}

	got, err := domainCall(d, "GetState", "", func(m *machine) (answer, error) { return answer{m.state, m.reason}, nil })

	return got.state, got.reason, err
}

// IsActive says whether the domain is on.
func (d *Domain) IsActive() (bool, error) {
	return domainCall(d, "IsActive", "", func(m *machine) (bool, error) { return m.active(), nil })
}

// IsPersistent says whether the domain is defined, so that it outlives being switched off.
func (d *Domain) IsPersistent() (bool, error) {
	return domainCall(d, "IsPersistent", "", func(m *machine) (bool, error) { return m.persistent(), nil })
}

// IsUpdated says whether what runs was changed since it was started, which nothing here does. A new definition does not count.
func (d *Domain) IsUpdated() (bool, error) {
	return domainCall(d, "IsUpdated", "", func(*machine) (bool, error) { return false, nil })
}

// GetInfo returns state, memory and processors.
func (d *Domain) GetInfo() (*libvirt.DomainInfo, error) {
	return domainCall(d, "GetInfo", "", func(m *machine) (*libvirt.DomainInfo, error) {
		def := m.current()

		return &libvirt.DomainInfo{
			State: m.state, MaxMem: memoryKiB(def), Memory: currentMemoryKiB(def), NrVirtCpu: processors(def),
		}, nil
	})
}

// GetMaxMemory returns the domain's memory in KiB.
func (d *Domain) GetMaxMemory() (uint64, error) {
	return domainCall(d, "GetMaxMemory", "", func(m *machine) (uint64, error) { return memoryKiB(m.current()), nil })
}

// GetXMLDesc returns the domain's description, of what runs unless the flags ask for the definition.
func (d *Domain) GetXMLDesc(flags libvirt.DomainXMLFlags) (string, error) {
	return domainCall(d, "GetXMLDesc", "", func(m *machine) (string, error) {
		return m.xml(flags&libvirt.DOMAIN_XML_INACTIVE != 0)
	})
}

// GetAutostart says whether the domain starts with its host.
func (d *Domain) GetAutostart() (bool, error) {
	return domainCall(d, "GetAutostart", "", func(m *machine) (bool, error) { return m.autostart, nil })
}

// SetAutostart says whether the domain starts with its host.
func (d *Domain) SetAutostart(autostart bool) error {
	return d.do("SetAutostart", func(m *machine) error {
		if !m.persistent() {
			return notValid(libvirt.FROM_QEMU, "cannot set autostart for transient domain")
		}

		return d.conn.h.jobLocked(m, "SetAutostart", func() error {
			m.autostart = autostart

			return nil
		})
	})
}
