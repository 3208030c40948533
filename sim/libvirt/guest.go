package libvirt

import (
	"context"
	"slices"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// Guest is what a domain is to the software that boots in it.
type Guest struct {
	// Name and UUID are the domain's; the UUID is that of SMBIOS.
	Name, UUID string
	// SMBIOS are the entries of sysinfo by block and name ("system.serial").
	SMBIOS map[string]string
	// OEMStrings are the OEM strings of SMBIOS.
	OEMStrings []string
	// Kernel and Cmdline are those of a domain that boots a kernel directly.
	Kernel, Cmdline string
	// MACs are the hardware addresses of its interfaces.
	MACs []string
	// Disks are its disks and CD-ROMs, in the order of the description.
	Disks []Disk
	// Seed is the content of the first CD-ROM, nil if there is none.
	Seed []byte
	// Domain is the whole description.
	Domain *libvirtxml.Domain

	h *Hypervisor
	m *machine
	r *guest
}

// Disk is a disk of a guest.
type Disk struct {
	// Device is "disk" or "cdrom", Target the name of its place ("vda"), Bus what it is on.
	Device, Target, Bus string
	// Path is the file of the host, Size the number of bytes that the guest sees.
	Path string
	Size uint64
	// Start is the first MiB of what the guest reads there, less if there is less.
	Start []byte
}

// Reboot is the guest that restarts by itself. Its context ends; the boot function is to return.
func (g Guest) Reboot() {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()

	if g.m.guest == g.r && g.m.active() && !g.h.closed {
		g.h.resetLocked(g.m)
	}
}

// Sleep is the guest that suspends itself to memory, from which only a wake-up brings it back.
func (g Guest) Sleep() {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()

	if g.m.guest == g.r && g.m.state == libvirt.DOMAIN_RUNNING {
		g.m.enter(libvirt.DOMAIN_PMSUSPENDED, int(libvirt.DOMAIN_PMSUSPENDED_UNKNOWN))
		g.h.lifecycleLocked(g.m, libvirt.DOMAIN_EVENT_PMSUSPENDED, int(libvirt.DOMAIN_EVENT_PMSUSPENDED_MEMORY))
	}
}

// Agent connects the guest's agent, or disconnects it, if the domain has a channel for it.
func (g Guest) Agent(connected bool) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()

	if g.m.guest != g.r || !g.m.hasAgent() || g.m.agent == connected {
		return
	}

	g.m.agent = connected
	event := &libvirt.DomainEventAgentLifecycle{
		State:  libvirt.CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_DISCONNECTED,
		Reason: libvirt.CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_REASON_CHANNEL,
	}

	if connected {
		event.State = libvirt.CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED
	}

	g.h.domainEventLocked(g.m, agentEvent, event)
}

// guest is one run of Options.Boot.
type guest struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// stop tells the guest to end. It does not wait.
func (g *guest) stop() {
	if g != nil {
		g.cancel()
	}
}

// bootLocked lets the guest of a domain boot. What ran in it before has ended by the time the new guest starts.
func (h *Hypervisor) bootLocked(m *machine) {
	m.boots++
	m.guest.stop()

	if h.opts.Boot == nil || h.closed {
		return
	}

	// A processor that is paused before it has done anything boots when it goes on.
	if m.waiting = m.state == libvirt.DOMAIN_PAUSED; !m.waiting {
		h.runLocked(m)
	}
}

// runLocked lets the software of a guest that boots run.
func (h *Hypervisor) runLocked(m *machine) {
	m.waiting = false

	ctx, cancel := context.WithCancel(h.ctx)
	before, now := m.guest, &guest{cancel: cancel, done: make(chan struct{})}
	m.guest = now
	g := h.guestLocked(m, now)

	h.leaseLocked(m)
	h.tasks.Go(func() {
		defer close(now.done)
		defer cancel()

		if before != nil {
			<-before.done
		}

		if ctx.Err() == nil {
			h.opts.Boot(ctx, g)
		}

		if ctx.Err() != nil {
			return
		}

		h.mu.Lock()
		defer h.mu.Unlock()

		if m.guest == now && m.active() && !h.closed {
			h.leaveLocked(m)
		}
	})
}

// guestLocked describes the domain to what boots in it.
func (h *Hypervisor) guestLocked(m *machine, r *guest) Guest {
	def := m.live
	g := Guest{Name: m.name, UUID: m.uuid, SMBIOS: map[string]string{}, Domain: cloneDomain(def), h: h, m: m, r: r}

	for _, info := range def.SysInfo {
		g.readSMBIOS(info.SMBIOS)
	}

	if def.OS != nil {
		g.Kernel, g.Cmdline = def.OS.Kernel, def.OS.Cmdline
	}

	if def.Devices == nil {
		return g
	}

	for _, nic := range def.Devices.Interfaces {
		g.MACs = append(g.MACs, nic.MAC.Address)
	}

	for _, disk := range def.Devices.Disks {
		path := h.diskPathLocked(&disk)
		one := Disk{Device: disk.Device, Path: path}

		if disk.Target != nil {
			one.Target, one.Bus = disk.Target.Dev, disk.Target.Bus
		}

		if f := h.files[path]; f != nil {
			one.Size = f.capacity()
			one.Start = h.readLocked(f, 0, min(one.Size, 1<<20))

			if disk.Device == "cdrom" && g.Seed == nil {
				g.Seed = h.readLocked(f, 0, one.Size)
			}
		}

		g.Disks = append(g.Disks, one)
	}

	return g
}

func (g *Guest) readSMBIOS(info *libvirtxml.DomainSysInfoSMBIOS) {
	if info == nil {
		return
	}

	read := func(block string, entries []libvirtxml.DomainSysInfoEntry) {
		for _, e := range entries {
			g.SMBIOS[block+"."+e.Name] = e.Value
		}
	}

	if info.BIOS != nil {
		read("bios", info.BIOS.Entry)
	}

	if info.System != nil {
		read("system", info.System.Entry)
	}

	for _, board := range info.BaseBoard {
		read("baseBoard", board.Entry)
	}

	if info.Chassis != nil {
		read("chassis", info.Chassis.Entry)
	}

	if info.OEMStrings != nil {
		g.OEMStrings = slices.Clone(info.OEMStrings.Entry)
	}
}
