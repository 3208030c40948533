package hypervisor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// reserveTries is how often an address is chosen: somebody else may take it first, which libvirt notices.
const reserveTries = 5

// ReserveAddresses makes the networks keep an address for each interface whose class asks for one. The domain is there already: it
// is how removal knows hardware addresses that the class has set.
func (b Builder) ReserveAddresses(ctx context.Context, _ driver.Task) error {
	return b.locked(ctx, func(ctx context.Context) error {
		for i, want := range b.data.Reservations(b.req.Identity) {
			if err := b.h.reserve(ctx, b.names.Domain, want); err != nil {
				return fmt.Errorf("network_interfaces[%d].dhcp_reservation: %w", i, err)
			}
		}

		return nil
	})
}

func (h *Host) reserve(ctx context.Context, domain string, want machine.Reservation) error {
	what := fmt.Sprintf("reserve an address of network %q for domain %q", want.Network, domain)

	return connection.Do(ctx, h.conn, what, func(c connection.Connect) error {
		n, err := c.LookupNetworkByName(want.Network)
		if err != nil {
			return err
		}

		defer func() { _ = n.Free() }()

		for try := 1; ; try++ {
			err := reserveIn(n, want)
			if !connection.Is(err, libvirt.ERR_OPERATION_INVALID) || try == reserveTries {
				return err
			}
		}
	})
}

// scope is one of the two descriptions that a network has, of which somebody may have changed one alone: what it does now, and what it
// does when it is started the next time.
type scope struct {
	libvirt.NetworkUpdateFlags
	machine.Network
}

func scopes(n connection.Network) ([]scope, error) {
	active, err := n.IsActive()
	if err != nil {
		return nil, err
	}

	persistent, err := n.IsPersistent()
	if err != nil {
		return nil, err
	}

	var all []scope

	for _, one := range []struct {
		is   bool
		desc libvirt.NetworkXMLFlags
		scope
	}{
		{active, 0, scope{NetworkUpdateFlags: libvirt.NETWORK_UPDATE_AFFECT_LIVE}},
		{persistent, libvirt.NETWORK_XML_INACTIVE, scope{NetworkUpdateFlags: libvirt.NETWORK_UPDATE_AFFECT_CONFIG}},
	} {
		if !one.is {
			continue
		}

		desc, err := n.GetXMLDesc(one.desc)
		if connection.Is(err, libvirt.ERR_INVALID_ARG) {
			continue // libvirt's own simulation has one description, which it gives without the flag.
		}

		if err != nil {
			return nil, err
		}

		if one.scope.Network, err = machine.ParseNetwork(desc); err != nil {
			return nil, err
		}

		all = append(all, one.scope)
	}

	return all, nil
}

func reserveIn(n connection.Network, want machine.Reservation) error {
	all, err := scopes(n)
	if err != nil || len(all) == 0 {
		return err
	}

	chosen, err := choose(n, want, all)
	if err != nil {
		return err
	}

	for _, s := range all {
		if slices.Contains(s.Reserved, chosen) {
			continue
		}

		for _, r := range s.Reserved {
			if r.MAC == want.MAC {
				// The class was changed before the machine first started.
				if err := s.update(n, libvirt.NETWORK_UPDATE_COMMAND_DELETE, r); err != nil {
					return err
				}
			}
		}

		if err := s.update(n, libvirt.NETWORK_UPDATE_COMMAND_ADD_LAST, chosen); err != nil {
			return err
		}
	}

	return nil
}

// choose returns the reservation with its address: the one that it has already, or a free one.
func choose(n connection.Network, want machine.Reservation, all []scope) (machine.Reservation, error) {
	is := all[0].Network
	is.Reserved = nil

	for _, s := range all {
		for _, r := range s.Reserved {
			switch {
			case r.MAC != want.MAC:
				is.Reserved = append(is.Reserved, r)
			case r.Name == want.Name && r.Address.IsValid() && (!want.Address.IsValid() || r.Address == want.Address):
				return r, nil
			}
		}
	}

	leased, err := leases(n, want.MAC)
	if err != nil {
		return want, err
	}

	return is.Choose(want, leased)
}

// update changes an entry of the network in one of its descriptions.
func (s scope) update(n connection.Network, command libvirt.NetworkUpdateCommand, r machine.Reservation) error {
	element, err := r.XML()
	if err != nil {
		return err
	}

	return n.Update(command, libvirt.NETWORK_SECTION_IP_DHCP_HOST, -1, element, s.NetworkUpdateFlags)
}

// leases are the addresses that machines with other hardware addresses have.
func leases(n connection.Network, except string) ([]netip.Addr, error) {
	all, err := n.GetDHCPLeases()
	if err != nil && !connection.Is(err, libvirt.ERR_NO_SUPPORT) {
		return nil, err
	}

	var leased []netip.Addr

	for _, lease := range all {
		if a, err := netip.ParseAddr(lease.IPaddr); err == nil && lease.Mac != except {
			leased = append(leased, a)
		}
	}

	return leased, nil
}

// removeReservations takes the machine's entries out of all networks.
func (h *Host) removeReservations(ctx context.Context, ref driver.Ref, own *domain) error {
	var addresses []string

	// The provider reserves nothing for a machine that another program made.
	if own != nil && !own.mark.Adopted() {
		desc, err := domainCall(ctx, h, ref, "describe", func(_ connection.Connect, dom connection.Domain) (string, error) { return dom.GetXMLDesc(0) })
		if err != nil && !driver.IsNotFound(err) {
			return err
		}

		if err == nil {
			if addresses, err = machine.DomainMACs(desc); err != nil {
				return err
			}
		}
	}

	id := driver.NewIdentity(ref)

	return connection.Do(ctx, h.conn, "remove the DHCP reservations of "+machine.NamesOf(ref).Domain, func(c connection.Connect) error {
		networks, err := c.ListAllNetworks(0)
		if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
			return nil
		}

		if err != nil {
			return err
		}

		for _, n := range networks {
			if oneErr := removeFrom(n, id, addresses); oneErr != nil && !connection.Is(oneErr, libvirt.ERR_NO_NETWORK) {
				err = oneErr
			}

			_ = n.Free()
		}

		return err
	})
}

func removeFrom(n connection.Network, id driver.Identity, addresses []string) error {
	all, err := scopes(n)
	if err != nil {
		return err
	}

	for _, s := range all {
		for _, r := range machine.OwnReservations(id, s.Network, addresses) {
			if err := s.update(n, libvirt.NETWORK_UPDATE_COMMAND_DELETE, r); err != nil {
				return err
			}
		}
	}

	return nil
}

func readNetwork(n connection.Network) (machine.Network, error) {
	desc, err := n.GetXMLDesc(0)
	if err != nil {
		return machine.Network{}, err
	}

	return machine.ParseNetwork(desc)
}

// macs are the hardware addresses of the request's machine.
func macs(data machine.ClassData, req driver.Request) []string {
	addresses := data.MACs(req.Identity)
	out := make([]string, len(addresses))

	for i, address := range addresses {
		out[i] = address.String()
	}

	return out
}
