package libvirt

import (
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func notRunning() error { return notValid(libvirt.FROM_DOMAIN, "domain is not running") }

// Create switches the domain on.
func (d *Domain) Create() error { return d.create("Create", 0) }

// CreateWithFlags is Create; the flags may have it start paused, without its saved state, or without it being restored.
func (d *Domain) CreateWithFlags(flags libvirt.DomainCreateFlags) error {
	return d.create("CreateWithFlags", flags)
}

func (d *Domain) create(method string, flags libvirt.DomainCreateFlags) error {
	h := d.conn.h

	return d.do(method, func(m *machine) error {
		return h.jobLocked(m, method, func() error {
			if m.active() {
				return notValid(libvirt.FROM_QEMU, "domain is already running")
			}

			if m.managedSave && flags&libvirt.DOMAIN_START_FORCE_BOOT != 0 {
				h.dropManagedSaveLocked(m)
			}

			err := h.startLocked(m, m.def, flags&libvirt.DOMAIN_START_PAUSED != 0)
			d.id = m.id

			return err
		})
	})
}

// createTransientLocked starts a domain that is not defined, or a defined one with another description.
func (h *Hypervisor) createTransientLocked(doc string, flags libvirt.DomainCreateFlags) (*machine, error) {
	def, err := h.parseDomain(doc, flags&libvirt.DOMAIN_START_VALIDATE != 0)
	if err != nil {
		return nil, err
	}

	m, err := h.domainOfLocked(def)

	switch {
	case err != nil:
		return nil, err
	case m == nil:
		m = &machine{uuid: def.UUID, name: def.Name, id: -1, state: libvirt.DOMAIN_SHUTOFF}
		h.enterDomainLocked(m)
		h.madeLocked(ledger.Object{Kind: "domain", ID: m.uuid, Name: m.name})
	case m.active():
		return nil, notValid(libvirt.FROM_DOMAIN, "domain '%s' is already active", m.name)
	}

	err = h.jobLocked(m, "CreateXML", func() error { return h.startLocked(m, def, flags&libvirt.DOMAIN_START_PAUSED != 0) })
	if err != nil {
		h.forgetTransientLocked(m)

		return nil, err
	}

	return m, nil
}

// Destroy switches the domain off at once.
func (d *Domain) Destroy() error { return d.destroy("Destroy") }

// DestroyFlags is Destroy; whether the emulator ends gracefully makes no difference here.
func (d *Domain) DestroyFlags(libvirt.DomainDestroyFlags) error { return d.destroy("DestroyFlags") }

func (d *Domain) destroy(method string) error {
	h := d.conn.h

	return d.do(method, func(m *machine) error {
		if !m.active() {
			return notRunning()
		}

		m.killed = true // What else works on it ends with it.

		return h.jobLocked(m, method, func() error {
			if !m.active() {
				return notRunning()
			}

			h.pauseLocked("Domain.Destroy")

			if m.active() {
				h.cutLocked(m)
			}

			d.id = -1

			return nil
		})
	})
}

// Shutdown asks the guest to switch itself off, and does not wait for it.
func (d *Domain) Shutdown() error { return d.shutdown("Shutdown", 0) }

// ShutdownFlags is Shutdown by way of the power button or of the guest agent.
func (d *Domain) ShutdownFlags(flags libvirt.DomainShutdownFlags) error {
	return d.shutdown("ShutdownFlags", flags)
}

func (d *Domain) shutdown(method string, flags libvirt.DomainShutdownFlags) error {
	h := d.conn.h

	return d.do(method, func(m *machine) error {
		return h.jobLocked(m, method, func() error {
			if m.state != libvirt.DOMAIN_RUNNING {
				return notValid(libvirt.FROM_QEMU, "domain is not running")
			}

			if err := m.askable(flags&libvirt.DOMAIN_SHUTDOWN_GUEST_AGENT != 0); err != nil {
				return err
			}

			h.askLocked(m, func() { h.leaveLocked(m) })

			return nil
		})
	})
}

// Reboot asks the guest to restart, and does not wait for it.
func (d *Domain) Reboot(flags libvirt.DomainRebootFlagValues) error {
	h := d.conn.h

	return d.do("Reboot", func(m *machine) error {
		return h.jobLocked(m, "Reboot", func() error {
			if !m.active() {
				return notRunning()
			}

			if err := m.askable(flags&libvirt.DOMAIN_REBOOT_GUEST_AGENT != 0); err != nil {
				return err
			}

			h.askLocked(m, func() { h.resetLocked(m) })

			return nil
		})
	})
}

// askable says whether the guest can be asked by its agent, if that is how.
func (m *machine) askable(agent bool) error {
	switch {
	case !agent:
		return nil
	case !m.hasAgent():
		return failure(libvirt.ERR_ARGUMENT_UNSUPPORTED, libvirt.FROM_QEMU,
			"argument unsupported: QEMU guest agent is not configured")
	case !m.agent:
		return agentUnresponsive()
	default:
		return nil
	}
}

func agentUnresponsive() error {
	return failure(libvirt.ERR_AGENT_UNRESPONSIVE, libvirt.FROM_QEMU,
		"Guest agent is not responding: QEMU guest agent is not connected")
}

// askLocked lets a guest that hears and can act do what it was asked to once its time for that has passed. What it was asked
// before does not count any more.
func (h *Hypervisor) askLocked(m *machine, act func()) {
	if m.deaf || m.state != libvirt.DOMAIN_RUNNING || h.closed {
		return
	}

	if m.leaving != nil {
		m.leaving.Stop()
	}

	id := m.id
	m.leaving = time.AfterFunc(h.opts.ShutdownTime, func() {
		h.mu.Lock()
		defer h.mu.Unlock()

		if m.id == id && m.state == libvirt.DOMAIN_RUNNING && !h.closed {
			act()
		}
	})
}

// leaveLocked is a guest that switches itself off.
func (h *Hypervisor) leaveLocked(m *machine) {
	action := m.live.OnPoweroff

	if action == "restart" {
		h.resetLocked(m)

		return
	}

	m.enter(libvirt.DOMAIN_SHUTDOWN, int(libvirt.DOMAIN_SHUTDOWN_UNKNOWN))
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SHUTDOWN, int(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST))
	h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_SHUTDOWN, libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN)
}

// resetLocked is a guest that starts again, by itself or because it was reset.
func (h *Hypervisor) resetLocked(m *machine) {
	if m.leaving != nil {
		m.leaving.Stop()
		m.leaving = nil
	}

	if m.live.OnReboot == "destroy" {
		h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_SHUTDOWN, libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN)

		return
	}

	m.agent = false
	h.domainEventLocked(m, rebootEvent, nil)
	h.bootLocked(m)
}

// Reset restarts the guest at once.
func (d *Domain) Reset(uint32) error {
	h := d.conn.h

	return d.do("Reset", func(m *machine) error {
		return h.jobLocked(m, "Reset", func() error {
			if !m.active() {
				return notRunning()
			}

			h.resetLocked(m)

			return nil
		})
	})
}

// Suspend pauses the domain.
func (d *Domain) Suspend() error {
	h := d.conn.h

	return d.do("Suspend", func(m *machine) error {
		return h.jobLocked(m, "Suspend", func() error {
			switch {
			case !m.active():
				return notRunning()
			case m.state == libvirt.DOMAIN_PMSUSPENDED:
				return notValid(libvirt.FROM_QEMU, "domain is pmsuspended")
			case m.state == libvirt.DOMAIN_PAUSED:
				return nil
			}

			m.enter(libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER))
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(libvirt.DOMAIN_EVENT_SUSPENDED_PAUSED))

			return nil
		})
	})
}

// Resume lets a paused domain go on.
func (d *Domain) Resume() error {
	h := d.conn.h

	return d.do("Resume", func(m *machine) error {
		return h.jobLocked(m, "Resume", func() error {
			switch {
			case !m.active():
				return notRunning()
			case m.state == libvirt.DOMAIN_PMSUSPENDED:
				return notValid(libvirt.FROM_QEMU, "domain is pmsuspended")
			case m.state == libvirt.DOMAIN_RUNNING:
				return notValid(libvirt.FROM_QEMU, "domain is already running")
			}

			m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_UNPAUSED))
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_RESUMED, int(libvirt.DOMAIN_EVENT_RESUMED_UNPAUSED))

			if m.waiting {
				h.runLocked(m)
			}

			return nil
		})
	})
}

// PMWakeup wakes a guest that sleeps.
func (d *Domain) PMWakeup(uint32) error {
	h := d.conn.h

	return d.do("PMWakeup", func(m *machine) error {
		return h.jobLocked(m, "PMWakeup", func() error {
			switch {
			case !m.active():
				return notRunning()
			case m.state != libvirt.DOMAIN_PMSUSPENDED:
				return internal(libvirt.FROM_QEMU, "unable to execute QEMU command 'system_wakeup': Unable to wake up: guest is not in suspended state")
			}

			m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_WAKEUP))
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_WAKEUP))

			return nil
		})
	})
}

// ManagedSave writes the domain's memory to a file and switches it off; the next start goes on from there.
func (d *Domain) ManagedSave(libvirt.DomainSaveRestoreFlags) error {
	h := d.conn.h

	return d.do("ManagedSave", func(m *machine) error {
		if !m.persistent() {
			return notValid(libvirt.FROM_QEMU, "cannot do managed save for transient domain")
		}

		return h.jobLocked(m, "ManagedSave", func() error {
			if !m.active() {
				return notRunning()
			}

			h.pauseLocked("Domain.ManagedSave")

			if !m.active() {
				return failed(libvirt.FROM_DOMAIN, "domain is not running")
			}

			if m.savedPaused = m.state != libvirt.DOMAIN_RUNNING; !m.savedPaused {
				h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(libvirt.DOMAIN_EVENT_SUSPENDED_PAUSED))
			}

			m.managedSave = true
			h.madeLocked(ledger.Object{Kind: "managed-save", ID: m.uuid, Name: m.name})
			h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_SAVED, libvirt.DOMAIN_EVENT_STOPPED_SAVED)

			d.id = -1

			return nil
		})
	})
}

// HasManagedSaveImage says whether the domain has a saved state.
func (d *Domain) HasManagedSaveImage(uint32) (bool, error) {
	return domainCall(d, "HasManagedSaveImage", "", func(m *machine) (bool, error) { return m.managedSave, nil })
}

// ManagedSaveRemove drops the saved state.
func (d *Domain) ManagedSaveRemove(uint32) error {
	return d.do("ManagedSaveRemove", func(m *machine) error {
		if !m.managedSave {
			return system(libvirt.FROM_QEMU, noEntry, "Failed to remove managed save file '/var/lib/libvirt/qemu/save/%s.save'", m.name)
		}

		d.conn.h.dropManagedSaveLocked(m)

		return nil
	})
}

func (h *Hypervisor) dropManagedSaveLocked(m *machine) {
	if m.managedSave {
		m.managedSave = false
		h.goneLocked("managed-save", m.uuid)
	}
}

// Undefine makes the domain forgotten, unless libvirt keeps something for it that would be lost.
func (d *Domain) Undefine() error { return d.undefine("Undefine", 0) }

// UndefineFlags is Undefine; the flags say what may be lost.
func (d *Domain) UndefineFlags(flags libvirt.DomainUndefineFlagsValues) error {
	return d.undefine("UndefineFlags", flags)
}

func (d *Domain) undefine(method string, flags libvirt.DomainUndefineFlagsValues) error {
	h := d.conn.h

	return d.do(method, func(m *machine) error {
		if !m.persistent() {
			return notValid(libvirt.FROM_QEMU, "cannot undefine transient domain")
		}

		return h.jobLocked(m, method, func() error {
			if err := h.checkUndefineLocked(m, flags); err != nil {
				return err
			}

			h.pauseLocked("Domain.Undefine")

			if h.domains[m.uuid] != m || !m.persistent() {
				return noDomain(m.uuid, m.name)
			}

			h.undefineLocked(m, flags)

			return nil
		})
	})
}

func (h *Hypervisor) undefineLocked(m *machine, flags libvirt.DomainUndefineFlagsValues) {
	h.dropManagedSaveLocked(m)

	if !m.active() {
		h.dropSnapshotsLocked(m)
	}

	if path := nvramPath(m.def); path != "" && flags&libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM == 0 {
		h.removeFileLocked("nvram", path)
	}

	if flags&libvirt.DOMAIN_UNDEFINE_KEEP_TPM == 0 && hasTPM(m.def) {
		h.removeFileLocked("tpm", tpmPath(m.def))
	}

	m.def, m.autostart = (*libvirtxml.Domain)(nil), false
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_UNDEFINED, int(libvirt.DOMAIN_EVENT_UNDEFINED_REMOVED))
	h.forgetTransientLocked(m)
}

// dropSnapshotsLocked forgets what is known of snapshots and checkpoints.
func (h *Hypervisor) dropSnapshotsLocked(m *machine) {
	for _, s := range m.snapshots {
		h.goneLocked("snapshot", s.bookID(m))
	}

	for _, c := range m.checkpoints {
		h.goneLocked("checkpoint", c.bookID(m))
	}

	m.snapshots, m.snapshot, m.checkpoints = nil, nil, nil
}

// checkUndefineLocked refuses to lose what the flags do not name.
func (h *Hypervisor) checkUndefineLocked(m *machine, flags libvirt.DomainUndefineFlagsValues) error {
	const (
		nvram = libvirt.DOMAIN_UNDEFINE_NVRAM | libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM
		tpm   = libvirt.DOMAIN_UNDEFINE_TPM | libvirt.DOMAIN_UNDEFINE_KEEP_TPM
		known = nvram | tpm | libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE |
			libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
	)

	if unknown := flags &^ known; unknown != 0 {
		return failure(libvirt.ERR_INVALID_ARG, libvirt.FROM_QEMU, "unsupported flags (0x%x) in function qemuDomainUndefineFlags", uint32(unknown))
	}

	refuse := func(format string, args ...any) error { return notValid(libvirt.FROM_QEMU, format, args...) }

	if n := len(m.snapshots); !m.active() && n > 0 && flags&libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA == 0 {
		return refuse("cannot delete inactive domain with %d snapshots", n)
	}

	if n := len(m.checkpoints); !m.active() && n > 0 && flags&libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA == 0 {
		return refuse("cannot delete inactive domain with %d checkpoints", n)
	}

	if m.managedSave && flags&libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE == 0 {
		return refuse("Refusing to undefine while domain managed save image exists")
	}

	switch path := nvramPath(m.def); {
	case flags&nvram == nvram:
		return refuse("cannot both keep and delete nvram")
	case flags&tpm == tpm:
		return refuse("cannot both keep and delete TPM")
	case path != "" && h.files[path] != nil && flags&nvram == 0:
		return refuse("cannot undefine domain with nvram")
	}

	return nil
}
