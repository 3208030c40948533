package libvirt

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Network is a handle of a network.
type Network struct {
	handle

	uuid, name string
}

// network is a network as the daemon has it.
type network struct {
	name, uuid string
	// def is the definition, nil for a transient network; live is what runs, nil while the network is off.
	def, live *libvirtxml.Network
	autostart bool
	leases    []libvirt.NetworkDHCPLease
	// hosts are the books' ids of reservations that were made.
	hosts []string
}

func (n *network) active() bool { return n.live != nil }

func (n *network) current() *libvirtxml.Network {
	if n.live != nil {
		return n.live
	}

	return n.def
}

func networkCall[T any](n *Network, method, body string, effect func(*network) (T, error)) (T, error) {
	var zero T

	if err := n.valid(libvirt.ERR_INVALID_NETWORK, "Network", method); err != nil {
		return zero, err
	}

	return call(n.conn, request{op: "Network." + method, object: n.name, body: body}, func() (T, error) {
		for _, found := range n.conn.h.networks {
			if found.uuid == n.uuid {
				return effect(found)
			}
		}

		return zero, failure(libvirt.ERR_NO_NETWORK, libvirt.FROM_NETWORK,
			"Network not found: no network with matching uuid '%s' (%s)", n.uuid, n.name)
	})
}

func (n *Network) do(method string, effect func(*network) error) error {
	_, err := networkCall(n, method, "", func(found *network) (none, error) { return none{}, effect(found) })

	return err
}

func (h *Hypervisor) networkHandleLocked(c *Connect, n *network) *Network {
	return &Network{handle: newHandleLocked(c), uuid: n.uuid, name: n.name}
}

// LookupNetworkByName returns a handle of the network of that name.
func (c *Connect) LookupNetworkByName(name string) (*Network, error) {
	return call(c, request{op: "Connect.LookupNetworkByName", object: name}, func() (*Network, error) {
		n, ok := c.h.networks[name]
		if !ok {
			return nil, noNetwork(name)
		}

		return c.h.networkHandleLocked(c, n), nil
	})
}

// LookupNetworkByUUIDString returns a handle of the network of that UUID.
func (c *Connect) LookupNetworkByUUIDString(id string) (*Network, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, invalidUUID(libvirt.FROM_NETWORK)
	}

	return call(c, request{op: "Connect.LookupNetworkByUUIDString", object: id}, func() (*Network, error) {
		for _, n := range c.h.networks {
			if n.uuid == parsed.String() {
				return c.h.networkHandleLocked(c, n), nil
			}
		}

		return nil, failure(libvirt.ERR_NO_NETWORK, libvirt.FROM_NETWORK, "Network not found: no network with matching uuid '%s'", parsed)
	})
}

// ListAllNetworks returns handles of the networks that the flags pick.
func (c *Connect) ListAllNetworks(flags libvirt.ConnectListAllNetworksFlags) ([]Network, error) {
	return call(c, request{op: "Connect.ListAllNetworks"}, func() ([]Network, error) {
		either := func(yes, no libvirt.ConnectListAllNetworksFlags, is bool) bool {
			return flags&(yes|no) == 0 || is && flags&yes != 0 || !is && flags&no != 0
		}

		var out []Network

		for _, n := range slices.SortedFunc(maps.Values(c.h.networks), func(a, b *network) int { return cmp.Compare(a.name, b.name) }) {
			if either(libvirt.CONNECT_LIST_NETWORKS_ACTIVE, libvirt.CONNECT_LIST_NETWORKS_INACTIVE, n.active()) &&
				either(libvirt.CONNECT_LIST_NETWORKS_PERSISTENT, libvirt.CONNECT_LIST_NETWORKS_TRANSIENT, n.def != nil) &&
				either(libvirt.CONNECT_LIST_NETWORKS_AUTOSTART, libvirt.CONNECT_LIST_NETWORKS_NO_AUTOSTART, n.autostart) {
				out = append(out, *c.h.networkHandleLocked(c, n))
			}
		}

		return out, nil
	})
}

// NetworkDefineXML defines a network, or one anew that has the same name and UUID.
func (c *Connect) NetworkDefineXML(xml string) (*Network, error) {
	return call(c, request{op: "Connect.NetworkDefineXML", object: nameIn(xml), body: xml}, func() (*Network, error) {
		n, err := c.h.defineNetworkLocked(xml)
		if err != nil {
			return nil, err
		}

		return c.h.networkHandleLocked(c, n), nil
	})
}

func (h *Hypervisor) defineNetworkLocked(doc string) (*network, error) {
	def := &libvirtxml.Network{}
	if err := def.Unmarshal(doc); err != nil {
		return nil, malformed(libvirt.FROM_NETWORK, "network_definition", err)
	}

	if def.Name == "" {
		return nil, failure(libvirt.ERR_NO_NAME, libvirt.FROM_NETWORK, "missing name information")
	}

	if err := checkVLANs(def); err != nil {
		return nil, err
	}

	n, exists := h.networks[def.Name]

	switch {
	case exists && def.UUID != n.uuid:
		return nil, failed(libvirt.FROM_NETWORK, "network '%s' already exists with uuid %s", n.name, n.uuid)
	case def.UUID == "":
		def.UUID = h.newUUID()
	}

	for _, other := range h.networks {
		if other.uuid == def.UUID && other.name != def.Name {
			return nil, failed(libvirt.FROM_NETWORK, "network '%s' is already defined with uuid %s", other.name, other.uuid)
		}
	}

	if !exists {
		n = &network{name: def.Name, uuid: def.UUID}
		h.networks[n.name] = n
		h.madeLocked(ledger.Object{Kind: "network", ID: n.name, Name: n.name})
	}

	if def.Bridge == nil && (def.Forward == nil || def.Forward.Mode == "nat" || def.Forward.Mode == "route" || def.Forward.Mode == "open") {
		def.Bridge = &libvirtxml.NetworkBridge{Name: fmt.Sprintf("virbr%d", len(h.networks)-1), STP: "on", Delay: "0"}
	}

	n.def = def
	h.networkEventLocked(n, libvirt.NETWORK_EVENT_DEFINED)

	return n, nil
}

// checkVLANs refuses tags on what cannot tag: of the networks here, all but those on Open vSwitch.
func checkVLANs(def *libvirtxml.Network) error {
	can := func(p *libvirtxml.NetworkVirtualPort) bool {
		return p != nil && p.Params != nil && p.Params.OpenVSwitch != nil
	}
	tagged := def.VLAN != nil

	for _, g := range def.PortGroups {
		tagged = tagged || g.VLAN != nil && !can(g.VirtualPort)
	}

	hostdev := def.Forward != nil && (def.Forward.Mode == "hostdev" || def.Forward.Mode == "passthrough")

	if tagged && !hostdev && !can(def.VirtualPort) {
		return unsupportedConfig(libvirt.FROM_NETWORK, "<vlan> element specified for network %s, whose type doesn't support vlan configuration", def.Name)
	}

	return nil
}

// Free gives up the handle.
func (n *Network) Free() error { return n.free(libvirt.ERR_INVALID_NETWORK, "Network") }

// Ref takes a reference to the handle, each of which is given up by Free.
func (n *Network) Ref() error { return n.ref(libvirt.ERR_INVALID_NETWORK, "Network") }

// GetName is part of the handle, and makes no call.
func (n *Network) GetName() (string, error) {
	return n.name, n.valid(libvirt.ERR_INVALID_NETWORK, "Network", "GetName")
}

// GetUUIDString is part of the handle, and makes no call.
func (n *Network) GetUUIDString() (string, error) {
	return n.uuid, n.valid(libvirt.ERR_INVALID_NETWORK, "Network", "GetUUIDString")
}

// GetUUID is part of the handle, and makes no call.
func (n *Network) GetUUID() ([]byte, error) {
	if err := n.valid(libvirt.ERR_INVALID_NETWORK, "Network", "GetUUID"); err != nil {
		return nil, err
	}

	return hex.DecodeString(strings.ReplaceAll(n.uuid, "-", ""))
}

// IsActive says whether the network is active.
func (n *Network) IsActive() (bool, error) {
	return networkCall(n, "IsActive", "", func(found *network) (bool, error) { return found.active(), nil })
}

// IsPersistent says whether the network is defined.
func (n *Network) IsPersistent() (bool, error) {
	return networkCall(n, "IsPersistent", "", func(found *network) (bool, error) { return found.def != nil, nil })
}

// GetAutostart says whether the network starts with its host.
func (n *Network) GetAutostart() (bool, error) {
	return networkCall(n, "GetAutostart", "", func(found *network) (bool, error) { return found.autostart, nil })
}

// SetAutostart says whether the network starts with its host.
func (n *Network) SetAutostart(autostart bool) error {
	return n.do("SetAutostart", func(found *network) error {
		found.autostart = autostart

		return nil
	})
}

// GetBridgeName returns the name of the host's bridge that the network is on.
func (n *Network) GetBridgeName() (string, error) {
	return networkCall(n, "GetBridgeName", "", func(found *network) (string, error) {
		bridge := found.current().Bridge
		if bridge == nil || bridge.Name == "" {
			return "", internal(libvirt.FROM_NETWORK, "network '%s' does not have a bridge name.", found.name)
		}

		return bridge.Name, nil
	})
}

// GetXMLDesc returns the network's description, of what runs unless the flags ask for the definition.
func (n *Network) GetXMLDesc(flags libvirt.NetworkXMLFlags) (string, error) {
	return networkCall(n, "GetXMLDesc", "", func(found *network) (string, error) {
		def := found.current()
		if flags&libvirt.NETWORK_XML_INACTIVE != 0 && found.def != nil {
			def = found.def
		}

		text, err := def.Marshal()
		if err != nil {
			return "", internal(libvirt.FROM_NETWORK, "%s", err)
		}

		return written(text), nil
	})
}

// Create makes the network active.
func (n *Network) Create() error {
	h := n.conn.h

	return n.do("Create", func(found *network) error {
		if found.active() {
			return notValid(libvirt.FROM_NETWORK, "network is already active")
		}

		h.startNetworkLocked(found)

		return nil
	})
}

func (h *Hypervisor) startNetworkLocked(n *network) {
	n.live = cloneNetwork(n.def)
	h.networkEventLocked(n, libvirt.NETWORK_EVENT_STARTED)
}

// Destroy makes the network inactive.
func (n *Network) Destroy() error {
	h := n.conn.h

	return n.do("Destroy", func(found *network) error {
		if !found.active() {
			return notValid(libvirt.FROM_NETWORK, "network '%s' is not active", found.name)
		}

		found.live, found.leases = nil, nil
		h.networkEventLocked(found, libvirt.NETWORK_EVENT_STOPPED)
		h.forgetNetworkLocked(found)

		return nil
	})
}

// forgetNetworkLocked drops a network that is neither active nor defined.
func (h *Hypervisor) forgetNetworkLocked(n *network) {
	if n.active() || n.def != nil {
		return
	}

	for _, host := range n.hosts {
		h.goneLocked("dhcp-host", host)
	}

	delete(h.networks, n.name)
	h.goneLocked("network", n.name)
}

// Undefine makes a network forgotten, once it is inactive.
func (n *Network) Undefine() error {
	h := n.conn.h

	return n.do("Undefine", func(found *network) error {
		if found.def == nil {
			return notValid(libvirt.FROM_NETWORK, "can't undefine transient network")
		}

		found.def, found.autostart = nil, false
		h.networkEventLocked(found, libvirt.NETWORK_EVENT_UNDEFINED)
		h.forgetNetworkLocked(found)

		return nil
	})
}

func cloneNetwork(def *libvirtxml.Network) *libvirtxml.Network {
	text, err := def.Marshal()
	if err != nil {
		panic(err) // It came out of a document.
	}

	c := &libvirtxml.Network{}
	if err := c.Unmarshal(text); err != nil {
		panic(err) // See above.
	}

	return c
}

// checkInterfacesLocked refuses interfaces on networks that are not there.
func (h *Hypervisor) checkInterfacesLocked(def *libvirtxml.Domain) error {
	for _, nic := range def.Devices.Interfaces {
		switch source := nic.Source; {
		case source == nil:
			continue
		case source.Bridge != nil && !h.hasInterfaceLocked(source.Bridge.Bridge):
			return system(libvirt.FROM_NONE, noDeviceThere, "Cannot get interface MTU on '%s'", source.Bridge.Bridge)
		case source.Direct != nil && !h.hasInterfaceLocked(source.Direct.Dev):
			return system(libvirt.FROM_NONE, noDeviceThere, "Unable to get index for interface %s", source.Direct.Dev)
		case source.Network == nil:
			continue
		}

		n, ok := h.networks[nic.Source.Network.Network]

		switch {
		case !ok:
			return noNetwork(nic.Source.Network.Network)
		case !n.active():
			return notValid(libvirt.FROM_NETWORK, "network '%s' is not active", n.name)
		}
	}

	return nil
}

// hasInterfaceLocked says whether the host has a network interface.
func (h *Hypervisor) hasInterfaceLocked(name string) bool {
	if slices.Contains(h.opts.Host.Interfaces, name) {
		return true
	}

	for _, n := range h.networks {
		if n.active() && n.live.Bridge != nil && n.live.Bridge.Name == name {
			return true
		}
	}

	return false
}
