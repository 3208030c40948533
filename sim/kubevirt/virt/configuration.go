package virt

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubevirt "kubevirt.io/api/core/v1"
)

// Configuration is what the KubeVirt resource of a cluster says. The zero value is KubeVirt's default.
type Configuration struct {
	// HostDevices and PasstBinding open the feature gates of those names.
	HostDevices, PasstBinding bool
	// NoPodBridge is permitBridgeInterfaceOnPodNetwork: false.
	NoPodBridge bool
	// Bindings are the network binding plugins that are registered.
	Bindings []string
}

// validate says what of an instance the configuration rules out. A binding plugin that is not registered is found only when the launcher
// is made: see launchable.
func (cfg Configuration) validate(at *field.Path, spec *kubevirt.VirtualMachineInstanceSpec) []metav1.StatusCause {
	var found causes

	for i, nic := range spec.Domain.Devices.Interfaces {
		name := at.Child("domain", "devices", "interfaces").Index(i).Child("name")

		if nic.PasstBinding != nil && !cfg.PasstBinding {
			found.add(name, "PasstBinding feature gate is not enabled")
		}

		onPods := slices.ContainsFunc(spec.Networks, func(n kubevirt.Network) bool { return n.Name == nic.Name && n.Pod != nil })
		if nic.Bridge != nil && onPods && cfg.NoPodBridge {
			found.add(name, "Bridge on pod network configuration is not enabled under kubevirt-config")
		}
	}

	if len(spec.Domain.Devices.HostDevices) > 0 && !cfg.HostDevices {
		found.add(at.Child("HostDevices"), "Host Devices feature gate is not enabled in kubevirt-config")
	}

	return found
}

// launchable says why no launcher can be made for an instance.
func (cfg Configuration) launchable(vmi *kubevirt.VirtualMachineInstance) error {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.Binding != nil && !slices.Contains(cfg.Bindings, nic.Binding.Name) {
			return fmt.Errorf("failed to render launch manifest: unable to find the network binding plugin '%s' in Kubevirt configuration", nic.Binding.Name)
		}
	}

	return nil
}
