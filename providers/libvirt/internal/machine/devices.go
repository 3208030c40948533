package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// HostPCI is a PCI device of a host.
type HostPCI struct {
	// Address is like 0000:3b:00.0, Vendor and Product are like 10de.
	Address, Vendor, Product string
	// Group is that of the IOMMU, whose devices can only be given away together; -1 for none.
	Group int
	// Bridge says that it only leads to other devices.
	Bridge bool
}

// ID names the device on its host.
func (d HostPCI) ID() string { return "pci " + d.Address }

// HostMediated is a mediated device of a host.
type HostMediated struct {
	UUID, Type string
}

// ID names the device on its host.
func (d HostMediated) ID() string { return "mdev " + d.UUID }

// Devices are those of a host that a machine is to have.
type Devices struct {
	PCI      []HostPCI
	Mediated []HostMediated
}

// IDs are the names of all devices.
func (d Devices) IDs() []string {
	ids := make([]string, 0, len(d.PCI)+len(d.Mediated))

	for _, dev := range d.PCI {
		ids = append(ids, dev.ID())
	}

	for _, dev := range d.Mediated {
		ids = append(ids, dev.ID())
	}

	return ids
}

// canonicalPCI is the address as HostPCI has it.
func canonicalPCI(address string) string {
	if strings.Count(address, ":") == 1 {
		address = "0000:" + address
	}

	return strings.ToLower(address)
}

func pciAddress(domain, bus, slot, function *uint) (string, bool) {
	if domain == nil || bus == nil || slot == nil || function == nil {
		return "", false
	}

	return fmt.Sprintf("%04x:%02x:%02x.%x", *domain, *bus, *slot, *function), true
}

func (h *Host) readDevice(device libvirtxml.NodeDevice) {
	switch c := device.Capability; {
	case c.PCI != nil:
		address, ok := pciAddress(c.PCI.Domain, c.PCI.Bus, c.PCI.Slot, c.PCI.Function)
		if !ok {
			return
		}

		pci := HostPCI{Address: address, Vendor: hexID(c.PCI.Vendor.ID), Product: hexID(c.PCI.Product.ID), Group: -1}

		if c.PCI.IOMMUGroup != nil {
			pci.Group = c.PCI.IOMMUGroup.Number
		}

		pci.Bridge = strings.HasPrefix(hexID(c.PCI.Class), "06") ||
			slices.ContainsFunc(c.PCI.Capabilities, func(s libvirtxml.NodeDevicePCISubCapability) bool { return s.Bridge != nil })

		h.PCI = append(h.PCI, pci)
	case c.MDev != nil && c.MDev.Type != nil && c.MDev.UUID != "":
		h.Mediated = append(h.Mediated, HostMediated{UUID: strings.ToLower(c.MDev.UUID), Type: c.MDev.Type.ID})
	case c.Net != nil && c.Net.Interface != "":
		h.Interfaces = append(h.Interfaces, c.Net.Interface)
	}
}

func hexID(id string) string { return strings.TrimPrefix(strings.ToLower(id), "0x") }

// Devices says whether the class selects devices of the host.
func (c ClassData) Devices() bool { return len(c.PCIDevices)+len(c.MediatedDevices) > 0 }

// HostDevices says which of the host's devices matter to the class: those that it selects from, and network interfaces. There may be
// hundreds that do not.
func (c ClassData) HostDevices() (pci, mediated, network bool) {
	for _, nic := range c.NetworkInterfaces {
		network = network || nic.Type == TypeBridge || nic.Type == TypeDirect
	}

	return len(c.PCIDevices) > 0, len(c.MediatedDevices) > 0, network
}

// TakenDevices reads from a domain's description, whoever made it, which devices of the host it has.
func TakenDevices(desc string) ([]string, error) {
	var domain libvirtxml.Domain
	if err := domain.Unmarshal(desc); err != nil {
		return nil, fmt.Errorf("read the description of a domain: %w", err)
	}

	if domain.Devices == nil {
		return nil, nil
	}

	var taken []string

	for _, dev := range domain.Devices.Hostdevs {
		taken = append(taken, takenBy(dev)...)
	}

	for _, nic := range domain.Devices.Interfaces {
		if nic.Source != nil && nic.Source.Hostdev != nil {
			taken = append(taken, takenPCI(nic.Source.Hostdev.PCI)...)
		}
	}

	return taken, nil
}

func takenBy(dev libvirtxml.DomainHostdev) []string {
	switch {
	case dev.SubsysPCI != nil:
		return takenPCI(dev.SubsysPCI.Source)
	case dev.SubsysMDev != nil && dev.SubsysMDev.Source != nil && dev.SubsysMDev.Source.Address != nil:
		return []string{HostMediated{UUID: strings.ToLower(dev.SubsysMDev.Source.Address.UUID)}.ID()}
	default:
		return nil
	}
}

func takenPCI(source *libvirtxml.DomainHostdevSubsysPCISource) []string {
	if source == nil || source.Address == nil {
		return nil
	}

	a := source.Address

	address, ok := pciAddress(a.Domain, a.Bus, a.Slot, a.Function)
	if !ok {
		return nil
	}

	return []string{HostPCI{Address: address}.ID()}
}

// ChooseDevices picks the devices that the class selects from those of the host that nobody has. The same host gives the same
// choice. A device that is not there is a Terminal error; one that another domain has is one of kind Capacity.
//
// Between the choice and the definition of the domain, which makes it visible to others, nobody else may choose on the host.
func ChooseDevices(c ClassData, h Host) (Devices, error) {
	var (
		chosen Devices
		errs   []error
	)

	pool := picker{host: h, taken: slices.Clone(h.Taken)}

	// Devices that are named are not given away to selectors that any will do for.
	for _, byName := range []bool{true, false} {
		for i, want := range c.PCIDevices {
			if (want.Address != "") == byName {
				found, err := pool.pci(fmt.Sprintf("pci_devices[%d]", i), want)
				chosen.PCI, errs = append(chosen.PCI, found...), append(errs, err)
			}
		}

		for i, want := range c.MediatedDevices {
			if (want.UUID != "") == byName {
				found, err := pool.mediated(fmt.Sprintf("mediated_devices[%d]", i), want)
				chosen.Mediated, errs = append(chosen.Mediated, found...), append(errs, err)
			}
		}
	}

	// What can never work is said first: its kind is that of the whole.
	slices.SortStableFunc(errs, func(a, b error) int { return rank(a) - rank(b) })

	if err := errors.Join(errs...); err != nil {
		return Devices{}, err
	}

	return chosen, nil
}

func rank(err error) int {
	if driver.KindOf(err) == driver.KindTerminal {
		return 0
	}

	return 1
}

// picker gives each device away once.
type picker struct {
	host  Host
	taken []string
}

func (p *picker) pci(path string, want PCIDevice) ([]HostPCI, error) {
	var fitting, free []HostPCI

	for _, dev := range p.host.PCI {
		if !want.selects(dev) {
			continue
		}

		fitting = append(fitting, dev)

		if !p.hasTaken(dev) {
			free = append(free, dev)
		}
	}

	count := max(1, want.Count)

	switch {
	case len(fitting) < count:
		return nil, driver.Terminalf("%s: the host has %d devices %s: want %d", path, len(fitting), want, count)
	case fitting[0].Bridge:
		return nil, driver.Terminalf("%s: %s is a bridge, which cannot be given away", path, fitting[0].Address)
	case len(free) < count:
		return nil, driver.Capacity(fmt.Errorf("%s: the host has %d devices %s, of which %d are free: want %d", path, len(fitting), want, len(free), count))
	}

	for _, dev := range free[:count] {
		if dev.Group < 0 {
			return nil, driver.Terminalf("%s: %s is in no IOMMU group: switch the IOMMU on in the host's firmware and kernel", path, dev.Address)
		}

		p.taken = append(p.taken, dev.ID())
	}

	return free[:count], nil
}

// hasTaken says whether another domain has the device, or one that it shares an IOMMU group with.
func (p *picker) hasTaken(dev HostPCI) bool {
	if slices.Contains(p.taken, dev.ID()) {
		return true
	}

	return slices.ContainsFunc(p.host.PCI, func(other HostPCI) bool {
		return dev.Group >= 0 && other.Group == dev.Group && slices.Contains(p.host.Taken, other.ID())
	})
}

func (p *picker) mediated(path string, want MediatedDevice) ([]HostMediated, error) {
	var fitting, free []HostMediated

	for _, dev := range p.host.Mediated {
		if want.UUID != "" && dev.UUID != strings.ToLower(want.UUID) || want.UUID == "" && dev.Type != want.Type {
			continue
		}

		fitting = append(fitting, dev)

		if !slices.Contains(p.taken, dev.ID()) {
			free = append(free, dev)
		}
	}

	count := max(1, want.Count)

	switch {
	case len(fitting) < count:
		return nil, driver.Terminalf("%s: the host has %d mediated devices %s: want %d; mdevctl makes them", path, len(fitting), want, count)
	case len(free) < count:
		return nil, driver.Capacity(fmt.Errorf("%s: the host has %d mediated devices %s, of which %d are free: want %d", path, len(fitting), want, len(free), count))
	}

	for _, dev := range free[:count] {
		p.taken = append(p.taken, dev.ID())
	}

	return free[:count], nil
}

func (d PCIDevice) selects(dev HostPCI) bool {
	if d.Address != "" {
		return dev.Address == canonicalPCI(d.Address)
	}

	return !dev.Bridge && dev.Vendor == strings.ToLower(d.Vendor) && (d.Product == "" || dev.Product == strings.ToLower(d.Product))
}

// String names what is selected in messages.
func (d PCIDevice) String() string {
	switch {
	case d.Address != "":
		return "at " + canonicalPCI(d.Address)
	case d.Product == "":
		return "of vendor " + d.Vendor
	default:
		return "of vendor " + d.Vendor + " and product " + d.Product
	}
}

// String names what is selected in messages.
func (d MediatedDevice) String() string {
	if d.UUID != "" {
		return strings.ToLower(d.UUID)
	}

	return "of type " + d.Type
}
