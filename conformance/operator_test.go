package conformance

import (
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
)

// operatorsResources returns one resource of each kind that an operator makes, with ids that begin with prefix.
func operatorsResources(prefix, provider string) []resource.Resource {
	set, request := omni.NewMachineRequestSet(prefix+"pool"), infra.NewMachineRequest(prefix+"r-1")
	set.TypedSpec().Value.ProviderId = provider
	request.Metadata().Labels().Set(omni.LabelInfraProviderID, provider)

	return []resource.Resource{set, request, omni.NewCluster(prefix + "demo"), omni.NewMachineClass(prefix + "demo")}
}

func TestWhatOthersHaveInOmniIsLeftAlone(t *testing.T) {
	e := newEnv("toy")
	defer e.cancel()

	e.prefix = "toy-lc-01-"
	e.providers = map[string]bool{"toy": true}
	e.state = state.WrapCore(namespaced.NewState(inmem.Build))

	theirs, own := append(operatorsResources("prod-", "toy"), operatorsResources("toy-lc-01-x-", "metal")[:2]...), operatorsResources(e.prefix, "toy")

	for _, r := range append(theirs, own...) {
		require.NoError(t, e.state.Create(t.Context(), r))
	}

	require.Equal(t, []string{"r-1"}, e.requests())
	e.removeAll()

	for _, r := range theirs {
		now, err := e.state.Get(t.Context(), r.Metadata())
		require.NoError(t, err, "%s is gone", r.Metadata())
		require.Equal(t, resource.PhaseRunning, now.Metadata().Phase(), "%s is torn down", r.Metadata())
	}

	for _, r := range own {
		_, err := e.state.Get(t.Context(), r.Metadata())
		require.True(t, state.IsNotFoundError(err), "%s is left", r.Metadata())
	}
}

func TestNodesOfOtherClustersAreNotCounted(t *testing.T) {
	e := newEnv("toy")
	defer e.cancel()

	e.prefix = "toy-lc-01-"

	for cluster, want := range map[string]bool{"prod": false, "toy-lc-01-demo": true} {
		node := omni.NewClusterMachine("uuid")
		node.Metadata().Labels().Set(omni.LabelCluster, cluster)
		require.Equal(t, want, e.concerns(node), cluster)
	}
}
