package virt

import (
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"
)

// legacySpace is the name space of the UUIDs that releases before 1.4 made from a machine's name.
var legacySpace = uuid.MustParse("6a1a24a1-4061-4607-8bf4-a3963d0c5895")

// LegacyUUID returns the firmware UUID of a machine that says none and came to the cluster before virt-api chose random ones. Machines
// of one name in two namespaces have the same.
func LegacyUUID(name string) types.UID {
	return types.UID(uuid.NewSHA1(legacySpace, []byte(name)).String())
}

// SetInstanceDefaults sets the defaults of an instance, as virt-api does when it is created.
func SetInstanceDefaults(vmi *kubevirt.VirtualMachineInstance) {
	setSpec(&vmi.Spec)
	kubevirt.SetObjectDefaults_VirtualMachineInstance(vmi)

	cpu := vmi.Spec.Domain.CPU
	if cpu.Model == "" {
		cpu.Model = kubevirt.DefaultCPUModel
	}

	if vmi.Status.CurrentCPUTopology == nil {
		vmi.Status.CurrentCPUTopology = &kubevirt.CPUTopology{Sockets: cpu.Sockets, Cores: cpu.Cores, Threads: cpu.Threads}
	}

	memory := vmi.Spec.Domain.Memory
	if memory.Guest != nil {
		vmi.Status.Memory = &kubevirt.MemoryStatus{GuestAtBoot: memory.Guest, GuestCurrent: memory.Guest, GuestRequested: memory.Guest}
	}

	if vmi.Spec.Architecture != "arm64" {
		setHotplug(vmi)
	}
}

// hotplugRatio is how much more than it starts with a machine may get while it runs.
const hotplugRatio = 4

// maxProcessors bounds the processors of a machine that may get more of them.
const maxProcessors = 512

func setHotplug(vmi *kubevirt.VirtualMachineInstance) {
	cpu, memory := vmi.Spec.Domain.CPU, vmi.Spec.Domain.Memory

	if cpu.MaxSockets == 0 {
		cpu.MaxSockets = cpu.Sockets * hotplugRatio

		if perSocket := max(cpu.Cores, 1) * max(cpu.Threads, 1); cpu.MaxSockets*perSocket > maxProcessors {
			cpu.MaxSockets = max(maxProcessors/perSocket, cpu.Sockets)
		}
	}

	// Memory can only be plugged into 64-bit machines of at least 1 GiB, in whole blocks, without huge pages or dedicated processors.
	const least, block = 1 << 30, 2 << 20

	if memory.MaxGuest != nil || memory.Guest == nil || memory.Guest.Value() < least || memory.Guest.Value()%block != 0 ||
		memory.Hugepages != nil || cpu.Realtime != nil || vmi.Spec.Domain.LaunchSecurity != nil || cpu.DedicatedCPUPlacement {
		return
	}

	memory.MaxGuest = resource.NewQuantity(memory.Guest.Value()*hotplugRatio, resource.BinarySI)
}

// setSpec sets the defaults that machines are checked with, and that instances get.
func setSpec(spec *kubevirt.VirtualMachineInstanceSpec) {
	setArchitecture(spec)
	setMachine(spec)
	setRequests(spec)
	setMemory(spec)
	setTopology(spec)
	setPullPolicies(spec)
	setNetwork(spec)
	setDisks(spec)
}

func setArchitecture(spec *kubevirt.VirtualMachineInstanceSpec) {
	if spec.Architecture == "" {
		spec.Architecture = "amd64"
	}
}

func setMachine(spec *kubevirt.VirtualMachineInstanceSpec) {
	if spec.Domain.Machine == nil {
		spec.Domain.Machine = &kubevirt.Machine{}
	}

	if spec.Domain.Machine.Type == "" {
		spec.Domain.Machine.Type = machineTypes(spec.Architecture).usual
	}
}

func setRequests(spec *kubevirt.VirtualMachineInstanceSpec) {
	resources := &spec.Domain.Resources

	if limit := resources.Limits[corev1.ResourceCPU]; !limit.IsZero() && resources.Requests.Cpu().IsZero() {
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}

		resources.Requests[corev1.ResourceCPU] = limit
	}
}

func setMemory(spec *kubevirt.VirtualMachineInstanceSpec) {
	if spec.Domain.Memory == nil {
		spec.Domain.Memory = &kubevirt.Memory{}
	}

	memory, resources := spec.Domain.Memory, spec.Domain.Resources

	switch {
	case memory.Guest != nil:
	case !resources.Requests.Memory().IsZero():
		memory.Guest = new(resources.Requests.Memory().DeepCopy())
	case !resources.Limits.Memory().IsZero():
		memory.Guest = new(resources.Limits.Memory().DeepCopy())
	case memory.Hugepages != nil:
		if size, err := resource.ParseQuantity(memory.Hugepages.PageSize); err == nil {
			memory.Guest = &size
		}
	}
}

func setTopology(spec *kubevirt.VirtualMachineInstanceSpec) {
	if spec.Domain.CPU == nil {
		spec.Domain.CPU = &kubevirt.CPU{}
	}

	cpu := spec.Domain.CPU
	if cpu.Cores != 0 || cpu.Sockets != 0 || cpu.Threads != 0 {
		return
	}

	cpu.Sockets, cpu.Cores, cpu.Threads = 1, 1, 1

	if limit, ok := spec.Domain.Resources.Limits[corev1.ResourceCPU]; ok {
		cpu.Sockets = uint32(limit.Value()) //nolint:gosec // A number of processors.
	} else if request, ok := spec.Domain.Resources.Requests[corev1.ResourceCPU]; ok {
		cpu.Sockets = uint32(request.Value()) //nolint:gosec // A number of processors.
	}
}

func setPullPolicies(spec *kubevirt.VirtualMachineInstanceSpec) {
	for _, v := range spec.Volumes {
		if v.ContainerDisk == nil || v.ContainerDisk.ImagePullPolicy != "" {
			continue
		}

		v.ContainerDisk.ImagePullPolicy = corev1.PullIfNotPresent
		if strings.HasSuffix(v.ContainerDisk.Image, ":latest") || !strings.ContainsAny(v.ContainerDisk.Image, ":@") {
			v.ContainerDisk.ImagePullPolicy = corev1.PullAlways
		}
	}
}

// setNetwork gives a machine without networks the one of its pod.
func setNetwork(spec *kubevirt.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if devices.AutoattachPodInterface != nil && !*devices.AutoattachPodInterface || len(devices.Interfaces) > 0 || len(spec.Networks) > 0 {
		return
	}

	devices.Interfaces = []kubevirt.Interface{*kubevirt.DefaultBridgeNetworkInterface()}
	spec.Networks = []kubevirt.Network{*kubevirt.DefaultPodNetwork()}
}

// setDisks gives each volume that nothing shows to the guest a disk.
func setDisks(spec *kubevirt.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices

	for _, v := range spec.Volumes {
		shown := slices.ContainsFunc(devices.Disks, func(d kubevirt.Disk) bool { return d.Name == v.Name }) ||
			slices.ContainsFunc(devices.Filesystems, func(f kubevirt.Filesystem) bool { return f.Name == v.Name })

		if v.MemoryDump == nil && !shown {
			devices.Disks = append(devices.Disks, kubevirt.Disk{Name: v.Name})
		}
	}
}
