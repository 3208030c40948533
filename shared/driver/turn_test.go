package driver_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestTurnIsTheLibrarysToGive(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())

	require.NoError(t, driver.AwaitTurn(ctx), "a driver outside of the library waits for nobody")

	not := errors.New("not yet")
	turn, end := context.WithCancel(driver.WithTurn(ctx, func(context.Context) error { return not }))
	require.ErrorIs(t, driver.AwaitTurn(turn), not)

	end()
	cancel()
	require.ErrorIs(t, driver.AwaitTurn(ctx), context.Canceled)
}
