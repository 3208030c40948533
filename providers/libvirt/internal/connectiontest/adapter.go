// Package connectiontest puts a simulated hypervisor behind the provider's seam to libvirt, for tests.
package connectiontest

import (
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// Open returns what opens connections of a process to a simulated hypervisor, for connection.Config.Open. Whatever the URI is, it
// leads there.
func Open(c *sim.Client) func(uri string) (connection.Connect, error) {
	return func(string) (connection.Connect, error) {
		conn, err := c.Connect()
		if err != nil {
			return nil, err
		}

		return connect{conn}, nil
	}
}

// The types below wrap libvirt's handles. What takes and returns no handle is libvirt's own method.
type (
	connect struct{ *sim.Connect }
	domain  struct{ *sim.Domain }
	pool    struct{ *sim.StoragePool }
	vol     struct{ *sim.StorageVol }
)

func asDomain(d *sim.Domain) connection.Domain                         { return domain{d} }
func asPool(p *sim.StoragePool) connection.StoragePool                 { return pool{p} }
func asVol(v *sim.StorageVol) connection.StorageVol                    { return vol{v} }
func asNetwork(n *sim.Network) connection.Network                      { return n }
func asNodeDevice(d *sim.NodeDevice) connection.NodeDevice             { return d }
func asStream(s *sim.Stream) connection.Stream                         { return s }
func asSnapshot(s *sim.DomainSnapshot) connection.DomainSnapshot       { return s }
func asCheckpoint(c *sim.DomainCheckpoint) connection.DomainCheckpoint { return c }

func (c connect) RegisterCloseCallback(callback connection.CloseCallback) error {
	return c.Connect.RegisterCloseCallback(func(conn *sim.Connect, reason libvirt.ConnectCloseReason) {
		callback(connect{conn}, reason)
	})
}

func (c connect) DomainEventLifecycleRegister(dom connection.Domain, callback connection.DomainEventLifecycleCallback) (int, error) {
	return c.Connect.DomainEventLifecycleRegister(handleOf(dom),
		func(conn *sim.Connect, d *sim.Domain, event *libvirt.DomainEventLifecycle) {
			callback(connect{conn}, domain{d}, event)
		})
}

func (c connect) DomainEventRebootRegister(dom connection.Domain, callback connection.DomainEventGenericCallback) (int, error) {
	return c.Connect.DomainEventRebootRegister(handleOf(dom), func(conn *sim.Connect, d *sim.Domain) {
		callback(connect{conn}, domain{d})
	})
}

// handleOf returns libvirt's handle of a domain, nil for nil.
func handleOf(dom connection.Domain) *sim.Domain {
	if d, ok := dom.(domain); ok {
		return d.Domain
	}

	return nil
}

func (c connect) DomainDefineXML(xml string) (connection.Domain, error) {
	d, err := c.Connect.DomainDefineXML(xml)

	return connection.Wrap(d, err, asDomain)
}

func (c connect) DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (connection.Domain, error) {
	d, err := c.Connect.DomainDefineXMLFlags(xml, flags)

	return connection.Wrap(d, err, asDomain)
}

func (c connect) LookupDomainByName(name string) (connection.Domain, error) {
	d, err := c.Connect.LookupDomainByName(name)

	return connection.Wrap(d, err, asDomain)
}

func (c connect) LookupDomainByUUIDString(uuid string) (connection.Domain, error) {
	d, err := c.Connect.LookupDomainByUUIDString(uuid)

	return connection.Wrap(d, err, asDomain)
}

func (c connect) ListAllDomains(flags libvirt.ConnectListAllDomainsFlags) ([]connection.Domain, error) {
	all, err := c.Connect.ListAllDomains(flags)

	return connection.WrapAll(all, err, asDomain)
}

func (c connect) LookupStoragePoolByName(name string) (connection.StoragePool, error) {
	p, err := c.Connect.LookupStoragePoolByName(name)

	return connection.Wrap(p, err, asPool)
}

func (c connect) ListAllStoragePools(flags libvirt.ConnectListAllStoragePoolsFlags) ([]connection.StoragePool, error) {
	all, err := c.Connect.ListAllStoragePools(flags)

	return connection.WrapAll(all, err, asPool)
}

func (c connect) LookupStorageVolByPath(path string) (connection.StorageVol, error) {
	v, err := c.Connect.LookupStorageVolByPath(path)

	return connection.Wrap(v, err, asVol)
}

func (c connect) LookupNetworkByName(name string) (connection.Network, error) {
	n, err := c.Connect.LookupNetworkByName(name)

	return connection.Wrap(n, err, asNetwork)
}

func (c connect) ListAllNetworks(flags libvirt.ConnectListAllNetworksFlags) ([]connection.Network, error) {
	all, err := c.Connect.ListAllNetworks(flags)

	return connection.WrapAll(all, err, asNetwork)
}

func (c connect) LookupDeviceByName(name string) (connection.NodeDevice, error) {
	d, err := c.Connect.LookupDeviceByName(name)

	return connection.Wrap(d, err, asNodeDevice)
}

func (c connect) ListAllNodeDevices(flags libvirt.ConnectListAllNodeDeviceFlags) ([]connection.NodeDevice, error) {
	all, err := c.Connect.ListAllNodeDevices(flags)

	return connection.WrapAll(all, err, asNodeDevice)
}

func (c connect) NewStream(flags libvirt.StreamFlags) (connection.Stream, error) {
	s, err := c.Connect.NewStream(flags)

	return connection.Wrap(s, err, asStream)
}

func (d domain) CreateSnapshotXML(xml string, flags libvirt.DomainSnapshotCreateFlags) (connection.DomainSnapshot, error) {
	s, err := d.Domain.CreateSnapshotXML(xml, flags)

	return connection.Wrap(s, err, asSnapshot)
}

func (d domain) SnapshotLookupByName(name string, flags uint32) (connection.DomainSnapshot, error) {
	s, err := d.Domain.SnapshotLookupByName(name, flags)

	return connection.Wrap(s, err, asSnapshot)
}

func (d domain) ListAllSnapshots(flags libvirt.DomainSnapshotListFlags) ([]connection.DomainSnapshot, error) {
	all, err := d.Domain.ListAllSnapshots(flags)

	return connection.WrapAll(all, err, asSnapshot)
}

func (d domain) ListAllCheckpoints(flags libvirt.DomainCheckpointListFlags) ([]connection.DomainCheckpoint, error) {
	all, err := d.Domain.ListAllCheckpoints(flags)

	return connection.WrapAll(all, err, asCheckpoint)
}

func (p pool) StorageVolCreateXML(xml string, flags libvirt.StorageVolCreateFlags) (connection.StorageVol, error) {
	v, err := p.StoragePool.StorageVolCreateXML(xml, flags)

	return connection.Wrap(v, err, asVol)
}

// StorageVolCreateXMLFrom takes a volume of the same connection.
func (p pool) StorageVolCreateXMLFrom(xml string, source connection.StorageVol, flags libvirt.StorageVolCreateFlags) (connection.StorageVol, error) {
	v, err := p.StoragePool.StorageVolCreateXMLFrom(xml, source.(vol).StorageVol, flags)

	return connection.Wrap(v, err, asVol)
}

func (p pool) LookupStorageVolByName(name string) (connection.StorageVol, error) {
	v, err := p.StoragePool.LookupStorageVolByName(name)

	return connection.Wrap(v, err, asVol)
}

func (p pool) ListAllStorageVolumes(flags uint32) ([]connection.StorageVol, error) {
	all, err := p.StoragePool.ListAllStorageVolumes(flags)

	return connection.WrapAll(all, err, asVol)
}

// Upload takes a stream of the same connection.
func (v vol) Upload(stream connection.Stream, offset, length uint64, flags libvirt.StorageVolUploadFlags) error {
	return v.StorageVol.Upload(stream.(*sim.Stream), offset, length, flags)
}

// Download takes a stream of the same connection.
func (v vol) Download(stream connection.Stream, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error {
	return v.StorageVol.Download(stream.(*sim.Stream), offset, length, flags)
}
