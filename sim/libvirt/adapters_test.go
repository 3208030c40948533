package libvirt_test

import (
	"fmt"

	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// as turns a handle into the interface of scripts, unless there is none.
func as[H any, I any](wrap func(H) I) func(H, error) (I, error) {
	return func(handle H, err error) (I, error) {
		if err != nil {
			var none I

			return none, err
		}

		return wrap(handle), nil
	}
}

// The words for events.

func lifecycleText(name string, e *real.DomainEventLifecycle) string {
	return fmt.Sprintf("domain %s %s, detail %d", name, []string{
		"defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed",
	}[e.Event], e.Detail)
}

func metadataText(name string, e *real.DomainEventMetadataChange) string {
	return fmt.Sprintf("domain %s metadata %d of %q", name, e.Type, e.NSURI)
}

func poolText(name string, e *real.StoragePoolEventLifecycle) string {
	return fmt.Sprintf("pool %s %s", name, []string{"defined", "undefined", "started", "stopped", "created", "deleted"}[e.Event])
}

func networkText(name string, e *real.NetworkEventLifecycle) string {
	return fmt.Sprintf("network %s %s", name, []string{"defined", "undefined", "started", "stopped"}[e.Event])
}

type simConn struct{ *libvirt.Connect }

type (
	simDomain struct{ *libvirt.Domain }
	simPool   struct{ *libvirt.StoragePool }
	simVolume struct{ *libvirt.StorageVol }
)

func newSimDomain(d *libvirt.Domain) domain                   { return simDomain{d} }
func newSimPool(p *libvirt.StoragePool) pool                  { return simPool{p} }
func newSimVolume(v *libvirt.StorageVol) volume               { return simVolume{v} }
func newSimNetwork(n *libvirt.Network) network                { return n }
func newSimDevice(d *libvirt.NodeDevice) device               { return d }
func newSimSnapshot(s *libvirt.DomainSnapshot) snapshot       { return s }
func newSimCheckpoint(c *libvirt.DomainCheckpoint) checkpoint { return c }
func newSimStream(s *libvirt.Stream) stream                   { return s }

func (c simConn) DomainDefineXMLFlags(xml string, flags real.DomainDefineFlags) (domain, error) {
	return as(newSimDomain)(c.Connect.DomainDefineXMLFlags(xml, flags))
}

func (c simConn) DomainCreateXML(xml string, flags real.DomainCreateFlags) (domain, error) {
	return as(newSimDomain)(c.Connect.DomainCreateXML(xml, flags))
}

func (c simConn) LookupDomainByName(name string) (domain, error) {
	return as(newSimDomain)(c.Connect.LookupDomainByName(name))
}

func (c simConn) LookupDomainByUUIDString(id string) (domain, error) {
	return as(newSimDomain)(c.Connect.LookupDomainByUUIDString(id))
}

func (c simConn) LookupDomainByID(id uint32) (domain, error) {
	return as(newSimDomain)(c.Connect.LookupDomainById(id))
}

func (c simConn) ListAllDomains(flags real.ConnectListAllDomainsFlags) ([]domain, error) {
	all, err := c.Connect.ListAllDomains(flags)

	var out []domain
	for i := range all {
		out = append(out, simDomain{&all[i]})
	}

	return out, err
}

func (c simConn) StoragePoolDefineXML(xml string, flags real.StoragePoolDefineFlags) (pool, error) {
	return as(newSimPool)(c.Connect.StoragePoolDefineXML(xml, flags))
}

func (c simConn) LookupStoragePoolByName(name string) (pool, error) {
	return as(newSimPool)(c.Connect.LookupStoragePoolByName(name))
}

func (c simConn) LookupStoragePoolByUUIDString(id string) (pool, error) {
	return as(newSimPool)(c.Connect.LookupStoragePoolByUUIDString(id))
}

func (c simConn) LookupStoragePoolByTargetPath(path string) (pool, error) {
	return as(newSimPool)(c.Connect.LookupStoragePoolByTargetPath(path))
}

func (c simConn) LookupStorageVolByPath(path string) (volume, error) {
	return as(newSimVolume)(c.Connect.LookupStorageVolByPath(path))
}

func (c simConn) LookupStorageVolByKey(key string) (volume, error) {
	return as(newSimVolume)(c.Connect.LookupStorageVolByKey(key))
}

func (c simConn) NetworkDefineXML(xml string) (network, error) {
	return as(newSimNetwork)(c.Connect.NetworkDefineXML(xml))
}

func (c simConn) LookupNetworkByName(name string) (network, error) {
	return as(newSimNetwork)(c.Connect.LookupNetworkByName(name))
}

func (c simConn) LookupNetworkByUUIDString(id string) (network, error) {
	return as(newSimNetwork)(c.Connect.LookupNetworkByUUIDString(id))
}

func (c simConn) LookupDeviceByName(name string) (device, error) {
	return as(newSimDevice)(c.Connect.LookupDeviceByName(name))
}

func (c simConn) NewStream() (stream, error) { return as(newSimStream)(c.Connect.NewStream(0)) }

func (c simConn) RegisterCloseCallback(f func()) error {
	return c.Connect.RegisterCloseCallback(func(*libvirt.Connect, real.ConnectCloseReason) { f() })
}

func (c simConn) Watch(see func(string)) []int {
	var ids []int

	register := func(id int, err error) {
		if err != nil {
			panic(err)
		}

		ids = append(ids, id)
	}

	register(c.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, e *real.DomainEventLifecycle) {
		name, _ := d.GetName()
		see(lifecycleText(name, e))
	}))
	register(c.DomainEventRebootRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain) {
		name, _ := d.GetName()
		see("domain " + name + " rebooted")
	}))
	register(c.DomainEventMetadataChangeRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, e *real.DomainEventMetadataChange) {
		name, _ := d.GetName()
		see(metadataText(name, e))
	}))

	if _, err := c.StoragePoolEventLifecycleRegister(nil, func(_ *libvirt.Connect, p *libvirt.StoragePool, e *real.StoragePoolEventLifecycle) {
		name, _ := p.GetName()
		see(poolText(name, e))
	}); err != nil {
		panic(err)
	}

	if _, err := c.NetworkEventLifecycleRegister(nil, func(_ *libvirt.Connect, n *libvirt.Network, e *real.NetworkEventLifecycle) {
		name, _ := n.GetName()
		see(networkText(name, e))
	}); err != nil {
		panic(err)
	}

	return ids
}

func (d simDomain) Snapshot(xml string, flags real.DomainSnapshotCreateFlags) (snapshot, error) {
	return as(newSimSnapshot)(d.CreateSnapshotXML(xml, flags))
}

func (d simDomain) SnapshotLookup(name string) (snapshot, error) {
	return as(newSimSnapshot)(d.SnapshotLookupByName(name, 0))
}

func (d simDomain) Checkpoint(xml string) (checkpoint, error) {
	return as(newSimCheckpoint)(d.CreateCheckpointXML(xml, 0))
}

func (p simPool) CreateVolume(xml string) (volume, error) {
	return as(newSimVolume)(p.StorageVolCreateXML(xml, 0))
}

func (p simPool) CloneVolume(xml string, from volume) (volume, error) {
	return as(newSimVolume)(p.StorageVolCreateXMLFrom(xml, from.(simVolume).StorageVol, 0)) //nolint:forcetypeassert // Scripts mix nothing.
}

func (p simPool) Volume(name string) (volume, error) {
	return as(newSimVolume)(p.LookupStorageVolByName(name))
}

func (v simVolume) StartUpload(s stream, offset, length uint64, flags real.StorageVolUploadFlags) error {
	return v.Upload(s.(*libvirt.Stream), offset, length, flags) //nolint:forcetypeassert // Scripts mix nothing.
}

func (v simVolume) StartDownload(s stream, offset, length uint64, flags real.StorageVolDownloadFlags) error {
	return v.Download(s.(*libvirt.Stream), offset, length, flags) //nolint:forcetypeassert // Scripts mix nothing.
}
