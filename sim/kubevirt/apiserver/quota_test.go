package apiserver_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// limit makes a quota in the namespace "default".
func limit(t *testing.T, c kubernetes.Interface, name core.ResourceName, hard string) {
	t.Helper()

	_, err := c.CoreV1().ResourceQuotas("default").Create(t.Context(), &core.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec:       core.ResourceQuotaSpec{Hard: core.ResourceList{name: resource.MustParse(hard)}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// claim makes a claim of 1Gi in the namespace "default", which is bound, so that it may grow.
func claim(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()

	made, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &core.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: core.PersistentVolumeClaimSpec{
			AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce}, StorageClassName: new("slow"),
			Resources: core.VolumeResourceRequirements{Requests: core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	made.Status.Phase = core.ClaimBound
	_, err = c.CoreV1().PersistentVolumeClaims("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func grow(t *testing.T, c kubernetes.Interface, name, size string) error {
	t.Helper()

	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := c.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})

	return err
}

// atOnce calls f from many goroutines and returns how many calls had no error. All others have to be refused by the quota.
func atOnce(t *testing.T, many int, f func(i int) error) (done int) {
	t.Helper()

	var (
		begin = make(chan struct{})
		errs  = make([]error, many)
		work  sync.WaitGroup
	)

	for i := range many {
		work.Go(func() {
			<-begin

			errs[i] = f(i)
		})
	}

	close(begin)
	work.Wait()

	for _, err := range errs {
		if err == nil {
			done++

			continue
		}

		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "exceeded quota: few")
	}

	return done
}

// Which of them come between the check of another one and its storing is luck: there are many rounds.
func TestQuotaIsKeptByManyAtOnce(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, c dynamic.ResourceInterface, name string) error{
		"created": func(t *testing.T, c dynamic.ResourceInterface, name string) error {
			_, err := c.Create(t.Context(), machine(name), metav1.CreateOptions{})

			return err
		},
		"applied": func(t *testing.T, c dynamic.ResourceInterface, name string) error {
			_, err := c.Apply(t.Context(), name, machine(name), metav1.ApplyOptions{FieldManager: "test"})

			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t)
				c := vms(t, s.Admin())
				limit(t, kube(t, s.Admin()), "count/virtualmachines.kubevirt.io", "1")

				for range 20 {
					require.Equal(t, 1, atOnce(t, 12, func(i int) error { return make(t, c, fmt.Sprint("vm-", i)) }))
					require.NoError(t, c.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
				}
			})
		})
	}
}

func TestQuotaLimitsTheGrowthOfClaims(t *testing.T) {
	for _, name := range []core.ResourceName{"requests.storage", "slow.storageclass.storage.k8s.io/requests.storage"} {
		synctest.Test(t, func(t *testing.T) {
			c := kube(t, start(t).Admin())
			claim(t, c, "a")
			claim(t, c, "b")
			limit(t, c, name, "4Gi")

			require.NoError(t, grow(t, c, "a", "2Gi"))
			require.EqualError(t, grow(t, c, "b", "3Gi"), fmt.Sprintf(
				`persistentvolumeclaims "b" is forbidden: exceeded quota: few, requested: %[1]s=2Gi, used: %[1]s=3Gi, limited: %[1]s=4Gi`, name))

			_, err := c.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "a", types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, grow(t, c, "b", "2Gi"))
			require.NoError(t, c.CoreV1().ResourceQuotas("default").Delete(t.Context(), "few", metav1.DeleteOptions{}))

			limit(t, c, name, "1Gi")

			_, err = c.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "a", types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"a":"c"}}}`), metav1.PatchOptions{})
			require.NoError(t, err, "what does not grow is no matter of a quota")
		})
	}
}

func TestQuotaIsKeptByManyClaimsThatGrowAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kube(t, start(t).Admin())

		for i := range 40 {
			claim(t, c, fmt.Sprint("claim-", i))
		}

		limit(t, c, core.ResourceRequestsStorage, "45Gi")
		require.Equal(t, 5, atOnce(t, 40, func(i int) error { return grow(t, c, fmt.Sprint("claim-", i), "2Gi") }))
	})
}
