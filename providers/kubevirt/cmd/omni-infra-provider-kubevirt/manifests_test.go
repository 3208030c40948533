package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
)

// manifests are the objects of Kubernetes below deploy, namespaces first. What is for Omni is left out.
func manifests(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join("..", "..", "deploy", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)

	for _, file := range files {
		for document := range bytes.SplitSeq(deployFile(t, filepath.Base(file)), []byte("---\n")) {
			u := &unstructured.Unstructured{}
			require.NoError(t, yaml.Unmarshal(document, &u.Object), file)

			switch {
			case u.GetAPIVersion() == "":
			case u.GetKind() == "Namespace":
				all = append([]*unstructured.Unstructured{u}, all...)
			default:
				all = append(all, u)
			}
		}
	}

	return all
}

func TestManifestsAreOfOneNamespace(t *testing.T) {
	all := manifests(t)
	require.Equal(t, "Namespace", all[0].GetKind())
	assert.Equal(t, deploy.Namespace, all[0].GetName())

	for _, u := range all[1:] {
		if !strings.HasPrefix(u.GetKind(), "Cluster") {
			assert.Equal(t, deploy.Namespace, u.GetNamespace(), "%s %s", u.GetKind(), u.GetName())
		}

		subjects, _, err := unstructured.NestedSlice(u.Object, "subjects")
		require.NoError(t, err)

		for _, subject := range subjects {
			assert.Equal(t, map[string]any{"kind": "ServiceAccount", "name": deploy.Account, "namespace": deploy.Namespace}, subject)
		}
	}
}
