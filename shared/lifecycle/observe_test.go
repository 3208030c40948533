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
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(time.Second)

		w.cloud.list = func() error { return errors.New("list timed out") }
		w.cloud.drop("pool-a")
		w.wait(time.Hour)

		status, _ = w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage, "a failed list is never absence")

		// Omni, played by the test, holds the status.
		w.setHeld(status.Metadata(), true)

		w.cloud.list = nil
		w.wait(2 * time.Minute)

		status, _ = w.status("pool-a")
		assert.Equal(t, resource.PhaseTearingDown, status.Metadata().Phase())
		assert.Contains(t, status.TypedSpec().Value.Error, "omnictl delete link "+status.TypedSpec().Value.Id)
	})
}

func TestVanishedMachineThatNeverJoinedIsMadeAgain(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)
		w.cloud.drop("pool-a")
		w.wait(3 * time.Minute)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Empty(t, status.TypedSpec().Value.Error)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Equal(t, 2, w.cloud.count("create pool-a"))
	})
}

func TestLoneRequestThatLostItsMachineWaitsForTheOperator(t *testing.T) {
	run(t, func(w *world) {
		w.request("lone", func(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) })
		w.wait(time.Second)

		status, _ := w.status("lone")
		uuid := status.TypedSpec().Value.Id
		w.join("lone", uuid)
		w.wait(time.Second)

		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.wait(2 * time.Minute)
		assert.Empty(t, w.cloud.names(), "the machine would join again")

		status, _ = w.status("lone")
		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage)
		assert.Contains(t, status.TypedSpec().Value.Error, lifecycle.ReplaceAnnotation)

		w.annotate("lone", lifecycle.ReplaceAnnotation, "1")
		w.wait(time.Minute)
		assert.Equal(t, []string{"lone"}, w.cloud.names())

		status, _ = w.status("lone")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
	})
}

func TestVanishedMachineOfASetIsLeftToOmniToReplace(t *testing.T) {
	run(t, func(w *world) {
		w.holdAll(0)
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(time.Second)
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
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(time.Second)
		w.cloud.drop("pool-a")
		w.wait(3 * time.Minute)

		status, _ = w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Equal(t, 2, w.cloud.count("create pool-a"))
	})
}

func TestListThatMissesAMachineEndsNothing(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)

		w.cloud.blind = true
		w.wait(time.Hour)

		status, _ = w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Equal(t, resource.PhaseRunning, status.Metadata().Phase())
		assert.Zero(t, w.cloud.count("remove pool-a"))
	})
}

// The provider dies at each of its writes in turn, while the machine of a request without a set is vanishing.
func TestCrashWhileAMachineVanishesLosesNothing(t *testing.T) {
	for dies := range 6 {
		run(t, func(w *world) {
			w.holdAll(5 * time.Second)
			w.request("lone", func(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) })
			w.wait(time.Second)

			status, _ := w.status("lone")
			w.join("lone", status.TypedSpec().Value.Id)
			w.wait(time.Second)
			w.cloud.drop("lone")

			vanished, writes := time.Now(), 0
			w.wireFault = func() error {
				if writes++; writes > dies {
					return errors.New("connection reset by peer")
				}

				return nil
			}

			w.wait(90 * time.Second)
			w.stop()

			w.wireFault = nil

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
		w.request("lone", func(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) })
		w.wait(time.Second)

		status, _ := w.status("lone")
		w.join("lone", status.TypedSpec().Value.Id)
		w.wait(time.Minute)

		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(status.TypedSpec().Value.Id).Metadata()))
		w.cloud.drop("lone")
		w.wait(5 * time.Minute)

		assert.Empty(t, w.cloud.names())
		assert.Equal(t, 1, w.cloud.count("create lone"))

		status, _ = w.status("lone")
		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage)
	})
}

func TestReplaceAnnotationFromBeforeTheLossAsksForNothing(t *testing.T) {
	run(t, func(w *world) {
		w.request("lone", func(r *infra.MachineRequest) {
			r.Metadata().Labels().Delete(omni.LabelMachineRequestSet)
			r.Metadata().Annotations().Set(lifecycle.ReplaceAnnotation, "1")
		})
		w.wait(time.Second)

		status, _ := w.status("lone")
		w.join("lone", status.TypedSpec().Value.Id)
		w.wait(time.Second)
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(status.TypedSpec().Value.Id).Metadata()))
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
			w.request(id)
			w.wait(time.Second)

			status, _ := w.status(id)
			w.join(id, status.TypedSpec().Value.Id)
		}

		w.wait(2 * time.Minute)

		for _, id := range ids {
			w.cloud.drop(id)
		}

		w.wait(8 * time.Minute)

		for _, id := range ids {
			status, ok := w.status(id)
			require.True(t, ok)
			assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		}

		res, err := w.st.Get(w.ctx, infra.NewProviderHealthStatus(providerID).Metadata())
		require.NoError(t, err)
		assert.Contains(t, res.(*infra.ProviderHealthStatus).TypedSpec().Value.Error, "none of the 3 machines") //nolint:forcetypeassert,errcheck // the type asked for

		w.wait(10 * time.Minute)

		res, err = w.st.Get(w.ctx, infra.NewProviderHealthStatus(providerID).Metadata())
		require.NoError(t, err)
		assert.Empty(t, res.(*infra.ProviderHealthStatus).TypedSpec().Value.Error) //nolint:forcetypeassert,errcheck // the type asked for
		assert.Len(t, w.cloud.names(), 3, "they were made again")
	})
}
