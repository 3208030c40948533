//go:build real

package kubevirt_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	resources "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

const (
	many = 50
	// mostCalls is how many calls one machine may cost, from its request to its end.
	mostCalls = 25
	// restTime is how long the provider is watched when it has nothing to do. Several looks at the cloud and at the health fall into it.
	restTime = 20 * time.Second
)

// TestFiftyMachinesShareOneImportAndCostNoCallsAtRest counts what the provider asks of a real API server.
func TestFiftyMachinesShareOneImportAndCostNoCallsAtRest(t *testing.T) {
	const id = "many"

	o, err := omni.New(omni.Options{})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)

	go func() { ended <- o.Run(ctx) }()

	key, err := o.CreateProvider(ctx, id)
	require.NoError(t, err)

	omniClient, err := o.Client(key, client.WithOmniClientOptions(omniclient.WithProviderID(id)))
	require.NoError(t, err)

	c := newCloud(t, nil)

	go func() {
		ended <- c.run("v1.0.0")(ctx, conformance.Process{
			ProviderID: id, Key: key, Client: omniClient, State: omniClient.Omni().State(), Logger: zap.NewNop(),
		})
	}()

	defer func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		require.NoError(t, omniClient.Close())
	}()

	began := time.Now()

	for i := range many {
		r := infra.NewMachineRequest(fmt.Sprintf("m-%d", i))
		r.Metadata().Labels().Set(resources.LabelInfraProviderID, id)
		r.TypedSpec().Value.TalosVersion, r.TypedSpec().Value.ProviderData = "v1.13.5", data
		require.NoError(t, o.State().Create(ctx, r))
	}

	within, giveUp := context.WithTimeout(ctx, 3*time.Minute)
	defer giveUp()

	for i := range many {
		_, err := o.State().WatchFor(within, infra.NewMachineRequestStatus(fmt.Sprintf("m-%d", i)).Metadata(),
			state.WithCondition(func(r resource.Resource) (bool, error) {
				status, ok := r.(*infra.MachineRequestStatus)

				return ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED, nil
			}))
		require.NoError(t, err, "machine %d", i)
	}

	made := c.books.Calls()
	t.Logf("%d machines are made in %s with %d calls", many, time.Since(began).Round(time.Millisecond), made)

	require.Len(t, c.Machines(), many)
	require.Equal(t, 1, c.books.CallsOf("create datavolumes"), "one import serves all; the machines' own disks are made by KubeVirt")
	require.Equal(t, many, c.books.CallsOf("create virtualmachines"))
	require.Equal(t, many, c.books.CallsOf("create secrets"))

	// What was begun before ends first.
	time.Sleep(10 * time.Second)

	before, lines := c.books.Calls(), strings.Count(c.books.History(), "\n")
	time.Sleep(restTime)

	for line := range strings.Lines(strings.Join(strings.SplitAfter(c.books.History(), "\n")[lines:], "")) {
		require.Contains(t, line, " watch ", "a call at rest")
	}

	began = time.Now()
	begun := c.books.Calls()
	t.Logf("%d calls in %s at rest, all of them watches", begun-before, restTime)

	for i := range many {
		_, err := o.State().Teardown(ctx, infra.NewMachineRequest(fmt.Sprintf("m-%d", i)).Metadata())
		require.NoError(t, err)
	}

	for i := range many {
		_, err := o.State().WatchFor(within, infra.NewMachineRequest(fmt.Sprintf("m-%d", i)).Metadata(), state.WithFinalizerEmpty())
		require.NoError(t, err, "machine %d", i)
	}

	t.Logf("%d machines are gone in %s with %d calls", many, time.Since(began).Round(time.Millisecond), c.books.Calls()-begun)

	require.Empty(t, c.books.Leaks())
	require.Less(t, c.books.Calls(), many*mostCalls)
}
