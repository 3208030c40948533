package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// onPods is a machine with one interface on the network of pods.
func onPods(nic kubevirtv1.Interface) *kubevirtv1.VirtualMachine {
	vm := diskless("a", kubevirtv1.RunStrategyAlways)
	nic.Name = "default"
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{nic}
	vm.Spec.Template.Spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}

	return vm
}

func TestConfigurationOfKubeVirtRulesOutInItsWords(t *testing.T) {
	bridge := onPods(kubevirtv1.Interface{InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}})
	passt := onPods(kubevirtv1.Interface{InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{PasstBinding: &kubevirtv1.InterfacePasstBinding{}}})
	devices := diskless("a", kubevirtv1.RunStrategyAlways)
	devices.Spec.Template.Spec.Domain.Devices.HostDevices = []kubevirtv1.HostDevice{{Name: "nic", DeviceName: "example.org/nic"}}

	for name, tt := range map[string]struct {
		vm            *kubevirtv1.VirtualMachine
		refuses, open virt.Configuration
		want          string
	}{
		"a bridge on pods": {bridge, virt.Configuration{NoPodBridge: true}, virt.Configuration{},
			"Bridge on pod network configuration is not enabled under kubevirt-config"},
		"passt in the core": {passt, virt.Configuration{}, virt.Configuration{PasstBinding: true}, "PasstBinding feature gate is not enabled"},
		"host devices": {devices, virt.Configuration{}, virt.Configuration{HostDevices: true},
			"Host Devices feature gate is not enabled in kubevirt-config"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Virt.Configuration = tt.refuses
				_, err := start(t, opts).virt.KubevirtV1().VirtualMachines(ns).Create(t.Context(), tt.vm, metav1.CreateOptions{})
				require.ErrorContains(t, err, "denied the request: "+tt.want)

				opts.Virt.Configuration = tt.open
				_, err = start(t, opts).virt.KubevirtV1().VirtualMachines(ns).Create(t.Context(), tt.vm, metav1.CreateOptions{})
				require.NoError(t, err)
			})
		})
	}
}

// The webhook takes a machine whose binding plugin nobody has registered. It gets no launcher.
func TestBindingPluginThatIsNotRegisteredIsFoundWhenTheMachineStarts(t *testing.T) {
	for _, registered := range [][]string{nil, {"passt"}} {
		synctest.Test(t, func(t *testing.T) {
			opts := kubevirt.Options{}
			opts.Virt.Configuration.Bindings = registered

			w := start(t, opts)
			w.create(onPods(kubevirtv1.Interface{Binding: &kubevirtv1.PluginBinding{Name: "passt"}}))
			after(time.Minute)

			said := ""

			for _, c := range w.machine("a").Status.Conditions {
				if c.Type == kubevirtv1.VirtualMachineConditionType(kubevirtv1.VirtualMachineInstanceSynchronized) {
					said = c.Reason + ": " + c.Message
				}
			}

			if registered != nil {
				require.Equal(t, "Running", w.status("a"))
				require.Empty(t, said)
			} else {
				require.NotEqual(t, "Running", w.status("a"))
				require.Equal(t, "FailedCreate: failed to render launch manifest: "+
					"unable to find the network binding plugin 'passt' in Kubevirt configuration", said)
			}
		})
	}
}
