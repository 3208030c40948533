package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// patch asks Omni for the config patch of a request's machine.
func (t toyProvider) patch(ctx context.Context, id string) error {
	return safe.StateModify(ctx, t.State, infra.NewConfigPatchRequest(t.patchName(id)), func(r *infra.ConfigPatchRequest) error {
		r.Metadata().Labels().Set(omni.LabelInfraProviderID, t.ProviderID)
		r.Metadata().Labels().Set(omni.LabelMachineRequest, id)

		return r.TypedSpec().Value.SetUncompressedData([]byte("machine:\n  network:\n    hostname: " + id + "\n"))
	}, state.WithUpdateOwner(t.owner))
}

// unpatch takes back what patch asked for. A patch that all machines share goes with the last one.
func (t toyProvider) unpatch(ctx context.Context, id string) (gone bool, err error) {
	if t.flaw == sharesPatch {
		requests, err := safe.StateListAll[*infra.MachineRequest](ctx, t.State)
		if err != nil {
			return false, err
		}

		held := 0

		for r := range requests.All() {
			if r.Metadata().Finalizers().Has(t.owner) {
				held++
			}
		}

		if held > 1 {
			return true, nil
		}
	}

	return t.destroy(ctx, infra.NewConfigPatchRequest(t.patchName(id)).Metadata())
}

func (t toyProvider) patchName(id string) string {
	if t.flaw == sharesPatch {
		return t.ProviderID + "-hostname"
	}

	return t.ProviderID + "-hostname-" + id
}

// operate does with a machine that is there what is asked of it, and reports it. shown is the error in the request's status.
func (t toyProvider) operate(ctx context.Context, request *infra.MachineRequest, shown string) error {
	id := request.Metadata().ID()
	i := slices.IndexFunc(t.seen, func(m ledger.Machine) bool { return m.Tags["provider"] == t.ProviderID && m.Tags["request"] == id })

	if i < 0 && t.flaw == takesUnseenForGone {
		return t.makeAgain(ctx, id, t.uuid(request))
	}

	if i < 0 || !t.joined[t.uuid(request)] && t.flaw != switchesEarly {
		return nil
	}

	machine := t.seen[i]

	power, word, err := t.wish(ctx, request)
	text := ""

	switch {
	case err != nil:
		return err
	case power != "" && power != "on" && power != "off":
		text = fmt.Sprintf("%s: %q is neither on nor off", powerAnnotation, power)
	default:
		if machine, err = t.operated(ctx, machine, power, word); err != nil {
			return err
		}
	}

	if text != shown || t.flaw == writesTooMuch {
		if err := t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONED, t.uuid(request), "", text); err != nil {
			return err
		}
	}

	return t.reportMachine(ctx, t.uuid(request), machine)
}

// wish returns how a machine is to be switched, empty if nobody cares, and for which word it is to be restarted.
func (t toyProvider) wish(ctx context.Context, request *infra.MachineRequest) (power, word string, err error) {
	power, _ = request.Metadata().Annotations().Get(powerAnnotation)
	word, _ = request.Metadata().Annotations().Get(rebootAnnotation)

	machine, err := safe.StateGetByID[*infra.Machine](ctx, t.State, t.uuid(request))

	switch {
	case state.IsNotFoundError(err):
		return power, word, nil
	case err != nil:
		return "", "", err
	case machine.TypedSpec().Value.PreferredPowerState == specs.InfraMachineSpec_POWER_STATE_ON:
		return "on", machine.TypedSpec().Value.RequestedRebootId, nil
	default:
		return "off", "", nil
	}
}

// operated switches and restarts a machine, and returns what it is like then. The cloud remembers for which word it was last.
func (t toyProvider) operated(ctx context.Context, m ledger.Machine, power, word string) (ledger.Machine, error) {
	switch {
	case power == "on" && !m.On:
		m.On = true

		return m, t.cloud.start(ctx, m.ID)
	case power == "off" && m.On:
		m.On = false

		return m, t.cloud.stop(ctx, m.ID)
	}

	done, err := m.Tags["restart"], error(nil)
	if t.flaw == rebootsAgain {
		done, err = t.reported(ctx, m.UUID)
	}

	if err != nil || word == "" || word == done || !m.On {
		return m, err
	}

	m.Tags = maps.Clone(m.Tags)
	m.Tags["restart"] = word

	return m, t.cloud.restart(ctx, m.ID, word, t.flaw == rebootsAgain)
}

// reported returns the word for which a machine was restarted last, by what Omni was told.
func (t toyProvider) reported(ctx context.Context, uuid string) (string, error) {
	status, err := safe.StateGetByID[*infra.MachineStatus](ctx, t.State, uuid)
	if state.IsNotFoundError(err) {
		return "", nil
	}

	if err != nil {
		return "", err
	}

	return status.TypedSpec().Value.LastRebootId, nil
}

// reportMachine tells Omni what a machine is like.
func (t toyProvider) reportMachine(ctx context.Context, uuid string, m ledger.Machine) error {
	report := fmt.Sprint(m)
	if t.told[uuid] == report {
		return nil
	}

	err := safe.StateModify(ctx, t.State, infra.NewMachineStatus(uuid), func(s *infra.MachineStatus) error {
		s.Metadata().Labels().Set(omni.LabelInfraProviderID, t.ProviderID)

		spec := s.TypedSpec().Value
		spec.LastRebootId, spec.PowerState = m.Tags["restart"], specs.InfraMachineStatusSpec_POWER_STATE_OFF

		if m.On {
			spec.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_ON
		}

		return nil
	}, state.WithUpdateOwner(t.owner))
	if err == nil {
		t.told[uuid] = report
	}

	return err
}
