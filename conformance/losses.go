package conformance

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// loseSettings takes away all that a request's machine was made from: its class data, the provider's join configuration, and the
// image factory.
func (e *env) loseSettings(id string) {
	e.do("lose settings", func(ctx context.Context) error {
		st := e.omni.State()

		_, err := safe.StateUpdateWithConflicts(ctx, st, infra.NewMachineRequest(e.full(id)).Metadata(), func(r *infra.MachineRequest) error {
			r.TypedSpec().Value.ProviderData = "{"

			return nil
		})
		if err != nil {
			return err
		}

		config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](ctx, st, e.provider)
		if err != nil {
			return err
		}

		return st.Destroy(ctx, config.Metadata(), state.WithDestroyOwner(config.Metadata().Owner()))
	})
	e.omni.Inject(omni.Fault{Method: "CreateSchematicFromRaw", Times: -1, Err: omni.ErrUnavailable})
	e.note("class data of %s, join configuration and image factory are lost", id)
}

// forgetRecords destroys all that the provider keeps in its own namespace.
func (e *env) forgetRecords() {
	e.eachRecord(func(ctx context.Context, record resource.Resource) error {
		if err := e.omni.State().Destroy(ctx, record.Metadata(), state.WithDestroyOwner(record.Metadata().Owner())); err != nil {
			return fmt.Errorf("destroy record %q: %w", record.Metadata().ID(), err)
		}

		return nil
	})
	e.note("all that provider %s stored in Omni is lost", e.provider)
}

// eachRecord does something to each resource in the provider's own namespace.
func (e *env) eachRecord(f func(ctx context.Context, record resource.Resource) error) {
	e.do("visit the provider's records", func(ctx context.Context) error {
		records, err := e.omni.Records(ctx, e.provider)
		if err != nil {
			return err
		}

		for _, record := range records {
			if err := f(ctx, record); err != nil {
				return err
			}
		}

		return nil
	})
}

// forgetProgress puts a request's status back to where its machine was being made, as if the provider had died before it said more.
func (e *env) forgetProgress(id string) {
	e.editStatus(id, func(s *infra.MachineRequestStatus) {
		s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_PROVISIONING
	})
	e.note("the status of %s is put back to provisioning", id)
}

// editStatus changes what the provider has said of a request.
func (e *env) editStatus(id string, change func(*infra.MachineRequestStatus)) {
	e.do("change a status", func(ctx context.Context) error {
		_, err := safe.StateUpdateWithConflicts(ctx, e.omni.State(), infra.NewMachineRequestStatus(e.full(id)).Metadata(), func(s *infra.MachineRequestStatus) error {
			change(s)

			return nil
		}, state.WithUpdateOwner(e.provider+".ProvisionController"))

		return err
	})
}

// hide leaves a machine out of the cloud's next lists.
func (e *env) hide(m ledger.Machine, lists int) {
	cloud, ok := e.cloud.(interface{ HideMachine(id string, lists int) })
	if !ok {
		panic(fmt.Sprintf("feature %q is claimed, and the cloud has no HideMachine", LaggingLists))
	}

	cloud.HideMachine(m.ID, lists)
	e.note("machine %s is missing from the next %d lists", m.ID, lists)
}
