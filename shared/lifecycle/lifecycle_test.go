package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestRequestBecomesOneMachineAndGoesWithoutTrace(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, ok := w.status("pool-a")
		require.True(t, ok)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Equal(t, driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: "pool-a"}).UUID, status.TypedSpec().Value.Id)
		assert.Equal(t, "test.ProvisionController", status.Metadata().Owner())
		assert.Equal(t, "pool", status.Metadata().Labels().Raw()[omni.LabelMachineRequestSet])
		assert.Equal(t, []string{"test.ProvisionController"}, w.finalizers("pool-a"))
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())

		patch, err := w.st.Get(w.ctx, infra.NewConfigPatchRequest("provider-id-test-pool-a").Metadata())
		require.NoError(t, err, "the name of a patch carries the request's id")
		assert.Equal(t, "pool-a", patch.Metadata().Labels().Raw()[omni.LabelMachineRequest])

		w.teardown("pool-a")
		w.wait(time.Second)

		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.names())

		_, ok = w.status("pool-a")
		assert.False(t, ok)

		records, err := w.st.List(w.ctx, resource.NewMetadata("infra-provider:test", "Machines.test.infraprovider.sidero.dev", "", resource.VersionUndefined))
		require.NoError(t, err)
		assert.Empty(t, records.Items)
	})
}

func TestRecordIsWrittenBeforeTheFirstCloudCall(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error {
			_, err := w.st.Get(w.ctx, resource.NewMetadata("infra-provider:test", "Machines.test.infraprovider.sidero.dev", "pool-a", resource.VersionUndefined))
			assert.NoError(t, err)
			assert.Contains(t, w.finalizers("pool-a"), "test.ProvisionController")

			return nil
		}

		w.request("pool-a")
		w.wait(time.Second)
		assert.Equal(t, 1, w.cloud.count("create pool-a"))
	})
}

func TestErrorStaysVisibleThroughRetries(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error { return errors.New("no route to host") }

		w.request("pool-a")

		seen := 0

		for range 1800 {
			w.wait(100 * time.Millisecond)

			if status, ok := w.status("pool-a"); ok && strings.Contains(status.TypedSpec().Value.Error, "no route to host") {
				seen++
			}
		}

		assert.Greater(t, seen, 1710, "of 1,800 looks in three minutes")
		assert.Less(t, w.cloud.count("create pool-a"), 12, "pauses grow")

		status, _ := w.status("pool-a")
		assert.Contains(t, status.TypedSpec().Value.Error, "create-machine (1/1)")
		assert.Contains(t, status.TypedSpec().Value.Error, "tried ")

		w.cloud.ensure = nil
		w.wait(2 * time.Minute)

		status, _ = w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
		assert.Empty(t, status.TypedSpec().Value.Error)
	})
}

func TestBadClassDataIsRefusedBeforeAnythingIsMade(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.plan = func(driver.Request) error { return driver.Terminalf("memroy: unknown field; did you mean \"memory\"?") }

		w.request("pool-a")
		w.wait(10 * time.Minute)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage)
		assert.Contains(t, status.TypedSpec().Value.Error, "memroy")
		assert.Empty(t, status.TypedSpec().Value.Id)
		assert.Zero(t, w.cloud.count("create pool-a"))

		w.teardown("pool-a")
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestNothingIsRemovedBeforeOmniLetsGo(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		md := infra.NewMachineRequestStatus("pool-a").Metadata()
		_, err := w.st.UpdateWithConflicts(w.ctx, md, func(r resource.Resource) error {
			r.Metadata().Finalizers().Add("MachineRequestStatusCleanupController")

			return nil
		}, state.WithUpdateOwner("test.ProvisionController"))
		require.NoError(t, err)

		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Zero(t, w.cloud.count("remove pool-a"))
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())

		status, _ := w.status("pool-a")
		assert.Equal(t, resource.PhaseTearingDown, status.Metadata().Phase())

		_, err = w.st.UpdateWithConflicts(w.ctx, md, func(r resource.Resource) error {
			r.Metadata().Finalizers().Remove("MachineRequestStatusCleanupController")

			return nil
		}, state.WithUpdateOwner("test.ProvisionController"), state.WithExpectedPhaseAny())
		require.NoError(t, err)

		w.wait(time.Second)
		assert.Empty(t, w.cloud.names())
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestFinalizerStaysUntilTheCloudConfirms(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		w.cloud.remove = func() error { return errors.New("500 internal error") }

		w.teardown("pool-a")
		w.wait(10 * time.Minute)
		assert.NotEmpty(t, w.finalizers("pool-a"))
		assert.Less(t, w.cloud.count("remove pool-a"), 20)

		health, err := w.st.Get(w.ctx, infra.NewProviderHealthStatus(providerID).Metadata())
		require.NoError(t, err)
		assert.Contains(t, health.(*infra.ProviderHealthStatus).TypedSpec().Value.Error, `"pool-a"`) //nolint:forcetypeassert

		w.cloud.remove = nil
		w.wait(2 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestTeardownIsFinishedWithoutRecordJoinConfigOrStatus(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)
		w.stop()

		record := resource.NewMetadata("infra-provider:test", "Machines.test.infraprovider.sidero.dev", "pool-a", resource.VersionUndefined)
		require.NoError(t, w.st.Destroy(w.ctx, record, state.WithDestroyOwner("test.ProvisionController")))
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRequestStatus("pool-a").Metadata(), state.WithDestroyOwner("test.ProvisionController")))
		require.NoError(t, w.st.Destroy(w.ctx, resource.NewMetadata("infra-provider", "ProviderJoinConfigs.omni.sidero.dev", providerID, resource.VersionUndefined)))
		w.teardown("pool-a")

		w.start()
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.names())
	})
}

func TestTeardownInterruptsProvisioning(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error {
			select {
			case <-time.After(30 * time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}

		w.request("pool-a")
		w.wait(time.Minute)

		status, _ := w.status("pool-a")
		assert.Contains(t, status.TypedSpec().Value.Status, "create-machine (1/1)")

		w.teardown("pool-a")
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestSlowProvisioningDelaysNoTeardown(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-z")
		w.wait(time.Second)

		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error { <-ctx.Done(); return ctx.Err() }

		for i := range 50 {
			w.request(fmt.Sprintf("pool-%d", i))
		}

		w.wait(time.Minute)
		w.teardown("pool-z")
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-z"))
	})
}

func TestShutdownIsNoFailure(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error { <-ctx.Done(); return ctx.Err() }

		w.request("pool-a")
		w.wait(time.Second)
		w.stop()

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONING, status.TypedSpec().Value.Stage)
		assert.Empty(t, status.TypedSpec().Value.Error)
	})
}

func TestOneRebootForEachNewID(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a", func(r *infra.MachineRequest) {
			r.Metadata().Annotations().Set(lifecycle.RebootAnnotation, "before-it-was-made")
		})
		w.wait(time.Second)
		w.annotate("pool-a", lifecycle.RebootAnnotation, "first")
		w.wait(time.Minute)
		assert.Zero(t, w.cloud.count("reboot pool-a"), "a machine that has not joined is never switched")

		status, _ := w.status("pool-a")
		uuid := status.TypedSpec().Value.Id
		w.join("pool-a", uuid)
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))

		w.stop()
		w.start()
		w.wait(time.Hour)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))

		res, err := w.st.Get(w.ctx, infra.NewMachineStatus(uuid).Metadata())
		require.NoError(t, err)
		assert.Equal(t, "first", res.(*infra.MachineStatus).TypedSpec().Value.LastRebootId) //nolint:forcetypeassert

		w.annotate("pool-a", lifecycle.RebootAnnotation, "second")
		w.wait(time.Minute)
		assert.Equal(t, 2, w.cloud.count("reboot pool-a"))
	})
}

func TestRebootIsNotRepeatedWhenItsReplyWasLost(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(time.Second)

		// The write that says so is lost with the process, after the reboot has happened.
		w.fault = func(verb string, kind resource.Type) error {
			if verb == "update" && strings.HasPrefix(kind, "Machines.test.") && w.cloud.count("reboot pool-a") > 0 {
				return errors.New("connection reset by peer")
			}

			return nil
		}

		w.annotate("pool-a", lifecycle.RebootAnnotation, "first")
		w.wait(5 * time.Second)
		w.stop()

		w.fault = nil

		w.start()
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))
	})
}

func TestMachineStaysOffUntilAskedOn(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.annotate("pool-a", lifecycle.PowerAnnotation, "off")
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))

		w.stop()
		w.start()
		w.wait(time.Hour)
		assert.Zero(t, w.cloud.count("power pool-a on"))

		w.annotate("pool-a", lifecycle.PowerAnnotation, "on")
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("power pool-a on"))

		w.annotate("pool-a", lifecycle.PowerAnnotation, "standby")
		w.wait(time.Minute)

		status, _ = w.status("pool-a")
		assert.Contains(t, status.TypedSpec().Value.Error, `"standby": want "on" or "off"`)
	})
}

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
		_, err := w.st.UpdateWithConflicts(w.ctx, status.Metadata(), func(r resource.Resource) error {
			r.Metadata().Finalizers().Add("MachineRequestStatusCleanupController")

			return nil
		}, state.WithUpdateOwner("test.ProvisionController"))
		require.NoError(t, err)

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

func TestPanicOfADriverIsShownAndStopsNobodyElse(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.plan = func(r driver.Request) error {
			if r.RequestID == "pool-bad" {
				panic("index out of range")
			}

			return nil
		}

		w.request("pool-bad")
		w.request("pool-good")
		w.wait(time.Second)

		status, _ := w.status("pool-bad")
		assert.Contains(t, status.TypedSpec().Value.Error, "index out of range")
		assert.Equal(t, []string{"pool-good"}, w.cloud.names())
	})
}

func TestThrottledCloudIsLeftAloneByEveryRequest(t *testing.T) {
	run(t, func(w *world) {
		throttled := true
		w.cloud.ensure = func(context.Context, driver.Task) error {
			if throttled {
				throttled = false

				return driver.Throttled(20*time.Second, errors.New("429 too many requests"))
			}

			return nil
		}

		w.request("pool-a")
		w.wait(time.Second)
		w.request("pool-b")
		w.wait(15 * time.Second)
		assert.Zero(t, w.cloud.count("create pool-b"))

		w.wait(10 * time.Second)
		assert.Equal(t, []string{"pool-a", "pool-b"}, w.cloud.names())
	})
}

func TestUUIDThatTheCloudDidNotTakeIsAnError(t *testing.T) {
	for name, got := range map[string]string{
		"another":     "11111111-2222-3333-4444-555555555555",
		"placeholder": "03000200-0400-0500-0006-000700080009",
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.cloud.ensure = func(_ context.Context, task driver.Task) error {
					w.cloud.change(task.Request.Ref, func(m *driver.Machine) {
						*m = driver.Machine{Ref: task.Request.Ref, ID: "vm", UUID: got, Power: driver.PowerOn}
					})

					return nil
				}

				w.request("pool-a")
				w.wait(time.Second)

				status, _ := w.status("pool-a")
				assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, status.TypedSpec().Value.Stage)
				assert.Contains(t, status.TypedSpec().Value.Error, got)
			})
		})
	}
}

func TestMachineRequestOfAnotherProviderIsLeftAlone(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a", func(r *infra.MachineRequest) { r.Metadata().Labels().Set(omni.LabelInfraProviderID, "other") })
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.cloud.calls)
	})
}

func TestConflictingWriteOfOmniIsNoError(t *testing.T) {
	run(t, func(w *world) {
		once := true
		w.fault = func(verb string, kind resource.Type) error {
			if verb == "update" && kind == infra.MachineRequestType && once {
				once = false

				_, err := w.st.UpdateWithConflicts(w.ctx, infra.NewMachineRequest("pool-a").Metadata(), func(r resource.Resource) error {
					r.Metadata().Finalizers().Add("ClusterMachineRequestStatusController")

					return nil
				})
				require.NoError(t, err)
			}

			return nil
		}

		w.request("pool-a")
		w.wait(time.Second)
		assert.ElementsMatch(t, []string{"ClusterMachineRequestStatusController", "test.ProvisionController"}, w.finalizers("pool-a"))
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
	})
}

func TestHealthTellsOfTheCloudAndRecovers(t *testing.T) {
	run(t, func(w *world) {
		health := func() string {
			res, err := w.st.Get(w.ctx, infra.NewProviderHealthStatus(providerID).Metadata())
			require.NoError(t, err)

			return res.(*infra.ProviderHealthStatus).TypedSpec().Value.Error //nolint:forcetypeassert
		}

		w.wait(time.Minute)
		assert.Empty(t, health())

		w.cloud.check = func() error { return errors.New("401 unauthorized") }
		w.wait(30 * time.Second)
		assert.Contains(t, health(), "401")

		w.cloud.check = nil
		w.wait(30 * time.Second)
		assert.Empty(t, health())
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
