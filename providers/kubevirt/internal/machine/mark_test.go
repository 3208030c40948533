package machine

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func marked(m Mark) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: NamesOf(m.Ref).VM, Labels: m.Labels(), Annotations: m.Annotations()}
}

func TestAMarkIsReadBackAsItWasWhateverTheIDs(t *testing.T) {
	for _, id := range append(awkward, hashed+hash("label", "a b")) {
		m := Mark{Ref: driver.Ref{ProviderID: "kubevirt", RequestID: id}, Set: id, Version: "v1"}

		for name, value := range m.Labels() {
			require.Empty(t, validation.IsQualifiedName(name))
			require.Empty(t, validation.IsValidLabelValue(value), "%q", value)
		}

		got, ok := MarkOf(marked(m))
		require.True(t, ok)
		require.Equal(t, m, got)
		require.True(t, Owns(m.Ref, marked(m)))
		require.True(t, SelectorOf(m.Ref).Matches(labels.Set(m.Labels())))
	}

	require.NotEqual(t, LabelValue("a b"), LabelValue(hashed+hash("label", "a b")), "no id is the hash of another")
}

func TestWhatHasNoWholeMarkIsNobodysMachine(t *testing.T) {
	ref := driver.Ref{ProviderID: "kubevirt", RequestID: "workers-x7k2p"}
	good := marked(Mark{Ref: ref, Version: "v1"})

	for name, change := range map[string]func(o *metav1.ObjectMeta){
		"a copy's name":       func(o *metav1.ObjectMeta) { o.Name = "my-copy" },
		"a longer name":       func(o *metav1.ObjectMeta) { o.Name += "-restored" },
		"a disk of no number": func(o *metav1.ObjectMeta) { o.Name += "-disk-0" },
		"nothing":             func(o *metav1.ObjectMeta) { o.Labels, o.Annotations = nil, nil },
		"labels alone":        func(o *metav1.ObjectMeta) { o.Annotations = nil },
		"annotations alone":   func(o *metav1.ObjectMeta) { o.Labels = nil },
		"another's label":     func(o *metav1.ObjectMeta) { o.Labels[LabelProvider] = "other" },
		"another's ids":       func(o *metav1.ObjectMeta) { o.Annotations[AnnotationProvider] = "other" },
		"an image's as well":  func(o *metav1.ObjectMeta) { o.Labels[LabelImage] = "x" },
		"another's request":   func(o *metav1.ObjectMeta) { o.Labels[LabelRequest] = "other" },
		"no request's id":     func(o *metav1.ObjectMeta) { delete(o.Annotations, AnnotationRequest) },
		"request's id edited": func(o *metav1.ObjectMeta) { o.Annotations[AnnotationRequest] = "Workers-x7k2p" },
	} {
		o := good.DeepCopy()
		change(o)
		require.False(t, Owns(ref, o), name)
	}

	for _, name := range NamesOf(ref).All(16) {
		o := good.DeepCopy()
		o.Name = name
		require.True(t, Owns(ref, o), name)
	}

	pod := good.DeepCopy()
	pod.Name = "virt-launcher-" + pod.Name + "-x7k2p"
	require.True(t, Owns(ref, pod))

	broken := good.DeepCopy()
	broken.Labels[LabelRequest] = "other"
	m, ok := MarkOf(broken)
	require.True(t, ok, "it is told of as the provider's")
	require.Equal(t, Mark{Ref: driver.Ref{ProviderID: "kubevirt"}, Version: "v1"}, m)
	require.False(t, Owns(driver.Ref{ProviderID: "kubevirt"}, broken), "no request has an empty id")
}

func TestAnImagesMarkIsReadBackAndIsNoMachines(t *testing.T) {
	i := testMachine(decode(t, "{}")).Image
	dv := i.DataVolume()

	m, ok := ImageMarkOf(dv)
	require.True(t, ok)
	require.Equal(t, ImageMark{ProviderID: "kubevirt", Name: i.Name(), Key: i.Key, Version: "v0.1.0", LastUsed: testTime}, m)

	_, ok = MarkOf(dv)
	require.False(t, ok)

	_, ok = ImageMarkOf(i.Snapshot())
	require.True(t, ok)

	copied := dv.DeepCopy()
	copied.Name = "a-copy"
	_, ok = ImageMarkOf(copied)
	require.False(t, ok, "a copy under another name is not ours to remove")

	_, ok = ImageMarkOf(testMachine(decode(t, "{}")).VirtualMachine())
	require.False(t, ok)
}

func FuzzMark(f *testing.F) {
	f.Add("kubevirt", "workers-x7k2p", "kubevirt", "workers-x7k2p", "")
	f.Add("a b", "sha256.x", "a b", "a b", "image")

	f.Fuzz(func(t *testing.T, provider, request, labelProvider, labelRequest, image string) {
		o := &metav1.ObjectMeta{
			Name:        NamesOf(driver.Ref{ProviderID: provider, RequestID: request}).VM,
			Labels:      map[string]string{LabelProvider: labelProvider, LabelRequest: labelRequest},
			Annotations: map[string]string{AnnotationProvider: provider, AnnotationRequest: request},
		}

		if image != "" {
			o.Labels[LabelImage] = image
		}

		m, ok := MarkOf(o)
		if !ok || m.RequestID == "" {
			return
		}

		require.Equal(t, driver.Ref{ProviderID: provider, RequestID: request}, m.Ref)

		again := marked(m)
		maps.DeleteFunc(again.Labels, func(name, _ string) bool { return name == labelManagedBy })
		require.Equal(t, o.Labels, again.Labels, "what is owned is found by its labels")
	})
}
