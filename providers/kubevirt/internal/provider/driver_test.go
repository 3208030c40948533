package provider_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

func TestMachineIsMadeFoundListedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})

		_, err := l.driver.Find(t.Context(), ref("r-1"))
		require.True(t, driver.IsNotFound(err), "%v", err)

		l.mustProvision("r-1")

		m, err := l.driver.Find(t.Context(), ref("r-1"))
		require.NoError(t, err)
		assert.Equal(t, driver.NewIdentity(ref("r-1")).UUID, m.UUID)
		assert.Equal(t, driver.PowerOn, m.Power)
		assert.Equal(t, "Running", m.State)
		assert.NotEmpty(t, m.Boot)
		assert.Equal(t, map[string]string{"namespace": namespace, "node": "node-1"}, m.Labels)

		synctest.Wait()

		list, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		require.Equal(t, []driver.Machine{m}, list)

		l.mustRemove("r-1")
		assert.Empty(t, l.left())

		_, err = l.driver.Find(t.Context(), ref("r-1"))
		require.True(t, driver.IsNotFound(err), "%v", err)

		done, err := l.driver.Remove(t.Context(), ref("r-1"))
		require.NoError(t, err)
		require.True(t, done, "what has gone is no error")
	})
}

func TestWhatAMachineIsToldIsInItsSecretAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{})
		require.NoError(t, l.Ledger().Secret("join token", "canary-join-token"))
		l.mustProvision("r-1")

		vm := l.vm("r-1")
		assert.NotContains(t, fmt.Sprint(vm), "canary")

		secret, err := l.admin().Secrets().Get(t.Context(), namespace, machine.NamesOf(ref("r-1")).Secret)
		require.NoError(t, err)
		assert.Equal(t, joinConfig, string(secret.Data[machine.SecretUserData]))
		require.Len(t, secret.OwnerReferences, 1)
		assert.Equal(t, vm.UID, secret.OwnerReferences[0].UID)
		assert.NotContains(t, l.Ledger().History(), "canary")
	})
}

func TestFiftyMachinesTakeOneImport(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const machines = 50

		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.Times.Import, opts.CDI.Times.Clone, opts.Virt.Times.Start = time.Minute, 10*time.Second, 5*time.Second
		l := newLab(t, opts)

		var wg sync.WaitGroup

		for i := range machines {
			wg.Go(func() { l.mustProvision(fmt.Sprintf("r-%d", i)) })
		}

		wg.Wait()

		books := l.Ledger()
		assert.Equal(t, 1, books.CallsOf("create datavolumes"), "the others are made by KubeVirt")
		assert.Equal(t, 1, l.image.opened)
		assert.Equal(t, machines, books.CallsOf("create virtualmachines"))
		assert.Equal(t, machines, books.CallsOf("create secrets"))
		assert.Equal(t, machines, books.CallsOf("patch virtualmachines"))

		calls := books.Calls()
		for _, op := range []string{"watch virtualmachines", "watch virtualmachineinstances", "watch datavolumes", "watch persistentvolumeclaims", "watch secrets"} {
			calls -= books.CallsOf(op)
		}

		assert.LessOrEqual(t, calls, 9*machines, "calls for each machine")
		t.Logf("%.1f calls for each machine", float64(calls)/machines)
	})
}

func TestNothingIsAskedAtRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages}, func(c *provider.Config) { c.KeepImages = true })
		l.mustProvision("r-1")
		synctest.Wait()

		before := len(l.Ledger().History())

		for range 24 * 60 {
			time.Sleep(time.Minute)

			list, err := l.driver.List(t.Context(), providerID)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.NoError(t, l.driver.Check(t.Context()))

			_, err = l.driver.Addresses(t.Context(), providerID)
			require.NoError(t, err)
		}

		for line := range strings.SplitSeq(l.Ledger().History()[before:], "\n") {
			if line != "" && !strings.Contains(line, " watch ") {
				require.Fail(t, "a call at rest", line)
			}
		}
	})
}

func TestImageThatNothingUsesIsRemovedByAge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		images := func() int {
			synctest.Wait()

			_, err := l.driver.List(t.Context(), providerID)
			require.NoError(t, err)
			synctest.Wait()

			volumes, err := l.admin().DataVolumes().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
			require.NoError(t, err)

			return len(volumes)
		}

		for range 23 {
			time.Sleep(time.Hour)
			require.Equal(t, 1, images())
		}

		// Each use makes it young again.
		l.mustProvision("r-2")

		for range 23 {
			time.Sleep(time.Hour)
			require.Equal(t, 1, images())
		}

		time.Sleep(2 * time.Hour)
		images()
		time.Sleep(time.Minute)
		require.Zero(t, images())

		l.mustProvision("r-3")
		require.Equal(t, 1, images(), "it is imported again")
		require.Len(t, l.Machines(), 3)
	})
}

func TestEveryObjectOfSomebodyElseIsLeftAlone(t *testing.T) {
	names := machine.NamesOf(ref("r-1"))

	for _, test := range []struct{ kind, name string }{
		{"vm", names.VM}, {"secret", names.Secret},
		{"datavolume", names.Root}, {"claim", names.Root}, {"datavolume", names.Disk(0)}, {"claim", names.Disk(1)},
	} {
		t.Run(test.kind+" "+test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLab(t, kubevirt.Options{Enter: keepImages})

				id, err := l.AddForeign(test.kind, test.name)
				require.NoError(t, err)

				o := l.provision(requestOf("r-1", "{cores: 2, memory: 2048, disk_size: 10, additional_disks: [{size: 1}, {size: 1}]}"), time.Minute)
				require.Equal(t, driver.KindTerminal, driver.KindOf(o.err), "%v", o.said)
				require.ErrorContains(t, o.err, test.name)
				require.ErrorContains(t, o.err, "is not this provider's")

				l.mustRemove("r-1")

				list, err := l.driver.List(t.Context(), providerID)
				require.NoError(t, err)
				assert.Empty(t, list)

				assert.Contains(t, fmt.Sprint(l.Ledger().Objects()), id, "it is there as it was")
				assert.Empty(t, l.left())
			})
		})
	}
}

func TestInstanceThatOutlivesItsMachineIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")
		l.linger(5 * time.Minute)

		started := time.Now()
		o := l.remove("r-1", time.Hour)
		require.NoError(t, o.err)
		assert.GreaterOrEqual(t, time.Since(started), 5*time.Minute)
		assert.Contains(t, strings.Join(o.said, "\n"), "is being deleted")
		assert.Empty(t, l.left())
	})
}

func TestMachineGoesWithAllThatItOwns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		require.NoError(t, l.admin().VirtualMachines().DeleteWhole(t.Context(), l.vm("r-1")))
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		assert.Empty(t, l.left())

		list, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		assert.Empty(t, list)
	})
}

func TestWhatHasNoMachineIsListedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		// Somebody deletes the machine, and not what belongs to it.
		orphan := metav1.DeletePropagationOrphan
		require.NoError(t, l.admin().KubeVirt.KubevirtV1().VirtualMachines(namespace).Delete(t.Context(), l.vm("r-1").Name, metav1.DeleteOptions{PropagationPolicy: &orphan}))
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		list, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.True(t, list[0].Incomplete)
		assert.Equal(t, ref("r-1"), list[0].Ref)

		l.mustRemove("r-1")
		assert.Empty(t, l.left())
	})
}

func TestObjectThatTellsNoRequestIsReportedAndLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		vm := l.vm("r-1")
		_, err := l.admin().KubeVirt.KubevirtV1().VirtualMachines(namespace).Patch(t.Context(), vm.Name, "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"`+machine.AnnotationRequest+`":null}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		synctest.Wait()

		list, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)

		var found bool
		for _, m := range list {
			if m.RequestID == "" {
				found = true
				assert.True(t, m.Incomplete)
				assert.Equal(t, "VirtualMachine "+namespace+"/"+vm.Name, m.ID)
			}
		}

		assert.True(t, found, "%v", list)

		_ = l.remove("r-1", time.Minute)
		assert.Equal(t, vm.UID, l.vm("r-1").UID)
	})
}

func TestMachineThatHasNotRunIsMadeAsItsClassSaysNow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.Ledger().LoseReply(0)

		// It never gets its Secret at first.
		id, err := l.AddForeign("secret", machine.NamesOf(ref("r-1")).Secret)
		require.NoError(t, err)
		require.NotEmpty(t, id)
		require.Error(t, l.provision(requestOf("r-1", classData), time.Minute).err)

		first := l.vm("r-1")
		o := l.provision(requestOf("r-1", "{cores: 4, memory: 2048, disk_size: 10}"), time.Minute)
		require.Error(t, o.err)

		second := l.vm("r-1")
		assert.NotEqual(t, first.UID, second.UID)
		assert.EqualValues(t, 4, second.Spec.Template.Spec.Domain.CPU.Cores)
		assert.Contains(t, strings.Join(o.said, "\n"), "its class has changed")
	})
}

func TestRunningMachineIsNeverWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		before := l.vm("r-1")
		o := l.provision(requestOf("r-1", "{cores: 4, memory: 4096, disk_size: 20}"), time.Hour)
		require.NoError(t, o.err)

		after := l.vm("r-1")
		assert.Equal(t, before.UID, after.UID)
		assert.Equal(t, before.Spec, after.Spec)
	})
}

func TestPowerAndReboot(t *testing.T) {
	for _, strategy := range []kubevirtv1.VirtualMachineRunStrategy{kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyRerunOnFailure, kubevirtv1.RunStrategyManual} {
		t.Run(string(strategy), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				opts.Virt.Times.Start = 5 * time.Second
				l := newLab(t, opts)

				o := l.provision(requestOf("r-1", fmt.Sprintf("{cores: 2, memory: 2048, disk_size: 10, run_strategy: %s}", strategy)), time.Hour)
				require.NoError(t, o.err, "%v", o.said)

				find := func() driver.Machine {
					time.Sleep(2 * time.Minute)

					m, err := l.driver.Find(t.Context(), ref("r-1"))
					require.NoError(t, err)

					return m
				}

				first := find()
				require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOn))
				require.Equal(t, first, find(), "it is on")

				require.NoError(t, l.driver.Reboot(t.Context(), ref("r-1")))
				second := find()
				assert.NotEqual(t, first.Boot, second.Boot)
				assert.Equal(t, driver.PowerOn, second.Power)
				assert.Equal(t, first.UUID, second.UUID)

				require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
				off := find()
				assert.Equal(t, driver.PowerOff, off.Power, off.State)
				require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOff))
				require.ErrorContains(t, l.driver.Reboot(t.Context(), ref("r-1")), "it is off")

				require.NoError(t, l.driver.SetPower(t.Context(), ref("r-1"), driver.PowerOn))
				third := find()
				assert.Equal(t, driver.PowerOn, third.Power)
				assert.NotEqual(t, second.Boot, third.Boot)
				assert.Equal(t, strategy, *l.vm("r-1").Spec.RunStrategy)
			})
		})
	}
}

func TestMachineThatFailsAndIsToRunAgainIsNeitherOnNorOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.provision(requestOf("r-1", "{cores: 2, memory: 2048, disk_size: 10, run_strategy: RerunOnFailure}"), time.Hour)
		require.NoError(t, o.err, "%v", o.said)

		defer l.Virt.Inject(virt.Fault{Crash: true})()

		require.NoError(t, l.driver.Reboot(t.Context(), ref("r-1")))
		time.Sleep(5 * time.Minute)

		m, err := l.driver.Find(t.Context(), ref("r-1"))
		require.NoError(t, err)
		assert.Equal(t, driver.PowerUnknown, m.Power, m.State)
	})
}

func TestConnectionThatDiesInSilenceIsNoticedWithinAMinuteForAllWatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		// Whoever opens a watch is not answered. Those that are open say nothing, as nothing happens.
		defer l.Ledger().Inject(ledger.Fault{Kind: ledger.Hang, Op: "watch ", Times: -1, For: time.Hour})()

		time.Sleep(time.Minute)

		before := l.Ledger().CallsOf("list secrets")
		_, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		assert.Equal(t, before+1, l.Ledger().CallsOf("list secrets"), "they are asked for")
	})
}

func TestSweepLooksAtTheNamespaceOnceHoweverManyImagesAreDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})

		for i := range 4 {
			l.image.key = fmt.Sprintf("talos-v1.11.%d-nocloud-amd64-abc.qcow2", i)
			l.mustProvision(fmt.Sprintf("r-%d", i))
		}

		time.Sleep(25 * time.Hour)

		volumes, vms := l.Ledger().CallsOf("list datavolumes"), l.Ledger().CallsOf("list virtualmachines")
		_, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		time.Sleep(time.Minute)

		assert.Equal(t, 1, l.Ledger().CallsOf("list datavolumes")-volumes)
		assert.Equal(t, 1, l.Ledger().CallsOf("list virtualmachines")-vms)

		left, err := l.admin().DataVolumes().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
		require.NoError(t, err)
		assert.Empty(t, left)
	})
}

func TestImporterTrustsTheOperatorsAuthority(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages}, func(c *provider.Config) { c.Operator.ImageCertConfigMap = "factory-ca" })
		l.mustProvision("r-1")

		volumes, err := l.admin().DataVolumes().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
		require.NoError(t, err)
		require.Len(t, volumes, 1)
		assert.Equal(t, "factory-ca", volumes[0].Spec.Source.HTTP.CertConfigMap)
	})
}
