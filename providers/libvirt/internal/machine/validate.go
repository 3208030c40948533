package machine

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// GuestAgentExtension is the Talos extension that waits for the guest agent's channel.
const GuestAgentExtension = "siderolabs/qemu-guest-agent"

// Validate checks the rules across fields.
func (c ClassData) Validate() error {
	var errs []error

	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	c.validateFirmware(add)
	c.validateCPU(add)
	c.validateMemory(add)
	c.validateNetworks(add)
	c.validateDisks(add)
	c.validateDevices(add)
	c.validateTalos(add)

	if c.Graphics != none && c.Video == none {
		add(`graphics: %s shows a screen, but video is none: want video "virtio" or "vga"`, c.Graphics)
	}

	return errors.Join(errs...)
}

type note = func(format string, args ...any)

func (c ClassData) validateFirmware(add note) {
	if c.Arch == driver.ARM64 && c.Firmware == FirmwareBIOS {
		add(`firmware: arm64 machines have no BIOS: want "uefi"`)
	}

	if c.SecureBoot && c.Firmware == FirmwareBIOS {
		add(`firmware: got "bios", but secure_boot needs UEFI: want "uefi" or "auto"`)
	}

	if c.EnrolledKeys && !c.SecureBoot {
		add("enrolled_keys: only firmware that checks signatures has keys: want secure_boot true as well")
	}
}

func (c ClassData) validateCPU(add note) {
	switch {
	case c.CPU.Mode == modeCustom && c.CPU.Model == "":
		add("cpu.model: required with mode custom: want the name of a model, like x86-64-v3")
	case c.CPU.Mode != modeCustom && c.CPU.Model != "":
		add("cpu.model: got %q, but mode is %s, which has no model: want mode custom, or no model", c.CPU.Model, c.CPU.Mode)
	}

	if c.CPU.Dies > 1 && c.Arch == driver.ARM64 {
		add("cpu.dies: arm64 machines have no dies: leave it out")
	}

	if parts := c.CPU.parts(); c.Cores%parts != 0 {
		add("cpu: %d cores cannot be divided evenly among %d sockets with %d dies and %d threads: want cores to be a multiple of %d",
			c.Cores, max(1, c.CPU.Sockets), max(1, c.CPU.Dies), max(1, c.CPU.Threads), parts)
	}
}

// parts is the number of cores of the smallest machine with the topology.
func (c CPU) parts() int { return max(1, c.Sockets) * max(1, c.Dies) * max(1, c.Threads) }

func (c ClassData) validateMemory(add note) {
	nodes := c.NUMA.GuestNodes

	if nodes > 1 && c.Cores%nodes != 0 {
		add("numa.guest_nodes: %d cores cannot be divided evenly among %d nodes", c.Cores, nodes)
	}

	if nodes > 1 && c.Memory%uint64(nodes) != 0 {
		add("numa.guest_nodes: %d MiB of memory cannot be divided evenly among %d nodes", c.Memory, nodes)
	}

	if page, ok := pageKiB(c.Hugepages); ok && c.Memory*1024/uint64(max(1, nodes))%page != 0 {
		add("hugepages: %d MiB of memory on %d nodes is no multiple of a page of %s", c.Memory, max(1, nodes), c.Hugepages)
	}

	if c.NUMA.Nodeset == "" {
		return
	}

	nodeset, err := parseNodeset(c.NUMA.Nodeset)
	if err != nil {
		add("numa.nodeset: %w", err)
	}

	if c.NUMA.Mode == "preferred" && len(nodeset) > 1 {
		add("numa.nodeset: got %d nodes, but mode preferred takes one", len(nodeset))
	}
}

// pageKiB is the size of a huge page; false where the class does not say it.
func pageKiB(size string) (uint64, bool) {
	if size == pagesOff || len(size) < 2 {
		return 0, false
	}

	unit := map[byte]uint64{'K': 1, 'M': 1 << 10, 'G': 1 << 20}[size[len(size)-1]]
	n, err := strconv.ParseUint(size[:len(size)-1], 10, 32)

	return n * unit, err == nil && unit > 0
}

// parseNodeset reads a list like "0,2-3".
func parseNodeset(text string) ([]int, error) {
	var nodes []int

	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}

		first, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("got %q, want numbers and ranges like 0,2-3", text)
		}

		last, err := strconv.Atoi(to)
		if err != nil || last > 1023 {
			return nil, fmt.Errorf("got %q, want numbers and ranges up to 1023, like 0,2-3", text)
		}

		if last < first {
			return nil, fmt.Errorf("got the range %q, want the smaller number first", part)
		}

		for node := first; node <= last; node++ {
			if slices.Contains(nodes, node) {
				return nil, fmt.Errorf("node %d is in %q twice", node, text)
			}

			nodes = append(nodes, node)
		}
	}

	return nodes, nil
}

func (c ClassData) validateNetworks(add note) {
	macs, addresses := map[string]int{}, map[string]int{}

	for i, nic := range c.NetworkInterfaces {
		path := fmt.Sprintf("network_interfaces[%d].", i)

		nic.validate(func(format string, args ...any) { add(path+format, args...) })

		if mac, err := net.ParseMAC(nic.PhysicalAddress); err == nil {
			if other, ok := macs[mac.String()]; ok {
				add("%sphysical_address: %s is taken by network_interfaces[%d]", path, mac, other)
			}

			macs[mac.String()] = i
		}

		if nic.DHCPAddress.IsValid() {
			key := nic.DHCPAddress.String()
			if other, ok := addresses[key]; ok {
				add("%sdhcp_address: %s is taken by network_interfaces[%d]", path, key, other)
			}

			addresses[key] = i
		}
	}
}

func (n NetworkInterface) validate(add note) {
	switch {
	case n.Type == TypeBridge && n.NetworkName == "":
		add("network_name: required with type bridge: want the name of the host's bridge")
	case n.Type == TypeDirect && n.NetworkName == "":
		add("network_name: required with type direct: want the name of the host's interface, like eth0")
	case n.Type == TypeUser && n.NetworkName != "":
		add("network_name: got %q, but type user has no network: leave it out", n.NetworkName)
	}

	// What only some types have.
	for _, field := range []struct {
		name  string
		given bool
		types []string
	}{
		{"portgroup", n.Portgroup != "", []string{TypeNetwork}},
		{"vlan", n.VLAN != 0, []string{TypeNetwork, TypeBridge}},
		{"openvswitch", n.OpenVSwitch, []string{TypeBridge}},
		{"direct_mode", n.DirectMode != "", []string{TypeDirect}},
		{"mtu", n.MTU != 0, []string{TypeNetwork, TypeBridge}},
		{"dhcp_reservation", n.DHCPReservation, []string{TypeNetwork}},
	} {
		if field.given && !slices.Contains(field.types, n.Type) {
			add("%s: type %s has none: want type %s, or leave it out", field.name, n.Type, strings.Join(field.types, " or "))
		}
	}

	if n.MTU != 0 && n.Driver != "virtio" {
		add("mtu: driver %s cannot be told: want driver virtio, or leave it out", n.Driver)
	}

	if n.PhysicalAddress != "" {
		if mac, err := net.ParseMAC(n.PhysicalAddress); err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			add("physical_address: got %q, want the address of one interface, like 52:54:00:12:34:56", n.PhysicalAddress)
		}
	}

	if a := n.DHCPAddress; a.IsValid() {
		switch {
		case !n.DHCPReservation:
			add("dhcp_address: got %s, but it is not reserved: want dhcp_reservation true as well", a)
		case !a.Is4():
			add("dhcp_address: got %s, want an IPv4 address", a)
		}
	}
}

func (c ClassData) validateDisks(add note) {
	c.SystemDisk.validate("system_disk.", add)

	if c.SystemDisk.Bus == diskSATA && c.Arch == driver.ARM64 {
		add(`system_disk.bus: arm64 machines have no SATA: want "virtio" or "scsi"`)
	}

	serials := map[string]string{}
	if c.SystemDisk.Serial != "" {
		serials[c.SystemDisk.Serial] = "system_disk"
	}

	for i, disk := range c.AdditionalDisks {
		path := fmt.Sprintf("additional_disks[%d]", i)

		if disk.Type == diskSATA && c.Arch == driver.ARM64 {
			add(`%s.type: arm64 machines have no SATA: want "virtio" or "scsi"`, path)
		}

		disk.validate(path+".", add)

		serial := disk.serial(i)
		if other, ok := serials[serial]; ok {
			add("%s.serial: %s is that of %s", path, serial, other)
		}

		serials[serial] = path
	}
}

func (t DiskTuning) validate(path string, add note) {
	if t.IO == "native" && t.Cache != none && t.Cache != "directsync" {
		add(`%sio: native needs a disk that the host does not cache: want cache "none" or "directsync"`, path)
	}
}

// serial is the serial number of additional disk number i, from 0.
func (d Disk) serial(i int) string {
	if d.Serial != "" {
		return d.Serial
	}

	return fmt.Sprintf("disk-%d", i+1)
}

func (c ClassData) validateDevices(add note) {
	addresses := map[string]int{}

	for i, dev := range c.PCIDevices {
		path := fmt.Sprintf("pci_devices[%d]", i)

		switch {
		case dev.Address == "" && dev.Vendor == "":
			add("%s: selects nothing: want an address, or a vendor", path)
		case dev.Address != "" && (dev.Vendor != "" || dev.Product != "" || dev.Count != 0):
			add("%s: got an address and vendor, product or count: want one or the other", path)
		}

		if dev.Address == "" {
			continue
		}

		address := canonicalPCI(dev.Address)
		if other, ok := addresses[address]; ok {
			add("%s.address: %s is that of pci_devices[%d]", path, address, other)
		}

		addresses[address] = i
	}

	uuids := map[string]int{}

	for i, dev := range c.MediatedDevices {
		path := fmt.Sprintf("mediated_devices[%d]", i)

		switch {
		case dev.Type == "" && dev.UUID == "":
			add("%s: selects nothing: want a type, or a uuid", path)
		case dev.UUID != "" && (dev.Type != "" || dev.Count != 0):
			add("%s: got a uuid and type or count: want one or the other", path)
		}

		if dev.UUID == "" {
			continue
		}

		uuid := strings.ToLower(dev.UUID)
		if other, ok := uuids[uuid]; ok {
			add("%s.uuid: %s is that of mediated_devices[%d]", path, uuid, other)
		}

		uuids[uuid] = i
	}
}

func (c ClassData) validateTalos(add note) {
	if !c.GuestAgent && slices.Contains(c.Extensions, GuestAgentExtension) {
		add("extensions: %s waits for a channel that guest_agent false takes away: want guest_agent true, or not the extension", GuestAgentExtension)
	}

	names := map[string]int{}

	for i, label := range c.Labels {
		if slices.Contains([]string{"host", "pool", "state"}, label.Name) || strings.HasPrefix(label.Name, "omni.sidero.dev/") {
			add("labels[%d].name: %q is taken by Omni or this provider: want another name", i, label.Name)
		}

		if other, ok := names[label.Name]; ok {
			add("labels[%d].name: %q is that of labels[%d]", i, label.Name, other)
		}

		names[label.Name] = i
	}

	for i, patch := range c.ConfigPatches {
		if err := omni.ValidateConfigPatch([]byte(patch)); err != nil {
			add("config_patches[%d]: not a patch of Talos' configuration that Omni takes: %s", i, strings.Join(strings.Fields(err.Error()), " "))
		}
	}
}
