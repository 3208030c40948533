package machine

import (
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Host is what a host can do for machines of one architecture, and what it has for all. What is not known, because the
// documents that ParseHost read do not say it, is zero or nil; nothing is refused for that.
type Host struct {
	// Type is the type of domain: "kvm", or "qemu" where the processor has to be emulated. It is empty where the host has no
	// emulator for the architecture.
	Type string
	// CPU is the mode in which a machine gets its processor if its class leaves it open; empty leaves it to libvirt.
	CPU string
	// UEFI says that there is firmware for it, SecureBoot that there is some that checks signatures.
	UEFI, SecureBoot bool
	// TPM says that a TPM 2.0 can be emulated; nil if not known.
	TPM *bool
	// MaxCores is the most processors that a machine can have.
	MaxCores int
	// CPUModes are the modes in which a machine can have a processor, CPUModels the models for mode custom by whether this host
	// can run them.
	CPUModes  []string
	CPUModels map[string]bool
	// DiskBuses, Videos and Graphics are the kinds of device that machines can have.
	DiskBuses, Videos, Graphics []string
	// PCIPassthrough says that machines can get PCI devices of the host, IOMMU that the host keeps them apart; nil if not known.
	PCIPassthrough, IOMMU *bool

	// Archs are the architectures, as libvirt calls them, that the host has an emulator for.
	Archs []string
	// Nodes are the host's NUMA nodes, at least one.
	Nodes []Node
	// Interfaces are the names of the host's network interfaces, bridges among them.
	Interfaces []string
	// PCI and Mediated are the devices that machines could be given.
	PCI      []HostPCI
	Mediated []HostMediated

	// The rest is not in the documents: who reads them sets it, if it can.

	// Taken holds the ID of each device that another domain has; TakenDevices reads it from a domain's description.
	Taken []string
	// Session says that libvirt runs as a plain user (qemu:///session).
	Session bool
	// Version is that of libvirt's daemon as it gives it: 9000000 is 9.0.0.
	Version uint32
}

// Node is a NUMA node of a host.
type Node struct {
	ID int
	// Memory is in KiB.
	Memory uint64
	CPUs   []int
	// Pages holds the number of pages of each size in KiB that are set aside; the smallest is the common page.
	Pages map[uint64]uint64
}

// HostDocuments are the descriptions of a host in libvirt's XML.
type HostDocuments struct {
	// Domain is the result of virConnectGetDomainCapabilities for ArchName and Board of an architecture; empty if the host has
	// no emulator for it.
	Domain string
	// Host is the result of virConnectGetCapabilities; empty if not known.
	Host string
	// Devices are the descriptions of the host's node devices (PCI, mediated and network devices); nil if not known.
	Devices []string
}

// Emulated says whether machines run much slower than the host does.
func (h Host) Emulated() bool { return h.Type == "qemu" }

// memory is that of all nodes in KiB.
func (h Host) memory() uint64 {
	var sum uint64
	for _, node := range h.Nodes {
		sum += node.Memory
	}

	return sum
}

// firmware is what boots a machine of the class on the host.
func (h Host) firmware(c ClassData) string {
	switch {
	case c.Firmware != FirmwareAuto && c.Firmware != "":
		return c.Firmware
	case h.UEFI || c.SecureBoot || c.Arch == driver.ARM64:
		return FirmwareUEFI
	default:
		return FirmwareBIOS
	}
}

// ArchName is what libvirt calls the architecture.
func ArchName(arch driver.Arch) string {
	if arch == driver.ARM64 {
		return "aarch64"
	}

	return "x86_64"
}

// Board is the type of board that machines of the architecture get.
func Board(arch driver.Arch) string {
	if arch == driver.ARM64 {
		return "virt"
	}

	return "q35"
}

// ParseHost reads libvirt's descriptions of a host.
func ParseHost(docs HostDocuments) (Host, error) {
	var h Host

	if docs.Domain != "" {
		var caps libvirtxml.DomainCaps
		if err := caps.Unmarshal(docs.Domain); err != nil {
			return Host{}, fmt.Errorf("read the domain capabilities: %w", err)
		}

		h.readDomainCapabilities(caps)
	}

	if docs.Host != "" {
		var caps libvirtxml.Caps
		if err := caps.Unmarshal(docs.Host); err != nil {
			return Host{}, fmt.Errorf("read the host's capabilities: %w", err)
		}

		h.readCapabilities(caps)
	}

	for _, desc := range docs.Devices {
		var device libvirtxml.NodeDevice
		if err := device.Unmarshal(desc); err != nil {
			return Host{}, fmt.Errorf("read a device of the host: %w", err)
		}

		h.readDevice(device)
	}

	slices.SortFunc(h.PCI, func(a, b HostPCI) int { return strings.Compare(a.Address, b.Address) })
	slices.SortFunc(h.Mediated, func(a, b HostMediated) int { return strings.Compare(a.UUID, b.UUID) })

	return h, nil
}

func (h *Host) readDomainCapabilities(caps libvirtxml.DomainCaps) {
	h.Type = caps.Domain

	if caps.VCPU != nil {
		h.MaxCores = int(min(caps.VCPU.Max, 1<<20))
	}

	if caps.OS != nil {
		h.UEFI = slices.Contains(enum(caps.OS.Enums, "firmware"), "efi")
		h.SecureBoot = h.UEFI && caps.OS.Loader != nil && slices.Contains(enum(caps.OS.Loader.Enums, "secure"), "yes")
	}

	if caps.CPU != nil {
		h.readCPU(*caps.CPU)
	}

	if d := caps.Devices; d != nil {
		h.readDevices(*d)
	}
}

func (h *Host) readCPU(cpu libvirtxml.DomainCapsCPU) {
	for _, mode := range cpu.Modes {
		if mode.Supported != "yes" {
			continue
		}

		h.CPUModes = append(h.CPUModes, mode.Name)

		if mode.Name != modeCustom {
			continue
		}

		h.CPUModels = make(map[string]bool, len(mode.Models))
		for _, model := range mode.Models {
			h.CPUModels[model.Name] = model.Usable != "no"
		}
	}

	// The host's own processor, or all that the emulator has: Talos needs x86-64-v2, which the default model lacks.
	modes := []string{"host-passthrough", "host-model"}
	if h.Emulated() {
		modes = []string{"maximum"}
	}

	if i := slices.IndexFunc(modes, func(mode string) bool { return slices.Contains(h.CPUModes, mode) }); i >= 0 {
		h.CPU = modes[i]
	}
}

func (h *Host) readDevices(d libvirtxml.DomainCapsDevices) {
	if d.Disk != nil {
		h.DiskBuses = enum(d.Disk.Enums, "bus")
	}

	if d.Video != nil {
		h.Videos = enum(d.Video.Enums, "modelType")
	}

	if d.Graphics != nil {
		h.Graphics = enum(d.Graphics.Enums, "type")
	}

	if d.TPM != nil {
		// Before libvirt 8.6 the versions were not listed; 2.0 was among them.
		versions := enum(d.TPM.Enums, "backendVersion")
		h.TPM = new(d.TPM.Supported == "yes" && slices.Contains(enum(d.TPM.Enums, "backendModel"), "emulator") &&
			(len(versions) == 0 || slices.Contains(versions, tpmVersion)))
	}

	if d.HostDev != nil {
		h.PCIPassthrough = new(d.HostDev.Supported == "yes" && len(enum(d.HostDev.Enums, "pciBackend")) > 0)
	}
}

func enum(enums []libvirtxml.DomainCapsEnum, name string) []string {
	for _, e := range enums {
		if e.Name == name {
			return e.Values
		}
	}

	return nil
}

func (h *Host) readCapabilities(caps libvirtxml.Caps) {
	for _, guest := range caps.Guests {
		if guest.OSType == "hvm" && !slices.Contains(h.Archs, guest.Arch.Name) {
			h.Archs = append(h.Archs, guest.Arch.Name)
		}
	}

	if iommu := caps.Host.IOMMU; iommu != nil {
		h.IOMMU = new(iommu.Support == "yes")
	}

	if caps.Host.NUMA == nil || caps.Host.NUMA.Cells == nil {
		return
	}

	for _, cell := range caps.Host.NUMA.Cells.Cells {
		node := Node{ID: cell.ID, Pages: map[uint64]uint64{}}

		if cell.Memory != nil {
			node.Memory = kib(cell.Memory.Size, cell.Memory.Unit)
		}

		for _, page := range cell.PageInfo {
			if page.Size > 0 {
				node.Pages[kib(uint64(page.Size), page.Unit)] = page.Count
			}
		}

		if cell.CPUS != nil {
			for _, cpu := range cell.CPUS.CPUs {
				node.CPUs = append(node.CPUs, cpu.ID)
			}
		}

		h.Nodes = append(h.Nodes, node)
	}
}

// kib turns a size into KiB, in which libvirt gives nearly all of them.
func kib(size uint64, unit string) uint64 {
	switch unit {
	case "b", "bytes":
		return size >> 10
	case "MiB":
		return size << 10
	case "GiB":
		return size << 20
	default:
		return size
	}
}
