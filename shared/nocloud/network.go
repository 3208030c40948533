package nocloud

import (
	"fmt"
	"net"
	"net/netip"

	"go.yaml.in/yaml/v4"
)

// Interface is how one network interface is set up.
type Interface struct {
	// MAC says which interface is meant.
	MAC net.HardwareAddr
	// Addresses are the interface's own, with the length of their network's prefix. Without any it uses DHCP for IPv4.
	Addresses []netip.Prefix
	// Gateways are the default routes, at most one each for IPv4 and IPv6, in families that Addresses has.
	Gateways []netip.Addr
	// Nameservers and Search are for DNS.
	Nameservers []netip.Addr
	Search      []string
	// MTU is left to the system when zero.
	MTU int
}

// The netplan-like format of version 2, as far as it is used. Talos reads it without cloud-init's outer "network" key, and
// takes a hostname from the meta-data only when there is a network configuration, so there always is one.
type networkV2 struct {
	Version   int                 `yaml:"version"`
	Ethernets map[string]ethernet `yaml:"ethernets,omitempty"`
}

type ethernet struct {
	Match struct {
		MAC string `yaml:"macaddress"`
	} `yaml:"match"`
	DHCP4       bool         `yaml:"dhcp4,omitempty"`
	Addresses   []string     `yaml:"addresses,omitempty"`
	Gateway4    string       `yaml:"gateway4,omitempty"`
	Gateway6    string       `yaml:"gateway6,omitempty"`
	MTU         int          `yaml:"mtu,omitempty"`
	Nameservers *nameservers `yaml:"nameservers,omitempty"`
}

type nameservers struct {
	Search    []string `yaml:"search,omitempty"`
	Addresses []string `yaml:"addresses,omitempty"`
}

func networkConfig(interfaces []Interface) ([]byte, error) {
	config := networkV2{Version: 2}
	seen := map[string]int{}

	for i, nic := range interfaces {
		entry, err := nic.ethernet()
		if err != nil {
			return nil, fmt.Errorf("interfaces[%d].%w", i, err)
		}

		if other, ok := seen[entry.Match.MAC]; ok {
			return nil, fmt.Errorf("interfaces[%d].mac: %s is taken by interfaces[%d]", i, entry.Match.MAC, other)
		}

		seen[entry.Match.MAC] = i

		if config.Ethernets == nil {
			config.Ethernets = map[string]ethernet{}
		}

		// The key is the name that Talos' nocloud images give the interface; what counts is the match.
		config.Ethernets[fmt.Sprintf("eth%d", i)] = entry
	}

	out, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", NetworkConfig, err)
	}

	return out, nil
}

func (nic Interface) ethernet() (ethernet, error) {
	entry := ethernet{DHCP4: len(nic.Addresses) == 0, MTU: nic.MTU}
	entry.Match.MAC = nic.MAC.String()

	if len(nic.MAC) != 6 || nic.MAC[0]&1 != 0 {
		return entry, fmt.Errorf("mac: %q is not the hardware address of one interface: want six bytes, the first one even", nic.MAC)
	}

	if nic.MTU != 0 && (nic.MTU < 576 || nic.MTU > 65535) {
		return entry, fmt.Errorf("mtu: got %d, want 576 to 65535, or 0 for the system's own", nic.MTU)
	}

	var hasFamily struct{ v4, v6 bool }

	for i, address := range nic.Addresses {
		if !address.IsValid() || !address.Addr().IsGlobalUnicast() && !address.Addr().IsLinkLocalUnicast() {
			return entry, fmt.Errorf("addresses[%d]: %q cannot be an interface's address: want one like 192.0.2.7/24", i, address)
		}

		hasFamily.v4 = hasFamily.v4 || address.Addr().Is4()
		hasFamily.v6 = hasFamily.v6 || address.Addr().Is6()
		entry.Addresses = append(entry.Addresses, address.String())
	}

	for i, gateway := range nic.Gateways {
		target, reachable := &entry.Gateway4, hasFamily.v4
		if gateway.Is6() {
			target, reachable = &entry.Gateway6, hasFamily.v6
		}

		switch {
		case !gateway.IsValid() || gateway.IsUnspecified() || gateway.IsMulticast() || gateway.IsLoopback():
			return entry, fmt.Errorf("gateways[%d]: %q cannot be a gateway", i, gateway)
		case !reachable:
			return entry, fmt.Errorf("gateways[%d]: %s needs an address of its family in addresses", i, gateway)
		case *target != "":
			return entry, fmt.Errorf("gateways[%d]: %s is a second gateway of its family, the first is %s", i, gateway, *target)
		}

		*target = gateway.String()
	}

	if len(nic.Nameservers)+len(nic.Search) > 0 {
		entry.Nameservers = &nameservers{Search: nic.Search}
	}

	for i, server := range nic.Nameservers {
		if !server.IsValid() {
			return entry, fmt.Errorf("nameservers[%d]: no address given", i)
		}

		entry.Nameservers.Addresses = append(entry.Nameservers.Addresses, server.String())
	}

	return entry, nil
}
