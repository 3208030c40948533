package kubevirt_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
)

// withTPM gives a machine a TPM that remembers.
func withTPM(vm *kubevirtv1.VirtualMachine) *kubevirtv1.VirtualMachine {
	vm.Spec.Template.Spec.Domain.Devices.TPM = &kubevirtv1.TPMDevice{Persistent: new(true)}

	return vm
}

// states are the claims for the persistent state of a machine.
func (w *world) states(name string) []corev1.PersistentVolumeClaim {
	w.Helper()

	list, err := w.core.CoreV1().PersistentVolumeClaims(ns).List(w.Context(), metav1.ListOptions{LabelSelector: "persistent-state-for=" + name})
	require.NoError(w, err)

	return list.Items
}

func TestStateOfAMachineHasAClaimOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*kubevirtv1.VirtualMachineInstanceSpec){
		"TPM": func(spec *kubevirtv1.VirtualMachineInstanceSpec) {
			spec.Domain.Devices.TPM = &kubevirtv1.TPMDevice{Persistent: new(true)}
		},
		"EFI": func(spec *kubevirtv1.VirtualMachineInstanceSpec) {
			spec.Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{
				EFI: &kubevirtv1.EFI{SecureBoot: new(false), Persistent: new(true)},
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				vm := diskless("a", "Always")
				vm.Labels = map[string]string{"mine": "yes"}
				vm.Spec.Template.ObjectMeta.Labels = map[string]string{"mine": "yes"}
				change(&vm.Spec.Template.Spec)
				vm = w.create(vm)
				after(time.Second)
				require.Equal(t, "Running", w.status("a"))

				claims := w.states("a")
				require.Len(t, claims, 1)

				pvc := claims[0]
				require.True(t, strings.HasPrefix(pvc.Name, "persistent-state-for-a-"), pvc.Name)
				require.Greater(t, len(pvc.Name), len("persistent-state-for-a-"))
				require.Equal(t, map[string]string{"persistent-state-for": "a", "cdi.kubevirt.io/applyStorageProfile": "true"}, pvc.Labels)
				require.Equal(t, []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.VirtualMachineGroupVersionKind)}, pvc.OwnerReferences)
				require.Equal(t, corev1.ClaimBound, pvc.Status.Phase)
				require.Equal(t, "standard", *pvc.Spec.StorageClassName)
				require.Equal(t, corev1.PersistentVolumeFilesystem, *pvc.Spec.VolumeMode)
				require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, pvc.Spec.AccessModes)
				require.True(t, resource.MustParse("10Mi").Equal(*pvc.Spec.Resources.Requests.Storage()))
				require.Equal(t, []kubevirtv1.VolumeStatus{{Name: "persistent-state-for-this-vm", PersistentVolumeClaimInfo: &kubevirtv1.PersistentVolumeClaimInfo{
					ClaimName: pvc.Name, AccessModes: pvc.Spec.AccessModes,
				}}}, w.instance("a").Status.VolumeStatus)

				// A new instance takes up what the last one left.
				w.call("virtualmachines", "a", "restart", "")
				after(time.Minute)
				require.Equal(t, "Running", w.status("a"))
				require.Equal(t, pvc.UID, w.states("a")[0].UID)
				require.Len(t, w.states("a"), 1)
			})
		})
	}
}

func TestStateOfAMachineGoesWithItUnlessItIsOrphaned(t *testing.T) {
	for policy, left := range map[metav1.DeletionPropagation]int{
		metav1.DeletePropagationBackground: 0, metav1.DeletePropagationForeground: 0, metav1.DeletePropagationOrphan: 1,
	} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				w.create(withTPM(diskless("a", "Always")))
				after(time.Second)
				require.Len(t, w.states("a"), 1)
				require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &policy}))
				after(time.Minute)
				require.Empty(t, w.status("a"))

				claims := w.states("a")
				require.Len(t, claims, left)

				for _, pvc := range claims {
					require.Empty(t, pvc.OwnerReferences)
				}
			})
		})
	}
}

func TestStateOfAMachineStaysWhileTheMachineIsOffAndIsKeptWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.create(withTPM(diskless("a", "Always")))
		after(time.Second)
		require.NoError(t, w.core.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), w.states("a")[0].Name, metav1.DeleteOptions{}))
		after(time.Minute)
		require.Len(t, w.states("a"), 1, "it is in use")
		w.call("virtualmachines", "a", "stop", "")
		after(time.Minute)
		require.Equal(t, "Stopped", w.status("a"))
		require.Empty(t, w.states("a"))

		w.call("virtualmachines", "a", "start", "")
		after(time.Minute)
		require.Equal(t, "Running", w.status("a"))
		require.Len(t, w.states("a"), 1)
		w.call("virtualmachines", "a", "stop", "")
		after(time.Hour)
		require.Len(t, w.states("a"), 1)

		// A machine that remembers no more has it deleted at its next start.
		patch := `[{"op":"remove","path":"/spec/template/spec/domain/devices/tpm"}]`
		_, err := w.virt.KubevirtV1().VirtualMachines(ns).Patch(t.Context(), "a", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		after(time.Minute)
		require.Len(t, w.states("a"), 1)
		w.call("virtualmachines", "a", "start", "")
		after(time.Minute)
		require.Equal(t, "Running", w.status("a"))
		require.Empty(t, w.states("a"))
	})
}

func TestMachineWaitsForTheClaimOfItsState(t *testing.T) {
	for name, tt := range map[string]struct {
		classes []kubevirt.StorageClass
		fault   kubernetes.Fault
		status  string
		reason  string // of the condition Synchronized
		text    string
	}{
		"bound at once": {status: "Running"},
		"bound by its consumer": {
			classes: []kubevirt.StorageClass{{Name: "lazy", Default: true, WaitForFirstConsumer: true}}, status: "Running",
		},
		"shared": {classes: []kubevirt.StorageClass{{Name: "shared", Default: true, Shared: true}}, status: "Running"},
		"not bound": {
			fault: kubernetes.Fault{Unbound: "no space"}, status: "Starting", reason: "BackendStorageNotReady", text: "PVC pending",
		},
		"no class": {
			classes: []kubevirt.StorageClass{{Name: "other"}}, status: "Starting", reason: "FailedBackendStorageCreate",
			text: "no default storage class found",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Classes = tt.classes
				w := start(t, opts)

				remove := func() {}
				if tt.fault.Unbound != "" {
					remove = w.Kubernetes.Inject(tt.fault)
				}

				w.create(withTPM(diskless("a", "Always")))
				after(time.Minute)
				require.Equal(t, tt.status, w.status("a"))

				if tt.status == "Running" {
					require.Len(t, w.states("a"), 1)
					require.Equal(t, corev1.ClaimBound, w.states("a")[0].Status.Phase)

					shared := len(tt.classes) > 0 && tt.classes[0].Shared
					require.Equal(t, shared, w.states("a")[0].Spec.AccessModes[0] == corev1.ReadWriteMany)

					return
				}

				i := w.instance("a").Status.Conditions
				require.Contains(t, conditions(i), tt.reason+": "+tt.text)

				if tt.fault.Unbound == "" {
					return
				}

				remove()
				after(time.Minute)
				require.Equal(t, "Running", w.status("a"))
			})
		})
	}
}

// conditions are reasons and messages of an instance's conditions.
func conditions(all []kubevirtv1.VirtualMachineInstanceCondition) []string {
	var texts []string
	for _, c := range all {
		texts = append(texts, c.Reason+": "+c.Message)
	}

	return texts
}

func TestStateOfAMachineIsOfTheClassForMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "fast"}, {Name: "standard", Default: true}}
		w := start(t, opts)
		patch := `{"metadata":{"annotations":{"storageclass.kubevirt.io/is-default-virt-class":"true"}}}`
		_, err := w.core.StorageV1().StorageClasses().Patch(t.Context(), "fast", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		w.create(withTPM(diskless("a", "Always")))
		after(time.Second)
		require.Len(t, w.states("a"), 1)
		require.Equal(t, "fast", *w.states("a")[0].Spec.StorageClassName)
	})
}
