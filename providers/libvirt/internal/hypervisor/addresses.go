package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Why an interface has no known address.
const (
	// noLease: libvirt's own DHCP server has not given it one, or has taken it back.
	noLease = "no lease"
	// noAgent: somebody else gives addresses on its network, and no agent in the guest tells which.
	noAgent = "no guest agent"
)

// agentChannel is the name of the channel to the guest agent.
const agentChannel = "org.qemu.guest_agent.0"

// Addresses returns the network interfaces of the provider's domains that run. Leases are read once for each network. The guest is
// asked only for what they do not tell, and only where its agent is connected: one that hangs would keep the answer waiting. With
// an error it returns what it could see.
func (h *Host) Addresses(ctx context.Context, providerID string) (map[driver.Ref][]driver.Interface, error) {
	domains, err := h.domains(ctx, providerID)
	if err != nil {
		return nil, err
	}

	var (
		all  = map[driver.Ref][]driver.Interface{}
		nets = map[string]network{}
		errs []error
	)

	for _, own := range domains {
		if !own.active() {
			continue
		}

		nics, err := h.interfaces(ctx, own, nets)
		if err != nil && !driver.IsNotFound(err) {
			errs = append(errs, err)

			continue
		}

		if len(nics) > 0 {
			all[own.mark.Ref()] = nics
		}
	}

	return all, errors.Join(errs...)
}

// interfaces returns the network interfaces of a domain that runs. nets keeps what was read of networks.
func (h *Host) interfaces(ctx context.Context, own *domain, nets map[string]network) ([]driver.Interface, error) {
	doc, err := h.describe(ctx, own)
	if err != nil || doc.Devices == nil {
		return nil, err
	}

	nics := make([]driver.Interface, 0, len(doc.Devices.Interfaces))
	missing := false

	for _, nic := range doc.Devices.Interfaces {
		if nic.MAC == nil {
			continue
		}

		one := driver.Interface{MAC: strings.ToLower(nic.MAC.Address), Missing: noAgent}

		if nic.Source != nil && nic.Source.Network != nil {
			name := nic.Source.Network.Network

			net, ok := nets[name]
			if !ok {
				if net, err = h.network(ctx, name); err != nil {
					return nil, err
				}

				nets[name] = net
			}

			if one.IPs = net.leases[one.MAC]; len(one.IPs) > 0 {
				one.Source, one.Missing = "lease", ""
			} else if net.dhcp {
				one.Missing = noLease
			}
		}

		missing = missing || len(one.IPs) == 0
		nics = append(nics, one)
	}

	if missing && agentAnswers(doc) {
		h.askAgent(ctx, own, nics)
	}

	return nics, nil
}

// describe returns a domain's description as it runs.
func (h *Host) describe(ctx context.Context, own *domain) (*libvirtxml.Domain, error) {
	return connection.Call(ctx, h.conn, fmt.Sprintf("look at domain %q", own.name), func(c connection.Connect) (*libvirtxml.Domain, error) {
		dom, err := c.LookupDomainByUUIDString(own.uuid)
		if err != nil {
			return nil, err
		}

		defer func() { _ = dom.Free() }()

		desc, err := dom.GetXMLDesc(0)
		if err != nil {
			return nil, err
		}

		doc := &libvirtxml.Domain{}
		if err := doc.Unmarshal(desc); err != nil {
			return nil, fmt.Errorf("read its description: %w", err)
		}

		return doc, nil
	})
}

func agentAnswers(doc *libvirtxml.Domain) bool {
	return slices.ContainsFunc(doc.Devices.Channels, func(ch libvirtxml.DomainChannel) bool {
		return ch.Target != nil && ch.Target.VirtIO != nil && ch.Target.VirtIO.Name == agentChannel && ch.Target.VirtIO.State == "connected"
	})
}

// askAgent adds what the guest says of the interfaces without an address. A guest that does not answer soon is no error.
func (h *Host) askAgent(ctx context.Context, own *domain, nics []driver.Interface) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()

	told, err := connection.Call(ctx, h.conn, fmt.Sprintf("ask the guest of domain %q for its addresses", own.name), func(c connection.Connect) (map[string][]netip.Addr, error) {
		dom, err := c.LookupDomainByUUIDString(own.uuid)
		if err != nil {
			return nil, err
		}

		defer func() { _ = dom.Free() }()

		interfaces, err := dom.ListAllInterfaceAddresses(libvirt.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
		if err != nil {
			return nil, err
		}

		told := map[string][]netip.Addr{}

		for _, nic := range interfaces {
			for _, addr := range nic.Addrs {
				// Every interface has a link-local address; it is of no use to who asks from elsewhere.
				if ip, err := netip.ParseAddr(addr.Addr); err == nil && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() {
					told[strings.ToLower(nic.Hwaddr)] = append(told[strings.ToLower(nic.Hwaddr)], ip)
				}
			}
		}

		return told, nil
	})
	if err != nil {
		return
	}

	for i, nic := range nics {
		if ips := told[nic.MAC]; len(nic.IPs) == 0 && len(ips) > 0 {
			nics[i].IPs, nics[i].Source, nics[i].Missing = ips, "agent", ""
		}
	}
}

// network is what a virtual network's DHCP server knows.
type network struct {
	// dhcp says that it has one.
	dhcp bool
	// leases are the addresses that are leased now, by hardware address, the newest first.
	leases map[string][]netip.Addr
}

func (h *Host) network(ctx context.Context, name string) (network, error) {
	type read struct {
		desc   string
		leases []libvirt.NetworkDHCPLease
	}

	got, err := connection.Call(ctx, h.conn, fmt.Sprintf("read the leases of network %q", name), func(c connection.Connect) (read, error) {
		net, err := c.LookupNetworkByName(name)
		if connection.Is(err, libvirt.ERR_NO_NETWORK) {
			// Its guests run on, without it.
			return read{}, nil
		}

		if err != nil {
			return read{}, err
		}

		defer func() { _ = net.Free() }()

		var got read

		if got.desc, err = net.GetXMLDesc(0); err != nil {
			return read{}, err
		}

		// A hypervisor whose networks lease nothing says so, or that it is not active.
		got.leases, err = net.GetDHCPLeases()
		if connection.Is(err, libvirt.ERR_NO_SUPPORT, libvirt.ERR_OPERATION_UNSUPPORTED, libvirt.ERR_OPERATION_INVALID) {
			err = nil
		}

		return got, err
	})
	if err != nil || got.desc == "" {
		return network{}, err
	}

	var doc libvirtxml.Network
	if err := doc.Unmarshal(got.desc); err != nil {
		return network{}, fmt.Errorf("read the description of network %q: %w", name, err)
	}

	net := network{
		dhcp:   slices.ContainsFunc(doc.IPs, func(ip libvirtxml.NetworkIP) bool { return ip.DHCP != nil }),
		leases: map[string][]netip.Addr{},
	}

	// A guest that was set up anew may have asked under another client id: its old lease is there until it expires.
	slices.SortStableFunc(got.leases, func(a, b libvirt.NetworkDHCPLease) int { return b.ExpiryTime.Compare(a.ExpiryTime) })

	for _, lease := range got.leases {
		if ip, err := netip.ParseAddr(lease.IPaddr); err == nil {
			mac := strings.ToLower(lease.Mac)
			net.leases[mac] = append(net.leases[mac], ip)
		}
	}

	return net, nil
}
