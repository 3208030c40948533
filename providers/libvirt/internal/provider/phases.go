package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// builder makes the machine of one request.
type builder struct {
	d     *Driver
	req   driver.Request
	data  ClassData
	names names
}

type ensure func(ctx context.Context, t driver.Task) error

// locked keeps the removal of the machine, and a second run of its phases, out.
func (b builder) locked(f ensure) ensure {
	return func(ctx context.Context, t driver.Task) error {
		release, err := b.d.lockMachine(ctx, b.req.Ref)
		if err != nil {
			return err
		}

		defer release()

		return visible(f(ctx, t))
	}
}

// visible turns NotFound into a transient error: in a phase it says that a part went missing, not that there is no machine.
func visible(err error) error {
	if driver.IsNotFound(err) {
		return errors.New(err.Error())
	}

	return err
}

func (b builder) ensureImage(ctx context.Context, t driver.Task) error {
	_, err := b.d.ensureImage(ctx, b.data.StoragePool, t)

	return visible(err)
}

// createVolumes makes the system disk, which is the claim on all other names (see owned.go), and the additional disks.
func (b builder) createVolumes(ctx context.Context, t driver.Task) error {
	// Usually a short look; the image may have gone since its phase.
	base, err := b.d.ensureImage(ctx, b.data.StoragePool, t)
	if err != nil {
		return visible(err)
	}

	size := b.data.DiskSize << 30
	if base.Size > size {
		return driver.Terminalf("disk_size: got %d GiB, but the boot image is larger: want at least %d GiB", b.data.DiskSize, (base.Size+1<<30-1)>>30)
	}

	return b.locked(func(ctx context.Context, _ driver.Task) error { return b.createDisks(ctx, base, size) })(ctx, t)
}

func (b builder) createDisks(ctx context.Context, base image, size uint64) error {
	pool := b.data.StoragePool

	if err := b.d.checkDomainIsFree(ctx, b.req.Ref); err != nil {
		return err
	}

	release, err := b.d.lockPool(ctx, pool)
	if err != nil {
		return err
	}

	defer release()

	if err := b.d.refresh(ctx, pool); err != nil {
		return err
	}

	present, err := b.ownVolumes(ctx)
	if err != nil {
		return err
	}

	disks := []newVolume{{Name: b.names.Root, Format: "qcow2", Capacity: size, Backing: base.Path}}
	for i, disk := range b.data.AdditionalDisks {
		disks = append(disks, newVolume{Name: b.names.Disk(i), Format: "qcow2", Capacity: disk.Size << 30})
	}

	for _, disk := range disks {
		if slices.Contains(present, disk.Name) {
			continue
		}

		if err := b.d.createVolume(ctx, pool, disk); err != nil {
			return b.d.withFreeSpace(ctx, pool, err)
		}
	}

	return nil
}

// ownVolumes returns the machine's volumes in its pool. Volumes of the same names that are not ours are an error.
func (b builder) ownVolumes(ctx context.Context) ([]string, error) {
	pool := b.data.StoragePool

	all, err := b.d.volumes(ctx, pool)
	if err != nil {
		return nil, err
	}

	present := volumesOf(b.req.Ref, all)
	if len(present) == 0 {
		return nil, nil
	}

	own, err := b.d.domain(ctx, b.req.Ref)
	if err != nil && !driver.IsNotFound(err) {
		return nil, err
	}

	owned, err := b.d.owns(ctx, b.req.Ref, pool, present, own)
	if err != nil {
		return nil, err
	}

	if !owned {
		return nil, foreignVolume(pool, present[0])
	}

	return present, nil
}

// createSeed makes the seed anew until the machine runs: what a crash has left of it may be only a part, and Omni may have
// changed the join configuration.
func (b builder) createSeed(ctx context.Context, t driver.Task) error {
	pool := b.data.StoragePool

	own, err := b.d.domain(ctx, b.req.Ref)

	switch {
	case driver.IsNotFound(err):
	case err != nil:
		return err
	case own.active():
		return nil
	}

	seed, err := nocloud.New(nocloud.Config{Hostname: b.req.Identity.Hostname, UserData: t.Join.UserData})
	if err != nil {
		return err
	}

	content, err := markSeed(seed.ISO(), b.mark())
	if err != nil {
		return err
	}

	release, err := b.d.lockPool(ctx, pool)
	if err != nil {
		return err
	}

	defer release()

	present, err := b.ownVolumes(ctx)
	if err != nil {
		return err
	}

	if !slices.Contains(present, b.names.Root) {
		return fmt.Errorf("volume %q is missing from storage pool %q", b.names.Root, pool)
	}

	if err := b.d.deleteVolume(ctx, pool, b.names.Seed); err != nil {
		return err
	}

	if err := b.d.createVolume(ctx, pool, newVolume{Name: b.names.Seed, Format: "raw", Capacity: emptyVolume}); err != nil {
		return b.d.withFreeSpace(ctx, pool, err)
	}

	if err := b.d.upload(ctx, pool, b.names.Seed, bytes.NewReader(content), func(uint64) {}); !errors.Is(err, errKeepsNoBytes) {
		return err
	}

	return nil
}

// defineDomain describes the machine to libvirt, again if it is not running: what kept it from starting may be in its description.
func (b builder) defineDomain(ctx context.Context, t driver.Task) error {
	if err := b.d.checkDomainIsFree(ctx, b.req.Ref); err != nil {
		return err
	}

	m := b.mark()
	own, err := b.d.domain(ctx, b.req.Ref)

	switch {
	case driver.IsNotFound(err):
	case err != nil:
		return err
	case own.active():
		return nil
	default:
		m.Created, m.Boot = own.mark.Created, own.mark.Boot
	}

	if err := b.checkAddresses(ctx); err != nil {
		return err
	}

	h, err := b.d.host(ctx, b.data.Arch)
	if err != nil {
		return err
	}

	if h.emulated() {
		t.Progress("the hypervisor has no KVM for " + string(b.data.Arch) + ": the machine is emulated, which is slow")
	}

	paths, err := b.paths(ctx)
	if err != nil {
		return err
	}

	desc, err := domainXML(b.req, b.data, h, m, paths)
	if err != nil {
		return err
	}

	uuid, err := connection.Call(ctx, b.d.conn, fmt.Sprintf("define domain %q", b.names.Domain), func(c *libvirt.Connect) (string, error) {
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

// paths returns where the machine's volumes are on the hypervisor's host, by their names.
func (b builder) paths(ctx context.Context) (map[string]string, error) {
	all := []string{b.names.Root, b.names.Seed}
	for i := range b.data.AdditionalDisks {
		all = append(all, b.names.Disk(i))
	}

	paths := map[string]string{}

	for _, name := range all {
		v, err := b.d.volume(ctx, b.data.StoragePool, name)
		if err != nil {
			return nil, err
		}

		paths[name] = v.Path
	}

	return paths, nil
}

func (b builder) startDomain(ctx context.Context, _ driver.Task) error {
	own, err := b.d.domain(ctx, b.req.Ref)
	if err != nil {
		return err
	}

	return b.d.start(ctx, own)
}

func (b builder) mark() mark {
	return mark{
		Provider: b.req.ProviderID,
		Request:  b.req.RequestID,
		Set:      b.req.Set,
		Pool:     b.data.StoragePool,
		Version:  b.d.config.Version,
		Created:  time.Now().UTC().Truncate(time.Second),
	}
}

// checkAddresses refuses a hardware address that the class sets and that another domain has. Derived ones cannot collide.
func (b builder) checkAddresses(ctx context.Context) error {
	for i, nic := range b.data.NetworkInterfaces {
		if nic.PhysicalAddress == "" {
			continue
		}

		address := b.data.macs(b.req.Identity)[i].String()

		other, err := b.d.domainWithAddress(ctx, address, b.req.Identity.UUID)
		if err != nil {
			return err
		}

		if other != "" {
			return driver.Terminalf("network_interfaces[%d].physical_address: domain %q has %s; leave it out of classes for more than one machine",
				i, other, address)
		}
	}

	return nil
}

// withFreeSpace adds to an error that says that storage ran out how much there is.
func (d *Driver) withFreeSpace(ctx context.Context, pool string, err error) error {
	if driver.KindOf(err) != driver.KindCapacity {
		return err
	}

	free, freeErr := poolCall(ctx, d, pool, fmt.Sprintf("look at storage pool %q", pool), func(_ *libvirt.Connect, p *libvirt.StoragePool) (uint64, error) {
		info, err := p.GetInfo()
		if err != nil {
			return 0, err
		}

		return info.Available, nil
	})
	if freeErr != nil {
		return err
	}

	return driver.Capacity(fmt.Errorf("%w; storage pool %q has %d MiB free", err, pool, free>>20))
}
