package provider

import (
	"context"
	"fmt"
	"slices"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// host is what the hypervisor can do for machines of one architecture.
type host struct {
	// Type is the type of domain: "kvm", or "qemu" where the processor has to be emulated.
	Type string
	// CPU is the mode in which the machine gets its processor; empty leaves it to libvirt.
	CPU string
	// UEFI says that there is firmware for it.
	UEFI bool
}

// emulated says whether machines run much slower than the host does.
func (h host) emulated() bool { return h.Type == "qemu" }

// libvirtArch and machineType are what libvirt calls the architectures, and the boards that their machines get.
var (
	libvirtArch = map[driver.Arch]string{driver.AMD64: "x86_64", driver.ARM64: "aarch64"}
	machineType = map[driver.Arch]string{driver.AMD64: "q35", driver.ARM64: "virt"}
)

// host asks libvirt what it can do.
func (d *Driver) host(ctx context.Context, arch driver.Arch) (host, error) {
	found, err := connection.Call(ctx, d.conn, "ask for the hypervisor's capabilities for "+string(arch), func(c *libvirt.Connect) (host, error) {
		desc, err := c.GetDomainCapabilities("", libvirtArch[arch], machineType[arch], "", 0)
		if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
			// libvirt's own simulation takes any domain of its type.
			return host{Type: "test", UEFI: true}, nil
		}

		if err != nil {
			return host{}, err
		}

		return parseHost(desc)
	})
	if connection.Is(err, libvirt.ERR_INVALID_ARG, libvirt.ERR_CONFIG_UNSUPPORTED) {
		return host{}, driver.Terminalf("arch: the hypervisor has no emulator for %s: %w", arch, err)
	}

	return found, err
}

// parseHost reads libvirt's domain capabilities.
func parseHost(desc string) (host, error) {
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(desc); err != nil {
		return host{}, fmt.Errorf("read the domain capabilities: %w", err)
	}

	found := host{Type: caps.Domain}

	if caps.OS != nil {
		for _, enum := range caps.OS.Enums {
			found.UEFI = found.UEFI || enum.Name == "firmware" && slices.Contains(enum.Values, "efi")
		}
	}

	// The host's own processor, or all that the emulator has: Talos needs x86-64-v2, which the default model lacks.
	modes := []string{"host-passthrough", "host-model"}
	if found.emulated() {
		modes = []string{"maximum"}
	}

	for _, mode := range modes {
		if caps.CPU != nil && slices.ContainsFunc(caps.CPU.Modes, func(m libvirtxml.DomainCapsCPUMode) bool {
			return m.Name == mode && m.Supported == "yes"
		}) {
			found.CPU = mode

			break
		}
	}

	return found, nil
}

// checkNetwork refuses a libvirt network that the class cannot mean.
func (d *Driver) checkNetwork(ctx context.Context, path, name string) error {
	type network struct {
		found, active bool
		others        []string
	}

	got, err := connection.Call(ctx, d.conn, fmt.Sprintf("look up network %q", name), func(c *libvirt.Connect) (network, error) {
		n, err := c.LookupNetworkByName(name)
		if connection.Is(err, libvirt.ERR_NO_NETWORK) {
			others, err := networkNames(c)

			return network{others: others}, err
		}

		if err != nil {
			return network{}, err
		}

		defer func() { _ = n.Free() }()

		active, err := n.IsActive()

		return network{found: true, active: active}, err
	})

	switch {
	case err != nil:
		return err
	case !got.found:
		return driver.Terminalf("%s: libvirt has no network %q; it has %s", path, name, list(got.others))
	case !got.active:
		return fmt.Errorf("network %q is not active; start it: virsh net-start %s", name, name)
	default:
		return nil
	}
}

func networkNames(c *libvirt.Connect) ([]string, error) {
	networks, err := c.ListAllNetworks(0)
	if err != nil {
		return nil, err
	}

	names := make([]string, 0, len(networks))

	for i := range networks {
		name, err := networks[i].GetName()
		_ = networks[i].Free()

		if err != nil {
			return nil, err
		}

		names = append(names, name)
	}

	slices.Sort(names)

	return names, nil
}
