package virt

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirt "kubevirt.io/api/core/v1"
)

// setCondition enters a condition of a machine, if it says anything new.
func setCondition(vm *kubevirt.VirtualMachine, c kubevirt.VirtualMachineCondition) {
	i := slices.IndexFunc(vm.Status.Conditions, func(old kubevirt.VirtualMachineCondition) bool { return old.Type == c.Type })

	switch {
	case i < 0:
		vm.Status.Conditions = append(vm.Status.Conditions, c)
	case vm.Status.Conditions[i].Status != c.Status, vm.Status.Conditions[i].Reason != c.Reason, vm.Status.Conditions[i].Message != c.Message:
		vm.Status.Conditions[i] = c
	}
}

func dropCondition(vm *kubevirt.VirtualMachine, t kubevirt.VirtualMachineConditionType) {
	vm.Status.Conditions = slices.DeleteFunc(vm.Status.Conditions, func(c kubevirt.VirtualMachineCondition) bool { return c.Type == t })
}

// condition returns a condition of an instance, nil if it has none or there is no instance.
func condition(vmi *kubevirt.VirtualMachineInstance, t kubevirt.VirtualMachineInstanceConditionType) *kubevirt.VirtualMachineInstanceCondition {
	if vmi == nil {
		return nil
	}

	for i := range vmi.Status.Conditions {
		if vmi.Status.Conditions[i].Type == t {
			return &vmi.Status.Conditions[i]
		}
	}

	return nil
}

func holds(vmi *kubevirt.VirtualMachineInstance, t kubevirt.VirtualMachineInstanceConditionType) bool {
	c := condition(vmi, t)

	return c != nil && c.Status == corev1.ConditionTrue
}

// set enters a condition of an instance, if it says anything new.
func set(vmi *kubevirt.VirtualMachineInstance, t kubevirt.VirtualMachineInstanceConditionType, s corev1.ConditionStatus, reason, message string) {
	old := condition(vmi, t)
	if old != nil && old.Status == s && old.Reason == reason && old.Message == message {
		return
	}

	now := metav1.NewTime(time.Now())
	c := kubevirt.VirtualMachineInstanceCondition{
		Type: t, Status: s, Reason: reason, Message: message, LastProbeTime: now, LastTransitionTime: now,
	}

	if old != nil {
		*old = c
	} else {
		vmi.Status.Conditions = append(vmi.Status.Conditions, c)
	}
}

func drop(vmi *kubevirt.VirtualMachineInstance, t kubevirt.VirtualMachineInstanceConditionType) {
	vmi.Status.Conditions = slices.DeleteFunc(vmi.Status.Conditions, func(c kubevirt.VirtualMachineInstanceCondition) bool { return c.Type == t })
}

// enter takes an instance into a phase, with the time.
func enter(vmi *kubevirt.VirtualMachineInstance, phase kubevirt.VirtualMachineInstancePhase) {
	if vmi.Status.Phase == phase {
		return
	}

	vmi.Status.Phase = phase
	vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps, kubevirt.VirtualMachineInstancePhaseTransitionTimestamp{
		Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(time.Now()),
	})
}

// entered returns when an instance came into its phase.
func entered(vmi *kubevirt.VirtualMachineInstance) time.Time {
	for _, t := range slices.Backward(vmi.Status.PhaseTransitionTimestamps) {
		if t.Phase == vmi.Status.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}

	return vmi.CreationTimestamp.Time
}
