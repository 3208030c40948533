package kubevirt_test

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// content is one object of each of many kinds, most of which no controller of the simulation looks at.
var content = []string{
	`{"apiVersion":"v1","kind":"ConfigMap"}`,
	`{"apiVersion":"v1","kind":"Secret"}`,
	`{"apiVersion":"v1","kind":"ServiceAccount"}`,
	`{"apiVersion":"v1","kind":"ResourceQuota","spec":{"hard":{"pods":"10"}}}`,
	`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80}]}}`,
	`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"c","image":"i"}],"serviceAccountName":"a","automountServiceAccountToken":false}}`,
	`{"apiVersion":"v1","kind":"Event","involvedObject":{"namespace":"going"}}`,
	`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`,
	`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role"}`,
	`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"a"}}`,
	`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":{"cpu":{"guest":1},"memory":{"guest":"1Gi"}}}`,
	`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachinePreference","spec":{}}`,
	`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","spec":{"config":"{}"}}`,
	`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}}`,
}

// fill makes the namespace "going" with all of the content.
func fill(t *testing.T, config *rest.Config) {
	t.Helper()

	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	all, err := dynamic.NewForConfig(config)
	require.NoError(t, err)

	_, err = core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	for _, text := range content {
		var u unstructured.Unstructured
		require.NoError(t, json.Unmarshal([]byte(text), &u.Object))
		u.SetName("a")

		resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
		if u.GetKind() == "NetworkAttachmentDefinition" {
			resource.Resource = "network-attachment-definitions"
		}

		_, err := all.Resource(resource).Namespace("going").Create(t.Context(), &u, metav1.CreateOptions{})
		require.NoError(t, err, text)
	}
}

// contained returns the kinds of which there is something in the namespace "going".
func contained(t *testing.T, config *rest.Config) (kinds []string) {
	t.Helper()

	known, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	all, err := dynamic.NewForConfig(config)
	require.NoError(t, err)

	_, lists, err := known.ServerGroupsAndResources()
	require.NoError(t, err)

	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)

		for _, r := range list.APIResources {
			if !r.Namespaced || !(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}).Match(list.GroupVersion, &r) {
				continue
			}

			require.Contains(t, r.Verbs, "deletecollection", r.Name)

			got, err := all.Resource(version.WithResource(r.Name)).Namespace("going").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err, r.Name)

			if len(got.Items) > 0 {
				kinds = append(kinds, r.Kind)
			}
		}
	}

	return kinds
}

// A namespace has to be empty when it goes, and it waits for the finalizers of what nobody watches too.
func emptyNamespace(t *testing.T, config *rest.Config, await func(what string, done func() bool)) {
	t.Helper()

	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	fill(t, config)

	leases := core.CoordinationV1().Leases("going")
	_, err = leases.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":["test.example/hold"]}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	require.NoError(t, core.CoreV1().Namespaces().Delete(t.Context(), "going", metav1.DeleteOptions{}))
	await("only what is held is left", func() bool { return slices.Equal([]string{"Lease"}, contained(t, config)) })

	_, err = leases.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	await("the namespace is gone", func() bool {
		_, err = core.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})

		return apierrors.IsNotFound(err)
	})
	require.Empty(t, contained(t, config))
}

func TestNamespaceIsEmptyWhenItGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})

		config := w.RESTConfig(w.Ledger().Session())
		config.QPS = -1
		emptyNamespace(t, config, func(what string, done func() bool) {
			after(20 * time.Second)
			require.True(t, done(), what)
		})
	})
}
