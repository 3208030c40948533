//go:build real

package libvirt_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// The types below stand between the provider and libvirt's handles. They put every call to the daemon into the suite's books under
// the method's name ("Domain.Create"), where the faults befall it that the suite has in mind, in libvirt's words. A reply that does
// not come is a connection that breaks.

// booked is a connection of one of the provider's processes.
type booked struct {
	connection.Connect
	session *ledger.Session
	// cloud is what the process has the rights to see: the polkit rules of a hypervisor that several share hide the rest.
	cloud *cloud
	ctx   context.Context // It ends when the connection breaks.

	mu      sync.Mutex
	cancel  context.CancelFunc
	onClose connection.CloseCallback
}

// opener opens connections for a new process.
func opener(c *cloud) func(uri string) (connection.Connect, error) {
	session := c.books.Session()

	return func(uri string) (connection.Connect, error) {
		b := &booked{session: session, cloud: c}
		b.ctx, b.cancel = context.WithCancel(context.Background())
		c.gate.add(b)

		_, err := book(b, "Connect", "", "", func() (_ struct{}, err error) {
			b.Connect, err = connection.Real(uri)

			return struct{}{}, err
		})
		if err != nil {
			return nil, err
		}

		return b, nil
	}
}

// book makes a call with its record and its faults. body is a document that goes along.
func book[T any](b *booked, op, object, body string, f func() (T, error)) (T, error) {
	var got, none T

	if b.ctx.Err() != nil {
		return none, says(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_RPC, "internal error: client socket is closed")
	}

	err := b.session.CallContext(b.ctx, op, object, func() (err error) {
		if err := b.cloud.gate.pass(b.ctx); err != nil {
			return err
		}

		got, err = f()

		return err
	})
	if err == nil {
		return got, nil
	}

	if e, ok := errors.AsType[libvirt.Error](err); ok {
		return none, e
	}

	if fault, ok := errors.AsType[*ledger.FaultError](err); ok && fault.Kind != ledger.Unavailable {
		return none, faultInWords(fault.Kind, op, cmp.Or(body, object))
	}

	b.breakOff()

	return none, says(libvirt.ERR_SYSTEM_ERROR, libvirt.FROM_RPC, "End of file while reading data: Input/output error")
}

// do is book for calls without a result.
func do(b *booked, op, object string, f func() error) error {
	_, err := book(b, op, object, "", func() (struct{}, error) { return struct{}{}, f() })

	return err
}

func (b *booked) breakOff() {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.cancel()

	if f := b.onClose; f != nil {
		b.onClose = nil

		go f(b, libvirt.CONNECT_CLOSE_REASON_EOF)
	}
}

func says(code libvirt.ErrorNumber, from libvirt.ErrorDomain, format string, args ...any) libvirt.Error {
	return libvirt.Error{Code: code, Domain: from, Message: fmt.Sprintf(format, args...), Level: libvirt.ERR_ERROR}
}

// faultInWords is what libvirt says when a fault befalls a call.
func faultInWords(kind ledger.FaultKind, op, request string) error {
	storage := strings.HasPrefix(op, "Storage") || strings.HasPrefix(op, "Stream")

	switch kind { //nolint:exhaustive // The others are played by the books, or become these.
	case ledger.NotFound:
		if storage {
			return says(libvirt.ERR_NO_STORAGE_POOL, libvirt.FROM_STORAGE, "Storage pool not found: no storage pool with matching name 'gone'")
		}

		return says(libvirt.ERR_NO_NETWORK, libvirt.FROM_NETWORK, "Network not found: no network with matching name 'gone'")
	case ledger.Conflict:
		if storage {
			return says(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_STORAGE, "internal error: pool 'default' has asynchronous jobs running.")
		}

		return says(libvirt.ERR_OPERATION_TIMEOUT, libvirt.FROM_QEMU,
			"Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainModify)")
	case ledger.Full:
		if storage {
			return says(libvirt.ERR_SYSTEM_ERROR, libvirt.FROM_STORAGE, "cannot write data to file: No space left on device")
		}

		return says(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_QEMU,
			"internal error: qemu unexpectedly closed the monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory")
	case ledger.Unauthorized:
		if op == "Connect" {
			return says(libvirt.ERR_AUTH_FAILED, libvirt.FROM_RPC, "authentication failed: authentication failed")
		}

		return says(libvirt.ERR_ACCESS_DENIED, libvirt.FROM_ACCESS, "access denied: 'driver' denied access")
	case ledger.Echo:
		return says(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_QEMU, "internal error: cannot process %s", request)
	default:
		return says(libvirt.ERR_RESOURCE_BUSY, libvirt.FROM_RPC, "resource busy: too many calls")
	}
}

// wordsFor are the faults that faultInWords has words for.
var wordsFor = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

// IsAlive says whether the connection stands.
func (b *booked) IsAlive() (bool, error) {
	if b.ctx.Err() != nil {
		return false, nil //nolint:nilerr // That is the answer.
	}

	return b.Connect.IsAlive()
}

func (b *booked) RegisterCloseCallback(callback connection.CloseCallback) error {
	b.mu.Lock()
	b.onClose = callback
	b.mu.Unlock()

	return b.Connect.RegisterCloseCallback(func(_ connection.Connect, reason libvirt.ConnectCloseReason) { callback(b, reason) })
}

func (b *booked) UnregisterCloseCallback() error {
	b.mu.Lock()
	b.onClose = nil
	b.mu.Unlock()

	return b.Connect.UnregisterCloseCallback()
}

// events passes events on as long as the connection stands.
func (b *booked) events(f func()) {
	if b.ctx.Err() == nil && b.cloud.gate.isOpen() {
		f()
	}
}

func (b *booked) DomainEventLifecycleRegister(_ connection.Domain, f connection.DomainEventLifecycleCallback) (int, error) {
	return b.Connect.DomainEventLifecycleRegister(nil, func(_ connection.Connect, d connection.Domain, e *libvirt.DomainEventLifecycle) {
		b.events(func() { f(b, d, e) })
	})
}

func (b *booked) DomainEventRebootRegister(_ connection.Domain, f connection.DomainEventGenericCallback) (int, error) {
	return b.Connect.DomainEventRebootRegister(nil, func(_ connection.Connect, d connection.Domain) {
		b.events(func() { f(b, d) })
	})
}

func (b *booked) GetLibVersion() (uint32, error) {
	return book(b, "Connect.GetLibVersion", "", "", b.Connect.GetLibVersion)
}

func (b *booked) GetVersion() (uint32, error) {
	return book(b, "Connect.GetVersion", "", "", b.Connect.GetVersion)
}

func (b *booked) GetHostname() (string, error) {
	return book(b, "Connect.GetHostname", "", "", b.Connect.GetHostname)
}

func (b *booked) GetCapabilities() (string, error) {
	return book(b, "Connect.GetCapabilities", "", "", b.Connect.GetCapabilities)
}

func (b *booked) GetDomainCapabilities(emulator, arch, machine, virttype string, flags libvirt.ConnectGetDomainCapabilitiesFlags) (string, error) {
	return book(b, "Connect.GetDomainCapabilities", arch, "", func() (string, error) {
		return b.Connect.GetDomainCapabilities(emulator, arch, machine, virttype, flags)
	})
}

func (b *booked) GetNodeInfo() (*libvirt.NodeInfo, error) {
	return book(b, "Connect.GetNodeInfo", "", "", b.Connect.GetNodeInfo)
}

func (b *booked) GetFreeMemory() (uint64, error) {
	return book(b, "Connect.GetFreeMemory", "", "", b.Connect.GetFreeMemory)
}

func (b *booked) GetMemoryStats(cell int, flags uint32) (*libvirt.NodeMemoryStats, error) {
	return book(b, "Connect.GetMemoryStats", "", "", func() (*libvirt.NodeMemoryStats, error) { return b.Connect.GetMemoryStats(cell, flags) })
}

// named is a handle that knows its name without a call.
type named interface{ GetName() (string, error) }

func nameOf(handle named) string {
	name, _ := handle.GetName() // It is part of the handle.

	return name
}

// each wraps a list of handles.
func each[H any](all []H, err error, wrap func(H) H) ([]H, error) {
	for i := range all {
		all[i] = wrap(all[i])
	}

	return all, err
}

// one wraps a handle.
func one[H any](handle H, err error, wrap func(H) H) (H, error) {
	if err != nil {
		return handle, err
	}

	return wrap(handle), nil
}

func (b *booked) domain(d connection.Domain) connection.Domain         { return bookedDomain{d, b} }
func (b *booked) pool(p connection.StoragePool) connection.StoragePool { return bookedPool{p, b} }
func (b *booked) vol(v connection.StorageVol) connection.StorageVol    { return bookedVol{v, b} }
func (b *booked) network(n connection.Network) connection.Network      { return bookedNetwork{n, b} }

func (b *booked) DomainDefineXML(xml string) (connection.Domain, error) {
	d, err := book(b, "Connect.DomainDefineXML", "", xml, func() (connection.Domain, error) { return b.Connect.DomainDefineXML(xml) })

	return one(d, err, b.domain)
}

func (b *booked) DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (connection.Domain, error) {
	d, err := book(b, "Connect.DomainDefineXMLFlags", "", xml, func() (connection.Domain, error) {
		return b.Connect.DomainDefineXMLFlags(xml, flags)
	})

	return one(d, err, b.domain)
}

func (b *booked) LookupDomainByName(name string) (connection.Domain, error) {
	d, err := book(b, "Connect.LookupDomainByName", name, "", func() (connection.Domain, error) { return b.Connect.LookupDomainByName(name) })

	return one(d, err, b.domain)
}

func (b *booked) LookupDomainByUUIDString(uuid string) (connection.Domain, error) {
	d, err := book(b, "Connect.LookupDomainByUUIDString", uuid, "", func() (connection.Domain, error) {
		return b.Connect.LookupDomainByUUIDString(uuid)
	})

	return one(d, err, b.domain)
}

func (b *booked) ListAllDomains(flags libvirt.ConnectListAllDomainsFlags) ([]connection.Domain, error) {
	all, err := book(b, "Connect.ListAllDomains", "", "", func() ([]connection.Domain, error) {
		all, err := b.Connect.ListAllDomains(flags)

		return slices.DeleteFunc(all, func(d connection.Domain) bool {
			uuid, err := d.GetUUIDString()

			return err != nil || !b.cloud.owns(d, uuid)
		}), err
	})

	return each(all, err, b.domain)
}

func (b *booked) LookupStoragePoolByName(name string) (connection.StoragePool, error) {
	p, err := book(b, "Connect.LookupStoragePoolByName", name, "", func() (connection.StoragePool, error) {
		return b.Connect.LookupStoragePoolByName(name)
	})

	return one(p, err, b.pool)
}

func (b *booked) ListAllStoragePools(flags libvirt.ConnectListAllStoragePoolsFlags) ([]connection.StoragePool, error) {
	all, err := book(b, "Connect.ListAllStoragePools", "", "", func() ([]connection.StoragePool, error) {
		all, err := b.Connect.ListAllStoragePools(flags)

		return slices.DeleteFunc(all, func(p connection.StoragePool) bool { return nameOf(p) != b.cloud.pool }), err
	})

	return each(all, err, b.pool)
}

func (b *booked) LookupStorageVolByPath(path string) (connection.StorageVol, error) {
	v, err := book(b, "Connect.LookupStorageVolByPath", path, "", func() (connection.StorageVol, error) {
		return b.Connect.LookupStorageVolByPath(path)
	})

	return one(v, err, b.vol)
}

func (b *booked) LookupNetworkByName(name string) (connection.Network, error) {
	n, err := book(b, "Connect.LookupNetworkByName", name, "", func() (connection.Network, error) { return b.Connect.LookupNetworkByName(name) })

	return one(n, err, b.network)
}

func (b *booked) ListAllNetworks(flags libvirt.ConnectListAllNetworksFlags) ([]connection.Network, error) {
	all, err := book(b, "Connect.ListAllNetworks", "", "", func() ([]connection.Network, error) { return b.Connect.ListAllNetworks(flags) })

	return each(all, err, b.network)
}

func (b *booked) NewStream(flags libvirt.StreamFlags) (connection.Stream, error) {
	s, err := b.Connect.NewStream(flags)
	if err != nil {
		return nil, err
	}

	return bookedStream{s, b}, nil
}
