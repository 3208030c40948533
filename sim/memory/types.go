package memory

import (
	"maps"
	"slices"
	"time"
)

// Op is a call of the client API.
type Op string

// The calls.
const (
	OpPing         Op = "ping"
	OpImportImage  Op = "import-image"
	OpGetImage     Op = "get-image"
	OpListImages   Op = "list-images"
	OpDeleteImage  Op = "delete-image"
	OpCreateVolume Op = "create-volume"
	OpGetVolume    Op = "get-volume"
	OpListVolumes  Op = "list-volumes"
	OpDeleteVolume Op = "delete-volume"
	OpCreateVM     Op = "create-vm"
	OpGetVM        Op = "get-vm"
	OpListVMs      Op = "list-vms"
	OpDeleteVM     Op = "delete-vm"
	OpStartVM      Op = "start-vm"
	OpStopVM       Op = "stop-vm"
	OpRebootVM     Op = "reboot-vm"
	OpWatchVMs     Op = "watch-vms"
)

// State is where an object is in its life.
type State string

// The states. Images and volumes go from creating to available, or an image to failed; machines from creating to stopped and
// between stopped and running. Deleting is the last one.
const (
	Creating  State = "creating"
	Available State = "available"
	Failed    State = "failed"
	Stopped   State = "stopped"
	Starting  State = "starting"
	Running   State = "running"
	Stopping  State = "stopping"
	Rebooting State = "rebooting"
	Deleting  State = "deleting"
)

// Image is a disk image that the cloud fetched from a URL. Its name is unique.
type Image struct {
	ID, Name, URL string
	Tags          map[string]string
	State         State
	// Reason says why the image failed.
	Reason    string
	CreatedAt time.Time
}

// Volume is a disk. Names of volumes are not unique.
type Volume struct {
	ID, Name string
	// ImageID is the image whose copy it started as, empty for a blank disk.
	ImageID string
	SizeGiB int
	Tags    map[string]string
	State   State
	// VMID is the machine that it is attached to, empty if it is free.
	VMID      string
	CreatedAt time.Time
}

// VM is a virtual machine. Names of machines are not unique.
type VM struct {
	ID, Name  string
	Cores     int
	MemoryMiB int
	// VolumeIDs are its disks; it boots from the first one.
	VolumeIDs []string
	// UUID is the SMBIOS UUID.
	UUID string
	// UserData is handed to the machine. No call returns it; only Options.Boot sees it.
	UserData string
	Tags     map[string]string
	State    State
	// Boots counts how often the machine was started or restarted.
	Boots int
	// ImageURL is the source of the image on the boot volume.
	ImageURL  string
	CreatedAt time.Time
}

// VolumeSpec is what CreateVolume makes.
type VolumeSpec struct {
	Name, ImageID string
	SizeGiB       int
	Tags          map[string]string
}

// VMSpec is what CreateVM makes.
type VMSpec struct {
	Name             string
	Cores, MemoryMiB int
	// VolumeIDs are free volumes, the one to boot from first.
	VolumeIDs []string
	// UUID is the SMBIOS UUID; the cloud draws one if it is empty.
	UUID     string
	UserData string
	Tags     map[string]string
}

func (i Image) clone() Image {
	i.Tags = maps.Clone(i.Tags)

	return i
}

func (v Volume) clone() Volume {
	v.Tags = maps.Clone(v.Tags)

	return v
}

func (v VM) clone() VM {
	v.Tags = maps.Clone(v.Tags)
	v.VolumeIDs = slices.Clone(v.VolumeIDs)

	return v
}

// public is what calls return: everything but the secret.
func (v VM) public() VM {
	v.UserData = ""

	return v.clone()
}

// tagged reports whether tags has all of want.
func tagged(tags, want map[string]string) bool {
	for k, v := range want {
		if got, ok := tags[k]; !ok || got != v {
			return false
		}
	}

	return true
}
