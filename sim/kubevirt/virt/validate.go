package virt

import (
	"encoding/base64"
	"fmt"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubevirt "kubevirt.io/api/core/v1"
)

// causes collects what is wrong. Its texts are KubeVirt's, since clients see them.
type causes []metav1.StatusCause

func (c *causes) add(at *field.Path, format string, args ...any) {
	*c = append(*c, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: fmt.Sprintf(format, args...), Field: at.String()})
}

func (c *causes) is(kind metav1.CauseType) { (*c)[len(*c)-1].Type = kind }

// emulated are the machine types of an architecture.
type emulated struct {
	usual   string
	allowed []string
}

func machineTypes(arch string) emulated {
	switch arch {
	case "arm64":
		return emulated{usual: "virt", allowed: []string{"virt*"}}
	case "s390x":
		return emulated{usual: "s390-ccw-virtio", allowed: []string{"s390-ccw-virtio*"}}
	default:
		return emulated{usual: "q35", allowed: []string{"q35*", "pc-q35*"}}
	}
}

// validateMachineSpec says what is wrong with a machine.
func validateMachineSpec(at *field.Path, spec *kubevirt.VirtualMachineSpec) []metav1.StatusCause {
	found := causes(validateInstanceSpec(at.Child("template", "spec"), &spec.Template.Spec))

	found.templates(at, spec)
	found.strategy(at, spec)

	return found
}

func (c *causes) strategy(at *field.Path, spec *kubevirt.VirtualMachineSpec) {
	known := []kubevirt.VirtualMachineRunStrategy{
		kubevirt.RunStrategyHalted, kubevirt.RunStrategyManual, kubevirt.RunStrategyAlways, kubevirt.RunStrategyRerunOnFailure, kubevirt.RunStrategyOnce,
	}

	switch {
	case spec.Running != nil && spec.RunStrategy != nil:
		c.add(at.Child("running"), "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead")
	case spec.Running == nil && spec.RunStrategy == nil:
		c.add(at.Child("running"), "RunStrategy must be specified")
	}

	switch {
	case spec.RunStrategy == nil:
	case *spec.RunStrategy == kubevirt.RunStrategyWaitAsReceiver:
		c.add(at.Child("runStrategy"), "Invalid RunStrategy (%s), DecentralizedLiveMigration feature gate is not enabled in kubevirt resource", *spec.RunStrategy)
	case !slices.Contains(known, *spec.RunStrategy):
		c.add(at.Child("runStrategy"), "Invalid RunStrategy (%s)", *spec.RunStrategy)
	}
}

func (c *causes) templates(at *field.Path, spec *kubevirt.VirtualMachineSpec) {
	for i, t := range spec.DataVolumeTemplates {
		entry := at.Child("dataVolumeTemplate").Index(i)
		before := len(*c)

		c.template(entry, t)

		if len(*c) > before {
			continue
		}

		if !slices.ContainsFunc(spec.Template.Spec.Volumes, func(v kubevirt.Volume) bool { return claimOf(v) == t.Name }) {
			c.add(entry, "DataVolumeTemplate entry %s must be referenced in the VMI template's 'volumes' list", entry)
			c.is(metav1.CauseTypeFieldValueRequired)
		}
	}
}

func (c *causes) template(at *field.Path, t kubevirt.DataVolumeTemplateSpec) {
	external := false

	if t.Spec.PVC != nil {
		external = t.Spec.PVC.DataSource != nil || t.Spec.PVC.DataSourceRef != nil
	} else if t.Spec.Storage != nil {
		external = t.Spec.Storage.DataSource != nil || t.Spec.Storage.DataSourceRef != nil
	}

	sourced := t.Spec.Source != nil || t.Spec.SourceRef != nil

	switch {
	case t.Name == "":
		c.add(at.Child("name"), "'name' field must not be empty for DataVolumeTemplate entry %s.", at.Child("name"))
		c.is(metav1.CauseTypeFieldValueRequired)
	case t.Spec.PVC == nil && t.Spec.Storage == nil:
		c.add(at.Child("PVC", "Storage"), "Missing Data volume PVC or Storage")
	case t.Spec.PVC != nil && t.Spec.Storage != nil:
		c.add(at.Child("PVC", "Storage"), "Duplicate storage definition, both target storage and target pvc defined")
	case external && sourced:
		c.add(at.Child("source"), "External population is incompatible with Source and SourceRef")
	case !external && !sourced:
		c.add(at.Child("source", "sourceRef"), "Data volume should have either Source, SourceRef, or be externally populated")
	case t.Spec.Source != nil:
		switch n := setFields(t.Spec.Source); {
		case n == 0:
			c.add(at.Child("source"), "Missing dataVolume valid source")
		case n > 1:
			c.add(at.Child("source"), "Multiple dataVolume sources")
		}
	}
}

// setFields counts the pointers of a struct that are not nil.
func setFields(of any) int {
	v, n := reflect.ValueOf(of).Elem(), 0

	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			n++
		}
	}

	return n
}

// validateInstanceSpec says what is wrong with an instance.
func validateInstanceSpec(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) []metav1.StatusCause {
	var found causes

	found.names(at, spec)
	found.memory(at, spec)
	found.machine(at, spec)
	found.processors(at, spec)
	found.startStrategy(at, spec)
	found.networks(at, spec)
	found.bootOrder(at, spec)
	found.disks(at.Child("domain", "devices", "disks"), spec.Domain.Devices.Disks)
	found.firmware(at.Child("domain"), &spec.Domain)
	found.volumes(at.Child("volumes"), spec.Volumes)
	found.eviction(at, spec)

	return found
}

func (c *causes) names(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	if spec.Hostname != "" {
		if errs := validation.IsDNS1123Label(spec.Hostname); len(errs) > 0 {
			c.add(at.Child("hostname"), "%s does not conform to the kubernetes DNS_LABEL rules : %s", at.Child("hostname"), strings.Join(errs, ", "))
		}
	}

	if spec.Subdomain != "" {
		if errs := validation.IsDNS1123Subdomain(spec.Subdomain); len(errs) > 0 {
			c.add(at.Child("subdomain"), "%s does not conform to the kubernetes DNS_SUBDOMAIN rules : %s", at.Child("subdomain"), strings.Join(errs, ", "))
		}
	}
}

func (c *causes) memory(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	requests, limits := spec.Domain.Resources.Requests.Memory(), spec.Domain.Resources.Limits.Memory()
	requestPath, limitPath := at.Child("domain", "resources", "requests", "memory"), at.Child("domain", "resources", "limits", "memory")

	switch {
	case requests.Value() < 0:
		c.add(requestPath, "%s '%s': must be greater than or equal to 0.", requestPath, requests)
	case requests.Value() > 0 && requests.Cmp(resource.MustParse("1M")) < 0:
		c.add(requestPath, "%s '%s': must be greater than or equal to 1M.", requestPath, requests)
	}

	if limits.Value() < 0 {
		c.add(limitPath, "%s '%s': must be greater than or equal to 0.", limitPath, limits)
	}

	if limits.Value() > 0 && requests.Value() > limits.Value() {
		c.add(requestPath, "%s '%s' is greater than %s '%s'", requestPath, requests, limitPath, limits)
	}

	memory := spec.Domain.Memory
	if memory == nil || memory.Hugepages == nil {
		return
	}

	pagePath := at.Child("domain", "memory", "hugepages", "pageSize")

	page, err := resource.ParseQuantity(memory.Hugepages.PageSize)
	if err != nil {
		c.add(pagePath, "%s '%s': %s", pagePath, memory.Hugepages.PageSize, resource.ErrFormatWrong)

		return
	}

	size := requests.Value()
	if size == 0 && memory.Guest != nil {
		size = memory.Guest.Value()
	}

	if size == 0 {
		size = limits.Value()
	}

	switch {
	case size != 0 && size < page.Value():
		c.add(requestPath, "%s '%s' must be equal to or larger than page size %s '%s'", requestPath, requests, pagePath, memory.Hugepages.PageSize)
	case page.Value() > 0 && size%page.Value() != 0:
		c.add(requestPath, "%s '%s' is not a multiple of the page size %s '%s'", requestPath, requests, pagePath, memory.Hugepages.PageSize)
	}
}

func (c *causes) machine(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	machine := spec.Domain.Machine
	if machine == nil || machine.Type == "" {
		return
	}

	allowed := machineTypes(spec.Architecture).allowed
	matches := func(pattern string) bool { ok, _ := path.Match(pattern, machine.Type); return ok }

	if !slices.ContainsFunc(allowed, matches) {
		at = at.Child("domain", "machine", "type")
		c.add(at, "%s is not supported: %s (allowed values: %v)", at, machine.Type, allowed)
	}
}

func (c *causes) processors(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	requests, limits := spec.Domain.Resources.Requests.Cpu(), spec.Domain.Resources.Limits.Cpu()
	requestPath, limitPath := at.Child("domain", "resources", "requests", "cpu"), at.Child("domain", "resources", "limits", "cpu")
	cpu := spec.Domain.CPU

	if requests.MilliValue() < 0 {
		c.add(requestPath, "%s '%s': must be greater than or equal to 0.", requestPath, requests)
	}

	if limits.MilliValue() < 0 {
		c.add(limitPath, "%s '%s': must be greater than or equal to 0.", limitPath, limits)
	}

	if limits.MilliValue() > 0 && requests.MilliValue() > limits.MilliValue() {
		c.add(requestPath, "%s '%s' is greater than %s '%s'", requestPath, requests, limitPath, limits)
	}

	if cpu == nil {
		return
	}

	if cpu.DedicatedCPUPlacement {
		c.dedicated(at, spec)
	}

	if cpu.IsolateEmulatorThread && !cpu.DedicatedCPUPlacement {
		c.add(at.Child("domain", "cpu", "isolateEmulatorThread"), "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement")
	}

	for i, f := range cpu.Features {
		if !slices.Contains([]string{"", "force", "require", "optional", "disable", "forbid"}, f.Policy) {
			c.add(at.Child("domain", "cpu", "features").Index(i).Child("policy"), "CPU feature %s uses policy %s that is not supported.", f.Name, f.Policy)
			c.is(metav1.CauseTypeFieldValueNotSupported)
		}
	}

	if cpu.MaxSockets != 0 && cpu.Sockets > cpu.MaxSockets {
		c.add(at.Child("domain", "cpu", "sockets"), "Number of sockets in CPU topology is greater than the maximum sockets allowed")
	}
}

// dedicated are the rules of machines with processors of their own.
func (c *causes) dedicated(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	resources, cpu := spec.Domain.Resources, spec.Domain.CPU
	requests, limits := resources.Requests.Cpu(), resources.Limits.Cpu()
	requestPath, limitPath := at.Child("domain", "resources", "requests"), at.Child("domain", "resources", "limits")
	placement := at.Child("domain", "cpu", "dedicatedCpuPlacement")

	if requests.MilliValue()%1000 != 0 {
		c.add(requestPath.Child("cpu"), "provided resources CPU requests must be an interger")
	}

	if limits.MilliValue()%1000 != 0 {
		c.add(limitPath.Child("cpu"), "provided resources CPU limits must be an interger")
	}

	if r, l := resources.Requests.Memory().Value(), resources.Limits.Memory().Value(); r > 0 && l > 0 && r != l {
		c.add(requestPath.Child("memory"), "%s must be equal to %s", requestPath.Child("memory"), limitPath.Child("memory"))
	}

	if requests.Value() > 0 && limits.Value() > 0 && requests.Value() != limits.Value() {
		c.add(placement, "%s or %s must be equal when DedicatedCPUPlacement is true ", requestPath.Child("cpu"), limitPath.Child("cpu"))
	}

	if vcpus := processors(cpu); (requests.Value() > 0 || limits.Value() > 0) && requests.Value() != vcpus && limits.Value() != vcpus {
		c.add(placement, "%s or %s must not be provided at the same time with %s when DedicatedCPUPlacement is true ",
			requestPath.Child("cpu"), limitPath.Child("cpu"), at.Child("domain", "cpu", "cores"))
	}

	if cpu.Threads > 2 {
		c.add(placement, "Not more than two threads must be provided at %v (got %v) when DedicatedCPUPlacement is true",
			at.Child("domain", "cpu", "threads"), cpu.Threads)
	}
}

func (c *causes) startStrategy(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	at = at.Child("startStrategy")

	switch {
	case spec.StartStrategy == nil:
	case *spec.StartStrategy != kubevirt.StartStrategyPaused:
		c.add(at, "%s is set with an unrecognized option: %s", at, *spec.StartStrategy)
	}
}

var nicName = regexp.MustCompile(`^[A-Za-z0-9-_]+$`)

// bridgeMAC is the address that every launcher uses itself for masquerading.
const bridgeMAC = "02:00:00:00:00:00"

func (c *causes) networks(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	nics, networks := spec.Domain.Devices.Interfaces, map[string]kubevirt.Network{}
	nicPath := at.Child("domain", "devices", "interfaces")
	pods, defaults := 0, 0

	for i, n := range spec.Networks {
		path := at.Child("networks").Index(i)

		if _, twice := networks[n.Name]; twice {
			c.add(path.Child("name"), "Network with name %q already exists, every network must have a unique name", n.Name)
			c.is(metav1.CauseTypeFieldValueDuplicate)
		}

		networks[n.Name] = n

		if !slices.ContainsFunc(nics, func(nic kubevirt.Interface) bool { return nic.Name == n.Name }) {
			c.add(path.Child("name"), "%s '%s' not found.", path.Child("name"), n.Name)
			c.is(metav1.CauseTypeFieldValueRequired)
		}

		switch {
		case n.Pod == nil && n.Multus == nil:
			c.add(path, "should have a network type")
			c.is(metav1.CauseTypeFieldValueRequired)
		case n.Pod != nil && n.Multus != nil:
			c.add(path, "should have only one network type")
			c.is(metav1.CauseTypeFieldValueRequired)
		case n.Pod != nil:
			pods++
		case n.Multus.NetworkName == "":
			c.add(path, "CNI delegating plugin must have a networkName")
			c.is(metav1.CauseTypeFieldValueRequired)
		case n.Multus.Default:
			defaults++
		}
	}

	if pods > 1 {
		c.add(at.Child("interfaces"), "more than one interface is connected to a pod network in %s", at.Child("interfaces"))
		c.is(metav1.CauseTypeFieldValueDuplicate)
	}

	if defaults > 1 {
		c.add(at.Child("networks"), "Multus CNI should only have one default network")
	}

	if pods > 0 && defaults > 0 {
		c.add(at.Child("networks"), "Pod network cannot be defined when Multus default network is defined")
	}

	seen := map[string]bool{}

	for i, nic := range nics {
		path := nicPath.Index(i)

		if seen[nic.Name] {
			c.add(path.Child("name"), "Only one interface can be connected to one specific network")
			c.is(metav1.CauseTypeFieldValueDuplicate)
		}

		seen[nic.Name] = true

		n, known := networks[nic.Name]
		if !known {
			c.add(path.Child("name"), "%s '%s' not found.", path.Child("name"), nic.Name)
		}

		c.nic(path, nic, n)
	}
}

func (c *causes) nic(at *field.Path, nic kubevirt.Interface, n kubevirt.Network) {
	models := []string{"", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", kubevirt.VirtIO}

	if !nicName.MatchString(nic.Name) {
		c.add(at.Child("name"), "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)")
	}

	if !slices.Contains(models, nic.Model) {
		c.add(at.Child("model"), "interface %s uses model %s that is not supported.", at.Child("name"), nic.Model)
		c.is(metav1.CauseTypeFieldValueNotSupported)
	}

	if nic.MacAddress != "" {
		if mac, err := net.ParseMAC(nic.MacAddress); err != nil {
			c.add(at.Child("macAddress"), "interface %s has malformed MAC address (%s).", at.Child("name"), nic.MacAddress)
		} else if len(mac) > 6 {
			c.add(at.Child("macAddress"), "interface %s has too long MAC address (%s).", at.Child("name"), nic.MacAddress)
		}
	}

	method := nic.InterfaceBindingMethod

	switch {
	case nic.Binding != nil && (method.Bridge != nil || method.Masquerade != nil || method.SRIOV != nil || method.PasstBinding != nil):
		c.add(at.Child("binding"), "logical %s interface cannot have both binding plugin and interface binding method", nic.Name)
	case method.Masquerade != nil && n.Pod == nil:
		c.add(at.Child("name"), "Masquerade interface only implemented with pod network")
	case method.Masquerade != nil && nic.MacAddress == bridgeMAC:
		c.add(at.Child("macAddress"), "The requested MAC address is reserved for the in-pod bridge. Please choose another one.")
	case method.DeprecatedSlirp != nil:
		c.add(at.Child("slirp"), "Slirp interface support has been discontinued since v1.3")
	case method.DeprecatedPasst != nil:
		c.add(at.Child("passt"), "Passt network binding has been discontinued since v1.3")
	case method.DeprecatedMacvtap != nil:
		c.add(at.Child("macvtap"), "Macvtap network binding has been discontinued since v1.3")
	}

	ports := map[string]bool{}

	for i, port := range nic.Ports {
		path := at.Child("ports").Index(i)

		switch {
		case port.Port == 0:
			c.add(path, "Port field is mandatory.")
			c.is(metav1.CauseTypeFieldValueRequired)
		case port.Port < 0 || port.Port > 65535:
			c.add(path, "Port field must be in range 0 < x < 65536.")
		case port.Protocol != "" && port.Protocol != "TCP" && port.Protocol != "UDP":
			c.add(path.Child("protocol"), "Unknown protocol, only TCP or UDP allowed")
		case port.Name != "" && ports[port.Name]:
			c.add(path.Child("name"), "Duplicate name of the port: %s", port.Name)
			c.is(metav1.CauseTypeFieldValueDuplicate)
		}

		ports[port.Name] = true
	}
}

// bootOrder checks that disks have volumes, and that no two devices are the same in the order.
func (c *causes) bootOrder(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	taken := map[uint]bool{}

	for i, disk := range spec.Domain.Devices.Disks {
		path := at.Child("domain", "devices", "disks").Index(i)
		v := slices.IndexFunc(spec.Volumes, func(v kubevirt.Volume) bool { return v.Name == disk.Name })

		switch {
		case v < 0 && disk.CDRom == nil:
			c.add(path.Child("name"), "%s '%s' not found.", path.Child("Name"), disk.Name)
		case v < 0:
			c.add(path.Child("name"), "DeclarativeHotplugVolumes feature gate not enabled, cannot define an empty CD-ROM disk")
		case disk.LUN != nil && claimOf(spec.Volumes[v]) == "":
			c.add(path.Child("lun"), "%s can only be mapped to a DataVolume or PersistentVolumeClaim volume.", path.Child("lun"))
		}

		if disk.BootOrder == nil {
			continue
		}

		if order := *disk.BootOrder; taken[order] {
			c.add(path.Child("bootOrder"), "Boot order for %s already set for a different device.", path.Child("bootOrder"))
		} else {
			taken[order] = true
		}
	}

	for i, nic := range spec.Domain.Devices.Interfaces {
		path := at.Child("domain", "devices", "interfaces").Index(i)

		switch {
		case nic.BootOrder == nil:
		case *nic.BootOrder < 1:
			c.add(at.Index(i).Child("bootOrder"), "%s must have a boot order > 0, if supplied", at.Index(i))
		case taken[*nic.BootOrder]:
			c.add(path.Child("bootOrder"), "Boot order for %s already set for a different device.", path.Child("bootOrder"))
		default:
			taken[*nic.BootOrder] = true
		}
	}
}

var diskSerial = regexp.MustCompile(`^[A-Za-z0-9_.+-]+$`)

// maxSerial bounds the serial number of a disk.
const maxSerial = 256

func (c *causes) disks(at *field.Path, disks []kubevirt.Disk) {
	for i, disk := range disks {
		path := at.Index(i)

		if j := slices.IndexFunc(disks[:i], func(d kubevirt.Disk) bool { return d.Name == disk.Name }); j >= 0 {
			c.add(path.Child("name"), "%s and %s must not have the same Name.", path, at.Index(j))
		}

		if setFields(&disk.DiskDevice) > 1 {
			c.add(path, "%s can only have a single target type defined", path)
		}

		if disk.BootOrder != nil && *disk.BootOrder < 1 {
			c.add(path.Child("bootOrder"), "%s must have a boot order > 0, if supplied", path)
		}

		c.bus(path, disk)

		switch {
		case disk.Serial == "":
		case !diskSerial.MatchString(disk.Serial):
			c.add(path.Child("serial"), "%s must be made up of the following characters [A-Za-z0-9_.+-], if specified", path)
		case len([]rune(disk.Serial)) > maxSerial:
			c.add(path.Child("serial"), "%s must be less than or equal to %d in length, if specified", path, maxSerial)
		}

		if !slices.Contains([]kubevirt.DriverCache{"", kubevirt.CacheNone, kubevirt.CacheWriteThrough, kubevirt.CacheWriteBack}, disk.Cache) {
			c.add(path.Child("cache"), "%s has invalid value %s", path.Child("cache"), disk.Cache)
		}

		for _, text := range validation.IsDNS1123Label(disk.Name) {
			c.add(at.Child("domain", "devices", "disks").Index(i).Child("name"), "%s", text)
		}
	}
}

func (c *causes) bus(at *field.Path, disk kubevirt.Disk) {
	var bus kubevirt.DiskBus

	kind := "disk"

	switch {
	case disk.Disk != nil:
		bus = disk.Disk.Bus
	case disk.LUN != nil:
		bus, kind = disk.LUN.Bus, "lun"
	case disk.CDRom != nil:
		bus, kind = disk.CDRom.Bus, "cdrom"
	}

	switch bus {
	case "", kubevirt.DiskBusSCSI, kubevirt.DiskBusUSB:
	case "ide":
		c.add(at.Child(kind, "bus"), "IDE bus is not supported")
	case kubevirt.DiskBusVirtio:
		if kind == "cdrom" {
			c.add(at.Child(kind, "bus"), "Bus type %s is invalid for CD-ROM device", bus)
		}
	case kubevirt.DiskBusSATA:
		if disk.Disk != nil && disk.Disk.ReadOnly {
			c.add(at.Child(kind, "bus"), "%s hard-disks do not support read-only.", bus)
		}
	default:
		c.add(at.Child(kind, "bus"), "%s is set with an unrecognized bus %s, must be one of: %v", at, bus,
			[]kubevirt.DiskBus{kubevirt.DiskBusVirtio, kubevirt.DiskBusSCSI, kubevirt.DiskBusSATA, kubevirt.DiskBusUSB})
	}
}

func (c *causes) firmware(at *field.Path, domain *kubevirt.DomainSpec) {
	if domain.Firmware == nil || domain.Firmware.Bootloader == nil {
		return
	}

	loader, path := domain.Firmware.Bootloader, at.Child("firmware", "bootloader")

	if loader.EFI != nil && loader.BIOS != nil {
		c.add(path, "%s has both EFI and BIOS configured, but they are mutually exclusive.", path)
	}

	secure := loader.EFI != nil && (loader.EFI.SecureBoot == nil || *loader.EFI.SecureBoot)
	smm := domain.Features != nil && domain.Features.SMM != nil && (domain.Features.SMM.Enabled == nil || *domain.Features.SMM.Enabled)

	if secure && !smm {
		c.add(at, "%s has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.", at)
	}
}

// maxInline is how much cloud-init data a machine may have inline, of either sort.
const maxInline = 2048

func (c *causes) volumes(at *field.Path, volumes []kubevirt.Volume) {
	for i, v := range volumes {
		path := at.Index(i)

		if j := slices.IndexFunc(volumes[:i], func(o kubevirt.Volume) bool { return o.Name == v.Name }); j >= 0 {
			c.add(path.Child("name"), "%s and %s must not have the same Name.", path, at.Index(j))
		}

		if v.DataVolume != nil && v.DataVolume.Name == "" {
			c.add(path.Child("name"), "DataVolume 'name' must be set")
			c.is(metav1.CauseTypeFieldValueRequired)
		}

		if setFields(&v.VolumeSource) != 1 {
			c.add(path, "%s must have exactly one source type set", path)
		}

		switch {
		case v.CloudInitNoCloud != nil:
			n := v.CloudInitNoCloud
			c.cloudInit(path.Child("cloudInitNoCloud"), "cloudInitNoCloud", n.UserDataSecretRef, n.UserDataBase64, n.UserData,
				n.NetworkDataSecretRef, n.NetworkDataBase64, n.NetworkData)
		case v.CloudInitConfigDrive != nil:
			n := v.CloudInitConfigDrive
			c.cloudInit(path.Child("cloudInitConfigDrive"), "cloudInitConfigDrive", n.UserDataSecretRef, n.UserDataBase64, n.UserData,
				n.NetworkDataSecretRef, n.NetworkDataBase64, n.NetworkData)
		case v.Secret != nil && v.Secret.SecretName == "":
			c.add(path.Child("secret", "secretName"), "%s is a required field", path.Child("secret", "secretName"))
		case v.ConfigMap != nil && v.ConfigMap.Name == "":
			c.add(path.Child("configMap", "name"), "%s is a required field", path.Child("configMap", "name"))
		case v.HostDisk != nil:
			c.add(path, "HostDisk feature gate is not enabled")
		}
	}
}

func (c *causes) cloudInit(at *field.Path, kind string, userRef *corev1.LocalObjectReference, user64, user string,
	networkRef *corev1.LocalObjectReference, network64, network string,
) {
	users, userSize := c.inline(at, kind, "userDataBase64", userRef, user64, user)
	if users > 1 {
		c.add(at, "%s must have only one userdatasource set.", at)
	}

	if userSize > maxInline {
		c.add(at, "%s userdata exceeds %d byte limit. Should use UserDataSecretRef for larger data.", at, maxInline)
	}

	networks, networkSize := c.inline(at, kind, "networkDataBase64", networkRef, network64, network)
	if networks > 1 {
		c.add(at, "%s must have only one networkdata source set.", at)
	}

	if networkSize > maxInline {
		c.add(at, "%s networkdata exceeds %d byte limit. Should use NetworkDataSecretRef for larger data.", at, maxInline)
	}

	if users == 0 && networks == 0 {
		c.add(at, "%s must have at least one userdatasource or one networkdatasource set.", at)
	}
}

// inline counts the sources of one sort of data, and its bytes as far as they are inline.
func (c *causes) inline(at *field.Path, kind, name string, ref *corev1.LocalObjectReference, base, text string) (sources, size int) {
	if ref != nil && ref.Name != "" {
		sources++
	}

	if base != "" {
		sources++

		data, err := base64.StdEncoding.DecodeString(base)
		if err != nil {
			c.add(at.Child(name), "%s.%s.%s is not a valid base64 value.", at.Child(name), kind, name)
		}

		size = len(data)
	}

	if text != "" {
		sources++
		size = len(text)
	}

	return sources, size
}

func (c *causes) eviction(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) {
	known := []kubevirt.EvictionStrategy{
		kubevirt.EvictionStrategyLiveMigrate, kubevirt.EvictionStrategyLiveMigrateIfPossible, kubevirt.EvictionStrategyNone, kubevirt.EvictionStrategyExternal,
	}

	if s := spec.EvictionStrategy; s != nil && !slices.Contains(known, *s) {
		c.add(at.Child("evictionStrategy"), "%s is set with an unrecognized option: %s", at.Child("evictionStrategy"), *s)
	}
}
