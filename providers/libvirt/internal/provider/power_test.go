package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestWishThatWasDroppedIsNotTakenForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{})
		own := &domain{mark: mark{Provider: "p", Request: "r"}}

		one, first := d.leave(own, wantReboot)
		require.True(t, first)

		// As long as the library comes back, it is the same wish, however long that takes.
		for range 10 {
			time.Sleep(10 * time.Minute)

			again, first := d.leave(own, wantReboot)
			require.False(t, first)
			require.Same(t, one, again)
		}

		time.Sleep(forgetAfter)

		next, first := d.leave(own, wantReboot)
		require.True(t, first, "a reboot of long ago does not count for this one")
		require.NotSame(t, one, next)

		_, first = d.leave(own, wantShutdown)
		require.True(t, first)

		d.settle(driver.Ref{ProviderID: "p", RequestID: "r"})
		require.Empty(t, d.leaving)
	})
}
