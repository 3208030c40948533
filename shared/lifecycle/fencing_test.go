package lifecycle

import (
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A process that was stopped for longer than its lease goes on where it was, before any timer has told it.
func TestNothingIsWrittenToOmniWithoutTheLease(t *testing.T) {
	cfg := Config{ID: "test", Logger: zap.NewNop()}
	cfg.setDefaults()

	// Any call would panic.
	var omni state.State

	lost := newLease(cfg, omni)
	p := &Provider{cfg: cfg, st: omni, lease: lost, log: cfg.Logger}

	require.ErrorIs(t, p.write(t.Context(), nil), errLeaseLost)

	h := heart{cfg: cfg, st: omni, lease: lost}
	require.ErrorIs(t, h.beat(t.Context(), ""), errLeaseLost)

	_, err := change[struct{}](t.Context(), p, time.Second, "test", nil)
	require.ErrorIs(t, err, errLeaseLost)
}
