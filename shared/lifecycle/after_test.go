package lifecycle_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// idleDriver is one that nobody asks anything.
type idleDriver struct{ driver.Driver }

func TestProvidersThatFollowOneAnotherDoNotPileUp(t *testing.T) {
	after := func(p *lifecycle.Provider) *lifecycle.Provider {
		next, err := lifecycle.New(lifecycle.Config{ID: providerID, Driver: idleDriver{}, Logger: zap.NewNop(), After: p})
		require.NoError(t, err)

		return next
	}

	seen, last := func() (weak.Pointer[lifecycle.Provider], *lifecycle.Provider) {
		first := after(nil)

		return weak.Make(first), after(first)
	}()

	runtime.GC()
	require.True(t, seen.Value() == nil, "what one has known of Omni and the cloud goes with it")
	runtime.KeepAlive(last)
}
