package libvirt

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// Host is the machine that a hypervisor runs on. The zero value of a field is its default.
type Host struct {
	// Arches are the architectures that it has emulators for, in libvirt's words and its own first; x86_64 if nil.
	Arches []string
	// Emulated says that the processor cannot virtualize: there is no KVM.
	Emulated bool
	// Processors is their number; 16 if zero.
	Processors uint
	// Memory is its size in MiB; 64 GiB if zero.
	Memory uint64
	// Cells is the number of NUMA cells, which have equal parts of all; 1 if zero.
	Cells uint
	// Hugepages is the number of 2 MiB pages that are set aside for guests.
	Hugepages uint64
	// Interfaces are its network interfaces, bridges among them; eth0 and br0 if nil. Those of libvirt's networks come on top.
	Interfaces []string
	// NoIOMMU says that devices cannot be passed through.
	NoIOMMU bool
	// NoUEFI, NoSecureBoot and NoTPM say that the host lacks the firmware, one with secure boot, or the emulator of TPMs.
	NoUEFI, NoSecureBoot, NoTPM bool
}

func (h Host) withDefaults() Host {
	if h.Arches == nil {
		h.Arches = []string{"x86_64"}
	}

	if h.Interfaces == nil {
		h.Interfaces = []string{"eth0", "br0"}
	}

	h.Processors = cmp.Or(h.Processors, 16)
	h.Memory = cmp.Or(h.Memory, 64<<10)
	h.Cells = cmp.Or(h.Cells, 1)

	return h
}

// kvm says whether guests of the architecture run on the host's own processor.
func (h Host) kvm(arch string) bool { return !h.Emulated && arch == h.Arches[0] }

// accelerates says whether the host runs domains of a type.
func (h Host) accelerates(kind, arch string) bool {
	return kind == "qemu" || kind == "kvm" && h.kvm(arch)
}

// has says whether the host's emulator has a board.
func (h Host) has(arch, machine string) bool {
	return machine == "" || slices.ContainsFunc(machines[arch], func(m [2]string) bool { return machine == m[0] || machine == m[1] })
}

// runs refuses domains that the host has no emulator for.
func (h Host) runs(def *libvirtxml.Domain) error {
	arch, machine := cmp.Or(def.OS.Type.Arch, h.Arches[0]), def.OS.Type.Machine
	switch {
	case !slices.Contains(architectures, arch):
		return unsupportedConfig(libvirt.FROM_DOMAIN, "Unknown architecture %s", arch)
	case !slices.Contains(h.Arches, arch):
		return unsupportedConfig(libvirt.FROM_QEMU, "No emulator found for arch '%s'", arch)
	case !h.accelerates(def.Type, arch):
		return unsupportedConfig(libvirt.FROM_QEMU, "Emulator '%s' does not support virt type '%s'", emulator(arch), def.Type)
	case !h.has(arch, machine) && arch == "x86_64":
		return xmlError(libvirt.FROM_DOMAIN, "No PCI buses available")
	case !h.has(arch, machine):
		return unsupportedConfig(libvirt.FROM_QEMU, "Emulator '%s' does not support machine type '%s'", emulator(arch), machine)
	case arch == "aarch64" && !efi(def) && def.Features != nil && def.Features.ACPI != nil && (def.OS.Loader == nil || def.OS.Loader.Path == ""):
		return unsupportedConfig(libvirt.FROM_QEMU, "ACPI requires UEFI on this architecture")
	default:
		return nil
	}
}

// architectures are some that libvirt knows.
var architectures = []string{"x86_64", "i686", "aarch64", "armv7l", "ppc64", "ppc64le", "riscv64", "s390x"}

func emulator(arch string) string { return "/usr/bin/qemu-system-" + arch }

// machines are the boards of an architecture by the names that stand for their newest version; the first is the default.
var machines = map[string][][2]string{
	"x86_64":  {{"pc", "pc-i440fx-7.2"}, {"q35", "pc-q35-7.2"}},
	"aarch64": {{"virt", "virt-7.2"}},
}

func (h Host) machine(arch, name string) string {
	for _, m := range machines[arch] {
		if name == "" || name == m[0] {
			return m[1]
		}
	}

	return name
}

// GetHostname returns the host's name.
func (c *Connect) GetHostname() (string, error) {
	return call(c, request{op: "Connect.GetHostname"}, func() (string, error) { return c.h.opts.Hostname, nil })
}

// GetURI returns the URI of the connection.
func (c *Connect) GetURI() (string, error) {
	return call(c, request{op: "Connect.GetURI"}, func() (string, error) { return "qemu:///system", nil })
}

// GetType returns the hypervisor's name.
func (c *Connect) GetType() (string, error) {
	return call(c, request{op: "Connect.GetType"}, func() (string, error) { return "QEMU", nil })
}

// The versions are those of Debian 12.
const (
	libVersion  = 9_000_000
	qemuVersion = 7_002_022
)

// GetLibVersion returns libvirt's version.
func (c *Connect) GetLibVersion() (uint32, error) {
	return call(c, request{op: "Connect.GetLibVersion"}, func() (uint32, error) { return libVersion, nil })
}

// GetVersion returns the emulator's version.
func (c *Connect) GetVersion() (uint32, error) {
	return call(c, request{op: "Connect.GetVersion"}, func() (uint32, error) { return qemuVersion, nil })
}

// IsEncrypted says whether the transport is encrypted.
func (c *Connect) IsEncrypted() (bool, error) {
	return call(c, request{op: "Connect.IsEncrypted"}, func() (bool, error) { return false, nil })
}

// IsSecure says whether nobody else can listen.
func (c *Connect) IsSecure() (bool, error) {
	return call(c, request{op: "Connect.IsSecure"}, func() (bool, error) { return true, nil })
}

// GetNodeInfo describes the host.
func (c *Connect) GetNodeInfo() (*libvirt.NodeInfo, error) {
	return call(c, request{op: "Connect.GetNodeInfo"}, func() (*libvirt.NodeInfo, error) {
		host := c.h.opts.Host

		return &libvirt.NodeInfo{
			Model: host.Arches[0], Memory: host.Memory << 10, Cpus: host.Processors, MHz: 2445, Nodes: uint32(host.Cells), //nolint:gosec // Few.
			Sockets: 1, Cores: uint32(host.Processors / host.Cells), Threads: 1, //nolint:gosec // Few.
		}, nil
	})
}

// GetFreeMemory returns the host's free memory in bytes.
func (c *Connect) GetFreeMemory() (uint64, error) {
	return call(c, request{op: "Connect.GetFreeMemory"}, func() (uint64, error) { return c.h.freeLocked() << 10, nil })
}

// GetMemoryStats returns the host's memory in KiB.
func (c *Connect) GetMemoryStats(int, uint32) (*libvirt.NodeMemoryStats, error) {
	return call(c, request{op: "Connect.GetMemoryStats"}, func() (*libvirt.NodeMemoryStats, error) {
		return &libvirt.NodeMemoryStats{
			TotalSet: true, Total: c.h.opts.Host.Memory << 10, FreeSet: true, Free: c.h.freeLocked(),
			BuffersSet: true, CachedSet: true,
		}, nil
	})
}

// GetFreePages returns the free pages of each size in KiB of some cells, one cell after the other.
func (c *Connect) GetFreePages(sizes []uint64, first int, cells uint, _ uint32) ([]uint64, error) {
	return call(c, request{op: "Connect.GetFreePages"}, func() ([]uint64, error) {
		host := c.h.opts.Host

		if first < 0 || first >= int(host.Cells) { //nolint:gosec // Few.
			return nil, internal(libvirt.FROM_NONE, "start cell %d out of range (0-%d)", first, host.Cells-1)
		}

		var out []uint64

		for range min(cells, host.Cells-uint(first)) { //nolint:gosec // It is not negative.
			for _, size := range sizes {
				switch size {
				case 4:
					out = append(out, c.h.freeLocked()/4/uint64(host.Cells))
				case 2048:
					out = append(out, c.h.freePagesLocked()/uint64(host.Cells))
				default:
					return nil, failed(libvirt.FROM_NONE, "page size %d is not available on node 0", size)
				}
			}
		}

		return out, nil
	})
}

// freeLocked is the memory in KiB that guests have left.
func (h *Hypervisor) freeLocked() uint64 {
	total := h.opts.Host.Memory << 10
	used := h.opts.Host.Hugepages << 11

	for _, m := range h.domains {
		if m.live != nil && !hugepages(m.live) {
			used += memoryKiB(m.live)
		}
	}

	return total - min(used, total)
}

// GetCapabilities describes host and emulators.
func (c *Connect) GetCapabilities() (string, error) {
	return call(c, request{op: "Connect.GetCapabilities"}, func() (string, error) { return c.h.capabilities(), nil })
}

// GetDomainCapabilities describes what domains of an emulator, architecture, board and type can have. What is empty is the host's
// default.
func (c *Connect) GetDomainCapabilities(binary, arch, machine, kind string, _ libvirt.ConnectGetDomainCapabilitiesFlags) (string, error) {
	return call(c, request{op: "Connect.GetDomainCapabilities"}, func() (string, error) {
		host := c.h.opts.Host

		if arch == "" {
			arch = host.Arches[0]

			for _, known := range host.Arches {
				if binary == emulator(known) {
					arch = known
				}
			}
		}

		switch {
		case !slices.Contains(architectures, arch):
			return "", invalidArgument(libvirt.FROM_QEMU, "unknown architecture: %s", arch)
		case binary != "" && binary != emulator(arch):
			return "", system(libvirt.FROM_QEMU, noEntry, "Cannot check QEMU binary %s", binary)
		case !slices.Contains(host.Arches, arch):
			return "", unsupportedConfig(libvirt.FROM_QEMU, "unable to find any emulator to serve '%s' architecture", arch)
		case !host.has(arch, machine):
			return "", invalidArgument(libvirt.FROM_QEMU, "the machine '%s' is not supported by emulator '%s'", machine, emulator(arch))
		}

		if kind == "" {
			kind = "qemu"
			if host.kvm(arch) {
				kind = "kvm"
			}
		}

		if !host.accelerates(kind, arch) {
			return "", invalidArgument(libvirt.FROM_QEMU, "Emulator '%s' does not support virt type '%s'", emulator(arch), kind)
		}

		return domainCapabilities(host, arch, host.machine(arch, machine), kind)
	})
}

func (h *Hypervisor) capabilities() string {
	host := h.opts.Host

	var b strings.Builder

	fmt.Fprintf(&b, "<capabilities>\n  <host>\n    <uuid>%s</uuid>\n    <cpu>\n      <arch>%s</arch>\n    </cpu>\n", h.hostUUID(), host.Arches[0])
	fmt.Fprintf(&b, "    <iommu support='%s'/>\n", yes(!host.NoIOMMU))
	fmt.Fprintf(&b, "    <topology>\n      <cells num='%d'>\n", host.Cells)

	for cell := range host.Cells {
		memory, pages, cpus := host.Memory/uint64(host.Cells), host.Hugepages/uint64(host.Cells), host.Processors/host.Cells

		fmt.Fprintf(&b, "        <cell id='%d'>\n          <memory unit='KiB'>%d</memory>\n", cell, memory<<10)
		fmt.Fprintf(&b, "          <pages unit='KiB' size='4'>%d</pages>\n          <pages unit='KiB' size='2048'>%d</pages>\n", memory<<8-pages<<9, pages)
		fmt.Fprintf(&b, "          <pages unit='KiB' size='1048576'>0</pages>\n          <cpus num='%d'>\n", cpus)

		for i := cell * cpus; i < (cell+1)*cpus; i++ {
			fmt.Fprintf(&b, "            <cpu id='%d' socket_id='%d' die_id='0' core_id='%d' siblings='%d'/>\n", i, cell, i, i)
		}

		b.WriteString("          </cpus>\n        </cell>\n")
	}

	b.WriteString("      </cells>\n    </topology>\n  </host>\n")

	for _, arch := range host.Arches {
		fmt.Fprintf(&b, "  <guest>\n    <os_type>hvm</os_type>\n    <arch name='%s'>\n      <wordsize>64</wordsize>\n      <emulator>%s</emulator>\n", arch, emulator(arch))

		for _, m := range machines[arch] {
			fmt.Fprintf(&b, "      <machine maxCpus='255'>%s</machine>\n      <machine canonical='%s' maxCpus='255'>%s</machine>\n", m[1], m[1], m[0])
		}

		b.WriteString("      <domain type='qemu'/>\n")

		if host.kvm(arch) {
			b.WriteString("      <domain type='kvm'/>\n")
		}

		b.WriteString("    </arch>\n    <features>\n      <acpi default='on' toggle='yes'/>\n    </features>\n  </guest>\n")
	}

	b.WriteString("</capabilities>\n")

	return b.String()
}

func (h *Hypervisor) hostUUID() string { return "9c3f8f51-0c8e-4a36-9f7a-0d6c3a4b5e61" }

func yes(is bool) string {
	if is {
		return "yes"
	}

	return "no"
}

// domainCapabilitiesFS has what libvirt said of emulators, with gaps for what differs from host to host.
//
//go:embed capabilities
var domainCapabilitiesFS embed.FS

var domainCapabilitiesTemplates = template.Must(template.ParseFS(domainCapabilitiesFS, "capabilities/*.xml.tmpl"))

// domainCapabilities is the document that libvirt makes for a host.
func domainCapabilities(host Host, arch, machine, kind string) (string, error) {
	var b strings.Builder

	q35 := strings.HasPrefix(machine, "pc-q35")
	err := domainCapabilitiesTemplates.ExecuteTemplate(&b, arch+".xml.tmpl", map[string]any{
		"Type": kind, "Machine": machine, "Q35": q35, "UEFI": !host.NoUEFI, "TPM": !host.NoTPM,
		"SecureBoot": q35 && !host.NoUEFI && !host.NoSecureBoot,
	})
	if err != nil {
		return "", internal(libvirt.FROM_QEMU, "%s", err)
	}

	return b.String(), nil
}
