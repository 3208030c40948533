package virt

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
	kubevirt "kubevirt.io/api/core/v1"
)

// unfit says why an instance cannot run on a node, in the words and the order of the scheduler's plugins: only the last of them, for room,
// has several reasons. It is final if no other instance has to leave for it to fit. Affinity to other pods and spreading are not modelled.
func (c *Controller) unfit(vmi *kubevirt.VirtualMachineInstance, n Node) (reasons []string, final bool) {
	if _, down := c.nodeDown(n.Name); down || !tolerates(vmi, n.Taints) {
		return []string{"node(s) had untolerated taint(s)"}, true
	}

	if !selects(vmi, n) {
		return []string{"node(s) didn't match Pod's node affinity/selector"}, true
	}

	cpu, memory := requests(vmi)
	usedCPU, usedMemory := c.used(n.Name, vmi.UID)
	usedCPU.Add(cpu)
	usedMemory.Add(memory)

	if !n.CPU.IsZero() && usedCPU.Cmp(n.CPU) > 0 {
		reasons = append(reasons, "Insufficient cpu")
	}

	if !n.Memory.IsZero() && usedMemory.Cmp(n.Memory) > 0 {
		reasons = append(reasons, "Insufficient memory")
	}

	has := devices(vmi)

	for _, name := range slices.Sorted(maps.Keys(has)) {
		want := has[name]

		if want > n.Devices[name] {
			final = true // Nobody's leaving would help.
		}

		for _, other := range c.vmis.List() {
			if other.Status.NodeName == n.Name && other.UID != vmi.UID && !other.IsFinal() {
				want += devices(other)[name]
			}
		}

		if want > n.Devices[name] {
			reasons = append(reasons, "Insufficient "+name)
		}
	}

	return reasons, final
}

// devices are those that a launcher asks its node for.
func devices(vmi *kubevirt.VirtualMachineInstance) map[string]int {
	all := map[string]int{}

	for _, d := range vmi.Spec.Domain.Devices.GPUs {
		all[d.DeviceName]++
	}

	for _, d := range vmi.Spec.Domain.Devices.HostDevices {
		all[d.DeviceName]++
	}

	return all
}

func tolerates(vmi *kubevirt.VirtualMachineInstance, taints []corev1.Taint) bool {
	for _, taint := range taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}

		if !slices.ContainsFunc(vmi.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) }) {
			return false
		}
	}

	return true
}

// selects says whether an instance may run on a node by its node selector, its affinity and its architecture. A node without labels of its
// architecture takes all of them.
func selects(vmi *kubevirt.VirtualMachineInstance, n Node) bool {
	has := labels.Set{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}
	maps.Copy(has, n.Labels)

	if arch := has[corev1.LabelArchStable]; arch != "" && vmi.Spec.Architecture != "" && vmi.Spec.Architecture != arch {
		return false
	}

	if !labels.SelectorFromSet(vmi.Spec.NodeSelector).Matches(has) {
		return false
	}

	a := vmi.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}

	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms

	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 && meets(t.MatchExpressions, has) &&
			meets(t.MatchFields, labels.Set{"metadata.name": n.Name})
	})
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

func meets(requirements []corev1.NodeSelectorRequirement, has labels.Set) bool {
	return !slices.ContainsFunc(requirements, func(r corev1.NodeSelectorRequirement) bool {
		parsed, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)

		return err != nil || !parsed.Matches(has)
	})
}

// unschedulable is the scheduler's message for an instance that no node takes; hopeless is how many nodes would not if they were empty.
func unschedulable(nodes, hopeless int, lacks map[string]int) string {
	var reasons, preemption []string
	for reason, nodes := range lacks {
		reasons = append(reasons, fmt.Sprintf("%d %s", nodes, reason))
	}

	slices.Sort(reasons)

	if left := nodes - hopeless; left > 0 {
		preemption = append(preemption, fmt.Sprintf("%d No preemption victims found for incoming pod", left))
	}

	if hopeless > 0 {
		preemption = append(preemption, fmt.Sprintf("%d Preemption is not helpful for scheduling", hopeless))
	}

	return fmt.Sprintf("0/%d nodes are available: %s. preemption: 0/%d nodes are available: %s.",
		nodes, strings.Join(reasons, ", "), nodes, strings.Join(preemption, ", "))
}
