package machine

import (
	"net"
	"net/netip"
	"slices"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ClassData is the provider data of a machine class: what each of its machines should be. It takes the classes of the official
// libvirt provider as they are.
type ClassData struct {
	Cores             int                `json:"cores" title:"CPU cores" doc:"Number of virtual CPUs." required:"true" min:"1" max:"1024"`
	Memory            uint64             `json:"memory" title:"Memory" doc:"Memory in MiB. Talos needs 2048 or more." required:"true" min:"128" max:"16777216"`
	DiskSize          uint64             `json:"disk_size" title:"Disk size" doc:"Size of the system disk in GiB. Talos needs 10 or more." required:"true" min:"1" max:"65536"`
	StoragePool       string             `json:"storage_pool" title:"Storage pool" doc:"Name of the libvirt storage pool for all disks that name none." default:"default" min:"1" max:"255"`
	NetworkInterfaces []NetworkInterface `json:"network_interfaces" title:"Network interfaces" doc:"Network interfaces, in the order in which the machine sees them." default:"[{}]" min:"1" max:"16"`
	AdditionalDisks   []Disk             `json:"additional_disks" title:"Additional disks" doc:"Empty disks beside the system disk." max:"16"`
	SystemDisk        SystemDisk         `json:"system_disk" title:"System disk" doc:"How the system disk, from which the machine always boots, is attached."`
	Arch              driver.Arch        `json:"arch" title:"Architecture" doc:"Processor architecture." enum:"amd64,arm64" default:"amd64"`
	CPU               CPU                `json:"cpu" title:"CPU" doc:"Which processor the machine sees."`
	Firmware          string             `json:"firmware" title:"Firmware" doc:"Firmware that boots the machine: uefi, bios, or auto for UEFI where the host has it and BIOS elsewhere." enum:"auto,uefi,bios" default:"auto"`
	SecureBoot        bool               `json:"secure_boot" title:"Secure Boot" doc:"Boot Talos' signed image on firmware that checks signatures, with a TPM. Needs UEFI."`
	EnrolledKeys      bool               `json:"enrolled_keys" title:"Enrolled keys" doc:"With secure_boot: start with the keys of the firmware's vendor. By default the firmware starts without keys, in setup mode, in which Talos' boot loader can enroll those that its image is signed with."`
	TPM               bool               `json:"tpm" title:"TPM" doc:"Give the machine an emulated TPM 2.0, for example for disk encryption. The host needs swtpm. Comes with secure_boot."`
	Hugepages         string             `json:"hugepages" title:"Huge pages" doc:"Back the memory by huge pages of this size, which have to be set aside on the host; default for its default size." enum:"off,default,64K,2M,32M,512M,1G,16G" default:"off"`
	NUMA              NUMA               `json:"numa" title:"NUMA" doc:"On which NUMA nodes of the host the machine lies, and how many it sees."`
	PCIDevices        []PCIDevice        `json:"pci_devices" title:"PCI devices" doc:"PCI devices of the host that the machine gets for itself." max:"16"`
	MediatedDevices   []MediatedDevice   `json:"mediated_devices" title:"Mediated devices" doc:"Mediated devices (vGPUs) that exist on the host and that the machine gets for itself." max:"16"`
	Video             string             `json:"video" title:"Video" doc:"Graphics card, on which Talos shows its dashboard." enum:"none,virtio,vga" default:"none"`
	Graphics          string             `json:"graphics" title:"Graphics" doc:"Server for the screen and keyboard. It listens on the host's loopback address, has no password, and needs video." enum:"none,vnc,spice" default:"none"`
	ConsoleLog        bool               `json:"console_log" title:"Console log" doc:"Keep what the machine prints on its serial console in /var/log/libvirt/qemu/<domain>-console.log on the host. The file stays when the machine goes."`
	GuestAgent        bool               `json:"guest_agent" title:"Guest agent" doc:"Give the machine a channel for the QEMU guest agent, and the extension siderolabs/qemu-guest-agent, which waits for that channel. Without it, neither."  default:"true"`
	MemoryBalloon     bool               `json:"memory_balloon" title:"Memory balloon" doc:"Let the host see and reclaim the memory that the machine does not use." default:"true"`
	Watchdog          string             `json:"watchdog" title:"Watchdog" doc:"What a watchdog that the machine stops feeding does to it. Talos feeds one when it is configured to (WatchdogTimerConfig)." enum:"none,reset,poweroff" default:"none"`
	Autostart         bool               `json:"autostart" title:"Autostart" doc:"Start the machine with its host, unless it was switched off through Omni." default:"true"`
	Extensions        []string           `json:"extensions" title:"System extensions" doc:"Official Talos extensions of the image, beside those of the request, like siderolabs/iscsi-tools." pattern:"^[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*$" max:"64"`
	KernelArgs        []string           `json:"kernel_args" title:"Kernel arguments" doc:"Kernel arguments of the image, after those of the request; one that begins with - takes an argument away." pattern:"^[!-~]+$" max:"64"`
	ConfigPatches     []string           `json:"config_patches" title:"Config patches" doc:"Talos configuration patches for each machine of the class, every one a YAML text with one or several documents." max:"32"`
	Labels            []Label            `json:"labels" title:"Labels" doc:"Labels of the machine in Omni and in the domain's metadata." max:"32"`
	Host              string             `json:"host" title:"Host" doc:"Name of the host that makes the machines, as the provider's configuration has it; the provider chooses one if absent." max:"63"`
	Placement         string             `json:"placement" title:"Placement" doc:"How the provider chooses the host: the one with the most free memory, or the one with the fewest machines of the same request set." enum:"most-memory,spread" default:"most-memory"`
}

// Label is a label of a machine.
type Label struct {
	Name  string `json:"name" xml:"name,attr" title:"Name" doc:"Name of the label; host, pool, state and those below omni.sidero.dev/ are taken." required:"true" min:"1" max:"253" pattern:"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"`
	Value string `json:"value" xml:"value,attr" title:"Value" doc:"Value of the label." max:"63" pattern:"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"`
}

// CPU is the processor of a machine.
type CPU struct {
	Mode    string `json:"mode" title:"Mode" doc:"Model of the processor: the host's own (host-passthrough), the nearest that libvirt has a name for (host-model), all that the hypervisor can do (maximum), or the named one (custom); auto for the best of these that the host has." enum:"auto,host-passthrough,host-model,maximum,custom" default:"auto"`
	Model   string `json:"model" title:"Model" doc:"Name of the model with mode custom, like x86-64-v3 or EPYC-Rome; virsh domcapabilities lists them. Talos needs x86-64-v2." max:"64" pattern:"^[A-Za-z0-9._-]*$"`
	Sockets int    `json:"sockets" title:"Sockets" doc:"Sockets that cores are divided among." min:"1" max:"64"`
	Dies    int    `json:"dies" title:"Dies" doc:"Dies in each socket." min:"1" max:"64"`
	Threads int    `json:"threads" title:"Threads" doc:"Threads of each physical core." min:"1" max:"8"`
}

// NUMA is where a machine's memory lies.
type NUMA struct {
	Nodeset    string `json:"nodeset" title:"Nodes" doc:"Nodes of the host that memory and processors are taken from, like 0 or 0,2-3; any if absent." max:"64" pattern:"^([0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*)?$"`
	Mode       string `json:"mode" title:"Mode" doc:"How memory is taken from nodeset: from there alone (strict; restrictive leaves it to cgroups), from there if possible (preferred; one node), or in turns (interleave)." enum:"strict,restrictive,preferred,interleave" default:"strict"`
	GuestNodes int    `json:"guest_nodes" title:"Nodes of the machine" doc:"NUMA nodes that the machine sees; its cores and memory are divided evenly among them." min:"1" max:"16"`
}

// The values that the code tells apart.
const (
	TypeNetwork = "network"
	TypeBridge  = "bridge"
	TypeDirect  = "direct"
	TypeUser    = "user"

	FirmwareAuto = "auto"
	FirmwareUEFI = "uefi"
	FirmwareBIOS = "bios"

	// PlacementSpread is the value of ClassData.Placement that the code tells apart.
	PlacementSpread = "spread"

	none       = "none"
	modeAuto   = "auto"
	modeCustom = "custom"
	pagesOff   = "off"

	diskVirtio = "virtio"
	diskSATA   = "sata"
	diskSCSI   = "scsi"
	// diskNVMe comes from classes of the official provider.
	diskNVMe = "nvme"
)

// Schema returns the JSON schema of the class data, which Omni shows as a form.
func Schema() string { return classdata.Schema[ClassData]("Machine on libvirt") }

// PoolOf is the storage pool of additional disk number i, from 0.
func (c ClassData) PoolOf(i int) string {
	if pool := c.AdditionalDisks[i].StoragePool; pool != "" {
		return pool
	}

	return c.StoragePool
}

// Pools are the storage pools of all disks, that of the system disk and the seed first, each once.
func (c ClassData) Pools() []string {
	pools := []string{c.StoragePool}

	for i := range c.AdditionalDisks {
		if pool := c.PoolOf(i); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}

	return pools
}

// MACs are the hardware addresses of the interfaces in order.
func (c ClassData) MACs(id driver.Identity) []net.HardwareAddr {
	macs := make([]net.HardwareAddr, len(c.NetworkInterfaces))

	for i, nic := range c.NetworkInterfaces {
		macs[i] = id.MAC(i)

		if nic.PhysicalAddress != "" {
			macs[i], _ = net.ParseMAC(nic.PhysicalAddress) // Validate has parsed it.
		}
	}

	return macs
}

// LabelMap holds the labels by name.
func (c ClassData) LabelMap() map[string]string {
	labels := make(map[string]string, len(c.Labels))

	for _, label := range c.Labels {
		labels[label.Name] = label.Value
	}

	return labels
}

// needsTPM says whether the machine gets a TPM.
func (c ClassData) needsTPM() bool { return c.TPM || c.SecureBoot }

// NetworkInterface is a network interface of a machine.
type NetworkInterface struct {
	Type            string     `json:"type" title:"Type" doc:"What it is connected to: a libvirt network; a bridge of the host; an interface of the host itself (direct: macvtap); or the host's own network by address translation (user), which needs no rights and cannot be reached from outside." enum:"network,bridge,direct,user" default:"network"`
	NetworkName     string     `json:"network_name" title:"Network" doc:"Name of the libvirt network, \"default\" if absent; with type bridge that of the bridge, with type direct that of the host's interface." max:"255"`
	Portgroup       string     `json:"portgroup" title:"Port group" doc:"Port group of the libvirt network, which may set a VLAN." max:"255"`
	VLAN            int        `json:"vlan" title:"VLAN" doc:"VLAN tag that the host puts on the traffic, where it can: on Open vSwitch, and with libvirt 11 on bridges that filter VLANs." min:"1" max:"4094"`
	OpenVSwitch     bool       `json:"openvswitch" title:"Open vSwitch" doc:"With type bridge: the bridge is one of Open vSwitch."`
	DirectMode      string     `json:"direct_mode" title:"Direct mode" doc:"With type direct: whether the machines on the host's interface reach each other on the host (bridge, the default if absent), over the switch (vepa), or not at all (private), or whether it belongs to one machine alone (passthrough)." enum:"bridge,vepa,private,passthrough"`
	Driver          string     `json:"driver" title:"Driver" doc:"Device that the machine sees." enum:"virtio,e1000e" default:"virtio"`
	MTU             int        `json:"mtu" title:"MTU" doc:"Largest packet in bytes, for types network and bridge with driver virtio; that of the network if absent." min:"576" max:"65535"`
	PhysicalAddress string     `json:"physical_address" title:"MAC address" doc:"Hardware address, only for a class with a single machine; derived from the request's id if absent."`
	DHCPReservation bool       `json:"dhcp_reservation" title:"DHCP reservation" doc:"Keep an address of the libvirt network for the machine as long as it exists, by an entry for the machine in the network."`
	DHCPAddress     netip.Addr `json:"dhcp_address" title:"DHCP address" doc:"Address to reserve, only for a class with a single machine; a free one is chosen if absent."`
}

// Network is the libvirt network of an interface of type network.
func (n NetworkInterface) Network() string {
	if n.NetworkName == "" {
		return "default"
	}

	return n.NetworkName
}

// DiskTuning is how a disk is attached.
type DiskTuning struct {
	Cache   string `json:"cache" title:"Cache" doc:"Caching on the host; default leaves it to the hypervisor." enum:"default,none,writeback,writethrough,directsync,unsafe" default:"default"`
	IO      string `json:"io" title:"I/O" doc:"How the host does the disk's I/O; native needs cache none or directsync." enum:"default,threads,native,io_uring" default:"default"`
	Discard string `json:"discard" title:"Discard" doc:"Whether space that the machine frees goes back to the pool (unmap)." enum:"unmap,ignore" default:"unmap"`
}

// SystemDisk is how the system disk is attached.
type SystemDisk struct {
	Bus    string `json:"bus" title:"Bus" doc:"Bus that the disk is on." enum:"virtio,scsi,sata" default:"virtio"`
	Serial string `json:"serial" title:"Serial number" doc:"Serial number that the machine sees; none if absent." max:"20" pattern:"^[A-Za-z0-9_.+-]*$"`
	DiskTuning
}

// Disk is an additional disk.
type Disk struct {
	Type        string `json:"type" title:"Type" doc:"Bus that the disk is on. A disk of type nvme is on virtio: few hypervisors emulate NVMe." enum:"virtio,sata,scsi,nvme" default:"virtio"`
	Size        uint64 `json:"size" title:"Size" doc:"Size in GiB." required:"true" min:"1" max:"65536"`
	StoragePool string `json:"storage_pool" title:"Storage pool" doc:"Name of the libvirt storage pool; that of the class if absent." max:"255"`
	Serial      string `json:"serial" title:"Serial number" doc:"Serial number that the machine sees, by which a Talos volume can select the disk; disk-1, disk-2 and so on if absent." max:"20" pattern:"^[A-Za-z0-9_.+-]*$"`
	DiskTuning
}

// bus is what libvirt calls the disk's bus.
func (d Disk) bus() string {
	if d.Type == diskNVMe {
		return diskVirtio
	}

	return d.Type
}

// PCIDevice selects PCI devices of a host.
type PCIDevice struct {
	Address string `json:"address" title:"Address" doc:"Address of one device, like 0000:3b:00.0." pattern:"^([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F][.][0-7]$|^$"`
	Vendor  string `json:"vendor" title:"Vendor" doc:"Vendor id of devices of which any will do, in hexadecimal, like 10de." pattern:"^[0-9a-fA-F]{4}$|^$"`
	Product string `json:"product" title:"Product" doc:"Product id beside the vendor id, like 20b5; any of the vendor's if absent." pattern:"^[0-9a-fA-F]{4}$|^$"`
	Count   int    `json:"count" title:"Count" doc:"Number of devices of that vendor and product; 1 if absent." min:"1" max:"16"`
}

// MediatedDevice selects mediated devices of a host.
type MediatedDevice struct {
	Type  string `json:"type" title:"Type" doc:"Type of the devices, like nvidia-222." max:"128"`
	UUID  string `json:"uuid" title:"UUID" doc:"UUID of one device, instead of a type." pattern:"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$|^$"`
	Count int    `json:"count" title:"Count" doc:"Number of devices of that type; 1 if absent." min:"1" max:"16"`
}
