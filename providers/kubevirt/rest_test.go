//go:build !real

package kubevirt_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	resources "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// The library ends each watch after an hour and begins another.
func TestAtRestOnlyWatchesAreOpenedForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "kubevirt"

		o, err := omni.New(omni.Options{})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)

		go func() { ended <- o.Run(ctx) }()

		key, err := o.CreateProvider(ctx, id)
		require.NoError(t, err)

		omniClient, err := o.Client(key, client.WithOmniClientOptions(omniclient.WithProviderID(id)))
		require.NoError(t, err)

		s := newSite(t, nil)

		go func() {
			ended <- s.run("v1.0.0")(ctx, conformance.Process{
				ProviderID: id, Key: key, Client: omniClient, State: omniClient.Omni().State(), Logger: zap.NewNop(),
			})
		}()

		defer func() {
			cancel()
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
			require.NoError(t, omniClient.Close())
		}()

		r := infra.NewMachineRequest("m-1")
		r.Metadata().Labels().Set(resources.LabelInfraProviderID, id)
		r.TypedSpec().Value.TalosVersion, r.TypedSpec().Value.ProviderData = "v1.13.5", data
		require.NoError(t, o.State().Create(ctx, r))

		_, err = o.State().WatchFor(ctx, infra.NewMachineRequestStatus("m-1").Metadata(), state.WithCondition(func(r resource.Resource) (bool, error) {
			status, ok := r.(*infra.MachineRequestStatus)

			return ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED, nil
		}))
		require.NoError(t, err)

		time.Sleep(10 * time.Minute)

		lines := strings.Count(s.Ledger().History(), "\n")
		watches := s.Ledger().CallsOf("watch virtualmachines")

		time.Sleep(5 * time.Hour)

		for line := range strings.Lines(strings.Join(strings.SplitAfter(s.Ledger().History(), "\n")[lines:], "")) {
			assert.Contains(t, line, " watch ", "a call at rest")
		}

		assert.Greater(t, s.Ledger().CallsOf("watch virtualmachines")-watches, 500, "they are opened again and again")
	})
}
