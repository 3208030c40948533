package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/snapshots"
)

// shots are a world with the snapshots' own client.
type shots struct {
	*world
	snapshotclient.Interface
}

func startShots(t *testing.T, opts kubevirt.Options) *shots {
	t.Helper()

	w := start(t, opts)
	config := w.RESTConfig(w.Ledger().Session())
	config.QPS = -1
	client, err := snapshotclient.NewForConfig(config)
	require.NoError(t, err)

	return &shots{w, client}
}

// take asks for a snapshot of a claim.
func (s *shots) take(name, claim string, change ...func(*snapshotv1.VolumeSnapshot)) {
	s.Helper()

	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
	for _, f := range change {
		f(snapshot)
	}

	_, err := s.SnapshotV1().VolumeSnapshots(ns).Create(s.Context(), snapshot, metav1.CreateOptions{})
	require.NoError(s, err)
}

func (s *shots) shot(name string) *snapshotv1.VolumeSnapshot {
	s.Helper()

	snapshot, err := s.SnapshotV1().VolumeSnapshots(ns).Get(s.Context(), name, metav1.GetOptions{})
	require.NoError(s, err)

	return snapshot
}

func (s *shots) gone(name string) bool {
	s.Helper()

	_, err := s.SnapshotV1().VolumeSnapshots(ns).Get(s.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(s, err)
	}

	return err != nil
}

func (s *shots) drop(name string) {
	s.Helper()
	require.NoError(s, s.SnapshotV1().VolumeSnapshots(ns).Delete(s.Context(), name, metav1.DeleteOptions{}))
}

func (s *shots) contents() []snapshotv1.VolumeSnapshotContent {
	s.Helper()

	list, err := s.SnapshotV1().VolumeSnapshotContents().List(s.Context(), metav1.ListOptions{})
	require.NoError(s, err)

	return list.Items
}

func shotOf(name string) *cdiv1.DataVolumeSource {
	return &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: ns, Name: name}}
}

// errorOf is what a snapshot says is wrong with it.
func errorOf(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil || s.Status.Error == nil {
		return ""
	}

	return *s.Status.Error.Message
}

func TestSnapshotIsBoundReadyAndRemovedWithItsContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Snapshots.Take = time.Minute
		s := startShots(t, opts)
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("image", "image")
		after(time.Second)

		is := s.shot("image")
		require.False(t, *is.Status.ReadyToUse)
		require.Nil(t, is.Status.RestoreSize)
		require.Equal(t, "snapcontent-"+string(is.UID), *is.Status.BoundVolumeSnapshotContentName)
		require.Equal(t, "snapshots", *is.Spec.VolumeSnapshotClassName, "the default one of the driver")
		require.ElementsMatch(t, []string{
			"snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection", "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
		}, is.Finalizers)

		const source = "snapshot.storage.kubernetes.io/pvc-as-source-protection"

		require.Contains(t, s.claim("image").Finalizers, source)

		// The claim stays until the snapshot is made.
		require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "image", metav1.DeleteOptions{}))
		after(time.Second)
		require.NotNil(t, s.claim("image").DeletionTimestamp)
		after(time.Minute)

		_, err := s.core.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "image", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)

		is = s.shot("image")
		require.True(t, *is.Status.ReadyToUse)
		require.NotNil(t, is.Status.CreationTime)
		require.EqualValues(t, 2276332667, is.Status.RestoreSize.Value(), "that of the claim")
		require.Len(t, s.contents(), 1)
		require.Equal(t, is.UID, s.contents()[0].Spec.VolumeSnapshotRef.UID)
		require.Contains(t, s.contents()[0].Finalizers, "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection")

		s.drop("image")
		after(time.Second)
		require.True(t, s.gone("image"))
		require.Empty(t, s.contents())
	})
}

func TestSnapshotIsTakenThoughItsClaimIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Snapshots.Take = time.Minute
		s := startShots(t, opts)
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("image", "image")
		after(time.Second)
		require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "image", metav1.DeleteOptions{}))
		after(time.Second)

		// Somebody is in a hurry.
		_, err := s.core.CoreV1().PersistentVolumeClaims(ns).Patch(t.Context(), "image", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		after(time.Second)

		_, err = s.core.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "image", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.False(t, *s.shot("image").Status.ReadyToUse)

		// The driver has begun, and needs the claim no more.
		after(time.Minute)
		require.True(t, *s.shot("image").Status.ReadyToUse)
		require.EqualValues(t, 2276332667, s.shot("image").Status.RestoreSize.Value(), "that of the claim")

		require.NoError(t, s.createVolume(volume("a", "10Gi", shotOf("image"))))
		after(time.Second)
		require.Equal(t, cdiv1.Succeeded, s.volume("a").Status.Phase)
		require.Equal(t, imageURL, s.CDI.Content(ns, "a"))
	})
}

func TestClassThatRetainsKeepsTheContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.SnapshotClasses = []kubevirt.SnapshotClass{{Name: "kept", Default: true, Retain: true}}
		s := startShots(t, opts)
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("image", "image")
		after(time.Second)
		s.drop("image")
		after(time.Second)
		require.True(t, s.gone("image"))
		require.Len(t, s.contents(), 1)
	})
}

func TestSnapshotSaysWhyThereIsNone(t *testing.T) {
	for name, tt := range map[string]struct {
		tune func(*kubevirt.Options)
		make func(*shots)
		want string
		mend func(*shots)
	}{
		"no class of the driver": {
			tune: func(o *kubevirt.Options) {
				o.SnapshotClasses = []kubevirt.SnapshotClass{{Name: "other", Default: true, Driver: "csi.other.example"}}
			},
			want: "Failed to set default snapshot class with error cannot find default snapshot class",
			mend: func(s *shots) {
				_, err := s.SnapshotV1().VolumeSnapshotClasses().Create(s.Context(), &snapshotv1.VolumeSnapshotClass{
					ObjectMeta: metav1.ObjectMeta{Name: "new", Annotations: map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true"}},
					Driver:     kubevirt.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
				}, metav1.CreateOptions{})
				require.NoError(s, err)
			},
		},
		"two default classes": {
			tune: func(o *kubevirt.Options) {
				o.SnapshotClasses = []kubevirt.SnapshotClass{{Name: "a", Default: true}, {Name: "b", Default: true}}
			},
			want: "Failed to set default snapshot class with error 2 default snapshot classes were found",
		},
		"a class that is not there": {
			make: func(s *shots) {
				s.take("a", "image", func(v *snapshotv1.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = new("nothing") })
			},
			want: `Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io "nothing" not found`,
		},
		"a class of another driver": {
			tune: func(o *kubevirt.Options) {
				o.SnapshotClasses = []kubevirt.SnapshotClass{{Name: "other", Driver: "csi.other.example"}}
			},
			make: func(s *shots) {
				s.take("a", "image", func(v *snapshotv1.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = new("other") })
			},
			want: "rpc error: code = NotFound desc = volume pvc-",
		},
		"no claim": {
			make: func(s *shots) {
				s.take("a", "nothing", func(v *snapshotv1.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = new("snapshots") })
			},
			want: "cannot get claim from snapshot",
			mend: func(s *shots) { require.NoError(s, s.createVolume(volume("nothing", "2Gi", imported()))) },
		},
		"no driver of its own": {
			tune: func(o *kubevirt.Options) {
				o.Classes = []kubevirt.StorageClass{{Name: "plain", Default: true, Plain: true}}
			},
			make: func(s *shots) {
				s.take("a", "image", func(v *snapshotv1.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = new("snapshots") })
			},
			want: "cannot find CSI PersistentVolumeSource for volume pvc-",
		},
		"an unbound claim": {
			tune: func(o *kubevirt.Options) {
				o.Classes = []kubevirt.StorageClass{{Name: "late", Default: true, WaitForFirstConsumer: true}}
			},
			want: "the PVC image is not yet bound to a PV, will not attempt to take a snapshot",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				if tt.tune != nil {
					tt.tune(&opts)
				}

				s := startShots(t, opts)
				require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
				after(time.Second)

				if tt.make == nil {
					s.take("a", "image")
				} else {
					tt.make(s)
				}

				after(5 * time.Second)
				require.Contains(t, errorOf(s.shot("a")), tt.want)
				require.False(t, *s.shot("a").Status.ReadyToUse)

				if tt.mend != nil {
					tt.mend(s)
					after(10 * time.Minute)
					require.True(t, *s.shot("a").Status.ReadyToUse, errorOf(s.shot("a")))
					require.Empty(t, errorOf(s.shot("a")))
				}

				s.drop("a")
				after(10 * time.Minute)
				require.True(t, s.gone("a"))
				require.NotContains(t, s.claim("image").Finalizers, "snapshot.storage.kubernetes.io/pvc-as-source-protection")
			})
		})
	}
}

func TestDriverThatFailsIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShots(t, kubevirt.Options{})
		remove := s.Snapshots.Inject(snapshots.Fault{Snapshot: ns + "/a", Message: "pool is full"})
		slow := s.Snapshots.Inject(snapshots.Fault{Snapshot: ns + "/b", Slow: true})
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("a", "image")
		s.take("b", "image")
		after(time.Minute)
		require.Contains(t, errorOf(s.shot("a")), `failed to take snapshot of the volume pvc-`)
		require.Contains(t, errorOf(s.shot("a")), `"pool is full"`)
		require.Empty(t, errorOf(s.shot("b")))
		require.False(t, *s.shot("b").Status.ReadyToUse)

		remove()
		slow()
		after(5 * time.Minute)
		require.True(t, *s.shot("a").Status.ReadyToUse)
		require.True(t, *s.shot("b").Status.ReadyToUse)
		require.Empty(t, errorOf(s.shot("a")))
	})
}

func TestCloneOfASnapshot(t *testing.T) {
	for name, tt := range map[string]struct {
		target       string
		block        bool
		early, later cdiv1.DataVolumePhase
	}{
		"of the same driver":    {"standard", false, cdiv1.CloneFromSnapshotSourceInProgress, cdiv1.CloneFromSnapshotSourceInProgress},
		"of another driver":     {"other", false, cdiv1.CloneFromSnapshotSourceInProgress, cdiv1.CloneInProgress},
		"of another mode":       {"standard", true, cdiv1.CloneFromSnapshotSourceInProgress, cdiv1.CloneInProgress},
		"without a CSI driver":  {"plain", false, cdiv1.CloneScheduled, cdiv1.CloneInProgress},
		"when a machine is due": {"late", false, cdiv1.PendingPopulation, cdiv1.PendingPopulation},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Classes = []kubevirt.StorageClass{
					{Name: "standard", Default: true}, {Name: "other", Driver: "csi.other.example"}, {Name: "plain", Plain: true},
					{Name: "late", WaitForFirstConsumer: true},
				}
				opts.CDI.Times.Clone = time.Minute
				s := startShots(t, opts)
				require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
				after(time.Second)
				s.take("image", "image")
				after(time.Second)
				require.NoError(t, s.createVolume(volume("a", "10Gi", shotOf("image"), onClass(tt.target), func(dv *cdiv1.DataVolume) {
					if tt.block {
						dv.Spec.Storage.VolumeMode = new(corev1.PersistentVolumeBlock)
					}
				})))
				after(time.Second)
				require.Equal(t, tt.early, s.volume("a").Status.Phase)
				after(30 * time.Second)
				require.Equal(t, tt.later, s.volume("a").Status.Phase)

				if tt.target == "late" {
					return
				}

				after(time.Minute)
				require.Equal(t, cdiv1.Succeeded, s.volume("a").Status.Phase)
				require.Equal(t, corev1.ClaimBound, s.claim("a").Status.Phase)
				require.Equal(t, imageURL, s.CDI.Content(ns, "a"))
			})
		})
	}
}

func TestCloneWaitsForASnapshotThatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Snapshots.Take = time.Minute
		s := startShots(t, opts)

		bound := func(name string) (reason, message string) { return told(s.volume(name), cdiv1.DataVolumeBound) }

		require.NoError(t, s.createVolume(volume("a", "10Gi", shotOf("image"))))
		require.NoError(t, s.createVolume(volume("small", "1Gi", shotOf("image"))))
		require.NoError(t, s.createVolume(volume("same", "", shotOf("image"))))
		after(time.Second)

		reason, message := bound("a")
		require.Equal(t, "CloneWithoutSource", reason)
		require.Equal(t, "The source snapshot image doesn't exist", message)

		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)

		remove := s.Snapshots.Inject(snapshots.Fault{Message: "pool is full"})
		s.take("image", "image")
		after(time.Second)

		reason, message = bound("a")
		require.Equal(t, "CloneValidationFailed", reason)
		require.Contains(t, message, "The clone doesn't meet the validation requirements: snapshot in error state with msg: ")
		require.Contains(t, message, "pool is full")

		remove()
		after(10 * time.Minute)

		for _, name := range []string{"a", "same"} {
			require.Equal(t, cdiv1.Succeeded, s.volume(name).Status.Phase, name)
			require.Equal(t, imageURL, s.CDI.Content(ns, name))
		}

		require.Equal(t, s.shot("image").Status.RestoreSize.Value(), s.claim("same").Spec.Resources.Requests.Storage().Value())

		reason, message = bound("small")
		require.Equal(t, "CloneValidationFailed", reason)
		require.Contains(t, message, "target resources requests storage size is smaller than the source 1138166334 < 2276332667")
		require.NotEqual(t, cdiv1.Succeeded, s.volume("small").Status.Phase)
	})
}

func TestSnapshotStaysUntilItsVolumeIsMade(t *testing.T) {
	for target, stays := range map[string]time.Duration{"standard": time.Minute, "other": 30 * time.Second} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Classes = []kubevirt.StorageClass{{Name: "standard", Default: true}, {Name: "other", Driver: "csi.other.example"}}
				opts.CDI.Times.Clone = time.Minute
				s := startShots(t, opts)
				require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
				after(time.Second)
				s.take("image", "image")
				after(time.Second)
				require.NoError(t, s.createVolume(volume("a", "10Gi", shotOf("image"), onClass(target))))
				after(time.Second)
				s.drop("image")
				after(stays - 2*time.Second)
				require.False(t, s.gone("image"), "it is being restored")
				after(2 * time.Second)
				require.True(t, s.gone("image"))
				after(time.Minute)
				require.Equal(t, cdiv1.Succeeded, s.volume("a").Status.Phase)
				require.Equal(t, imageURL, s.CDI.Content(ns, "a"))

				// A clone that is given up keeps nothing.
				s.take("image", "image")
				after(time.Second)
				require.NoError(t, s.createVolume(volume("b", "10Gi", shotOf("image"), onClass(target))))
				after(time.Second)
				s.drop("image")
				require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "b", metav1.DeleteOptions{}))
				after(2 * time.Second)
				require.True(t, s.gone("image"))
			})
		})
	}
}

func TestCloneOfASnapshotGoesOnAfterTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShots(t, kubevirt.Options{})
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)
		s.take("image", "image")
		after(time.Second)

		remove := s.CDI.Inject(cdi.Fault{Volume: ns + "/a", Message: "the driver is down"})
		require.NoError(t, s.createVolume(volume("a", "10Gi", shotOf("image"))))
		after(time.Minute)

		reason, message := told(s.volume("a"), cdiv1.DataVolumeRunning)
		require.Equal(t, "Error", reason)
		require.Equal(t, "the driver is down", message)

		remove()
		after(6 * time.Minute)
		require.Equal(t, cdiv1.Succeeded, s.volume("a").Status.Phase)
	})
}

func TestSnapshotGoesWithItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShots(t, kubevirt.Options{})
		require.NoError(t, s.createVolume(volume("image", "2Gi", imported())))
		after(time.Second)

		dv := s.volume("image")
		s.take("image", "image", func(v *snapshotv1.VolumeSnapshot) {
			v.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: dv.Name, UID: dv.UID}}
		})
		after(time.Second)
		require.NoError(t, s.cdi.CdiV1beta1().DataVolumes(ns).Delete(t.Context(), "image", metav1.DeleteOptions{}))
		after(time.Second)
		require.True(t, s.gone("image"))
		require.Empty(t, s.contents())
	})
}
