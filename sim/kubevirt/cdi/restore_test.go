package cdi

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// The snapshot of a clone may change, or go, between two looks at it.
func TestClaimOfACloneIsMadeForTheSnapshotThatWasChecked(t *testing.T) {
	client, err := kube.NewClient(&rest.Config{Host: "https://cluster.test"})
	require.NoError(t, err)
	c, err := New(kube.NewMirrors(client), Options{})
	require.NoError(t, err)

	put := func(version string, status *snapshotv1.VolumeSnapshotStatus) {
		c.snapshots.Put(&snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "image", ResourceVersion: version},
			Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: new("snapshots")}, Status: status,
		})
	}
	size := resource.MustParse("2Gi")
	put("1", &snapshotv1.VolumeSnapshotStatus{RestoreSize: &size})

	dv := &cdi.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"},
		Spec: cdi.DataVolumeSpec{
			Source:  &cdi.DataVolumeSource{Snapshot: &cdi.DataVolumeSourceSnapshot{Namespace: "n", Name: "image"}},
			Storage: &cdi.StorageSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		},
	}

	checked, problem := c.checkSource(dv)
	require.Empty(t, problem)

	for version, status := range map[string]*snapshotv1.VolumeSnapshotStatus{"2": {}, "3": nil} {
		put(version, status)

		spec, _, err := c.render(dv, checked)
		require.NoError(t, err)
		require.True(t, size.Equal(*spec.Resources.Requests.Storage()))
		require.Empty(t, checkRestore(checked, spec))
	}

	_, problem = c.checkSource(dv)
	require.Equal(t, "CloneValidationFailed", problem.reason)
}
