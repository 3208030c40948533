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
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// during provisions a machine with something wrong for a while, and returns what was said, and what the kinds of error were.
func (l *lab) during(request string, trouble func() (undo func()), d time.Duration) outcome {
	l.t.Helper()

	undo := trouble()
	stop := time.AfterFunc(d, undo)

	defer stop.Stop()

	o := l.provision(requestOf(request, classData), 3*time.Hour)
	require.NoError(l.t, o.err, "%v", o.said)

	return o
}

// says asks for a machine that cannot be made, until the text is what the user is told, which takes a minute at the most.
func (l *lab) says(req driver.Request, want string) {
	l.t.Helper()

	var last error

	for started := time.Now(); time.Since(started) <= time.Minute; time.Sleep(5 * time.Second) {
		last = l.attempt(l.t.Context(), req)
		require.Error(l.t, last)

		if strings.Contains(last.Error(), want) {
			return
		}
	}

	assert.ErrorContains(l.t, last, want, "after a minute")
}

func TestWhatKeepsAMachineWaitingIsSaidWithinAMinute(t *testing.T) {
	for _, test := range []struct {
		name    string
		trouble func(l *lab) func()
		want    string
	}{
		{"no node has room", func(l *lab) func() {
			return l.Virt.Inject(virt.Fault{Unschedulable: "0/3 nodes are available: 3 Insufficient memory."})
		}, "Insufficient memory"},
		{"no node fits", func(l *lab) func() {
			return l.Virt.Inject(virt.Fault{Unschedulable: "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."})
		}, "finds no node that fits"},
		{"an image cannot be fetched", func(l *lab) func() {
			return l.CDI.Inject(cdi.Fault{Message: "Unable to connect to http data source: 404"})
		}, "404"},
		{"no storage", func(l *lab) func() {
			return l.Kubernetes.Inject(kubernetes.Fault{Unbound: `storageclass.storage.k8s.io "fast" not found`})
		}, `storageclass.storage.k8s.io "fast" not found`},
		{"a launcher that cannot be pulled", func(l *lab) func() {
			return l.Virt.Inject(virt.Fault{Pull: `Back-off pulling image "registry/launcher"`})
		}, "cannot fetch"},
		{"a disk that cannot be written", func(l *lab) func() { return l.Virt.Inject(virt.Fault{IOError: true}) }, "there may be no room on its storage"},
		{"a network that is not attached", func(l *lab) func() {
			return l.Virt.Inject(virt.Fault{Kubelet: "FailedCreatePodSandBox: Failed to create pod sandbox: plugin type=\"multus\" failed (add)"})
		}, `plugin type="multus" failed`},
		{"a volume that another node holds", func(l *lab) func() {
			return l.Virt.Inject(virt.Fault{Kubelet: "FailedAttachVolume: Multi-Attach error for volume \"pvc-1\""})
		}, "Multi-Attach error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				undo := test.trouble(l)
				end := time.AfterFunc(20*time.Minute, undo)

				defer end.Stop()

				l.says(requestOf("r-1", classData), test.want)

				o := l.provision(requestOf("r-1", classData), 3*time.Hour)
				require.NoError(t, o.err, "it goes on by itself: %v", o.said)
			})
		})
	}
}

func TestQuotaThatIsUsedUpIsNoFailureForGood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		quotas := l.admin().Core.CoreV1().ResourceQuotas(namespace)

		_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "q"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/virtualmachines.kubevirt.io": resource.MustParse("0")}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		o := l.provision(requestOf("r-1", classData), 10*time.Minute)
		require.Equal(t, driver.KindCapacity, driver.KindOf(o.err), "%v", o.said)
		require.ErrorContains(t, o.err, "exceeded quota")

		require.NoError(t, quotas.Delete(t.Context(), "q", metav1.DeleteOptions{}))
		l.mustProvision("r-1")
	})
}

func TestImportThatFailsForGoodIsBegunAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.during("r-1", func() func() { return l.CDI.Inject(cdi.Fault{Message: "checksum mismatch", Fatal: true}) }, 3*time.Minute)

		assert.Contains(t, strings.Join(o.said, "\n"), "checksum mismatch")
		assert.Contains(t, strings.Join(o.said, "\n"), "to be imported again")
		assert.Greater(t, l.Ledger().CallsOf("create datavolumes"), 1)
	})
}

func TestDiskThatFailsForGoodIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		undo := l.CDI.Inject(cdi.Fault{Volume: namespace + "/" + machine.NamesOf(ref("r-1")).Root, Message: "no such tag", Fatal: true, Times: 1})
		defer undo()

		o := l.provision(requestOf("r-1", "{cores: 2, memory: 2048, disk_size: 10, image: {source: container_disk, reference: registry.test/talos}}"), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
		assert.Contains(t, strings.Join(o.said, "\n"), "to be made again")
	})
}

func TestImageWhoseDataVolumeCDIHasCollectedIsUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.CollectAfter, opts.CDI.Times.Import = time.Minute, 30*time.Second
		l := newLab(t, opts)
		k := l.admin()

		images := func() []*cdiv1.DataVolume {
			volumes, err := k.DataVolumes().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
			require.NoError(t, err)

			return volumes
		}

		// We ask CDI to leave it alone; it is not bound to.
		require.Error(t, l.attempt(t.Context(), requestOf("r-1", classData)))

		for _, v := range images() {
			_, err := k.CDI.CdiV1beta1().DataVolumes(namespace).Patch(t.Context(), v.Name, "application/merge-patch+json",
				[]byte(`{"metadata":{"annotations":{"cdi.kubevirt.io/storage.deleteAfterCompletion":"true"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
		}

		l.mustProvision("r-1")
		time.Sleep(10 * time.Minute)
		require.Empty(t, images(), "it is collected")

		before := l.Ledger().CallsOf("create datavolumes")
		l.mustProvision("r-2")
		assert.Equal(t, before, l.Ledger().CallsOf("create datavolumes"), "it is not imported again")

		// It is swept like any other.
		time.Sleep(30 * time.Hour)

		for range 2 {
			_, err := l.driver.List(t.Context(), providerID)
			require.NoError(t, err)
			synctest.Wait()
			time.Sleep(time.Hour)
		}

		claims, err := k.Claims().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
		require.NoError(t, err)
		assert.Empty(t, claims)
		assert.Len(t, l.Machines(), 2)
	})
}

func TestImageThatDoesNotFitIsRefusedBeforeAnythingIsMade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{})
		l.image.size = 20 << 30

		o := l.provision(requestOf("r-1", classData), time.Minute)
		require.Equal(t, driver.KindTerminal, driver.KindOf(o.err))
		require.ErrorContains(t, o.err, "disk_size")
		assert.Empty(t, l.left())
	})
}

func TestWhatTheClusterDoesNotHaveIsSaidBeforeAnythingIsMade(t *testing.T) {
	for _, test := range []struct{ field, data string }{
		{"storage_class_name", "storage_class_name: nothing"},
		{"instancetype.name", "instancetype: {name: nothing}"},
		{"preference.name", "preference: {name: nothing}"},
		{"networks", "networks: [{type: multus, network: nothing}]"},
	} {
		t.Run(test.field, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{})

				data := "{cores: 2, memory: 2048, disk_size: 10, " + test.data + "}"
				if test.field == "instancetype.name" {
					data = "{disk_size: 10, " + test.data + "}"
				}

				_, err := l.driver.Plan(t.Context(), requestOf("r-1", data))
				require.Equal(t, driver.KindTerminal, driver.KindOf(err), "%v", err)
				require.ErrorContains(t, err, test.field)
				require.ErrorContains(t, err, "nothing")
				assert.Empty(t, l.left())
			})
		})
	}
}

func TestRefusalOfAWebhookIsShown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.Server().AddHook(apiserver.Hook{
			Name: "policy.example.org", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"},
			Operations: []apiserver.Operation{apiserver.Create},
			Validate: func(context.Context, *apiserver.Review) error {
				return apiserver.Refuse(403, metav1.StatusReasonForbidden, "no bridges here")
			},
		})

		o := l.provision(requestOf("r-1", classData), time.Minute)
		require.Equal(t, driver.KindTerminal, driver.KindOf(o.err), "%v", o.said)
		require.ErrorContains(t, o.err, "no bridges here")
	})
}

func TestMissingRightIsNamedWithItsManifest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.Server().SetUser(apiserver.User{Name: kubevirt.User, Token: kubevirt.Token, NamespaceRules: nil, Rules: noRules})

		err := l.attempt(t.Context(), requestOf("r-1", classData))
		require.Equal(t, driver.KindTransient, driver.KindOf(err))
		require.ErrorContains(t, err, "lacks the right to")
		require.ErrorContains(t, err, "deploy/rbac.yaml")
	})
}

func TestTroubleOfAnyKindDelaysAMachineAndNoMore(t *testing.T) {
	for _, kind := range []ledger.FaultKind{ledger.Cut, ledger.Lost, ledger.Hang, ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo} {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})
				require.NoError(t, l.Ledger().Secret("join token", "canary-join-token"))

				l.Ledger().Inject(ledger.Fault{Kind: kind, For: time.Minute, Times: 12})

				o := l.provision(requestOf("r-1", classData), 3*time.Hour)
				require.NoError(t, o.err, "%v", o.said)
				assert.NotContains(t, strings.Join(o.said, "\n"), "canary")
				assert.Len(t, l.Machines(), 1)

				l.Ledger().Inject(ledger.Fault{Kind: kind, For: time.Minute, Times: 12})
				l.mustRemove("r-1")
				assert.Empty(t, l.left())
			})
		})
	}
}

// live makes a machine and removes it, until the process is dead.
func (l *lab) live(data string, dead func() bool) {
	for range 100 {
		if err := l.attempt(l.t.Context(), requestOf("r-1", data)); err == nil || dead() {
			break
		}

		time.Sleep(5 * time.Second)
	}

	for range 100 {
		if dead() {
			return
		}

		if done, _ := l.driver.Remove(l.t.Context(), ref("r-1")); done { //nolint:errcheck // it is tried again
			return
		}

		time.Sleep(5 * time.Second)
	}
}

func TestCrashAtAnyCallLeavesOneMachineOrNothing(t *testing.T) {
	var calls int

	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")
		l.mustRemove("r-1")

		calls = l.Ledger().Calls()
	})

	require.Greater(t, calls, 10)

	for _, lost := range []bool{false, true} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("%d-%t", n, lost), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					l := newLab(t, kubevirt.Options{Enter: keepImages}, func(c *provider.Config) { c.KeepImages = true })
					dead := make(chan struct{}, 1)

					l.Ledger().CrashAfter(n, lost, func() {
						select {
						case dead <- struct{}{}:
						default:
						}
					})

					l.live(classData, func() bool { return len(dead) > 0 })
					l.Ledger().CrashAfter(0, false, nil)
					l.restart(func(c *provider.Config) { c.KeepImages = true })

					// What was half made is found and finished, or what was half removed is made again.
					l.mustProvision("r-1")
					require.Len(t, l.Machines(), 1)

					l.mustRemove("r-1")
					require.Empty(t, l.left())
				})
			})
		}
	}
}
