//go:build !race

// The fake clock keeps the test's looks into the controllers apart from what those do, which the race detector does not know.

package kubevirt_test

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// remembered are the sizes of all maps of the controllers.
func (w *world) remembered() map[string]int {
	synctest.Wait()

	sizes := map[string]int{}

	for name, controller := range map[string]any{"virt": w.Virt, "cdi": w.CDI, "kubernetes": w.Kubernetes, "snapshots": w.Snapshots} {
		fields := reflect.ValueOf(controller).Elem()

		for i := range fields.NumField() {
			if fields.Field(i).Kind() == reflect.Map {
				sizes[name+" "+fields.Type().Field(i).Name] = fields.Field(i).Len()
			}
		}
	}

	return sizes
}

func TestNothingIsRememberedOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "standard", Default: true}, {Name: "late", WaitForFirstConsumer: true}}
		opts.Virt.Boot = newGuests().boot
		opts.CDI.Times.Clone = time.Minute
		s := startShots(t, opts)
		s.Virt.Inject(virt.Fault{Linger: time.Minute})

		ever := map[string]bool{}
		look := func() {
			for name, size := range s.remembered() {
				ever[name] = ever[name] || size > 0
			}
		}

		for range 3 {
			s.create(withTPM(machine("a")))
			s.create(machine("late", func(vm *kubevirtv1.VirtualMachine) {
				vm.Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName = new("late")
			}))
			require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
			require.NoError(t, s.createVolume(volume("waits", "2Gi", imported(), onClass("late"))))
			after(time.Second)
			s.take("image", "image")
			s.take("twice", "image")
			after(time.Second)
			require.NoError(t, s.createVolume(volume("clone", "10Gi", shotOf("image"))))
			after(time.Second)
			require.Equal(t, "Running", s.status("a"))
			require.NotEmpty(t, s.states("a"))
			look()

			// Of a volume that is gone remains what its snapshots need.
			require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "image", metav1.DeleteOptions{}))
			after(2 * time.Minute)
			require.Equal(t, cdiv1.Succeeded, s.volume("clone").Status.Phase)
			require.NoError(t, s.createVolume(volume("again", "10Gi", shotOf("twice"))))
			after(2 * time.Minute)
			require.Equal(t, imageURL, s.CDI.Content(ns, "again"))

			for _, name := range []string{"a", "late"} {
				require.NoError(t, s.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
				require.NoError(t, s.core.CoreV1().Secrets(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
			}

			for _, name := range []string{"clone", "again", "waits"} {
				require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
			}

			s.drop("image")

			// Somebody takes the finalizers of a snapshot away.
			_, err := s.SnapshotV1().VolumeSnapshots(ns).Patch(t.Context(), "twice", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			s.drop("twice")
			after(30 * time.Second)
			look()
			after(10 * time.Minute)

			for _, content := range s.contents() {
				require.NoError(t, s.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), content.Name, metav1.DeleteOptions{}))
				_, err := s.SnapshotV1().VolumeSnapshotContents().Patch(t.Context(), content.Name, types.MergePatchType,
					[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			}

			after(time.Minute)
			require.Empty(t, s.Ledger().Leaks(), s.Ledger().History())
		}

		for name, size := range s.remembered() {
			require.Zero(t, size, name)
		}

		for _, name := range []string{"virt domains", "virt lasting", "virt parted", "cdi jobs", "cdi contents", "kubernetes waiting", "snapshots works"} {
			require.True(t, ever[name], "%s: it was in use", name)
		}
	})
}

func TestEveryClaimOfANameIsToldThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "late", Default: true, WaitForFirstConsumer: true}}
		w := start(t, opts)

		for n := 1; n <= 2; n++ {
			require.NoError(t, w.createVolume(volume("a", "2Gi", imported())))
			after(time.Minute)
			require.NoError(t, w.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
			after(time.Minute)

			events, err := w.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=WaitForFirstConsumer"})
			require.NoError(t, err)
			require.Len(t, events.Items, n)
		}
	})
}
