package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func (w *world) healthStatus() *infra.ProviderHealthStatus {
	res, err := w.st.Get(w.ctx, infra.NewProviderHealthStatus(providerID).Metadata())
	require.NoError(w.t, err)

	return res.(*infra.ProviderHealthStatus) //nolint:forcetypeassert,errcheck // read by its id
}

func (w *world) health() string { return w.healthStatus().TypedSpec().Value.Error }

func TestHealthTellsOfTheCloudAndRecovers(t *testing.T) {
	run(t, func(w *world) {
		w.wait(time.Minute)
		assert.Empty(t, w.health())

		w.cloud.check = func(context.Context) error { return errors.New("401 unauthorized") }
		w.wait(30 * time.Second)
		assert.Contains(t, w.health(), "401")

		w.cloud.check = nil
		w.wait(30 * time.Second)
		assert.Empty(t, w.health())
	})
}

func TestCheckThatHangsDelaysNoHeartbeat(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.check = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		w.wait(time.Minute)

		for range 100 {
			w.wait(time.Second)

			age := time.Since(w.healthStatus().TypedSpec().Value.LastHeartbeatTimestamp.AsTime())
			require.Less(t, age, 20*time.Second, "Omni takes the provider for dead after 31 s")
		}

		assert.Contains(t, w.health(), "checking the cloud took longer than 15s")
	})
}

func TestThrottledCloudIsLeftAloneByLooksAndChecks(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error {
			return driver.Throttled(5*time.Minute, errors.New("429 too many requests"))
		}

		w.wait(time.Minute)
		w.request("pool-a")
		w.wait(time.Second)

		lists, checks := w.cloud.lists, w.cloud.checks
		w.wait(4 * time.Minute)
		assert.Equal(t, lists, w.cloud.lists)
		assert.Equal(t, checks, w.cloud.checks)
		assert.Empty(t, w.health(), "the last answer holds")

		w.cloud.ensure = nil
		w.wait(5 * time.Minute)
		assert.Greater(t, w.cloud.lists, lists)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
	})
}

func TestHealthMayBeAskedAtAnyTime(t *testing.T) {
	alone(t, func(w *world) {
		p, cfg := w.newProcess("a")
		provider, err := lifecycle.New(cfg)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(w.ctx)
		go func() { p.done <- provider.Run(ctx, p.line) }()

		for range 20 {
			require.NoError(t, provider.Healthy(w.ctx))
			time.Sleep(time.Millisecond)
		}

		cancel()
		require.NoError(t, <-p.done)
	})
}

func TestProcessThatWaitsHasNoTroublesOfItsFormerTerm(t *testing.T) {
	alone(t, func(w *world) {
		p, cfg := w.newProcess("a")
		registry := prometheus.NewRegistry()
		cfg.Metrics = lifecycle.NewMetrics(registry)

		provider, err := lifecycle.New(cfg)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(w.ctx)
		go func() { p.done <- provider.Run(ctx, p.line) }()

		w.request("pool-a")
		w.wait(time.Minute)
		w.cloud.mu.Lock()
		w.cloud.remove = func() error { return errors.New("500 broken") }
		w.cloud.mu.Unlock()
		w.teardown("pool-a")
		w.wait(2 * time.Hour)
		require.ErrorContains(t, provider.Healthy(w.ctx), "500 broken")
		require.EqualValues(t, 1, leftOver(t, registry))

		b := w.process("b")
		p.line.set("", true)
		w.wait(time.Minute)
		p.line.set("", false)
		w.wait(time.Minute)
		require.NoError(t, provider.Healthy(w.ctx), "what it waits for is another process's trouble")
		require.Zero(t, leftOver(t, registry))

		b.stop()
		cancel()
		require.NoError(t, <-p.done)
	})
}

// leftOver returns how many things the metrics say are left over.
func leftOver(t *testing.T, registry *prometheus.Registry) (sum float64) {
	t.Helper()

	families, err := registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		if family.GetName() == "omni_infra_left_over" {
			for _, m := range family.GetMetric() {
				sum += m.GetGauge().GetValue()
			}
		}
	}

	return sum
}
