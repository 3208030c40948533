package virt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirt "kubevirt.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// describe writes the status of a machine.
func (c *Controller) describe(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance, trouble *problem) {
	strategy, _ := vm.RunStrategy()
	status := &vm.Status

	status.Created = vmi != nil
	status.Ready = holds(vmi, kubevirt.VirtualMachineInstanceReady)

	if status.RunStrategy != "" || status.Created {
		status.RunStrategy = strategy
	}

	if vmi != nil {
		status.DesiredGeneration, status.ObservedGeneration = vm.Generation, vm.Generation
	}

	if answered(vm, vmi) {
		status.StateChangeRequests = status.StateChangeRequests[1:]

		if len(status.StateChangeRequests) == 0 {
			status.StateChangeRequests = nil
		}
	}

	countFailure(vm, vmi)
	copyConditions(vm, vmi, trouble)

	status.PrintableStatus = c.printable(vm, vmi)
}

// answered says whether the first of the requests for a change has been met.
func answered(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) bool {
	if len(vm.Status.StateChangeRequests) == 0 {
		return false
	}

	switch request := vm.Status.StateChangeRequests[0]; request.Action {
	case kubevirt.StopRequest:
		return vmi == nil || request.UID == nil || *request.UID != vmi.UID
	case kubevirt.StartRequest:
		return vmi != nil && vmi.DeletionTimestamp == nil && !vmi.IsFinal()
	default:
		return false
	}
}

// copyConditions gives a machine the conditions of its instance, and its own.
func copyConditions(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance, trouble *problem) {
	now := metav1.NewTime(time.Now())
	ready := kubevirt.VirtualMachineCondition{
		Type: kubevirt.VirtualMachineReady, Status: corev1.ConditionFalse, Reason: "VMINotExists", Message: "VMI does not exist",
		LastProbeTime: now, LastTransitionTime: now,
	}

	if vmi != nil {
		ready.Reason, ready.Message = "VMIConditionMissing", "VMI is missing the Ready condition"
	}

	if of := condition(vmi, kubevirt.VirtualMachineInstanceReady); of != nil {
		ready = machineCondition(of)
	}

	setCondition(vm, ready)

	if trouble == nil {
		dropCondition(vm, kubevirt.VirtualMachineFailure)
	} else {
		setCondition(vm, kubevirt.VirtualMachineCondition{
			Type: kubevirt.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: trouble.reason, Message: trouble.Error(),
			LastTransitionTime: now,
		})
	}

	if vmi == nil {
		return
	}

	for _, old := range vm.DeepCopy().Status.Conditions {
		if !own(old.Type) && condition(vmi, kubevirt.VirtualMachineInstanceConditionType(old.Type)) == nil {
			dropCondition(vm, old.Type)
		}
	}

	for i := range vmi.Status.Conditions {
		if of := machineCondition(&vmi.Status.Conditions[i]); !own(of.Type) {
			setCondition(vm, of)
		}
	}
}

func machineCondition(c *kubevirt.VirtualMachineInstanceCondition) kubevirt.VirtualMachineCondition {
	return kubevirt.VirtualMachineCondition{
		Type: kubevirt.VirtualMachineConditionType(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
		LastProbeTime: c.LastProbeTime, LastTransitionTime: c.LastTransitionTime,
	}
}

// own says whether a condition is the machine's own, not one that its instance passes on.
func own(t kubevirt.VirtualMachineConditionType) bool {
	return t == kubevirt.VirtualMachineReady || t == kubevirt.VirtualMachineFailure || t == kubevirt.VirtualMachineRestartRequired
}

// printable is the status in one word. Several may hold; the first counts, in KubeVirt's order.
func (c *Controller) printable(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) kubevirt.VirtualMachinePrintableStatus {
	synced := condition(vmi, kubevirt.VirtualMachineInstanceSynchronized)
	unsynced := func(reason string) bool {
		return synced != nil && synced.Status == corev1.ConditionFalse && synced.Reason == reason
	}
	scheduled := condition(vmi, kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled))
	paused := holds(vmi, kubevirt.VirtualMachineInstancePaused)

	switch {
	case vm.DeletionTimestamp != nil:
		return kubevirt.VirtualMachineStatusTerminating
	case vmi != nil && !vmi.IsFinal() && vmi.DeletionTimestamp != nil:
		return kubevirt.VirtualMachineStatusStopping
	case migrating(vmi):
		return kubevirt.VirtualMachineStatusMigrating
	case vmi != nil && vmi.IsRunning() && paused:
		return kubevirt.VirtualMachineStatusPaused
	case vmi != nil && vmi.IsRunning():
		return kubevirt.VirtualMachineStatusRunning
	case unsynced(failedClaimNotFound):
		return kubevirt.VirtualMachineStatusPvcNotFound
	case c.volumeError(vm):
		return kubevirt.VirtualMachineStatusDataVolumeError
	case scheduled != nil && scheduled.Status == corev1.ConditionFalse && scheduled.Reason == corev1.PodReasonUnschedulable:
		return kubevirt.VirtualMachineStatusUnschedulable
	case c.provisioning(vm):
		return kubevirt.VirtualMachineStatusProvisioning
	case wanted(vm, vmi) && c.unbound(vm):
		return kubevirt.VirtualMachineStatusWaitingForVolumeBinding
	case unsynced(errImagePull):
		return kubevirt.VirtualMachineStatusErrImagePull
	case unsynced(imagePullBackOff):
		return kubevirt.VirtualMachineStatusImagePullBackOff
	case vmi != nil && (vmi.IsUnprocessed() || vmi.IsScheduling() || vmi.IsScheduled()):
		return kubevirt.VirtualMachineStatusStarting
	case (vmi == nil || vmi.IsFinal()) && vm.Status.StartFailure != nil && vm.Status.StartFailure.ConsecutiveFailCount > 0:
		return kubevirt.VirtualMachineStatusCrashLoopBackOff
	case vmi == nil || vmi.IsFinal():
		return kubevirt.VirtualMachineStatusStopped
	default:
		return kubevirt.VirtualMachineStatusUnknown
	}
}

func migrating(vmi *kubevirt.VirtualMachineInstance) bool {
	if vmi == nil || vmi.Status.MigrationState == nil {
		return false
	}

	m := vmi.Status.MigrationState

	return m.StartTimestamp != nil && m.EndTimestamp == nil
}

// wanted says whether the strategy of a machine has it run.
func wanted(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) bool {
	strategy, err := vm.RunStrategy()
	if err != nil {
		return false
	}

	switch strategy {
	case kubevirt.RunStrategyAlways:
		return true
	case kubevirt.RunStrategyManual:
		return vmi != nil && !toStop(vm, vmi) || vmi == nil && toStart(vm)
	case kubevirt.RunStrategyRerunOnFailure:
		return vmi == nil || vmi.Status.Phase != kubevirt.Succeeded
	case kubevirt.RunStrategyOnce:
		return vmi == nil
	default:
		return false
	}
}

// volumeError says whether a DataVolume of a machine has failed, or its importer stands still with an error.
func (c *Controller) volumeError(vm *kubevirt.VirtualMachine) bool {
	for _, dv := range c.volumesOf(vm) {
		running := dvCondition(dv, cdi.DataVolumeRunning)

		if dv.Status.Phase == cdi.Failed || running != nil && running.Status == corev1.ConditionFalse &&
			(running.Reason == "Error" || running.Reason == "ImagePullFailed") {
			return true
		}
	}

	return false
}

func (c *Controller) provisioning(vm *kubevirt.VirtualMachine) bool {
	for _, dv := range c.volumesOf(vm) {
		if dv.Status.Phase == cdi.Succeeded || dv.Status.Phase == cdi.PendingPopulation {
			continue
		}

		bound := dvCondition(dv, cdi.DataVolumeBound)
		if bound != nil && bound.Status == corev1.ConditionTrue || dv.Status.Phase != cdi.WaitForFirstConsumer {
			return true
		}
	}

	return false
}

// volumesOf returns the DataVolumes that a machine's volumes name, as far as they exist.
func (c *Controller) volumesOf(vm *kubevirt.VirtualMachine) []*cdi.DataVolume {
	var all []*cdi.DataVolume

	for _, v := range vm.Spec.Template.Spec.Volumes {
		if v.DataVolume == nil {
			continue
		}

		if dv := c.dvs.Get(vm.Namespace, v.DataVolume.Name); dv != nil {
			all = append(all, dv)
		}
	}

	return all
}

func (c *Controller) unbound(vm *kubevirt.VirtualMachine) bool {
	for _, v := range vm.Spec.Template.Spec.Volumes {
		if pvc := c.claims.Get(vm.Namespace, claimOf(v)); pvc != nil && pvc.Status.Phase != corev1.ClaimBound {
			return true
		}
	}

	return false
}
