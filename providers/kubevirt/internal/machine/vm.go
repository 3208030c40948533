package machine

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// The names of volumes and disks within the VirtualMachine.
const (
	volumeRoot = "root"
	volumeSeed = "seed"
	diskStem   = "disk-"
)

// matcherKinds are the kinds of instancetypes and of preferences, by whom they belong to.
var matcherKinds = map[string][2]string{
	"cluster":   {"VirtualMachineClusterInstancetype", "VirtualMachineClusterPreference"},
	"namespace": {"VirtualMachineInstancetype", "VirtualMachinePreference"},
}

// VirtualMachine is the machine itself, with the run strategy of its class. It is written once, by whoever creates it: from then on its
// run strategy is that of the last one who switched it, and its UUID is never written again.
func (m Machine) VirtualMachine() *kubevirtv1.VirtualMachine {
	c := m.Data
	strategy := kubevirtv1.VirtualMachineRunStrategy(c.RunStrategy)

	vm := &kubevirtv1.VirtualMachine{
		TypeMeta: metav1.TypeMeta{
			APIVersion: kubevirtv1.VirtualMachineGroupVersionKind.GroupVersion().String(),
			Kind:       kubevirtv1.VirtualMachineGroupVersionKind.Kind,
		},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: m.Names().VM,
			Labels:      merged(m.Mark().Labels(), asMap(c.Labels)),
			Annotations: merged(map[string]string{AnnotationRunStrategy: c.RunStrategy}, m.Mark().Annotations(), annotationMap(c.Annotations)),
		},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: &strategy,
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      merged(m.Mark().Labels(), asMap(c.Labels), c.VMLabels),
					Annotations: merged(m.Mark().Annotations(), annotationMap(c.Annotations)),
				},
				Spec: m.instance(),
			},
			DataVolumeTemplates: m.dataVolumes(),
		},
	}

	if manager, ok := c.VMLabels[labelManagedBy]; ok {
		vm.Spec.Template.ObjectMeta.Labels[labelManagedBy] = manager
	}

	if c.Instancetype.Name != "" {
		vm.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: c.Instancetype.Name, Kind: matcherKinds[c.Instancetype.Kind][0]}
	}

	if c.Preference.Name != "" {
		vm.Spec.Preference = &kubevirtv1.PreferenceMatcher{Name: c.Preference.Name, Kind: matcherKinds[c.Preference.Kind][1]}
	}

	return vm
}

// instance is what the machine is while it runs.
func (m Machine) instance() kubevirtv1.VirtualMachineInstanceSpec {
	c := m.Data

	spec := kubevirtv1.VirtualMachineInstanceSpec{
		Domain:            m.domain(),
		Hostname:          HostnameOf(m.Request.Ref),
		Architecture:      string(c.Architecture),
		PriorityClassName: c.PriorityClass,
		NodeSelector:      asMap(c.NodeSelector),
		Affinity:          c.affinity(),
		Tolerations:       c.tolerations(),
		DNSPolicy:         corev1.DNSPolicy(c.DNSPolicy),
		Volumes:           m.volumes(),
	}

	for i, n := range c.Networks {
		spec.Networks = append(spec.Networks, n.source(i))
	}

	if len(spec.NodeSelector) == 0 {
		spec.NodeSelector = nil
	}

	if m.Request.Set != "" {
		for _, s := range c.Spread {
			spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: int32(s.MaxSkew), TopologyKey: s.TopologyKey, WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(s.WhenUnsatisfiable),
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
					LabelProvider: LabelValue(m.Request.ProviderID), LabelSet: LabelValue(m.Request.Set),
				}},
			})
		}
	}

	if c.EvictionStrategy != byDefault {
		strategy := kubevirtv1.EvictionStrategy(c.EvictionStrategy)
		spec.EvictionStrategy = &strategy
	}

	if c.TerminationGracePeriod > 0 {
		spec.TerminationGracePeriodSeconds = new(int64(c.TerminationGracePeriod))
	}

	return spec
}

func (m Machine) domain() kubevirtv1.DomainSpec {
	c := m.Data

	d := kubevirtv1.DomainSpec{
		CPU: c.cpu(), Memory: c.memory(), Resources: c.resources(), Firmware: m.firmware(), Devices: m.devices(),
	}

	if c.MachineType != "" {
		d.Machine = &kubevirtv1.Machine{Type: c.MachineType}
	}

	if c.SecureBoot {
		// The firmware keeps the keys from the system by this mode of the processor.
		d.Features = &kubevirtv1.Features{SMM: &kubevirtv1.FeatureState{Enabled: new(true)}}
	}

	if c.IOThreads != threadsOff {
		policy := kubevirtv1.IOThreadsPolicy(c.IOThreads)
		d.IOThreadsPolicy = &policy
	}

	if c.IOThreadCount > 0 {
		d.IOThreads = &kubevirtv1.DiskIOThreads{SupplementalPoolThreadCount: new(uint32(c.IOThreadCount))}
	}

	return d
}

// firmware has the machine's UUID, which KubeVirt would else make from the name, the same in every namespace.
func (m Machine) firmware() *kubevirtv1.Firmware {
	f := &kubevirtv1.Firmware{UUID: m.UUID(), Serial: m.Request.Identity.UUID}

	switch {
	case m.Data.SecureBoot:
		f.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: new(true), Persistent: new(true)}}
	case m.Data.Firmware == firmwareUEFI:
		f.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: new(false)}}

		if m.Data.PersistentEFI {
			f.Bootloader.EFI.Persistent = new(true)
		}
	case m.Data.Firmware == firmwareBIOS:
		f.Bootloader = &kubevirtv1.Bootloader{BIOS: &kubevirtv1.BIOS{}}
	}

	return f
}

func (c ClassData) cpu() *kubevirtv1.CPU {
	if c.Instancetype.Name != "" {
		return nil
	}

	cpu := &kubevirtv1.CPU{
		Cores: uint32(c.Cores), Model: c.CPU.Model,
		DedicatedCPUPlacement: c.CPU.Dedicated, IsolateEmulatorThread: c.CPU.IsolateEmulatorThread,
	}

	if c.CPU.Sockets > 0 || c.CPU.Threads > 0 {
		sockets, threads := max(1, c.CPU.Sockets), max(1, c.CPU.Threads)
		cpu.Cores, cpu.Sockets, cpu.Threads = uint32(c.Cores/(sockets*threads)), uint32(sockets), uint32(threads)
	}

	for _, f := range c.CPU.Features {
		cpu.Features = append(cpu.Features, kubevirtv1.CPUFeature{Name: f.Name, Policy: f.Policy})
	}

	if c.CPU.NUMA {
		cpu.NUMA = &kubevirtv1.NUMA{GuestMappingPassthrough: &kubevirtv1.NUMAGuestMappingPassthrough{}}
	}

	return cpu
}

func (c ClassData) memory() *kubevirtv1.Memory {
	if c.Instancetype.Name != "" {
		return nil
	}

	memory := &kubevirtv1.Memory{Guest: mebibytes(c.Memory)}

	if c.Hugepages != pagesOff {
		memory.Hugepages = &kubevirtv1.Hugepages{PageSize: c.Hugepages}
	}

	return memory
}

func (c ClassData) resources() kubevirtv1.ResourceRequirements {
	r := kubevirtv1.ResourceRequirements{OvercommitGuestOverhead: c.Resources.OvercommitGuestOverhead}

	set := func(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
		if *list == nil {
			*list = corev1.ResourceList{}
		}

		(*list)[name] = q
	}

	if c.Resources.CPURequest != "" {
		set(&r.Requests, corev1.ResourceCPU, resource.MustParse(c.Resources.CPURequest))
	}

	if c.Resources.CPULimit != "" {
		set(&r.Limits, corev1.ResourceCPU, resource.MustParse(c.Resources.CPULimit))
	}

	if c.Resources.MemoryRequest > 0 {
		set(&r.Requests, corev1.ResourceMemory, *mebibytes(c.Resources.MemoryRequest))
	}

	if c.Resources.MemoryLimit > 0 {
		set(&r.Limits, corev1.ResourceMemory, *mebibytes(c.Resources.MemoryLimit))
	}

	return r
}

func mebibytes(n uint64) *resource.Quantity {
	return resource.NewQuantity(int64(n)<<20, resource.BinarySI)
}

func (m Machine) devices() kubevirtv1.Devices {
	c := m.Data

	d := kubevirtv1.Devices{
		Disks:                   m.disks(),
		Rng:                     &kubevirtv1.Rng{},
		AutoattachSerialConsole: new(true),
	}

	for i, n := range c.Networks {
		d.Interfaces = append(d.Interfaces, c.nic(m.Request.Identity, i, n))
	}

	if !c.hasPodNetwork() {
		d.AutoattachPodInterface = new(false)
	}

	if !c.MemoryBalloon {
		d.AutoattachMemBalloon = new(false)
	}

	if !c.Graphics {
		d.AutoattachGraphicsDevice = new(false)
	}

	if c.ConsoleLog != byDefault {
		d.LogSerialConsole = new(c.ConsoleLog == switchOn)
	}

	if c.BlockMultiQueue {
		d.BlockMultiQueue = new(true)
	}

	if c.NetworkMultiQueue {
		d.NetworkInterfaceMultiQueue = new(true)
	}

	if c.TPM || c.SecureBoot {
		d.TPM = &kubevirtv1.TPMDevice{Persistent: new(true)}
	}

	for i, name := range eachDevice(c.GPUs) {
		d.GPUs = append(d.GPUs, kubevirtv1.GPU{Name: fmt.Sprintf("gpu-%d", i+1), DeviceName: name})
	}

	for i, name := range eachDevice(c.HostDevices) {
		d.HostDevices = append(d.HostDevices, kubevirtv1.HostDevice{Name: fmt.Sprintf("host-device-%d", i+1), DeviceName: name})
	}

	return d
}

// eachDevice has an item for every single device.
func eachDevice(devices []Device) []string {
	var names []string

	for _, d := range devices {
		for range d.Count {
			names = append(names, d.DeviceName)
		}
	}

	return names
}

// disks are the system disk, from which alone the machine boots, the additional ones, and the seed.
func (m Machine) disks() []kubevirtv1.Disk {
	c := m.Data

	root := c.SystemDisk.disk(volumeRoot, c.SystemDisk.Serial)
	root.BootOrder = new(uint(1))

	disks := []kubevirtv1.Disk{root}
	for i, d := range c.AdditionalDisks {
		disks = append(disks, d.disk(d.volume(i), d.serial(i)))
	}

	// Talos finds the seed by its label, on any bus; KubeVirt can attach one on virtio on every architecture.
	return append(disks, kubevirtv1.Disk{
		Name:       volumeSeed,
		DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}},
	})
}

func (t DiskTuning) disk(name, serial string) kubevirtv1.Disk {
	d := kubevirtv1.Disk{
		Name: name, Serial: serial,
		DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBus(t.Bus)}},
	}

	if t.Cache != byDefault {
		d.Cache = kubevirtv1.DriverCache(t.Cache)
	}

	if t.IO != byDefault {
		d.IO = kubevirtv1.DriverIO(t.IO)
	}

	if t.DedicatedIOThread {
		d.DedicatedIOThread = new(true)
	}

	return d
}

func (d Disk) volume(i int) string {
	if d.Name != "" {
		return d.Name
	}

	return diskStem + strconv.Itoa(i+1)
}

func (d Disk) serial(i int) string {
	if d.Serial != "" {
		return d.Serial
	}

	return diskStem + strconv.Itoa(i+1)
}

func (m Machine) volumes() []kubevirtv1.Volume {
	names := m.Names()

	volume := func(name, dataVolume string) kubevirtv1.Volume {
		return kubevirtv1.Volume{
			Name:         name,
			VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: dataVolume}},
		}
	}

	volumes := []kubevirtv1.Volume{volume(volumeRoot, names.Root)}
	for i, d := range m.Data.AdditionalDisks {
		volumes = append(volumes, volume(d.volume(i), names.Disk(i)))
	}

	// The join configuration is never part of the VirtualMachine, which many can read, and has no room for a long one.
	secret := &corev1.LocalObjectReference{Name: names.Secret}

	return append(volumes, kubevirtv1.Volume{
		Name: volumeSeed,
		VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{
			UserDataSecretRef: secret, NetworkDataSecretRef: secret,
		}},
	})
}

// dataVolumes are the templates of the machine's disks.
func (m Machine) dataVolumes() []kubevirtv1.DataVolumeTemplateSpec {
	c, names := m.Data, m.Names()

	template := func(name string, gib uint64, class, volumeMode, accessMode string, source cdiv1.DataVolumeSource) kubevirtv1.DataVolumeTemplateSpec {
		return kubevirtv1.DataVolumeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: m.Mark().Labels(), Annotations: m.Mark().Annotations()},
			Spec:       cdiv1.DataVolumeSpec{Source: &source, Storage: storage(int64(gib)<<30, class, volumeMode, accessMode)},
		}
	}

	templates := []kubevirtv1.DataVolumeTemplateSpec{
		template(names.Root, c.DiskSize, c.StorageClassName, c.VolumeMode, c.AccessMode, m.rootSource()),
	}

	for i, d := range c.AdditionalDisks {
		templates = append(templates, template(names.Disk(i), d.Size, d.StorageClassName, d.VolumeMode, d.AccessMode,
			cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}))
	}

	return templates
}

func (m Machine) rootSource() cdiv1.DataVolumeSource {
	switch c := m.Data; c.Image.Source {
	case SourceSnapshot:
		return cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: m.Image.Namespace, Name: m.Image.Name()}}
	case SourceContainerDisk:
		source := &cdiv1.DataVolumeSourceRegistry{
			URL: new("docker://" + c.reference(m.Request.TalosVersion)), PullMethod: new(cdiv1.RegistryPullMethod(c.Image.PullMethod)),
			Platform: &cdiv1.PlatformOptions{Architecture: string(c.Architecture)},
		}

		if c.Image.PullSecret != "" {
			source.SecretRef = &c.Image.PullSecret
		}

		return cdiv1.DataVolumeSource{Registry: source}
	default:
		return cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: m.Image.Namespace, Name: m.Image.Name()}}
	}
}

// reference is the container image for a version of Talos.
func (c ClassData) reference(version string) string {
	return strings.NewReplacer("{version}", version, "{arch}", string(c.Architecture)).Replace(c.Image.Reference)
}

func asMap(labels []Label) map[string]string {
	out := make(map[string]string, len(labels))
	for _, l := range labels {
		out[l.Name] = l.Value
	}

	return out
}

func annotationMap(annotations []Annotation) map[string]string {
	out := make(map[string]string, len(annotations))
	for _, a := range annotations {
		out[a.Name] = a.Value
	}

	return out
}
