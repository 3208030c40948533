package apiserver_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

var machines = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}

func start(t *testing.T) *apiserver.Server {
	t.Helper()

	all, err := definitions.All()
	require.NoError(t, err)

	s, err := apiserver.New(apiserver.Options{Definitions: all})
	require.NoError(t, err)
	t.Cleanup(s.Close)

	return s
}

func machine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{"domain": map[string]any{
			"devices": map[string]any{},
		}}}},
	}}
}

func TestObjectsLiveThroughTheirVerbs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c, err := dynamic.NewForConfig(s.Admin())
		require.NoError(t, err)

		k, err := kubernetes.NewForConfig(s.Admin())
		require.NoError(t, err)

		w, err := c.Resource(machines).Namespace("default").Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		defer w.Stop()

		made, err := c.Resource(machines).Namespace("default").Create(t.Context(), machine("a"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, made.GetUID())
		require.Equal(t, "ADDED", string((<-w.ResultChan()).Type))

		list, err := c.Resource(machines).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)

		require.NoError(t, c.Resource(machines).Namespace("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
		require.Equal(t, "DELETED", string((<-w.ResultChan()).Type))

		_, err = k.CoreV1().Secrets("default").Create(t.Context(), &core.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": "b"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		got, err := k.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "b", string(got.Data["a"]))
	})
}
