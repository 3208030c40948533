package machine

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// Machine is what the objects of one machine follow from.
type Machine struct {
	// Request and Data are what was asked for.
	Request driver.Request
	Data    ClassData
	// Version is that of the provider.
	Version string
	// Image is the volume that the system disk is a clone of; the zero value with SourceContainerDisk.
	Image ImageVolume
}

// Names are the names of the machine's objects.
func (m Machine) Names() Names { return NamesOf(m.Request.Ref) }

// Mark is the ownership mark of the machine's objects.
func (m Machine) Mark() Mark {
	return Mark{Ref: m.Request.Ref, Set: m.Request.Set, Version: m.Version}
}

// The keys of the machine's Secret, which KubeVirt looks for.
const (
	SecretUserData    = "userdata"
	SecretNetworkData = "networkdata"
)

// MaxUserData is the largest user data that fits into a Secret beside the rest, in bytes.
const MaxUserData = corev1.MaxSecretSize - 64<<10

// Secret is what the machine is told at its first boot. The VirtualMachine, which does not start without it, owns it, so that it goes
// with it; its mark tells whose it is when that is missing. owner is nil where there is none yet.
//
// KubeVirt adds the meta-data itself, with the instance's hostname, which Talos takes as its own when there is network data as well.
func (m Machine) Secret(userData string, owner *kubevirtv1.VirtualMachine) (*corev1.Secret, error) {
	if len(userData) > MaxUserData {
		return nil, driver.Terminalf("user data of %q has %d bytes: a Secret takes at most %d", m.Request.RequestID, len(userData), MaxUserData)
	}

	seed, err := nocloud.New(nocloud.Config{Hostname: HostnameOf(m.Request.Ref), UserData: userData})
	if err != nil {
		return nil, err
	}

	networkData, _ := seed.Document(nocloud.NetworkConfig)

	s := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Data.Namespace, Name: m.Names().Secret, Labels: m.Mark().Labels(), Annotations: m.Mark().Annotations(),
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{SecretUserData: []byte(userData), SecretNetworkData: networkData},
	}

	if owner != nil {
		s.OwnerReferences = []metav1.OwnerReference{OwnerOf(owner)}
	}

	return s, nil
}

// OwnerOf makes the VirtualMachine the owner of another object.
func OwnerOf(vm *kubevirtv1.VirtualMachine) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: kubevirtv1.VirtualMachineGroupVersionKind.GroupVersion().String(),
		Kind:       kubevirtv1.VirtualMachineGroupVersionKind.Kind,
		Name:       vm.Name, UID: vm.UID,
	}
}

// UUID is the machine's SMBIOS UUID.
func (m Machine) UUID() types.UID { return types.UID(m.Request.Identity.UUID) }

// ProviderID is what Kubernetes knows the machine's node by, as KubeVirt's cloud controller manager spells it.
func ProviderID(ref driver.Ref) string { return "kubevirt://" + NamesOf(ref).VM }

// Patches are the Talos configuration patches of one machine, by their short names: its provider id, and those of the class in
// their order.
func (c ClassData) Patches(ref driver.Ref) map[string]string {
	patches := map[string]string{
		"provider-id": fmt.Sprintf("machine:\n  kubelet:\n    extraArgs:\n      provider-id: %s\n", ProviderID(ref)),
	}

	for i, patch := range c.ConfigPatches {
		patches[fmt.Sprintf("class-%02d", i)] = patch
	}

	return patches
}
