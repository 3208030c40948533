package connection

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Is reports whether err is libvirt's error with one of the numbers.
func Is(err error, numbers ...libvirt.ErrorNumber) bool {
	e, ok := errors.AsType[libvirt.Error](err)

	return ok && slices.Contains(numbers, e.Code)
}

// callError says what was tried and, in libvirt's words but without its numbers, why that failed.
type callError struct {
	what, advice string
	err          libvirt.Error
}

func (e *callError) Error() string {
	text := e.what + ": " + strings.TrimSpace(e.err.Message)
	if e.advice != "" {
		text += " (" + e.advice + ")"
	}

	return text
}

func (e *callError) Unwrap() error { return e.err }

// classify gives an error of a call its kind. It is the only place that knows what libvirt's error numbers mean for the
// lifecycle; whatever it does not name is transient, as an operator may have put it right by the next try.
func classify(what string, err error) error {
	e, ok := errors.AsType[libvirt.Error](err)
	if !ok {
		return fmt.Errorf("%s: %w", what, err)
	}

	text := &callError{what: what, err: e}

	switch e.Code {
	case libvirt.ERR_NO_DOMAIN, libvirt.ERR_NO_STORAGE_POOL, libvirt.ERR_NO_STORAGE_VOL, libvirt.ERR_NO_NETWORK,
		libvirt.ERR_NO_DOMAIN_METADATA:
		return &driver.Error{Kind: driver.KindNotFound, Err: text}
	case libvirt.ERR_NO_MEMORY:
		return driver.Capacity(text)
	case libvirt.ERR_AUTH_FAILED, libvirt.ERR_AUTH_CANCELLED, libvirt.ERR_AUTH_UNAVAILABLE, libvirt.ERR_ACCESS_DENIED,
		libvirt.ERR_OPERATION_DENIED:
		text.advice = "libvirt refuses this user; it needs the rights to manage domains and storage"
	case libvirt.ERR_NO_SUPPORT, libvirt.ERR_OPERATION_UNSUPPORTED:
		text.advice = "this kind of libvirt connection cannot do that"
	default:
		if full(e.Message) {
			return driver.Capacity(text)
		}
	}

	return text
}

// full says whether the text of an error means that memory or storage ran out. libvirt passes the system's error on as text
// only, in most cases under a number that says no more than that something failed.
func full(message string) bool {
	for _, sign := range []string{
		"Cannot allocate memory", "No space left on device", "Disk quota exceeded", "Not enough free space in pool",
		// What LVM and ZFS say themselves.
		"insufficient free space", "out of space",
	} {
		if strings.Contains(strings.ToLower(message), strings.ToLower(sign)) {
			return true
		}
	}

	return false
}

// Busy reports whether err says that another job holds a storage pool for the moment, for which libvirt has no number.
func Busy(err error) bool {
	return Is(err, libvirt.ERR_RESOURCE_BUSY) ||
		Is(err, libvirt.ERR_INTERNAL_ERROR, libvirt.ERR_OPERATION_INVALID) && strings.Contains(err.Error(), "asynchronous jobs running")
}

// classifyOpen says why a connection could not be opened and what to look at. libvirt's own text may repeat the URI, with a
// password in it; shown is the URI without.
func classifyOpen(uri, shown string, err error) error {
	what := fmt.Sprintf("connect to libvirt at %q", shown)

	e, ok := errors.AsType[libvirt.Error](err)
	if !ok {
		return fmt.Errorf("%s: %w", what, err)
	}

	e.Message = strings.ReplaceAll(e.Message, uri, shown)
	text := &callError{what: what, err: e}

	switch {
	case strings.Contains(e.Message, "libvirt.so.0") || strings.Contains(e.Message, "libvirt-admin.so.0"):
		text.advice = "libvirt's client library is missing; install it: libvirt0 on Debian and Ubuntu, libvirt-libs on Fedora and RHEL"
	case slices.Contains([]libvirt.ErrorNumber{
		libvirt.ERR_AUTH_FAILED, libvirt.ERR_AUTH_CANCELLED, libvirt.ERR_AUTH_UNAVAILABLE, libvirt.ERR_ACCESS_DENIED,
		libvirt.ERR_OPERATION_DENIED,
	}, e.Code):
		text.advice = "check the user's credentials and rights"
	case e.Code == libvirt.ERR_SSH || e.Code == libvirt.ERR_LIBSSH:
		text.advice = "check the host, the user, the key file and the known hosts"
	case e.Code == libvirt.ERR_NO_CONNECT || e.Code == libvirt.ERR_INVALID_ARG || e.Code == libvirt.ERR_NO_SUPPORT:
		text.advice = "check the URI"
	default:
		text.advice = "check that the daemon runs, that the URI is right, and that this user may reach it"
	}

	return text
}
