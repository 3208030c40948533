package kubevirt_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// sized is a machine whose size and bus are said by an instance type and a preference.
func sized(name string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
	vm := diskless(name, strategy)
	vm.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: "medium"}
	vm.Spec.Preference = &kubevirtv1.PreferenceMatcher{Name: "linux", Kind: "VirtualMachinePreference"}
	vm.Spec.Template.Spec.Domain.CPU, vm.Spec.Template.Spec.Domain.Memory = nil, nil

	return vm
}

// furnish makes the instance type and the preference of such machines.
func (w *world) furnish() *instancetypev1beta1.VirtualMachineClusterInstancetype {
	w.Helper()

	size, err := w.virt.InstancetypeV1beta1().VirtualMachineClusterInstancetypes().Create(w.Context(),
		&instancetypev1beta1.VirtualMachineClusterInstancetype{
			ObjectMeta: metav1.ObjectMeta{Name: "medium", Labels: map[string]string{"vendor": "example"}},
			Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
				CPU: instancetypev1beta1.CPUInstancetype{Guest: 2}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("4Gi")},
			},
		}, metav1.CreateOptions{})
	require.NoError(w, err)

	_, err = w.virt.InstancetypeV1beta1().VirtualMachinePreferences(ns).Create(w.Context(), &instancetypev1beta1.VirtualMachinePreference{
		ObjectMeta: metav1.ObjectMeta{Name: "linux"},
		Spec:       instancetypev1beta1.VirtualMachinePreferenceSpec{PreferredTerminationGracePeriodSeconds: new(int64(7))},
	}, metav1.CreateOptions{})
	require.NoError(w, err)

	return size
}

func (w *world) revisions() []appsv1.ControllerRevision {
	w.Helper()

	list, err := w.core.AppsV1().ControllerRevisions(ns).List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)

	return list.Items
}

func TestMachineKeepsTheInstanceTypeThatItWasMadeWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		size := w.furnish()
		vm := w.create(sized("a", "Halted"))
		after(time.Second)

		revisions := w.revisions()
		require.Len(t, revisions, 2, "of the type and of the preference, before it is ever started")

		status := w.machine("a").Status
		require.Equal(t, &kubevirtv1.InstancetypeStatusRef{
			Name: "medium", Kind: status.InstancetypeRef.Kind,
			ControllerRevisionRef: &kubevirtv1.ControllerRevisionRef{Name: fmt.Sprintf("a-medium-v1beta1-%s-1", size.UID)},
		}, status.InstancetypeRef)
		require.Equal(t, "linux", status.PreferenceRef.Name)

		kept, err := w.core.AppsV1().ControllerRevisions(ns).Get(t.Context(), status.InstancetypeRef.ControllerRevisionRef.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.VirtualMachineGroupVersionKind)}, kept.OwnerReferences)
		require.Equal(t, map[string]string{
			"instancetype.kubevirt.io/object-generation": "1", "instancetype.kubevirt.io/object-kind": "VirtualMachineClusterInstancetype",
			"instancetype.kubevirt.io/object-name": "medium", "instancetype.kubevirt.io/object-uid": string(size.UID),
			"instancetype.kubevirt.io/object-version": "v1beta1",
		}, kept.Labels)

		var stored instancetypev1beta1.VirtualMachineClusterInstancetype

		require.NoError(t, json.Unmarshal(kept.Data.Raw, &stored))
		require.Equal(t, "instancetype.kubevirt.io/v1beta1", stored.APIVersion)
		require.Equal(t, "VirtualMachineClusterInstancetype", stored.Kind)
		require.Equal(t, size.UID, stored.UID)
		require.Empty(t, stored.Labels)
		require.EqualValues(t, 2, stored.Spec.CPU.Guest)

		// The type is edited, the preference deleted: neither touches the machine.
		types := w.virt.InstancetypeV1beta1().VirtualMachineClusterInstancetypes()
		size.Spec.CPU.Guest = 16
		_, err = types.Update(t.Context(), size, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, w.virt.InstancetypeV1beta1().VirtualMachinePreferences(ns).Delete(t.Context(), "linux", metav1.DeleteOptions{}))

		for range 2 {
			w.call("virtualmachines", "a", "start", "")
			after(time.Minute)
			require.Equal(t, "Running", w.status("a"))
			require.EqualValues(t, 2, w.instance("a").Spec.Domain.CPU.Sockets)
			require.EqualValues(t, 7, *w.instance("a").Spec.TerminationGracePeriodSeconds)
			w.call("virtualmachines", "a", "stop", "")
			after(time.Minute)
			require.Equal(t, "Stopped", w.status("a"))
			require.NoError(t, types.Delete(t.Context(), "medium", metav1.DeleteOptions{}))
			_, err = types.Create(t.Context(), &instancetypev1beta1.VirtualMachineClusterInstancetype{
				ObjectMeta: metav1.ObjectMeta{Name: "medium"}, Spec: size.Spec,
			}, metav1.CreateOptions{})
			require.NoError(t, err)
		}

		require.Len(t, w.revisions(), 2)
		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Empty(t, w.revisions(), "they go with the machine")
	})
}

func TestMachineOfAnotherTypeKeepsThatOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.furnish()
		w.create(sized("a", "Halted"))
		after(time.Second)

		first := w.machine("a").Status.InstancetypeRef.ControllerRevisionRef.Name

		_, err := w.virt.InstancetypeV1beta1().VirtualMachineInstancetypes(ns).Create(t.Context(), &instancetypev1beta1.VirtualMachineInstancetype{
			ObjectMeta: metav1.ObjectMeta{Name: "large"},
			Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
				CPU: instancetypev1beta1.CPUInstancetype{Guest: 8}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resource.MustParse("4Gi")},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		set := func(matcher string) {
			_, err := w.virt.KubevirtV1().VirtualMachines(ns).Patch(t.Context(), "a", types.MergePatchType,
				[]byte(`{"spec":{"instancetype":`+matcher+`}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			after(time.Second)
		}

		set(`{"name":"large","kind":"VirtualMachineInstancetype"}`)
		require.Equal(t, "large", w.machine("a").Status.InstancetypeRef.Name)
		require.NotEqual(t, first, w.machine("a").Status.InstancetypeRef.ControllerRevisionRef.Name)

		// A revision that is named counts, whatever the type says.
		set(fmt.Sprintf(`{"name":"medium","kind":"VirtualMachineClusterInstancetype","revisionName":%q}`, first))
		require.Equal(t, first, w.machine("a").Status.InstancetypeRef.ControllerRevisionRef.Name)
		w.call("virtualmachines", "a", "start", "")
		after(time.Minute)
		require.EqualValues(t, 2, w.instance("a").Spec.Domain.CPU.Sockets)
	})
}

func TestMachineOfATypeThatIsNotThereSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.create(sized("a", "Always"))
		after(10 * time.Second)
		require.Equal(t, "Stopped", w.status("a"))
		require.Nil(t, w.instance("a"))

		failure := func() (reason, message string) {
			for _, c := range w.machine("a").Status.Conditions {
				if c.Type == kubevirtv1.VirtualMachineFailure {
					return c.Reason, c.Message
				}
			}

			return "", ""
		}
		reason, message := failure()
		require.Equal(t, "FailedFindInstancetype", reason)
		require.Equal(t, `virtualmachineclusterinstancetypes.instancetype.kubevirt.io "medium" not found`, message)

		w.furnish()
		after(2 * time.Minute)
		require.Equal(t, "Running", w.status("a"))

		reason, _ = failure()
		require.Empty(t, reason)
	})
}
