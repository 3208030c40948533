package hypervisor

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// DefineDomain describes the machine to libvirt, again if it is not running: what kept it from starting may be in its description.
func (b Builder) DefineDomain(ctx context.Context, t driver.Task) error {
	return b.locked(ctx, func(ctx context.Context) error { return b.defineDomain(ctx, t) })
}

func (b Builder) defineDomain(ctx context.Context, t driver.Task) error {
	if err := b.h.checkDomainIsFree(ctx, b.req.Ref); err != nil {
		return err
	}

	m := b.mark()
	own, err := b.h.domain(ctx, b.req.Ref)

	switch {
	case driver.IsNotFound(err):
	case err != nil:
		return err
	case own.active():
		return nil
	default:
		m.Created, m.Boot = own.mark.Created, own.mark.Boot
	}

	if err := b.h.checkAddresses(ctx, b.req, b.data); err != nil {
		return err
	}

	// From the choice of its devices until the domain has them, no other machine chooses.
	release, err := b.h.lockDevices(ctx, b.data)
	if err != nil {
		return err
	}

	defer release()

	can, err := b.h.capabilities(ctx, b.req, b.data)
	if err != nil {
		return err
	}

	devices, err := machine.ChooseDevices(b.data, can)
	if err != nil {
		return err
	}

	if can.Emulated() {
		t.Progress("the hypervisor has no KVM for " + string(b.data.Arch) + ": the machine is emulated, which is slow")
	}

	volumes, err := b.placed(ctx)
	if err != nil {
		return err
	}

	desc, err := machine.Domain{Request: b.req, Data: b.data, Host: can, Mark: m, Volumes: volumes, Devices: devices}.XML()
	if err != nil {
		return err
	}

	return b.define(ctx, desc)
}

// define describes the machine's domain to libvirt, in the place of what it was described as before.
func (b Builder) define(ctx context.Context, desc string) error {
	uuid, err := connection.Call(ctx, b.h.conn, fmt.Sprintf("define domain %q", b.names.Domain), func(c connection.Connect) (string, error) {
		dom, err := c.DomainDefineXMLFlags(desc, libvirt.DOMAIN_DEFINE_VALIDATE)
		if connection.Is(err, libvirt.ERR_NO_SUPPORT) {
			dom, err = c.DomainDefineXML(desc)
		}

		if err != nil {
			return "", err
		}

		defer func() { _ = dom.Free() }()

		return dom.GetUUIDString()
	})
	if err != nil {
		return err
	}

	if canonical, err := driver.CanonicalUUID(uuid); err != nil || canonical != b.req.Identity.UUID {
		return fmt.Errorf("define domain %q: libvirt gave it the UUID %q instead of %q, by which Omni would not know it",
			b.names.Domain, uuid, b.req.Identity.UUID)
	}

	return nil
}

// placed returns where the machine's volumes are on the hypervisor's host.
func (b Builder) placed(ctx context.Context) (machine.Volumes, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return machine.Volumes{}, err
	}

	disks := b.disks(pools)
	found := make([]machine.Volume, len(disks))

	for i, d := range disks {
		if found[i], err = b.h.placed(ctx, d.pool, d.volume.Name, d.volume.Format); err != nil {
			return machine.Volumes{}, err
		}
	}

	seed, err := b.h.placed(ctx, pools[b.data.StoragePool], b.names.Seed, "raw")

	return machine.Volumes{Root: found[0], Seed: seed, Disks: found[1:]}, err
}

// placed returns how the hypervisor reaches a volume. Its format is what it was made with: what libvirt believes is read from what the
// guest has written.
func (h *Host) placed(ctx context.Context, p pool, name, format string) (machine.Volume, error) {
	v, err := h.volume(ctx, p.name, name)
	if err != nil {
		return machine.Volume{}, err
	}

	switch v.Kind {
	case "network":
		network, err := networkOf(p)

		return machine.Volume{Kind: machine.VolumeNetwork, Path: v.Path, Format: format, Network: network}, err
	case "block":
		return machine.Volume{Kind: machine.VolumeBlock, Path: v.Path, Format: format}, nil
	default:
		return machine.Volume{Kind: machine.VolumeFile, Path: v.Path, Format: format}, nil
	}
}

// networkOf returns how the volumes of a pool are reached over the network: as the pool itself is.
func networkOf(p pool) (machine.NetworkVolume, error) {
	network := machine.NetworkVolume{Protocol: p.kind}

	if p.source == nil {
		return network, fmt.Errorf("storage pool %q does not say where it is", p.name)
	}

	for _, host := range p.source.Host {
		network.Hosts = append(network.Hosts, machine.NetworkHost{Name: host.Name, Port: host.Port})
	}

	if auth := p.source.Auth; auth != nil {
		network.User, network.SecretType = auth.Username, auth.Type

		if auth.Secret != nil {
			network.SecretUUID, network.SecretUsage = auth.Secret.UUID, auth.Secret.Usage
		}
	}

	return network, nil
}
