//go:build real

package kubevirt_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

// No controller of Kubernetes' own runs beside a real API server: the simulation's have to empty its namespaces of all its kinds.
func TestNamespaceOfARealServerIsEmptyWhenItGoes(t *testing.T) {
	plane, err := controlplane.Start(t.Context())
	require.NoError(t, err)

	defer func() { require.NoError(t, plane.Close()) }()

	all, err := definitions.All()
	require.NoError(t, err)
	require.NoError(t, plane.Define(t.Context(), all))

	c, err := kubevirt.NewControllers(plane.Admin(), kubevirt.ControllerOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Prepare(t.Context()))

	ctx, end := context.WithCancel(t.Context())

	var background sync.WaitGroup

	background.Go(func() { c.Run(ctx) })

	defer background.Wait()
	defer end()

	emptyNamespace(t, plane.Admin(), func(what string, done func() bool) {
		require.Eventually(t, done, time.Minute, 200*time.Millisecond, what)
	})
}
