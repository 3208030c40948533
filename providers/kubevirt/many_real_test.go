//go:build real

package kubevirt_test

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

const (
	many = 50
	// mostCalls is how many calls one machine may cost, from its request to its end; without trouble it costs 11. Besides, one that is
	// waited for may be looked at every lookTime, however long a busy machine takes.
	mostCalls = 15
	lookTime  = 2 * time.Second
	// mostAgain is how many calls out of so many may be made again, on a machine that is too busy to answer in time.
	mostAgain = many / 10
	// restTime is how long the provider is watched when it has nothing to do. Several looks at the cloud and at the health fall into it.
	restTime = 20 * time.Second
)

// TestFiftyMachinesShareOneImportAndCostNoCallsAtRest counts what the provider asks of a real API server.
func TestFiftyMachinesShareOneImportAndCostNoCallsAtRest(t *testing.T) {
	const id = "many"

	o, err := omni.New(omni.Options{})
	require.NoError(t, err)

	c := newCloud(t, nil)

	ctx, cancel := context.WithCancel(c.life)
	ended := make(chan error, 2)

	go func() { ended <- o.Run(ctx) }()

	key, err := o.CreateProvider(ctx, id)
	require.NoError(t, err)

	omniClient, err := o.Client(key, client.WithOmniClientOptions(omniclient.WithProviderID(id)))
	require.NoError(t, err)

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

	for i := range many {
		awaitInOmni(ctx, t, o, infra.NewMachineRequestStatus(fmt.Sprintf("m-%d", i)).Metadata(),
			state.WithCondition(func(r resource.Resource) (bool, error) {
				status, ok := r.(*infra.MachineRequestStatus)

				return ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED, nil
			}))
	}

	made, making := c.books.Calls(), time.Since(began)
	t.Logf("%d machines are made in %s with %d calls", many, making.Round(time.Millisecond), made)

	require.Len(t, c.Machines(), many)

	images := slices.DeleteFunc(c.objects(), func(o ledger.Object) bool { return o.Kind != "image-datavolume" })
	require.Len(t, images, 1, "one import serves all; the machines' own disks are made by KubeVirt")
	require.LessOrEqual(t, c.books.CallsOf("create datavolumes"), 1+mostAgain)
	require.InDelta(t, many, c.books.CallsOf("create virtualmachines"), mostAgain)
	require.InDelta(t, many, c.books.CallsOf("create secrets"), mostAgain)

	awaitRest(ctx, t, c)

	before, rested := c.books.Calls(), len(actions(c))
	time.Sleep(restTime)
	require.Empty(t, actions(c)[rested:], "calls at rest")

	began = time.Now()
	begun := c.books.Calls()
	t.Logf("%d calls in %s at rest, all of them watches", begun-before, restTime)

	for i := range many {
		_, err := o.State().Teardown(ctx, infra.NewMachineRequest(fmt.Sprintf("m-%d", i)).Metadata())
		require.NoError(t, err)
	}

	for i := range many {
		awaitInOmni(ctx, t, o, infra.NewMachineRequest(fmt.Sprintf("m-%d", i)).Metadata(), state.WithFinalizerEmpty())
	}

	removing := time.Since(began)
	t.Logf("%d machines are gone in %s with %d calls", many, removing.Round(time.Millisecond), c.books.Calls()-begun)

	require.Empty(t, c.books.Leaks())
	require.Less(t, c.books.Calls(), many*(mostCalls+int((making+removing)/lookTime)))
}

// awaitInOmni waits until a resource is as it is to be.
func awaitInOmni(ctx context.Context, t *testing.T, o *omni.Omni, of resource.Pointer, condition state.WatchForConditionFunc) {
	t.Helper()

	ctx, cancel := context.WithTimeout(ctx, 2*how.Patience)
	defer cancel()

	_, err := o.State().WatchFor(ctx, of, condition)
	require.NoError(t, err, "%s: %v", of.ID(), context.Cause(ctx))
}

// awaitRest waits until all that was begun before has ended.
func awaitRest(ctx context.Context, t *testing.T, c *cloud) {
	t.Helper()

	ctx, cancel := context.WithTimeout(ctx, how.Patience)
	defer cancel()

	for seen := -1; seen != len(actions(c)); {
		seen = len(actions(c))

		select {
		case <-ctx.Done():
			require.Fail(t, "the provider does not come to rest", "%v\n%s", context.Cause(ctx), c.books.History())
		case <-time.After(10 * time.Second):
		}
	}
}

// actions are the lines of the books but for those of watches, which begin anew now and then.
func actions(c *cloud) (lines []string) {
	for line := range strings.Lines(c.books.History()) {
		if !strings.Contains(line, " watch ") {
			lines = append(lines, line)
		}
	}

	return lines
}
