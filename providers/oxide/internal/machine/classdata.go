package machine

import "github.com/omni-infra/omni-infra-providers/shared/classdata"

// ClassData is the provider data of a machine class: what each of its machines should be. It takes the classes of Oxide's own provider
// as they are.
type ClassData struct {
	Project            string             `json:"project" title:"Project" doc:"Name or id of the project that has the machines." required:"true" min:"1" max:"63"`
	CPUs               int                `json:"cpus" title:"CPUs" doc:"Number of virtual CPUs." default:"1" min:"1" max:"254"`
	Memory             int                `json:"memory" title:"Memory" doc:"Memory in GiB. Talos needs 2 or more." default:"4" min:"1" max:"1536"`
	BootDiskSize       int                `json:"boot_disk_size" title:"Boot disk size" doc:"Size of the boot disk in GiB, which has to hold the Talos image. Talos needs 10 or more." default:"10" min:"1" max:"1023"`
	Disks              []Disk             `json:"disks" title:"Disks" doc:"Empty disks beside the boot disk." max:"11"`
	NetworkInterfaces  []NetworkInterface `json:"network_interfaces" title:"Network interfaces" doc:"Network interfaces, in the order in which the machine sees them; the first one is the primary." default:"[{}]" min:"1" max:"8"`
	AntiAffinityGroups []string           `json:"anti_affinity_groups" title:"Anti-affinity groups" doc:"Names or ids of groups of the project whose members the rack keeps on different sleds." max:"16"`
	CPUPlatform        string             `json:"cpu_platform" title:"CPU platform" doc:"Processor that the machine needs at least; any for whatever the sled has, between which the rack can then migrate it. amd_turinv2 is another name of amd_turin_v2." enum:"any,amd_milan,amd_turin,amd_turin_v2,amd_turinv2" default:"amd_milan"`
	AutoRestartPolicy  string             `json:"auto_restart_policy" title:"Auto restart policy" doc:"Whether the rack starts the machine again after a failure, as of its sled." enum:"never,best_effort" default:"best_effort"`
	EnableJumboFrames  bool               `json:"enable_jumbo_frames" title:"Jumbo frames" doc:"Let the primary network interface have an MTU of 8500 bytes rather than 1500, which the rack's operator has to allow first." default:"false"`
	ExternalIPs        []ExternalIP       `json:"external_ips" title:"External IPs" doc:"Addresses by which the machine is reached from outside of its VPC." max:"32"`
	Hostname           string             `json:"hostname" title:"Hostname" doc:"Hostname of each machine, with {request} in place of the machine request's id." default:"{request}" max:"253" pattern:"^[A-Za-z0-9.-]*[{]request[}][A-Za-z0-9.-]*$"`
	SSHKeys            []string           `json:"ssh_keys" title:"SSH keys" doc:"Names or ids of SSH keys of the token's user that go into the instance's metadata. Talos has no SSH: this is for what else reads them." max:"100"`
	ImageScope         string             `json:"image_scope" title:"Image scope" doc:"Where the Talos image is kept: one in each project, or one in the silo, for which the token has to be a collaborator of the silo." enum:"project,silo" default:"project"`
	StandardExtensions bool               `json:"standard_extensions" title:"Standard extensions" doc:"Give the image the extensions that Oxide's own provider gives it: siderolabs/amd-ucode, iscsi-tools and util-linux-tools." default:"true"`
	Extensions         []string           `json:"extensions" title:"System extensions" doc:"Official Talos extensions of the image, beside those of the request, like siderolabs/gvisor." pattern:"^[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*$" max:"64"`
	KernelArgs         []string           `json:"kernel_args" title:"Kernel arguments" doc:"Kernel arguments of the image, after those of the request and the serial console's; one that begins with - takes an argument away." pattern:"^[!-~]+$" max:"64"`
	ConfigPatches      []string           `json:"config_patches" title:"Config patches" doc:"Talos configuration patches for each machine of the class, every one a YAML text with one or several documents." max:"32"`
}

// Disk is a disk beside the boot disk.
type Disk struct {
	Type string `json:"type" title:"Type" doc:"Replicated over sleds (distributed), or on the sled that runs the machine, which then cannot be migrated (local)." enum:"distributed,local" default:"distributed"`
	Size int    `json:"size" title:"Size" doc:"Size in GiB." required:"true" min:"1" max:"65536"`
}

// NetworkInterface is a network interface of a machine.
type NetworkInterface struct {
	VPCName    string   `json:"vpc_name" title:"VPC" doc:"Name of the VPC; it has to be the same for all interfaces of a machine." default:"default" min:"1" max:"63"`
	SubnetName string   `json:"subnet_name" title:"Subnet" doc:"Name of the VPC's subnet." default:"default" min:"1" max:"63"`
	IPConfig   string   `json:"ip_config" title:"IP configuration" doc:"Which IP versions the interface has an address of." enum:"v4,v6,dual_stack" default:"v4"`
	TransitIPs []string `json:"transit_ips" title:"Transit IPs" doc:"Networks whose traffic may pass the interface beside its own address, as that of Kubernetes pods, like 10.244.0.0/16." max:"32"`
}

// ExternalIP is an address by which a machine is reached from outside of its VPC.
type ExternalIP struct {
	Kind      string `json:"kind" title:"Kind" doc:"An address that comes and goes with the instance (ephemeral; one for each IP version), or one that is an object of its own (floating)." enum:"ephemeral,floating" default:"ephemeral"`
	Pool      string `json:"pool" title:"Pool" doc:"Name or id of the IP pool; the silo's default pool if absent." max:"63"`
	IPVersion string `json:"ip_version" title:"IP version" doc:"Which of the silo's default pools, where there is one for each version; an interface has to have addresses of that version." enum:"v4,v6"`
	Name      string `json:"name" title:"Name" doc:"Name of a floating IP that exists, only for a class with a single machine. It stays when the machine goes; without a name one is made for each machine and goes with it." max:"63"`
}

// The values that the code tells apart.
const (
	Ephemeral = "ephemeral"
	Floating  = "floating"
	ScopeSilo = "silo"

	diskLocal   = "local"
	platformAny = "any"
	dualStack   = "dual_stack"
	v4          = "v4"
	v6          = "v6"
	placeholder = "{request}"
)

// Schema returns the JSON schema of the class data, which Omni shows as a form.
func Schema() string { return classdata.Schema[ClassData]("Machine on an Oxide rack") }

// MadeFloatingIPs are the entries of ExternalIPs for which a floating IP is made, by their numbers from 0.
func (c ClassData) MadeFloatingIPs() []int {
	var made []int

	for i, ip := range c.ExternalIPs {
		if ip.Kind == Floating && ip.Name == "" {
			made = append(made, i)
		}
	}

	return made
}
