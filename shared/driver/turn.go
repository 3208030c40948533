package driver

import "context"

type turnKey struct{}

// AwaitTurn waits while the cloud asks to be left alone, as it did with a Throttled error of any call. Drivers call it right
// before each call to the cloud, and return its error; one with an HTTP client does so in its RoundTripper. A method that makes
// one call after the other keeps the quiet time that way, when another one has been asked for it meanwhile.
//
// The wait ends with ctx. When its deadline is sooner than the end of the quiet time, a Pending error says so at once. ctx is
// that of the driver's method, or made from it; with any other there is nothing to wait for.
func AwaitTurn(ctx context.Context) error {
	if wait, ok := ctx.Value(turnKey{}).(func(context.Context) error); ok {
		return wait(ctx)
	}

	return ctx.Err()
}

// WithTurn returns a ctx in which AwaitTurn calls wait. The library gives it to drivers.
func WithTurn(ctx context.Context, wait func(context.Context) error) context.Context {
	return context.WithValue(ctx, turnKey{}, wait)
}
