package libvirt

import (
	"slices"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// The folders of what libvirt keeps for domains.
const (
	nvramFolder = "/var/lib/libvirt/qemu/nvram/"
	tpmFolder   = "/var/lib/libvirt/swtpm/"
)

// efi says whether libvirt is to choose UEFI firmware for the domain.
func efi(def *libvirtxml.Domain) bool { return def.OS != nil && def.OS.Firmware == "efi" }

// secureBoot is the domain's wish for secure boot, empty if it has none.
func secureBoot(def *libvirtxml.Domain) string {
	if def.OS.Loader != nil && def.OS.Loader.Secure != "" {
		return def.OS.Loader.Secure
	}

	if def.OS.FirmwareInfo != nil {
		for _, f := range def.OS.FirmwareInfo.Features {
			if f.Name == "secure-boot" {
				return f.Enabled
			}
		}
	}

	return ""
}

// firmware is an image of UEFI with the variables that it starts with.
type firmware struct {
	loader, template string
	secure           bool
}

// firmwareFor chooses firmware for a domain as libvirt does: the first that fits, which is one with secure boot where the board can
// have it and nobody says otherwise.
func (h *Hypervisor) firmwareFor(def *libvirtxml.Domain) (firmware, error) {
	const folder = "/usr/share/OVMF/OVMF_"

	host := h.opts.Host
	wish := secureBoot(def)
	can := strings.HasPrefix(def.OS.Type.Machine, "pc-q35") && !host.NoSecureBoot
	none := failed(libvirt.FROM_QEMU, "Unable to find any firmware to satisfy 'efi'")

	switch {
	case host.NoUEFI:
		return firmware{}, none
	case def.OS.Type.Arch == "aarch64" && wish != "yes":
		return firmware{loader: "/usr/share/AAVMF/AAVMF_CODE.ms.fd", template: "/usr/share/AAVMF/AAVMF_VARS.ms.fd"}, nil
	case can && wish != "no":
		return firmware{loader: folder + "CODE_4M.ms.fd", template: folder + "VARS_4M.ms.fd", secure: true}, nil
	case wish == "yes":
		return firmware{}, none
	default:
		return firmware{loader: folder + "CODE_4M.fd", template: folder + "VARS_4M.fd"}, nil
	}
}

// fillFirmware names the firmware in the description of what starts, in the place of the wish for some.
func (h *Hypervisor) fillFirmware(live *libvirtxml.Domain) error {
	if !efi(live) {
		return nil
	}

	chosen, err := h.firmwareFor(live)
	if err != nil {
		return err
	}

	nvram := nvramPath(live)
	live.OS.Firmware, live.OS.FirmwareInfo = "", nil
	live.OS.Loader = &libvirtxml.DomainLoader{Path: chosen.loader, Readonly: "yes", Type: "pflash"}
	live.OS.NVRam = &libvirtxml.DomainNVRam{NVRam: nvram, Template: chosen.template}

	if chosen.secure {
		live.OS.Loader.Secure = "yes"

		if live.Features == nil {
			live.Features = &libvirtxml.DomainFeatureList{}
		}

		live.Features.SMM = &libvirtxml.DomainFeatureSMM{State: "on"}
	}

	return nil
}

// nvramSize is the size of the variables of the firmware that distributions have.
const nvramSize = 540672

// nvramPath is the file with a domain's UEFI variables, empty if it has none. One that has not started yet will have it there.
func nvramPath(def *libvirtxml.Domain) string {
	if def == nil || def.OS == nil {
		return ""
	}

	if def.OS.NVRam == nil {
		if efi(def) {
			return nvramFolder + def.Name + "_VARS.fd"
		}

		return ""
	}

	if source := def.OS.NVRam.Source; source != nil && source.File != nil {
		return source.File.File
	}

	return def.OS.NVRam.NVRam
}

// hasTPM says whether the host has to emulate a TPM for the domain.
func hasTPM(def *libvirtxml.Domain) bool {
	return slices.ContainsFunc(def.Devices.TPMs, func(t libvirtxml.DomainTPM) bool {
		return t.Backend != nil && t.Backend.Emulator != nil
	})
}

// tpmPath is where the state of its TPM is.
func tpmPath(def *libvirtxml.Domain) string { return tpmFolder + def.UUID + "/tpm2/tpm2-00.permall" }

func hugepages(def *libvirtxml.Domain) bool {
	return def.MemoryBacking != nil && def.MemoryBacking.MemoryHugePages != nil
}

// checkStartLocked refuses to start what cannot run.
func (h *Hypervisor) checkStartLocked(m *machine, def *libvirtxml.Domain) error {
	if err := h.checkDiskFilesLocked(m, def); err != nil {
		return err
	}

	if err := h.checkInterfacesLocked(def); err != nil {
		return err
	}

	if err := h.checkDevicesLocked(m, def); err != nil {
		return err
	}

	if hasTPM(def) && h.opts.Host.NoTPM {
		return unsupportedConfig(libvirt.FROM_QEMU, "TPM version '2.0' is not supported")
	}

	if kernel := def.OS.Kernel; kernel != "" && h.files[kernel] == nil {
		return internal(libvirt.FROM_QEMU, "process exited while connecting to monitor: qemu: could not open kernel file '%s': %s", kernel, noEntry)
	}

	if hugepages(def) {
		if h.opts.Host.Hugepages == 0 {
			return internal(libvirt.FROM_QEMU, "hugetlbfs filesystem is not mounted or disabled by administrator config")
		}

		if memoryKiB(def) > h.freePagesLocked()<<11 {
			return outOfMemory()
		}

		return nil
	}

	if memoryKiB(def) > h.freeLocked() {
		return outOfMemory()
	}

	return nil
}

// freePagesLocked is the number of pages of 2 MiB that guests have left.
func (h *Hypervisor) freePagesLocked() uint64 {
	free := h.opts.Host.Hugepages

	for _, m := range h.domains {
		if m.live != nil && hugepages(m.live) {
			free -= min(free, (memoryKiB(m.live)+2047)>>11)
		}
	}

	return free
}

// checkDiskFilesLocked refuses disks whose files, or the files below them, are missing, in use by another domain, or of another
// format than the domain says.
func (h *Hypervisor) checkDiskFilesLocked(m *machine, def *libvirtxml.Domain) error {
	for _, disk := range def.Devices.Disks {
		if volume := disk.Source; volume != nil && volume.Volume != nil {
			if _, _, err := h.volumeLocked(volume.Volume.Pool, volume.Volume.Volume); err != nil {
				return err
			}
		}

		path := h.diskPathLocked(&disk)
		if path == "" || disk.Source.Network != nil {
			continue
		}

		above := ""

		for below, depth := path, 0; below != "" && depth < 100; depth++ {
			f := h.files[below]
			switch {
			case f == nil && below == path && disk.Driver.Type == "raw":
				return system(libvirt.FROM_STORAGE, noEntry, "Cannot access storage file '%s'", path)
			case f == nil && below == path:
				return system(libvirt.FROM_STORAGE, noEntry, "Cannot access storage file '%s' (as uid:0, gid:0)", path)
			case f == nil:
				return system(libvirt.FROM_STORAGE, noEntry, "Cannot access backing file '%s' of storage file '%s' (as uid:0, gid:0)", below, above)
			case below == path && disk.Driver.Type == "qcow2" && !f.header:
				return internal(libvirt.FROM_QEMU, "process exited while connecting to monitor: qemu-system-x86_64: Image is not in qcow2 format")
			}

			above, below = below, ""
			if disk.Driver.Type != "raw" || depth > 0 {
				below = f.backing
			}
		}

		if err := h.checkLockLocked(m, &disk, path); err != nil {
			return err
		}
	}

	return nil
}

// checkLockLocked refuses a disk that another domain writes to.
func (h *Hypervisor) checkLockLocked(m *machine, disk *libvirtxml.DomainDisk, path string) error {
	if disk.ReadOnly != nil || disk.Shareable != nil {
		return nil
	}

	for _, other := range h.domains {
		if other == m || other.live == nil {
			continue
		}

		for _, taken := range other.live.Devices.Disks {
			if taken.ReadOnly == nil && h.diskPathLocked(&taken) == path {
				return internal(libvirt.FROM_QEMU,
					"process exited while connecting to monitor: qemu-system-x86_64: Failed to get \"write\" lock\nIs another process using the image [%s]?", path)
			}
		}
	}

	return nil
}

// provideLocked makes what libvirt makes when a domain starts.
func (h *Hypervisor) provideLocked(m *machine) {
	if path := nvramPath(m.live); path != "" && h.files[path] == nil {
		h.files[path] = newFile(nvramSize, "0600")
		h.madeLocked(ledger.Object{Kind: "nvram", ID: path, Name: m.name})
	}

	if path := tpmPath(m.live); hasTPM(m.live) && h.files[path] == nil {
		h.files[path] = newFile(blockSize, "0600")
		h.madeLocked(ledger.Object{Kind: "tpm", ID: path, Name: m.name})
	}
}
