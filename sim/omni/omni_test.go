package omni_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/siderolabs/omni/client/pkg/client"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// start runs an Omni until the test ends.
func start(t *testing.T, opts omni.Options) *omni.Omni {
	t.Helper()

	o, err := omni.New(opts)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- o.Run(ctx) }()

	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})

	return o
}

// connect returns a client that is closed when the test ends.
func connect(t *testing.T, o *omni.Omni, key string, opts ...client.Option) *client.Client {
	t.Helper()

	c, err := o.Client(key, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })

	return c
}

// provider registers an infra provider and returns its client.
func provider(t *testing.T, o *omni.Omni, id string) *client.Client {
	t.Helper()

	key, err := o.CreateProvider(t.Context(), id)
	require.NoError(t, err)

	return connect(t, o, key)
}

// within bounds what a test waits for.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)

	return ctx
}
