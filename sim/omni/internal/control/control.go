// Package control is the simulated Omni's own controllers: what the real server does by itself when resources change. It
// runs over any COSI state as Omni's internal actor. Package omni imports it.
package control

import (
	"context"

	"github.com/cosi-project/runtime/pkg/state"
)

// Bootstrap writes what an Omni has before anybody calls it: SideroLink and connection configuration, the initial join
// token, Talos versions and extensions, features. What is there already is kept, so it may be called again.
func Bootstrap(ctx context.Context, st state.State, opts Options) error {
	return nil
}

// Run does the work of Omni's controllers on st until ctx ends, and returns nil then. It calls Bootstrap first. All
// goroutines that it started have ended when it returns. Time is that of package time, so a test may fake it.
func Run(ctx context.Context, st state.State, opts Options) error {
	if err := Bootstrap(ctx, st, opts); err != nil {
		return err
	}

	<-ctx.Done()

	return nil
}
