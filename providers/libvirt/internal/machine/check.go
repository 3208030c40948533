package machine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// vlanBridges is the version of libvirt since which it sets VLAN tags on bridges of the kernel.
const vlanBridges = 11_000_000

// CheckHost says what the class asks for and the host cannot do, all at once and with the fields' names. It is Terminal, but for
// devices that other domains have, which is of kind Capacity. What is not known of the host is not refused.
func (c ClassData) CheckHost(h Host) error {
	if h.Type == "" || len(h.Archs) > 0 && !slices.Contains(h.Archs, ArchName(c.Arch)) {
		return driver.Terminalf("arch: the host has no emulator for %s%s", c.Arch, has(h.Archs))
	}

	var errs []error

	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	c.checkFirmware(h, add)
	c.checkCPU(h, add)
	c.checkMemory(h, add)
	c.checkNetworks(h, add)
	c.checkPeripherals(h, add)

	if len(errs) > 0 {
		return driver.Terminal(errors.Join(errs...))
	}

	return c.checkDevices(h)
}

// has ends a message with what there is instead.
func has(values []string) string {
	if len(values) == 0 {
		return ""
	}

	return "; it has " + strings.Join(values, ", ")
}

func (c ClassData) checkFirmware(h Host, add note) {
	uefi := h.firmware(c) == FirmwareUEFI

	switch {
	case uefi && !h.UEFI && c.Arch == driver.ARM64:
		add("firmware: the host has no UEFI firmware for arm64, which has no other; install it (package qemu-efi-aarch64 or edk2-aarch64)")
	case uefi && !h.UEFI:
		add(`firmware: the host has no UEFI firmware for %s; install it (package ovmf or edk2-ovmf), or set firmware to "bios"`, c.Arch)
	case c.SecureBoot && !h.SecureBoot && h.Type != "test":
		add("secure_boot: the host has no UEFI firmware for %s that checks signatures; install it (package ovmf or edk2-ovmf)", c.Arch)
	}

	if c.needsTPM() && h.TPM != nil && !*h.TPM {
		field := "tpm"
		if !c.TPM {
			field = "secure_boot"
		}

		add("%s: the host cannot emulate a TPM 2.0; install it (packages swtpm and swtpm-tools)", field)
	}
}

func (c ClassData) checkCPU(h Host, add note) {
	if h.MaxCores > 0 && c.Cores > h.MaxCores {
		add("cores: got %d, but machines on this host have at most %d", c.Cores, h.MaxCores)
	}

	mode := c.CPU.Mode
	if mode == modeAuto || mode == "" || h.CPUModes == nil {
		return
	}

	if !slices.Contains(h.CPUModes, mode) {
		add("cpu.mode: the host cannot give machines a processor of mode %s%s", mode, has(h.CPUModes))

		return
	}

	if mode != modeCustom || h.CPUModels == nil {
		return
	}

	switch usable, known := h.CPUModels[c.CPU.Model]; {
	case !known:
		add("cpu.model: the host knows no model %q: want one of those that virsh domcapabilities lists", c.CPU.Model)
	case !usable:
		var models []string

		for _, model := range slices.Sorted(maps.Keys(h.CPUModels)) {
			if h.CPUModels[model] {
				models = append(models, model)
			}
		}

		add("cpu.model: the host's processor lacks what %s has%s", c.CPU.Model, has(models))
	}
}

func (c ClassData) checkMemory(h Host, add note) {
	if len(h.Nodes) == 0 {
		return
	}

	if total := h.memory(); total > 0 && c.Memory > total>>10 {
		add("memory: got %d MiB, but the host has %d MiB", c.Memory, total>>10)
	}

	nodes := h.Nodes

	if nodeset, err := parseNodeset(c.NUMA.Nodeset); c.NUMA.Nodeset != "" && err == nil {
		nodes = nil

		for _, id := range nodeset {
			i := slices.IndexFunc(h.Nodes, func(n Node) bool { return n.ID == id })
			if i < 0 {
				add("numa.nodeset: the host has no node %d%s", id, has(h.nodeIDs()))

				return
			}

			nodes = append(nodes, h.Nodes[i])
		}
	}

	c.checkPages(nodes, add)
}

func (h Host) nodeIDs() []string {
	ids := make([]string, len(h.Nodes))
	for i, node := range h.Nodes {
		ids[i] = strconv.Itoa(node.ID)
	}

	return ids
}

// checkPages looks for huge pages on the nodes that the memory is taken from.
func (c ClassData) checkPages(nodes []Node, add note) {
	page, ok := pageKiB(c.Hugepages)
	if !ok {
		return
	}

	var (
		count uint64
		sizes []uint64
		known bool
	)

	for _, node := range nodes {
		number, found := node.Pages[page]
		count, known = count+number, known || found
		sizes = append(sizes, slices.Sorted(maps.Keys(node.Pages))...)
	}

	slices.Sort(sizes)

	switch sizes = slices.Compact(sizes); {
	case !known:
		words := make([]string, len(sizes))
		for i, size := range sizes {
			words[i] = strconv.FormatUint(size, 10) + " KiB"
		}

		add("hugepages: the host has no pages of %s%s", c.Hugepages, has(words))
	case count*page < c.Memory<<10:
		add("hugepages: the host has set %d pages of %s aside, too few for %d MiB: want at least %d", count, c.Hugepages, c.Memory, (c.Memory<<10+page-1)/page)
	}
}

func (c ClassData) checkNetworks(h Host, add note) {
	// Where even the loopback interface is not listed, the list says nothing.
	known := slices.Contains(h.Interfaces, "lo")

	for i, nic := range c.NetworkInterfaces {
		path := fmt.Sprintf("network_interfaces[%d].", i)

		if known && (nic.Type == TypeBridge || nic.Type == TypeDirect) && !slices.Contains(h.Interfaces, nic.NetworkName) {
			add("%snetwork_name: the host has no %s %q", path, map[string]string{TypeBridge: "bridge", TypeDirect: "interface"}[nic.Type], nic.NetworkName)
		}

		if nic.Type == TypeBridge && nic.VLAN != 0 && !nic.OpenVSwitch && h.Version != 0 && h.Version < vlanBridges {
			add("%svlan: libvirt before 11.0 tags traffic on bridges of Open vSwitch alone: want openvswitch true, a network with a VLAN, or a bridge for the VLAN", path)
		}

		if h.Session && (nic.Type == TypeNetwork || nic.Type == TypeDirect) {
			add(`%stype: libvirt runs as a plain user, who has no networks of type %s: want "user" or "bridge"`, path, nic.Type)
		}
	}
}

func (c ClassData) checkPeripherals(h Host, add note) {
	if h.DiskBuses != nil {
		if bus := c.SystemDisk.Bus; !slices.Contains(h.DiskBuses, bus) {
			add("system_disk.bus: the host has no disks on %s%s", bus, has(h.DiskBuses))
		}

		for i, disk := range c.AdditionalDisks {
			if !slices.Contains(h.DiskBuses, disk.bus()) {
				add("additional_disks[%d].type: the host has no disks on %s%s", i, disk.bus(), has(h.DiskBuses))
			}
		}
	}

	if h.Videos != nil && c.Video != none && !slices.Contains(h.Videos, c.Video) {
		add("video: the host has no graphics card %s%s", c.Video, has(h.Videos))
	}

	if h.Graphics != nil && c.Graphics != none && !slices.Contains(h.Graphics, c.Graphics) {
		add("graphics: the host's hypervisor is built without %s%s", c.Graphics, has(h.Graphics))
	}

	if c.ConsoleLog && h.Session {
		add("console_log: libvirt runs as a plain user, who has no folder for it")
	}
}

func (c ClassData) checkDevices(h Host) error {
	if len(c.PCIDevices) > 0 {
		switch {
		case h.IOMMU != nil && !*h.IOMMU:
			return driver.Terminalf("pci_devices: the host has no IOMMU; switch it on in the host's firmware and kernel")
		// An old libvirt does not tell the IOMMU. What a new one says here may be from before vfio-pci was loaded.
		case h.IOMMU == nil && h.PCIPassthrough != nil && !*h.PCIPassthrough:
			return driver.Terminalf("pci_devices: the host cannot give PCI devices to machines; it needs an IOMMU and the kernel module vfio-pci")
		}
	}

	if len(c.PCIDevices)+len(c.MediatedDevices) == 0 || h.Type == "test" {
		return nil
	}

	_, err := ChooseDevices(c, h)

	return err
}
