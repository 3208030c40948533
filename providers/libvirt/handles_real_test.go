//go:build real

package libvirt_test

import (
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
)

// The handles behind a connection whose calls are booked.

// bookedDomain is a domain. Its name, UUID and id are part of the handle.
type bookedDomain struct {
	connection.Domain
	b *booked
}

func (d bookedDomain) do(method string, f func() error) error {
	return do(d.b, "Domain."+method, nameOf(d.Domain), f)
}

func ofDomain[T any](d bookedDomain, method string, f func() (T, error)) (T, error) {
	return book(d.b, "Domain."+method, nameOf(d.Domain), "", f)
}

func (d bookedDomain) GetState() (libvirt.DomainState, int, error) {
	type state struct {
		state  libvirt.DomainState
		reason int
	}

	s, err := ofDomain(d, "GetState", func() (s state, err error) {
		s.state, s.reason, err = d.Domain.GetState()

		return s, err
	})

	return s.state, s.reason, err
}

func (d bookedDomain) GetInfo() (*libvirt.DomainInfo, error) {
	return ofDomain(d, "GetInfo", d.Domain.GetInfo)
}
func (d bookedDomain) GetMaxMemory() (uint64, error) {
	return ofDomain(d, "GetMaxMemory", d.Domain.GetMaxMemory)
}
func (d bookedDomain) IsActive() (bool, error) { return ofDomain(d, "IsActive", d.Domain.IsActive) }
func (d bookedDomain) IsPersistent() (bool, error) {
	return ofDomain(d, "IsPersistent", d.Domain.IsPersistent)
}
func (d bookedDomain) GetAutostart() (bool, error) {
	return ofDomain(d, "GetAutostart", d.Domain.GetAutostart)
}

func (d bookedDomain) GetXMLDesc(flags libvirt.DomainXMLFlags) (string, error) {
	return ofDomain(d, "GetXMLDesc", func() (string, error) { return d.Domain.GetXMLDesc(flags) })
}

func (d bookedDomain) GetMetadata(kind libvirt.DomainMetadataType, uri string, flags libvirt.DomainModificationImpact) (string, error) {
	return ofDomain(d, "GetMetadata", func() (string, error) { return d.Domain.GetMetadata(kind, uri, flags) })
}

func (d bookedDomain) SetMetadata(kind libvirt.DomainMetadataType, content, key, uri string, flags libvirt.DomainModificationImpact) error {
	return d.do("SetMetadata", func() error { return d.Domain.SetMetadata(kind, content, key, uri, flags) })
}

func (d bookedDomain) SetAutostart(on bool) error {
	return d.do("SetAutostart", func() error { return d.Domain.SetAutostart(on) })
}

func (d bookedDomain) Create() error   { return d.do("Create", d.Domain.Create) }
func (d bookedDomain) Shutdown() error { return d.do("Shutdown", d.Domain.Shutdown) }
func (d bookedDomain) Resume() error   { return d.do("Resume", d.Domain.Resume) }

func (d bookedDomain) ShutdownFlags(flags libvirt.DomainShutdownFlags) error {
	return d.do("ShutdownFlags", func() error { return d.Domain.ShutdownFlags(flags) })
}

func (d bookedDomain) Reboot(flags libvirt.DomainRebootFlagValues) error {
	return d.do("Reboot", func() error { return d.Domain.Reboot(flags) })
}

func (d bookedDomain) Reset(flags uint32) error {
	uuid, _ := d.GetUUIDString() // It is part of the handle.

	return d.do("Reset", func() error {
		return d.b.cloud.reset(uuid, func() error { return d.Domain.Reset(flags) })
	})
}

func (d bookedDomain) PMWakeup(flags uint32) error {
	return d.do("PMWakeup", func() error { return d.Domain.PMWakeup(flags) })
}

func (d bookedDomain) DestroyFlags(flags libvirt.DomainDestroyFlags) error {
	return d.do("DestroyFlags", func() error { return d.Domain.DestroyFlags(flags) })
}

func (d bookedDomain) UndefineFlags(flags libvirt.DomainUndefineFlagsValues) error {
	return d.do("UndefineFlags", func() error { return d.Domain.UndefineFlags(flags) })
}

func (d bookedDomain) HasManagedSaveImage(flags uint32) (bool, error) {
	return ofDomain(d, "HasManagedSaveImage", func() (bool, error) { return d.Domain.HasManagedSaveImage(flags) })
}

func (d bookedDomain) ManagedSaveRemove(flags uint32) error {
	return d.do("ManagedSaveRemove", func() error { return d.Domain.ManagedSaveRemove(flags) })
}

func (d bookedDomain) ListAllSnapshots(flags libvirt.DomainSnapshotListFlags) ([]connection.DomainSnapshot, error) {
	return ofDomain(d, "ListAllSnapshots", func() ([]connection.DomainSnapshot, error) { return d.Domain.ListAllSnapshots(flags) })
}

func (d bookedDomain) ListAllCheckpoints(flags libvirt.DomainCheckpointListFlags) ([]connection.DomainCheckpoint, error) {
	return ofDomain(d, "ListAllCheckpoints", func() ([]connection.DomainCheckpoint, error) { return d.Domain.ListAllCheckpoints(flags) })
}

func (d bookedDomain) ListAllInterfaceAddresses(source libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error) {
	return ofDomain(d, "ListAllInterfaceAddresses", func() ([]libvirt.DomainInterface, error) { return d.Domain.ListAllInterfaceAddresses(source) })
}

// bookedPool is a storage pool.
type bookedPool struct {
	connection.StoragePool
	b *booked
}

func ofPool[T any](p bookedPool, method, body string, f func() (T, error)) (T, error) {
	return book(p.b, "StoragePool."+method, nameOf(p.StoragePool), body, f)
}

func (p bookedPool) GetXMLDesc(flags libvirt.StorageXMLFlags) (string, error) {
	return ofPool(p, "GetXMLDesc", "", func() (string, error) { return p.StoragePool.GetXMLDesc(flags) })
}

func (p bookedPool) GetInfo() (*libvirt.StoragePoolInfo, error) {
	return ofPool(p, "GetInfo", "", p.StoragePool.GetInfo)
}

func (p bookedPool) IsActive() (bool, error) {
	return ofPool(p, "IsActive", "", p.StoragePool.IsActive)
}

func (p bookedPool) Refresh(flags uint32) error {
	return do(p.b, "StoragePool.Refresh", nameOf(p.StoragePool), func() error { return p.StoragePool.Refresh(flags) })
}

func (p bookedPool) StorageVolCreateXML(xml string, flags libvirt.StorageVolCreateFlags) (connection.StorageVol, error) {
	v, err := ofPool(p, "StorageVolCreateXML", xml, func() (connection.StorageVol, error) { return p.StoragePool.StorageVolCreateXML(xml, flags) })

	return one(v, err, p.b.vol)
}

func (p bookedPool) StorageVolCreateXMLFrom(xml string, source connection.StorageVol, flags libvirt.StorageVolCreateFlags) (connection.StorageVol, error) {
	v, err := ofPool(p, "StorageVolCreateXMLFrom", xml, func() (connection.StorageVol, error) {
		return p.StoragePool.StorageVolCreateXMLFrom(xml, source.(bookedVol).StorageVol, flags)
	})

	return one(v, err, p.b.vol)
}

func (p bookedPool) LookupStorageVolByName(name string) (connection.StorageVol, error) {
	v, err := ofPool(p, "LookupStorageVolByName", name, func() (connection.StorageVol, error) { return p.StoragePool.LookupStorageVolByName(name) })

	return one(v, err, p.b.vol)
}

func (p bookedPool) ListAllStorageVolumes(flags uint32) ([]connection.StorageVol, error) {
	all, err := ofPool(p, "ListAllStorageVolumes", "", func() ([]connection.StorageVol, error) { return p.StoragePool.ListAllStorageVolumes(flags) })

	return each(all, err, p.b.vol)
}

// bookedVol is a volume.
type bookedVol struct {
	connection.StorageVol
	b *booked
}

func ofVol[T any](v bookedVol, method string, f func() (T, error)) (T, error) {
	return book(v.b, "StorageVol."+method, nameOf(v.StorageVol), "", f)
}

func (v bookedVol) do(method string, f func() error) error {
	return do(v.b, "StorageVol."+method, nameOf(v.StorageVol), f)
}

func (v bookedVol) GetPath() (string, error) { return ofVol(v, "GetPath", v.StorageVol.GetPath) }

func (v bookedVol) GetXMLDesc(flags uint32) (string, error) {
	return ofVol(v, "GetXMLDesc", func() (string, error) { return v.StorageVol.GetXMLDesc(flags) })
}

func (v bookedVol) GetInfo() (*libvirt.StorageVolInfo, error) {
	return ofVol(v, "GetInfo", v.StorageVol.GetInfo)
}

func (v bookedVol) GetInfoFlags(flags libvirt.StorageVolInfoFlags) (*libvirt.StorageVolInfo, error) {
	return ofVol(v, "GetInfoFlags", func() (*libvirt.StorageVolInfo, error) { return v.StorageVol.GetInfoFlags(flags) })
}

func (v bookedVol) Upload(stream connection.Stream, offset, length uint64, flags libvirt.StorageVolUploadFlags) error {
	return v.do("Upload", func() error { return v.StorageVol.Upload(stream.(bookedStream).Stream, offset, length, flags) })
}

func (v bookedVol) Download(stream connection.Stream, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error {
	return v.do("Download", func() error { return v.StorageVol.Download(stream.(bookedStream).Stream, offset, length, flags) })
}

func (v bookedVol) Resize(capacity uint64, flags libvirt.StorageVolResizeFlags) error {
	return v.do("Resize", func() error { return v.StorageVol.Resize(capacity, flags) })
}

func (v bookedVol) Delete(flags libvirt.StorageVolDeleteFlags) error {
	return v.do("Delete", func() error { return v.StorageVol.Delete(flags) })
}

// bookedNetwork is a network.
type bookedNetwork struct {
	connection.Network
	b *booked
}

func (n bookedNetwork) IsActive() (bool, error) {
	return book(n.b, "Network.IsActive", nameOf(n.Network), "", n.Network.IsActive)
}

func (n bookedNetwork) GetXMLDesc(flags libvirt.NetworkXMLFlags) (string, error) {
	return book(n.b, "Network.GetXMLDesc", nameOf(n.Network), "", func() (string, error) { return n.Network.GetXMLDesc(flags) })
}

func (n bookedNetwork) GetDHCPLeases() ([]libvirt.NetworkDHCPLease, error) {
	return book(n.b, "Network.GetDHCPLeases", nameOf(n.Network), "", n.Network.GetDHCPLeases)
}

// bookedStream is a stream.
type bookedStream struct {
	connection.Stream
	b *booked
}

func (s bookedStream) Send(p []byte) (int, error) {
	return book(s.b, "Stream.Send", "", string(p[:min(len(p), 4096)]), func() (int, error) { return s.Stream.Send(p) })
}

func (s bookedStream) SendHole(length int64, flags uint32) error {
	return do(s.b, "Stream.SendHole", "", func() error { return s.Stream.SendHole(length, flags) })
}

func (s bookedStream) Recv(p []byte) (int, error) {
	return book(s.b, "Stream.Recv", "", "", func() (int, error) { return s.Stream.Recv(p) })
}

func (s bookedStream) Finish() error { return do(s.b, "Stream.Finish", "", s.Stream.Finish) }
