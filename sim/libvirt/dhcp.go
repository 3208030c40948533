package libvirt

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// GetDHCPLeases returns the leases that guests hold.
func (n *Network) GetDHCPLeases() ([]libvirt.NetworkDHCPLease, error) {
	return networkCall(n, "GetDHCPLeases", "", func(found *network) ([]libvirt.NetworkDHCPLease, error) {
		return slices.Clone(found.leases), nil
	})
}

// Update changes the reservations of the network's DHCP server. Other sections are not modelled.
func (n *Network) Update(cmd libvirt.NetworkUpdateCommand, section libvirt.NetworkUpdateSection, parentIndex int, doc string, flags libvirt.NetworkUpdateFlags) error {
	h := n.conn.h

	_, err := networkCall(n, "Update", doc, func(found *network) (none, error) {
		if section != libvirt.NETWORK_SECTION_IP_DHCP_HOST {
			return none{}, failure(libvirt.ERR_OPERATION_UNSUPPORTED, libvirt.FROM_NETWORK, "Operation not supported: this simulation changes DHCP hosts only")
		}

		host := libvirtxml.NetworkDHCPHost{}
		if err := xml.Unmarshal([]byte(doc), &host); err != nil {
			return none{}, malformed(libvirt.FROM_NETWORK, "network_update", err)
		}

		var defs []*libvirtxml.Network

		live, config := flags&libvirt.NETWORK_UPDATE_AFFECT_LIVE != 0, flags&libvirt.NETWORK_UPDATE_AFFECT_CONFIG != 0

		if !live && !config {
			live, config = found.active(), !found.active()
		}

		switch {
		case live && !found.active():
			return none{}, notValid(libvirt.FROM_NETWORK, "network is not running")
		case config && found.def == nil:
			return none{}, notValid(libvirt.FROM_NETWORK, "cannot change persistent config of a transient network")
		}

		if config {
			defs = append(defs, found.def)
		}

		if live {
			defs = append(defs, found.live)
		}

		changed := make([][]libvirtxml.NetworkDHCPHost, len(defs))

		for i, def := range defs {
			hosts, err := changeHosts(def, cmd, parentIndex, host)
			if err != nil {
				return none{}, err
			}

			changed[i] = hosts
		}

		for i, def := range defs {
			dhcpOf(def, parentIndex).DHCP.Hosts = changed[i]
		}

		h.bookHostsLocked(found)

		return none{}, nil
	})

	return err
}

// bookHostsLocked keeps the books of reservations, running or defined.
func (h *Hypervisor) bookHostsLocked(n *network) {
	now := map[string]string{}

	for _, def := range []*libvirtxml.Network{n.def, n.live} {
		if def == nil {
			continue
		}

		for _, ip := range def.IPs {
			if ip.DHCP == nil {
				continue
			}

			for _, host := range ip.DHCP.Hosts {
				now[n.name+"/"+strings.ToLower(cmp.Or(host.MAC, host.IP))] = host.Name
			}
		}
	}

	for _, id := range n.hosts {
		if _, still := now[id]; !still {
			h.goneLocked("dhcp-host", id)
		}
	}

	for _, id := range slices.Sorted(maps.Keys(now)) {
		if !slices.Contains(n.hosts, id) {
			h.madeLocked(ledger.Object{Kind: "dhcp-host", ID: id, Name: now[id]})
		}
	}

	n.hosts = slices.Sorted(maps.Keys(now))
}

// dhcpOf returns the address of the network with that number that has a DHCP server; -1 is any.
func dhcpOf(def *libvirtxml.Network, index int) *libvirtxml.NetworkIP {
	for i := range def.IPs {
		if (index < 0 || index == i) && (def.IPs[i].DHCP != nil || index == i) {
			return &def.IPs[i]
		}
	}

	if index < 0 && len(def.IPs) > 0 {
		return &def.IPs[0]
	}

	return nil
}

// changeHosts returns the reservations after a change.
func changeHosts(def *libvirtxml.Network, cmd libvirt.NetworkUpdateCommand, index int, host libvirtxml.NetworkDHCPHost) ([]libvirtxml.NetworkDHCPHost, error) {
	ip := dhcpOf(def, index)
	if ip == nil {
		return nil, notValid(libvirt.FROM_NETWORK, "couldn't find an <ip> element to update in network '%s'", def.Name)
	}

	if ip.DHCP == nil {
		ip.DHCP = &libvirtxml.NetworkDHCP{}
	}

	if host.MAC == "" && host.IP == "" && host.Name == "" {
		return nil, xmlError(libvirt.FROM_NETWORK, "Missing IP address in static host definition for network '%s'", def.Name)
	}

	hosts := slices.Clone(ip.DHCP.Hosts)
	same := func(a, b string) bool { return a != "" && strings.EqualFold(a, b) }
	at := slices.IndexFunc(hosts, func(o libvirtxml.NetworkDHCPHost) bool {
		return same(o.MAC, host.MAC) || same(o.IP, host.IP) || same(o.Name, host.Name)
	})

	switch cmd {
	case libvirt.NETWORK_UPDATE_COMMAND_ADD_FIRST, libvirt.NETWORK_UPDATE_COMMAND_ADD_LAST:
		if at >= 0 {
			return nil, notValid(libvirt.FROM_NETWORK, "there is an existing dhcp host entry in network '%s' that matches \"<host mac='%s' name='%s' ip='%s'/>\"",
				def.Name, host.MAC, cmp.Or(host.Name, "(null)"), cmp.Or(host.IP, "(null)"))
		}

		if cmd == libvirt.NETWORK_UPDATE_COMMAND_ADD_FIRST {
			return slices.Insert(hosts, 0, host), nil
		}

		return append(hosts, host), nil
	case libvirt.NETWORK_UPDATE_COMMAND_MODIFY:
		at = slices.IndexFunc(hosts, func(o libvirtxml.NetworkDHCPHost) bool { return same(o.MAC, host.MAC) || same(o.Name, host.Name) })
		if at < 0 {
			return nil, notValid(libvirt.FROM_NETWORK, "couldn't locate an existing dhcp host entry with \"mac='%s'\" in network '%s'", host.MAC, def.Name)
		}

		hosts[at] = host

		return hosts, nil
	case libvirt.NETWORK_UPDATE_COMMAND_DELETE:
		at = slices.IndexFunc(hosts, func(o libvirtxml.NetworkDHCPHost) bool {
			return (host.MAC == "" || same(o.MAC, host.MAC)) && (host.IP == "" || same(o.IP, host.IP)) && (host.Name == "" || same(o.Name, host.Name))
		})
		if at < 0 {
			return nil, notValid(libvirt.FROM_NETWORK, "couldn't locate a matching dhcp host entry in network '%s'", def.Name)
		}

		return slices.Delete(hosts, at, at+1), nil
	default:
		return nil, invalidArgument(libvirt.FROM_NETWORK, "unrecognized network update command code %d", cmd)
	}
}

// leaseTime is how long a lease lasts, as dnsmasq has it.
const leaseTime = time.Hour

// leaseLocked gives a guest that boots addresses on the networks of libvirt's own.
func (h *Hypervisor) leaseLocked(m *machine) {
	for _, nic := range m.live.Devices.Interfaces {
		if nic.Source == nil || nic.Source.Network == nil {
			continue
		}

		n := h.networks[nic.Source.Network.Network]
		if n == nil || !n.active() {
			continue
		}

		for i := range n.live.IPs {
			if n.live.IPs[i].DHCP != nil {
				n.lease(&n.live.IPs[i], nic.MAC.Address, m.name)
			}
		}
	}
}

// lease gives out the address that is reserved for the hardware address, or that it had before, or a free one.
func (n *network) lease(ip *libvirtxml.NetworkIP, mac, hostname string) {
	n.leases = slices.DeleteFunc(n.leases, func(l libvirt.NetworkDHCPLease) bool { return time.Now().After(l.ExpiryTime) })

	address := ""

	for _, l := range n.leases {
		if l.Mac == mac {
			address = l.IPaddr
		}
	}

	for _, host := range ip.DHCP.Hosts {
		if strings.EqualFold(host.MAC, mac) && host.IP != "" {
			address = host.IP
		}
	}

	if address == "" {
		address = n.freeAddress(ip)
	}

	n.leases = slices.DeleteFunc(n.leases, func(l libvirt.NetworkDHCPLease) bool { return l.Mac == mac })

	if address == "" {
		return
	}

	n.leases = append(n.leases, libvirt.NetworkDHCPLease{
		Iface: n.live.Bridge.Name, ExpiryTime: time.Now().Add(leaseTime), Type: libvirt.IP_ADDR_TYPE_IPV4,
		Mac: mac, IPaddr: address, Prefix: prefixOf(ip), Hostname: hostname,
	})
}

func prefixOf(ip *libvirtxml.NetworkIP) uint {
	if ip.Prefix != 0 {
		return ip.Prefix
	}

	mask, err := netip.ParseAddr(ip.Netmask)
	if err != nil {
		return 24
	}

	bits := uint(0)

	for _, b := range mask.AsSlice() {
		for ; b != 0; b <<= 1 {
			bits++
		}
	}

	return bits
}

func (n *network) freeAddress(ip *libvirtxml.NetworkIP) string {
	taken := func(address string) bool {
		return slices.ContainsFunc(n.leases, func(l libvirt.NetworkDHCPLease) bool { return l.IPaddr == address }) ||
			slices.ContainsFunc(ip.DHCP.Hosts, func(h libvirtxml.NetworkDHCPHost) bool { return h.IP == address })
	}

	for _, r := range ip.DHCP.Ranges {
		first, err := netip.ParseAddr(r.Start)
		if err != nil {
			continue
		}

		last, err := netip.ParseAddr(r.End)
		if err != nil {
			continue
		}

		for at := first; at.Compare(last) <= 0; at = at.Next() {
			if !taken(at.String()) {
				return at.String()
			}
		}
	}

	return ""
}

// ListAllInterfaceAddresses returns the addresses of the domain's interfaces, from leases or from the guest's agent.
func (d *Domain) ListAllInterfaceAddresses(src libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error) {
	return domainCall(d, "ListAllInterfaceAddresses", "", func(m *machine) ([]libvirt.DomainInterface, error) {
		if !m.active() {
			return nil, notRunning()
		}

		agent := src == libvirt.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT

		if err := m.askable(agent); err != nil {
			return nil, err
		}

		var out []libvirt.DomainInterface

		for i, nic := range m.live.Devices.Interfaces {
			one := libvirt.DomainInterface{Name: fmt.Sprintf("vnet%d", i), Hwaddr: nic.MAC.Address}
			if agent {
				one.Name = fmt.Sprintf("eth%d", i)
			}

			if nic.Source != nil && nic.Source.Network != nil {
				if n := d.conn.h.networks[nic.Source.Network.Network]; n != nil {
					one.Addrs = n.addressesOf(nic.MAC.Address)
				}
			}

			if agent || len(one.Addrs) > 0 {
				out = append(out, one)
			}
		}

		return out, nil
	})
}

func (n *network) addressesOf(mac string) []libvirt.DomainIPAddress {
	var out []libvirt.DomainIPAddress

	for _, l := range n.leases {
		if l.Mac == mac && !time.Now().After(l.ExpiryTime) {
			out = append(out, libvirt.DomainIPAddress{Type: l.Type, Addr: l.IPaddr, Prefix: l.Prefix})
		}
	}

	return out
}
