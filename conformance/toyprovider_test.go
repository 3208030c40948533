package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
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
	clearsErrors         flaw = "clears the error when it tries again"
	hidesSteps           flaw = "says nothing of its steps"
	writesTooMuch        flaw = "writes each status again and again"
	feelsWell            flaw = "reports good health whatever happens"
	isSilent             flaw = "sends a heartbeat only when something is wrong"
	failsAtItsEnd        flaw = "takes its own end for a failure of the machine"
	finishesCalls        flaw = "ends only when its calls have their answers"
	repeatsRequests      flaw = "shows what the cloud repeats of a request"
	ignoresPauses        flaw = "does not wait as long as the cloud asks it to"
	givesNoHint          flaw = "does not say which fields there are"
	needsNoField         flaw = "makes up a value for a required field"
	publishesMap         flaw = "publishes a schema with a free-form map"
	givesOneName         flaw = "gives all machines one name"
	keepsToken           flaw = "keeps the first join token that it reads"
	removesByName        flaw = "removes machines by their name"
	bearsGrudges         flaw = "refuses a request id for ever"
	switchesEarly        flaw = "switches machines that have not joined"
	rebootsAgain         flaw = "reboots again when it has not seen the reply"
	actsAlone            flaw = "acts without the lease"
	takesSilenceForNone  flaw = "makes another machine when it cannot ask the cloud for the first"
	sharesPatch          flaw = "gives the config patches of all machines one name"
	uploadsEachTime      flaw = "uploads an image for each machine"
	logsFirstToken       flaw = "logs the first join token that it reads, and no other"
	needsAllPlaces       flaw = "does nothing while one place is out of reach"
	changesPlace         flaw = "makes a machine at another place when the first gets out of reach"
	takesUnseenForGone   flaw = "makes machines again that are out of reach"
	takesUnseenForEmpty  flaw = "lets go of requests whose place is out of reach"
)

type toyProvider struct {
	Process

	flaw  flaw
	cloud toyClient
	owner string
	made  map[string]string

	health *toyHealth
	// seen are the machines that the last look has shown, and joined are the UUIDs that Omni knew then. told are the reports of
	// machines by UUID.
	seen   []ledger.Machine
	unseen *toyUnseen // what the last look has not shown
	joined map[string]bool
	told   map[string]string
	// soon says that Omni holds on to something, which has to be looked at again before long.
	soon *bool
	// token and refused are what toys with a flaw remember.
	token   *string
	refused map[string]bool
}

func runToy(ctx context.Context, f flaw, c *toyCloud, p Process) error {
	t := toyProvider{
		Process: p, flaw: f, cloud: toyClient{cloud: c, session: c.books.Session(), provider: p.ProviderID, alone: f == actsAlone},
		owner: p.ProviderID + ".ProvisionController", made: map[string]string{}, health: &toyHealth{},
		told: map[string]string{}, soon: new(bool), token: new(string), refused: map[string]bool{},
	}

	defer t.cloud.close()

	var reports sync.WaitGroup
	defer reports.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	reports.Go(func() { t.report(ctx) })

	for first := true; ctx.Err() == nil; {
		*t.soon = false

		t.health.begin()
		err := t.look(ctx, first)
		t.health.end(err)

		first = first && err != nil

		pause := toyPause
		if *t.soon {
			pause = toySoon
		}

		if err != nil && ctx.Err() == nil {
			t.Logger.Warn("look again", zap.Error(err))

			if f == givesUp {
				return err
			}

			if f != ignoresPauses {
				pause = max(pause, pauseOf(err))
			}
		}

		_ = sleep(ctx, pause)
	}

	if f == staysTooLong {
		time.Sleep(time.Minute)
	}

	return nil
}

func (t toyProvider) look(ctx context.Context, first bool) error {
	if t.flaw == finishesCalls {
		ctx = context.WithoutCancel(ctx)
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()

	if first {
		if err := t.introduce(ctx); err != nil {
			return err
		}
	}

	// The lease is not renewed by a process that cannot reach Omni.
	joined, err := t.registered(ctx)
	if err != nil {
		return err
	}

	t.joined = joined

	machines, err := t.cloud.list(ctx)
	if pauseOf(err) > 0 {
		return err
	}

	if errors.Is(err, errLeased) {
		return nil
	}

	t.seen = machines
	t.unseen, _ = errors.AsType[*toyUnseen](err)

	if err != nil && t.flaw == needsAllPlaces {
		return err
	}

	if err != nil {
		return errors.Join(err, t.lookAtRequests(ctx))
	}

	if t.flaw == startsAgain && first {
		for _, m := range machines {
			if err := t.cloud.start(ctx, m.ID); err != nil {
				return err
			}
		}
	}

	return t.lookAtRequests(ctx)
}

// introduce tells Omni the toy's name and schema.
func (t toyProvider) introduce(ctx context.Context) error {
	return safe.StateModify(ctx, t.State, infra.NewProviderStatus(t.ProviderID), func(s *infra.ProviderStatus) error {
		s.TypedSpec().Value.Name = "toy"
		s.TypedSpec().Value.Schema = toySchema
		if t.flaw == publishesMap {
			s.TypedSpec().Value.Schema = toyMapSchema
		}

		return nil
	})
}

func (t toyProvider) lookAtRequests(ctx context.Context) error {
	requests, err := safe.StateListAll[*infra.MachineRequest](ctx, t.State)
	if err != nil {
		return err
	}

	known := map[string]bool{}

	var errs []error

	for request := range requests.All() {
		known[request.Metadata().ID()] = true
		work := t.provision
		if request.Metadata().Phase() == resource.PhaseTearingDown {
			work = t.deprovision
		}

		if err := work(ctx, request); err != nil {
			errs = append(errs, fmt.Errorf("request %q: %w", request.Metadata().ID(), err))
		}

		// A cloud that asks to be left alone is left alone.
		if pauseOf(errors.Join(errs...)) > 0 {
			break
		}
	}

	return errors.Join(append(errs, t.sweep(ctx, known))...)
}

// sweep is what a right provider does only for machines that are its own.
func (t toyProvider) sweep(ctx context.Context, known map[string]bool) error {
	if t.flaw != takesNeighbours {
		return nil
	}

	machines, err := t.cloud.list(ctx)
	if err != nil {
		return err
	}

	for _, m := range machines {
		if request := m.Tags["request"]; request != "" && !known[request] {
			if err := t.cloud.delete(ctx, m.ID); err != nil {
				return err
			}
		}
	}

	return nil
}

func (t toyProvider) provision(ctx context.Context, request *infra.MachineRequest) error {
	id, machineUUID := request.Metadata().ID(), t.uuid(request)

	if !request.Metadata().Finalizers().Has(t.owner) {
		if err := t.State.AddFinalizer(ctx, request.Metadata(), t.owner); err != nil {
			return err
		}
	}

	old, err := safe.StateGetByID[*infra.MachineRequestStatus](ctx, t.State, id)

	switch {
	case err == nil && old.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED && old.TypedSpec().Value.Id != "":
		return t.operate(ctx, request, old.TypedSpec().Value.Error)
	case err != nil && !state.IsNotFoundError(err):
		return err
	}

	err = t.check(request.TypedSpec().Value.ProviderData)
	if err == nil && t.flaw == bearsGrudges && t.refused[id] {
		err = errors.New("refused before")
	}

	if err != nil {
		t.refused[id] = true

		return t.say(ctx, request, specs.MachineRequestStatusSpec_FAILED, "", "checking class data", err.Error())
	}

	known := machineUUID
	if t.flaw == tellsUUIDLate {
		known = ""
		if t.joined[machineUUID] {
			known = machineUUID
		}
	}

	if err := t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONING, known, "create (1/2)", keepError); err != nil {
		return err
	}

	// A patch that all share may be on its way out.
	if err := t.patch(ctx, id); err != nil && t.flaw != sharesPatch {
		return err
	}

	place, err := t.place(ctx, id)
	if err != nil {
		return err
	}

	machine, err := t.ensure(ctx, id, machineUUID, place)
	if err == nil && !machine.On {
		if err = t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONING, known, "start (2/2)", keepError); err != nil {
			return err
		}

		err = t.cloud.start(ctx, machine.ID)
	}

	// The end of the provider is no failure of the machine.
	if err != nil && (ctx.Err() == nil || t.flaw == failsAtItsEnd) {
		return errors.Join(err, t.say(context.WithoutCancel(ctx), request, specs.MachineRequestStatusSpec_PROVISIONING, known, "waiting to try again", err.Error()))
	}

	if err != nil {
		return err
	}

	return t.say(ctx, request, specs.MachineRequestStatusSpec_PROVISIONED, known, "", "")
}

// ensure finds the machine or makes it.
func (t toyProvider) ensure(ctx context.Context, id, machineUUID, place string) (ledger.Machine, error) {
	if machine, ok, err := t.find(ctx, id); ok || err != nil && t.flaw != takesSilenceForNone && !sees(err, place) {
		return machine, err
	}

	token, err := t.userData(ctx, id)
	if err != nil {
		return ledger.Machine{}, err
	}

	if t.flaw == logsJoinToken || t.flaw == logsFirstToken && len(t.made) == 0 {
		t.Logger.Info("machine is made", zap.String("user_data", token))
	}

	name := id
	if t.flaw == givesOneName {
		name = "machine"
	}

	image := "talos"

	switch t.flaw {
	case uploadsEachTime:
		image += "-for-" + id
	case actsAlone:
		// The other process sees the same in the meantime.
		_ = sleep(ctx, time.Second)
	}

	if err := t.cloud.upload(ctx, image); err != nil {
		return ledger.Machine{}, fmt.Errorf("upload image: %w", err)
	}

	vm, err := t.cloud.create(ctx, name, place, Guest{UUID: machineUUID, UserData: token}, map[string]string{"provider": t.ProviderID, "request": id})
	// The cloud's text may repeat the user data.
	if fault, ok := errors.AsType[*ledger.FaultError](err); ok && t.flaw != repeatsRequests {
		err = fault
	}

	if err != nil {
		return ledger.Machine{}, fmt.Errorf("create machine: %w", err)
	}

	t.made[id] = vm

	return ledger.Machine{ID: vm}, nil
}

func (t toyProvider) find(ctx context.Context, id string) (m ledger.Machine, ok bool, err error) {
	machines, err := t.cloud.list(ctx)

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
		if err := t.delete(ctx, id); err != nil {
			return err
		}
	}

	if gone, err := t.unpatch(ctx, id); err != nil || !gone {
		return err
	}

	if gone, err := t.destroy(ctx, infra.NewMachineRequestStatus(id).Metadata()); err != nil || !gone {
		return err
	}

	if t.flaw != forgetsMachine {
		if err := t.delete(ctx, id); err != nil && t.flaw != takesSilenceForGone {
			return err
		}
	}

	if gone, err := t.destroy(ctx, infra.NewMachineStatus(t.uuid(request)).Metadata()); err != nil || !gone {
		return err
	}

	return t.State.RemoveFinalizer(ctx, request.Metadata(), t.owner)
}

// destroy tears a resource down and destroys it; false says that Omni still holds on to it.
func (t toyProvider) destroy(ctx context.Context, md *resource.Metadata) (gone bool, err error) {
	ready, err := t.State.Teardown(ctx, md, state.WithTeardownOwner(t.owner))

	switch {
	case state.IsNotFoundError(err):
		return true, nil
	case err != nil || !ready:
		*t.soon = true

		return false, err
	}

	return true, t.State.Destroy(ctx, md, state.WithDestroyOwner(t.owner))
}

func (t toyProvider) delete(ctx context.Context, id string) error {
	machines, err := t.cloud.list(ctx)
	if _, partly := errors.AsType[*toyUnseen](err); err != nil && !partly {
		return err
	}

	// At most one place has it.
	if t.flaw == takesUnseenForEmpty || slices.ContainsFunc(machines, func(m ledger.Machine) bool {
		return m.Tags["provider"] == t.ProviderID && m.Tags["request"] == id
	}) {
		err = nil
	}

	if err != nil {
		return err
	}

	for _, m := range machines {
		if m.Tags["provider"] == t.ProviderID && m.Tags["request"] == id || t.flaw == removesByName && m.Name == id {
			if err := t.cloud.delete(ctx, m.ID); err != nil {
				return err
			}
		}
	}

	return nil
}

func (t toyProvider) check(data string) error {
	var spec struct {
		Cores *int `json:"cores"`
	}

	decoder := json.NewDecoder(bytes.NewReader([]byte(data)))

	if t.flaw != ignoresUnknownFields {
		decoder.DisallowUnknownFields()
	}

	err := decoder.Decode(&spec)

	switch {
	case err != nil && data != "" && t.flaw == givesNoHint:
		return err
	case err != nil && data != "":
		return fmt.Errorf("%w; the only field is cores", err)
	case spec.Cores == nil && t.flaw != needsNoField:
		return errors.New("cores: a number is missing")
	case spec.Cores != nil && *spec.Cores < 1:
		return fmt.Errorf("cores: %d is less than 1", *spec.Cores)
	default:
		return nil
	}
}

// keepError leaves the error of a request's status as it is.
const keepError = "\x00"

func (t toyProvider) say(ctx context.Context, request *infra.MachineRequest, stage specs.MachineRequestStatusSpec_Stage, id, step, text string) error {
	return safe.StateModify(ctx, t.State, infra.NewMachineRequestStatus(request.Metadata().ID()), func(s *infra.MachineRequestStatus) error {
		for k, v := range request.Metadata().Labels().Raw() {
			s.Metadata().Labels().Set(k, v)
		}

		spec := s.TypedSpec().Value
		spec.Stage, spec.Id, spec.Status = stage, id, step

		switch {
		case text != keepError:
			spec.Error = text
		case t.flaw == clearsErrors:
			spec.Error = ""
		}

		if t.flaw == hidesSteps {
			spec.Status = ""
		}

		if t.flaw == writesTooMuch {
			spec.Status = time.Now().String()
		}

		return nil
	}, state.WithUpdateOwner(t.owner))
}

// uuid returns the UUID of a request's machine.
func (t toyProvider) uuid(request *infra.MachineRequest) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(t.ProviderID+"/"+request.Metadata().ID())).String()
}

// registered returns the UUIDs of the machines that have joined.
func (t toyProvider) registered(ctx context.Context) (map[string]bool, error) {
	registrations, err := safe.StateListAll[*infra.MachineRegistration](ctx, t.State)
	if err != nil {
		return nil, err
	}

	joined := map[string]bool{}
	for r := range registrations.All() {
		joined[r.Metadata().ID()] = true
	}

	return joined, nil
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

	if t.flaw != keepsToken || *t.token == "" {
		*t.token = config.TypedSpec().Value.JoinToken
	}

	options, err := siderolink.NewJoinOptions(
		siderolink.WithJoinToken(*t.token),
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
