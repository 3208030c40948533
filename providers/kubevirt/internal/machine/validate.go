package machine

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Validate checks the rules across fields: those of KubeVirt and Kubernetes, so that what they would refuse is refused before
// anything is made.
func (c ClassData) Validate() error {
	var errs []error

	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	c.validateSize(add)
	c.validateCPU(add)
	c.validateMemory(add)
	c.validateFirmware(add)
	c.validateDisks(add)
	c.validateImage(add)
	c.validateNetworks(add)
	c.validateDevices(add)
	c.validatePlacement(add)
	c.validateMetadata(add)
	c.validateTalos(add)

	return errors.Join(errs...)
}

type note = func(format string, args ...any)

// validateSize checks who says how large the machine is: KubeVirt refuses a class and an instancetype that both do.
func (c ClassData) validateSize(add note) {
	if c.Instancetype.Name == "" {
		if c.Cores == 0 {
			add("cores: required, but not given; want a whole number from 1 to 1024, or an instancetype")
		}

		if c.Memory == 0 {
			add("memory: required, but not given; want a whole number from 2048 to 16777216, or an instancetype")
		}

		return
	}

	given := []struct {
		field string
		is    bool
	}{
		{"cores", c.Cores > 0},
		{"memory", c.Memory > 0},
		{"cpu", c.CPU.Model != "" || len(c.CPU.Features) > 0 || c.CPU.Sockets > 0 || c.CPU.Threads > 0 || c.CPU.Dedicated || c.CPU.IsolateEmulatorThread || c.CPU.NUMA},
		{"hugepages", c.Hugepages != pagesOff},
		{"resources", c.Resources != Resources{}},
	}

	for _, g := range given {
		if g.is {
			add("%s: the instancetype %q says that: leave it out, or the instancetype", g.field, c.Instancetype.Name)
		}
	}
}

func (c ClassData) validateCPU(add note) {
	if parts := max(1, c.CPU.Sockets) * max(1, c.CPU.Threads); c.Cores%parts != 0 {
		add("cpu: %d cores cannot be divided evenly among %d sockets with %d threads: want cores to be a multiple of %d",
			c.Cores, max(1, c.CPU.Sockets), max(1, c.CPU.Threads), parts)
	}

	if c.Architecture == driver.ARM64 && c.CPU.Model != "" && c.CPU.Model != "host-passthrough" {
		add(`cpu.model: got %q, but arm64 machines have none but "host-passthrough": want that, or none`, c.CPU.Model)
	}

	if c.CPU.IsolateEmulatorThread && !c.CPU.Dedicated {
		add("cpu.isolate_emulator_thread: only dedicated CPUs can be kept from the emulator: want cpu.dedicated true as well")
	}

	if c.CPU.NUMA && (!c.CPU.Dedicated || c.Hugepages == pagesOff) {
		add("cpu.numa: nodes are those of dedicated CPUs and huge pages: want cpu.dedicated true and hugepages as well")
	}

	seen := map[string]int{}

	for i, f := range c.CPU.Features {
		if other, ok := seen[f.Name]; ok {
			add("cpu.features[%d].name: %s is that of cpu.features[%d]", i, f.Name, other)
		}

		seen[f.Name] = i
	}
}

func (c ClassData) validateMemory(add note) {
	r := c.Resources

	cpu := map[string]resource.Quantity{}

	for _, f := range []struct{ name, value string }{{"cpu_request", r.CPURequest}, {"cpu_limit", r.CPULimit}} {
		if f.value == "" {
			continue
		}

		q, err := resource.ParseQuantity(f.value)
		if err != nil || q.Sign() <= 0 {
			add("resources.%s: got %q, want a number of CPUs above 0, like 500m or 2", f.name, f.value)

			continue
		}

		cpu[f.name] = q
	}

	if request, limit := cpu["cpu_request"], cpu["cpu_limit"]; len(cpu) == 2 && request.Cmp(limit) > 0 {
		add("resources.cpu_request: got %s, but cpu_limit is %s: want at most that", r.CPURequest, r.CPULimit)
	}

	if c.CPU.Dedicated && (r.CPURequest != "" || r.CPULimit != "") {
		add("resources: dedicated CPUs are reserved, one for each core: leave out cpu_request and cpu_limit")
	}

	if r.MemoryRequest > c.Memory && c.Memory > 0 {
		add("resources.memory_request: got %d MiB, but memory is %d: want at most that", r.MemoryRequest, c.Memory)
	}

	if r.MemoryLimit > 0 && r.MemoryLimit < c.Memory {
		add("resources.memory_limit: got %d MiB, but memory is %d: want at least that, and what the emulator needs", r.MemoryLimit, c.Memory)
	}

	if c.CPU.Dedicated && (r.MemoryRequest > 0 || r.MemoryLimit > 0) {
		add("resources: a machine with dedicated CPUs has all of its memory reserved: leave out memory_request and memory_limit")
	}

	if c.Hugepages == pagesOff {
		return
	}

	page := resource.MustParse(c.Hugepages)
	if c.Memory > 0 && int64(c.Memory)<<20%page.Value() != 0 {
		add("hugepages: %d MiB of memory is no multiple of a page of %s", c.Memory, c.Hugepages)
	}

	if c.Architecture == driver.AMD64 && c.Hugepages != "2Mi" && c.Hugepages != "1Gi" {
		add(`hugepages: got %q, but amd64 has pages of 2Mi and 1Gi`, c.Hugepages)
	}

	if r.MemoryRequest > 0 || r.MemoryLimit > 0 {
		add("resources: huge pages are reserved, as many as memory needs: leave out memory_request and memory_limit")
	}
}

func (c ClassData) validateFirmware(add note) {
	arm := c.Architecture == driver.ARM64

	switch {
	case arm && c.Firmware == firmwareBIOS:
		add(`firmware: arm64 machines have no BIOS: want "uefi" or "default"`)
	case c.SecureBoot && c.Firmware == firmwareBIOS:
		add(`firmware: got "bios", but secure_boot needs UEFI: want "uefi" or "default"`)
	}

	if arm && c.SecureBoot {
		add("secure_boot: KubeVirt has no such firmware for arm64: want false")
	}

	if c.PersistentEFI && c.Firmware != firmwareUEFI && !c.SecureBoot {
		add(`persistent_efi: got firmware %q, which may have no variables: want firmware "uefi" as well`, c.Firmware)
	}
}

func (c ClassData) validateDisks(add note) {
	c.SystemDisk.validate("system_disk", c.Architecture, add)
	checkStorageClass("storage_class_name", c.StorageClassName, add)

	names := map[string]string{volumeRoot: "the system disk", volumeSeed: "the seed"}
	serials := map[string]string{}

	if c.SystemDisk.Serial != "" {
		serials[c.SystemDisk.Serial] = "system_disk"
	}

	for i, d := range c.AdditionalDisks {
		path := fmt.Sprintf("additional_disks[%d]", i)

		d.validate(path, c.Architecture, add)
		checkStorageClass(path+".storage_class_name", d.StorageClassName, add)

		if other, ok := names[d.volume(i)]; ok {
			add("%s.name: %s is that of %s", path, d.volume(i), other)
		}

		if other, ok := serials[d.serial(i)]; ok {
			add("%s.serial: %s is that of %s", path, d.serial(i), other)
		}

		names[d.volume(i)], serials[d.serial(i)] = path, path
	}

	switch {
	case c.IOThreads == threadsPool && c.IOThreadCount == 0:
		add("io_thread_count: required with io_threads supplementalPool; want a whole number from 1 to 256")
	case c.IOThreads != threadsPool && c.IOThreadCount > 0:
		add("io_thread_count: got %d, but io_threads is %s, which has a number of its own: want io_threads supplementalPool", c.IOThreadCount, c.IOThreads)
	}
}

func (t DiskTuning) validate(path string, arch driver.Arch, add note) {
	if t.Bus == "sata" && arch == driver.ARM64 {
		add("%s.bus: arm64 machines have no SATA: want virtio or scsi", path)
	}

	if t.IO == "native" && t.Cache != "none" {
		add("%s.io: native needs cache none, got %s", path, t.Cache)
	}

	if t.DedicatedIOThread && t.Bus != busVirtio {
		add("%s.dedicated_io_thread: only a disk on virtio has one, got bus %s", path, t.Bus)
	}
}

func checkStorageClass(path, name string, add note) {
	if name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
		add("%s: got %q, want the name of a storage class: lower-case letters, digits, dashes and dots", path, name)
	}
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

func (c ClassData) validateImage(add note) {
	i := c.Image

	if i.SnapshotClass != "" && i.Source != SourceSnapshot {
		add("image.snapshot_class: got %q, but source is %s, which makes no snapshot: want source snapshot", i.SnapshotClass, i.Source)
	}

	if i.Source != SourceContainerDisk {
		for field, given := range map[string]bool{"reference": i.Reference != "", "pull_secret": i.PullSecret != "", "pull_method": i.PullMethod != pullPod} {
			if given {
				add("image.%s: source %s has none: want source container_disk", field, i.Source)
			}
		}

		return
	}

	if i.Reference == "" {
		add("image.reference: required with source container_disk; want a container image, like registry.example.org/talos:{version}-{arch}")
	}

	for _, p := range placeholder.FindAllString(i.Reference, -1) {
		if p != "{version}" && p != "{arch}" {
			add("image.reference: %s stands for nothing; want {version} and {arch}", p)
		}
	}

	if strings.ContainsAny(placeholder.ReplaceAllString(i.Reference, ""), "{}") {
		add("image.reference: got %q, in which a brace has no partner", i.Reference)
	}

	if i.PullSecret != "" && i.PullMethod != pullPod {
		add("image.pull_secret: with pull_method node the node fetches the image, with credentials of its own: want pull_method pod")
	}

	if len(c.Extensions)+len(c.KernelArgs) > 0 {
		add("extensions, kernel_args: a container image has its own: leave them out, or take source datavolume")
	}
}

func (c ClassData) validateNetworks(add note) {
	pods, defaults := 0, 0
	macs, attachments := map[string]int{}, map[string]int{}

	for i, n := range c.Networks {
		path := fmt.Sprintf("networks[%d]", i)
		n.validate(path, c.bindingOf(n), add)

		if n.multus() {
			if other, ok := attachments[n.Network]; ok && c.bindingOf(n) == bindingSRIOV {
				add("%s.network: %s is that of networks[%d]", path, n.Network, other)
			}

			attachments[n.Network] = i
		} else {
			pods++
		}

		if n.Default {
			defaults++
		}

		mac, err := net.ParseMAC(n.MAC)
		if err != nil {
			continue
		}

		if mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
			add("%s.mac: %s is not the address of one interface: want an even first byte", path, mac)
		}

		if other, ok := macs[mac.String()]; ok {
			add("%s.mac: %s is taken by networks[%d]", path, mac, other)
		}

		macs[mac.String()] = i
	}

	switch {
	case pods > 1:
		add("networks: got %d pod networks, but a machine has only one: want type multus for the others", pods)
	case defaults > 1:
		add("networks: got %d defaults, want one", defaults)
	case pods > 0 && defaults > 0:
		add("networks: a network of Multus that is the default takes the place of the pod network: leave out one of them")
	}
}

func (n Network) validate(path, binding string, add note) {
	switch {
	case n.multus() && n.Network == "":
		add("%s.network: required with type multus; want a NetworkAttachmentDefinition, as namespace/name", path)
	case !n.multus() && n.Network != "":
		add("%s.network: got %q, but type pod is the cluster's own network: want type multus", path, n.Network)
	}

	if name := n.Network[strings.LastIndex(n.Network, "/")+1:]; name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
		add("%s.network: got %q, want a NetworkAttachmentDefinition, as namespace/name", path, n.Network)
	}

	if namespace, _, ok := strings.Cut(n.Network, "/"); ok && len(validation.IsDNS1123Label(namespace)) > 0 {
		add("%s.network: got %q, want a NetworkAttachmentDefinition, as namespace/name", path, n.Network)
	}

	if n.Default && !n.multus() {
		add("%s.default: a pod network is the default: leave it out", path)
	}

	switch binding {
	case bindingMasquerade, bindingPasst, bindingPasstCore:
		if n.multus() {
			add("%s.binding: %s is for the pod network: want bridge, sriov or plugin", path, binding)
		}
	case bindingSRIOV:
		if !n.multus() {
			add("%s.binding: sriov needs a network of Multus: want type multus", path)
		}
	}

	switch {
	case binding == bindingPlugin && n.Plugin == "":
		add("%s.plugin: required with binding plugin; want the name of a network binding plugin", path)
	case binding != bindingPlugin && n.Plugin != "":
		add("%s.plugin: got %q, but the binding is %s: want binding plugin", path, n.Plugin, binding)
	}

	if n.Model != busVirtio && (binding == bindingSRIOV || binding == bindingPasst || binding == bindingPasstCore) {
		add("%s.model: got %s, but binding %s has a model of its own: leave it out", path, n.Model, binding)
	}
}

func (c ClassData) validateDevices(add note) {
	for _, list := range []struct {
		field   string
		devices []Device
	}{{"gpus", c.GPUs}, {"host_devices", c.HostDevices}} {
		if n := len(eachDevice(list.devices)); n > maxDevices {
			add("%s: got %d devices, want at most %d", list.field, n, maxDevices)
		}

		for i, d := range list.devices {
			if !strings.Contains(d.DeviceName, "/") || len(validation.IsQualifiedName(d.DeviceName)) > 0 {
				add("%s[%d].device_name: got %q, want a resource name like nvidia.com/GA102GL_A10", list.field, i, d.DeviceName)
			}
		}
	}
}

// The limits on what lists hold after they are put together.
const (
	maxDevices     = 16
	maxTolerations = 64
	// maxPatch is the largest configuration patch in bytes.
	maxPatch = 32 << 10
	// maxAnnotations is Kubernetes' limit on all annotations of an object, less room for ours.
	maxAnnotations = 256<<10 - 16<<10
)

func (c ClassData) validatePlacement(add note) {
	tolerations, err := ParseTolerations(c.Tolerations)
	if err != nil {
		add("tolerations: %w", err)
	}

	if len(tolerations)+len(c.AdditionalTolerations) > maxTolerations {
		add("tolerations: got %d, want at most %d", len(tolerations)+len(c.AdditionalTolerations), maxTolerations)
	}

	for i, t := range tolerations {
		checkToleration(fmt.Sprintf("tolerations[%d]", i), t, add)
	}

	for i, t := range c.AdditionalTolerations {
		checkToleration(fmt.Sprintf("additional_tolerations[%d]", i), t.kubernetes(), add)
	}

	if _, err := ParseAffinity(c.Affinity); err != nil {
		add("affinity: %w", err)
	}

	checkLabels("node_selector", c.NodeSelector, false, add)

	seen := map[string]int{}

	for i, s := range c.Spread {
		if len(validation.IsQualifiedName(s.TopologyKey)) > 0 {
			add("spread[%d].topology_key: got %q, want the name of a node's label, like topology.kubernetes.io/zone", i, s.TopologyKey)
		}

		key := s.TopologyKey + " " + s.WhenUnsatisfiable
		if other, ok := seen[key]; ok {
			add("spread[%d].topology_key: %s is that of spread[%d], with the same when_unsatisfiable", i, s.TopologyKey, other)
		}

		seen[key] = i
	}
}

func checkToleration(path string, t corev1.Toleration, add note) {
	operator := t.Operator
	if operator == "" {
		operator = corev1.TolerationOpEqual
	}

	switch {
	case !slices.Contains([]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}, operator):
		add("%s.operator: got %q, want Equal or Exists", path, t.Operator)
	case t.Key == "" && operator != corev1.TolerationOpExists:
		add("%s.key: without a key the operator has to be Exists, got %s", path, operator)
	case operator == corev1.TolerationOpExists && t.Value != "":
		add("%s.value: got %q, but operator Exists takes any value: leave it out", path, t.Value)
	}

	if t.Key != "" && len(validation.IsQualifiedName(t.Key)) > 0 {
		add("%s.key: got %q, want the key of a taint, like node-role.kubernetes.io/control-plane", path, t.Key)
	}

	if len(validation.IsValidLabelValue(t.Value)) > 0 {
		add("%s.value: got %q, want the value of a taint: letters, digits, dashes, dots and underscores", path, t.Value)
	}

	effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(effects, t.Effect) {
		add("%s.effect: got %q, want one of NoSchedule, PreferNoSchedule, NoExecute", path, t.Effect)
	}

	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		add("%s.toleration_seconds: only effect NoExecute sends a machine away, got %q", path, t.Effect)
	}
}

func (c ClassData) validateMetadata(add note) {
	checkLabels("labels", c.Labels, true, add)

	vm := make([]Label, 0, len(c.VMLabels))
	for name, value := range c.VMLabels {
		vm = append(vm, Label{Name: name, Value: value})
	}

	slices.SortFunc(vm, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })

	for _, l := range vm {
		// On the instance it is nobody's mark, and classes of the official provider say whose it is.
		checkLabel("vm_labels."+l.Name, l, l.Name != labelManagedBy, add)

		if value, ok := asMap(c.Labels)[l.Name]; ok && value != l.Value {
			add("vm_labels.%s: got %q, but labels says %q", l.Name, l.Value, value)
		}
	}

	seen, size := map[string]int{}, 0

	for i, a := range c.Annotations {
		path := fmt.Sprintf("annotations[%d].name", i)
		size += len(a.Name) + len(a.Value)

		switch other, ok := seen[a.Name]; {
		case len(validation.IsQualifiedName(strings.ToLower(a.Name))) > 0:
			add("%s: got %q, want the name of an annotation, like example.org/owner", path, a.Name)
		case reserved(a.Name):
			add("%s: %s is the provider's own", path, a.Name)
		case ok:
			add("%s: %s is that of annotations[%d]", path, a.Name, other)
		}

		seen[a.Name] = i
	}

	if size > maxAnnotations {
		add("annotations: got %d bytes, want at most %d", size, maxAnnotations)
	}
}

func checkLabels(field string, labels []Label, ours bool, add note) {
	seen := map[string]int{}

	for i, l := range labels {
		path := fmt.Sprintf("%s[%d]", field, i)
		checkLabel(path, l, ours, add)

		if other, ok := seen[l.Name]; ok {
			add("%s.name: %s is that of %s[%d]", path, l.Name, field, other)
		}

		seen[l.Name] = i
	}
}

// checkLabel checks a label; ours says that it is put on what carries the ownership mark.
func checkLabel(path string, l Label, ours bool, add note) {
	switch {
	case len(validation.IsQualifiedName(l.Name)) > 0:
		add("%s: got the name %q, want one like example.org/role", path, l.Name)
	case ours && reserved(l.Name):
		add("%s: %s is the provider's own", path, l.Name)
	case ours && slices.Contains(kubevirtLabels, l.Name):
		add("%s: %s is KubeVirt's own", path, l.Name)
	}

	if len(validation.IsValidLabelValue(l.Value)) > 0 {
		add("%s: got the value %q, want at most 63 letters, digits, dashes, dots and underscores, with a letter or digit at both ends", path, l.Value)
	}
}

// kubevirtLabels are those that KubeVirt lets nobody else put on an instance.
var kubevirtLabels = []string{
	kubevirtv1.CreatedByLabel, kubevirtv1.MigrationJobLabel, kubevirtv1.NodeNameLabel, kubevirtv1.MigrationTargetNodeNameLabel,
	kubevirtv1.NodeSchedulable, kubevirtv1.InstallStrategyLabel,
}

// reserved says whether a label or annotation is a part of the ownership mark.
func reserved(name string) bool {
	return strings.HasPrefix(strings.ToLower(name), markPrefix) || name == labelManagedBy
}

func (c ClassData) validateTalos(add note) {
	for i, patch := range c.ConfigPatches {
		path := fmt.Sprintf("config_patches[%d]", i)

		if len(patch) > maxPatch {
			add("%s: has %d bytes, want at most %d", path, len(patch), maxPatch)

			continue
		}

		if err := omni.ValidateConfigPatch([]byte(patch)); err != nil {
			add("%s: not a patch of Talos' configuration that Omni takes: %s", path, strings.Join(strings.Fields(err.Error()), " "))
		}
	}
}

// complete fills in what the class leaves to the operator. Where CDI or Kubernetes choose, the text is empty.
func (c ClassData) complete(o Operator) (ClassData, error) {
	if c.Namespace == "" && len(o.Namespaces) > 0 {
		c.Namespace = o.Namespaces[0]
	}

	if !slices.Contains(o.Namespaces, c.Namespace) {
		return ClassData{}, driver.Terminalf("invalid class data: namespace: got %q, which the provider's configuration does not allow; want one of %s",
			c.Namespace, strings.Join(o.Namespaces, ", "))
	}

	if c.StorageClassName == "" {
		c.StorageClassName = o.StorageClassName
	}

	if c.VolumeMode == byDefault {
		c.VolumeMode = o.VolumeMode
	}

	c.AccessMode = chosen(c.AccessMode)

	c.AdditionalDisks = slices.Clone(c.AdditionalDisks)
	for i := range c.AdditionalDisks {
		d := &c.AdditionalDisks[i]

		if d.StorageClassName == "" {
			d.StorageClassName = c.StorageClassName
		}

		if d.VolumeMode == "" {
			d.VolumeMode = c.VolumeMode
		}

		if d.AccessMode == "" {
			d.AccessMode = c.AccessMode
		}

		d.VolumeMode, d.AccessMode = chosen(d.VolumeMode), chosen(d.AccessMode)
	}

	return c, nil
}

// chosen is value, or nothing where the class leaves the choice to others.
func chosen(value string) string {
	if value == byDefault {
		return ""
	}

	return value
}

// CheckRequest refuses what a request asks for that the class rules out.
func (c ClassData) CheckRequest(req driver.Request) error {
	switch {
	case req.RequestID == "":
		return driver.Terminalf("request id: it is empty")
	case c.Image.Source == SourceContainerDisk && len(req.Extensions) > 0:
		return driver.Terminalf("image.source: got container_disk, whose image has its own extensions, but the request has %s: want source datavolume, or a request without extensions",
			strings.Join(req.Extensions, ", "))
	default:
		return nil
	}
}
