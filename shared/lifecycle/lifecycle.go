// Package lifecycle turns Omni's machine requests into machines of a cloud and takes them away again. It owns everything that
// is the same in every cloud: the order of steps, what is recorded when, retries, status texts, teardown, health, power. A
// driver (package driver) does the rest. Package runner makes a program of it.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	// Trouble returns what else is wrong with the provider, for its health in Omni. It may be nil, and is called often.
	Trouble func() error

	// Provisions is how many machines are made at once, Removals how many other requests are worked on besides: teardowns, power
	// and the care of machines that run. 8 each by default. Where the driver has places, each of them has so many, and what has
	// no place yet.
	Provisions, Removals int
	// CallTimeout limits each call of the driver but phases and each call to Omni; a minute by default.
	CallTimeout time.Duration
	// PhaseTimeout limits one run of a phase, which may have an image to import; an hour by default.
	PhaseTimeout time.Duration
	// PollInterval is the pause between two full looks at the cloud; a minute by default.
	PollInterval time.Duration
	// HeartbeatInterval is the pause between two health reports; 15 seconds by default. Omni takes a provider for dead after 31.
	HeartbeatInterval time.Duration
	// LeaseDuration is how long a process that cannot reach Omni goes on before it stops to act; 30 seconds by default, a second at
	// least. It is renewed each third of that. Another process with the same id takes over when the first has ended in order, or
	// has been silent for a fifth more than that.
	LeaseDuration time.Duration
	// Holder is what this process is called in the log of another one that waits for the lease; host name and process number by default.
	Holder string
	// Sweep says what is done about what is left over in the cloud or does not go; it is reported by default.
	Sweep SweepMode
	// SweepGrace is how long something has to be left over before it counts; an hour by default.
	SweepGrace time.Duration
	// GonePlaces are places that the driver had and that will not come back, by the operator's word. The machines that are recorded to be
	// there are taken for vanished, and given up without being removed.
	GonePlaces []string
	// After is the provider that this one follows in the same process, which has to have ended. What it left behind of calls of the
	// driver is waited for. It may be nil.
	After *Provider
}

// unwantedGrace is how long a phase may go on when its machine is not wanted any more. A call to the cloud that is given up sooner
// may yet make something, after the removal has found nothing.
const unwantedGrace = 90 * time.Second

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
	lease *lease
	join  *joinSource
	queue *queue
	gate  gate
	calls *calls
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
	official      *mirror[resource.Resource]

	attemptsMu sync.Mutex
	attempts   map[string]map[driver.Kind]int
	// reached is the phase at which each machine waits for the cloud.
	reached sync.Map
	looks   looks
	// looking is held by the turn that takes the first look.
	looking chan struct{}
	sweeper sweeper
}

// New checks the configuration and returns the provider; nothing is called yet.
func New(cfg Config) (*Provider, error) {
	if err := ValidateID(cfg.ID); err != nil {
		return nil, err
	}

	if cfg.Driver == nil || cfg.Logger == nil {
		return nil, errors.New("lifecycle: Config needs a Driver and a Logger")
	}

	cfg.setDefaults()

	if cfg.LeaseDuration < time.Second || cfg.LeaseDuration > longestLease {
		return nil, fmt.Errorf("lifecycle: Config.LeaseDuration is %s: want %s to %s", cfg.LeaseDuration, time.Second, longestLease)
	}

	if !slices.Contains([]SweepMode{SweepTell, SweepRemove, SweepOff}, cfg.Sweep) {
		return nil, fmt.Errorf("lifecycle: Config.Sweep is %q: want %s, %s or %s", cfg.Sweep, SweepOff, SweepTell, SweepRemove)
	}

	if placer, ok := cfg.Driver.(driver.Placer); ok {
		for _, place := range placer.Places() {
			if slices.Contains(cfg.GonePlaces, place) {
				return nil, fmt.Errorf("place %q is said to be gone, and is configured: it can be one of the two only", place)
			}
		}
	}

	p := &Provider{owner: ownerOf(cfg.ID), log: cfg.Logger, calls: &calls{}, looking: make(chan struct{}, 1)}

	if cfg.After != nil {
		// The rest of it, with all its copies of what is in Omni, is let go.
		p.calls, cfg.After = cfg.After.calls, nil
	}

	p.cfg = cfg
	p.sweeper.grace = cfg.SweepGrace
	p.reset()

	return p, nil
}

// reset forgets what is known of the cloud and of the requests.
func (p *Provider) reset() {
	p.looks.reset()
	p.stuck.reset()
	p.sweeper.reset()
	p.reached.Clear()

	p.attemptsMu.Lock()
	defer p.attemptsMu.Unlock()

	p.attempts = map[string]map[driver.Kind]int{}
}

func (c *Config) setDefaults() {
	if c.Name == "" {
		c.Name = c.ID
	}

	setDefault(&c.Provisions, 8)
	setDefault(&c.Removals, 8)
	setDefault(&c.CallTimeout, time.Minute)
	setDefault(&c.PhaseTimeout, time.Hour)
	setDefault(&c.PollInterval, time.Minute)
	setDefault(&c.HeartbeatInterval, 15*time.Second)
	setDefault(&c.LeaseDuration, 30*time.Second)
	setDefault(&c.Holder, defaultHolder())
	setDefault(&c.Sweep, SweepTell)
	setDefault(&c.SweepGrace, time.Hour)
}

// ownerOf is the provider's name as an owner and in finalizers. It is the one that the official library uses, so that either can
// take over the other's machines.
func ownerOf(providerID string) string { return providerID + ".ProvisionController" }

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Run works until ctx ends, then returns nil once every call under way is over; a call of the driver that ignores its context is
// waited for no longer than five seconds, and may still be at work when Run has returned. Run returns an error only for what
// cannot heal by itself: Omni refuses the provider from the start. st is Omni's state with the rights of an infra provider.
//
// Of several processes with one provider id, the one that holds the lease acts. The others change nothing in the cloud and
// write nothing to Omni: neither name and schema, which may be those of another version, nor a heartbeat, since Omni would show
// the health of a process that does nothing. They are healthy when they reach the cloud: whoever restarts what is unhealthy, or
// starts a new version before it ends the old one, must be able to have one that waits.
func (p *Provider) Run(ctx context.Context, st state.State) error {
	p.st = st
	p.lease = newLease(p.cfg, st)
	p.lease.idle = p.calls.allEnded

	return p.lease.serve(ctx, p.work)
}

// work does all that a provider does until ctx ends. It leaves nothing behind for the next term: what is wrong meanwhile is
// not this process's trouble, and its health and metrics must not tell of it.
func (p *Provider) work(ctx context.Context) error {
	defer func() {
		p.reset()
		p.cfg.Metrics.leftOver(nil)
	}()

	p.queue = newQueue(p.poolOf, p.unwanted, p.reconcile)
	p.queue.grace = unwantedGrace
	p.calls.wakes(p.queue.hurry)

	if err := p.register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return err
	}

	join, err := newJoinSource(ctx, p.st, p.cfg.ID, p.log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return err
	}

	p.join = join
	p.mirrors()

	defer p.calls.warn(p.log)

	var wg sync.WaitGroup
	defer wg.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	p.follow(ctx, &wg)
	wg.Go(func() { p.join.run(ctx, p.st, p.watchFailed) })
	wg.Go(func() { p.heartbeat(ctx) })

	if p.awaitMirrors(ctx) != nil {
		return nil
	}

	for _, request := range p.requests.all(nil) {
		p.queue.add(request.Metadata().ID())
	}

	// A request may have gone while no provider was there.
	for _, rec := range p.records.all(nil) {
		p.queue.add(rec.Metadata().ID())
	}

	for _, state := range p.official.all(nil) {
		p.queue.add(state.Metadata().ID())
	}

	wg.Go(func() { p.observe(ctx) })

	p.queue.run(ctx, [lanes]int{provisionLane: p.cfg.Provisions, promptLane: p.cfg.Removals})

	return nil
}

// follow keeps the mirrors up to date until ctx ends.
func (p *Provider) follow(ctx context.Context, wg *sync.WaitGroup) {
	for _, follow := range []func(context.Context, state.CoreState, func(error)){
		p.requests.run, p.statuses.run, p.registrations.run, p.patches.run, p.machines.run, p.observed.run, p.records.run,
		p.official.run,
	} {
		wg.Go(func() { follow(ctx, p.st, p.watchFailed) })
	}
}

func (p *Provider) watchFailed(err error) { p.log.Warn("watch is opened again", zap.Error(err)) }

// awaitMirrors returns once they are filled.
func (p *Provider) awaitMirrors(ctx context.Context) error {
	for _, filled := range []func(context.Context) error{
		p.requests.awaitFilled, p.statuses.awaitFilled, p.registrations.awaitFilled, p.patches.awaitFilled,
		p.machines.awaitFilled, p.observed.awaitFilled, p.records.awaitFilled, p.official.awaitFilled,
	} {
		if err := filled(ctx); err != nil {
			return err
		}
	}

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
		p.recordChanged)
	p.records.decode = decodeRecord
	p.official = newMirror(recordNamespace(p.cfg.ID), officialType(p.cfg.ID), nil,
		func(before, after resource.Resource) { p.queue.add(idOf(before, after)) })

	back := &comeback{}
	p.requests.back, p.statuses.back, p.registrations.back, p.patches.back = back, back, back, back
	p.machines.back, p.observed.back, p.records.back, p.official.back = back, back, back, back
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

func (p *Provider) poolOf(id string) pool { return pool{p.laneOf(id), p.recordedPlace(id)} }

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
