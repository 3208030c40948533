package hypervisor

import (
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// condition is what libvirt says of a domain: its state, and the reason for it, whose meaning depends on the state.
type condition struct {
	state  libvirt.DomainState
	reason int
}

// states are virsh's words for states, and for those of their reasons that somebody may have to act on or may wonder about.
var states = map[libvirt.DomainState]struct {
	name    string
	reasons map[int]string
}{
	libvirt.DOMAIN_RUNNING: {"running", nil},
	libvirt.DOMAIN_BLOCKED: {"idle", nil},
	libvirt.DOMAIN_PAUSED: {"paused", map[int]string{
		int(libvirt.DOMAIN_PAUSED_USER):            "user",
		int(libvirt.DOMAIN_PAUSED_MIGRATION):       "migrating",
		int(libvirt.DOMAIN_PAUSED_SAVE):            "saving",
		int(libvirt.DOMAIN_PAUSED_DUMP):            "dumping",
		int(libvirt.DOMAIN_PAUSED_IOERROR):         "I/O error",
		int(libvirt.DOMAIN_PAUSED_WATCHDOG):        "watchdog",
		int(libvirt.DOMAIN_PAUSED_FROM_SNAPSHOT):   "from snapshot",
		int(libvirt.DOMAIN_PAUSED_SHUTTING_DOWN):   "shutting down",
		int(libvirt.DOMAIN_PAUSED_SNAPSHOT):        "creating snapshot",
		int(libvirt.DOMAIN_PAUSED_CRASHED):         "crashed",
		int(libvirt.DOMAIN_PAUSED_STARTING_UP):     "starting up",
		int(libvirt.DOMAIN_PAUSED_POSTCOPY):        "post-copy",
		int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED): "post-copy failed",
	}},
	libvirt.DOMAIN_SHUTDOWN: {"in shutdown", nil},
	libvirt.DOMAIN_SHUTOFF: {"shut off", map[int]string{
		int(libvirt.DOMAIN_SHUTOFF_CRASHED):       "crashed",
		int(libvirt.DOMAIN_SHUTOFF_MIGRATED):      "migrated",
		int(libvirt.DOMAIN_SHUTOFF_SAVED):         "saved",
		int(libvirt.DOMAIN_SHUTOFF_FAILED):        "failed",
		int(libvirt.DOMAIN_SHUTOFF_FROM_SNAPSHOT): "from snapshot",
	}},
	libvirt.DOMAIN_CRASHED:     {"crashed", nil},
	libvirt.DOMAIN_PMSUSPENDED: {"pmsuspended", nil},
}

// String is the state in virsh's words, with the reason where it says more: "paused (I/O error)".
func (c condition) String() string {
	one, ok := states[c.state]
	if !ok {
		return "no state"
	}

	if reason := one.reasons[c.reason]; reason != "" {
		return one.name + " (" + reason + ")"
	}

	return one.name
}

// power says which position of the switch the state means. A paused machine is on: it goes on where it was. One that libvirt has
// paused as it could not write to its disk is neither on nor off, so that whoever switches it on makes it try again.
func (c condition) power() driver.Power {
	switch {
	case c.dead():
		return driver.PowerOff
	case c.failedToWrite():
		return driver.PowerUnknown
	}

	switch c.state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_SHUTDOWN, libvirt.DOMAIN_PMSUSPENDED:
		return driver.PowerOn
	case libvirt.DOMAIN_SHUTOFF:
		return driver.PowerOff
	default:
		return driver.PowerUnknown
	}
}

// hears says whether the guest runs, so that it can obey.
func (c condition) hears() bool {
	return c.state == libvirt.DOMAIN_RUNNING || c.state == libvirt.DOMAIN_BLOCKED
}

// dead says that the guest will not go on by itself or when it is told to, although its process may be kept for a look at it.
func (c condition) dead() bool {
	return c.state == libvirt.DOMAIN_CRASHED ||
		c.state == libvirt.DOMAIN_PAUSED && (c.reason == int(libvirt.DOMAIN_PAUSED_CRASHED) || c.reason == int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED))
}

// failedToWrite says that the domain is paused since a disk of it could not be written, in most cases as its pool is full.
func (c condition) failedToWrite() bool {
	return c.state == libvirt.DOMAIN_PAUSED && c.reason == int(libvirt.DOMAIN_PAUSED_IOERROR)
}

// passing says that somebody works on the domain, who leaves it in another state when he is done: it is saved, migrated or started.
func (c condition) passing() bool {
	if c.state != libvirt.DOMAIN_PAUSED {
		return c.state == libvirt.DOMAIN_SHUTDOWN
	}

	switch libvirt.DomainPausedReason(c.reason) { //nolint:exhaustive // In the others it rests.
	case libvirt.DOMAIN_PAUSED_MIGRATION, libvirt.DOMAIN_PAUSED_SAVE, libvirt.DOMAIN_PAUSED_DUMP, libvirt.DOMAIN_PAUSED_SHUTTING_DOWN,
		libvirt.DOMAIN_PAUSED_SNAPSHOT, libvirt.DOMAIN_PAUSED_STARTING_UP, libvirt.DOMAIN_PAUSED_POSTCOPY:
		return true
	default:
		return false
	}
}
