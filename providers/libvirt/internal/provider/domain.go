package provider

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// domainXML describes the machine of a request, whose volumes are at those paths by name, to libvirt. It holds no secret, as all
// who may list domains can read it.
func domainXML(req driver.Request, data ClassData, h host, m mark, paths map[string]string) (string, error) {
	n := namesOf(req.Ref)

	element, err := m.element()
	if err != nil {
		return "", err
	}

	domain := libvirtxml.Domain{
		Type:     h.Type,
		Name:     n.Domain,
		UUID:     req.Identity.UUID,
		Title:    "Omni machine " + req.RequestID,
		Metadata: &libvirtxml.DomainMetadata{XML: element},
		Memory:   &libvirtxml.DomainMemory{Value: uint(data.Memory), Unit: "MiB"},
		VCPU:     &libvirtxml.DomainVCPU{Value: uint(data.Cores)},
		OS: &libvirtxml.DomainOS{
			Type:   &libvirtxml.DomainOSType{Arch: libvirtArch[data.Arch], Machine: machineType[data.Arch], Type: "hvm"},
			SMBios: &libvirtxml.DomainSMBios{Mode: "sysinfo"},
		},
		// What the guest can read about itself.
		SysInfo: []libvirtxml.DomainSysInfo{{SMBIOS: &libvirtxml.DomainSysInfoSMBIOS{
			System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{
				{Name: "manufacturer", Value: "omni-infra"},
				{Name: "product", Value: "libvirt"},
				{Name: "serial", Value: req.RequestID},
				{Name: "uuid", Value: req.Identity.UUID},
			}},
		}}},
		Features:   &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "restart",
		Devices: &libvirtxml.DomainDeviceList{
			Disks: disks(n, data, paths),
			Controllers: []libvirtxml.DomainController{
				{Type: "scsi", Index: new(uint), Model: "virtio-scsi"},
			},
			Interfaces: interfaces(req.Identity, data),
			Serials:    []libvirtxml.DomainSerial{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
			Consoles:   []libvirtxml.DomainConsole{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
			// Without a path libvirt gives each domain a socket of its own.
			Channels: []libvirtxml.DomainChannel{{
				Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
				Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: "org.qemu.guest_agent.0"}},
			}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "virtio"},
			RNGs: []libvirtxml.DomainRNG{{
				Model:   "virtio",
				Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			}},
		},
	}

	if data.Arch == driver.AMD64 {
		domain.Features.APIC = &libvirtxml.DomainFeatureAPIC{}
	}

	if h.CPU != "" {
		domain.CPU = &libvirtxml.DomainCPU{Mode: h.CPU}
	}

	if data.Firmware == firmwareUEFI {
		// libvirt knows where the distribution keeps the firmware. Talos' image is signed for secure boot only on request.
		domain.OS.Firmware = "efi"
		domain.OS.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{
			Features: []libvirtxml.DomainOSFirmwareFeature{{Name: "secure-boot", Enabled: "no"}},
		}
	}

	out, err := domain.Marshal()
	if err != nil {
		return "", fmt.Errorf("describe domain %q: %w", n.Domain, err)
	}

	return out, nil
}

// disks are the system disk, from which alone the machine boots, the seed, and the additional disks. The seed is on virtio-scsi,
// which every board and every kernel for virtual machines has.
//
// They are named by their paths: for disks that are named by pool and volume, libvirt's AppArmor helper on Debian and Ubuntu does
// not let the hypervisor open the image below an overlay.
func disks(n names, data ClassData, paths map[string]string) []libvirtxml.DomainDisk {
	out := []libvirtxml.DomainDisk{
		qcow2Disk(paths[n.Root], "vda", "virtio", ""),
		{
			Device:   "cdrom",
			Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
			Source:   fileSource(paths[n.Seed]),
			Target:   &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: "scsi"},
			ReadOnly: &libvirtxml.DomainDiskReadOnly{},
		},
	}

	out[0].Boot = &libvirtxml.DomainDeviceBoot{Order: 1}

	// The next free device letter on each kind of bus; SATA and SCSI disks share the "sd" names.
	next := map[string]byte{"vd": 'b', "sd": 'b'}

	for i, disk := range data.AdditionalDisks {
		prefix, bus := "sd", disk.Type
		if bus == diskVirtio || bus == diskNVMe {
			prefix, bus = "vd", diskVirtio
		}

		out = append(out, qcow2Disk(paths[n.Disk(i)], prefix+string(next[prefix]), bus, fmt.Sprintf("disk-%d", i+1)))
		next[prefix]++
	}

	return out
}

func qcow2Disk(path, dev, bus, serial string) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2", Discard: "unmap"},
		Source: fileSource(path),
		Target: &libvirtxml.DomainDiskTarget{Dev: dev, Bus: bus},
		Serial: serial,
	}
}

func fileSource(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

func interfaces(id driver.Identity, data ClassData) []libvirtxml.DomainInterface {
	macs := data.macs(id)
	out := make([]libvirtxml.DomainInterface, len(data.NetworkInterfaces))

	for i, nic := range data.NetworkInterfaces {
		source := &libvirtxml.DomainInterfaceSource{}

		switch nic.Type {
		case typeUser:
			source.User = &libvirtxml.DomainInterfaceSourceUser{}
		case typeBridge:
			source.Bridge = &libvirtxml.DomainInterfaceSourceBridge{Bridge: nic.NetworkName}
		default:
			source.Network = &libvirtxml.DomainInterfaceSourceNetwork{Network: nic.network()}
		}

		out[i] = libvirtxml.DomainInterface{
			MAC:    &libvirtxml.DomainInterfaceMAC{Address: macs[i].String()},
			Source: source,
			Model:  &libvirtxml.DomainInterfaceModel{Type: nic.Driver},
		}
	}

	return out
}
