package lifecycle_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestMachineIsJudgedByItsOwnPlace(t *testing.T) {
	for _, wrong := range []string{cut, hung} {
		t.Run(wrong, func(t *testing.T) {
			runSites(t, func(w *world, s *sites) {
				for _, id := range []string{"a/gone", "a/stays", "b/unseen", "b/lost"} {
					place, id, _ := strings.Cut(id, "/")
					w.madeAt(s, place, id)
				}

				w.wait(5 * time.Minute)
				s.set("b", wrong)

				for _, id := range []string{"gone", "unseen", "lost"} {
					status, _ := w.status(id)
					w.setHeld(status.Metadata(), true)
				}

				w.cloud.drop("a/gone")
				w.cloud.drop("b/lost")
				w.wait(10 * time.Minute)
				assert.Contains(t, w.failure("gone"), "vanished from the cloud", "its place was seen")

				w.wait(12 * time.Hour)

				for _, id := range []string{"stays", "unseen", "lost"} {
					assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(id), "%s: nobody has looked", id)
					status, _ := w.status(id)
					assert.Equal(t, resource.PhaseRunning, status.Metadata().Phase())
				}

				s.set("b", "")
				w.wait(10 * time.Minute)
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("unseen"), "the place is back, and the machine with it")
				assert.Contains(t, w.failure("lost"), "vanished from the cloud")
			})
		})
	}
}

func TestPlaceWithoutAnyOfItsMachinesIsDoubtedAlone(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "a", "gone")
		w.madeAt(s, "a", "stays")
		w.madeAt(s, "b", "b-1")
		w.madeAt(s, "b", "b-2")
		w.wait(5 * time.Minute)

		for _, id := range []string{"gone", "b-1", "b-2"} {
			status, _ := w.status(id)
			w.setHeld(status.Metadata(), true)
		}

		w.cloud.drop("a/gone")
		w.cloud.drop("b/b-1")
		w.cloud.drop("b/b-2")
		w.wait(5 * time.Minute)

		assert.Contains(t, w.failure("gone"), "vanished from the cloud")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("b-1"))
		assert.Contains(t, w.health(), `place "b" has none of the 2 machines that were made there: is it the right one? They are given up in `)

		w.wait(10 * time.Minute)
		assert.Contains(t, w.failure("b-1"), "vanished from the cloud")
		assert.Contains(t, w.failure("b-2"), "vanished from the cloud")
		assert.NotContains(t, w.health(), "has none of")
	})
}

func TestPlaceThatIsNotConfiguredAnyMoreLosesNoMachine(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "a", "pool-a")
		w.madeAt(s, "b", "pool-b")
		w.wait(5 * time.Minute)

		w.stop()
		s.configure("a", "c")
		w.start()
		w.wait(time.Hour)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-b"))

		w.teardown("pool-b")
		w.wait(time.Hour)
		assert.NotEmpty(t, w.finalizers("pool-b"))
		assert.Contains(t, w.health(), `the provider is not configured for the place "b", where the machine was made: configure it again`)
		assert.Zero(t, w.cloud.count("remove pool-b")+w.cloud.count("remove-from pool-b b"))

		w.stop()
		s.configure("a", "b", "c")
		w.start()
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-b"))
		assert.Equal(t, []string{"a/pool-a"}, w.cloud.names())
	})
}

func TestPlaceThatHasAnotherNameNowIsRecordedAnew(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-b")
		w.stop()
		w.cloud.drop("b/pool-b")
		s.configure("a", "blue")
		s.put("blue", "pool-b")
		w.start()
		w.wait(5 * time.Minute)
		assert.Equal(t, "blue", w.info("pool-b").Place)

		w.teardown("pool-b")
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-b"))
		assert.Empty(t, w.cloud.names())
	})
}

func TestMachinesOfAPlaceThatIsGoneAreGivenUp(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "a", "stays")
		w.madeAt(s, "b", "wanted")
		w.madeAt(s, "b", "unwanted")
		s.set("b", cut)
		w.request("begun")
		w.wait(5 * time.Minute)
		require.Equal(t, "b", w.info("begun").Place)

		status, _ := w.status("wanted")
		w.setHeld(status.Metadata(), true)
		w.teardown("unwanted")
		w.wait(time.Hour)
		assert.NotEmpty(t, w.finalizers("unwanted"))
		assert.Contains(t, w.health(), `place "b" cannot be reached: no route to host; machines that cannot be removed: 1; "unwanted" for `)

		w.stop()
		s.configure("a", "c")
		s.at("c")

		p := w.process("next", bySites(s), func(c *lifecycle.Config) { c.GonePlaces = []string{"b"} })
		w.wait(10 * time.Minute)
		assert.Empty(t, w.finalizers("unwanted"))
		assert.Contains(t, w.failure("wanted"), "vanished from the cloud")
		assert.Equal(t, []string{"a/stays", "b/unwanted", "b/wanted", "c/begun"}, w.cloud.names())
		assert.Equal(t, "c", w.info("begun").Place, "nothing of it was made, and it is made elsewhere")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("stays"))

		w.setHeld(status.Metadata(), false)
		w.teardown("wanted")
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("wanted"))
		assert.NotZero(t, p.logs.FilterMessageSnippet("machine is given up, not removed").Len())
		p.stop()
	})

	_, err := lifecycle.New(lifecycle.Config{ID: providerID, Driver: &sites{places: []string{"a", "b"}}, Logger: zap.NewNop(), GonePlaces: []string{"b"}})
	require.ErrorContains(t, err, `place "b" is said to be gone, and is configured`)
}

func TestHealthNamesThePlacesThatAreOutOfReach(t *testing.T) {
	runSitesAlone(t, func(w *world, s *sites) {
		registry := prometheus.NewRegistry()
		p, cfg := w.newProcess("a", bySites(s), func(c *lifecycle.Config) { c.Metrics = lifecycle.NewMetrics(registry) })

		provider, err := lifecycle.New(cfg)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(w.ctx)
		go func() { p.done <- provider.Run(ctx, p.line) }()

		w.wait(time.Minute)
		assert.Empty(t, w.health())
		assert.Equal(t, map[string]float64{"omni_infra_cloud_up": 1, "omni_infra_place_up a": 1, "omni_infra_place_up b": 1, "omni_infra_place_up c": 1}, up(t, registry))

		s.set("b", cut)
		w.wait(time.Minute)
		assert.Equal(t, `place "b" cannot be reached: no route to host`, w.health())
		assert.NotNil(t, driver.UnseenOf(provider.Healthy(w.ctx)), "it works all the same")
		assert.Equal(t, map[string]float64{"omni_infra_cloud_up": 1, "omni_infra_place_up a": 1, "omni_infra_place_up b": 0, "omni_infra_place_up c": 1}, up(t, registry))

		w.request("pool-a")
		w.wait(time.Second)
		assert.Equal(t, []string{"a/pool-a"}, w.cloud.names(), "machines are made at the others")

		s.set("a", cut)
		s.set("c", cut)
		w.wait(time.Minute)
		assert.Equal(t, "no place can be reached", w.health())
		assert.Nil(t, driver.UnseenOf(provider.Healthy(w.ctx)))
		assert.Equal(t, map[string]float64{"omni_infra_cloud_up": 0, "omni_infra_place_up a": 0, "omni_infra_place_up b": 0, "omni_infra_place_up c": 0}, up(t, registry))

		for _, place := range []string{"a", "b", "c"} {
			s.set(place, "")
		}

		w.wait(2 * time.Minute)
		assert.Empty(t, w.health())

		cancel()
		require.NoError(t, <-p.done)
	})
}

// up returns what the metrics say is in reach.
func up(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()

	families, err := registry.Gather()
	require.NoError(t, err)

	all := map[string]float64{}

	for _, family := range families {
		if !strings.HasSuffix(family.GetName(), "_up") {
			continue
		}

		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}

			all[name] = metric.GetGauge().GetValue()
		}
	}

	return all
}
