package conformance

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// report returns what the provider says of a joined machine; nothing if it says nothing.
func (e *env) report(uuid string) *specs.InfraMachineStatusSpec {
	s, err := safe.StateGetByID[*infra.MachineStatus](e.ctx, e.state, uuid)
	if err != nil {
		return nil
	}

	return s.TypedSpec().Value
}

// awaitReport waits until the provider says that the machine is on, or off.
func (e *env) awaitReport(uuid string, on bool) {
	want := specs.InfraMachineStatusSpec_POWER_STATE_OFF
	if on {
		want = specs.InfraMachineStatusSpec_POWER_STATE_ON
	}

	e.await(fmt.Sprintf("machine %s is reported as %s", uuid, want), func() (string, bool) {
		r := e.report(uuid)

		return fmt.Sprintf("the report is %v", r), r != nil && r.GetPowerState() == want
	})
}

// noReport ends the case when the provider still says something of a machine.
func (e *env) noReport(uuid string) {
	if r := e.report(uuid); r != nil {
		e.fail("no report of machine "+uuid, "%v", r)
	}
}

// prefer says in the place of Omni how a machine is to be.
func (e *env) prefer(uuid string, on bool) {
	state := specs.InfraMachineSpec_POWER_STATE_OFF
	if on {
		state = specs.InfraMachineSpec_POWER_STATE_ON
	}

	e.do("write an infra machine", func(ctx context.Context) error {
		return safe.StateModify(ctx, e.omni.State(), infra.NewMachine(uuid), func(m *infra.Machine) error {
			m.Metadata().Labels().Set(omni.LabelInfraProviderID, e.provider)
			m.TypedSpec().Value.PreferredPowerState = state

			return nil
		})
	})
	e.note("Omni prefers machine %s on=%t", uuid, on)
}

// preferNothing takes back what prefer said.
func (e *env) preferNothing(uuid string) {
	e.do("destroy an infra machine", func(ctx context.Context) error { return e.omni.State().Destroy(ctx, infra.NewMachine(uuid).Metadata()) })
	e.note("Omni prefers nothing of machine %s", uuid)
}

// holdStatus makes Omni hold on to the machine of a request, as it does while it drains a node, until release is called.
func (e *env) holdStatus(id string) (release func()) {
	md := infra.NewMachineRequestStatus(e.full(id)).Metadata()

	e.do("hold a status", func(ctx context.Context) error { return e.omni.State().AddFinalizer(ctx, md, "conformance") })

	return func() {
		e.do("let a status go", func(ctx context.Context) error {
			if err := e.omni.State().RemoveFinalizer(ctx, md, "conformance"); !state.IsNotFoundError(err) {
				return err
			}

			return nil
		})
	}
}

// switchOff switches a machine off at the cloud's console.
func (e *env) switchOff(m ledger.Machine) {
	cloud, ok := e.cloud.(interface{ SwitchOff(id string) error })
	if !ok {
		panic(fmt.Sprintf("feature %q is claimed, and the cloud has no SwitchOff", Console))
	}

	if err := cloud.SwitchOff(m.ID); err != nil {
		panic(fmt.Errorf("switch a machine off in the cloud: %w", err))
	}
}
