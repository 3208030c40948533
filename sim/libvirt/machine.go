package libvirt

import (
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// machine is a domain as the daemon has it.
type machine struct {
	uuid, name string
	// def is the definition, nil for a transient domain; live is what runs, nil while the domain is off.
	def, live *libvirtxml.Domain
	// known says that there was a definition once.
	known bool

	// read are the tags as they were last read from the text of the metadata.
	read     map[string]string
	readFrom string
	// incarnation counts the domains with this UUID that there were.
	incarnation int

	id        int // -1 while off.
	state     libvirt.DomainState
	reason    int
	autostart bool
	boots     int
	guest     *guest
	waiting   bool        // The guest boots when the domain is no longer paused.
	leaving   *time.Timer // It runs while the guest does what it was asked to by ACPI.
	deaf      bool        // The guest does not hear ACPI.
	agent     bool

	managedSave bool
	savedPaused bool
	snapshots   []*snapshot
	snapshot    *snapshot // the current one
	checkpoints []*checkpoint

	// job is the API that works on the domain, empty for none; idle is closed when it is done.
	job    string
	idle   chan struct{}
	killed bool
	// hidden is how many lists leave the domain out.
	hidden int
}

func (m *machine) active() bool     { return m.live != nil }
func (m *machine) persistent() bool { return m.def != nil }

// current is what runs, or would run.
func (m *machine) current() *libvirtxml.Domain {
	if m.live != nil {
		return m.live
	}

	return m.def
}

// definition is the definition, or what runs if there is none.
func (m *machine) definition() *libvirtxml.Domain {
	if m.def != nil {
		return m.def
	}

	return m.live
}

func (m *machine) enter(state libvirt.DomainState, reason int) { m.state, m.reason = state, reason }

// patience is how long a call waits for another one that works on the same domain.
const patience = 30 * time.Second

// jobLocked does work on a domain, one piece at a time.
func (h *Hypervisor) jobLocked(m *machine, api string, work func() error) error {
	deadline := time.Now().Add(patience)

	for m.job != "" {
		holder, idle := m.job, m.idle

		h.mu.Unlock()

		timer := time.NewTimer(time.Until(deadline))
		late := false

		select {
		case <-idle:
		case <-timer.C:
			late = true
		case <-h.ctx.Done():
			late = true
		}

		timer.Stop()
		h.mu.Lock()

		switch {
		case late:
			return failure(libvirt.ERR_OPERATION_TIMEOUT, libvirt.FROM_QEMU,
				"Timed out during operation: cannot acquire state change lock (held by monitor=%s)", holder)
		case h.domains[m.uuid] != m:
			return noDomain(m.uuid, m.name)
		}
	}

	m.job, m.idle = "remoteDispatchDomain"+api, make(chan struct{})

	defer func() {
		close(m.idle)
		m.job, m.idle = "", nil
	}()

	return work()
}

// defineLocked takes a definition, for a new domain or in the place of the one that there is.
func (h *Hypervisor) defineLocked(doc string, validate bool) (*machine, error) {
	def, err := h.parseDomain(doc, validate)
	if err != nil {
		return nil, err
	}

	m, err := h.domainOfLocked(def)
	if err != nil {
		return nil, err
	}

	if m == nil {
		m = &machine{uuid: def.UUID, name: def.Name, id: -1, state: libvirt.DOMAIN_SHUTOFF}
		h.enterDomainLocked(m)
		h.madeLocked(ledger.Object{Kind: "domain", ID: m.uuid, Name: m.name})
	}

	detail := int(libvirt.DOMAIN_EVENT_DEFINED_ADDED)
	if m.known {
		detail = int(libvirt.DOMAIN_EVENT_DEFINED_UPDATED)
	}

	m.def, m.known = def, true
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_DEFINED, detail)

	return m, nil
}

// enterDomainLocked adds a new domain.
func (h *Hypervisor) enterDomainLocked(m *machine) {
	h.incarnations[m.uuid]++
	m.incarnation = h.incarnations[m.uuid]
	h.domains[m.uuid] = m
}

// domainOfLocked returns the domain that a definition is of, nil for a new one. A name has one UUID, and a UUID one name.
func (h *Hypervisor) domainOfLocked(def *libvirtxml.Domain) (*machine, error) {
	if m, ok := h.domains[def.UUID]; ok {
		if m.name != def.Name {
			return nil, failed(libvirt.FROM_DOMAIN, "domain '%s' is already defined with uuid %s", m.name, m.uuid)
		}

		return m, nil
	}

	if m := h.domainNamedLocked(def.Name); m != nil {
		return nil, failed(libvirt.FROM_DOMAIN, "domain '%s' already exists with uuid %s", m.name, m.uuid)
	}

	return nil, nil //nolint:nilnil // There is none, as the contract says.
}

func (h *Hypervisor) domainNamedLocked(name string) *machine {
	for _, m := range h.domains {
		if m.name == name {
			return m
		}
	}

	return nil
}

// startLocked switches a domain on. The caller has the job.
func (h *Hypervisor) startLocked(m *machine, def *libvirtxml.Domain, paused bool) error {
	def = cloneDomain(def)

	err := h.fillFirmware(def)
	if err == nil {
		err = h.checkStartLocked(m, def)
	}

	if err != nil {
		m.enter(libvirt.DOMAIN_SHUTOFF, int(libvirt.DOMAIN_SHUTOFF_FAILED))

		return err
	}

	h.onLocked(m, def)
	h.pauseLocked("Domain.Create")

	if m.killed || h.closed {
		h.haltLocked(m, libvirt.DOMAIN_SHUTOFF_FAILED)

		return failed(libvirt.FROM_QEMU, "domain is not running")
	}

	h.provideLocked(m)

	h.startedLocked(m, paused)
	h.bootLocked(m)

	return nil
}

// onLocked gives a domain an emulator, which does not run yet. It keeps the description.
func (h *Hypervisor) onLocked(m *machine, def *libvirtxml.Domain) {
	h.lastID++
	m.id, m.live, m.killed = h.lastID, def, false
	m.live.ID = new(m.id)
	m.enter(libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_STARTING_UP))
}

// startedLocked takes a domain that is on out of its start, and sends the events: that the processor runs comes before that the
// domain has started, but after that it has been restored.
func (h *Hypervisor) startedLocked(m *machine, paused bool) {
	restored := m.managedSave
	if restored {
		paused = paused || m.savedPaused
		h.dropManagedSaveLocked(m)
	}

	switch {
	case restored && paused:
		m.enter(libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_MIGRATION))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_RESTORED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(libvirt.DOMAIN_EVENT_SUSPENDED_RESTORED))
	case restored:
		m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_RESTORED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_RESTORED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_RESUMED, int(libvirt.DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT))
	case paused:
		m.enter(libvirt.DOMAIN_PAUSED, int(libvirt.DOMAIN_PAUSED_USER))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_BOOTED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(libvirt.DOMAIN_EVENT_SUSPENDED_PAUSED))
	default:
		m.enter(libvirt.DOMAIN_RUNNING, int(libvirt.DOMAIN_RUNNING_BOOTED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_RESUMED, int(libvirt.DOMAIN_EVENT_RESUMED_UNPAUSED))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STARTED, int(libvirt.DOMAIN_EVENT_STARTED_BOOTED))
	}
}

// stopLocked switches a domain that is on off, and says so.
func (h *Hypervisor) stopLocked(m *machine, reason libvirt.DomainShutoffReason, detail libvirt.DomainEventStoppedDetailType) {
	h.haltLocked(m, reason)
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_STOPPED, int(detail))
	h.forgetTransientLocked(m)
}

// cutLocked is a domain that is switched off from outside.
func (h *Hypervisor) cutLocked(m *machine) {
	h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SHUTDOWN, int(libvirt.DOMAIN_EVENT_SHUTDOWN_HOST))
	h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_DESTROYED, libvirt.DOMAIN_EVENT_STOPPED_DESTROYED)
}

// haltLocked switches a domain off.
func (h *Hypervisor) haltLocked(m *machine, reason libvirt.DomainShutoffReason) {
	m.guest.stop()

	if m.leaving != nil {
		m.leaving.Stop()
		m.leaving = nil
	}

	m.live, m.id, m.agent, m.waiting = nil, -1, false, false
	m.enter(libvirt.DOMAIN_SHUTOFF, int(reason))
}

// forgetTransientLocked drops a domain that is neither on nor defined.
func (h *Hypervisor) forgetTransientLocked(m *machine) {
	if m.active() || m.persistent() || h.domains[m.uuid] != m {
		return
	}

	h.dropSnapshotsLocked(m)
	delete(h.domains, m.uuid)
	h.goneLocked("domain", m.uuid)
}

func (m *machine) xml(inactive bool) (string, error) {
	def := m.current()
	if inactive && m.def != nil {
		def = m.def
	}

	if inactive && def.ID != nil {
		def = cloneDomain(def)
		def.ID = nil
	}

	text, err := def.Marshal()
	if err != nil {
		return "", internal(libvirt.FROM_DOMAIN, "%s", err)
	}

	return written(text), nil
}
