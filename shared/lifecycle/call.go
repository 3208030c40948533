package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// endGrace is how long a call of the driver is waited for after its context ended. A driver that ignores its context is left to
// itself then: it holds up neither the engine nor its shutdown.
const endGrace = 5 * time.Second

// call runs one call with its deadline. The error says what took too long, not just that something did.
func call[T any](ctx context.Context, timeout time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	late := fmt.Errorf("%s took longer than %s", what, timeout)

	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()

	v, err := f(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}

	return v, err
}

// ask is call for the driver's methods. It keeps three promises for all of them:
//
// A panic becomes an error, so that the bug of one is seen in a request's status and in health, and stops no other request.
//
// An error gives no join token away.
//
// A cloud that asks to be left alone is left alone by everybody: requests, looks, health, and whatever else asks. A driver that
// makes several calls to the cloud waits in between, with driver.AwaitTurn.
//
// A call that does not end although its context has is given up after endGrace. Nothing more is asked of the driver for the
// same request before it has ended: a machine would be made while it is removed.
func ask[T any](ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	var none T

	if err := cmp.Or(ctx.Err(), p.gate.refusal(), p.calls.refusal(turnOf(ctx), what)); err != nil {
		return none, err
	}

	v, err := call(ctx, timeout, what, func(ctx context.Context) (T, error) {
		type answer struct {
			v   T
			err error
		}

		answered := make(chan answer, 1)
		under := p.calls.begin(turnOf(ctx), what)

		go func() {
			v, err := guard(driver.WithTurn(ctx, p.gate.turn), p, under, f)
			p.calls.end(under)

			answered <- answer{v, err}
		}()

		select {
		case a := <-answered:
			return a.v, a.err
		case <-ctx.Done():
		}

		select {
		case a := <-answered:
			return a.v, a.err
		case <-time.After(endGrace):
			p.calls.giveUp(under)

			return none, fmt.Errorf("it does not end: %w", ctx.Err())
		}
	})
	err = discreetly(err)

	if driver.KindOf(err) == driver.KindThrottled {
		p.gate.close(max(driver.PauseOf(err), transientPause.first))
	}

	return v, err
}

// guard turns a panic into an error.
func guard[T any](ctx context.Context, p *Provider, under *underWay, f func(context.Context) (T, error)) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.log.Error("panic in the driver", zap.String("call", under.what), zap.String("panic", discreet(fmt.Sprint(r))), zap.ByteString("stack", debug.Stack()))

			err = fmt.Errorf("%s: internal error of the provider, please report it: panic: %v", under.what, r)
			p.calls.panicked(under, discreetly(err))
		}
	}()

	return f(ctx)
}

// change is ask for what may change the cloud: only the process that holds the lease does that.
func change[T any](ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	if err := p.lease.check(); err != nil {
		var none T

		return none, fmt.Errorf("%s: %w", what, err)
	}

	return ask(ctx, p, timeout, what, f)
}

// do is ask for what returns nothing but an error.
func do(ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) error) error {
	_, err := ask(ctx, p, timeout, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })

	return err
}

// alter is change for what returns nothing but an error.
func alter(ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) error) error {
	_, err := change(ctx, p, timeout, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })

	return err
}
