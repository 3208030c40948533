package hypervisor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestWishThatWasDroppedIsNotTakenForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		own := &domain{mark: machine.Mark{Provider: "p", Request: "r"}}

		one, first := h.leave(own, wantReboot)
		require.True(t, first)

		// As long as the library comes back, it is the same wish, however long that takes.
		for range 10 {
			time.Sleep(10 * time.Minute)

			again, first := h.leave(own, wantReboot)
			require.False(t, first)
			require.Same(t, one, again)
		}

		time.Sleep(forgetAfter)

		next, first := h.leave(own, wantReboot)
		require.True(t, first, "a reboot of long ago does not count for this one")
		require.NotSame(t, one, next)

		_, first = h.leave(own, wantShutdown)
		require.True(t, first)

		h.settle(driver.Ref{ProviderID: "p", RequestID: "r"})
		require.Empty(t, h.leaving)
	})
}
