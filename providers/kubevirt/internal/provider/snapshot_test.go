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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/snapshots"
)

const snapshotClass = "{cores: 2, memory: 2048, disk_size: 10, image: {source: snapshot}}"

// counted are the images and their snapshots in the cluster.
func (l *lab) counted() (images, shots, contents int) {
	l.t.Helper()

	client, err := dynamic.NewForConfig(l.Server().Admin())
	require.NoError(l.t, err)

	count := func(group, version, resource string) int {
		list, err := client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource}).List(l.t.Context(), metav1.ListOptions{})
		require.NoError(l.t, err)

		n := 0

		for _, o := range list.Items {
			if o.GetLabels()[machine.LabelImage] != "" || resource == "volumesnapshotcontents" {
				n++
			}
		}

		return n
	}

	return count("cdi.kubevirt.io", "v1beta1", "datavolumes"), count("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
		count("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents")
}

func TestMachinesAreClonesOfOneSnapshotOfOneImport(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.Times.Import, opts.CDI.Times.Clone, opts.Snapshots.Take = time.Minute, 10*time.Second, 30*time.Second
		l := newLab(t, opts)

		var wg sync.WaitGroup

		for i := range 5 {
			wg.Go(func() {
				o := l.provision(requestOf(fmt.Sprintf("r-%d", i), snapshotClass), time.Hour)
				assert.NoError(t, o.err, "%v", o.said)
			})
		}

		wg.Wait()

		images, shots, contents := l.counted()
		assert.Equal(t, []int{1, 1, 1}, []int{images, shots, contents})
		assert.Equal(t, 1, l.Ledger().CallsOf("create datavolumes"))
		assert.Equal(t, 1, l.image.opened)
		assert.Len(t, l.Machines(), 5)

		for i := range 5 {
			root := machine.NamesOf(ref(fmt.Sprintf("r-%d", i))).Root
			assert.Equal(t, l.image.URL(), l.CDI.Content(namespace, root))

			volume, err := l.admin().DataVolumes().Get(t.Context(), namespace, root)
			require.NoError(t, err)
			assert.NotNil(t, volume.Spec.Source.Snapshot)
		}

		for i := range 5 {
			l.mustRemove(fmt.Sprintf("r-%d", i))
		}

		assert.Empty(t, l.left())
	})
}

func TestSnapshotThatIsNotMadeIsSaid(t *testing.T) {
	for name, test := range map[string]struct {
		tune    func(*kubevirt.Options)
		trouble func(l *lab) (undo func())
		want    string
	}{
		"the driver fails": {
			trouble: func(l *lab) func() { return l.Snapshots.Inject(snapshots.Fault{Message: "pool is full"}) },
			want:    "pool is full",
		},
		"no class": {
			tune: func(o *kubevirt.Options) { o.SnapshotClasses = []kubevirt.SnapshotClass{} },
			want: "cannot find default snapshot class",
		},
		"no driver": {
			tune: func(o *kubevirt.Options) {
				o.Classes = []kubevirt.StorageClass{{Name: "plain", Default: true, Plain: true}}
			},
			want: "default snapshot class",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				if test.tune != nil {
					test.tune(&opts)
				}

				l := newLab(t, opts)

				if test.trouble != nil {
					undo := test.trouble(l)
					end := time.AfterFunc(20*time.Minute, undo)

					defer end.Stop()
				}

				o := l.provision(requestOf("r-1", snapshotClass), 5*time.Minute)
				require.Error(t, o.err)

				said := o.said[len(o.said)-1]
				assert.Contains(t, said, "the snapshot of image ")
				assert.Contains(t, said, test.want)
				assert.NotContains(t, said, "\n")
				assert.Empty(t, l.Machines(), "no machine is made before")

				if test.trouble != nil {
					o = l.provision(requestOf("r-1", snapshotClass), time.Hour)
					require.NoError(t, o.err, "%v", o.said)
				}
			})
		})
	}
}

func TestSnapshotGoesWithAnImageThatSomebodyDeletes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		require.NoError(t, l.provision(requestOf("r-1", snapshotClass), time.Hour).err)
		l.mustRemove("r-1")

		volumes, err := l.admin().DataVolumes().List(t.Context(), namespace, metav1.ListOptions{LabelSelector: machine.LabelImage})
		require.NoError(t, err)
		require.Len(t, volumes, 1)
		require.NoError(t, l.admin().DataVolumes().Delete(t.Context(), volumes[0]))
		time.Sleep(time.Minute)

		images, shots, contents := l.counted()
		assert.Equal(t, []int{0, 0, 0}, []int{images, shots, contents})
	})
}

func TestImageAndItsSnapshotAreSweptTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.provision(requestOf("r-1", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)

		// A clone that makes no progress keeps both, for however long.
		undo := l.CDI.Inject(cdi.Fault{Volume: namespace + "/" + machine.NamesOf(ref("r-2")).Root, Message: "the driver is down"})
		require.Error(t, l.provision(requestOf("r-2", snapshotClass), 10*time.Minute).err)
		l.restart()

		pass := func(hours int) {
			for range hours {
				time.Sleep(time.Hour)

				_, err := l.driver.List(t.Context(), providerID)
				require.NoError(t, err)
				synctest.Wait()
			}
		}

		pass(72)

		images, shots, contents := l.counted()
		require.Equal(t, []int{1, 1, 1}, []int{images, shots, contents}, "a clone is being made")

		undo()
		pass(30)

		images, shots, contents = l.counted()
		require.Equal(t, []int{0, 0, 0}, []int{images, shots, contents})
		require.Len(t, l.Machines(), 2)

		o = l.provision(requestOf("r-3", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
	})
}

func TestSnapshotThatIsBeingDeletedIsNotCloned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.provision(requestOf("r-1", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)

		client, err := dynamic.NewForConfig(l.Server().Admin())
		require.NoError(t, err)

		shots := client.Resource(schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}).Namespace(namespace)

		list, err := shots.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)

		held := &list.Items[0]
		held.SetFinalizers(append(held.GetFinalizers(), "example.org/held"))
		_, err = shots.Update(t.Context(), held, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, shots.Delete(t.Context(), held.GetName(), metav1.DeleteOptions{}))
		synctest.Wait()

		o = l.provision(requestOf("r-2", snapshotClass), 5*time.Minute)
		require.ErrorContains(t, o.err, "an earlier snapshot of image")
		require.Len(t, l.Machines(), 1)

		_, err = shots.Patch(t.Context(), held.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)

		o = l.provision(requestOf("r-2", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
		require.Len(t, l.Machines(), 2)
	})
}

func TestCrashAtAnyCallWithASnapshotLeavesOneMachineOrNothing(t *testing.T) {
	var calls int

	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		o := l.provision(requestOf("r-1", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
		l.mustRemove("r-1")

		calls = l.Ledger().Calls()
	})

	require.Greater(t, calls, 10)

	for _, lost := range []bool{false, true} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("%d-%t", n, lost), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					keep := func(c *provider.Config) { c.KeepImages = true }
					l := newLab(t, kubevirt.Options{Enter: keepImages}, keep)
					dead := make(chan struct{}, 1)

					l.Ledger().CrashAfter(n, lost, func() {
						select {
						case dead <- struct{}{}:
						default:
						}
					})

					l.live(snapshotClass, func() bool { return len(dead) > 0 })
					l.Ledger().CrashAfter(0, false, nil)
					l.restart(keep)

					o := l.provision(requestOf("r-1", snapshotClass), time.Hour)
					require.NoError(t, o.err, "%s", strings.Join(o.said, "\n"))
					require.Len(t, l.Machines(), 1)

					l.mustRemove("r-1")
					require.Empty(t, l.left())

					images, shots, contents := l.counted()
					require.Equal(t, []int{1, 1, 1}, []int{images, shots, contents}, "images, snapshots and their contents")
				})
			})
		}
	}
}

func TestSnapshotThatIsReadyIsNotAskedForAgainWithEachLookAtAMachineThatStarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.Virt.Times.Pull = 2 * time.Minute
		l := newLab(t, opts)

		require.NoError(t, l.provision(requestOf("r-1", snapshotClass), time.Hour).err)

		before := l.Ledger().CallsOf("get volumesnapshots")
		require.LessOrEqual(t, before, 4)

		require.NoError(t, l.provision(requestOf("r-2", snapshotClass), time.Hour).err)
		assert.LessOrEqual(t, l.Ledger().CallsOf("get volumesnapshots")-before, 1)
	})
}

func TestSnapshotThatSomebodyDeletesIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		require.NoError(t, l.provision(requestOf("r-1", snapshotClass), time.Hour).err)

		client, err := dynamic.NewForConfig(l.Server().Admin())
		require.NoError(t, err)

		kind := client.Resource(schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}).Namespace(namespace)
		require.NoError(t, kind.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))

		o := l.provision(requestOf("r-2", snapshotClass), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
	})
}
