package provider_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// copyOf is what KubeVirt's own clone makes: another name, and the labels and annotations of the first.
func copyOf(vm *kubevirtv1.VirtualMachine, name string) *kubevirtv1.VirtualMachine {
	strategy := kubevirtv1.RunStrategyHalted
	c := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: name, Labels: vm.Labels, Annotations: vm.Annotations},
		Spec:       *vm.Spec.DeepCopy(),
	}
	c.Spec.RunStrategy, c.Spec.DataVolumeTemplates = &strategy, nil
	c.Spec.Template.Spec.Domain.Firmware.UUID = ""

	return c
}

func TestAUsersCopyOfAMachineIsTheUsers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		_, err := l.admin().VirtualMachines().Create(t.Context(), copyOf(l.vm("r-1"), "my-copy"), "somebody")
		require.NoError(t, err)
		synctest.Wait()

		list, err := l.driver.List(t.Context(), providerID)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, namespace+"/"+machine.NamesOf(ref("r-1")).VM, list[0].ID)

		l.mustRemove("r-1")

		left, err := l.admin().VirtualMachines().Get(t.Context(), namespace, "my-copy")
		require.NoError(t, err)
		require.Nil(t, left.DeletionTimestamp)
	})
}

func TestAStrangersMachineOfOurNameIsLeftAloneAndHoldsNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		theirs := copyOf(l.vm("r-1"), machine.NamesOf(ref("r-2")).VM)
		theirs.Labels, theirs.Annotations = nil, nil
		theirs.Spec.Template.ObjectMeta = metav1.ObjectMeta{}
		*theirs.Spec.RunStrategy = kubevirtv1.RunStrategyAlways

		_, err := l.admin().VirtualMachines().Create(t.Context(), theirs, "somebody")
		require.NoError(t, err)
		time.Sleep(time.Minute)

		instance, err := l.admin().Instances().Get(t.Context(), namespace, theirs.Name)
		require.NoError(t, err)

		l.mustRemove("r-2")

		again, err := l.admin().Instances().Get(t.Context(), namespace, theirs.Name)
		require.NoError(t, err)
		require.Equal(t, instance.UID, again.UID)
	})
}

func TestARequestThatItsClassRulesOutIsRefusedBeforeAnythingIsMade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})

		r := ref("r-1")
		_, err := l.driver.Plan(t.Context(), driver.Request{
			Ref: r, Identity: driver.NewIdentity(r), TalosVersion: "v1.13.5", Extensions: []string{"siderolabs/iscsi-tools"},
			ClassData: "{cores: 2, memory: 2048, disk_size: 10, image: {source: container_disk, reference: 'r/t:{version}'}}",
		})
		require.ErrorContains(t, err, "image.source: got container_disk")
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		require.Zero(t, l.Ledger().CallsOf("create virtualmachines"))
	})
}
