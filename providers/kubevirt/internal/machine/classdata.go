package machine

import (
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ClassData is the provider data of a machine class: what each of its machines should be. It takes the classes of the official
// KubeVirt provider as they are.
type ClassData struct {
	Cores                  int               `json:"cores" title:"CPU cores" doc:"Number of virtual CPUs. Required without an instancetype, and not to be given with one." min:"1" max:"1024"`
	Memory                 uint64            `json:"memory" title:"Memory" doc:"Memory in MiB that the machine sees. Required without an instancetype, and not to be given with one." min:"2048" max:"16777216"`
	Architecture           driver.Arch       `json:"architecture" title:"Architecture" doc:"Processor architecture." enum:"amd64,arm64" default:"amd64"`
	DiskSize               uint64            `json:"disk_size" title:"Disk size" doc:"Size of the system disk in GiB. Talos needs 10 or more." required:"true" min:"5" max:"65536"`
	StorageClassName       string            `json:"storage_class_name" title:"Storage class" doc:"Storage class of the system disk, of the image that it is cloned from, and of all disks that name none; that of the provider's configuration, or else the cluster's default, if absent." max:"253"`
	NetworkBinding         string            `json:"network_binding" title:"Network binding" doc:"How a pod network is connected to the machine, where its entry in networks does not say: bridge hands the pod's address to the machine and rules out live migration, masquerade translates addresses, passt needs the network binding plugin of that name." enum:"bridge,masquerade,passt" default:"bridge"`
	Tolerations            string            `json:"tolerations" title:"Tolerations" doc:"Tolerations of the machine's pod, a text that holds a JSON array of Kubernetes tolerations. additional_tolerations says the same as a list." max:"16384"`
	VMLabels               map[string]string `json:"vm_labels" title:"VM labels" doc:"Labels of the machine's instance and pod, by their names, where network policies, services and affinity look for them. labels puts them on the virtual machine too." max:"32" scalars:"true"`
	Namespace              string            `json:"namespace" title:"Namespace" doc:"Namespace that machines and their image are made in, one of those that the provider's configuration allows; its first one if absent." max:"63" pattern:"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"`
	Instancetype           Matcher           `json:"instancetype" title:"Instancetype" doc:"Instancetype of KubeVirt that says how many CPUs and how much memory the machine has, instead of cores, memory, cpu and resources."`
	Preference             Matcher           `json:"preference" title:"Preference" doc:"Preference of KubeVirt, which chooses the firmware, machine type, clock, features and layout of the processor where the class leaves them open. Disks and interfaces are on virtio unless the class says otherwise."`
	CPU                    CPU               `json:"cpu" title:"CPU" doc:"Which processor the machine sees."`
	Resources              Resources         `json:"resources" title:"Resources" doc:"What the machine's pod asks the cluster for and may use at most, where that is not just what the machine has."`
	Hugepages              string            `json:"hugepages" title:"Huge pages" doc:"Back the memory by huge pages of this size, which have to be set aside on the nodes." enum:"off,64Ki,2Mi,32Mi,512Mi,1Gi,16Gi" default:"off"`
	VolumeMode             string            `json:"volume_mode" title:"Volume mode" doc:"Volume mode of the system disk, of its image, and of all disks that name none; default for that of the provider's configuration, or else the one that CDI prefers for the storage class." enum:"default,Filesystem,Block" default:"default"`
	AccessMode             string            `json:"access_mode" title:"Access mode" doc:"Access mode of all disks that name none. Live migration needs ReadWriteMany. default leaves it to CDI, which has to know the storage class." enum:"default,ReadWriteOnce,ReadWriteMany,ReadWriteOncePod" default:"ReadWriteOnce"`
	SystemDisk             SystemDisk        `json:"system_disk" title:"System disk" doc:"How the system disk, from which the machine always boots, is attached."`
	AdditionalDisks        []Disk            `json:"additional_disks" title:"Additional disks" doc:"Empty disks beside the system disk." max:"16"`
	Image                  Image             `json:"image" title:"Image" doc:"Where the system disk's contents come from."`
	Networks               []Network         `json:"networks" title:"Networks" doc:"Networks, in the order in which the machine sees their interfaces; one pod network if absent." default:"[{}]" min:"1" max:"16"`
	Firmware               string            `json:"firmware" title:"Firmware" doc:"Firmware that boots the machine; default for that of the preference, or else KubeVirt's: BIOS on amd64, UEFI on arm64." enum:"default,bios,uefi" default:"default"`
	SecureBoot             bool              `json:"secure_boot" title:"Secure Boot" doc:"Boot Talos' signed image on UEFI that checks signatures and keeps its variables, with a TPM that keeps its state. The cluster has to have a storage class for that state."`
	PersistentEFI          bool              `json:"persistent_efi" title:"Persistent EFI" doc:"With firmware uefi: keep the firmware's variables when the machine is off. Comes with secure_boot."`
	TPM                    bool              `json:"tpm" title:"TPM" doc:"Give the machine an emulated TPM 2.0 that keeps its state, for example for disk encryption. Comes with secure_boot."`
	MachineType            string            `json:"machine_type" title:"Machine type" doc:"Machine type of QEMU, like q35 or pc-q35-rhel9.6.0; KubeVirt's if absent." max:"64" pattern:"^[a-z0-9._-]*$"`
	NodeSelector           []Label           `json:"node_selector" title:"Node selector" doc:"Labels that the node has to have." max:"32"`
	Affinity               string            `json:"affinity" title:"Affinity" doc:"Affinity of the machine's pod, a text that holds a Kubernetes affinity as YAML or JSON, with nodeAffinity, podAffinity and podAntiAffinity." max:"16384"`
	AdditionalTolerations  []Toleration      `json:"additional_tolerations" title:"Additional tolerations" doc:"Tolerations of the machine's pod, beside those in tolerations." max:"32"`
	Spread                 []Spread          `json:"spread" title:"Spread" doc:"How the machines of one request set are spread over the cluster. A request without a set is not spread." max:"4"`
	PriorityClass          string            `json:"priority_class" title:"Priority class" doc:"Priority class of the machine's pod." max:"253" pattern:"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"`
	EvictionStrategy       string            `json:"eviction_strategy" title:"Eviction strategy" doc:"What happens to the machine when its node is drained; default for the cluster's own." enum:"default,None,LiveMigrate,LiveMigrateIfPossible,External" default:"default"`
	RunStrategy            string            `json:"run_strategy" title:"Run strategy" doc:"What KubeVirt does with a machine that has stopped: start it again (Always), do so only after a failure (RerunOnFailure), or leave it until it is switched on through Omni (Manual)." enum:"Always,RerunOnFailure,Manual" default:"Always"`
	TerminationGracePeriod int               `json:"termination_grace_period" title:"Grace period" doc:"Seconds that the machine has to shut down before it is switched off; KubeVirt's 30 if absent." min:"1" max:"3600"`
	GPUs                   []Device          `json:"gpus" title:"GPUs" doc:"GPUs and vGPUs of the node that the machine gets for itself." max:"16"`
	HostDevices            []Device          `json:"host_devices" title:"Host devices" doc:"Other devices of the node that the machine gets for itself." max:"16"`
	Labels                 []Label           `json:"labels" title:"Labels" doc:"Labels of the virtual machine, its instance and its pod." max:"32"`
	Annotations            []Annotation      `json:"annotations" title:"Annotations" doc:"Annotations of the virtual machine, its instance and its pod." max:"32"`
	IOThreads              string            `json:"io_threads" title:"I/O threads" doc:"Threads for the disks' I/O: none of their own (off), one for all disks (shared), one or more for each as there are CPUs (auto), or as many as io_thread_count for all disks together (supplementalPool)." enum:"off,shared,auto,supplementalPool" default:"off"`
	IOThreadCount          int               `json:"io_thread_count" title:"I/O thread count" doc:"Number of threads with io_threads supplementalPool." min:"1" max:"256"`
	BlockMultiQueue        bool              `json:"block_multi_queue" title:"Block multi-queue" doc:"Give disks on virtio a queue for each CPU."`
	NetworkMultiQueue      bool              `json:"network_multi_queue" title:"Network multi-queue" doc:"Give interfaces of model virtio a queue for each CPU."`
	MemoryBalloon          bool              `json:"memory_balloon" title:"Memory balloon" doc:"Let the node see and reclaim the memory that the machine does not use." default:"true"`
	Graphics               bool              `json:"graphics" title:"Graphics" doc:"Give the machine a graphics card and a VNC server, on which Talos shows its dashboard." default:"true"`
	ConsoleLog             string            `json:"console_log" title:"Console log" doc:"Show what the machine prints on its serial console as the log of a container in its pod; default for the cluster's own setting." enum:"default,on,off" default:"default"`
	DNSPolicy              string            `json:"dns_policy" title:"DNS policy" doc:"Which name servers the pod network tells the machine: those of the cluster (ClusterFirst) or those of the node (Default)." enum:"ClusterFirst,Default" default:"ClusterFirst"`
	GuestAgent             bool              `json:"guest_agent" title:"Guest agent" doc:"Have the extension siderolabs/qemu-guest-agent in the image. KubeVirt gives every machine the channel for it."  default:"true"`
	Extensions             []string          `json:"extensions" title:"System extensions" doc:"Official Talos extensions of the image, beside those of the request, like siderolabs/iscsi-tools." pattern:"^[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*$" max:"64"`
	KernelArgs             []string          `json:"kernel_args" title:"Kernel arguments" doc:"Kernel arguments of the image, after those of the request; one that begins with - takes an argument away." pattern:"^[!-~]+$" max:"64"`
	ConfigPatches          []string          `json:"config_patches" title:"Config patches" doc:"Talos configuration patches for each machine of the class, every one a YAML text with one or several documents." max:"32"`
}

// Matcher names an instancetype or a preference.
type Matcher struct {
	Name string `json:"name" title:"Name" doc:"Name of the object; none if absent." max:"253" pattern:"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"`
	Kind string `json:"kind" title:"Kind" doc:"Whether it belongs to the whole cluster or to the machine's namespace." enum:"cluster,namespace" default:"cluster"`
}

// CPU is the processor of a machine.
type CPU struct {
	Model                 string       `json:"model" title:"Model" doc:"Model of the processor: a name like EPYC-Rome, host-model or host-passthrough; the cluster's default if absent. Talos needs x86-64-v2." max:"64" pattern:"^[A-Za-z0-9._-]*$"`
	Features              []CPUFeature `json:"features" title:"Features" doc:"Features of the processor that the model does not have, or that it is not to have." max:"64"`
	Sockets               int          `json:"sockets" title:"Sockets" doc:"Sockets that cores are divided among; 1 if absent." min:"1" max:"64"`
	Threads               int          `json:"threads" title:"Threads" doc:"Threads of each physical core; 1 if absent." min:"1" max:"8"`
	Dedicated             bool         `json:"dedicated" title:"Dedicated CPUs" doc:"Give the machine CPUs of the node that nothing else runs on. The nodes need the CPU manager."`
	IsolateEmulatorThread bool         `json:"isolate_emulator_thread" title:"Isolate the emulator" doc:"With dedicated: one more CPU for the emulator itself."`
	NUMA                  bool         `json:"numa" title:"NUMA" doc:"With dedicated and hugepages: show the machine the NUMA nodes that its CPUs and memory lie on."`
}

// CPUFeature is a feature of a processor.
type CPUFeature struct {
	Name   string `json:"name" title:"Name" doc:"Name of the feature, like vmx." required:"true" min:"1" max:"64" pattern:"^[A-Za-z0-9._-]+$"`
	Policy string `json:"policy" title:"Policy" doc:"What becomes of the feature." enum:"force,require,optional,disable,forbid" default:"require"`
}

// Resources are those of a machine's pod.
type Resources struct {
	CPURequest              string `json:"cpu_request" title:"CPU request" doc:"CPUs that are reserved, like 500m or 2; as many as the cluster's overcommitment says if absent." max:"16" pattern:"^([0-9]{1,6}m|[0-9]{1,4}([.][0-9]{1,3})?)?$"`
	CPULimit                string `json:"cpu_limit" title:"CPU limit" doc:"CPUs that may be used at most; not limited if absent." max:"16" pattern:"^([0-9]{1,6}m|[0-9]{1,4}([.][0-9]{1,3})?)?$"`
	MemoryRequest           uint64 `json:"memory_request" title:"Memory request" doc:"Memory in MiB that is reserved, at most memory; all of it if absent." min:"1" max:"16777216"`
	MemoryLimit             uint64 `json:"memory_limit" title:"Memory limit" doc:"Memory in MiB that may be used at most, at least memory and what the emulator needs; not limited if absent." min:"1" max:"16777216"`
	OvercommitGuestOverhead bool   `json:"overcommit_guest_overhead" title:"Overcommit overhead" doc:"Do not reserve memory for the emulator."`
}

// Image is where the contents of system disks come from.
type Image struct {
	Source        string `json:"source" title:"Source" doc:"datavolume: the image is imported once, and each system disk is a clone of it. snapshot: the same with a snapshot of the import, which some storage clones faster. container_disk: each system disk is imported from a container image." enum:"datavolume,snapshot,container_disk" default:"datavolume"`
	SnapshotClass string `json:"snapshot_class" title:"Snapshot class" doc:"With source snapshot: the volume snapshot class; the cluster's default if absent." max:"253" pattern:"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"`
	Reference     string `json:"reference" title:"Reference" doc:"With source container_disk: the container image that holds a nocloud image of Talos in /disk, like registry.example.org/talos:{version}-{arch}, in which {version} and {arch} are those of the machine." max:"512" pattern:"^([A-Za-z0-9][A-Za-z0-9._/:@{}-]*)?$"`
	PullMethod    string `json:"pull_method" title:"Pull method" doc:"With source container_disk: whether CDI fetches the container image (pod) or the node does, which keeps it (node)." enum:"pod,node" default:"pod"`
	PullSecret    string `json:"pull_secret" title:"Pull secret" doc:"With source container_disk and pull_method pod: the Secret in the machine's namespace with CDI's credentials for the registry." max:"253" pattern:"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"`
}

// Network is a network of a machine and its interface there.
type Network struct {
	Type    string `json:"type" title:"Type" doc:"pod for the cluster's own network, multus for a network of Multus." enum:"pod,multus" default:"pod"`
	Network string `json:"network" title:"Network" doc:"With type multus: the NetworkAttachmentDefinition, as namespace/name, or name for one in the machine's namespace." max:"317" pattern:"^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$|^$"`
	Default bool   `json:"default" title:"Default" doc:"With type multus: the pod's default network, instead of the cluster's own."`
	Binding string `json:"binding" title:"Binding" doc:"How the network is connected to the interface; network_binding for a pod network and bridge for one of Multus if absent. sriov needs a network of Multus, passt and plugin a network binding plugin, passt_core a KubeVirt with its feature gate PasstBinding." enum:"bridge,masquerade,passt,passt_core,sriov,plugin"`
	Plugin  string `json:"plugin" title:"Plugin" doc:"With binding plugin: name of the network binding plugin." max:"63" pattern:"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"`
	Model   string `json:"model" title:"Model" doc:"Device that the machine sees." enum:"virtio,e1000,e1000e,igb,ne2k_pci,pcnet,rtl8139" default:"virtio"`
	MAC     string `json:"mac" title:"MAC address" doc:"Hardware address, only for a class with a single machine. If absent it is derived from the request's id, but for a pod network with binding bridge, whose pod's own is handed to the machine. derived makes it a derived one there too." pattern:"^(derived|([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2})?$"`
}

// DiskTuning is how a disk is attached.
type DiskTuning struct {
	Bus               string `json:"bus" title:"Bus" doc:"Bus that the disk is on." enum:"virtio,scsi,sata" default:"virtio"`
	Cache             string `json:"cache" title:"Cache" doc:"Caching on the node; default leaves it to KubeVirt." enum:"default,none,writeback,writethrough" default:"default"`
	IO                string `json:"io" title:"I/O" doc:"How the node does the disk's I/O; native needs cache none." enum:"default,threads,native" default:"default"`
	DedicatedIOThread bool   `json:"dedicated_io_thread" title:"Dedicated I/O thread" doc:"Give a disk on virtio a thread for its I/O alone."`
}

// SystemDisk is how the system disk is attached.
type SystemDisk struct {
	DiskTuning
	Serial string `json:"serial" title:"Serial number" doc:"Serial number that the machine sees; none if absent." max:"20" pattern:"^[A-Za-z0-9_.+-]*$"`
}

// Disk is an additional disk.
type Disk struct {
	Size             uint64 `json:"size" title:"Size" doc:"Size in GiB." required:"true" min:"1" max:"65536"`
	Name             string `json:"name" title:"Name" doc:"Name of the disk in the virtual machine; disk-1, disk-2 and so on if absent." max:"40" pattern:"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"`
	Serial           string `json:"serial" title:"Serial number" doc:"Serial number that the machine sees, by which a Talos volume can select the disk; disk-1, disk-2 and so on if absent." max:"20" pattern:"^[A-Za-z0-9_.+-]*$"`
	StorageClassName string `json:"storage_class_name" title:"Storage class" doc:"Storage class; that of the class if absent." max:"253"`
	VolumeMode       string `json:"volume_mode" title:"Volume mode" doc:"Volume mode; that of the class if absent." enum:"default,Filesystem,Block"`
	AccessMode       string `json:"access_mode" title:"Access mode" doc:"Access mode; that of the class if absent." enum:"default,ReadWriteOnce,ReadWriteMany,ReadWriteOncePod"`
	DiskTuning
}

// Label is a label of a Kubernetes object.
type Label struct {
	Name  string `json:"name" title:"Name" doc:"Name of the label." required:"true" min:"1" max:"317"`
	Value string `json:"value" title:"Value" doc:"Value of the label." max:"63"`
}

// Annotation is an annotation of a Kubernetes object.
type Annotation struct {
	Name  string `json:"name" title:"Name" doc:"Name of the annotation." required:"true" min:"1" max:"317"`
	Value string `json:"value" title:"Value" doc:"Value of the annotation." max:"4096"`
}

// Toleration is a toleration of a Kubernetes pod.
type Toleration struct {
	Key               string `json:"key" title:"Key" doc:"Key of the taint; any, with operator Exists, if absent." max:"317"`
	Operator          string `json:"operator" title:"Operator" doc:"Whether the taint's value has to be value (Equal) or may be any (Exists)." enum:"Equal,Exists" default:"Equal"`
	Value             string `json:"value" title:"Value" doc:"Value of the taint, with operator Equal." max:"63"`
	Effect            string `json:"effect" title:"Effect" doc:"Effect of the taint; any if absent." enum:"NoSchedule,PreferNoSchedule,NoExecute"`
	TolerationSeconds *int64 `json:"toleration_seconds" title:"Seconds" doc:"With effect NoExecute: seconds that the machine stays on a node with the taint; for ever if absent." min:"0" max:"31536000"`
}

// Spread says how the machines of a request set are spread.
type Spread struct {
	TopologyKey       string `json:"topology_key" title:"Topology key" doc:"Label of nodes whose values are the places to spread over, like topology.kubernetes.io/zone." default:"kubernetes.io/hostname" min:"1" max:"317"`
	MaxSkew           int    `json:"max_skew" title:"Max skew" doc:"By how many machines one place may have more than another." default:"1" min:"1" max:"1000"`
	WhenUnsatisfiable string `json:"when_unsatisfiable" title:"When unsatisfiable" doc:"Whether a machine that would break the rule waits (DoNotSchedule) or only goes elsewhere if it can (ScheduleAnyway)." enum:"DoNotSchedule,ScheduleAnyway" default:"ScheduleAnyway"`
}

// Device is a device of a node.
type Device struct {
	DeviceName string `json:"device_name" title:"Device name" doc:"Resource name of the device, as the KubeVirt configuration has it, like nvidia.com/GA102GL_A10." required:"true" min:"1" max:"317"`
	Count      int    `json:"count" title:"Count" doc:"Number of devices of that name." default:"1" min:"1" max:"16"`
}

// The values that the code tells apart.
const (
	SourceDataVolume    = "datavolume"
	SourceSnapshot      = "snapshot"
	SourceContainerDisk = "container_disk"

	// RunManual is the value of ClassData.RunStrategy with which KubeVirt starts no machine by itself.
	RunManual = "Manual"

	pullPod = "pod"

	byDefault = "default"

	networkMultus = "multus"

	bindingBridge     = "bridge"
	bindingMasquerade = "masquerade"
	bindingPasst      = "passt"
	bindingPasstCore  = "passt_core"
	bindingSRIOV      = "sriov"
	bindingPlugin     = "plugin"

	macDerived = "derived"

	firmwareBIOS = "bios"
	firmwareUEFI = "uefi"

	pagesOff = "off"

	busVirtio = "virtio"

	threadsOff  = "off"
	threadsPool = "supplementalPool"

	switchOn = "on"
)

// Schema returns the JSON schema of the class data, which Omni shows as a form.
func Schema() string { return classdata.Schema[ClassData]("Machine on KubeVirt") }

// Operator is what the provider's configuration says of all classes.
type Operator struct {
	// Namespaces are those that machines may be made in; the first one is that of classes which name none.
	Namespaces []string
	// VolumeMode is that of classes which name none, Filesystem or Block; empty to leave it to CDI.
	VolumeMode string
	// StorageClassName is that of classes which name none; empty for the cluster's default.
	StorageClassName string
	// ImageCertConfigMap is the ConfigMap, in each namespace, with the certificates of the image factory; empty for none.
	ImageCertConfigMap string
}

// Decode reads class data, checks it as far as that can be done without a cluster, and fills in what it leaves to the operator.
// Its error is Terminal and names each field.
func Decode(data string, o Operator) (ClassData, error) {
	c, err := classdata.Decode[ClassData](data)
	if err != nil {
		return ClassData{}, err
	}

	return c.complete(o)
}
