package libvirt

import (
	"cmp"
	"fmt"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func failure(code libvirt.ErrorNumber, from libvirt.ErrorDomain, format string, args ...any) libvirt.Error {
	return libvirt.Error{Code: code, Domain: from, Message: fmt.Sprintf(format, args...), Level: libvirt.ERR_ERROR}
}

// code returns the number of an error, ERR_OK for any other.
func code(err error) libvirt.ErrorNumber {
	if e, ok := err.(libvirt.Error); ok { //nolint:errorlint // It is never wrapped here.
		return e.Code
	}

	return libvirt.ERR_OK
}

// Trouble with connections.

func refused() error {
	return failure(libvirt.ERR_SYSTEM_ERROR, libvirt.FROM_RPC,
		"Failed to connect socket to '/var/run/libvirt/libvirt-sock': Connection refused")
}

func endOfFile() error {
	return failure(libvirt.ERR_SYSTEM_ERROR, libvirt.FROM_RPC, "End of file while reading data: Input/output error")
}

func socketClosed() error {
	return failure(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_RPC, "internal error: client socket is closed")
}

// invalidConnection is the answer to the use of a connection that was closed.
func invalidConnection(op string) error {
	return failure(libvirt.ERR_INVALID_CONN, libvirt.FROM_NONE, "invalid connection pointer in %s", function(op))
}

// function is the name of the function in C behind a method ("Domain.Create").
func function(op string) string {
	kind, method, found := strings.Cut(op, ".")
	if !found {
		return "virConnect" + op
	}

	return "vir" + kind + method
}

// What is not there.

func noDomain(uuid, name string) error {
	return failure(libvirt.ERR_NO_DOMAIN, libvirt.FROM_QEMU, "Domain not found: no domain with matching uuid '%s' (%s)", uuid, name)
}

func noPool(name string) error {
	return failure(libvirt.ERR_NO_STORAGE_POOL, libvirt.FROM_STORAGE, "Storage pool not found: no storage pool with matching name '%s'", name)
}

func noVolume(name string) error {
	return failure(libvirt.ERR_NO_STORAGE_VOL, libvirt.FROM_STORAGE, "Storage volume not found: no storage vol with matching name '%s'", name)
}

func noVolumeAt(path string) error {
	return failure(libvirt.ERR_NO_STORAGE_VOL, libvirt.FROM_STORAGE, "Storage volume not found: no storage vol with matching path '%s'", path)
}

func noNetwork(name string) error {
	return failure(libvirt.ERR_NO_NETWORK, libvirt.FROM_NETWORK, "Network not found: no network with matching name '%s'", name)
}

// What libvirt does not do.

func notValid(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_OPERATION_INVALID, from, "Requested operation is not valid: "+format, args...)
}

func invalidArgument(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_INVALID_ARG, from, "invalid argument: "+format, args...)
}

func unsupportedConfig(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_CONFIG_UNSUPPORTED, from, "unsupported configuration: "+format, args...)
}

func internal(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_INTERNAL_ERROR, from, "internal error: "+format, args...)
}

func failed(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_OPERATION_FAILED, from, "operation failed: "+format, args...)
}

func xmlError(from libvirt.ErrorDomain, format string, args ...any) error {
	return failure(libvirt.ERR_XML_ERROR, from, "XML error: "+format, args...)
}

func system(from libvirt.ErrorDomain, errno, format string, args ...any) error {
	return failure(libvirt.ERR_SYSTEM_ERROR, from, format+": "+errno, args...)
}

// Reasons of the system.
const (
	noEntry  = "No such file or directory"
	noSpace  = "No space left on device"
	noMemory = "Cannot allocate memory"

	noDeviceThere = "No such device"
)

// faultInWords is what libvirt says when one of the books' faults befalls a call.
func faultInWords(fault *ledger.FaultError, r request) error {
	storage := strings.HasPrefix(r.op, "Storage") || strings.HasPrefix(r.op, "Stream")

	switch fault.Kind {
	case ledger.NotFound:
		if storage {
			return noPool("gone")
		}

		return noNetwork("gone")
	case ledger.Conflict:
		if storage {
			return internal(libvirt.FROM_STORAGE, "pool 'default' has asynchronous jobs running.")
		}

		return failure(libvirt.ERR_OPERATION_TIMEOUT, libvirt.FROM_QEMU,
			"Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainModify)")
	case ledger.Full:
		if storage {
			return system(libvirt.FROM_STORAGE, noSpace, "cannot write data to file")
		}

		return outOfMemory()
	case ledger.Unauthorized:
		if r.op == "Connect" {
			return failure(libvirt.ERR_AUTH_FAILED, libvirt.FROM_RPC, "authentication failed: authentication failed")
		}

		return failure(libvirt.ERR_ACCESS_DENIED, libvirt.FROM_ACCESS, "access denied: 'driver' denied access")
	case ledger.Echo:
		return internal(libvirt.FROM_QEMU, "cannot process %s", cmp.Or(r.body, r.object))
	default:
		return failure(libvirt.ERR_RESOURCE_BUSY, libvirt.FROM_RPC, "resource busy: too many calls")
	}
}

func outOfMemory() error {
	return internal(libvirt.FROM_QEMU, "qemu unexpectedly closed the monitor: qemu-system-x86_64: cannot set up guest memory 'pc.ram': "+noMemory)
}
