package provider_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// imageOf is the image that the machines of a class are made from.
func (l *lab) imageOf(data string) machine.ImageVolume {
	l.t.Helper()

	c, err := machine.Decode(data, machine.Operator{Namespaces: []string{namespace}})
	require.NoError(l.t, err)

	return c.ImageVolume(requestOf("r-1", data), l.image, "v0.0.0")
}

func TestObjectWithAnImagesNameThatIsSomebodyElsesIsLeftAlone(t *testing.T) {
	request := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

	kinds := map[string]struct {
		data, said string
		resource   schema.GroupVersionResource
		object     map[string]any
	}{
		"DataVolume": {
			data: classData, said: "DataVolume", resource: schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"},
			object: map[string]any{"spec": map[string]any{
				"source":  map[string]any{"blank": map[string]any{}},
				"storage": map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": request.Storage().String()}}},
			}},
		},
		"claim": {
			data: classData, said: "volume claim", resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"},
			object: map[string]any{"spec": map[string]any{
				"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": request.Storage().String()}},
			}},
		},
		"snapshot": {
			data: snapshotClass, said: "volume snapshot", resource: schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"},
			object: map[string]any{"spec": map[string]any{"source": map[string]any{"persistentVolumeClaimName": "somebodys"}}},
		},
	}

	apiKinds := map[string]string{"DataVolume": "DataVolume", "claim": "PersistentVolumeClaim", "snapshot": "VolumeSnapshot"}

	marks := map[string]func(i machine.ImageVolume) (labels, annotations map[string]string){
		"without a mark": func(machine.ImageVolume) (labels, annotations map[string]string) { return nil, nil },
		"with the mark of another provider": func(i machine.ImageVolume) (labels, annotations map[string]string) {
			i.ProviderID = "another"
			o := i.DataVolume()

			return o.Labels, o.Annotations
		},
		"with the mark of another image": func(i machine.ImageVolume) (labels, annotations map[string]string) {
			i.Key = "another"
			o := i.DataVolume()

			return o.Labels, o.Annotations
		},
		"with the mark of a machine": func(machine.ImageVolume) (labels, annotations map[string]string) {
			m := machine.Mark{Ref: ref("r-1")}

			return m.Labels(), m.Annotations()
		},
	}

	for kind, k := range kinds {
		for mark, of := range marks {
			t.Run(kind+" "+mark, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					l := newLab(t, kubevirt.Options{Enter: keepImages})
					image := l.imageOf(k.data)

					client, err := dynamic.NewForConfig(l.Server().Admin())
					require.NoError(t, err)

					objects := client.Resource(k.resource).Namespace(namespace)
					theirs := &unstructured.Unstructured{Object: k.object}
					theirs = theirs.DeepCopy()
					theirs.SetAPIVersion(k.resource.GroupVersion().String())
					theirs.SetKind(apiKinds[kind])
					theirs.SetName(image.Name())

					labels, annotations := of(image)
					theirs.SetLabels(labels)
					theirs.SetAnnotations(annotations)

					_, err = objects.Create(t.Context(), theirs, metav1.CreateOptions{})
					require.NoError(t, err)
					time.Sleep(time.Minute)
					synctest.Wait()

					before, err := objects.Get(t.Context(), image.Name(), metav1.GetOptions{})
					require.NoError(t, err)

					o := l.provision(requestOf("r-1", k.data), 10*time.Minute)
					require.Equal(t, driver.KindTerminal, driver.KindOf(o.err), "%v", o.said)
					require.ErrorContains(t, o.err, k.said+` "`+image.Name()+`" in namespace "`+namespace+`" is not this provider's`)
					assert.Empty(t, l.Machines())

					// Neither the next sweeps nor the removal take it for ours.
					l.mustRemove("r-1")

					for range 30 {
						time.Sleep(time.Hour)

						_, err := l.driver.List(t.Context(), providerID)
						require.NoError(t, err)
					}

					synctest.Wait()

					after, err := objects.Get(t.Context(), image.Name(), metav1.GetOptions{})
					require.NoError(t, err)
					assert.Equal(t, before.Object, after.Object)
				})
			})
		}
	}
}
