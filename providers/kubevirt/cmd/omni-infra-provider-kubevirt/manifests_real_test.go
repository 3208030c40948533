//go:build real

package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
)

// TestManifestsAreTakenByARealServer applies them as kubectl does, without keeping them.
func TestManifestsAreTakenByARealServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	plane, err := controlplane.Start(ctx)
	require.NoError(t, err)

	defer func() { assert.NoError(t, plane.Close()) }()

	client, err := dynamic.NewForConfig(plane.Admin())
	require.NoError(t, err)

	known, err := discovery.NewDiscoveryClientForConfig(plane.Admin())
	require.NoError(t, err)

	groups, err := restmapper.GetAPIGroupResources(known)
	require.NoError(t, err)

	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	force := true

	for i, u := range manifests(t) {
		gvk := u.GroupVersionKind()

		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		require.NoError(t, err, "%s %s", gvk, u.GetName())

		data, err := u.MarshalJSON()
		require.NoError(t, err)

		apply := func(dryRun ...string) error {
			_, err := client.Resource(mapping.Resource).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.ApplyPatchType, data,
				metav1.PatchOptions{FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})

			return err
		}

		require.NoError(t, apply(metav1.DryRunAll), "%s %s", gvk.Kind, u.GetName())

		// The others are tried in it.
		if i == 0 {
			require.NoError(t, apply())
		}
	}
}
