package machine

import "libvirt.org/go/libvirtxml"

// NewVolume describes a volume to be made.
type NewVolume struct {
	Name     string
	Format   string
	Capacity uint64
	// Backing is the path of the raw file that a qcow2 volume overlays; empty for none.
	Backing string
	// Whole takes all of the space at once. Otherwise it is taken as it is written, where the pool can do that.
	Whole bool
}

// XML is the description that libvirt makes the volume from.
func (v NewVolume) XML() (string, error) {
	doc := libvirtxml.StorageVolume{
		Name:     v.Name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: v.Capacity},
		Target: &libvirtxml.StorageVolumeTarget{
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: v.Format},
			// The hypervisor is handed the file when the machine starts; nobody else needs it.
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: "0600"},
		},
	}

	if !v.Whole {
		doc.Allocation = &libvirtxml.StorageVolumeSize{Unit: "bytes"}
	}

	if v.Format == "qcow2" {
		// The older format keeps no record of what has changed, which backups with checkpoints need.
		doc.Target.Compat = "1.1"
	}

	if v.Backing != "" {
		doc.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path: v.Backing, Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
		}
	}

	return doc.Marshal()
}
