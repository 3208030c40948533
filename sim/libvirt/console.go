package libvirt

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// defaultNetwork is the network that distributions bring along.
const defaultNetwork = `<network>
  <name>default</name>
  <forward mode='nat'/>
  <bridge name='virbr0' stp='on' delay='0'/>
  <ip address='192.168.122.1' netmask='255.255.255.0'>
    <dhcp>
      <range start='192.168.122.2' end='192.168.122.254'/>
    </dhcp>
  </ip>
</network>`

// furnish gives the host what it has from the start.
func (h *Hypervisor) furnish() {
	if h.opts.Pools == nil {
		h.opts.Pools = []Pool{{Name: "default", Target: "/var/lib/libvirt/images"}}
	}

	if h.opts.Networks == nil {
		h.opts.Networks = []string{defaultNetwork}
	}

	for _, p := range h.opts.Pools {
		must(h.AddPool(p))
	}

	for _, n := range h.opts.Networks {
		must(h.AddNetwork(n))
	}

	for _, d := range h.opts.Devices {
		must(h.AddDevice(d))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// AddPool adds an active storage pool that belongs to the host.
func (h *Hypervisor) AddPool(p Pool) error {
	p.Type = cmp.Or(p.Type, "dir")
	def := libvirtxml.StoragePool{Type: p.Type, Name: p.Name}

	if p.Type == "dir" || p.Type == "fs" || p.Type == "netfs" {
		def.Target = &libvirtxml.StoragePoolTarget{Path: cmp.Or(p.Target, "/var/lib/libvirt/"+p.Name)}
	} else {
		def.Source = &libvirtxml.StoragePoolSource{Name: cmp.Or(p.Target, p.Name)}
	}

	doc, err := def.Marshal()
	if err != nil {
		return fmt.Errorf("describe storage pool %q: %w", p.Name, err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	made, err := h.definePoolLocked(doc)
	if err != nil {
		return fmt.Errorf("add storage pool %q: %w", p.Name, err)
	}

	made.capacity = cmp.Or(p.Capacity, defaultPoolSize)
	made.autostart = true
	h.startPoolLocked(made)
	h.keepLocked("pool", p.Name, p.Name)

	return nil
}

// AddNetwork adds an active network that belongs to the host, described in libvirt's XML.
func (h *Hypervisor) AddNetwork(doc string) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	n, err := h.defineNetworkLocked(doc)
	if err != nil {
		return fmt.Errorf("add network: %w", err)
	}

	n.autostart = true
	h.startNetworkLocked(n)
	h.keepLocked("network", n.name, n.name)

	return nil
}

// keepLocked says that an object may stay.
func (h *Hypervisor) keepLocked(kind, id, name string) {
	h.goneLocked(kind, id)
	h.madeLocked(ledger.Object{Kind: kind, ID: id, Name: name, Keep: true})
}

// Machines returns all domains by their names. Their ids are their UUIDs, with a number behind it for a domain that has the UUID of
// one that is gone, and their tags the attributes of the elements of their metadata.
func (h *Hypervisor) Machines() []ledger.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()

	var out []ledger.Machine

	for _, m := range h.domainsLocked() {
		out = append(out, ledger.Machine{ID: h.machineID(m), Name: m.name, UUID: m.uuid, Tags: m.tags(), On: m.active(), Boots: m.boots})
	}

	return out
}

func (h *Hypervisor) machineID(m *machine) string {
	id := h.bookID(m.uuid)
	if m.incarnation > 1 {
		id += fmt.Sprintf("#%d", m.incarnation)
	}

	return id
}

// tags are read once for each text of the metadata: tests look often.
func (m *machine) tags() map[string]string {
	text := ""
	if metadata := m.current().Metadata; metadata != nil {
		text = metadata.XML
	}

	if m.read == nil || m.readFrom != text {
		m.read, m.readFrom = readTags(metadataOf(m.current())), text
	}

	return maps.Clone(m.read)
}

func readTags(elements []element) map[string]string {
	tags := map[string]string{}

	for _, e := range elements {
		var parsed struct {
			Attrs []xml.Attr `xml:",any,attr"`
		}

		if xml.Unmarshal([]byte(e.plain), &parsed) != nil {
			continue
		}

		for _, a := range parsed.Attrs {
			tags[a.Name.Local] = a.Value
		}
	}

	return tags
}

// machineLocked returns the domain of an id that Machines has given out.
func (h *Hypervisor) machineLocked(id string) (*machine, error) {
	for _, m := range h.domains {
		if h.machineID(m) == id {
			return m, nil
		}
	}

	return nil, fmt.Errorf("host %q has no domain %q", h.opts.Hostname, id)
}

// DeleteMachine takes a domain away, running or not, with all that libvirt keeps for it, as someone with virsh would. Its volumes
// stay.
func (h *Hypervisor) DeleteMachine(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	m, err := h.machineLocked(id)
	if err != nil {
		return err
	}

	h.ledger.Note("someone deletes domain %s", m.name)

	if m.active() {
		m.killed = true
		h.cutLocked(m)
	}

	if m.persistent() {
		h.undefineLocked(m, 0)
	}

	return nil
}

// SwitchOff switches a domain off as someone with virsh would.
func (h *Hypervisor) SwitchOff(id string) error {
	return h.console(id, "off", func(m *machine) error {
		if !m.active() {
			return notRunning()
		}

		m.killed = true
		h.cutLocked(m)

		return nil
	})
}

// SwitchOn switches a domain on as someone with virsh would.
func (h *Hypervisor) SwitchOn(id string) error {
	return h.console(id, "on", func(m *machine) error {
		if m.active() {
			return notValid(libvirt.FROM_QEMU, "domain is already running")
		}

		return h.startLocked(m, m.def, false)
	})
}

// Pause pauses a domain as someone with virsh, or the hypervisor when a disk is full, would.
func (h *Hypervisor) Pause(id string, reason libvirt.DomainPausedReason) error {
	return h.console(id, "to pause", func(m *machine) error {
		if m.state != libvirt.DOMAIN_RUNNING {
			return notRunning()
		}

		details := map[libvirt.DomainPausedReason]libvirt.DomainEventSuspendedDetailType{
			libvirt.DOMAIN_PAUSED_IOERROR: libvirt.DOMAIN_EVENT_SUSPENDED_IOERROR,
		}

		m.enter(libvirt.DOMAIN_PAUSED, int(reason))
		h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_SUSPENDED, int(details[reason]))

		return nil
	})
}

// Crash ends a domain as a guest that panics does, or an emulator that dies. One whose description says so stays, crashed.
func (h *Hypervisor) Crash(id string) error {
	return h.console(id, "to crash", func(m *machine) error {
		if !m.active() {
			return notRunning()
		}

		switch m.live.OnCrash {
		case "preserve":
			m.guest.stop()
			m.enter(libvirt.DOMAIN_CRASHED, int(libvirt.DOMAIN_CRASHED_PANICKED))
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_CRASHED, int(libvirt.DOMAIN_EVENT_CRASHED_PANICKED))
		case "restart":
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_CRASHED, int(libvirt.DOMAIN_EVENT_CRASHED_PANICKED))
			h.resetLocked(m)
		default:
			h.lifecycleLocked(m, libvirt.DOMAIN_EVENT_CRASHED, int(libvirt.DOMAIN_EVENT_CRASHED_PANICKED))
			h.stopLocked(m, libvirt.DOMAIN_SHUTOFF_CRASHED, libvirt.DOMAIN_EVENT_STOPPED_CRASHED)
		}

		return nil
	})
}

// Deafen makes a domain's guest not hear the power button, or hear it again.
func (h *Hypervisor) Deafen(id string, deaf bool) error {
	return h.console(id, "its power button", func(m *machine) error {
		m.deaf = deaf

		return nil
	})
}

// HideMachine leaves a domain out of the next lists.
func (h *Hypervisor) HideMachine(id string, lists int) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if m, err := h.machineLocked(id); err == nil {
		m.hidden = lists
	}
}

func (h *Hypervisor) console(id, what string, act func(*machine) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	m, err := h.machineLocked(id)
	if err != nil {
		return err
	}

	h.ledger.Note("someone switches %s domain %s", what, m.name)

	return act(m)
}

// AddForeign makes an object that belongs to somebody else: kind is "domain", "volume" or "nvram", the last named by its domain. A
// volume goes to the first active pool where its name is free. The books count it as no leak.
func (h *Hypervisor) AddForeign(kind, name string) (id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	switch kind {
	case "domain":
		var m *machine

		m, err = h.defineLocked(fmt.Sprintf("<domain type='qemu'><name>%s</name><memory>1024</memory><os><type arch='%s'>hvm</type></os></domain>",
			name, h.opts.Host.Arches[0]), false)
		if err == nil {
			id = m.uuid
		}
	case "volume":
		id, err = h.foreignVolumeLocked(name)
	case "nvram":
		if id = nvramFolder + name + "_VARS.fd"; h.files[id] != nil {
			err = fmt.Errorf("file %q is there already", id)
		} else {
			h.files[id] = newFile(nvramSize, "0600")
		}
	default:
		err = fmt.Errorf("kind %q is none of domain, volume, nvram", kind)
	}

	if err != nil {
		return "", fmt.Errorf("add foreign %s %q: %w", kind, name, err)
	}

	h.ledger.Note("somebody else makes %s %q", kind, name)
	h.keepLocked(kind, id, name)

	return h.bookID(id), nil
}

func (h *Hypervisor) foreignVolumeLocked(name string) (path string, err error) {
	for _, p := range h.poolsLocked() {
		path := p.target() + "/" + name
		if !p.active || p.volumes[name] != nil || h.files[path] != nil {
			continue
		}

		format := "raw"
		if strings.HasSuffix(name, ".qcow2") && p.files() {
			format = "qcow2"
		}

		v, err := h.buildLocked(p, newVolume{name: name, path: path, format: format}, "", func() (*file, error) {
			return h.newVolumeFileLocked(p, newVolume{format: format, capacity: 1 << 20, mode: "0600", version: 2}, 0)
		})
		if err != nil {
			return "", err
		}

		return v.path, nil
	}

	return "", fmt.Errorf("every active pool has a volume %q", name)
}

// Restart restarts the daemon: all connections break, guests go on.
func (h *Hypervisor) Restart() {
	h.StopDaemon()
	h.StartDaemon()
}

// StopDaemon ends the daemon. Connections break and new ones are refused; guests go on.
func (h *Hypervisor) StopDaemon() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.down = true
	h.ledger.Note("the daemon of host %s ends", h.opts.Hostname)

	for c := range h.conns {
		c.breakOffLocked(libvirt.CONNECT_CLOSE_REASON_EOF)
	}
}

// StartDaemon starts it again.
func (h *Hypervisor) StartDaemon() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.down = false
	h.ledger.Note("the daemon of host %s starts", h.opts.Hostname)
}

// Freeze makes the daemon, or the way to it, silent: calls are not answered until Thaw, or until keepalive ends the connection.
func (h *Hypervisor) Freeze() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.frozen == nil {
		h.frozen = make(chan struct{})
		h.ledger.Note("host %s does not answer", h.opts.Hostname)
	}
}

// Thaw lets a silent daemon go on.
func (h *Hypervisor) Thaw() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.frozen != nil {
		close(h.frozen)
		h.frozen = nil
		h.ledger.Note("host %s answers again", h.opts.Hostname)
	}
}

// Reboot is the host that loses power and comes up again: guests are off, but for those that start with it.
func (h *Hypervisor) Reboot() {
	h.StopDaemon()
	h.mu.Lock()

	for _, m := range h.domainsLocked() {
		if m.active() {
			m.killed = true
			h.haltLocked(m, libvirt.DOMAIN_SHUTOFF_UNKNOWN)
			h.forgetTransientLocked(m)
		}
	}

	for _, n := range h.networks {
		n.live, n.leases = nil, nil
		if n.autostart {
			h.startNetworkLocked(n)
		}
	}

	for _, p := range h.pools {
		p.active = p.autostart
		if p.active {
			h.refreshLocked(p)
		}
	}

	for _, m := range h.domainsLocked() {
		if m.autostart {
			_ = h.startLocked(m, m.def, false) // What does not start is off, as on a real host.
		}
	}

	h.mu.Unlock()
	h.StartDaemon()
}

// RemoveFile deletes a file of the host behind libvirt's back.
func (h *Hypervisor) RemoveFile(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.files[path] == nil {
		return fmt.Errorf("host %q has no file %q", h.opts.Hostname, path)
	}

	h.removeFileLocked("volume", path)

	return nil
}

// WriteFile makes a file on the host behind libvirt's back, or writes one anew.
func (h *Hypervisor) WriteFile(path string, content []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()

	f := newFile(0, "0600")
	f.write(0, content)
	h.files[path] = f
}

// ReadFile returns what is in a file of the host, as a guest that has it for a disk reads it.
func (h *Hypervisor) ReadFile(path string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	f := h.files[path]
	if f == nil {
		return nil, fmt.Errorf("host %q has no file %q", h.opts.Hostname, path)
	}

	return h.readLocked(f, 0, f.capacity()), nil
}

// Files returns the paths of all files that volumes, firmware and TPMs have on the host.
func (h *Hypervisor) Files() []string {
	h.mu.Lock()
	defer h.mu.Unlock()

	out := make([]string, 0, len(h.files))
	for path := range h.files {
		out = append(out, path)
	}

	slices.Sort(out)

	return out
}
