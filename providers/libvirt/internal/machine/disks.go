package machine

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"
)

// VolumeKind is how the hypervisor reaches a volume.
type VolumeKind string

// The kinds of volume.
const (
	// VolumeFile is a file on the host, VolumeBlock a block device of the host; Path says where.
	VolumeFile  VolumeKind = "file"
	VolumeBlock VolumeKind = "block"
	// VolumePool is a volume that libvirt looks up itself, by Pool and Name, with the hosts and the secret that the pool has: RBD.
	VolumePool VolumeKind = "volume"
	// VolumeNetwork is a volume that the hypervisor reaches over the network; Path is its name there, Network says how.
	VolumeNetwork VolumeKind = "network"
)

// Volume says where one disk of a machine is. Files are named by their paths rather than by pool and volume: for the latter,
// libvirt's AppArmor helper on Debian and Ubuntu does not let the hypervisor open the image below an overlay.
type Volume struct {
	Kind VolumeKind
	// Path is the file, the device, or the volume's name on the network.
	Path string
	// Format is "qcow2" or "raw"; everything but a file is raw.
	Format string
	// Pool and Name are for kind VolumePool.
	Pool, Name string
	// Network is for kind VolumeNetwork.
	Network NetworkVolume
}

// NetworkVolume says how a volume is reached over the network. The secret itself stays in libvirt.
type NetworkVolume struct {
	// Protocol is like "rbd" or "iscsi".
	Protocol string
	// Hosts are where it is served, with Port if not the protocol's own.
	Hosts []NetworkHost
	// User is whom the secret belongs to, SecretType like "ceph" or "iscsi"; one of SecretUUID and SecretUsage names the secret.
	// All are empty where none is needed.
	User, SecretType, SecretUUID, SecretUsage string
}

// NetworkHost is a server of a volume.
type NetworkHost struct{ Name, Port string }

// Volumes are where the disks of a machine are.
type Volumes struct {
	Root, Seed Volume
	// Disks are those of ClassData.AdditionalDisks, in their order.
	Disks []Volume
}

func (v Volume) source() (*libvirtxml.DomainDiskSource, *libvirtxml.DomainDiskAuth, error) {
	switch {
	case v.Kind == VolumePool && v.Pool != "" && v.Name != "":
		return &libvirtxml.DomainDiskSource{Volume: &libvirtxml.DomainDiskSourceVolume{Pool: v.Pool, Volume: v.Name}}, nil, nil
	case v.Path == "":
		return nil, nil, errors.New("its path is not known")
	case v.Kind == VolumeFile:
		return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: v.Path}}, nil, nil
	case v.Kind == VolumeBlock:
		return &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: v.Path}}, nil, nil
	case v.Kind == VolumeNetwork && v.Network.Protocol != "":
		return v.network()
	default:
		return nil, nil, fmt.Errorf("it is of kind %q, which is incomplete", v.Kind)
	}
}

func (v Volume) network() (*libvirtxml.DomainDiskSource, *libvirtxml.DomainDiskAuth, error) {
	n := v.Network
	network := &libvirtxml.DomainDiskSourceNetwork{Protocol: n.Protocol, Name: v.Path}

	for _, host := range n.Hosts {
		network.Hosts = append(network.Hosts, libvirtxml.DomainDiskSourceHost{Name: host.Name, Port: host.Port})
	}

	var auth *libvirtxml.DomainDiskAuth
	if n.User != "" {
		auth = &libvirtxml.DomainDiskAuth{
			Username: n.User,
			Secret:   &libvirtxml.DomainDiskSecret{Type: n.SecretType, UUID: n.SecretUUID, Usage: n.SecretUsage},
		}
	}

	return &libvirtxml.DomainDiskSource{Network: network}, auth, nil
}

// disks are the system disk, from which alone the machine boots, the seed, and the additional disks. The seed is on virtio-scsi,
// which every board and every kernel for virtual machines has.
func (d Domain) disks() ([]libvirtxml.DomainDisk, error) {
	data, v := d.Data, d.Volumes

	if len(v.Disks) != len(data.AdditionalDisks) {
		return nil, fmt.Errorf("got %d volumes for %d additional disks", len(v.Disks), len(data.AdditionalDisks))
	}

	var letters letters

	root, err := disk(v.Root, letters.next(data.SystemDisk.Bus), data.SystemDisk.Bus, data.SystemDisk.Serial, data.SystemDisk.DiskTuning)
	if err != nil {
		return nil, fmt.Errorf("system disk: %w", err)
	}

	root.Boot = &libvirtxml.DomainDeviceBoot{Order: 1}

	seed, err := disk(v.Seed, letters.next(diskSCSI), diskSCSI, "", DiskTuning{})
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}

	seed.Device, seed.ReadOnly = "cdrom", &libvirtxml.DomainDiskReadOnly{}
	out := []libvirtxml.DomainDisk{root, seed}

	for i, extra := range data.AdditionalDisks {
		one, err := disk(v.Disks[i], letters.next(extra.bus()), extra.bus(), extra.serial(i), extra.DiskTuning)
		if err != nil {
			return nil, fmt.Errorf("additional_disks[%d]: %w", i, err)
		}

		out = append(out, one)
	}

	return out, nil
}

func disk(v Volume, dev, bus, serial string, tuning DiskTuning) (libvirtxml.DomainDisk, error) {
	source, auth, err := v.source()

	return libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{
			Name: "qemu", Type: v.Format, Cache: explicit(tuning.Cache), IO: explicit(tuning.IO), Discard: tuning.Discard,
		},
		Auth:   auth,
		Source: source,
		Target: &libvirtxml.DomainDiskTarget{Dev: dev, Bus: bus},
		Serial: serial,
	}, err
}

// explicit is the value that libvirt is told; nothing for what is left to it.
func explicit(value string) string {
	if value == "default" {
		return ""
	}

	return value
}

// letters gives each device of a kind of bus a name of its own; SATA and SCSI disks share the "sd" names.
type letters struct{ vd, sd byte }

func (l *letters) next(bus string) string {
	prefix, counter := "sd", &l.sd
	if bus == diskVirtio {
		prefix, counter = "vd", &l.vd
	}

	*counter++

	return prefix + string('a'+*counter-1)
}

// scsiUnits is how many disks libvirt puts on one SCSI controller at least: it gives "sd" names places in turn.
const scsiUnits = 7

// controllers are those that libvirt would otherwise make of a kind that Talos may have no driver for.
func controllers(disks []libvirtxml.DomainDisk) []libvirtxml.DomainController {
	most := 0

	for _, disk := range disks {
		if disk.Target.Bus == diskSCSI {
			most = max(most, int(disk.Target.Dev[2]-'a')/scsiUnits)
		}
	}

	out := make([]libvirtxml.DomainController, most+1)
	for i := range out {
		out[i] = libvirtxml.DomainController{Type: "scsi", Index: new(uint(i)), Model: "virtio-scsi"}
	}

	return out
}
