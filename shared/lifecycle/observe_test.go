package lifecycle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestVanishedMachineIsGivenUpAfterTwoCompleteLooks(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		w.cloud.list = func() error { return errors.New("list timed out") }
		w.cloud.drop("pool-a")
		w.wait(time.Hour)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"), "a failed list is never absence")

		// Omni, played by the test, holds the status.
		w.setHeld(status.Metadata(), true)

		w.cloud.list = nil
		w.wait(2 * time.Minute)

		status, _ = w.status("pool-a")
		assert.Equal(t, resource.PhaseTearingDown, status.Metadata().Phase())
		assert.Contains(t, w.failure("pool-a"), "omnictl delete link "+status.TypedSpec().Value.Id)
	})
}

func TestVanishedMachineThatNeverJoinedIsMadeAgain(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)
		w.cloud.drop("pool-a")
		w.wait(3 * time.Minute)

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
		assert.Empty(t, w.failure("pool-a"))
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Equal(t, 2, w.cloud.count("create pool-a"))
	})
}

func TestLoneMachineThatJoinsAgainAtOnceWasRemovedAllTheSame(t *testing.T) {
	for name, off := range map[string]bool{"while the provider looks": false, "while no provider is there": true} {
		run(t, func(w *world) {
			uuid := w.joined("lone", ofNoSet)

			if off {
				w.stop()
			}

			require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
			w.wait(time.Second)
			w.join("lone", uuid)

			if off {
				w.start()
			}

			w.wait(40 * time.Second)
			assert.Empty(t, w.cloud.names(), name)
			assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("lone"), name)
			assert.Contains(t, w.failure("lone"), "removed from Omni", name)
		})
	}
}

func TestRegistrationThatAloneWasMadeAgainCostsNoMachine(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("lone", ofNoSet)
		require.NoError(t, w.st.Create(w.ctx, omni.NewMachine(uuid)))
		w.wait(time.Hour)

		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.wait(time.Second)
		w.join("lone", uuid)
		w.wait(10 * time.Minute)
		assert.Equal(t, []string{"lone"}, w.cloud.names())
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("lone"))
	})
}

func TestLoneMachineWithTwoRegistrationsRests(t *testing.T) {
	run(t, func(w *world) {
		w.joined("lone", ofNoSet)
		w.join("lone", "0d5b4f2e-0000-4000-8000-000000000001")
		w.wait(time.Minute)

		w.mu.Lock()
		w.calls = nil
		w.mu.Unlock()

		for range 20 {
			w.annotate("lone", "example.org/seen", time.Now().String())
			w.wait(time.Second)
		}

		w.mu.Lock()
		defer w.mu.Unlock()

		assert.NotContains(t, w.calls, "update Machines", "the record is left as it is")
		assert.Equal(t, []string{"lone"}, w.cloud.names())
	})
}

func TestLoneRequestThatLostItsMachineWaitsForTheOperator(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("lone", ofNoSet)

		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.wait(2 * time.Minute)
		assert.Empty(t, w.cloud.names(), "the machine would join again")

		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("lone"))
		assert.Contains(t, w.failure("lone"), lifecycle.ReplaceAnnotation)

		w.annotate("lone", lifecycle.ReplaceAnnotation, "1")
		w.wait(time.Minute)
		assert.Equal(t, []string{"lone"}, w.cloud.names())

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("lone"))
	})
}

func TestVanishedMachineOfASetIsLeftToOmniToReplace(t *testing.T) {
	run(t, func(w *world) {
		w.holdAll(0)
		w.joined("pool-a")
		w.cloud.drop("pool-a")

		// Omni lets go at once, and takes the request back a little later.
		for range 3 * 60 * 10 {
			w.wait(100 * time.Millisecond)

			if _, ok := w.status("pool-a"); !ok {
				break
			}
		}

		w.wait(3 * time.Second)
		w.teardown("pool-a")
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Equal(t, 1, w.cloud.count("create pool-a"), "a machine for a request that is about to go")
	})
}

func TestVanishedMachineWhoseRequestOmniKeepsIsMadeAgain(t *testing.T) {
	run(t, func(w *world) {
		w.holdAll(0)
		w.joined("pool-a")
		w.cloud.drop("pool-a")
		w.wait(3 * time.Minute)

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
		assert.Equal(t, 2, w.cloud.count("create pool-a"))
	})
}

func TestListThatMissesAMachineEndsNothing(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		w.cloud.blind = true
		w.wait(time.Hour)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
		assert.Equal(t, resource.PhaseRunning, status.Metadata().Phase())
		assert.Zero(t, w.cloud.count("remove pool-a"))
	})
}

// The provider dies at each of its writes in turn, while the machine of a request without a set is vanishing.
func TestCrashWhileAMachineVanishesLosesNothing(t *testing.T) {
	for dies := range 6 {
		run(t, func(w *world) {
			w.holdAll(5 * time.Second)
			w.joined("lone", ofNoSet)
			w.cloud.drop("lone")

			vanished, writes := time.Now(), 0
			w.setWireFault(func() error {
				if writes++; writes > dies {
					return errors.New("connection reset by peer")
				}

				return nil
			})

			w.wait(90 * time.Second)
			w.stop()

			w.setWireFault(nil)

			w.start()
			w.wait(5 * time.Minute)

			status, ok := w.status("lone")
			require.True(t, ok)
			assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage, "dies after write %d", dies)
			assert.Contains(t, status.TypedSpec().Value.Error, lifecycle.ReplaceAnnotation)
			assert.True(t, status.Metadata().Created().After(vanished), "Omni was told: the status that it held was torn down")
			assert.Equal(t, 1, w.cloud.count("create lone"))
		})
	}
}

func TestLoneMachineThatIsGoneFromOmniAndTheCloudIsNotMadeAgain(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("lone", ofNoSet)
		w.wait(time.Minute)
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.cloud.drop("lone")
		w.wait(5 * time.Minute)

		assert.Empty(t, w.cloud.names())
		assert.Equal(t, 1, w.cloud.count("create lone"))
		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("lone"))
	})
}

func TestReplaceAnnotationFromBeforeTheLossAsksForNothing(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("lone", ofNoSet, func(r *infra.MachineRequest) { r.Metadata().Annotations().Set(lifecycle.ReplaceAnnotation, "1") })
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.wait(5 * time.Minute)
		assert.Empty(t, w.cloud.names())

		w.annotate("lone", lifecycle.ReplaceAnnotation, "2")
		w.wait(time.Minute)
		assert.Equal(t, []string{"lone"}, w.cloud.names())
	})
}

func TestCloudWithNoneOfSeveralMachinesIsDoubtedFirst(t *testing.T) {
	run(t, func(w *world) {
		ids := []string{"pool-a", "pool-b", "pool-c"}

		for _, id := range ids {
			w.joined(id)
		}

		w.wait(2 * time.Minute)

		for _, id := range ids {
			w.cloud.drop(id)
		}

		w.wait(8 * time.Minute)

		for _, id := range ids {
			assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(id))
		}

		assert.Contains(t, w.health(), "none of the 3 machines")

		w.wait(10 * time.Minute)
		assert.Empty(t, w.health())
		assert.Len(t, w.cloud.names(), 3, "they were made again")
	})
}
