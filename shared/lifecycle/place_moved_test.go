package lifecycle_test

import (
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestRequestWithoutRecordIsRemovedWhenAllPlacesWereSeen(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.stop()
		w.inherit("pool-a", specs.MachineRequestStatusSpec_PROVISIONING)
		s.put("a", "pool-a", func(m *driver.Machine) { m.Incomplete = true })
		s.put("b", "pool-a")
		s.set("b", cut)
		w.teardown("pool-a")
		w.start()
		w.wait(time.Hour)
		assert.NotEmpty(t, w.finalizers("pool-a"))
		assert.Equal(t, []string{"b/pool-a"}, w.cloud.names(), "what can be removed is")
		assert.Contains(t, w.health(), `"pool-a" for `)

		s.set("b", "")
		w.wait(2 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.names())
	})
}

func TestMachineThatWasMovedIsRecordedWhereItIs(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-a")
		w.cloud.drop("b/pool-a")
		s.put("c", "pool-a")
		w.wait(10 * time.Minute)
		assert.Equal(t, "c", w.info("pool-a").Place)

		s.set("c", cut)
		w.wait(12 * time.Hour)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"), "it is where nobody sees it, not gone from where it was")

		s.set("c", "")
		w.wait(time.Minute)
		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Empty(t, w.cloud.names())
		assert.Empty(t, w.finalizers("pool-a"))
		assert.NotZero(t, w.cloud.count("remove-from pool-a c"))
	})
}

func TestWhatIsLeftElsewhereIsRemovedToo(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-a")
		s.put("c", "pool-a", func(m *driver.Machine) { m.Incomplete = true })
		w.wait(10 * time.Minute)
		assert.Equal(t, "b", w.info("pool-a").Place)

		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Empty(t, w.cloud.names())
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestWhatIsLeftElsewhereDoesNotStandForAPlaceThatIsNotConfigured(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-a")
		s.put("c", "pool-a", func(m *driver.Machine) { m.Incomplete = true })
		w.wait(10 * time.Minute)
		w.stop()
		s.configure("a", "c")
		w.start()
		w.wait(time.Minute)
		w.teardown("pool-a")
		w.wait(time.Hour)
		assert.NotEmpty(t, w.finalizers("pool-a"), "the machine itself is at a place that nobody has asked")
		assert.Contains(t, w.health(), `not configured for the place "b"`)

		w.stop()
		s.configure("a", "b", "c")
		w.start()
		w.wait(5 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.names())
	})
}

func TestMachineThatWasMovedWhileNoProviderRanIsRemovedWhereItIs(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-a")
		w.stop()
		w.cloud.drop("b/pool-a")
		s.put("c", "pool-a")
		w.teardown("pool-a")
		w.start()
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.names())
	})
}

// upgraded is what a release without places has recorded.
var upgraded = []byte("\x08\x01\x12\x24b2a7e0f1-3a52-5d2c-9c57-04d4f3b9a3a0")

func TestMachineOfAReleaseWithoutPlacesIsNotMadeElsewhere(t *testing.T) {
	for name, change := range map[string]func(*driver.Machine){"whole": func(*driver.Machine) {}, "in part": func(m *driver.Machine) { m.Incomplete = true }} {
		t.Run(name, func(t *testing.T) {
			runSites(t, func(w *world, s *sites) {
				w.stop()
				w.store(recordType, "pool-a", upgraded, nil)
				w.inherit("pool-a", specs.MachineRequestStatusSpec_PROVISIONING)
				s.put("b", "pool-a", change)
				s.set("b", cut)
				s.at("a")
				w.start()
				w.wait(time.Hour)
				assert.Zero(t, w.cloud.count("place pool-a"))
				assert.Equal(t, []string{"b/pool-a"}, w.cloud.names())
				assert.Contains(t, w.failure("pool-a"), `place: find out whether there is a machine already: place "b" cannot be reached: no route to host`)

				s.set("b", "")
				w.wait(2 * time.Minute)
				assert.Equal(t, "b", w.info("pool-a").Place)
				assert.Equal(t, []string{"b/pool-a"}, w.cloud.names())
				assert.Zero(t, w.cloud.count("place pool-a"))
			})
		})
	}

	runSites(t, func(w *world, s *sites) {
		w.stop()
		w.store(recordType, "pool-a", upgraded, nil)
		w.inherit("pool-a", specs.MachineRequestStatusSpec_PROVISIONING)
		s.at("c")
		w.start()
		w.wait(time.Minute)
		assert.Equal(t, []string{"c/pool-a"}, w.cloud.names(), "there was none yet")
	})
}

func TestPlaceOfAMachineOfAReleaseWithoutPlacesIsLearned(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.stop()
		w.store(recordType, "pool-a", upgraded, nil)
		w.inherit("pool-a", specs.MachineRequestStatusSpec_PROVISIONED)
		w.join("pool-a", driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: "pool-a"}).UUID)
		s.set("b", cut)
		w.start()
		w.wait(time.Hour)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"), "it may be anywhere, so nobody has looked")

		s.put("b", "pool-a")
		s.set("b", "")
		w.wait(2 * time.Minute)
		assert.Equal(t, "b", w.info("pool-a").Place)

		s.set("a", cut)
		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-a"), "the other places need not be asked any more")
	})
}

func TestMachineWhoseRecordIsLostIsFoundAtItsPlace(t *testing.T) {
	runSitesAlone(t, func(w *world, s *sites) {
		s.put("b", "pool-a")
		s.at("a")

		p := w.process("next", bySites(s))
		w.wait(2 * time.Minute)
		w.request("pool-a")
		w.wait(time.Minute)
		assert.Equal(t, []string{"b/pool-a"}, w.cloud.names())
		assert.Equal(t, "b", w.info("pool-a").Place)
		p.stop()
	})
}

func TestMachineWhoseRecordIsLostIsFoundBeforeTheFirstLook(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.stop()
		w.request("pool-a")
		s.put("b", "pool-a")
		s.at("a")
		s.set("c", cut)
		w.start()
		w.wait(time.Minute)
		assert.Equal(t, []string{"b/pool-a"}, w.cloud.names(), "no second one is made")
		assert.Equal(t, "b", w.info("pool-a").Place)
	})
}

func TestMachineThatWasMovedIsNotGoneWhileItsPlaceIsUnseen(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		w.madeAt(s, "b", "pool-a")
		w.cloud.drop("b/pool-a")
		s.put("b", "pool-a", func(m *driver.Machine) { m.Incomplete = true })
		s.put("c", "pool-a")
		w.wait(10 * time.Minute)

		s.set("c", cut)
		w.wait(12 * time.Hour)
		status, ok := w.status("pool-a")
		require.True(t, ok)
		assert.Equal(t, resource.PhaseRunning, status.Metadata().Phase(), "only what its move has left is seen")
		assert.Equal(t, []string{"b/pool-a", "c/pool-a"}, w.cloud.names())
	})
}

func TestLoneMachineIsReplacedAtAPlaceThatIsChosenAnew(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		s.at("b")
		uuid := w.joined("lone", ofNoSet)
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.wait(2 * time.Minute)
		require.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("lone"))
		require.NotZero(t, w.cloud.count("remove-from lone b"))

		s.at("c")
		w.annotate("lone", lifecycle.ReplaceAnnotation, "1")
		w.wait(time.Minute)
		assert.Equal(t, []string{"c/lone"}, w.cloud.names())
	})
}
