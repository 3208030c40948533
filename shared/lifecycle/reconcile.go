package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The pauses after an error, by its kind. A terminal error is looked at again because what made it so may be mended outside of
// the request: a pool that was missing, a release that accepts the field.
var (
	transientPause = backoff{first: 2 * time.Second, most: time.Minute}
	capacityPause  = backoff{first: time.Minute, most: 10 * time.Minute}
	terminalPause  = backoff{first: 5 * time.Minute, most: 10 * time.Minute}
	pendingPause   = 2 * time.Second
)

// reconcile takes one turn of a request.
func (p *Provider) reconcile(ctx context.Context, id string) result {
	request, ok := p.requests.get(id)
	if !ok && !p.leftOver(id) && !p.sweeper.isDoomed(id) {
		p.forget(id)

		return result{}
	}

	ctx = withTurn(ctx, id)

	if err := p.gate.refusal(); err != nil {
		return result{after: driver.PauseOf(err), hold: true}
	}

	switch {
	case !ok:
		return p.settle(ctx, id, true, p.orphaned(ctx, id))
	case request.Metadata().Phase() == resource.PhaseTearingDown:
		return p.settle(ctx, id, true, p.deprovision(ctx, request))
	default:
		return p.settle(ctx, id, false, p.running(ctx, request))
	}
}

// settle decides when the request is looked at again.
func (p *Provider) settle(ctx context.Context, id string, removing bool, err error) result {
	if err == nil {
		p.succeeded(id)

		return result{}
	}

	// The end of the provider, or of the wish, is no failure of the machine.
	if ctx.Err() != nil {
		return result{after: time.Millisecond}
	}

	kind := driver.KindOf(err)
	p.cfg.Metrics.failed(kind)

	if kind == driver.KindPending {
		after := driver.PauseOf(err)
		setDefault(&after, pendingPause)

		if removing {
			p.stuck.set(id, err)
		}

		return result{after: after, hold: true}
	}

	after := p.pause(err, p.failed(id, kind))
	p.log.Warn("request is tried again", zap.String("request", id), zap.Bool("removing", removing), zap.Error(err), zap.Duration("in", after))

	if kind == driver.KindThrottled {
		p.gate.close(after)
	}

	if removing {
		p.stuck.set(id, err)
	}

	return result{after: after, hold: true}
}

// pause returns how long to wait after so many failures of err's kind in a row, this one included.
func (p *Provider) pause(err error, failures int) time.Duration {
	pauses := transientPause

	switch driver.KindOf(err) {
	case driver.KindTerminal:
		pauses = terminalPause
	case driver.KindCapacity:
		pauses = capacityPause
	case driver.KindTransient, driver.KindNotFound, driver.KindThrottled, driver.KindPending:
	}

	return max(pauses.after(failures-1), driver.PauseOf(err))
}

// failed counts a failure of a request and returns how many of its kind there were since the last success: the pauses of each
// kind grow by themselves.
func (p *Provider) failed(id string, kind driver.Kind) int {
	p.attemptsMu.Lock()
	defer p.attemptsMu.Unlock()

	if p.attempts[id] == nil {
		p.attempts[id] = map[driver.Kind]int{}
	}

	p.attempts[id][kind]++

	return p.attempts[id][kind]
}

// failures returns the number of failures of all kinds since the last success.
func (p *Provider) failures(id string) int {
	p.attemptsMu.Lock()
	defer p.attemptsMu.Unlock()

	sum := 0
	for _, n := range p.attempts[id] {
		sum += n
	}

	return sum
}

func (p *Provider) succeeded(id string) {
	p.attemptsMu.Lock()
	delete(p.attempts, id)
	p.attemptsMu.Unlock()

	p.stuck.clear(id)
	p.calls.forget(id)
}

func (p *Provider) forget(id string) {
	p.succeeded(id)
	p.looks.forget(id)
	p.reached.Delete(id)
}

// addFinalizer holds the request until its machine is gone; nothing is made before that.
func (p *Provider) addFinalizer(ctx context.Context, request *infra.MachineRequest) (*infra.MachineRequest, error) {
	return p.finalizer(ctx, request, func(next *infra.MachineRequest) bool { return next.Metadata().Finalizers().Add(p.owner) })
}

// removeFinalizer lets the request go. One that is gone already changed on the way, and its next turn finds nothing to do.
func (p *Provider) removeFinalizer(ctx context.Context, request *infra.MachineRequest) error {
	_, err := p.finalizer(ctx, request, func(next *infra.MachineRequest) bool { return next.Metadata().Finalizers().Remove(p.owner) })

	return err
}

func (p *Provider) finalizer(ctx context.Context, request *infra.MachineRequest, change func(*infra.MachineRequest) bool) (*infra.MachineRequest, error) {
	for tries := 1; ; tries++ {
		next := request.DeepCopy().(*infra.MachineRequest) //nolint:forcetypeassert,errcheck // a copy

		if !change(next) {
			return request, nil
		}

		err := p.write(ctx, func(ctx context.Context) error {
			return p.st.Update(ctx, next, state.WithUpdateOwner(request.Metadata().Owner()), state.WithExpectedPhaseAny())
		})
		if err == nil {
			p.requests.put(next)

			return next, nil
		}

		if !isRace(err) || tries == mostRaces {
			return nil, fmt.Errorf("set finalizer on machine request %q: %w", request.Metadata().ID(), err)
		}

		fresh, ok, err := fetch(ctx, p, p.requests, request.Metadata())
		if err != nil {
			return nil, err
		}

		if !ok || fresh.Metadata().Phase() != request.Metadata().Phase() {
			return nil, errChanged
		}

		request = fresh
	}
}

// errChanged ends a turn whose request has changed under it; the change brings the next turn.
var errChanged = &driver.Error{Kind: driver.KindPending, After: time.Millisecond, Err: errors.New("the request has changed")}

// mostSpread bounds the jitter with which everybody comes back after the cloud asked to be left alone.
const mostSpread = 5 * time.Second

// gate holds every call to the cloud back while it asks to be left alone. A phase that is under way is not interrupted: its next
// call is its driver's to hold back.
type gate struct {
	mu    sync.Mutex
	until time.Time
}

func (g *gate) close(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if until := time.Now().Add(d); until.After(g.until) {
		g.until = until
	}
}

func (g *gate) closedFor() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()

	return time.Until(g.until)
}

// refusal says for how long nothing may be asked of the cloud, or is nil.
func (g *gate) refusal() error {
	closed := g.closedFor()
	if closed <= 0 {
		return nil
	}

	return driver.Pending(closed+jitter(min(closed/5, mostSpread)), "the cloud asks to be left alone for %s", closed.Round(time.Second))
}

// wait returns when the cloud may be asked again, or at the end of ctx.
func (g *gate) wait(ctx context.Context) {
	for closed := g.closedFor(); closed > 0 && ctx.Err() == nil; closed = g.closedFor() {
		sleep(ctx, closed)
	}
}

// turn is wait for a call to the cloud that a method of the driver is about to make. It is not begun when ctx would end it.
func (g *gate) turn(ctx context.Context) error {
	for closed := g.closedFor(); closed > 0; closed = g.closedFor() {
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= closed {
			return g.refusal()
		}

		sleep(ctx, closed)

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}

	return ctx.Err()
}
