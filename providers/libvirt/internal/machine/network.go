package machine

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Network is what a libvirt network can do for machines.
type Network struct {
	Name       string
	Portgroups []string
	// TagsVLANs says that an interface on it can have a VLAN tag of its own: it lies on Open vSwitch.
	TagsVLANs bool
	// Subnet is what its DHCP server serves, Gateway its own address there; zero for none.
	Subnet  netip.Prefix
	Gateway netip.Addr
	// Ranges are what DHCP gives out; Reserved are the entries for single machines.
	Ranges   []AddressRange
	Reserved []Reservation
}

// AddressRange is a range of addresses with both ends.
type AddressRange struct{ First, Last netip.Addr }

func (r AddressRange) contains(a netip.Addr) bool { return !a.Less(r.First) && !r.Last.Less(a) }

// Reservation is the entry of a libvirt network that keeps an address for a machine.
type Reservation struct {
	// Network is the network's name.
	Network string
	MAC     string
	// Name is the host name that DHCP tells the machine.
	Name string
	// Address is invalid for a free one: Network.Choose finds it.
	Address netip.Addr
}

// leaseMinutes is how long the lease of a reserved address lasts unless the machine renews it, which it does in half of that time. A
// lease outlives its machine, and nobody else gets the address until it has run out.
const leaseMinutes = 10

// XML is the element for virNetworkUpdate (section VIR_NETWORK_SECTION_IP_DHCP_HOST).
func (r Reservation) XML() (string, error) {
	host := libvirtxml.NetworkDHCPHost{MAC: r.MAC, Name: r.Name, Lease: &libvirtxml.NetworkDHCPLease{Expiry: leaseMinutes, Unit: "minutes"}}

	if r.Address.IsValid() {
		host.IP = r.Address.String()
	}

	out, err := xml.Marshal(host)
	if err != nil {
		return "", fmt.Errorf("describe the DHCP reservation of %s in network %q: %w", r.MAC, r.Network, err)
	}

	return string(out), nil
}

// Reservations are those that the class asks for, by the number of the interface. A machine has one name in each network, which
// is its first interface's there.
func (c ClassData) Reservations(id driver.Identity) map[int]Reservation {
	out := map[int]Reservation{}
	macs := c.MACs(id)

	var named []string

	for i, nic := range c.NetworkInterfaces {
		if !nic.DHCPReservation {
			continue
		}

		r := Reservation{Network: nic.Network(), MAC: macs[i].String(), Name: id.Hostname, Address: nic.DHCPAddress}
		if slices.Contains(named, r.Network) {
			r.Name = secondName(id, i)
		}

		named = append(named, r.Network)
		out[i] = r
	}

	return out
}

// secondName is that of interface number i where another one of the machine has its own name.
func secondName(id driver.Identity, i int) string { return fmt.Sprintf("%s-%d", id.Hostname, i) }

// OwnReservations picks the entries of a network that a machine of the request made: by the addresses that only this request gives
// and by those of its domain, if there is one, under the request's names.
func OwnReservations(id driver.Identity, n Network, domainMACs []string) []Reservation {
	derived := make([]string, 0, mostInterfaces)
	for i := range mostInterfaces {
		derived = append(derived, id.MAC(i).String())
	}

	names := []string{id.Hostname}
	for i := range mostInterfaces {
		names = append(names, secondName(id, i))
	}

	var own []Reservation

	for _, r := range n.Reserved {
		if slices.Contains(derived, r.MAC) || slices.Contains(names, r.Name) && slices.Contains(domainMACs, r.MAC) {
			own = append(own, r)
		}
	}

	return own
}

// mostInterfaces is the most that a class may have.
const mostInterfaces = 16

// DomainMACs reads the hardware addresses of the interfaces from a domain's description.
func DomainMACs(desc string) ([]string, error) {
	var domain libvirtxml.Domain
	if err := domain.Unmarshal(desc); err != nil {
		return nil, fmt.Errorf("read the description of a domain: %w", err)
	}

	if domain.Devices == nil {
		return nil, nil
	}

	var macs []string

	for _, nic := range domain.Devices.Interfaces {
		if nic.MAC == nil {
			continue
		}

		if mac, err := net.ParseMAC(nic.MAC.Address); err == nil {
			macs = append(macs, mac.String())
		}
	}

	return macs, nil
}

// ParseNetwork reads libvirt's description of a network.
func ParseNetwork(desc string) (Network, error) {
	var doc libvirtxml.Network
	if err := doc.Unmarshal(desc); err != nil {
		return Network{}, fmt.Errorf("read the description of a network: %w", err)
	}

	n := Network{Name: doc.Name, TagsVLANs: onOpenVSwitch(doc.VirtualPort)}

	for _, group := range doc.PortGroups {
		n.Portgroups = append(n.Portgroups, group.Name)
		n.TagsVLANs = n.TagsVLANs || onOpenVSwitch(group.VirtualPort)
	}

	for _, ip := range doc.IPs {
		if ip.DHCP != nil && ip.Family != "ipv6" && !n.Subnet.IsValid() {
			n.readDHCP(ip)
		}
	}

	return n, nil
}

func onOpenVSwitch(port *libvirtxml.NetworkVirtualPort) bool {
	return port != nil && port.Params != nil && port.Params.OpenVSwitch != nil
}

func (n *Network) readDHCP(ip libvirtxml.NetworkIP) {
	gateway, err := netip.ParseAddr(ip.Address)
	if err != nil || !gateway.Is4() {
		return
	}

	bits := int(ip.Prefix)

	if mask := net.ParseIP(ip.Netmask).To4(); mask != nil {
		bits, _ = net.IPMask(mask).Size()
	}

	prefix, err := gateway.Prefix(bits)
	if err != nil || bits == 0 {
		return
	}

	n.Subnet, n.Gateway = prefix, gateway

	for _, r := range ip.DHCP.Ranges {
		first, err := netip.ParseAddr(r.Start)
		last, err2 := netip.ParseAddr(r.End)

		if err == nil && err2 == nil {
			n.Ranges = append(n.Ranges, AddressRange{first, last})
		}
	}

	for _, host := range ip.DHCP.Hosts {
		r := Reservation{Network: n.Name, Name: host.Name}

		if mac, err := net.ParseMAC(host.MAC); err == nil {
			r.MAC = mac.String()
		}

		r.Address, _ = netip.ParseAddr(host.IP) // An entry may have none.
		n.Reserved = append(n.Reserved, r)
	}
}

// CheckNetwork says what interface number i asks of its libvirt network and the network cannot do. It is Terminal. own are the
// entries of the network that are the machine's already.
func (c ClassData) CheckNetwork(i int, n Network, own []Reservation) error {
	nic := c.NetworkInterfaces[i]

	var errs []error

	add := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("network_interfaces[%d].%s: %w", i, field, fmt.Errorf(format, args...)))
	}

	if nic.Portgroup != "" && !slices.Contains(n.Portgroups, nic.Portgroup) {
		add("portgroup", "network %q has no port group %q%s", n.Name, nic.Portgroup, has(n.Portgroups))
	}

	if nic.VLAN != 0 && !n.TagsVLANs {
		add("vlan", "network %q does not lie on Open vSwitch and cannot tag traffic: want a port group or a bridge that can", n.Name)
	}

	switch {
	case !nic.DHCPReservation:
	case !n.Subnet.IsValid():
		add("dhcp_reservation", "network %q has no DHCP server for IPv4 of libvirt: leave it out, or reserve the address where the network gets them from", n.Name)
	case nic.DHCPAddress.IsValid():
		if err := n.checkAddress(nic.DHCPAddress, own); err != nil {
			add("dhcp_address", "%w", err)
		}
	}

	if err := errors.Join(errs...); err != nil {
		return driver.Terminal(err)
	}

	return nil
}

func (n Network) checkAddress(a netip.Addr, own []Reservation) error {
	if !n.Subnet.Contains(a) || a == n.Gateway || a == n.Subnet.Masked().Addr() || a == last(n.Subnet) {
		return fmt.Errorf("got %s, want an address of a machine in %s of network %q", a, n.Subnet.Masked(), n.Name)
	}

	for _, r := range n.Reserved {
		if r.Address == a && !slices.Contains(own, r) {
			return fmt.Errorf("%s is kept for %s %s in network %q", a, r.MAC, r.Name, n.Name)
		}
	}

	return nil
}

// last is the broadcast address of an IPv4 subnet.
func last(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()

	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}

	return netip.AddrFrom4(a)
}

// Choose returns the reservation with a free address, if it has none yet: what the network already keeps for its hardware address,
// else the last address of the subnet, outside of the ranges first, that is neither kept for another machine nor leased. An error
// of kind Capacity says that there is none.
func (n Network) Choose(r Reservation, leased []netip.Addr) (Reservation, error) {
	if r.Address.IsValid() {
		return r, nil
	}

	var taken []netip.Addr

	for _, other := range n.Reserved {
		if other.MAC == r.MAC && other.Address.IsValid() {
			r.Address = other.Address

			return r, nil
		}

		taken = append(taken, other.Address)
	}

	if !n.Subnet.IsValid() {
		return r, driver.Terminalf("network %q has no DHCP server of libvirt that could keep an address for %s", n.Name, r.MAC)
	}

	taken = append(taken, leased...)

	for _, inRange := range []bool{false, true} {
		tries := 0

		for a := last(n.Subnet).Prev(); n.Subnet.Contains(a) && a != n.Subnet.Masked().Addr() && tries < mostTries; a = a.Prev() {
			tries++

			ranged := slices.ContainsFunc(n.Ranges, func(r AddressRange) bool { return r.contains(a) })
			if ranged == inRange && a != n.Gateway && !slices.Contains(taken, a) {
				r.Address = a

				return r, nil
			}
		}
	}

	return r, driver.Capacity(fmt.Errorf("network %q has no address left for %s: %d are kept for machines, %d leased", n.Name, r.MAC, len(n.Reserved), len(leased)))
}

// mostTries bounds the search in large subnets.
const mostTries = 1 << 16
