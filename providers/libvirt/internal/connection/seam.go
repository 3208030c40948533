package connection

import "libvirt.org/go/libvirt"

// The interfaces below are the seam between the provider and libvirt: the methods of libvirt.org/go/libvirt that the provider
// uses, with their names, signatures, flags and errors, except that handles are interfaces. What a method does is libvirt's
// documentation of it. Real stands on libvirt; tests stand a simulated hypervisor behind them, by Config.Open.
//
// A method is added here when the provider needs it, with a line in real.go only if it takes or returns handles.

// Connect is an open connection to a hypervisor.
type Connect interface {
	Close() (int, error)
	Ref() error
	IsAlive() (bool, error)
	SetKeepAlive(interval int, count uint) error
	RegisterCloseCallback(callback CloseCallback) error
	UnregisterCloseCallback() error

	DomainEventLifecycleRegister(dom Domain, callback DomainEventLifecycleCallback) (int, error)
	DomainEventRebootRegister(dom Domain, callback DomainEventGenericCallback) (int, error)
	DomainEventDeregister(callbackID int) error

	GetLibVersion() (uint32, error)
	GetVersion() (uint32, error)
	GetType() (string, error)
	GetHostname() (string, error)
	GetCapabilities() (string, error)
	GetDomainCapabilities(emulator, arch, machine, virttype string, flags libvirt.ConnectGetDomainCapabilitiesFlags) (string, error)
	GetNodeInfo() (*libvirt.NodeInfo, error)
	GetFreeMemory() (uint64, error)
	GetMemoryStats(cellNum int, flags uint32) (*libvirt.NodeMemoryStats, error)

	DomainDefineXML(xml string) (Domain, error)
	DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (Domain, error)
	LookupDomainByName(name string) (Domain, error)
	LookupDomainByUUIDString(uuid string) (Domain, error)
	ListAllDomains(flags libvirt.ConnectListAllDomainsFlags) ([]Domain, error)

	LookupStoragePoolByName(name string) (StoragePool, error)
	ListAllStoragePools(flags libvirt.ConnectListAllStoragePoolsFlags) ([]StoragePool, error)
	LookupStorageVolByPath(path string) (StorageVol, error)

	LookupNetworkByName(name string) (Network, error)
	ListAllNetworks(flags libvirt.ConnectListAllNetworksFlags) ([]Network, error)

	LookupDeviceByName(name string) (NodeDevice, error)
	ListAllNodeDevices(flags libvirt.ConnectListAllNodeDeviceFlags) ([]NodeDevice, error)

	NewStream(flags libvirt.StreamFlags) (Stream, error)
}

// Callbacks run on libvirt's event loop: they return at once and make no call.
type (
	// CloseCallback is told that the connection broke.
	CloseCallback func(c Connect, reason libvirt.ConnectCloseReason)
	// DomainEventLifecycleCallback is told that a domain was defined, started, stopped, or the like.
	DomainEventLifecycleCallback func(c Connect, d Domain, event *libvirt.DomainEventLifecycle)
	// DomainEventGenericCallback is told of an event that is about a domain and says no more.
	DomainEventGenericCallback func(c Connect, d Domain)
)

// Domain is a virtual machine.
type Domain interface {
	Free() error

	GetName() (string, error)
	GetUUIDString() (string, error)
	GetID() (uint, error)
	GetState() (libvirt.DomainState, int, error)
	GetInfo() (*libvirt.DomainInfo, error)
	GetMaxMemory() (uint64, error)
	IsActive() (bool, error)
	IsPersistent() (bool, error)
	GetXMLDesc(flags libvirt.DomainXMLFlags) (string, error)
	GetMetadata(metadataType libvirt.DomainMetadataType, uri string, flags libvirt.DomainModificationImpact) (string, error)
	SetMetadata(metadataType libvirt.DomainMetadataType, content, key, uri string, flags libvirt.DomainModificationImpact) error
	GetAutostart() (bool, error)
	SetAutostart(autostart bool) error

	Create() error
	Shutdown() error
	ShutdownFlags(flags libvirt.DomainShutdownFlags) error
	Reboot(flags libvirt.DomainRebootFlagValues) error
	Reset(flags uint32) error
	Resume() error
	PMWakeup(flags uint32) error
	DestroyFlags(flags libvirt.DomainDestroyFlags) error
	UndefineFlags(flags libvirt.DomainUndefineFlagsValues) error

	HasManagedSaveImage(flags uint32) (bool, error)
	ManagedSaveRemove(flags uint32) error
	CreateSnapshotXML(xml string, flags libvirt.DomainSnapshotCreateFlags) (DomainSnapshot, error)
	SnapshotLookupByName(name string, flags uint32) (DomainSnapshot, error)
	ListAllSnapshots(flags libvirt.DomainSnapshotListFlags) ([]DomainSnapshot, error)
	ListAllCheckpoints(flags libvirt.DomainCheckpointListFlags) ([]DomainCheckpoint, error)

	ListAllInterfaceAddresses(source libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error)
}

// DomainSnapshot is a snapshot of a domain.
type DomainSnapshot interface {
	Free() error

	GetName() (string, error)
	GetXMLDesc(flags libvirt.DomainSnapshotXMLFlags) (string, error)
	IsCurrent(flags uint32) (bool, error)
	RevertToSnapshot(flags libvirt.DomainSnapshotRevertFlags) error
	Delete(flags libvirt.DomainSnapshotDeleteFlags) error
}

// DomainCheckpoint is a point in the life of a domain from which on libvirt knows what changed on its disks.
type DomainCheckpoint interface {
	Free() error

	GetName() (string, error)
	Delete(flags libvirt.DomainCheckpointDeleteFlags) error
}

// StoragePool is where volumes are.
type StoragePool interface {
	Free() error

	GetName() (string, error)
	GetUUIDString() (string, error)
	GetXMLDesc(flags libvirt.StorageXMLFlags) (string, error)
	GetInfo() (*libvirt.StoragePoolInfo, error)
	IsActive() (bool, error)
	Refresh(flags uint32) error

	StorageVolCreateXML(xml string, flags libvirt.StorageVolCreateFlags) (StorageVol, error)
	StorageVolCreateXMLFrom(xml string, source StorageVol, flags libvirt.StorageVolCreateFlags) (StorageVol, error)
	LookupStorageVolByName(name string) (StorageVol, error)
	ListAllStorageVolumes(flags uint32) ([]StorageVol, error)
}

// StorageVol is a volume: a disk, an image or a seed.
type StorageVol interface {
	Free() error

	GetName() (string, error)
	GetKey() (string, error)
	GetPath() (string, error)
	GetXMLDesc(flags uint32) (string, error)
	GetInfo() (*libvirt.StorageVolInfo, error)
	GetInfoFlags(flags libvirt.StorageVolInfoFlags) (*libvirt.StorageVolInfo, error)

	Upload(stream Stream, offset, length uint64, flags libvirt.StorageVolUploadFlags) error
	Download(stream Stream, offset, length uint64, flags libvirt.StorageVolDownloadFlags) error
	Resize(capacity uint64, flags libvirt.StorageVolResizeFlags) error
	Delete(flags libvirt.StorageVolDeleteFlags) error
}

// Network is a virtual network.
type Network interface {
	Free() error

	GetName() (string, error)
	GetXMLDesc(flags libvirt.NetworkXMLFlags) (string, error)
	IsActive() (bool, error)
	IsPersistent() (bool, error)
	GetDHCPLeases() ([]libvirt.NetworkDHCPLease, error)
	Update(command libvirt.NetworkUpdateCommand, section libvirt.NetworkUpdateSection, parentIndex int, xml string,
		flags libvirt.NetworkUpdateFlags) error
}

// NodeDevice is a device of the hypervisor's host.
type NodeDevice interface {
	Free() error

	GetName() (string, error)
	GetXMLDesc(flags libvirt.NodeDeviceXMLFlags) (string, error)
}

// Stream carries bytes to and from a volume.
type Stream interface {
	Free() error

	Send(p []byte) (int, error)
	SendHole(length int64, flags uint32) error
	Recv(p []byte) (int, error)
	Finish() error
	Abort() error
}

// Wrap returns a handle as the interface that wrap makes of it, and none with an error: a nil pointer in an interface is not nil. What
// stands behind the seam adapts its handles with it.
func Wrap[H, I any](handle *H, err error, wrap func(*H) I) (I, error) {
	if err != nil {
		var none I

		return none, err
	}

	return wrap(handle), nil
}

// WrapAll is Wrap for lists.
func WrapAll[H, I any](handles []H, err error, wrap func(*H) I) ([]I, error) {
	if err != nil {
		return nil, err
	}

	all := make([]I, len(handles))
	for i := range handles {
		all[i] = wrap(&handles[i])
	}

	return all, nil
}
