package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestNothingIsRemovedBeforeOmniLetsGo(t *testing.T) {
	run(t, func(w *world) {
		w.made("pool-a")

		md := infra.NewMachineRequestStatus("pool-a").Metadata()
		w.setHeld(md, true)

		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Zero(t, w.cloud.count("remove pool-a"))
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())

		status, _ := w.status("pool-a")
		assert.Equal(t, resource.PhaseTearingDown, status.Metadata().Phase())

		w.setHeld(md, false)

		w.wait(time.Second)
		assert.Empty(t, w.cloud.names())
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestFinalizerStaysUntilTheCloudConfirms(t *testing.T) {
	run(t, func(w *world) {
		w.made("pool-a")

		w.cloud.remove = func() error { return errors.New("500 internal error") }

		w.teardown("pool-a")
		w.wait(10 * time.Minute)
		assert.NotEmpty(t, w.finalizers("pool-a"))
		assert.Less(t, w.cloud.count("remove pool-a"), 20)

		assert.Contains(t, w.health(), `"pool-a"`)

		w.cloud.remove = nil
		w.wait(2 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestWriteThatLosesARaceHoldsNoTeardownUp(t *testing.T) {
	for n := 1; ; n++ {
		writes := 0

		run(t, func(w *world) {
			w.setWireFault(func() error {
				if writes++; writes == n {
					return inmem.ErrVersionConflict(infra.NewMachineRequest("pool-a").Metadata(), resource.VersionUndefined, resource.VersionUndefined)
				}

				return nil
			})

			w.holdAll(time.Second)
			w.request("pool-a")
			w.wait(time.Minute)
			w.teardown("pool-a")
			w.wait(time.Minute)
			assert.Empty(t, w.finalizers("pool-a"), "write %d of the life", n)
			assert.Empty(t, w.cloud.names(), "write %d of the life", n)
		})

		if writes < n {
			break
		}
	}
}

func TestTeardownIsFinishedWithoutRecordJoinConfigOrStatus(t *testing.T) {
	run(t, func(w *world) {
		w.made("pool-a")
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
		w.wait(2 * time.Minute)
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

func TestRequestThatIsGoneBeforeItIsHeldGetsNoMachine(t *testing.T) {
	run(t, func(w *world) {
		w.fault = func(verb string, kind resource.Type) error {
			if verb == "update" && kind == infra.MachineRequestType {
				w.fault = nil

				return w.st.Destroy(w.ctx, infra.NewMachineRequest("pool-a").Metadata())
			}

			return nil
		}

		w.request("pool-a")
		w.wait(time.Minute)
		assert.Empty(t, w.cloud.names())

		_, ok := w.status("pool-a")
		assert.False(t, ok)
	})
}

// force takes a request away as Omni does when the provider is deleted: without its finalizers.
func (w *world) force(id string) {
	md := infra.NewMachineRequest(id).Metadata()

	// The provider may put its finalizer back in between.
	for range 100 {
		_, err := w.st.UpdateWithConflicts(w.ctx, md, func(r resource.Resource) error {
			*r.Metadata().Finalizers() = nil

			return nil
		})
		require.NoError(w.t, err)

		if err = w.st.Destroy(w.ctx, md); err == nil {
			return
		}

		require.True(w.t, state.IsConflictError(err), err)
	}

	require.Fail(w.t, "the request does not go")
}

func TestMachineWhoseRequestWasTakenAwayByForceIsRemoved(t *testing.T) {
	for _, off := range []bool{false, true} {
		run(t, func(w *world) {
			w.holdAll(time.Second)
			w.request("pool-a")
			w.wait(time.Second)

			if off {
				w.stop()
			}

			w.force("pool-a")

			if off {
				w.start()
			}

			w.wait(time.Minute)
			assert.Empty(t, w.cloud.names())

			_, ok := w.status("pool-a")
			assert.False(t, ok)

			left, err := w.st.List(w.ctx, resource.NewMetadata("infra-provider:test", "Machines.test.infraprovider.sidero.dev", "", resource.VersionUndefined))
			require.NoError(t, err)
			assert.Empty(t, left.Items)
		})
	}
}

func TestRequestThatAFullLookMissedKeepsItsMachine(t *testing.T) {
	run(t, func(w *world) {
		w.made("pool-a")
		w.stop()

		w.hidden = infra.MachineRequestType

		w.start()
		w.wait(time.Hour)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Zero(t, w.cloud.count("remove pool-a"))
	})
}

func TestRemovalThatTheCloudDoesNotFinishIsReported(t *testing.T) {
	run(t, func(w *world) {
		w.made("pool-a")

		w.cloud.remove = func() error { return driver.Pending(0, "instance is stopping") }

		w.teardown("pool-a")
		w.wait(5 * time.Minute)
		assert.Empty(t, w.health())

		w.wait(6 * time.Minute)
		assert.Contains(t, w.health(), `"pool-a"`)
		assert.Contains(t, w.health(), "instance is stopping")

		w.cloud.remove = nil
		w.wait(time.Minute)
		assert.Empty(t, w.health())
	})
}

func TestWhatIsNotFoundIsNotGone(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		tries := 0
		w.cloud.remove = func() error {
			if tries++; tries < 3 {
				return driver.NotFound("no such project")
			}

			return nil
		}

		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Equal(t, 3, tries)
		assert.Empty(t, w.cloud.names())
	})
}

func TestMachineThatIsBeingMadeIsRemovedWhenItIsThere(t *testing.T) {
	run(t, func(w *world) {
		made := make(chan struct{})
		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error {
			defer close(made)

			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}

			return ctx.Err()
		}

		w.request("pool-a")
		w.wait(time.Second)
		w.teardown("pool-a")
		w.wait(30 * time.Second)
		assert.Zero(t, w.cloud.count("remove pool-a"), "a call under way is waited for")
		w.wait(time.Minute)
		<-made
		assert.Equal(t, 1, w.cloud.count("remove pool-a"))
		assert.Empty(t, w.cloud.names())
	})
}
