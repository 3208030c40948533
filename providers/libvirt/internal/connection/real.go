package connection

import (
	"sync"
	"time"

	"libvirt.org/go/libvirt"
)

// startEvents registers libvirt's event loop, which has to be there before the first connection, and runs it as long as the
// process lives.
var startEvents = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}

	go func() {
		for {
			if err := libvirt.EventRunDefaultImpl(); err != nil {
				time.Sleep(time.Second)
			}
		}
	}()

	return nil
})

// oneCallAtATime says that the client library may use memory that is free when several calls are under way on a connection
// (CVE-2024-4418, put right in 10.3): it crashes when such a connection ends.
var oneCallAtATime = sync.OnceValue(func() bool {
	version, err := libvirt.GetVersion()

	return err != nil || version < 10_003_000
})

// Real connects to a hypervisor through libvirt's client library.
func Real(uri string) (Connect, error) {
	if err := startEvents(); err != nil {
		return nil, err
	}

	// Credentials come from the URI's own parameters and from libvirt's authentication file; some transports ask for a
	// callback even so. Nobody is there to be asked.
	conn, err := libvirt.NewConnectWithAuth(uri, &libvirt.ConnectAuth{
		CredType: []libvirt.ConnectCredentialType{
			libvirt.CRED_AUTHNAME, libvirt.CRED_USERNAME, libvirt.CRED_PASSPHRASE,
			libvirt.CRED_NOECHOPROMPT, libvirt.CRED_ECHOPROMPT, libvirt.CRED_REALM,
		},
		Callback: func([]*libvirt.ConnectCredential) {},
	}, 0)
	if err != nil {
		return nil, err
	}

	return realConnect{conn}, nil
}

// The types below wrap libvirt's handles. What takes and returns no handle is libvirt's own method.
type (
	realConnect struct{ *libvirt.Connect }
	realDomain  struct{ *libvirt.Domain }
	realPool    struct{ *libvirt.StoragePool }
	realVol     struct{ *libvirt.StorageVol }
)

func asDomain(d *libvirt.Domain) Domain                         { return realDomain{d} }
func asPool(p *libvirt.StoragePool) StoragePool                 { return realPool{p} }
func asVol(v *libvirt.StorageVol) StorageVol                    { return realVol{v} }
func asNetwork(n *libvirt.Network) Network                      { return n }
func asNodeDevice(d *libvirt.NodeDevice) NodeDevice             { return d }
func asStream(s *libvirt.Stream) Stream                         { return s }
func asSnapshot(s *libvirt.DomainSnapshot) DomainSnapshot       { return s }
func asCheckpoint(c *libvirt.DomainCheckpoint) DomainCheckpoint { return c }

func (c realConnect) RegisterCloseCallback(callback CloseCallback) error {
	return c.Connect.RegisterCloseCallback(func(conn *libvirt.Connect, reason libvirt.ConnectCloseReason) {
		callback(realConnect{conn}, reason)
	})
}

func (c realConnect) DomainEventLifecycleRegister(dom Domain, callback DomainEventLifecycleCallback) (int, error) {
	return c.Connect.DomainEventLifecycleRegister(handleOf(dom),
		func(conn *libvirt.Connect, d *libvirt.Domain, event *libvirt.DomainEventLifecycle) {
			callback(realConnect{conn}, realDomain{d}, event)
		})
}

func (c realConnect) DomainEventRebootRegister(dom Domain, callback DomainEventGenericCallback) (int, error) {
	return c.Connect.DomainEventRebootRegister(handleOf(dom), func(conn *libvirt.Connect, d *libvirt.Domain) {
		callback(realConnect{conn}, realDomain{d})
	})
}

// handleOf returns libvirt's handle of a domain, nil for nil.
func handleOf(dom Domain) *libvirt.Domain {
	if d, ok := dom.(realDomain); ok {
		return d.Domain
	}

	return nil
}

func (c realConnect) DomainDefineXML(xml string) (Domain, error) {
	d, err := c.Connect.DomainDefineXML(xml)

	return Wrap(d, err, asDomain)
}

func (c realConnect) DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (Domain, error) {
	d, err := c.Connect.DomainDefineXMLFlags(xml, flags)

	return Wrap(d, err, asDomain)
}

func (c realConnect) LookupDomainByName(name string) (Domain, error) {
	d, err := c.Connect.LookupDomainByName(name)

	return Wrap(d, err, asDomain)
}

func (c realConnect) LookupDomainByUUIDString(uuid string) (Domain, error) {
	d, err := c.Connect.LookupDomainByUUIDString(uuid)

	return Wrap(d, err, asDomain)
}

func (c realConnect) ListAllDomains(flags libvirt.ConnectListAllDomainsFlags) ([]Domain, error) {
	all, err := c.Connect.ListAllDomains(flags)

	return WrapAll(all, err, asDomain)
}

func (c realConnect) LookupStoragePoolByName(name string) (StoragePool, error) {
	p, err := c.Connect.LookupStoragePoolByName(name)

	return Wrap(p, err, asPool)
}

func (c realConnect) ListAllStoragePools(flags libvirt.ConnectListAllStoragePoolsFlags) ([]StoragePool, error) {
	all, err := c.Connect.ListAllStoragePools(flags)

	return WrapAll(all, err, asPool)
}

func (c realConnect) LookupStorageVolByPath(path string) (StorageVol, error) {
	v, err := c.Connect.LookupStorageVolByPath(path)

	return Wrap(v, err, asVol)
}

func (c realConnect) LookupNetworkByName(name string) (Network, error) {
	n, err := c.Connect.LookupNetworkByName(name)

	return Wrap(n, err, asNetwork)
}

func (c realConnect) ListAllNetworks(flags libvirt.ConnectListAllNetworksFlags) ([]Network, error) {
	all, err := c.Connect.ListAllNetworks(flags)

	return WrapAll(all, err, asNetwork)
}

func (c realConnect) LookupDeviceByName(name string) (NodeDevice, error) {
	d, err := c.Connect.LookupDeviceByName(name)

	return Wrap(d, err, asNodeDevice)
}

func (c realConnect) ListAllNodeDevices(flags libvirt.ConnectListAllNodeDeviceFlags) ([]NodeDevice, error) {
	all, err := c.Connect.ListAllNodeDevices(flags)

	return WrapAll(all, err, asNodeDevice)
}

func (c realConnect) NewStream(flags libvirt.StreamFlags) (Stream, error) {
	s, err := c.Connect.NewStream(flags)

	return Wrap(s, err, asStream)
}

func (d realDomain) CreateSnapshotXML(xml string, flags libvirt.DomainSnapshotCreateFlags) (DomainSnapshot, error) {
	s, err := d.Domain.CreateSnapshotXML(xml, flags)

	return Wrap(s, err, asSnapshot)
}

func (d realDomain) SnapshotLookupByName(name string, flags uint32) (DomainSnapshot, error) {
	s, err := d.Domain.SnapshotLookupByName(name, flags)

	return Wrap(s, err, asSnapshot)
}

func (d realDomain) ListAllSnapshots(flags libvirt.DomainSnapshotListFlags) ([]DomainSnapshot, error) {
	all, err := d.Domain.ListAllSnapshots(flags)

	return WrapAll(all, err, asSnapshot)
}

func (d realDomain) ListAllCheckpoints(flags libvirt.DomainCheckpointListFlags) ([]DomainCheckpoint, error) {
	all, err := d.Domain.ListAllCheckpoints(flags)

	return WrapAll(all, err, asCheckpoint)
}

func (p realPool) StorageVolCreateXML(xml string, flags libvirt.StorageVolCreateFlags) (StorageVol, error) {
	v, err := p.StoragePool.StorageVolCreateXML(xml, flags)

	return Wrap(v, err, asVol)
}

// StorageVolCreateXMLFrom takes a volume of the same connection.
func (p realPool) StorageVolCreateXMLFrom(xml string, source StorageVol, flags libvirt.StorageVolCreateFlags) (StorageVol, error) {
	v, err := p.StoragePool.StorageVolCreateXMLFrom(xml, source.(realVol).StorageVol, flags)

	return Wrap(v, err, asVol)
}

func (p realPool) LookupStorageVolByName(name string) (StorageVol, error) {
	v, err := p.StoragePool.LookupStorageVolByName(name)

	return Wrap(v, err, asVol)
}

func (p realPool) ListAllStorageVolumes(flags uint32) ([]StorageVol, error) {
	all, err := p.StoragePool.ListAllStorageVolumes(flags)

	return WrapAll(all, err, asVol)
}

// Upload takes a stream of the same connection.
func (v realVol) Upload(stream Stream, offset, length uint64, flags libvirt.StorageVolUploadFlags) error {
	return v.StorageVol.Upload(stream.(*libvirt.Stream), offset, length, flags)
}

// Download takes a stream of the same connection.
func (v realVol) Download(stream Stream, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error {
	return v.StorageVol.Download(stream.(*libvirt.Stream), offset, length, flags)
}
