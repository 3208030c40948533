package virt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// machineFinalizer is the one that virt-controller holds on machines, and on their instances until it has seen their end.
const machineFinalizer = kubevirt.VirtualMachineControllerFinalizer

// problem is why a machine is not as it should be, with a reason of its Failure condition.
type problem struct {
	reason string
	err    error
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

// Reasons of the Failure condition.
const (
	failedCreate = "FailedCreate"
	failedDelete = "FailedDelete"
)

// syncMachine looks after one machine.
func (c *Controller) syncMachine(ctx context.Context, key string) error {
	stored := c.vms.Get(split(key))
	if stored == nil {
		return nil
	}

	vm := stored.DeepCopy()
	vmi := c.instanceOf(vm)

	if vm.DeletionTimestamp == nil && !prepared(vm) {
		return c.prepare(ctx, vm)
	}

	err := c.act(ctx, vm, vmi)

	var trouble *problem
	if err != nil && !errors.As(err, &trouble) {
		return err
	}

	if err := c.report(ctx, stored, c.instanceOf(vm), trouble); err != nil {
		return err
	}

	if trouble != nil {
		return trouble
	}

	return nil
}

// instanceOf returns the instance of a machine, nil if there is none.
func (c *Controller) instanceOf(vm *kubevirt.VirtualMachine) *kubevirt.VirtualMachineInstance {
	vmi := c.vmis.Get(vm.Namespace, vm.Name)
	if vmi == nil || !metav1.IsControlledBy(vmi, vm) {
		return nil
	}

	return vmi
}

func prepared(vm *kubevirt.VirtualMachine) bool {
	return slices.Contains(vm.Finalizers, machineFinalizer) && vm.Annotations[kubevirt.ControllerAPILatestVersionObservedAnnotation] == "v1" &&
		vm.Spec.Template.Spec.Domain.Firmware != nil && vm.Spec.Template.Spec.Domain.Firmware.UUID != ""
}

// prepare puts the controller's finalizer and annotations on a machine. A machine without UUID, which virt-api only lets in from
// before an upgrade, gets the one that older releases made from its name.
func (c *Controller) prepare(ctx context.Context, vm *kubevirt.VirtualMachine) error {
	if !slices.Contains(vm.Finalizers, machineFinalizer) {
		vm.Finalizers = append(vm.Finalizers, machineFinalizer)
	}

	if vm.Annotations == nil {
		vm.Annotations = map[string]string{}
	}

	vm.Annotations[kubevirt.ControllerAPILatestVersionObservedAnnotation] = "v1"
	vm.Annotations[kubevirt.ControllerAPIStorageVersionObservedAnnotation] = "v1"

	firmware := vm.Spec.Template.Spec.Domain.Firmware
	if firmware == nil {
		firmware = &kubevirt.Firmware{}
		vm.Spec.Template.Spec.Domain.Firmware = firmware
	}

	if firmware.UUID == "" {
		firmware.UUID = LegacyUUID(vm.Name)
	}

	vm, err := c.vms.Update(ctx, vm)
	if err != nil {
		return ignoreNotFound(err)
	}

	c.vms.Put(vm)
	c.machines.Add(kube.Key(vm))

	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}

	return err
}

// act does what brings a machine nearer to what it should be.
func (c *Controller) act(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	if vm.DeletionTimestamp != nil {
		return c.dismiss(ctx, vm, vmi)
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return &problem{failedCreate, fmt.Errorf("Error fetching RunStrategy: %w", err)} //nolint:staticcheck // As KubeVirt words it.
	}

	if err := c.keepTypes(ctx, vm); err != nil {
		return err
	}

	if vm.Annotations[kubevirt.ImmediateDataVolumeCreation] != "false" {
		ready, err := c.ensureVolumes(ctx, vm)
		if err != nil {
			return &problem{failedCreate, fmt.Errorf("Error encountered while creating DataVolumes: %w", err)} //nolint:staticcheck // As KubeVirt words it.
		}

		if !ready && strategy != kubevirt.RunStrategyHalted {
			return nil
		}
	}

	return c.follow(ctx, vm, vmi, strategy)
}

// dismiss stops a machine that is deleted, and lets it go when it is off.
func (c *Controller) dismiss(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	orphan := slices.Contains(vm.Finalizers, metav1.FinalizerOrphanDependents)
	lingers := vmi != nil && vmi.DeletionTimestamp != nil && c.fault(kube.Key(vm)).Linger > 0

	if vmi != nil && !orphan && !lingers {
		if err := c.stop(ctx, vm, vmi); err != nil {
			return &problem{failedDelete, fmt.Errorf("Failure attempting to delete VMI: %w", err)} //nolint:staticcheck // As KubeVirt words it.
		}

		return nil
	}

	if !slices.Contains(vm.Finalizers, machineFinalizer) {
		return nil
	}

	vm.Finalizers = slices.DeleteFunc(vm.Finalizers, func(f string) bool { return f == machineFinalizer })

	updated, err := c.vms.Update(ctx, vm)
	if err == nil && len(updated.Finalizers) > 0 {
		c.vms.Put(updated)
	}

	return ignoreNotFound(err)
}

// ensureVolumes makes the DataVolumes of a machine's templates and says whether all are ready.
func (c *Controller) ensureVolumes(ctx context.Context, vm *kubevirt.VirtualMachine) (ready bool, err error) {
	ready = true

	for _, template := range vm.Spec.DataVolumeTemplates {
		dv := c.dvs.Get(vm.Namespace, template.Name)
		if dv == nil {
			if pvc := c.claims.Get(vm.Namespace, template.Name); pvc != nil && collected(pvc) {
				continue // CDI has collected the finished DataVolume.
			}

			ready = false

			if err := c.makeVolume(ctx, vm, template); err != nil {
				return false, err
			}

			continue
		}

		switch dv.Status.Phase {
		case cdi.Succeeded, cdi.WaitForFirstConsumer, cdi.PendingPopulation:
			continue
		case cdi.Pending:
			if bound := dvCondition(dv, cdi.DataVolumeBound); bound != nil && bound.Status != corev1.ConditionTrue && bound.Reason == "ErrExceededQuota" {
				return false, fmt.Errorf("DataVolume %s importer is not running due to an error: %v", dv.Name, bound.Message)
			}
		}

		ready = false
	}

	return ready, nil
}

// populated is CDI's annotation on a claim that says which volume it was made for.
const populated = "cdi.kubevirt.io/storage.populatedFor"

func collected(pvc *corev1.PersistentVolumeClaim) bool { return pvc.Annotations[populated] == pvc.Name }

func (c *Controller) makeVolume(ctx context.Context, vm *kubevirt.VirtualMachine, template kubevirt.DataVolumeTemplateSpec) error {
	dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{
		Name: template.Name, Namespace: vm.Namespace,
		Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirt.VirtualMachineGroupVersionKind)},
	}, Spec: *template.Spec.DeepCopy()}

	if dv.Labels == nil {
		dv.Labels = map[string]string{}
	}

	if dv.Annotations == nil {
		dv.Annotations = map[string]string{}
	}

	dv.Labels[kubevirt.CreatedByLabel] = string(vm.UID)
	dv.Annotations["cdi.kubevirt.io/allowClaimAdoption"] = "true"

	if class := vm.Spec.Template.Spec.PriorityClassName; class != "" && dv.Spec.PriorityClassName == "" {
		dv.Spec.PriorityClassName = class
	}

	if pvc := dv.Spec.Source; pvc != nil && pvc.PVC != nil && pvc.PVC.Namespace == "" {
		pvc.PVC.Namespace = vm.Namespace
	}

	made, err := c.dvs.Create(ctx, dv)
	if apierrors.IsAlreadyExists(err) && c.dvs.Get(vm.Namespace, dv.Name) == nil {
		return nil // Its event has not come yet.
	}

	if err != nil {
		c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeWarning, "FailedDataVolumeCreate",
			fmt.Sprintf("Error creating DataVolume %s: %v", dv.Name, err))

		return fmt.Errorf("failed to create DataVolume: %w", err)
	}

	c.dvs.Put(made)
	c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeNormal, "SuccessfulDataVolumeCreate", "Created DataVolume "+dv.Name)

	return nil
}

func dvCondition(dv *cdi.DataVolume, t cdi.DataVolumeConditionType) *cdi.DataVolumeCondition {
	for i := range dv.Status.Conditions {
		if dv.Status.Conditions[i].Type == t {
			return &dv.Status.Conditions[i]
		}
	}

	return nil
}

// start makes the instance of a machine.
func (c *Controller) start(ctx context.Context, vm *kubevirt.VirtualMachine) error {
	if ready, err := c.ensureVolumes(ctx, vm); err != nil || !ready {
		return err
	}

	vmi, err := c.instance(ctx, vm)
	if err != nil {
		c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeWarning, failedCreate,
			fmt.Sprintf("Error creating virtual machine instance: Failed to apply instancetype: %v", err))

		return err
	}

	made, err := c.vmis.Create(ctx, vmi)
	if err != nil {
		c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeWarning, failedCreate,
			fmt.Sprintf("Error creating virtual machine instance: %v", err))

		return err
	}

	c.vmis.Put(made)
	c.instances.Add(kube.Key(made))
	c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeNormal, "SuccessfulCreate",
		"Started the virtual machine by creating the new virtual machine instance "+vm.Name)

	return nil
}

// instance returns the instance that a machine is started as.
func (c *Controller) instance(ctx context.Context, vm *kubevirt.VirtualMachine) (*kubevirt.VirtualMachineInstance, error) {
	vmi := &kubevirt.VirtualMachineInstance{
		ObjectMeta: *vm.Spec.Template.ObjectMeta.DeepCopy(), Spec: *vm.Spec.Template.Spec.DeepCopy(),
	}
	vmi.Name, vmi.GenerateName, vmi.Namespace = vm.Name, "", vm.Namespace
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirt.VirtualMachineGroupVersionKind)}
	vmi.Finalizers = append(vmi.Finalizers, machineFinalizer)

	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}

	vmi.Annotations[kubevirt.VirtualMachineGenerationAnnotation] = fmt.Sprint(vm.Generation)

	if requests := vm.Status.StateChangeRequests; len(requests) > 0 && requests[0].Action == kubevirt.StartRequest &&
		requests[0].Data[kubevirt.StartRequestDataPausedKey] == kubevirt.StartRequestDataPausedTrue {
		vmi.Spec.StartStrategy = new(kubevirt.StartStrategyPaused)
	}

	if err := c.types.expand(ctx, vm, vmi); err != nil {
		return nil, err
	}

	setNetwork(&vmi.Spec)
	setDisks(&vmi.Spec)

	return vmi, nil
}

// stop deletes the instance of a machine.
func (c *Controller) stop(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	if vmi == nil || vmi.DeletionTimestamp != nil {
		return nil
	}

	if err := c.vmis.Delete(ctx, vmi, metav1.DeletePropagationBackground); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}

		c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeWarning, failedDelete,
			fmt.Sprintf("Error deleting virtual machine instance %s: %v", vmi.Name, err))

		return err
	}

	c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeNormal, "SuccessfulDelete",
		fmt.Sprintf("Stopped the virtual machine by deleting the virtual machine instance %v", vmi.UID))

	return nil
}

// patchStatus changes the status of a machine by a JSON patch.
func (c *Controller) patchStatus(ctx context.Context, vm *kubevirt.VirtualMachine, operations ...any) error {
	patch, err := json.Marshal(operations)
	if err != nil {
		return err
	}

	updated, err := c.vms.Patch(ctx, vm.Namespace, vm.Name, types.JSONPatchType, patch, "status")
	if err == nil {
		c.vms.Put(updated)
	}

	return err
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// report writes the status of a machine.
func (c *Controller) report(ctx context.Context, stored *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance, trouble *problem) error {
	// What acted may have changed the machine; the status is that of what is there now.
	now := c.vms.Get(stored.Namespace, stored.Name)
	if now == nil || now.UID != stored.UID {
		return nil
	}

	vm := now.DeepCopy()
	c.describe(vm, vmi, trouble)

	if !equality.Semantic.DeepEqual(vm.Status, now.Status) {
		updated, err := c.vms.Update(ctx, vm, "status")
		if err != nil {
			return ignoreNotFound(err)
		}

		c.vms.Put(updated)

		if len(now.Status.StateChangeRequests) != len(vm.Status.StateChangeRequests) {
			c.machines.Add(kube.Key(vm))
		}
	}

	if vmi != nil && vmi.IsFinal() && slices.Contains(vmi.Finalizers, machineFinalizer) {
		return c.releaseInstance(ctx, vmi)
	}

	return nil
}

// releaseInstance takes the machine's finalizer from an instance whose end it has seen.
func (c *Controller) releaseInstance(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	vmi = vmi.DeepCopy()
	vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool { return f == machineFinalizer })

	updated, err := c.vmis.Update(ctx, vmi)
	if err == nil && (len(updated.Finalizers) > 0 || updated.DeletionTimestamp == nil) {
		c.vmis.Put(updated)
	}

	return ignoreNotFound(err)
}
