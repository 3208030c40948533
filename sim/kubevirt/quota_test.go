package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// A quota that counts limits refuses a launcher without them, unless KubeVirt sets them by itself.
func TestQuotaThatCountsLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		hard   corev1.ResourceList
		none   bool
		limits corev1.ResourceList
		want   string // what the machine's condition ends with; empty for a machine that runs
	}{
		"set by KubeVirt": {hard: corev1.ResourceList{"limits.cpu": resource.MustParse("2"), "limits.memory": resource.MustParse("5Gi")}},
		"set by KubeVirt, too large": {
			hard: corev1.ResourceList{"limits.cpu": resource.MustParse("1"), "limits.memory": resource.MustParse("4Gi")},
			want: "is forbidden: exceeded quota: quota, requested: limits.cpu=2,limits.memory=4576Mi, used: limits.cpu=0,limits.memory=0, " +
				"limited: limits.cpu=1,limits.memory=4Gi",
		},
		"not set by KubeVirt": {
			hard: corev1.ResourceList{"limits.cpu": resource.MustParse("9"), "limits.memory": resource.MustParse("9Gi")}, none: true,
			want: "is forbidden: failed quota: quota: must specify limits.cpu for: compute; limits.memory for: compute",
		},
		"set by the machine": {
			hard: corev1.ResourceList{"limits.cpu": resource.MustParse("9"), "limits.memory": resource.MustParse("9Gi")}, none: true,
			limits: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("3Gi")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Virt.NoAutoLimits = tt.none
				w := start(t, opts)

				_, err := w.core.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
					ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: tt.hard},
				}, metav1.CreateOptions{})
				require.NoError(t, err)

				vm := diskless("a", kubevirtv1.RunStrategyAlways)
				vm.Spec.Template.Spec.Domain.Resources.Limits = tt.limits
				w.create(vm)
				after(time.Minute)

				if tt.want == "" {
					require.Equal(t, "Running", w.status("a"))

					return
				}

				var said string

				for _, c := range w.machine("a").Status.Conditions {
					if c.Type == kubevirtv1.VirtualMachineConditionType(kubevirtv1.VirtualMachineInstanceSynchronized) {
						said = c.Message
					}
				}

				require.Contains(t, said, tt.want)
				require.NotEqual(t, "Running", w.status("a"))
			})
		})
	}
}
