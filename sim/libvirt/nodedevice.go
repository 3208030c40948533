package libvirt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// NodeDevice is a handle of a device of the host.
type NodeDevice struct {
	handle

	name string
}

// device is a device of the host as the daemon has it.
type device struct {
	name, text string
	def        *libvirtxml.NodeDevice
}

// caps are the kinds of capability that the device has.
func (d *device) caps() []string {
	var out []string

	if d.def.Capability.PCI != nil {
		out = append(out, "pci")
	}

	if d.def.Capability.MDev != nil {
		out = append(out, "mdev")
	}

	if d.def.Capability.Net != nil {
		out = append(out, "net")
	}

	if d.def.Capability.System != nil {
		out = append(out, "system")
	}

	if pci := d.def.Capability.PCI; pci != nil {
		for _, c := range pci.Capabilities {
			if c.MDevTypes != nil {
				out = append(out, "mdev_types")
			}
		}
	}

	return out
}

// deviceFlags are the flags of lists for kinds of capability.
var deviceFlags = map[string]libvirt.ConnectListAllNodeDeviceFlags{
	"system":     libvirt.CONNECT_LIST_NODE_DEVICES_CAP_SYSTEM,
	"pci":        libvirt.CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV,
	"net":        libvirt.CONNECT_LIST_NODE_DEVICES_CAP_NET,
	"mdev":       libvirt.CONNECT_LIST_NODE_DEVICES_CAP_MDEV,
	"mdev_types": libvirt.CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES,
}

// AddDevice adds a device to the host, described in libvirt's XML.
func (h *Hypervisor) AddDevice(doc string) error {
	def := &libvirtxml.NodeDevice{}
	if err := def.Unmarshal(doc); err != nil {
		return fmt.Errorf("read node device: %w", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.devices[def.Name] = &device{name: def.Name, text: doc, def: def}

	return nil
}

// ListAllNodeDevices returns handles of the devices that have one of the flags' capabilities, of all if there are no flags.
func (c *Connect) ListAllNodeDevices(flags libvirt.ConnectListAllNodeDeviceFlags) ([]NodeDevice, error) {
	return call(c, request{op: "Connect.ListAllNodeDevices"}, func() ([]NodeDevice, error) {
		var out []NodeDevice

		for _, d := range slices.SortedFunc(maps.Values(c.h.devices), func(a, b *device) int { return cmp.Compare(a.name, b.name) }) {
			if flags == 0 || slices.ContainsFunc(d.caps(), func(c string) bool { return flags&deviceFlags[c] != 0 }) {
				out = append(out, NodeDevice{handle: newHandleLocked(c), name: d.name})
			}
		}

		return out, nil
	})
}

// LookupDeviceByName returns a handle of the device of that name.
func (c *Connect) LookupDeviceByName(name string) (*NodeDevice, error) {
	return call(c, request{op: "Connect.LookupDeviceByName", object: name}, func() (*NodeDevice, error) {
		if c.h.devices[name] == nil {
			return nil, noDevice(name)
		}

		return &NodeDevice{handle: newHandleLocked(c), name: name}, nil
	})
}

func noDevice(name string) error {
	return failure(libvirt.ERR_NO_NODE_DEVICE, libvirt.FROM_NODEDEV, "Node device not found: no node device with matching name '%s'", name)
}

func deviceCall[T any](n *NodeDevice, method string, effect func(*device) (T, error)) (T, error) {
	var zero T

	if err := n.valid(libvirt.ERR_INVALID_NODE_DEVICE, "NodeDevice", method); err != nil {
		return zero, err
	}

	return call(n.conn, request{op: "NodeDevice." + method, object: n.name}, func() (T, error) {
		d, ok := n.conn.h.devices[n.name]
		if !ok {
			return zero, noDevice(n.name)
		}

		return effect(d)
	})
}

// Free gives up the handle.
func (n *NodeDevice) Free() error { return n.free(libvirt.ERR_INVALID_NODE_DEVICE, "NodeDevice") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (n *NodeDevice) Ref() error { return n.ref(libvirt.ERR_INVALID_NODE_DEVICE, "NodeDevice") }

// GetName is part of the handle, and makes no call.
func (n *NodeDevice) GetName() (string, error) {
	return n.name, n.valid(libvirt.ERR_INVALID_NODE_DEVICE, "NodeDevice", "GetName")
}

// GetXMLDesc returns the device's description.
func (n *NodeDevice) GetXMLDesc(libvirt.NodeDeviceXMLFlags) (string, error) {
	return deviceCall(n, "GetXMLDesc", func(d *device) (string, error) { return d.text, nil })
}

// GetParent returns the name of the device that it hangs on.
func (n *NodeDevice) GetParent() (string, error) {
	return deviceCall(n, "GetParent", func(d *device) (string, error) { return d.def.Parent, nil })
}

// ListCaps returns the kinds of its capabilities.
func (n *NodeDevice) ListCaps() ([]string, error) {
	return deviceCall(n, "ListCaps", func(d *device) ([]string, error) { return d.caps(), nil })
}

// hostdevs returns the names of the host's devices that a domain takes for itself.
func (h *Hypervisor) hostdevs(def *libvirtxml.Domain) (names []string, missing string) {
	for _, dev := range def.Devices.Hostdevs {
		switch {
		case dev.SubsysPCI != nil && dev.SubsysPCI.Source != nil && dev.SubsysPCI.Source.Address != nil:
			a := dev.SubsysPCI.Source.Address
			name := fmt.Sprintf("pci_%04x_%02x_%02x_%x", value(a.Domain), value(a.Bus), value(a.Slot), value(a.Function))

			if h.devices[name] == nil {
				return nil, fmt.Sprintf("%04x:%02x:%02x.%x", value(a.Domain), value(a.Bus), value(a.Slot), value(a.Function))
			}

			names = append(names, name)
		case dev.SubsysMDev != nil && dev.SubsysMDev.Source != nil && dev.SubsysMDev.Source.Address != nil:
			id := dev.SubsysMDev.Source.Address.UUID
			found := ""

			for name, d := range h.devices {
				if m := d.def.Capability.MDev; m != nil && m.UUID == id {
					found = name
				}
			}

			if found == "" {
				return nil, id
			}

			names = append(names, found)
		}
	}

	return names, ""
}

func value(n *uint) uint {
	if n == nil {
		return 0
	}

	return *n
}

// checkDevicesLocked refuses devices that are not there, or that another domain has.
func (h *Hypervisor) checkDevicesLocked(m *machine, def *libvirtxml.Domain) error {
	for _, dev := range def.Devices.Hostdevs {
		switch {
		case !h.opts.Host.NoIOMMU:
		case dev.SubsysPCI != nil:
			return unsupportedConfig(libvirt.FROM_QEMU, "host doesn't support passthrough of host PCI devices")
		case dev.SubsysMDev != nil:
			return unsupportedConfig(libvirt.FROM_QEMU, "Mediated host device assignment requires VFIO support")
		}
	}

	names, missing := h.hostdevs(def)
	if missing != "" {
		return failure(libvirt.ERR_SYSTEM_ERROR, libvirt.FROM_NONE, "Device %s not found: could not access /sys/bus/pci/devices/%s/config: %s", missing, missing, noEntry)
	}

	for _, other := range h.domains {
		if other == m || other.live == nil {
			continue
		}

		taken, _ := h.hostdevs(other.live)

		for _, name := range names {
			if slices.Contains(taken, name) {
				return notValid(libvirt.FROM_NONE, "PCI device %s is in use by driver QEMU, domain %s", name, other.name)
			}
		}
	}

	return nil
}
