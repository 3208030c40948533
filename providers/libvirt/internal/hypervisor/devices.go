package hypervisor

import (
	"context"
	"net/url"
	"os"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

// devicesFor returns the descriptions of the host's devices that matter to the class.
func devicesFor(c connection.Connect, data machine.ClassData) ([]string, error) {
	pci, mediated, network := data.HostDevices()

	var flags libvirt.ConnectListAllNodeDeviceFlags

	for flag, wanted := range map[libvirt.ConnectListAllNodeDeviceFlags]bool{
		libvirt.CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV: pci,
		libvirt.CONNECT_LIST_NODE_DEVICES_CAP_MDEV:    mediated,
		libvirt.CONNECT_LIST_NODE_DEVICES_CAP_NET:     network,
	} {
		if wanted {
			flags |= flag
		}
	}

	if flags == 0 {
		return nil, nil
	}

	all, err := c.ListAllNodeDevices(flags)
	if err != nil {
		return nil, err
	}

	descs := make([]string, 0, len(all))

	for _, device := range all {
		desc, descErr := device.GetXMLDesc(0)
		_ = device.Free()

		// One may go while the others are looked at.
		if connection.Is(descErr, libvirt.ERR_NO_NODE_DEVICE) {
			continue
		}

		if descErr != nil {
			err = descErr

			continue
		}

		descs = append(descs, desc)
	}

	return descs, err
}

// takenDevices returns the devices of the host that domains have, running or not, but for the one with that UUID.
func takenDevices(c connection.Connect, except string) ([]string, error) {
	all, err := c.ListAllDomains(0)
	if err != nil {
		return nil, err
	}

	var taken []string

	for _, dom := range all {
		ids, domErr := devicesOf(dom, except)
		_ = dom.Free()

		if domErr != nil && !connection.Is(domErr, libvirt.ERR_NO_DOMAIN) {
			err = domErr
		}

		taken = append(taken, ids...)
	}

	return taken, err
}

func devicesOf(dom connection.Domain, except string) ([]string, error) {
	uuid, err := dom.GetUUIDString()
	if err != nil || strings.EqualFold(uuid, except) {
		return nil, err
	}

	desc, err := dom.GetXMLDesc(0)
	if err != nil {
		return nil, err
	}

	return machine.TakenDevices(desc)
}

// lockDevices keeps other machines of this process from choosing devices of the host, if the class selects any.
func (h *Host) lockDevices(ctx context.Context, data machine.ClassData) (release func(), err error) {
	if !data.Devices() {
		return func() {}, nil
	}

	return h.deviceLocks.acquire(ctx, "the devices of the host")
}

// session says whether the daemon runs as a plain user; as root there is only one for the whole system.
func (h *Host) session() bool {
	u, err := url.Parse(h.config.URI)
	if err != nil || strings.TrimSuffix(u.Path, "/") != "/session" {
		return false
	}

	if u.Host == "" {
		return os.Geteuid() != 0
	}

	return u.User.Username() != "root"
}
