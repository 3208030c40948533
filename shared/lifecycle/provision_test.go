package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
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

		assert.Contains(t, w.failure("pool-a"), "create-machine (1/1)")
		assert.Contains(t, w.failure("pool-a"), "tried ")

		w.cloud.ensure = nil
		w.wait(2 * time.Minute)

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
		assert.Empty(t, w.failure("pool-a"))
	})
}

func TestBadClassDataIsRefusedBeforeAnythingIsMade(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.plan = func(driver.Request) error { return driver.Terminalf("memroy: unknown field; did you mean \"memory\"?") }

		w.request("pool-a")
		w.wait(10 * time.Minute)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("pool-a"))
		assert.Contains(t, w.failure("pool-a"), "memroy")
		assert.Empty(t, status.TypedSpec().Value.Id)
		assert.Zero(t, w.cloud.count("create pool-a"))

		w.teardown("pool-a")
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"))
	})
}

func TestADriverSeesWhatTheRequestAsksFor(t *testing.T) {
	run(t, func(w *world) {
		var seen driver.Request

		w.cloud.plan = func(r driver.Request) error { seen = r; return nil }

		w.request("pool-a", func(r *infra.MachineRequest) {
			r.TypedSpec().Value.ProviderData = "{cores: 8}"
			r.TypedSpec().Value.Extensions = []string{"siderolabs/b", "siderolabs/a"}
		})
		w.wait(time.Second)

		ref := driver.Ref{ProviderID: providerID, RequestID: "pool-a"}
		seen.Place = ""
		assert.Equal(t, driver.Request{
			Ref: ref, Identity: driver.NewIdentity(ref), Set: "pool", TalosVersion: "v1.13.5", ClassData: "{cores: 8}",
			Extensions: []string{"siderolabs/b", "siderolabs/a"},
		}, seen)
	})
}

func TestShutdownIsNoFailure(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error { <-ctx.Done(); return ctx.Err() }

		w.request("pool-a")
		w.wait(time.Second)
		w.stop()

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONING, w.stage("pool-a"))
		assert.Empty(t, w.failure("pool-a"))
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

		assert.Contains(t, w.failure("pool-bad"), "index out of range")
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

				assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("pool-a"))
				assert.Contains(t, w.failure("pool-a"), got)
			})
		})
	}
}

func TestConflictingWriteOfOmniIsNoError(t *testing.T) {
	run(t, func(w *world) {
		var once sync.Once

		w.fault = func(verb string, kind resource.Type) error {
			if verb != "update" || kind != infra.MachineRequestType {
				return nil
			}

			first := false
			once.Do(func() { first = true })

			if first {
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

func TestErrorStaysVisibleWhileTheNextTryIsUnderWay(t *testing.T) {
	run(t, func(w *world) {
		tries := 0
		w.cloud.ensure = func(context.Context, driver.Task) error {
			if tries++; tries%10 == 1 {
				return errors.New("the hypervisor refused to start it")
			}

			return driver.Pending(time.Second, "instance is starting")
		}

		w.request("pool-a")
		w.wait(time.Second)

		starting := 0

		for range 60 {
			w.wait(time.Second)
			require.Contains(t, w.failure("pool-a"), "refused to start")

			if status, _ := w.status("pool-a"); strings.Contains(status.TypedSpec().Value.Status, "instance is starting") {
				starting++
			}
		}

		assert.Greater(t, starting, 20)
	})
}

func TestErrorOfAnyFormIsShown(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error { return errors.New("caf\xe9 " + strings.Repeat("€", 1<<20)) }

		w.request("pool-a")
		w.wait(time.Second)

		text := w.failure("pool-a")
		assert.True(t, utf8.ValidString(text), "Omni's wire form takes no other")
		assert.Less(t, len(text), 5<<10)
		assert.Contains(t, text, "caf\uFFFD €")
	})
}

func TestJoinTokenInAnErrorOfTheCloudIsShownNowhere(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(_ context.Context, task driver.Task) error {
			return driver.Capacity(fmt.Errorf("cannot process %q: %w", task.Join.UserData+strings.Join(task.Join.KernelArgs, " "), errors.New("disk is full")))
		}

		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		text := status.TypedSpec().Value.Error
		assert.Contains(t, text, "jointoken=(hidden)")
		assert.Contains(t, text, "disk is full")
		assert.NotContains(t, text, "v2:ey")
		assert.NotContains(t, text, "v2%3Aey")
	})
}

func TestThrottledCloudIsLeftAloneBetweenTwoSteps(t *testing.T) {
	run(t, func(w *world) {
		throttled := false
		w.cloud.ensure = func(_ context.Context, task driver.Task) error {
			if task.Request.RequestID == "pool-a" {
				time.Sleep(2 * time.Second)

				return nil
			}

			if throttled {
				return nil
			}

			throttled = true

			return driver.Throttled(20*time.Second, errors.New("429 too many requests"))
		}

		w.request("pool-a")
		w.wait(time.Second)
		w.request("pool-b")
		w.wait(15 * time.Second)

		status, _ := w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONING, status.TypedSpec().Value.Stage, "the look at what was made has to wait")
		w.wait(15 * time.Second)

		status, _ = w.status("pool-a")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)
	})
}

func TestPartsOfAMachineAreNoMachine(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(_ context.Context, task driver.Task) error {
			w.cloud.change(task.Request.Ref, func(m *driver.Machine) {
				*m = driver.Machine{Ref: task.Request.Ref, State: "no domain", Incomplete: true}
			})

			return nil
		}

		w.request("pool-a")
		w.wait(time.Minute)

		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONING, w.stage("pool-a"))
		assert.Contains(t, w.failure("pool-a"), "no domain")
	})
}

func TestStepThatWaitsForTheCloudIsShownInEveryTurn(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error {
			time.Sleep(3 * time.Second)

			return driver.Pending(time.Second, "the disk is creating")
		}

		w.request("pool-a")
		w.wait(10 * time.Second)

		status, _ := w.status("pool-a")
		assert.Contains(t, status.TypedSpec().Value.Status, "create-machine (1/1)", "the step itself is shown again")
	})
}

func TestThrottledCloudIsLeftAloneBetweenTwoCallsOfAMethod(t *testing.T) {
	run(t, func(w *world) {
		var quiet, called time.Time

		w.cloud.ensure = func(ctx context.Context, task driver.Task) error {
			if task.Request.RequestID == "pool-b" && quiet.IsZero() {
				quiet = time.Now().Add(20 * time.Second)

				return driver.Throttled(20*time.Second, errors.New("429 too many requests"))
			}

			time.Sleep(2 * time.Second)

			if err := driver.AwaitTurn(ctx); err != nil {
				return err
			}

			w.cloud.sync()

			called = time.Now()

			return nil
		}

		w.request("pool-a")
		w.wait(time.Second)
		w.request("pool-b")
		w.wait(15 * time.Second)
		require.True(t, called.IsZero(), "the second call waits")

		w.wait(30 * time.Second)
		assert.Equal(t, []string{"pool-a", "pool-b"}, w.cloud.names())
		assert.GreaterOrEqual(t, called, quiet)
	})
}

func TestWaitForAThrottledCloudIsNotBegunWhenItWouldNotEnd(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.check = func(ctx context.Context) error {
			time.Sleep(2 * time.Second)

			if err := driver.AwaitTurn(ctx); err != nil {
				w.cloud.note("check has %s: %s", driver.KindOf(err), err)

				return err
			}

			return nil
		}

		w.cloud.ensure = func(context.Context, driver.Task) error {
			return driver.Throttled(20*time.Second, errors.New("429 too many requests"))
		}

		w.wait(16 * time.Second)
		w.request("pool-a")
		w.wait(4 * time.Second)

		assert.Contains(t, strings.Join(w.cloud.calls, "\n"), "check has pending: the cloud asks to be left alone for")
	})
}
