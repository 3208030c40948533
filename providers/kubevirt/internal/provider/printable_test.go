package provider_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

const containerClass = "{cores: 2, memory: 2048, disk_size: 10, image: {source: container_disk, reference: registry.test/talos}}"

// TestEachTroubleThatKubeVirtShowsIsASentence follows KubeVirt's own words for a machine that does not start to what the user reads.
func TestEachTroubleThatKubeVirtShowsIsASentence(t *testing.T) {
	names := machine.NamesOf(ref("r-1"))
	vm, root := "virtual machine omni/"+names.VM, "volume omni/"+names.Root

	for _, test := range []struct {
		shown   kubevirtv1.VirtualMachinePrintableStatus
		data    string
		tune    func(*kubevirt.Options)
		trouble func(l *lab) (undo func())
		want    string
	}{
		{
			shown: kubevirtv1.VirtualMachineStatusDataVolumeError, data: containerClass,
			trouble: func(l *lab) func() {
				return l.CDI.Inject(cdi.Fault{Volume: namespace + "/" + names.Root, Message: "manifest unknown"})
			},
			want: root + " cannot be filled; CDI has tried ",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusProvisioning, data: containerClass,
			trouble: func(l *lab) func() {
				return l.CDI.Inject(cdi.Fault{Volume: namespace + "/" + names.Root, Unschedulable: true})
			},
			want: root + " cannot be filled: ",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusCrashLoopBackOff, data: classData,
			trouble: func(l *lab) func() { return l.Virt.Inject(virt.Fault{Crash: true}) },
			want:    vm + " stopped right after its start ",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusWaitingForVolumeBinding, data: classData,
			tune: func(o *kubevirt.Options) {
				o.Classes = []kubevirt.StorageClass{{Name: "late", Default: true, WaitForFirstConsumer: true}}
			},
			trouble: func(l *lab) func() {
				return l.Kubernetes.Inject(kubernetes.Fault{Claim: namespace + "/" + names.Root, Unbound: "the pool is gone"})
			},
			want: "the pool is gone",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusStopped, data: classData,
			trouble: func(l *lab) func() {
				refuses := true
				l.Server().AddHook(apiserver.Hook{
					Name: "policy.example.org", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstances"},
					Operations: []apiserver.Operation{apiserver.Create},
					Validate: func(context.Context, *apiserver.Review) error {
						if refuses {
							return apiserver.Refuse(403, metav1.StatusReasonForbidden, "not on a Sunday")
						}

						return nil
					},
				})

				return func() { refuses = false }
			},
			want: vm + " cannot start: ",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusUnschedulable, data: classData,
			tune: func(o *kubevirt.Options) { o.Virt.Nodes = []virt.Node{{Name: "node-1"}} },
			trouble: func(l *lab) func() {
				l.Virt.NodeDown("node-1", true)

				return func() { l.Virt.NodeDown("node-1", false) }
			},
			want: vm + " finds no node that fits: 0/1 nodes are available: 1 node(s) had untolerated taint(s)",
		},
		{
			shown: kubevirtv1.VirtualMachineStatusPaused, data: classData,
			trouble: func(l *lab) func() { return l.Virt.Inject(virt.Fault{IOError: true}) },
			want:    "there may be no room on its storage",
		},
	} {
		t.Run(string(test.shown), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				if test.tune != nil {
					test.tune(&opts)
				}

				l := newLab(t, opts)
				undo := test.trouble(l)

				var (
					seen  bool
					said  []string
					began = time.Now()
				)

				for time.Since(began) < 15*time.Minute && !seen {
					err := l.attempt(t.Context(), requestOf("r-1", test.data))

					if err != nil {
						require.NotEqual(t, driver.KindTerminal, driver.KindOf(err), "%v", err)

						said = append(said, err.Error())
					}

					all, listErr := l.admin().VirtualMachines().List(t.Context(), namespace, metav1.ListOptions{})
					require.NoError(t, listErr)

					shown := len(all) == 1 && all[0].Status.PrintableStatus == test.shown
					seen = shown && err != nil && strings.Contains(err.Error(), test.want)

					time.Sleep(5 * time.Second)
				}

				require.True(t, seen, "%v", said)

				undo()

				o := l.provision(requestOf("r-1", test.data), 3*time.Hour)
				require.NoError(t, o.err, "it goes on by itself: %v", o.said)
				l.mustRemove("r-1")
				assert.Empty(t, l.left())
			})
		})
	}
}

// TestMachineWhoseClaimIsGoneSaysSo is about a claim that somebody has taken from under a machine that was off.
func TestMachineWhoseClaimIsGoneSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		require.NoError(t, l.provision(requestOf("r-1", classData), time.Hour).err)
		require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
		time.Sleep(5 * time.Minute)

		// What CDI would put into its place is refused.
		l.Server().AddHook(apiserver.Hook{
			Name: "policy.example.org", Resource: schema.GroupResource{Resource: "persistentvolumeclaims"}, Operations: []apiserver.Operation{apiserver.Create},
			Validate: func(context.Context, *apiserver.Review) error {
				return apiserver.Refuse(403, metav1.StatusReasonForbidden, "the storage is being moved")
			},
		})

		require.NoError(t, l.admin().Core.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), machine.NamesOf(ref("r-1")).Root, metav1.DeleteOptions{}))
		time.Sleep(time.Minute)

		_ = l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOn)
		time.Sleep(time.Minute)

		require.Equal(t, kubevirtv1.VirtualMachineStatusPvcNotFound, l.vm("r-1").Status.PrintableStatus)

		err := l.attempt(t.Context(), requestOf("r-1", classData))
		require.ErrorContains(t, err, "PVC omni/"+machine.NamesOf(ref("r-1")).Root+" does not exist")
		require.ErrorContains(t, err, "waits for a volume that is not there")
		require.Equal(t, driver.KindTransient, driver.KindOf(err))

		m, err := l.driver.Find(t.Context(), ref("r-1"))
		require.NoError(t, err)
		assert.Equal(t, "ErrorPvcNotFound", m.State)

		l.mustRemove("r-1")
		assert.Empty(t, l.left())
	})
}

// TestMachineOfANodeThatIsSilentIsFoundAsKubeVirtShowsIt is about a machine that ran before.
func TestMachineOfANodeThatIsSilentIsFoundAsKubeVirtShowsIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.Virt.Nodes = []virt.Node{{Name: "node-1"}, {Name: "node-2"}}
		l := newLab(t, opts)
		require.NoError(t, l.provision(requestOf("r-1", classData), time.Hour).err)

		find := func() driver.Machine {
			synctest.Wait()

			m, err := l.driver.Find(t.Context(), ref("r-1"))
			require.NoError(t, err)
			assert.Equal(t, string(l.vm("r-1").Status.PrintableStatus), m.State)

			return m
		}

		before := find()
		l.Virt.NodeDown(before.Labels["node"], true)

		for range 30 {
			time.Sleep(time.Minute)
			assert.NotEqual(t, driver.PowerOff, find().Power, "nobody has switched it off")
		}

		after := find()
		assert.Equal(t, driver.PowerOn, after.Power)
		assert.NotEqual(t, before.Boot, after.Boot)
		assert.NotEqual(t, before.Labels["node"], after.Labels["node"])
		assert.Equal(t, before.UUID, after.UUID)
	})
}
