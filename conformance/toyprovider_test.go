package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	siderolinkres "github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/siderolink"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// flaw is one thing that a toy provider does wrong. Without any it is right, in the simplest way: it looks at everything
// each few seconds.
type flaw string

const (
	none                 flaw = "is right"
	adoptsByName         flaw = "adopts machines by their name"
	trustsItsMemory      flaw = "makes the machine again when it has not seen the reply"
	ignoresUnknownFields flaw = "ignores unknown fields in class data"
	hurriesRemoval       flaw = "removes the machine before Omni has let go of it"
	startsAgain          flaw = "starts all machines when it starts itself"
	tellsUUIDLate        flaw = "tells Omni the UUID once the machine has joined"
	takesSilenceForGone  flaw = "lets go of the request when it cannot ask the cloud"
	takesNeighbours      flaw = "removes machines of requests that it does not know"
	logsJoinToken        flaw = "logs the join token"
	forgetsMachine       flaw = "does not remove the machine"
	givesUp              flaw = "ends at the first error"
	staysTooLong         flaw = "does not end when it is told to"
)

type toyProvider struct {
	Process

	flaw  flaw
	cloud toyClient
	owner string
	made  map[string]string
}

func runToy(ctx context.Context, f flaw, c *toyCloud, p Process) error {
	t := toyProvider{
		Process: p, flaw: f, cloud: toyClient{cloud: c, session: c.books.Session()},
		owner: p.ProviderID + ".ProvisionController", made: map[string]string{},
	}

	for first := true; ctx.Err() == nil; first = false {
		if err := t.look(ctx, first); err != nil && ctx.Err() == nil {
			t.Logger.Warn("look again", zap.Error(err))

			if f == givesUp {
				return err
			}
		}

		_ = sleep(ctx, 10*time.Second)
	}

	if f == staysTooLong {
		time.Sleep(time.Minute)
	}

	return nil
}

func (t toyProvider) look(ctx context.Context, first bool) error {
	err := safe.StateModify(ctx, t.State, infra.NewProviderStatus(t.ProviderID), func(s *infra.ProviderStatus) error {
		s.TypedSpec().Value.Name = "toy"
		s.TypedSpec().Value.Schema = `{"type": "object", "properties": {"cores": {"type": "integer", "minimum": 1}}, "additionalProperties": false}`

		return nil
	})
	if err != nil {
		return err
	}

	if t.flaw == startsAgain && first {
		machines, err := t.cloud.list()
		if err != nil {
			return err
		}

		for _, m := range machines {
			if err := t.cloud.start(m.ID); err != nil {
				return err
			}
		}
	}

	requests, err := safe.StateListAll[*infra.MachineRequest](ctx, t.State)
	if err != nil {
		return err
	}

	known := map[string]bool{}

	for request := range requests.All() {
		known[request.Metadata().ID()] = true
		work := t.provision
		if request.Metadata().Phase() == resource.PhaseTearingDown {
			work = t.deprovision
		}

		if err := work(ctx, request); err != nil {
			return fmt.Errorf("request %q: %w", request.Metadata().ID(), err)
		}
	}

	return t.sweep(known)
}

// sweep is what a right provider does only for machines that are its own.
func (t toyProvider) sweep(known map[string]bool) error {
	if t.flaw != takesNeighbours {
		return nil
	}

	machines, err := t.cloud.list()
	if err != nil {
		return err
	}

	for _, m := range machines {
		if request := m.Tags["request"]; request != "" && !known[request] {
			if err := t.cloud.delete(m.ID); err != nil {
				return err
			}
		}
	}

	return nil
}

func (t toyProvider) provision(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()
	machineUUID := uuid.NewSHA1(uuid.NameSpaceURL, []byte(t.ProviderID+"/"+id)).String()

	if err := t.State.AddFinalizer(ctx, request.Metadata(), t.owner); err != nil {
		return err
	}

	old, err := safe.StateGetByID[*infra.MachineRequestStatus](ctx, t.State, id)

	switch {
	case err == nil && old.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED && old.TypedSpec().Value.Id != "":
		return nil
	case err != nil && !state.IsNotFoundError(err):
		return err
	}

	if err := t.check(request.TypedSpec().Value.ProviderData); err != nil {
		return t.say(ctx, request, specs.MachineRequestStatusSpec_FAILED, "", err.Error())
	}

	known := machineUUID
	if t.flaw == tellsUUIDLate {
		known = t.joined(ctx, id)
	}

	if err := t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONING, known, ""); err != nil {
		return err
	}

	machine, err := t.ensure(ctx, id, machineUUID)
	if err != nil {
		return err
	}

	if !machine.On {
		if err := t.cloud.start(machine.ID); err != nil {
			return err
		}
	}

	return t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONED, known, "")
}

// ensure finds the machine or makes it.
func (t toyProvider) ensure(ctx context.Context, id, machineUUID string) (ledger.Machine, error) {
	if machine, ok, err := t.find(id); ok || err != nil {
		return machine, err
	}

	token, err := t.userData(ctx, id)
	if err != nil {
		return ledger.Machine{}, err
	}

	if t.flaw == logsJoinToken {
		t.Logger.Info("machine is made", zap.String("user_data", token))
	}

	vm, err := t.cloud.create(id, Guest{UUID: machineUUID, UserData: token}, map[string]string{"provider": t.ProviderID, "request": id})
	t.made[id] = vm

	return ledger.Machine{ID: vm}, err
}

func (t toyProvider) find(id string) (m ledger.Machine, ok bool, err error) {
	machines, err := t.cloud.list()

	for _, m := range machines {
		switch ours := m.Tags["provider"] == t.ProviderID && m.Tags["request"] == id; {
		case t.flaw == adoptsByName && m.Name == id, ours && t.flaw != trustsItsMemory, ours && t.made[id] == m.ID:
			return m, true, nil
		}
	}

	return ledger.Machine{}, false, err
}

func (t toyProvider) deprovision(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	if !request.Metadata().Finalizers().Has(t.owner) {
		return nil
	}

	if t.flaw == hurriesRemoval {
		if err := t.delete(id); err != nil {
			return err
		}
	}

	status := infra.NewMachineRequestStatus(id).Metadata()

	ready, err := t.State.Teardown(ctx, status, state.WithTeardownOwner(t.owner))

	switch {
	case err == nil && ready:
		if err := t.State.Destroy(ctx, status, state.WithDestroyOwner(t.owner)); err != nil {
			return err
		}
	case err == nil:
		return nil
	case !state.IsNotFoundError(err):
		return err
	}

	if t.flaw != forgetsMachine {
		if err := t.delete(id); err != nil && t.flaw != takesSilenceForGone {
			return err
		}
	}

	return t.State.RemoveFinalizer(ctx, request.Metadata(), t.owner)
}

func (t toyProvider) delete(id string) error {
	machines, err := t.cloud.list()
	if err != nil {
		return err
	}

	for _, m := range machines {
		if m.Tags["provider"] == t.ProviderID && m.Tags["request"] == id {
			if err := t.cloud.delete(m.ID); err != nil {
				return err
			}
		}
	}

	return nil
}

func (t toyProvider) check(data string) error {
	var spec struct {
		Cores int `json:"cores"`
	}

	decoder := json.NewDecoder(bytes.NewReader([]byte(data)))

	if t.flaw != ignoresUnknownFields {
		decoder.DisallowUnknownFields()
	}

	if err := decoder.Decode(&spec); err != nil {
		return err
	}

	if spec.Cores < 1 {
		return fmt.Errorf("cores: %d is less than 1", spec.Cores)
	}

	return nil
}

func (t toyProvider) say(ctx context.Context, request *infra.MachineRequest, stage specs.MachineRequestStatusSpec_Stage, id, text string) error {
	return safe.StateModify(ctx, t.State, infra.NewMachineRequestStatus(request.Metadata().ID()), func(s *infra.MachineRequestStatus) error {
		for k, v := range request.Metadata().Labels().Raw() {
			s.Metadata().Labels().Set(k, v)
		}

		s.TypedSpec().Value.Stage, s.TypedSpec().Value.Id, s.TypedSpec().Value.Error = stage, id, text

		return nil
	}, state.WithUpdateOwner(t.owner))
}

// joined returns the UUID of the request's machine once it has joined.
func (t toyProvider) joined(ctx context.Context, id string) string {
	registrations, err := safe.StateListAll[*infra.MachineRegistration](ctx, t.State)
	if err != nil {
		return ""
	}

	for r := range registrations.All() {
		if request, ok := r.Metadata().Labels().Get(omni.LabelMachineRequest); ok && request == id {
			return r.Metadata().ID()
		}
	}

	return ""
}

func (t toyProvider) userData(ctx context.Context, id string) (string, error) {
	config, err := safe.StateGetByID[*siderolinkres.ProviderJoinConfig](ctx, t.State, t.ProviderID)
	if err != nil {
		return "", err
	}

	api, err := safe.StateGetByID[*siderolinkres.APIConfig](ctx, t.State, siderolinkres.ConfigID)
	if err != nil {
		return "", err
	}

	options, err := siderolink.NewJoinOptions(
		siderolink.WithJoinToken(config.TypedSpec().Value.JoinToken),
		siderolink.WithMachineAPIURL(api.TypedSpec().Value.MachineApiAdvertisedUrl),
		siderolink.WithEventSinkPort(int(api.TypedSpec().Value.EventsPort)),
		siderolink.WithLogServerPort(int(api.TypedSpec().Value.LogsPort)),
		siderolink.WithProvider(infra.NewProvider(t.ProviderID)),
		siderolink.WithMachineRequestID(id),
	)
	if err != nil {
		return "", err
	}

	rendered, err := options.RenderJoinConfig()

	return string(rendered), err
}
