package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

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

// ask is call for the driver's methods: a panic becomes an error, so that the bug of one is seen in a request's status and
// stops no other request. A cloud that asks to be left alone is left alone by everybody.
func ask[T any](ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	v, err := call(ctx, timeout, what, func(ctx context.Context) (v T, err error) {
		defer func() {
			if r := recover(); r != nil {
				p.log.Error("panic in the driver", zap.String("call", what), zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
				err = fmt.Errorf("%s: internal error of the provider, please report it: panic: %v", what, r)
			}
		}()

		return f(ctx)
	})

	if driver.KindOf(err) == driver.KindThrottled {
		p.gate.close(max(driver.PauseOf(err), transientPause.first))
	}

	return v, err
}

// do is ask for what returns nothing but an error.
func do(ctx context.Context, p *Provider, timeout time.Duration, what string, f func(context.Context) error) error {
	_, err := ask(ctx, p, timeout, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })

	return err
}
