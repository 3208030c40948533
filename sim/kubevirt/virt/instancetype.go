package virt

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubevirt "kubevirt.io/api/core/v1"
	instancetype "kubevirt.io/api/instancetype/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// catalogue reads instance types and preferences, and what is kept of them.
type catalogue struct {
	types              kube.Resource[instancetype.VirtualMachineInstancetype, *instancetype.VirtualMachineInstancetype]
	clusterTypes       kube.Resource[instancetype.VirtualMachineClusterInstancetype, *instancetype.VirtualMachineClusterInstancetype]
	preferences        kube.Resource[instancetype.VirtualMachinePreference, *instancetype.VirtualMachinePreference]
	clusterPreferences kube.Resource[instancetype.VirtualMachineClusterPreference, *instancetype.VirtualMachineClusterPreference]
	revisions          kube.Resource[appsv1.ControllerRevision, *appsv1.ControllerRevision]
}

func newCatalogue(client *kube.Client) (c catalogue, err error) {
	if c.types, err = kube.Of[instancetype.VirtualMachineInstancetype](client, kube.InstanceTypes); err != nil {
		return c, err
	}

	if c.clusterTypes, err = kube.Of[instancetype.VirtualMachineClusterInstancetype](client, kube.ClusterInstanceTypes); err != nil {
		return c, err
	}

	if c.preferences, err = kube.Of[instancetype.VirtualMachinePreference](client, kube.Preferences); err != nil {
		return c, err
	}

	if c.clusterPreferences, err = kube.Of[instancetype.VirtualMachineClusterPreference](client, kube.ClusterPreferences); err != nil {
		return c, err
	}

	c.revisions, err = kube.Of[appsv1.ControllerRevision](client, kube.ControllerRevisions)

	return c, err
}

// size returns the instance type that a machine refers to, as it is now.
func (c catalogue) size(ctx context.Context, vm *kubevirt.VirtualMachine) (*described[instancetype.VirtualMachineInstancetypeSpec], error) {
	switch m := vm.Spec.Instancetype; strings.ToLower(m.Kind) {
	case "virtualmachineinstancetype", "virtualmachineinstancetypes":
		found, err := c.types.Get(ctx, vm.Namespace, m.Name)
		if err != nil {
			return nil, err
		}

		return &described[instancetype.VirtualMachineInstancetypeSpec]{kube.InstanceTypes, found.ObjectMeta, &found.Spec}, nil
	case "virtualmachineclusterinstancetype", "virtualmachineclusterinstancetypes", "":
		found, err := c.clusterTypes.Get(ctx, "", m.Name)
		if err != nil {
			return nil, err
		}

		return &described[instancetype.VirtualMachineInstancetypeSpec]{kube.ClusterInstanceTypes, found.ObjectMeta, &found.Spec}, nil
	default:
		return nil, fmt.Errorf("got unexpected kind in InstancetypeMatcher: %s", m.Kind)
	}
}

// preference returns the preference that a machine refers to, as it is now.
func (c catalogue) preference(ctx context.Context, vm *kubevirt.VirtualMachine) (*described[instancetype.VirtualMachinePreferenceSpec], error) {
	switch m := vm.Spec.Preference; strings.ToLower(m.Kind) {
	case "virtualmachinepreference", "virtualmachinepreferences":
		found, err := c.preferences.Get(ctx, vm.Namespace, m.Name)
		if err != nil {
			return nil, err
		}

		return &described[instancetype.VirtualMachinePreferenceSpec]{kube.Preferences, found.ObjectMeta, &found.Spec}, nil
	case "virtualmachineclusterpreference", "virtualmachineclusterpreferences", "":
		found, err := c.clusterPreferences.Get(ctx, "", m.Name)
		if err != nil {
			return nil, err
		}

		return &described[instancetype.VirtualMachinePreferenceSpec]{kube.ClusterPreferences, found.ObjectMeta, &found.Spec}, nil
	default:
		return nil, fmt.Errorf("got unexpected kind in PreferenceMatcher: %s", m.Kind)
	}
}

// sizeOf returns what the instance type of a machine says to it, nil if it has none.
func (c catalogue) sizeOf(ctx context.Context, vm *kubevirt.VirtualMachine) (*instancetype.VirtualMachineInstancetypeSpec, error) {
	m := vm.Spec.Instancetype
	if m == nil {
		return nil, nil //nolint:nilnil // There is none, as the contract says.
	}

	spec, err := kept[instancetype.VirtualMachineInstancetypeSpec](ctx, c, vm, vm.Status.InstancetypeRef, m.Name, m.RevisionName)
	if err != nil || spec != nil {
		return spec, err
	}

	found, err := c.size(ctx, vm)
	if err != nil {
		return nil, err
	}

	return found.spec, nil
}

// preferenceOf returns what the preference of a machine says to it, nil if it has none.
func (c catalogue) preferenceOf(ctx context.Context, vm *kubevirt.VirtualMachine) (*instancetype.VirtualMachinePreferenceSpec, error) {
	m := vm.Spec.Preference
	if m == nil {
		return nil, nil //nolint:nilnil // There is none, as the contract says.
	}

	spec, err := kept[instancetype.VirtualMachinePreferenceSpec](ctx, c, vm, vm.Status.PreferenceRef, m.Name, m.RevisionName)
	if err != nil || spec != nil {
		return spec, err
	}

	found, err := c.preference(ctx, vm)
	if err != nil {
		return nil, err
	}

	return found.spec, nil
}

// apply expands a machine for its admission. What is not found is no error there: the machine fails when it is looked after.
func (c catalogue) apply(ctx context.Context, vm *kubevirt.VirtualMachine) []metav1.StatusCause {
	size, _ := c.sizeOf(ctx, vm)
	prefer, _ := c.preferenceOf(ctx, vm)
	conflicts := expandSpec(size, prefer, &vm.Spec.Template.Spec)
	causes := make([]metav1.StatusCause, 0, len(conflicts))
	template := field.NewPath("spec", "template", "spec")

	for _, path := range conflicts {
		at := template.Child(path[0], path[1:]...).String()
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueInvalid, Message: fmt.Sprintf("VM field(s) %s conflicts with selected instance type", at), Field: at,
		})
	}

	return causes
}

// expand gives an instance what its machine refers to.
func (c catalogue) expand(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	size, err := c.sizeOf(ctx, vm)
	if err != nil {
		return err
	}

	prefer, err := c.preferenceOf(ctx, vm)
	if err != nil {
		return err
	}

	if m := vm.Spec.Instancetype; m != nil {
		key := kubevirt.ClusterInstancetypeAnnotation
		if strings.EqualFold(m.Kind, kube.InstanceTypes.Kind) {
			key = kubevirt.InstancetypeAnnotation
		}

		vmi.Annotations[key] = m.Name
	}

	if m := vm.Spec.Preference; m != nil {
		key := kubevirt.ClusterPreferenceAnnotation
		if strings.EqualFold(m.Kind, kube.Preferences.Kind) {
			key = kubevirt.PreferenceAnnotation
		}

		vmi.Annotations[key] = m.Name
	}

	if conflicts := expandSpec(size, prefer, &vmi.Spec); len(conflicts) > 0 {
		return conflictError("VMI", conflicts)
	}

	return nil
}

// expandSpec applies an instance type and a preference, and returns the fields that say the same themselves.
func expandSpec(size *instancetype.VirtualMachineInstancetypeSpec, prefer *instancetype.VirtualMachinePreferenceSpec,
	spec *kubevirt.VirtualMachineInstanceSpec,
) [][]string {
	if size != nil {
		if conflicts := conflictsOf(size, spec); len(conflicts) > 0 {
			return conflicts
		}

		applyType(size, prefer, spec)
	}

	if prefer != nil {
		applyPreference(prefer, spec)
	}

	return nil
}

func conflictsOf(size *instancetype.VirtualMachineInstancetypeSpec, spec *kubevirt.VirtualMachineInstanceSpec) (conflicts [][]string) {
	add := func(conflict bool, path ...string) {
		if conflict {
			conflicts = append(conflicts, path)
		}
	}
	has := func(list corev1.ResourceList, name corev1.ResourceName) bool { _, ok := list[name]; return ok }
	resources := spec.Domain.Resources

	add(has(resources.Requests, corev1.ResourceCPU), "domain", "resources", "requests", "cpu")
	add(has(resources.Limits, corev1.ResourceCPU), "domain", "resources", "limits", "cpu")

	if cpu := spec.Domain.CPU; cpu != nil {
		add(cpu.Sockets != 0, "domain", "cpu", "sockets")
		add(cpu.Cores != 0, "domain", "cpu", "cores")
		add(cpu.Threads != 0, "domain", "cpu", "threads")
		add(cpu.Model != "" && size.CPU.Model != nil, "domain", "cpu", "model")
		add(cpu.DedicatedCPUPlacement && size.CPU.DedicatedCPUPlacement != nil, "domain", "cpu", "dedicatedCPUPlacement")
		add(cpu.IsolateEmulatorThread && size.CPU.IsolateEmulatorThread != nil, "domain", "cpu", "isolateEmulatorThread")
		add(cpu.NUMA != nil && size.CPU.NUMA != nil, "domain", "cpu", "numa")
	}

	if memory := spec.Domain.Memory; memory != nil {
		add(memory.Guest != nil, "domain", "memory", "guest")
		add(memory.Hugepages != nil && size.Memory.Hugepages != nil, "domain", "memory", "hugepages")
	}

	add(has(resources.Requests, corev1.ResourceMemory), "domain", "resources", "requests", "memory")
	add(has(resources.Limits, corev1.ResourceMemory), "domain", "resources", "limits", "memory")
	add(len(spec.NodeSelector) > 0 && len(size.NodeSelector) > 0, "nodeSelector")
	add(len(spec.Domain.Devices.GPUs) > 0 && len(size.GPUs) > 0, "domain", "devices", "gpus")
	add(len(spec.Domain.Devices.HostDevices) > 0 && len(size.HostDevices) > 0, "domain", "devices", "hostDevices")

	return conflicts
}

func applyType(size *instancetype.VirtualMachineInstancetypeSpec, prefer *instancetype.VirtualMachinePreferenceSpec,
	spec *kubevirt.VirtualMachineInstanceSpec,
) {
	if spec.Domain.CPU == nil {
		spec.Domain.CPU = &kubevirt.CPU{}
	}

	cpu := spec.Domain.CPU
	cpu.Sockets, cpu.Cores, cpu.Threads = 1, 1, 1

	topology := instancetype.Sockets
	if prefer != nil && prefer.CPU != nil && prefer.CPU.PreferredCPUTopology != nil {
		topology = *prefer.CPU.PreferredCPUTopology
	}

	switch topology {
	case instancetype.Cores, instancetype.DeprecatedPreferCores:
		cpu.Cores = size.CPU.Guest
	case instancetype.Threads, instancetype.DeprecatedPreferThreads:
		cpu.Threads = size.CPU.Guest
	case instancetype.Spread, instancetype.DeprecatedPreferSpread:
		const ratio = 2 // KubeVirt's default: two cores a socket.

		if size.CPU.Guest > 1 {
			cpu.Cores, cpu.Sockets = ratio, size.CPU.Guest/ratio
		}
	default:
		cpu.Sockets = size.CPU.Guest
	}

	if size.CPU.Model != nil {
		cpu.Model = *size.CPU.Model
	}

	if size.CPU.DedicatedCPUPlacement != nil {
		cpu.DedicatedCPUPlacement = *size.CPU.DedicatedCPUPlacement
	}

	if size.CPU.IsolateEmulatorThread != nil {
		cpu.IsolateEmulatorThread = *size.CPU.IsolateEmulatorThread
	}

	if size.CPU.MaxSockets != nil {
		cpu.MaxSockets = *size.CPU.MaxSockets
	}

	if size.CPU.NUMA != nil {
		cpu.NUMA = size.CPU.NUMA.DeepCopy()
	}

	if spec.Domain.Memory == nil {
		spec.Domain.Memory = &kubevirt.Memory{}
	}

	spec.Domain.Memory.Guest = new(size.Memory.Guest.DeepCopy())

	if size.Memory.MaxGuest != nil {
		spec.Domain.Memory.MaxGuest = new(size.Memory.MaxGuest.DeepCopy())
	}

	if size.Memory.Hugepages != nil {
		spec.Domain.Memory.Hugepages = size.Memory.Hugepages.DeepCopy()
	}

	if len(size.NodeSelector) > 0 {
		spec.NodeSelector = size.NodeSelector
	}

	if len(size.GPUs) > 0 {
		spec.Domain.Devices.GPUs = size.GPUs
	}

	if len(size.HostDevices) > 0 {
		spec.Domain.Devices.HostDevices = size.HostDevices
	}
}

// applyPreference sets what a machine leaves open.
func applyPreference(prefer *instancetype.VirtualMachinePreferenceSpec, spec *kubevirt.VirtualMachineInstanceSpec) {
	domain := &spec.Domain

	if p := prefer.Devices; p != nil {
		for i := range domain.Devices.Disks {
			if disk := domain.Devices.Disks[i].Disk; disk != nil && disk.Bus == "" {
				disk.Bus = p.PreferredDiskBus
			}

			if cdrom := domain.Devices.Disks[i].CDRom; cdrom != nil && cdrom.Bus == "" {
				cdrom.Bus = p.PreferredCdromBus
			}
		}

		for i := range domain.Devices.Interfaces {
			if nic := &domain.Devices.Interfaces[i]; nic.Model == "" {
				nic.Model = p.PreferredInterfaceModel
			}
		}

		if domain.Devices.TPM == nil {
			domain.Devices.TPM = p.PreferredTPM.DeepCopy()
		}

		if domain.Devices.Rng == nil {
			domain.Devices.Rng = p.PreferredRng.DeepCopy()
		}
	}

	if p := prefer.Features; p != nil && p.PreferredSmm != nil {
		if domain.Features == nil {
			domain.Features = &kubevirt.Features{}
		}

		if domain.Features.SMM == nil {
			domain.Features.SMM = p.PreferredSmm.DeepCopy()
		}
	}

	if p := prefer.Firmware; p != nil && p.PreferredEfi != nil {
		if domain.Firmware == nil {
			domain.Firmware = &kubevirt.Firmware{}
		}

		if domain.Firmware.Bootloader == nil {
			domain.Firmware.Bootloader = &kubevirt.Bootloader{EFI: p.PreferredEfi.DeepCopy()}
		}
	}

	if p := prefer.Machine; p != nil && p.PreferredMachineType != "" {
		if domain.Machine == nil {
			domain.Machine = &kubevirt.Machine{}
		}

		if domain.Machine.Type == "" {
			domain.Machine.Type = p.PreferredMachineType
		}
	}

	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = prefer.PreferredTerminationGracePeriodSeconds
	}
}
