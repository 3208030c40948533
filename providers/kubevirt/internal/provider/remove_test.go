package provider_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

func TestRemovalThatARuleOfTheClusterRefusesGoesOnOnceItIsLifted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		protected := true

		l.Server().AddHook(apiserver.Hook{
			Name: "protect.example.org", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"},
			Operations: []apiserver.Operation{apiserver.Delete},
			Validate: func(context.Context, *apiserver.Review) error {
				if protected {
					return apiserver.Refuse(403, metav1.StatusReasonForbidden, "it is protected")
				}

				return nil
			},
		})

		o := l.remove("r-1", time.Minute)
		require.Equal(t, driver.KindTransient, driver.KindOf(o.err), "%v", o.said)
		require.ErrorContains(t, o.err, "it is protected")
		assert.NotContains(t, o.err.Error(), "machine class")

		protected = false

		l.mustRemove("r-1")
		assert.Empty(t, l.left())
	})
}

const (
	withDisks = "{cores: 2, memory: 2048, disk_size: 10, additional_disks: [{size: 5}, {size: 7}]}"
	holder    = "example.org/hold"
)

// patchClaim merges a patch into a claim.
func (l *lab) patchClaim(name, patch string) {
	l.t.Helper()

	_, err := l.admin().Core.CoreV1().PersistentVolumeClaims(namespace).Patch(l.t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	require.NoError(l.t, err)
}

// deleteVM deletes the request's virtual machine as somebody with kubectl does, and waits for what follows from that.
func (l *lab) deleteVM(request string, cascade metav1.DeletionPropagation) {
	l.t.Helper()

	require.NoError(l.t, l.admin().KubeVirt.KubevirtV1().VirtualMachines(namespace).Delete(l.t.Context(), machine.NamesOf(ref(request)).VM,
		metav1.DeleteOptions{PropagationPolicy: &cascade}))
	time.Sleep(5 * time.Minute)
	synctest.Wait()
}

// addState makes the claim for what the TPM of a virtual machine of that name remembers, as KubeVirt makes it: of its own name, and without
// the labels of the machine.
func (l *lab) addState(vm string, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	l.t.Helper()

	claim, err := l.admin().Core.CoreV1().PersistentVolumeClaims(namespace).Create(l.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "persistent-state-for-" + vm + "-", Labels: map[string]string{"persistent-state-for": vm}, OwnerReferences: owners,
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Mi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(l.t, err)
	synctest.Wait()

	return claim
}

// claim returns a claim, nil if there is none.
func (l *lab) claim(name string) *corev1.PersistentVolumeClaim {
	l.t.Helper()

	claim, err := l.admin().Claims().Get(l.t.Context(), namespace, name)
	if driver.IsNotFound(err) {
		return nil
	}

	require.NoError(l.t, err)

	return claim
}

// TestClaimWithoutLabelsIsWaitedFor has claims as older importers make them, and a storage that takes its time.
func TestClaimWithoutLabelsIsWaitedFor(t *testing.T) {
	names := machine.NamesOf(ref("r-1"))

	for _, name := range []string{names.Root, names.Disk(0), names.Disk(1)} {
		t.Run(strings.TrimPrefix(name, names.VM), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				require.NoError(t, l.provision(requestOf("r-1", withDisks), time.Hour).err)

				l.patchClaim(name, fmt.Sprintf(`{"metadata":{"labels":null,"annotations":null,"finalizers":[%q]}}`, holder))
				l.deleteVM("r-1", metav1.DeletePropagationBackground)
				require.NotNil(t, l.claim(name).DeletionTimestamp)

				o := l.remove("r-1", 10*time.Minute)
				require.Equal(t, driver.KindPending, driver.KindOf(o.err), "%v", o.said)
				require.ErrorContains(t, o.err, fmt.Sprintf("volume claim %q", name))
				require.ErrorContains(t, o.err, holder)

				l.patchClaim(name, `{"metadata":{"finalizers":null}}`)
				l.mustRemove("r-1")
				assert.Nil(t, l.claim(name))
			})
		})
	}
}

func TestStateOfAMachineGoesWithIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		state := l.addState(l.vm("r-1").Name, *metav1.NewControllerRef(l.vm("r-1"), schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}))
		l.patchClaim(state.Name, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, holder))
		l.deleteVM("r-1", metav1.DeletePropagationBackground)
		require.NotNil(t, l.claim(state.Name).DeletionTimestamp)

		o := l.remove("r-1", 10*time.Minute)
		require.Equal(t, driver.KindPending, driver.KindOf(o.err), "%v", o.said)
		require.ErrorContains(t, o.err, state.Name)

		l.patchClaim(state.Name, `{"metadata":{"finalizers":null}}`)
		l.mustRemove("r-1")
		assert.Nil(t, l.claim(state.Name))
	})
}

func TestStateThatItsMachineLeftBehindIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		state := l.addState(l.vm("r-1").Name, *metav1.NewControllerRef(l.vm("r-1"), schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}))
		l.deleteVM("r-1", metav1.DeletePropagationOrphan)
		require.Empty(t, l.claim(state.Name).OwnerReferences)

		l.mustRemove("r-1")
		assert.Nil(t, l.claim(state.Name))
		assert.Empty(t, l.left())
	})
}

func TestStateThatIsNotForSureOursIsLeft(t *testing.T) {
	names := machine.NamesOf(ref("r-1"))

	for name, add := range map[string]func(*lab) *corev1.PersistentVolumeClaim{
		"of another machine": func(l *lab) *corev1.PersistentVolumeClaim { return l.addState("somebodys") },
		"of a machine whose name begins like ours": func(l *lab) *corev1.PersistentVolumeClaim {
			return l.addState(names.VM + "-copy")
		},
		"of a stranger's machine that has our name": func(l *lab) *corev1.PersistentVolumeClaim {
			_, err := l.AddForeign("vm", names.VM)
			require.NoError(l.t, err)

			return l.addState(names.VM)
		},
		"that belongs to something else": func(l *lab) *corev1.PersistentVolumeClaim {
			other, err := l.admin().Core.CoreV1().ConfigMaps(namespace).Create(l.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "backup"}}, metav1.CreateOptions{})
			require.NoError(l.t, err)

			return l.addState(names.VM, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: other.Name, UID: other.UID})
		},
		"that has another name": func(l *lab) *corev1.PersistentVolumeClaim {
			state := l.addState("a-backup-of-it")
			l.patchClaim(state.Name, fmt.Sprintf(`{"metadata":{"labels":{"persistent-state-for":%q}}}`, names.VM))

			return state
		},
		"but for its label": func(l *lab) *corev1.PersistentVolumeClaim {
			state := l.addState(names.VM)
			l.patchClaim(state.Name, `{"metadata":{"labels":null}}`)

			return state
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				state := add(l)

				l.mustRemove("r-1")

				left := l.claim(state.Name)
				require.NotNil(t, left)
				assert.Nil(t, left.DeletionTimestamp)
			})
		})
	}
}

func TestInstanceThatDoesNotGoIsNamedWithItsNode(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(fmt.Sprintf("watched %t", watched), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				l.mustProvision("r-1")
				l.linger(5 * time.Minute)

				if !watched {
					l.unwatch()
				}

				o := l.remove("r-1", 2*time.Minute)
				require.ErrorContains(t, o.err, fmt.Sprintf("virtual machine %q", machine.NamesOf(ref("r-1")).VM))
				require.ErrorContains(t, o.err, `its instance on node "node-1" has not gone`)

				l.mustRemove("r-1")
			})
		})
	}
}
