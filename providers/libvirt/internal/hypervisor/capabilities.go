package hypervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Suits says whether the host can hold the request's machine, which the class data describes: its rights, its pools, its networks
// and what the hypervisor can do. An error for what it does not have is Terminal and names the field; devices that others have are
// a matter of Capacity.
func (h *Host) Suits(ctx context.Context, req driver.Request, data machine.ClassData) error {
	checks := []func(context.Context) error{
		func(ctx context.Context) error { return h.suitsPool(ctx, "storage_pool", data.StoragePool, true) },
	}

	for i := range data.AdditionalDisks {
		if pool := data.PoolOf(i); pool != data.StoragePool {
			checks = append(checks, func(ctx context.Context) error {
				return h.suitsPool(ctx, fmt.Sprintf("additional_disks[%d].storage_pool", i), pool, false)
			})
		}
	}

	checks = append(checks, func(ctx context.Context) error {
		can, err := h.capabilities(ctx, req, data)
		if err != nil {
			return err
		}

		return data.CheckHost(can)
	}, func(ctx context.Context) error { return h.checkAddresses(ctx, req, data) })

	for i, nic := range data.NetworkInterfaces {
		if nic.Type == machine.TypeNetwork {
			checks = append(checks, func(ctx context.Context) error { return h.checkNetwork(ctx, req, data, i) })
		}
	}

	return together(ctx, checks...)
}

// together calls all at once, as libvirt may be slow to answer, and returns the first error in their order.
func together(ctx context.Context, fs ...func(context.Context) error) error {
	errs := make([]error, len(fs))

	var wg sync.WaitGroup

	for i, f := range fs {
		wg.Go(func() { errs[i] = f(ctx) })
	}

	wg.Wait()

	return cmp.Or(errs...)
}

// suitsPool refuses a storage pool that a field of the class cannot mean.
func (h *Host) suitsPool(ctx context.Context, field, pool string, images bool) error {
	if allowed := h.config.StoragePools; len(allowed) > 0 && !slices.Contains(allowed, pool) {
		return driver.Terminalf("%s: this provider may not use %q: want one of %q", field, pool, allowed)
	}

	if err := h.checkPool(ctx, pool, images); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}

	return nil
}

// checkAddresses refuses a hardware address that the class sets and that another domain has. Derived ones cannot collide.
func (h *Host) checkAddresses(ctx context.Context, req driver.Request, data machine.ClassData) error {
	for i, nic := range data.NetworkInterfaces {
		if nic.PhysicalAddress == "" {
			continue
		}

		address := data.MACs(req.Identity)[i].String()

		other, err := h.domainWithAddress(ctx, address, req.Identity.UUID)
		if err != nil {
			return err
		}

		if other != "" {
			// That machine may be on its way out, with this one in its place.
			return driver.Capacity(fmt.Errorf("network_interfaces[%d].physical_address: domain %q has %s; leave it out of classes for more than one machine",
				i, other, address))
		}
	}

	return nil
}

// capabilities asks libvirt what it can do for machines of the class, and what its host has for the request's.
func (h *Host) capabilities(ctx context.Context, req driver.Request, data machine.ClassData) (machine.Host, error) {
	return connection.Call(ctx, h.conn, "ask for the hypervisor's capabilities for "+string(data.Arch), func(c connection.Connect) (machine.Host, error) {
		var (
			docs machine.HostDocuments
			err  error
		)

		docs.Domain, err = c.GetDomainCapabilities("", machine.ArchName(data.Arch), machine.Board(data.Arch), "", 0)

		switch {
		case connection.Is(err, libvirt.ERR_NO_SUPPORT):
			// libvirt's own simulation takes any domain of its type.
			return machine.Host{Type: "test", UEFI: true}, nil
		case connection.Is(err, libvirt.ERR_INVALID_ARG, libvirt.ERR_CONFIG_UNSUPPORTED):
			// It has no emulator for it.
			docs.Domain = ""
		case err != nil:
			return machine.Host{}, err
		}

		if docs.Host, err = c.GetCapabilities(); err != nil {
			return machine.Host{}, err
		}

		if docs.Devices, err = devicesFor(c, data); err != nil {
			return machine.Host{}, err
		}

		can, err := machine.ParseHost(docs)
		if err != nil {
			return machine.Host{}, err
		}

		can.Session = h.session()

		if can.Version, err = c.GetLibVersion(); err != nil {
			return machine.Host{}, err
		}

		if data.Devices() {
			can.Taken, err = takenDevices(c, req.Identity.UUID)
		}

		return can, err
	})
}

// checkNetwork refuses a libvirt network that interface number i of the class cannot mean.
func (h *Host) checkNetwork(ctx context.Context, req driver.Request, data machine.ClassData, i int) error {
	name := data.NetworkInterfaces[i].Network()

	type network struct {
		found, active bool
		is            machine.Network
		others        []string
	}

	got, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up network %q", name), func(c connection.Connect) (network, error) {
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
		if err != nil {
			return network{}, err
		}

		is, err := readNetwork(n)

		return network{found: true, active: active, is: is}, err
	})

	switch {
	case err != nil:
		return err
	case !got.found:
		return driver.Terminalf("network_interfaces[%d].network_name: libvirt has no network %q; it has %s", i, name, list(got.others))
	case !got.active:
		return fmt.Errorf("network %q is not active; start it: virsh net-start %s", name, name)
	default:
		return data.CheckNetwork(i, got.is, machine.OwnReservations(req.Identity, got.is, macs(data, req)))
	}
}

func networkNames(c connection.Connect) ([]string, error) {
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
