package lifecycle_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestMachineRequestOfAnotherProviderIsLeftAlone(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a", func(r *infra.MachineRequest) { r.Metadata().Labels().Set(omni.LabelInfraProviderID, "other") })
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.calls)
	})
}

func TestProviderIDIsADNSLabel(t *testing.T) {
	for id, ok := range map[string]bool{
		"libvirt": true, "a-b1": true, "0": true, strings.Repeat("a", 63): true,
		"": false, "My_Prov": false, "-a": false, "a-": false, "a b": false, strings.Repeat("a", 64): false,
	} {
		err := lifecycle.ValidateID(id)
		assert.Equal(t, ok, err == nil, "%q: %v", id, err)
	}
}

func TestTwoProvidersInOneProcessSeeOnlyTheirOwn(t *testing.T) {
	run(t, func(w *world) {
		other := &cloud{machines: map[string]driver.Machine{}}
		provider, err := lifecycle.New(lifecycle.Config{ID: "other", Driver: other, Logger: zap.NewNop(), Schema: "{}"})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan error, 1)

		go func() { done <- provider.Run(ctx, w.st) }()

		w.request("pool-a")
		w.wait(time.Second)
		assert.Empty(t, other.names())
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())

		cancel()
		require.NoError(t, <-done)
	})
}
