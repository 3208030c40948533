package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	siderolinkres "github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// standInPoll is how often the suite looks for machines that nothing boots in.
const standInPoll = 500 * time.Millisecond

// simulateMachines boots a simulated machine in the place of each that the provider calls provisioned and whose UUID it has told, with
// what Omni lets providers give to their machines, until the request is torn down.
func (e *env) simulateMachines() {
	var guests sync.WaitGroup
	defer guests.Wait()

	running := map[string]context.CancelFunc{}

	for sleep(e.ctx, standInPoll) == nil {
		statuses, err := safe.StateListAll[*infra.MachineRequestStatus](e.ctx, e.state)
		if err != nil {
			continue
		}

		wanted := map[string]bool{}

		for s := range statuses.All() {
			id, spec := s.Metadata().ID(), s.TypedSpec().Value
			provider, _ := s.Metadata().Labels().Get(omni.LabelInfraProviderID)

			if s.Metadata().Phase() != resource.PhaseRunning || spec.Stage != specs.MachineRequestStatusSpec_PROVISIONED || spec.Id == "" || !e.knows(provider) {
				continue
			}

			wanted[id] = true

			if running[id] != nil {
				continue
			}

			config, err := e.joinConfig(provider, id)
			if err != nil {
				e.note("no machine stands in for the one of %s: %v", id, err)

				continue
			}

			ctx, cancel := context.WithCancel(e.ctx)
			running[id] = cancel
			machine := &talos.Machine{UUID: spec.Id, UserData: config}

			guests.Go(func() { _ = machine.Run(ctx) })
		}

		for id, cancel := range running {
			if !wanted[id] {
				cancel()
				delete(running, id)
			}
		}
	}

	for _, cancel := range running {
		cancel()
	}
}

// joinConfig is what a machine of a request needs to join.
func (e *env) joinConfig(provider, request string) ([]byte, error) {
	join, err := safe.StateGetByID[*siderolinkres.ProviderJoinConfig](e.ctx, e.state, provider)
	if err != nil {
		return nil, err
	}

	return e.renderJoinConfig(join.TypedSpec().Value.JoinToken,
		siderolink.WithProvider(infra.NewProvider(provider)), siderolink.WithMachineRequestID(request))
}

// renderJoinConfig returns the join configuration for a token.
func (e *env) renderJoinConfig(token string, opts ...siderolink.JoinConfigOption) ([]byte, error) {
	api, err := safe.StateGetByID[*siderolinkres.APIConfig](e.ctx, e.state, siderolinkres.ConfigID)
	if err != nil {
		return nil, err
	}

	options, err := siderolink.NewJoinOptions(append(opts,
		siderolink.WithJoinToken(token),
		siderolink.WithMachineAPIURL(api.TypedSpec().Value.MachineApiAdvertisedUrl),
		siderolink.WithEventSinkPort(int(api.TypedSpec().Value.EventsPort)),
		siderolink.WithLogServerPort(int(api.TypedSpec().Value.LogsPort)),
	)...)
	if err != nil {
		return nil, err
	}

	return options.RenderJoinConfig()
}
