package provider

import (
	"errors"
	"fmt"
	"net"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ClassData is the provider data of a machine class: what each of its machines should be.
type ClassData struct {
	Cores             int                `json:"cores" title:"CPU cores" doc:"Number of virtual CPUs." required:"true" min:"1" max:"1024"`
	Memory            uint64             `json:"memory" title:"Memory" doc:"Memory in MiB. Talos needs 2048 or more." required:"true" min:"128" max:"16777216"`
	DiskSize          uint64             `json:"disk_size" title:"Disk size" doc:"Size of the system disk in GiB. Talos needs 10 or more." required:"true" min:"1" max:"65536"`
	StoragePool       string             `json:"storage_pool" title:"Storage pool" doc:"Name of the libvirt storage pool for all disks; one that keeps files (dir, fs, netfs)." default:"default" min:"1" max:"255"`
	NetworkInterfaces []NetworkInterface `json:"network_interfaces" title:"Network interfaces" doc:"Network interfaces, in the order in which the machine sees them." default:"[{}]" min:"1" max:"16"`
	AdditionalDisks   []Disk             `json:"additional_disks" title:"Additional disks" doc:"Empty disks beside the system disk." max:"16"`
	Arch              driver.Arch        `json:"arch" title:"Architecture" doc:"Processor architecture." enum:"amd64,arm64" default:"amd64"`
	Firmware          string             `json:"firmware" title:"Firmware" doc:"Firmware that boots the machine." enum:"uefi,bios" default:"uefi"`
}

// NetworkInterface is a network interface of a machine.
type NetworkInterface struct {
	Type            string `json:"type" title:"Type" doc:"What it is connected to: a libvirt network, a bridge of the host, or the host's own network by address translation (user), which needs no rights and cannot be reached from outside." enum:"network,bridge,user" default:"network"`
	NetworkName     string `json:"network_name" title:"Network" doc:"Name of the libvirt network, \"default\" if absent; with type bridge the name of the host's bridge."`
	Driver          string `json:"driver" title:"Driver" doc:"Device that the machine sees." enum:"virtio,e1000e" default:"virtio"`
	PhysicalAddress string `json:"physical_address" title:"MAC address" doc:"Hardware address, only for a class with a single machine; derived from the request's id if absent."`
}

// Disk is an additional disk.
type Disk struct {
	Type string `json:"type" title:"Type" doc:"Bus that the disk is on. A disk of type nvme is on virtio: few hypervisors emulate NVMe." enum:"virtio,sata,scsi,nvme" default:"virtio"`
	Size uint64 `json:"size" title:"Size" doc:"Size in GiB." required:"true" min:"1" max:"65536"`
}

// The values of NetworkInterface.Type and ClassData.Firmware, and those of Disk.Type that the code tells apart.
const (
	typeNetwork  = "network"
	typeBridge   = "bridge"
	typeUser     = "user"
	firmwareUEFI = "uefi"
	firmwareBIOS = "bios"
	diskVirtio   = "virtio"
	diskSATA     = "sata"
	// diskNVMe comes from classes of the official provider.
	diskNVMe = "nvme"
)

// Schema returns the JSON schema of the class data, which Omni shows as a form.
func Schema() string { return classdata.Schema[ClassData]("Machine on libvirt") }

// Validate checks the rules across fields.
func (c ClassData) Validate() error {
	var errs []error

	if c.Arch == driver.ARM64 && c.Firmware == firmwareBIOS {
		errs = append(errs, errors.New(`firmware: arm64 machines have no BIOS: want "uefi"`))
	}

	seen := map[string]int{}

	for i, nic := range c.NetworkInterfaces {
		path := fmt.Sprintf("network_interfaces[%d].", i)

		switch {
		case nic.Type == typeBridge && nic.NetworkName == "":
			errs = append(errs, errors.New(path+"network_name: required with type bridge: want the name of the host's bridge"))
		case nic.Type == typeUser && nic.NetworkName != "":
			errs = append(errs, fmt.Errorf("%snetwork_name: got %q, but type user has no network: leave it out", path, nic.NetworkName))
		}

		if nic.PhysicalAddress == "" {
			continue
		}

		mac, err := net.ParseMAC(nic.PhysicalAddress)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			errs = append(errs, fmt.Errorf("%sphysical_address: got %q, want the address of one interface, like 52:54:00:12:34:56", path, nic.PhysicalAddress))

			continue
		}

		if other, ok := seen[mac.String()]; ok {
			errs = append(errs, fmt.Errorf("%sphysical_address: %s is taken by network_interfaces[%d]", path, mac, other))
		}

		seen[mac.String()] = i
	}

	for i, disk := range c.AdditionalDisks {
		if disk.Type == diskSATA && c.Arch == driver.ARM64 {
			errs = append(errs, fmt.Errorf(`additional_disks[%d].type: arm64 machines have no SATA: want "virtio" or "scsi"`, i))
		}
	}

	return errors.Join(errs...)
}

// network is the libvirt network of an interface of type network.
func (n NetworkInterface) network() string {
	if n.NetworkName == "" {
		return "default"
	}

	return n.NetworkName
}

// macs are the hardware addresses of the interfaces in order.
func (c ClassData) macs(id driver.Identity) []net.HardwareAddr {
	macs := make([]net.HardwareAddr, len(c.NetworkInterfaces))

	for i, nic := range c.NetworkInterfaces {
		macs[i] = id.MAC(i)

		if nic.PhysicalAddress != "" {
			macs[i], _ = net.ParseMAC(nic.PhysicalAddress) // Validate has parsed it.
		}
	}

	return macs
}
