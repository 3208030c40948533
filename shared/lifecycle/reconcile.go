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
	if !ok && !p.leftOver(id) {
		p.forget(id)

		return result{}
	}

	if wait := p.gate.closedFor(); wait > 0 {
		return result{after: wait, hold: true}
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
		p.attempt(id, true)
		p.stuck.clear(id)

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

	after := p.pause(err, p.attempt(id, false))
	p.log.Warn("request is tried again", zap.String("request", id), zap.Bool("removing", removing), zap.Error(err), zap.Duration("in", after))

	if kind == driver.KindThrottled {
		p.gate.close(after)
	}

	if removing {
		p.stuck.set(id, err)
	}

	return result{after: after, hold: true}
}

// pause returns how long to wait after so many failures in a row, this one included.
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

// attempt counts the failures in a row of a request and returns their number.
func (p *Provider) attempt(id string, succeeded bool) int {
	p.attemptsMu.Lock()
	defer p.attemptsMu.Unlock()

	if succeeded {
		delete(p.attempts, id)

		return 0
	}

	p.attempts[id]++

	return p.attempts[id]
}

// failures returns the number of failures in a row so far.
func (p *Provider) failures(id string) int {
	p.attemptsMu.Lock()
	defer p.attemptsMu.Unlock()

	return p.attempts[id]
}

func (p *Provider) forget(id string) {
	p.attempt(id, true)
	p.stuck.clear(id)
	p.looks.forget(id)
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

// gate holds every turn back while the cloud asks to be left alone.
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
