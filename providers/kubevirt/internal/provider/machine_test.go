package provider_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

// nextRelease is a provider of another version.
func nextRelease(c *provider.Config) { c.Version = "v9.9.9" }

// patchVM merges a patch into the request's virtual machine, as somebody with kubectl does.
func (l *lab) patchVM(request, patch string, subresources ...string) {
	l.t.Helper()

	_, err := l.admin().KubeVirt.KubevirtV1().VirtualMachines(namespace).Patch(context.WithoutCancel(l.t.Context()), machine.NamesOf(ref(request)).VM,
		"application/merge-patch+json", []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(l.t, err)
}

// rootOf is the UID of the claim that holds the machine's system disk.
func (l *lab) rootOf(request string) string {
	l.t.Helper()

	claim, err := l.admin().Claims().Get(l.t.Context(), namespace, machine.NamesOf(ref(request)).Root)
	require.NoError(l.t, err)

	return string(claim.UID)
}

// waiting makes a virtual machine that does not get its Secret, and is not switched on therefore. The caller takes the obstacle away.
func (l *lab) waiting(request, data string) (undo func()) {
	l.t.Helper()

	name := machine.NamesOf(ref(request)).Secret
	_, err := l.AddForeign("secret", name)
	require.NoError(l.t, err)
	require.ErrorContains(l.t, l.provision(requestOf(request, data), 10*time.Minute).err, "is not this provider's")
	synctest.Wait()

	return func() {
		require.NoError(l.t, l.admin().Core.CoreV1().Secrets(namespace).Delete(l.t.Context(), name, metav1.DeleteOptions{}))
	}
}

func TestMachineThatHasRunIsNeverMadeAnew(t *testing.T) {
	for _, test := range []struct {
		name string
		// data is what the class says when the request is worked on again.
		data string
		// forget takes off the machine what notes that it was started.
		forget bool
		tune   func(*provider.Config)
	}{
		{"another release", classData, false, nextRelease},
		{"another class", "{cores: 4, memory: 4096, disk_size: 20}", false, func(*provider.Config) {}},
		{"another class, made by an earlier release", "{cores: 4, memory: 4096, disk_size: 20}", true, nextRelease},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				l.mustProvision("r-1")

				first, root := l.vm("r-1"), l.rootOf("r-1")

				if test.forget {
					l.patchVM("r-1", `{"metadata":{"annotations":{"omni-infra.dev/started":null}}}`)
				}

				require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
				time.Sleep(5 * time.Minute)

				if !test.forget {
					// Older releases of KubeVirt keep nothing of a machine that is off.
					l.patchVM("r-1", `{"status":{"runStrategy":null,"desiredGeneration":null,"observedGeneration":null}}`, "status")
				}

				off := l.vm("r-1").Status
				require.Equal(t, kubevirtv1.VirtualMachineStatusStopped, off.PrintableStatus)
				require.False(t, off.Created)
				require.Equal(t, test.forget, off.RunStrategy != "")

				l.restart(test.tune)

				o := l.provision(requestOf("r-1", test.data), time.Hour)
				require.NoError(t, o.err, "%v", o.said)
				assert.Equal(t, first.UID, l.vm("r-1").UID)
				assert.Equal(t, root, l.rootOf("r-1"), "its disk is the one that it had")
				assert.Zero(t, l.Ledger().CallsOf("delete virtualmachines"))
			})
		})
	}
}

func TestMachineThatWaitsToBeStartedOutlivesAnUpgrade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		undo := l.waiting("r-1", classData)
		first, root := l.vm("r-1"), l.rootOf("r-1")

		l.restart(nextRelease)
		require.Error(t, l.provision(requestOf("r-1", classData), 10*time.Minute).err)
		undo()
		l.mustProvision("r-1")

		assert.Equal(t, first.UID, l.vm("r-1").UID)
		assert.Equal(t, root, l.rootOf("r-1"), "it is not cloned again")
	})
}

func TestMachineWhoseDiskCannotBeFilledIsMadeAsItsClassSaysNow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.waiting("r-1", classData)

		first := l.vm("r-1")
		first.Status.PrintableStatus = kubevirtv1.VirtualMachineStatusDataVolumeError
		_, err := l.admin().KubeVirt.KubevirtV1().VirtualMachines(namespace).UpdateStatus(t.Context(), first, metav1.UpdateOptions{})
		require.NoError(t, err)

		require.Error(t, l.provision(requestOf("r-1", "{cores: 4, memory: 2048, disk_size: 10}"), 10*time.Minute).err)
		assert.NotEqual(t, first.UID, l.vm("r-1").UID)
	})
}

// TestMachineThatIsSwitchedOnMeanwhileIsNotDeleted has somebody start it between the look at it and its deletion.
func TestMachineThatIsSwitchedOnMeanwhileIsNotDeleted(t *testing.T) {
	const other = "other"

	for name, data := range map[string]string{
		"its class has changed":      "{cores: 4, memory: 2048, disk_size: 10}",
		"its namespace is elsewhere": "{cores: 2, memory: 2048, disk_size: 10, namespace: " + other + "}",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				both := []string{namespace, other}
				l := newLab(t, kubevirt.Options{Enter: keepImages, ControllerOptions: kubevirt.ControllerOptions{Namespaces: both}}, func(c *provider.Config) {
					c.Operator.Namespaces = both
				})
				l.waiting("r-1", classData)
				first := l.vm("r-1")

				l.Server().AddHook(apiserver.Hook{
					Name: "somebody", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"},
					Operations: []apiserver.Operation{apiserver.Delete},
					Validate: func(_ context.Context, r *apiserver.Review) error {
						l.patchVM("r-1", `{"spec":{"runStrategy":"Always"}}`)

						return nil
					},
				})

				require.Error(t, l.provision(requestOf("r-1", data), 10*time.Minute).err)
				assert.Equal(t, 1, l.Ledger().CallsOf("delete virtualmachines"))

				now := l.vm("r-1")
				assert.Equal(t, first.UID, now.UID)
				assert.Nil(t, now.DeletionTimestamp)
			})
		})
	}
}

// exhaust leaves no quota for objects of a kind.
func (l *lab) exhaust(kind string) {
	l.t.Helper()

	_, err := l.admin().Core.CoreV1().ResourceQuotas(namespace).Create(l.t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "used-up"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceName("count/" + kind): resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	require.NoError(l.t, err)
}

func TestWhatNowRefusesANewMachineDoesNotHoldUpOneThatIsThere(t *testing.T) {
	const edited = "{cores: 4, memory: 4096, disk_size: 20}"

	refuse := func(l *lab, group, kind string) {
		l.Server().AddHook(apiserver.Hook{
			Name: "policy.example.org", Resource: schema.GroupResource{Group: group, Resource: kind}, Operations: []apiserver.Operation{apiserver.Create},
			Validate: func(context.Context, *apiserver.Review) error {
				return apiserver.Refuse(403, metav1.StatusReasonForbidden, "no more of these")
			},
		})
	}

	for _, watched := range []bool{true, false} {
		for name, obstacle := range map[string]func(*lab){
			"quota of machines":   func(l *lab) { l.exhaust("virtualmachines.kubevirt.io") },
			"quota of secrets":    func(l *lab) { l.exhaust("secrets") },
			"webhook of machines": func(l *lab) { refuse(l, "kubevirt.io", "virtualmachines") },
			"webhook of secrets":  func(l *lab) { refuse(l, "", "secrets") },
		} {
			t.Run(fmt.Sprintf("%s, watched %t", name, watched), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					l := newLab(t, kubevirt.Options{Enter: keepImages})
					l.mustProvision("r-1")
					first := l.vm("r-1")

					obstacle(l)
					l.restart()

					if !watched {
						l.unwatch()
					}

					o := l.provision(requestOf("r-1", edited), 10*time.Minute)
					require.NoError(t, o.err, "%v", o.said)
					assert.Equal(t, first.UID, l.vm("r-1").UID)
				})
			})
		}
	}
}

// TestRefusedMachineThatIsThereIsFound has a create refused whose first try was made, unknown to the watch.
func TestRefusedMachineThatIsThereIsFound(t *testing.T) {
	for _, kind := range []string{"virtualmachines", "secrets"} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				l.blind = kind
				l.restart()
				l.mustProvision("r-1")
				l.restart()

				if kind == "secrets" {
					l.exhaust(kind)
				} else {
					l.exhaust("virtualmachines.kubevirt.io")
				}

				o := l.provision(requestOf("r-1", classData), 10*time.Minute)
				require.NoError(t, o.err, "%v", o.said)
			})
		})
	}
}
