//go:build real

package libvirt_test

import (
	real "libvirt.org/go/libvirt"
)

// The same as in adapters_test.go, for libvirt's own handles.

type libConn struct{ *real.Connect }

type (
	libDomain struct{ *real.Domain }
	libPool   struct{ *real.StoragePool }
	libVolume struct{ *real.StorageVol }
)

func newLibDomain(d *real.Domain) domain                   { return libDomain{d} }
func newLibPool(p *real.StoragePool) pool                  { return libPool{p} }
func newLibVolume(v *real.StorageVol) volume               { return libVolume{v} }
func newLibNetwork(n *real.Network) network                { return n }
func newLibDevice(d *real.NodeDevice) device               { return d }
func newLibSnapshot(s *real.DomainSnapshot) snapshot       { return s }
func newLibCheckpoint(c *real.DomainCheckpoint) checkpoint { return c }
func newLibStream(s *real.Stream) stream                   { return s }

func (c libConn) DomainDefineXMLFlags(xml string, flags real.DomainDefineFlags) (domain, error) {
	return as(newLibDomain)(c.Connect.DomainDefineXMLFlags(xml, flags))
}

func (c libConn) DomainCreateXML(xml string, flags real.DomainCreateFlags) (domain, error) {
	return as(newLibDomain)(c.Connect.DomainCreateXML(xml, flags))
}

func (c libConn) LookupDomainByName(name string) (domain, error) {
	return as(newLibDomain)(c.Connect.LookupDomainByName(name))
}

func (c libConn) LookupDomainByUUIDString(id string) (domain, error) {
	return as(newLibDomain)(c.Connect.LookupDomainByUUIDString(id))
}

func (c libConn) LookupDomainByID(id uint32) (domain, error) {
	return as(newLibDomain)(c.Connect.LookupDomainById(id))
}

func (c libConn) ListAllDomains(flags real.ConnectListAllDomainsFlags) ([]domain, error) {
	all, err := c.Connect.ListAllDomains(flags)

	var out []domain
	for i := range all {
		out = append(out, libDomain{&all[i]})
	}

	return out, err
}

func (c libConn) StoragePoolDefineXML(xml string, flags real.StoragePoolDefineFlags) (pool, error) {
	return as(newLibPool)(c.Connect.StoragePoolDefineXML(xml, flags))
}

func (c libConn) LookupStoragePoolByName(name string) (pool, error) {
	return as(newLibPool)(c.Connect.LookupStoragePoolByName(name))
}

func (c libConn) LookupStoragePoolByUUIDString(id string) (pool, error) {
	return as(newLibPool)(c.Connect.LookupStoragePoolByUUIDString(id))
}

func (c libConn) LookupStoragePoolByTargetPath(path string) (pool, error) {
	return as(newLibPool)(c.Connect.LookupStoragePoolByTargetPath(path))
}

func (c libConn) LookupStorageVolByPath(path string) (volume, error) {
	return as(newLibVolume)(c.Connect.LookupStorageVolByPath(path))
}

func (c libConn) LookupStorageVolByKey(key string) (volume, error) {
	return as(newLibVolume)(c.Connect.LookupStorageVolByKey(key))
}

func (c libConn) NetworkDefineXML(xml string) (network, error) {
	return as(newLibNetwork)(c.Connect.NetworkDefineXML(xml))
}

func (c libConn) LookupNetworkByName(name string) (network, error) {
	return as(newLibNetwork)(c.Connect.LookupNetworkByName(name))
}

func (c libConn) LookupNetworkByUUIDString(id string) (network, error) {
	return as(newLibNetwork)(c.Connect.LookupNetworkByUUIDString(id))
}

func (c libConn) LookupDeviceByName(name string) (device, error) {
	return as(newLibDevice)(c.Connect.LookupDeviceByName(name))
}

func (c libConn) NewStream() (stream, error) { return as(newLibStream)(c.Connect.NewStream(0)) }

func (c libConn) RegisterCloseCallback(f func()) error {
	return c.Connect.RegisterCloseCallback(func(*real.Connect, real.ConnectCloseReason) { f() })
}

func (c libConn) Watch(see func(string)) []int {
	var ids []int

	register := func(id int, err error) {
		if err != nil {
			panic(err)
		}

		ids = append(ids, id)
	}

	register(c.DomainEventLifecycleRegister(nil, func(_ *real.Connect, d *real.Domain, e *real.DomainEventLifecycle) {
		name, _ := d.GetName()
		see(lifecycleText(name, e))
	}))
	register(c.DomainEventRebootRegister(nil, func(_ *real.Connect, d *real.Domain) {
		name, _ := d.GetName()
		see("domain " + name + " rebooted")
	}))
	register(c.DomainEventMetadataChangeRegister(nil, func(_ *real.Connect, d *real.Domain, e *real.DomainEventMetadataChange) {
		name, _ := d.GetName()
		see(metadataText(name, e))
	}))

	if _, err := c.StoragePoolEventLifecycleRegister(nil, func(_ *real.Connect, p *real.StoragePool, e *real.StoragePoolEventLifecycle) {
		name, _ := p.GetName()
		see(poolText(name, e))
	}); err != nil {
		panic(err)
	}

	if _, err := c.NetworkEventLifecycleRegister(nil, func(_ *real.Connect, n *real.Network, e *real.NetworkEventLifecycle) {
		name, _ := n.GetName()
		see(networkText(name, e))
	}); err != nil {
		panic(err)
	}

	return ids
}

func (d libDomain) Snapshot(xml string, flags real.DomainSnapshotCreateFlags) (snapshot, error) {
	return as(newLibSnapshot)(d.CreateSnapshotXML(xml, flags))
}

func (d libDomain) SnapshotLookup(name string) (snapshot, error) {
	return as(newLibSnapshot)(d.SnapshotLookupByName(name, 0))
}

func (d libDomain) Checkpoint(xml string) (checkpoint, error) {
	return as(newLibCheckpoint)(d.CreateCheckpointXML(xml, 0))
}

func (p libPool) CreateVolume(xml string) (volume, error) {
	return as(newLibVolume)(p.StorageVolCreateXML(xml, 0))
}

func (p libPool) CloneVolume(xml string, from volume) (volume, error) {
	return as(newLibVolume)(p.StorageVolCreateXMLFrom(xml, from.(libVolume).StorageVol, 0)) //nolint:forcetypeassert // Scripts mix nothing.
}

func (p libPool) Volume(name string) (volume, error) {
	return as(newLibVolume)(p.LookupStorageVolByName(name))
}

func (v libVolume) StartUpload(s stream, offset, length uint64, flags real.StorageVolUploadFlags) error {
	return v.Upload(s.(*real.Stream), offset, length, flags) //nolint:forcetypeassert // Scripts mix nothing.
}

func (v libVolume) StartDownload(s stream, offset, length uint64, flags real.StorageVolDownloadFlags) error {
	return v.Download(s.(*real.Stream), offset, length, flags) //nolint:forcetypeassert // Scripts mix nothing.
}
