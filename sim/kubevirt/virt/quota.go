package virt

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirt "kubevirt.io/api/core/v1"
)

// admitLauncher holds the launcher's pod against the quotas of its namespace, as the API server does.
func (c *Controller) admitLauncher(vmi *kubevirt.VirtualMachineInstance) error {
	wants := c.wants(vmi)

	for _, q := range c.quotas.List() {
		if q.Namespace != vmi.Namespace {
			continue
		}

		var missing, requested, used, limited []string

		for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
			want, ok := wants[name]

			switch {
			case !ok && (name == corev1.ResourceLimitsCPU || name == corev1.ResourceLimitsMemory):
				missing = append(missing, fmt.Sprintf("%s for: compute", name))

				continue
			case !ok:
				continue
			}

			hard, have := q.Spec.Hard[name], c.spent(vmi, name)

			after := have.DeepCopy()
			if after.Add(want); after.Cmp(hard) <= 0 {
				continue
			}

			requested = append(requested, fmt.Sprintf("%s=%s", name, want.String()))
			used = append(used, fmt.Sprintf("%s=%s", name, have.String()))
			limited = append(limited, fmt.Sprintf("%s=%s", name, hard.String()))
		}

		pod := fmt.Sprintf("virt-launcher-%s-%s", vmi.Name, vmi.UID[:min(5, len(vmi.UID))])

		switch {
		case len(missing) > 0:
			return fmt.Errorf("pods %q is forbidden: failed quota: %s: must specify %s", pod, q.Name, strings.Join(missing, "; "))
		case len(requested) > 0:
			return fmt.Errorf("pods %q is forbidden: exceeded quota: %s, requested: %s, used: %s, limited: %s",
				pod, q.Name, strings.Join(requested, ","), strings.Join(used, ","), strings.Join(limited, ","))
		}
	}

	return nil
}

// wants are the resources of a launcher that quotas count.
func (c *Controller) wants(vmi *kubevirt.VirtualMachineInstance) map[corev1.ResourceName]resource.Quantity {
	cpu, memory := requests(vmi)
	one := resource.MustParse("1")

	wants := map[corev1.ResourceName]resource.Quantity{
		corev1.ResourceRequestsCPU: cpu, corev1.ResourceCPU: cpu, corev1.ResourceRequestsMemory: memory, corev1.ResourceMemory: memory,
		corev1.ResourcePods: one, "count/pods": one,
	}

	if limit, ok := vmi.Spec.Domain.Resources.Limits[corev1.ResourceCPU]; ok {
		wants[corev1.ResourceLimitsCPU] = limit
	} else if c.setsLimit(vmi.Namespace, corev1.ResourceLimitsCPU) {
		wants[corev1.ResourceLimitsCPU] = *resource.NewQuantity(processors(vmi.Spec.Domain.CPU), resource.DecimalSI)
	}

	if limit, ok := vmi.Spec.Domain.Resources.Limits[corev1.ResourceMemory]; ok {
		limit = limit.DeepCopy()
		limit.Add(*resource.NewQuantity(launcherMemory, resource.BinarySI))
		wants[corev1.ResourceLimitsMemory] = limit
	} else if c.setsLimit(vmi.Namespace, corev1.ResourceLimitsMemory) {
		wants[corev1.ResourceLimitsMemory] = *resource.NewQuantity(memory.Value()*limitRatio, resource.BinarySI)
	}

	return wants
}

// limitRatio is how many times the memory that it requests a launcher is limited to when nobody says it.
const limitRatio = 2

// setsLimit says whether KubeVirt limits the launchers of a namespace by itself: where a quota counts that limit.
func (c *Controller) setsLimit(namespace string, name corev1.ResourceName) bool {
	return !c.opts.NoAutoLimits && slices.ContainsFunc(c.quotas.List(), func(q *corev1.ResourceQuota) bool {
		_, counted := q.Spec.Hard[name]

		return counted && q.Namespace == namespace
	})
}

// spent sums up a resource of the launchers in an instance's namespace.
func (c *Controller) spent(vmi *kubevirt.VirtualMachineInstance, name corev1.ResourceName) (sum resource.Quantity) {
	for _, other := range c.vmis.List() {
		if other.Namespace != vmi.Namespace || other.UID == vmi.UID || other.IsFinal() || other.IsUnprocessed() {
			continue
		}

		sum.Add(c.wants(other)[name])
	}

	return sum
}
