package flight_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/flight"
)

func TestWorkGoesOnWhileSomebodyWaitsAndEndsWithTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			f      flight.Group[int]
			starts int
		)

		work := func(ctx context.Context, tell func(string)) (int, error) {
			starts++

			tell("working")

			select {
			case <-time.After(time.Minute):
				return 7, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}

		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		go func() { _, _ = f.Do(impatient, "key", func(string) {}, work) }()

		synctest.Wait()

		got, err := f.Do(t.Context(), "key", func(string) {}, work)
		require.NoError(t, err)
		require.Equal(t, 7, got)
		require.Equal(t, 1, starts)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		_, err = f.Do(ctx, "key", func(string) {}, work)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		f.Wait()
		require.Equal(t, 2, starts)
	})
}
