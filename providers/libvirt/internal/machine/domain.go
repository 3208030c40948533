package machine

import (
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const (
	// agentChannel is where the guest agent looks for its host.
	agentChannel = "org.qemu.guest_agent.0"
	tpmVersion   = "2.0"
	// consoleLogs is where libvirt's system daemon may write, and where its own log of each domain is.
	consoleLogs = "/var/log/libvirt/qemu/"
	// mostXAPIC is the most processors that the interrupt controller of a PC can address without an IOMMU.
	mostXAPIC = 255
)

// Domain is all that the description of a machine is made from.
type Domain struct {
	Request driver.Request
	Data    ClassData
	Host    Host
	Mark    Mark
	// Volumes are where the machine's disks are.
	Volumes Volumes
	// Devices are those of the host that ChooseDevices picked.
	Devices Devices
}

// XML describes the machine to libvirt. It holds no secret, as all who may list domains can read it.
func (d Domain) XML() (string, error) {
	n, data := NamesOf(d.Request.Ref), d.Data

	element, err := d.Mark.Element()
	if err != nil {
		return "", err
	}

	disks, err := d.disks()
	if err != nil {
		return "", fmt.Errorf("describe domain %q: %w", n.Domain, err)
	}

	domain := libvirtxml.Domain{
		Type:          d.Host.Type,
		Name:          n.Domain,
		UUID:          d.Request.Identity.UUID,
		Title:         "Omni machine " + d.Request.RequestID,
		Metadata:      &libvirtxml.DomainMetadata{XML: element},
		Memory:        &libvirtxml.DomainMemory{Value: uint(data.Memory), Unit: "MiB"},
		MemoryBacking: memoryBacking(data),
		VCPU:          &libvirtxml.DomainVCPU{Value: uint(data.Cores), CPUSet: d.cpuset()},
		NUMATune:      numaTune(data.NUMA),
		OS:            d.os(),
		CPU:           d.cpu(),
		// What the guest can read about itself.
		SysInfo: []libvirtxml.DomainSysInfo{{SMBIOS: &libvirtxml.DomainSysInfoSMBIOS{
			System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{
				{Name: "manufacturer", Value: "omni-infra"},
				{Name: "product", Value: "libvirt"},
				{Name: "serial", Value: d.Request.RequestID},
				{Name: "uuid", Value: d.Request.Identity.UUID},
			}},
		}}},
		Features:   &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "restart",
		Devices: &libvirtxml.DomainDeviceList{
			Disks:       disks,
			Controllers: controllers(disks),
			Interfaces:  interfaces(d.Request.Identity, data),
			Serials: []libvirtxml.DomainSerial{{
				Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
			}},
			Consoles:   []libvirtxml.DomainConsole{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
			Graphics:   graphics(data.Graphics),
			Hostdevs:   hostdevs(d.Devices),
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: none},
			RNGs: []libvirtxml.DomainRNG{{
				Model:   "virtio",
				Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			}},
		},
	}

	d.addFeatures(&domain)
	d.addDevices(domain.Devices)

	out, err := domain.Marshal()
	if err != nil {
		return "", fmt.Errorf("describe domain %q: %w", n.Domain, err)
	}

	return out, nil
}

func (d Domain) addFeatures(domain *libvirtxml.Domain) {
	if d.Data.Arch != driver.AMD64 {
		return
	}

	domain.Features.APIC = &libvirtxml.DomainFeatureAPIC{}

	if d.Data.SecureBoot {
		// Only in this mode of the processor can the firmware's variables be written.
		domain.Features.SMM = &libvirtxml.DomainFeatureSMM{State: "on"}
	}

	if d.Data.Cores > mostXAPIC {
		domain.Features.IOAPIC = &libvirtxml.DomainFeatureIOAPIC{Driver: "qemu"}
		domain.Devices.IOMMUs = []libvirtxml.DomainIOMMU{{
			Model:  "intel",
			Driver: &libvirtxml.DomainIOMMUDriver{IntRemap: "on", EIM: "on"},
		}}
	}
}

func (d Domain) addDevices(devices *libvirtxml.DomainDeviceList) {
	data := d.Data

	if data.GuestAgent {
		// Without a path libvirt gives each domain a socket of its own.
		devices.Channels = []libvirtxml.DomainChannel{{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: agentChannel}},
		}}
	}

	if data.MemoryBalloon {
		devices.MemBalloon.Model = "virtio"
	}

	if data.ConsoleLog {
		devices.Serials[0].Log = &libvirtxml.DomainChardevLog{File: consoleLogs + NamesOf(d.Request.Ref).Domain + "-console.log", Append: "on"}
	}

	if data.Video != none {
		devices.Videos = []libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: data.Video}}}
	}

	if data.Watchdog != none {
		devices.Watchdogs = []libvirtxml.DomainWatchdog{{Model: "i6300esb", Action: data.Watchdog}}
	}

	if data.needsTPM() {
		model := "tpm-crb"
		if data.Arch == driver.ARM64 {
			model = "tpm-tis"
		}

		devices.TPMs = []libvirtxml.DomainTPM{{
			Model:   model,
			Backend: &libvirtxml.DomainTPMBackend{Emulator: &libvirtxml.DomainTPMBackendEmulator{Version: tpmVersion}},
		}}
	}
}

// os says what boots the machine. libvirt knows where the distribution keeps firmware: no path is in here.
func (d Domain) os() *libvirtxml.DomainOS {
	os := &libvirtxml.DomainOS{
		Type:   &libvirtxml.DomainOSType{Arch: ArchName(d.Data.Arch), Machine: Board(d.Data.Arch), Type: "hvm"},
		SMBios: &libvirtxml.DomainSMBios{Mode: "sysinfo"},
	}

	if d.Host.firmware(d.Data) != FirmwareUEFI {
		return os
	}

	os.Firmware = "efi"

	if !d.Data.SecureBoot {
		os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{
			Features: []libvirtxml.DomainOSFirmwareFeature{{Name: "secure-boot", Enabled: "no"}},
		}

		return os
	}

	keys := "no"
	if d.Data.EnrolledKeys {
		keys = "yes"
	}

	os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
		{Name: "secure-boot", Enabled: "yes"},
		{Name: "enrolled-keys", Enabled: keys},
	}}
	os.Loader = &libvirtxml.DomainLoader{Secure: "yes"}

	return os
}

func (d Domain) cpu() *libvirtxml.DomainCPU {
	data := d.Data
	cpu := &libvirtxml.DomainCPU{Mode: data.CPU.Mode}

	switch cpu.Mode {
	case modeAuto, "":
		cpu.Mode = d.Host.CPU
	case modeCustom:
		cpu.Match, cpu.Check = "exact", "partial"
		cpu.Model = &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: data.CPU.Model}
	}

	if data.CPU.Sockets+data.CPU.Dies+data.CPU.Threads > 0 {
		cpu.Topology = &libvirtxml.DomainCPUTopology{
			Sockets: max(1, data.CPU.Sockets), Dies: data.CPU.Dies, Cores: data.Cores / data.CPU.parts(), Threads: max(1, data.CPU.Threads),
		}
	}

	if nodes := data.NUMA.GuestNodes; nodes > 0 {
		cpu.Numa = &libvirtxml.DomainNuma{}
		each := data.Cores / nodes

		for i := range nodes {
			cpus := strconv.Itoa(i * each)
			if each > 1 {
				cpus += "-" + strconv.Itoa((i+1)*each-1)
			}

			cpu.Numa.Cell = append(cpu.Numa.Cell, libvirtxml.DomainCell{
				ID: new(uint(i)), CPUs: cpus, Memory: uint(data.Memory / uint64(nodes)), Unit: "MiB",
			})
		}
	}

	if cpu.Mode == "" && cpu.Topology == nil && cpu.Numa == nil {
		return nil
	}

	return cpu
}

func memoryBacking(data ClassData) *libvirtxml.DomainMemoryBacking {
	if data.Hugepages == pagesOff || data.Hugepages == "" {
		return nil
	}

	pages := &libvirtxml.DomainMemoryHugepages{}

	if size, ok := pageKiB(data.Hugepages); ok {
		pages.Hugepages = []libvirtxml.DomainMemoryHugepage{{Size: uint(size), Unit: "KiB"}}
	}

	return &libvirtxml.DomainMemoryBacking{MemoryHugePages: pages}
}

func numaTune(numa NUMA) *libvirtxml.DomainNUMATune {
	if numa.Nodeset == "" {
		return nil
	}

	return &libvirtxml.DomainNUMATune{Memory: &libvirtxml.DomainNUMATuneMemory{Mode: numa.Mode, Nodeset: numa.Nodeset}}
}

// cpuset are the host's processors on the nodes that the memory is taken from.
func (d Domain) cpuset() string {
	if d.Data.NUMA.Nodeset == "" {
		return ""
	}

	nodeset, err := parseNodeset(d.Data.NUMA.Nodeset)
	if err != nil {
		return "" // Validate has parsed it.
	}

	var cpus []string

	for _, id := range nodeset {
		for _, node := range d.Host.Nodes {
			if node.ID != id {
				continue
			}

			for _, cpu := range node.CPUs {
				cpus = append(cpus, strconv.Itoa(cpu))
			}
		}
	}

	return strings.Join(cpus, ",")
}

func graphics(kind string) []libvirtxml.DomainGraphic {
	loopback := []libvirtxml.DomainGraphicListener{{Address: &libvirtxml.DomainGraphicListenerAddress{Address: "127.0.0.1"}}}

	switch kind {
	case "vnc":
		return []libvirtxml.DomainGraphic{{VNC: &libvirtxml.DomainGraphicVNC{AutoPort: "yes", Listeners: loopback}}}
	case "spice":
		return []libvirtxml.DomainGraphic{{Spice: &libvirtxml.DomainGraphicSpice{AutoPort: "yes", Listeners: loopback}}}
	default:
		return nil
	}
}

func hostdevs(devices Devices) []libvirtxml.DomainHostdev {
	out := make([]libvirtxml.DomainHostdev, 0, len(devices.PCI)+len(devices.Mediated))

	for _, dev := range devices.PCI {
		var domain, bus, slot, function uint
		if _, err := fmt.Sscanf(dev.Address, "%x:%x:%x.%x", &domain, &bus, &slot, &function); err != nil {
			continue // ChooseDevices gives none that does not parse.
		}

		out = append(out, libvirtxml.DomainHostdev{
			// libvirt takes the device from its driver on the host and gives it back.
			Managed: "yes",
			SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{Source: &libvirtxml.DomainHostdevSubsysPCISource{
				Address: &libvirtxml.DomainAddressPCI{Domain: &domain, Bus: &bus, Slot: &slot, Function: &function},
			}},
		})
	}

	for _, dev := range devices.Mediated {
		out = append(out, libvirtxml.DomainHostdev{
			SubsysMDev: &libvirtxml.DomainHostdevSubsysMDev{
				Model:  "vfio-pci",
				Source: &libvirtxml.DomainHostdevSubsysMDevSource{Address: &libvirtxml.DomainAddressMDev{UUID: dev.UUID}},
			},
		})
	}

	return out
}

func interfaces(id driver.Identity, data ClassData) []libvirtxml.DomainInterface {
	macs := data.MACs(id)
	out := make([]libvirtxml.DomainInterface, len(data.NetworkInterfaces))

	for i, nic := range data.NetworkInterfaces {
		source := &libvirtxml.DomainInterfaceSource{}

		switch nic.Type {
		case TypeUser:
			source.User = &libvirtxml.DomainInterfaceSourceUser{}
		case TypeBridge:
			source.Bridge = &libvirtxml.DomainInterfaceSourceBridge{Bridge: nic.NetworkName}
		case TypeDirect:
			source.Direct = &libvirtxml.DomainInterfaceSourceDirect{Dev: nic.NetworkName, Mode: "bridge"}
			if nic.DirectMode != "" {
				source.Direct.Mode = nic.DirectMode
			}
		default:
			source.Network = &libvirtxml.DomainInterfaceSourceNetwork{Network: nic.Network(), PortGroup: nic.Portgroup}
		}

		out[i] = libvirtxml.DomainInterface{
			MAC:    &libvirtxml.DomainInterfaceMAC{Address: macs[i].String()},
			Source: source,
			Model:  &libvirtxml.DomainInterfaceModel{Type: nic.Driver},
		}

		if nic.OpenVSwitch {
			out[i].VirtualPort = &libvirtxml.DomainInterfaceVirtualPort{Params: &libvirtxml.DomainInterfaceVirtualPortParams{
				OpenVSwitch: &libvirtxml.DomainInterfaceVirtualPortParamsOpenVSwitch{},
			}}
		}

		if nic.VLAN != 0 {
			out[i].VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(nic.VLAN)}}}
		}

		if nic.MTU != 0 {
			out[i].MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(nic.MTU)}
		}
	}

	return out
}
