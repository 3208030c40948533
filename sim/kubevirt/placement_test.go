package kubevirt_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// zone requires one of these zones.
func zone(operator corev1.NodeSelectorOperator, values ...string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: operator, Values: values}},
		}},
	}}}
}

func TestMachinesRunWhereTheyMay(t *testing.T) {
	nodes := []virt.Node{
		{Name: "plain", Labels: map[string]string{"zone": "a"}},
		{Name: "tainted", Labels: map[string]string{"zone": "b"}, Taints: []corev1.Taint{{Key: "dedicated", Value: "talos", Effect: corev1.TaintEffectNoSchedule}}},
		{Name: "devices", Labels: map[string]string{"zone": "c", corev1.LabelArchStable: "amd64"}, Devices: map[string]int{"example.org/gpu": 1}},
	}
	gpus := func(n int) (all []kubevirtv1.GPU) {
		for i := range n {
			all = append(all, kubevirtv1.GPU{Name: string(rune('a' + i)), DeviceName: "example.org/gpu"})
		}

		return all
	}
	tolerates := []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "talos"}}

	for name, tt := range map[string]struct {
		change func(*kubevirtv1.VirtualMachineInstanceSpec)
		node   string
		said   string
	}{
		"anywhere": {func(*kubevirtv1.VirtualMachineInstanceSpec) {}, "plain", ""},
		"by name": {func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.NodeSelector = map[string]string{corev1.LabelHostname: "devices"}
		}, "devices", ""},
		"by affinity": {func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Affinity = zone(corev1.NodeSelectorOpNotIn, "a", "b")
		}, "devices", ""},
		"with a toleration": {func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Tolerations, s.NodeSelector = tolerates, map[string]string{"zone": "b"}
		}, "tainted", ""},
		"with a device": {func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.GPUs = gpus(1) }, "devices", ""},
		"without a toleration": {func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.NodeSelector = map[string]string{"zone": "b"} }, "",
			"0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector. " +
				"preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."},
		"nowhere": {func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Tolerations, s.Affinity = tolerates, zone(corev1.NodeSelectorOpIn, "d")
		}, "",
			"0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. " +
				"preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."},
		"with too many devices": {func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Tolerations, s.Domain.Devices.GPUs = tolerates, gpus(2)
		}, "",
			"0/3 nodes are available: 3 Insufficient example.org/gpu. " +
				"preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Virt.Nodes = nodes

				w := start(t, opts)
				vm := diskless("a", kubevirtv1.RunStrategyAlways)
				tt.change(&vm.Spec.Template.Spec)
				w.create(vm)
				after(time.Minute)

				require.Equal(t, tt.node, w.instance("a").Status.NodeName)

				if tt.said == "" {
					require.Equal(t, "Running", w.status("a"))

					return
				}

				require.Equal(t, "ErrorUnschedulable", w.status("a"))

				said := ""

				for _, c := range w.machine("a").Status.Conditions {
					if c.Type == kubevirtv1.VirtualMachineConditionType(corev1.PodScheduled) {
						said = c.Message
					}
				}

				require.Equal(t, tt.said, said)
			})
		})
	}
}

// A device that a machine has is free again when the machine has gone.
func TestDeviceInUseIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Virt.Nodes = []virt.Node{{Name: "devices", Devices: map[string]int{"example.org/gpu": 1}}}

		w := start(t, opts)

		for _, name := range []string{"a", "b"} {
			vm := diskless(name, kubevirtv1.RunStrategyAlways)
			vm.Spec.Template.Spec.Domain.Devices.GPUs = []kubevirtv1.GPU{{Name: "gpu", DeviceName: "example.org/gpu"}}
			w.create(vm)
			after(time.Minute)
		}

		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, "ErrorUnschedulable", w.status("b"))

		code, message := w.call("virtualmachines", "a", "stop", "")
		require.Equal(t, 202, code, message)
		after(2 * time.Minute)
		require.Equal(t, "Running", w.status("b"))
	})
}

// Its disk is not made before it has a node, so the scheduler's word is all that there is.
func TestMachineWhoseDiskWaitsForItSaysThatNoNodeFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "late", Default: true, WaitForFirstConsumer: true}}

		w := start(t, opts)
		vm := machine("a")
		vm.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "b"}
		w.create(vm)
		after(time.Minute)

		require.Equal(t, "ErrorUnschedulable", w.status("a"))
		require.Contains(t, fmt.Sprint(w.instance("a").Status.Conditions), "didn't match Pod's node affinity/selector")
	})
}
