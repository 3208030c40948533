// Package lifecycle turns Omni's machine requests into machines of a cloud and takes them away again. It owns everything that
// is the same in every cloud: the order of steps, what is recorded when, retries, status texts, teardown, health, power. A
// driver (package driver) does the rest. Package runner makes a program of it.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Images finds the boot image of a request. Package bootasset has the implementations.
type Images interface {
	// Resolve returns the image that spec and the request describe together. It makes the schematic when there is none.
	Resolve(ctx context.Context, request *infra.MachineRequest, spec driver.ImageSpec) (driver.Image, error)
}

// Config says what to run. ID, Driver and Logger are required; the zero value of everything else is its default.
type Config struct {
	// ID is the provider's id in Omni, a DNS label.
	ID string
	// Name, Description and Icon (an SVG) are what Omni shows of the provider. Name is the id when empty.
	Name, Description, Icon string
	// Schema is the JSON schema of the class data; Omni draws its form from it and checks machine classes against it.
	Schema string
	Driver driver.Driver
	// Images may be nil when no plan of the driver asks for an image.
	Images Images
	Logger *zap.Logger
	// Metrics may be nil.
	Metrics *Metrics

	// Provisions is how many machines are made at once, Removals how many other requests are worked on besides: teardowns, power
	// and the care of machines that run. 8 each by default.
	Provisions, Removals int
	// CallTimeout limits each call of the driver but phases and each call to Omni; a minute by default.
	CallTimeout time.Duration
	// PhaseTimeout limits one run of a phase, which may have an image to import; an hour by default.
	PhaseTimeout time.Duration
	// PollInterval is the pause between two full looks at the cloud; a minute by default.
	PollInterval time.Duration
	// HeartbeatInterval is the pause between two health reports; 15 seconds by default. Omni takes a provider for dead after 31.
	HeartbeatInterval time.Duration
}

// idRule is what a provider id has to be: it ends up in names of Omni resources and of cloud objects.
var idRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidateID refuses provider ids that are no DNS label.
func ValidateID(id string) error {
	if !idRule.MatchString(id) {
		return fmt.Errorf("provider id %q: want a DNS label: 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit", id)
	}

	return nil
}

// Provider is a running provider's engine. Its methods are for one Run at a time.
type Provider struct {
	cfg   Config
	owner string
	log   *zap.Logger

	st    state.State
	join  *joinSource
	queue *queue
	gate  gate
	stuck troubles
	// checked is the last answer to whether the cloud can be reached.
	checked atomic.Pointer[error]

	requests      *mirror[*infra.MachineRequest]
	statuses      *mirror[*infra.MachineRequestStatus]
	registrations *mirror[*infra.MachineRegistration]
	patches       *mirror[*infra.ConfigPatchRequest]
	machines      *mirror[*infra.Machine]
	observed      *mirror[*infra.MachineStatus]
	records       *mirror[*record]

	attemptsMu sync.Mutex
	attempts   map[string]int
	looks      looks
}

// New checks the configuration and returns the provider; nothing is called yet.
func New(cfg Config) (*Provider, error) {
	if err := ValidateID(cfg.ID); err != nil {
		return nil, err
	}

	if cfg.Driver == nil || cfg.Logger == nil {
		return nil, errors.New("lifecycle: Config needs a Driver and a Logger")
	}

	if cfg.Name == "" {
		cfg.Name = cfg.ID
	}

	setDefault(&cfg.Provisions, 8)
	setDefault(&cfg.Removals, 8)
	setDefault(&cfg.CallTimeout, time.Minute)
	setDefault(&cfg.PhaseTimeout, time.Hour)
	setDefault(&cfg.PollInterval, time.Minute)
	setDefault(&cfg.HeartbeatInterval, 15*time.Second)

	return &Provider{
		cfg: cfg,
		// The name is the one that the official library uses, so that either can take over the other's machines.
		owner:    cfg.ID + ".ProvisionController",
		log:      cfg.Logger,
		attempts: map[string]int{},
	}, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Run works until ctx ends, then returns nil once every call under way is over. It returns an error only for what cannot heal
// by itself: Omni refuses the provider. st is Omni's state with the rights of an infra provider.
func (p *Provider) Run(ctx context.Context, st state.State) error {
	p.st = st
	p.queue = newQueue(p.laneOf, p.unwanted, p.reconcile)

	if err := p.register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return err
	}

	join, err := newJoinSource(ctx, st, p.cfg.ID, p.log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return err
	}

	p.join = join
	p.mirrors()

	var wg sync.WaitGroup
	defer wg.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	watchFailed := func(err error) { p.log.Warn("watch is opened again", zap.Error(err)) }

	for _, follow := range []func(context.Context, state.CoreState, func(error)){
		p.requests.run, p.statuses.run, p.registrations.run, p.patches.run, p.machines.run, p.observed.run, p.records.run, p.join.run,
	} {
		wg.Go(func() { follow(ctx, st, watchFailed) })
	}

	wg.Go(func() { p.heartbeat(ctx) })

	for _, filled := range []func(context.Context) error{
		p.requests.awaitFilled, p.statuses.awaitFilled, p.registrations.awaitFilled, p.patches.awaitFilled,
		p.machines.awaitFilled, p.observed.awaitFilled, p.records.awaitFilled,
	} {
		if filled(ctx) != nil {
			return nil
		}
	}

	for _, request := range p.requests.all(nil) {
		p.queue.add(request.Metadata().ID())
	}

	// A request may have gone while no provider was there.
	for _, rec := range p.records.all(nil) {
		p.queue.add(rec.Metadata().ID())
	}

	wg.Go(func() { p.observe(ctx) })

	p.queue.run(ctx, [lanes]int{provisionLane: p.cfg.Provisions, promptLane: p.cfg.Removals})

	return nil
}

// mirrors sets up the copies of what Omni holds. A change wakes the request that it belongs to.
func (p *Provider) mirrors() {
	own := func(res resource.Resource) bool {
		id, ok := res.Metadata().Labels().Get(omni.LabelInfraProviderID)

		return ok && id == p.cfg.ID
	}

	p.requests = newMirror(resources.InfraProviderNamespace, infra.MachineRequestType,
		func(r *infra.MachineRequest) bool { return own(r) }, p.requestChanged)
	p.statuses = newMirror(resources.InfraProviderNamespace, infra.MachineRequestStatusType,
		func(r *infra.MachineRequestStatus) bool { return own(r) },
		func(before, after *infra.MachineRequestStatus) { p.queue.add(idOf(before, after)) })
	p.registrations = newMirror(resources.InfraProviderNamespace, infra.MachineRegistrationType,
		func(r *infra.MachineRegistration) bool { return own(r) }, wakeByLabel(p, (*infra.MachineRegistration).Metadata))
	p.patches = newMirror(resources.InfraProviderNamespace, infra.ConfigPatchRequestType,
		func(r *infra.ConfigPatchRequest) bool { return own(r) }, wakeByLabel(p, (*infra.ConfigPatchRequest).Metadata))
	p.machines = newMirror(resources.InfraProviderNamespace, infra.InfraMachineType,
		func(r *infra.Machine) bool { return own(r) },
		func(before, after *infra.Machine) { p.wakeByUUID(idOf(before, after)) })
	p.observed = newMirror(resources.InfraProviderNamespace, infra.InfraMachineStatusType,
		func(r *infra.MachineStatus) bool { return own(r) }, func(_, _ *infra.MachineStatus) {})
	p.records = newMirror(recordNamespace(p.cfg.ID), recordType(p.cfg.ID), nil,
		func(before, after *record) { p.queue.add(idOf(before, after)) })
	p.records.decode = decodeRecord
}

// requestChanged hurries a request whose wish changed: a pause after an error holds no longer.
func (p *Provider) requestChanged(before, after *infra.MachineRequest) {
	if isNil(before) || isNil(after) || before.Metadata().Phase() != after.Metadata().Phase() ||
		!before.Metadata().Annotations().Equal(*after.Metadata().Annotations()) {
		p.queue.hurry(idOf(before, after))

		return
	}

	p.queue.add(idOf(before, after))
}

func idOf[T resource.Resource](before, after T) resource.ID {
	if isNil(after) {
		return before.Metadata().ID()
	}

	return after.Metadata().ID()
}

func wakeByLabel[T resource.Resource](p *Provider, md func(T) *resource.Metadata) func(before, after T) {
	return func(before, after T) {
		for _, res := range []T{before, after} {
			if isNil(res) {
				continue
			}

			if id, ok := md(res).Labels().Get(omni.LabelMachineRequest); ok {
				p.queue.add(id)
			}
		}
	}
}

func (p *Provider) wakeByUUID(uuid string) {
	for _, status := range p.statuses.all(func(s *infra.MachineRequestStatus) bool { return s.TypedSpec().Value.Id == uuid }) {
		p.queue.hurry(status.Metadata().ID())
	}
}

func (p *Provider) laneOf(id string) lane {
	if p.unwanted(id) {
		return promptLane
	}

	if status, ok := p.statuses.get(id); ok && (status.Metadata().Phase() == resource.PhaseTearingDown || isProvisioned(status)) {
		return promptLane
	}

	return provisionLane
}

// unwanted reports whether Omni has no use for the request's machine.
func (p *Provider) unwanted(id string) bool {
	request, ok := p.requests.get(id)

	return !ok || request.Metadata().Phase() == resource.PhaseTearingDown
}

func isProvisioned(status *infra.MachineRequestStatus) bool {
	return status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED
}

func (p *Provider) ref(id string) driver.Ref { return driver.Ref{ProviderID: p.cfg.ID, RequestID: id} }
