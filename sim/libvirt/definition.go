package libvirt

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/google/uuid"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// malformed is the answer to a document that is no XML, or not the one that is wanted. The words are another library's.
func malformed(from libvirt.ErrorDomain, what string, err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "expected element type") {
		return failure(libvirt.ERR_XML_ERROR, libvirt.FROM_XML, "XML error: unexpected root element: %s", err)
	}

	return failure(libvirt.ERR_XML_DETAIL, from, "(%s):1: %s", what, err)
}

// parseDomain reads the description of a domain, checks it as far as libvirt does, and fills in what libvirt fills in.
func (h *Hypervisor) parseDomain(doc string, validate bool) (*libvirtxml.Domain, error) {
	def := &libvirtxml.Domain{}
	if err := def.Unmarshal(doc); err != nil {
		return nil, malformed(libvirt.FROM_DOMAIN, "domain_definition", err)
	}

	if validate {
		if err := validateDomain(doc, def); err != nil {
			return nil, err
		}
	}

	if err := h.checkDomain(def); err != nil {
		return nil, err
	}

	if err := h.fillDomain(def); err != nil {
		return nil, err
	}

	return def, nil
}

// checkDomain refuses what libvirt refuses when a domain is defined.
func (h *Hypervisor) checkDomain(def *libvirtxml.Domain) error {
	switch {
	case def.Type == "":
		return internal(libvirt.FROM_DOMAIN, "missing domain type attribute")
	case def.Name == "":
		return failure(libvirt.ERR_NO_NAME, libvirt.FROM_DOMAIN, "missing name information")
	case strings.Contains(def.Name, "/"):
		return xmlError(libvirt.FROM_DOMAIN, "name %s cannot contain '/'", def.Name)
	case def.OS == nil || def.OS.Type == nil:
		return xmlError(libvirt.FROM_DOMAIN, "an os <type> must be specified")
	case def.Memory == nil || def.Memory.Value == 0:
		return xmlError(libvirt.FROM_DOMAIN, "Memory size must be specified via <memory> or in the <numa> configuration")
	}

	if def.UUID != "" {
		parsed, err := uuid.Parse(def.UUID)
		if err != nil {
			return internal(libvirt.FROM_DOMAIN, "malformed uuid element")
		}

		def.UUID = parsed.String()
	}

	if err := checkSMBIOS(def); err != nil {
		return err
	}

	if err := checkDevices(def); err != nil {
		return err
	}

	return h.opts.Host.runs(def)
}

// checkSMBIOS refuses a UUID in the tables of the firmware that is not the domain's.
func checkSMBIOS(def *libvirtxml.Domain) error {
	for _, info := range def.SysInfo {
		if info.SMBIOS == nil || info.SMBIOS.System == nil {
			continue
		}

		for _, e := range info.SMBIOS.System.Entry {
			parsed, err := uuid.Parse(e.Value)

			switch {
			case e.Name != "uuid":
			case err != nil:
				return failure(libvirt.ERR_XML_DETAIL, libvirt.FROM_DOMAIN, "malformed <sysinfo> uuid element")
			case def.UUID == "":
				def.UUID = parsed.String()
			case def.UUID != parsed.String():
				return failure(libvirt.ERR_XML_DETAIL, libvirt.FROM_DOMAIN, "UUID mismatch between <uuid> and <sysinfo>")
			}
		}
	}

	return nil
}

func checkDevices(def *libvirtxml.Domain) error {
	if def.Devices == nil {
		return nil
	}

	if err := checkDisks(def); err != nil {
		return err
	}

	if err := checkInterfaces(def); err != nil {
		return err
	}

	return checkBootOrder(def)
}

// checkInterfaces refuses bad hardware addresses, and interfaces on nothing.
func checkInterfaces(def *libvirtxml.Domain) error {
	for _, nic := range def.Devices.Interfaces {
		if nic.Source == nil || nic.Source.Network != nil && nic.Source.Network.Network == "" {
			return xmlError(libvirt.FROM_DOMAIN, "interface type='network' requires a 'source' element")
		}

		if nic.MAC == nil || nic.MAC.Address == "" {
			continue
		}

		mac, err := net.ParseMAC(nic.MAC.Address)

		switch {
		case err != nil || len(mac) != 6:
			return xmlError(libvirt.FROM_DOMAIN, "unable to parse mac address '%s'", nic.MAC.Address)
		case mac[0]&1 != 0:
			return xmlError(libvirt.FROM_DOMAIN, "expected unicast mac address, found multicast '%s'", nic.MAC.Address)
		}
	}

	return nil
}

func checkDisks(def *libvirtxml.Domain) error {

	targets := map[string]libvirtxml.DomainDisk{}

	for _, disk := range def.Devices.Disks {
		if disk.Target == nil || disk.Target.Dev == "" {
			return failure(libvirt.ERR_NO_TARGET, libvirt.FROM_DOMAIN, "missing target information for device %s", sourceName(&disk))
		}

		if before, ok := targets[disk.Target.Dev]; ok {
			return xmlError(libvirt.FROM_DOMAIN, "target '%s' duplicated for disk sources '%s' and '%s'",
				disk.Target.Dev, sourceName(&before), sourceName(&disk))
		}

		targets[disk.Target.Dev] = disk
	}

	return nil
}

// checkBootOrder refuses devices of the same order, and orders beside a list of kinds of device.
func checkBootOrder(def *libvirtxml.Domain) error {
	orders := map[uint]bool{}
	check := func(boot *libvirtxml.DomainDeviceBoot) error {
		if boot == nil {
			return nil
		}

		if orders[boot.Order] {
			return unsupportedConfig(libvirt.FROM_DOMAIN, "boot order '%d' used for more than one device", boot.Order)
		}

		if len(def.OS.BootDevices) > 0 {
			return unsupportedConfig(libvirt.FROM_DOMAIN, "per-device boot elements cannot be used together with os/boot elements")
		}

		orders[boot.Order] = true

		return nil
	}

	for _, disk := range def.Devices.Disks {
		if err := check(disk.Boot); err != nil {
			return err
		}
	}

	for _, nic := range def.Devices.Interfaces {
		if err := check(nic.Boot); err != nil {
			return err
		}
	}

	return nil
}

func sourceName(disk *libvirtxml.DomainDisk) string {
	switch {
	case disk.Source == nil:
		return "(null)"
	case disk.Source.File != nil:
		return disk.Source.File.File
	case disk.Source.Block != nil:
		return disk.Source.Block.Dev
	default:
		return "(null)"
	}
}

// fillDomain adds what libvirt adds: the UUID, units, the machine's version, hardware addresses, and other defaults.
func (h *Hypervisor) fillDomain(def *libvirtxml.Domain) error {
	def.XMLName.Space = ""
	def.ID = nil

	if def.UUID == "" {
		def.UUID = h.newUUID()
	}

	kib, err := scale(uint64(def.Memory.Value), def.Memory.Unit, 1024)
	if err != nil {
		return err
	}

	kib /= 1024
	def.Memory = &libvirtxml.DomainMemory{Value: uint(kib), Unit: "KiB", DumpCore: def.Memory.DumpCore}

	if def.CurrentMemory == nil {
		def.CurrentMemory = &libvirtxml.DomainCurrentMemory{Value: uint(kib), Unit: "KiB"}
	} else {
		now, err := scale(uint64(def.CurrentMemory.Value), def.CurrentMemory.Unit, 1024)
		if err != nil {
			return err
		}

		def.CurrentMemory = &libvirtxml.DomainCurrentMemory{Value: uint(now / 1024), Unit: "KiB"}
	}

	if def.VCPU == nil {
		def.VCPU = &libvirtxml.DomainVCPU{Value: 1}
	}

	def.VCPU.Placement = cmp.Or(def.VCPU.Placement, "static")
	def.OS.Type.Arch = cmp.Or(def.OS.Type.Arch, h.opts.Host.Arches[0])
	def.OS.Type.Machine = h.opts.Host.machine(def.OS.Type.Arch, def.OS.Type.Machine)
	def.OnPoweroff = cmp.Or(def.OnPoweroff, "destroy")
	def.OnReboot = cmp.Or(def.OnReboot, "restart")
	def.OnCrash = cmp.Or(def.OnCrash, "destroy")

	if def.Clock == nil {
		def.Clock = &libvirtxml.DomainClock{Offset: "utc"}
	}

	if def.Devices == nil {
		def.Devices = &libvirtxml.DomainDeviceList{}
	}

	if model := map[string]string{"x86_64": "qemu64", "aarch64": "cortex-a15"}[def.OS.Type.Arch]; def.CPU == nil && def.Type == "qemu" && model != "" {
		def.CPU = &libvirtxml.DomainCPU{
			Mode: "custom", Match: "exact", Check: "none", Model: &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: model},
		}
	}

	def.Devices.Emulator = cmp.Or(def.Devices.Emulator, emulator(def.OS.Type.Arch))
	h.fillDevices(def)

	return nil
}

func (h *Hypervisor) fillDevices(def *libvirtxml.Domain) {
	boots := false

	for i := range def.Devices.Disks {
		disk := &def.Devices.Disks[i]
		disk.Device = cmp.Or(disk.Device, "disk")

		if disk.Driver == nil {
			disk.Driver = &libvirtxml.DomainDiskDriver{}
		}

		disk.Driver.Name = cmp.Or(disk.Driver.Name, "qemu")
		disk.Driver.Type = cmp.Or(disk.Driver.Type, "raw")
		boots = boots || disk.Boot != nil

		if disk.Device == "cdrom" {
			disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		}
	}

	for i := range def.Devices.Interfaces {
		nic := &def.Devices.Interfaces[i]
		boots = boots || nic.Boot != nil

		if nic.MAC == nil || nic.MAC.Address == "" {
			h.random++
			nic.MAC = &libvirtxml.DomainInterfaceMAC{Address: fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(h.random>>16), byte(h.random>>8), byte(h.random))}
		}

		nic.MAC.Address = strings.ToLower(nic.MAC.Address)

		if nic.Model == nil {
			model := "rtl8139"
			if def.OS.Type.Arch != "x86_64" {
				model = "virtio"
			}

			nic.Model = &libvirtxml.DomainInterfaceModel{Type: model}
		}
	}

	if !boots && len(def.OS.BootDevices) == 0 && def.OS.Kernel == "" {
		def.OS.BootDevices = []libvirtxml.DomainBootDevice{{Dev: "hd"}}
	}

	if def.Devices.MemBalloon == nil {
		def.Devices.MemBalloon = &libvirtxml.DomainMemBalloon{Model: "virtio"}
	}
}

func memoryKiB(def *libvirtxml.Domain) uint64        { return uint64(def.Memory.Value) }
func currentMemoryKiB(def *libvirtxml.Domain) uint64 { return uint64(def.CurrentMemory.Value) }
func processors(def *libvirtxml.Domain) uint         { return def.VCPU.Value }

// cloneDomain returns a copy that shares nothing.
func cloneDomain(def *libvirtxml.Domain) *libvirtxml.Domain {
	text, err := def.Marshal()
	if err != nil {
		panic(err) // It came out of a document.
	}

	c := &libvirtxml.Domain{}
	if err := c.Unmarshal(text); err != nil {
		panic(err) // See above.
	}

	return c
}

// hasAgent says whether the domain has a channel for a guest agent.
func (m *machine) hasAgent() bool {
	return m.live != nil && slices.ContainsFunc(m.live.Devices.Channels, func(c libvirtxml.DomainChannel) bool {
		return c.Target != nil && c.Target.VirtIO != nil && c.Target.VirtIO.Name == "org.qemu.guest_agent.0"
	})
}

// diskPathLocked is where on the host the content of a disk is.
func (h *Hypervisor) diskPathLocked(disk *libvirtxml.DomainDisk) string {
	switch source := disk.Source; {
	case source == nil:
		return ""
	case source.File != nil:
		return source.File.File
	case source.Block != nil:
		return source.Block.Dev
	case source.Volume != nil:
		if p := h.pools[source.Volume.Pool]; p != nil {
			return p.target() + "/" + source.Volume.Volume
		}

		return ""
	case source.Network != nil:
		return source.Network.Name
	default:
		return ""
	}
}
