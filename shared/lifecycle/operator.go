package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Operator is what an operator can see and ask for with the provider's own key, beside the provider that runs somewhere. It asks
// Omni alone, never the cloud.
type Operator struct {
	st         state.State
	providerID string
}

// NewOperator returns the operator of a provider. st is Omni's state with the rights of that provider.
func NewOperator(st state.State, providerID string) *Operator {
	return &Operator{st: st, providerID: providerID}
}

// MachineInfo is a machine request with its machine, as Omni has them.
type MachineInfo struct {
	Request string `json:"request" yaml:"request"`
	// Set is empty for a request without one.
	Set string `json:"set,omitempty" yaml:"set,omitempty"`
	// UUID is that of the machine, Machine what the cloud calls it; both are empty until they are known.
	UUID    string `json:"uuid,omitempty" yaml:"uuid,omitempty"`
	Machine string `json:"machine,omitempty" yaml:"machine,omitempty"`
	// Place is where the machine is or will be; empty until it is chosen, and where machines have no places.
	Place string `json:"place,omitempty" yaml:"place,omitempty"`
	// Power is "on", "off" or "unknown": it is observed of machines that have joined.
	Power  string `json:"power" yaml:"power"`
	Joined bool   `json:"joined" yaml:"joined"`
	// Interfaces are the machine's network interfaces with their addresses, as far as the provider's cloud can tell: none when it
	// cannot, and for machines that do not run.
	Interfaces []InterfaceInfo `json:"interfaces,omitempty" yaml:"interfaces,omitempty"`
	// Stage is the request's in lower case, or "requested" when no provider has taken it up, or "removing". Phase is what is
	// being done or was done last.
	Stage   string    `json:"stage" yaml:"stage"`
	Phase   string    `json:"phase,omitempty" yaml:"phase,omitempty"`
	Created time.Time `json:"created" yaml:"created"`
	Error   string    `json:"error,omitempty" yaml:"error,omitempty"`
}

// Machines returns all machine requests of the provider, in the order of their ids.
func (o *Operator) Machines(ctx context.Context) ([]MachineInfo, error) {
	requests, err := list[*infra.MachineRequest](ctx, o, infra.MachineRequestType)
	if err != nil {
		return nil, err
	}

	statuses, err := list[*infra.MachineRequestStatus](ctx, o, infra.MachineRequestStatusType)
	if err != nil {
		return nil, err
	}

	observed, err := list[*infra.MachineStatus](ctx, o, infra.InfraMachineStatusType)
	if err != nil {
		return nil, err
	}

	registrations, err := list[*infra.MachineRegistration](ctx, o, infra.MachineRegistrationType)
	if err != nil {
		return nil, err
	}

	places, err := o.places(ctx)
	if err != nil {
		return nil, err
	}

	joined := map[string]string{}

	for uuid, registration := range registrations {
		if id, ok := registration.Metadata().Labels().Get(omni.LabelMachineRequest); ok {
			joined[id] = uuid
		}
	}

	infos := make([]MachineInfo, 0, len(requests))

	for id, request := range requests {
		info := infoOf(request, statuses[id], joined[id])
		info.see(observed[info.UUID])
		info.Place = places[id]
		infos = append(infos, info)
	}

	slices.SortFunc(infos, func(a, b MachineInfo) int { return cmp.Compare(a.Request, b.Request) })

	return infos, nil
}

// places returns the recorded places of the provider's machines, by their requests.
func (o *Operator) places(ctx context.Context) (map[string]string, error) {
	items, err := o.st.List(ctx, newRecord(o.providerID, "").Metadata())
	if err != nil {
		return nil, fmt.Errorf("list the records of provider %q: %w", o.providerID, err)
	}

	places := map[string]string{}

	for _, item := range items.Items {
		rec, _, err := decodeRecord(item)
		if err != nil {
			return nil, err
		}

		places[item.Metadata().ID()] = rec.spec.Place
	}

	return places, nil
}

// machine is Machines for one request, without reading all of them. It returns the request as well, nil when there is none.
func (o *Operator) machine(ctx context.Context, id string) (info MachineInfo, request *infra.MachineRequest, err error) {
	if request, err = find[*infra.MachineRequest](ctx, o, infra.NewMachineRequest(id)); err != nil || request == nil {
		return info, nil, err
	}

	status, err := find[*infra.MachineRequestStatus](ctx, o, infra.NewMachineRequestStatus(id))
	if err != nil {
		return info, nil, err
	}

	registrations, err := list[*infra.MachineRegistration](ctx, o, infra.MachineRegistrationType, state.WithLabelQuery(resource.LabelEqual(omni.LabelMachineRequest, id)))
	if err != nil {
		return info, nil, err
	}

	joined := ""
	for uuid := range registrations {
		joined = uuid
	}

	info = infoOf(request, status, joined)
	if info.UUID == "" {
		return info, request, nil
	}

	observed, err := find[*infra.MachineStatus](ctx, o, infra.NewMachineStatus(info.UUID))
	if err != nil {
		return info, nil, err
	}

	info.see(observed)

	return info, request, nil
}

// infoOf puts together what is known of a machine but what was observed of it; status may be nil.
func infoOf(request *infra.MachineRequest, status *infra.MachineRequestStatus, joined string) MachineInfo {
	info := MachineInfo{
		Request: request.Metadata().ID(), Created: request.Metadata().Created(), Joined: joined != "",
		Stage: "requested", UUID: joined, Power: driver.PowerUnknown.String(),
	}
	info.Set, _ = request.Metadata().Labels().Get(omni.LabelMachineRequestSet)

	if status != nil {
		spec := status.TypedSpec().Value
		info.UUID = cmp.Or(joined, spec.Id)
		info.Stage, info.Phase, info.Error = strings.ToLower(spec.Stage.String()), spec.Status, spec.Error
		info.Machine, _ = status.Metadata().Labels().Get(omni.LabelMachineInfraID)
		info.Interfaces = interfacesOf(status)
	}

	if request.Metadata().Phase() == resource.PhaseTearingDown {
		info.Stage = "removing"
	}

	return info
}

// see takes in what was observed of the machine, nil when nothing was.
func (i *MachineInfo) see(observed *infra.MachineStatus) {
	if observed != nil {
		i.Power = observedPower(observed).String()
	}
}

func observedPower(status *infra.MachineStatus) driver.Power {
	switch status.TypedSpec().Value.PowerState {
	case specs.InfraMachineStatusSpec_POWER_STATE_ON:
		return driver.PowerOn
	case specs.InfraMachineStatusSpec_POWER_STATE_OFF:
		return driver.PowerOff
	default:
		return driver.PowerUnknown
	}
}

// find reads a resource of the provider's, the zero T when there is none.
func find[T resource.Resource](ctx context.Context, o *Operator, like T) (T, error) {
	var none T

	res, err := safe.StateGet[T](ctx, o.st, like.Metadata())

	switch {
	case state.IsNotFoundError(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %s %q of provider %q: %w", like.Metadata().Type(), like.Metadata().ID(), o.providerID, err)
	case !o.owns(res):
		return none, nil
	default:
		return res, nil
	}
}

func (o *Operator) owns(res resource.Resource) bool {
	id, _ := res.Metadata().Labels().Get(omni.LabelInfraProviderID)

	return id == o.providerID
}

// list reads all resources of a kind that belong to the provider.
func list[T resource.Resource](ctx context.Context, o *Operator, kind resource.Type, opts ...state.ListOption) (map[resource.ID]T, error) {
	items, err := safe.StateList[T](ctx, o.st, resource.NewMetadata(resources.InfraProviderNamespace, kind, "", resource.VersionUndefined), opts...)
	if err != nil {
		return nil, fmt.Errorf("list %s of provider %q: %w", kind, o.providerID, err)
	}

	own := map[resource.ID]T{}

	for item := range items.All() {
		if o.owns(item) {
			own[item.Metadata().ID()] = item
		}
	}

	return own, nil
}

// Order asks once for something of a request's machine: a power state, or a reboot.
type Order struct {
	Request string
	// Power is PowerUnknown for a reboot.
	Power driver.Power
	// RebootID is empty for a power state.
	RebootID string
}

// RebootOrder asks for one reboot.
func RebootOrder(request string) Order { return Order{Request: request, RebootID: uuid.NewString()} }

// String says in words what is asked for.
func (r Order) String() string {
	if r.RebootID != "" {
		return "reboot"
	}

	return "power " + r.Power.String()
}

// HeartbeatLimit is the age of a provider's last heartbeat from which on it is taken for gone.
const HeartbeatLimit = 45 * time.Second

// Alive returns an error unless a process of the provider has told Omni lately that it lives.
func (o *Operator) Alive(ctx context.Context) error {
	status, err := safe.StateGetByID[*infra.ProviderHealthStatus](ctx, o.st, o.providerID)

	switch {
	case state.IsNotFoundError(err):
		return fmt.Errorf("no provider %q is running: Omni has no heartbeat of it", o.providerID)
	case err != nil:
		return fmt.Errorf("read the health of provider %q: %w", o.providerID, err)
	}

	last := status.TypedSpec().Value.LastHeartbeatTimestamp.AsTime()
	if age := time.Since(last); age > HeartbeatLimit {
		return fmt.Errorf("no provider %q is running: its last heartbeat was %s ago", o.providerID, age.Round(time.Second))
	}

	return nil
}

// Place leaves an order for the running provider, in its stored record of the machine. It refuses what the provider would not do,
// and what somebody who comes before an operator's command decides.
func (o *Operator) Place(ctx context.Context, order Order) error {
	info, err := o.switchable(ctx, order)
	if err != nil {
		return fmt.Errorf("%s of the machine of %q: %w", order, order.Request, err)
	}

	for tries := 1; ; tries++ {
		rec, err := o.record(ctx, order.Request)
		if err != nil {
			return err
		}

		if rec.spec.Lost != "" {
			return fmt.Errorf("%s of the machine of %q: it has no machine: %s", order, order.Request, rec.spec.Lost)
		}

		next := rec.DeepCopy().(*record) //nolint:forcetypeassert,errcheck // a copy

		if order.RebootID != "" {
			next.spec.RebootWish = order.RebootID
		} else {
			next.spec.PowerWish = order.Power.String()
		}

		err = o.st.Update(ctx, next, state.WithUpdateOwner(rec.Metadata().Owner()))
		if err == nil {
			return nil
		}

		if !isRace(err) || tries == mostRaces {
			return fmt.Errorf("record the %s of machine %s of %q in Omni: %w", order, info.UUID, order.Request, err)
		}
	}
}

// record reads the provider's stored record of a machine.
func (o *Operator) record(ctx context.Context, request string) (*record, error) {
	res, err := o.st.Get(ctx, newRecord(o.providerID, request).Metadata())

	switch {
	case state.IsNotFoundError(err):
		return nil, fmt.Errorf("the provider has no record of the machine of %q: another program made it", request)
	case err != nil:
		return nil, fmt.Errorf("read the record of %q: %w", request, err)
	}

	rec, _, err := decodeRecord(res)
	if err != nil {
		return nil, err
	}

	if !rec.ours() {
		return nil, fmt.Errorf("the record of the machine of %q is another program's, which made the machine", request)
	}

	return rec, rec.readable()
}

// switchable returns the machine of an order that can be carried out, or says why it cannot.
func (o *Operator) switchable(ctx context.Context, order Order) (MachineInfo, error) {
	info, request, err := o.machine(ctx, order.Request)
	if err != nil {
		return info, err
	}

	if request == nil {
		infos, err := o.Machines(ctx)
		if err != nil {
			return info, err
		}

		return info, fmt.Errorf("provider %q has no such machine request; %s", o.providerID, known(infos))
	}

	switch {
	case info.Stage == "removing":
		return info, fmt.Errorf("it is being removed")
	case !info.Joined && info.Stage == strings.ToLower(specs.MachineRequestStatusSpec_PROVISIONED.String()):
		return info, fmt.Errorf("it has not joined Omni yet; a machine is not switched before Omni has collected its facts")
	case !info.Joined:
		return info, fmt.Errorf("there is no machine yet (stage %s)", info.Stage)
	case order.RebootID != "" && info.Power == driver.PowerOff.String():
		return info, fmt.Errorf("it is off; switch it on instead")
	}

	return info, o.undecided(ctx, order, request, info.UUID)
}

// undecided returns an error if somebody decides who comes before an operator's command.
func (o *Operator) undecided(ctx context.Context, order Order, request *infra.MachineRequest, uuid string) error {
	machine, err := find[*infra.Machine](ctx, o, infra.NewMachine(uuid))
	if err != nil {
		return err
	}

	w, err := standing(request, machine)
	if err != nil {
		return err
	}

	by := w.powerBy
	if order.RebootID != "" {
		by = w.rebootBy
	}

	if by != "" {
		return fmt.Errorf("%s decides that; change it there, or take it away", by)
	}

	return nil
}

// mostKnown bounds how many requests an error names.
const mostKnown = 20

func known(infos []MachineInfo) string {
	if len(infos) == 0 {
		return "it has none"
	}

	ids := make([]string, 0, mostKnown)
	for _, info := range infos[:min(len(infos), mostKnown)] {
		ids = append(ids, info.Request)
	}

	text := "there are " + strings.Join(ids, ", ")
	if more := len(infos) - len(ids); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}

	return text
}
