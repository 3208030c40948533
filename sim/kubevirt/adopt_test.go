package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// KubeVirt allows the adoption of claims in what it makes of templates: somebody's claim of that name becomes the machine's disk, unread,
// and goes with the machine.
func TestMachineAdoptsTheClaimOfThatName(t *testing.T) {
	for name, tt := range map[string]struct {
		class kubevirt.StorageClass
		phase corev1.PersistentVolumeClaimPhase
	}{
		"bound":                    {kubevirt.StorageClass{Name: "standard", Default: true}, corev1.ClaimBound},
		"pending, for a first use": {kubevirt.StorageClass{Name: "local", Default: true, WaitForFirstConsumer: true}, corev1.ClaimPending},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuests()
				opts := kubevirt.Options{}
				opts.Classes = []kubevirt.StorageClass{tt.class}
				opts.Virt.Boot = g.boot

				w := start(t, opts)
				id, err := w.AddForeign("claim", "a")
				require.NoError(t, err)
				after(time.Second)
				require.Equal(t, tt.phase, w.claim("a").Status.Phase)

				w.create(machine("a"))
				after(time.Minute)

				dv := w.volume("a")
				require.Equal(t, cdiv1.Succeeded, dv.Status.Phase)
				require.Equal(t, "true", dv.Annotations["cdi.kubevirt.io/allowClaimAdoption"])

				pvc := w.claim("a")
				require.Equal(t, types.UID(id), pvc.UID)
				require.Equal(t, corev1.ClaimBound, pvc.Status.Phase)
				require.True(t, metav1.IsControlledBy(pvc, dv))
				require.NotContains(t, pvc.Annotations, "cdi.kubevirt.io/storage.populatedFor")
				require.Equal(t, "Running", w.status("a"))
				require.Empty(t, g.booted, "nothing was imported")

				require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
				after(time.Minute)

				_, err = w.core.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "a", metav1.GetOptions{})
				require.True(t, apierrors.IsNotFound(err), "it goes with the machine: %v", err)
			})
		})
	}
}

// Without the annotation, or with one that denies it, a claim is in the way.
func TestClaimIsInTheWayOfADataVolumeThatMayNotAdopt(t *testing.T) {
	for _, allowed := range []string{"", "false", "yes"} {
		t.Run(allowed, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, kubevirt.Options{})
				_, err := w.AddForeign("claim", "a")
				require.NoError(t, err)
				after(time.Second)

				err = w.createVolume(volume("a", "2Gi", imported(), func(dv *cdiv1.DataVolume) {
					if allowed != "" {
						dv.Annotations = map[string]string{"cdi.kubevirt.io/allowClaimAdoption": allowed}
					}
				}))
				require.ErrorContains(t, err, "Destination PVC default/a already exists")
			})
		})
	}
}

// A claim that something else controls is never adopted: CDI tries again and again, and says nothing in the status.
func TestClaimOfSomethingElseIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said string

		opts := kubevirt.Options{}
		opts.CDI.Failed = func(_ string, err error) { said = err.Error() }

		w := start(t, opts)

		pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Name: "a",
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "database", UID: "1", Controller: new(true)},
			},
		}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: template("a", nil).Spec.Storage.Resources.Requests},
		}}
		_, err := w.core.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), pvc, metav1.CreateOptions{})
		require.NoError(t, err)

		w.create(machine("a"))
		after(time.Minute)

		require.Equal(t, cdiv1.PhaseUnset, w.volume("a").Status.Phase)
		require.Equal(t, "Provisioning", w.status("a"))
		require.Equal(t, "Object default/a is already owned by another StatefulSet controller database", said)
	})
}

// A DataVolume of that name, whoever made it, is the machine's disk. It stays when the machine goes.
func TestMachineUsesTheDataVolumeOfThatName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot

		const theirs = "https://example.org/other.qcow2"

		w := start(t, opts)
		require.NoError(t, w.createVolume(volume("a", "2Gi", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: theirs}})))
		after(time.Minute)
		w.create(machine("a", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = new(kubevirtv1.RunStrategyAlways) }))
		after(time.Minute)

		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, theirs, (<-g.booted).Image)
		require.Empty(t, w.volume("a").OwnerReferences)

		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Equal(t, cdiv1.Succeeded, w.volume("a").Status.Phase)
	})
}
