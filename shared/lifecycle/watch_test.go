package lifecycle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched are the kinds of resources that a provider follows.
var watched = []resource.Type{
	infra.MachineRequestType, infra.MachineRequestStatusType, infra.MachineRegistrationType, infra.ConfigPatchRequestType,
	infra.InfraMachineType, infra.InfraMachineStatusType, siderolink.ProviderJoinConfigType, siderolink.APIConfigType,
	"Machines.test.infraprovider.sidero.dev", "Machine.test.infraprovider.sidero.dev",
}

// The state keeps a history of a hundred events, so a provider that is told late loses its watch.
func TestBurstThatOverrunsEveryWatchLosesAndDoublesNothing(t *testing.T) {
	const requests = 1000

	run(t, func(w *world) {
		for i := range requests {
			w.request(fmt.Sprintf("pool-%d", i))
		}

		w.wait(10 * time.Minute)
		assert.NotZero(t, w.logs.FilterMessage("watch is opened again").Len())
		assert.Len(t, w.cloud.names(), requests)

		for i := range requests {
			id := fmt.Sprintf("pool-%d", i)
			require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(id))
			require.Equal(t, 1, w.cloud.count("create "+id))
		}

		for i := range requests {
			w.teardown(fmt.Sprintf("pool-%d", i))
		}

		w.wait(10 * time.Minute)
		assert.Empty(t, w.cloud.names())

		for i := range requests {
			require.Empty(t, w.finalizers(fmt.Sprintf("pool-%d", i)))
		}
	}, func(w *world) { w.lag = 300 * time.Millisecond })
}

// One watch goes deaf, everything changes, and then the watch breaks. What changed is found by the full look of the next one.
func TestNewsThatAWatchMissedIsFoundByTheNextOne(t *testing.T) {
	for _, kind := range watched {
		t.Run(kind, func(t *testing.T) {
			run(t, func(w *world) {
				w.holdAll(0)
				w.joined("pool-old")
				uuid := w.joined("pool-power")
				lone := w.joined("lone", ofNoSet)
				joining := w.made("pool-joining")

				w.mute(kind)
				w.request("pool-new")
				w.teardown("pool-old")
				w.join("pool-joining", joining)
				require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(lone).Metadata()))

				wish := infra.NewMachine(uuid)
				wish.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)
				wish.TypedSpec().Value.PreferredPowerState = specs.InfraMachineSpec_POWER_STATE_OFF
				require.NoError(t, w.st.Create(w.ctx, wish))

				w.wait(30 * time.Second)
				w.cut(kind, errors.New("buffer overrun: namespace infra-provider"))
				w.wait(5 * time.Minute)

				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-new"))
				assert.Empty(t, w.finalizers("pool-old"))
				assert.Equal(t, specs.MachineRequestStatusSpec_FAILED, w.stage("lone"), "its machine was removed from Omni")
				assert.Equal(t, []string{"pool-joining", "pool-new", "pool-power"}, w.cloud.names())
				assert.Equal(t, 1, w.cloud.count("power pool-power off"))

				_, err := w.st.Get(w.ctx, infra.NewMachineStatus(joining).Metadata())
				require.NoError(t, err, "what is seen of a machine that has joined")

				for _, id := range []string{"pool-old", "pool-power", "lone", "pool-joining", "pool-new"} {
					assert.Equal(t, 1, w.cloud.count("create "+id))
				}
			})
		})
	}
}

func TestWatchesThatBreakOverAndOverLoseNothing(t *testing.T) {
	run(t, func(w *world) {
		for i := range 60 {
			w.request(fmt.Sprintf("pool-%d", i))
			w.cut(watched[i%len(watched)], errors.New("transport is closing"))
			w.wait(700 * time.Millisecond)
		}

		w.wait(2 * time.Minute)
		assert.Len(t, w.cloud.names(), 60)

		for i := range 60 {
			assert.Equal(t, 1, w.cloud.count(fmt.Sprintf("create pool-%d", i)))
		}
	})
}

func TestCallsToOmniThatHangAreEndedAndMadeAgain(t *testing.T) {
	for _, verb := range []string{"get", "create", "update", "destroy", "teardown", "watch"} {
		t.Run(verb, func(t *testing.T) {
			run(t, func(w *world) {
				w.joined("pool-old")
				w.stop()
				w.setHangs(func(v, _ string) bool { return v == verb })
				w.request("pool-new")
				w.teardown("pool-old")
				w.start()
				w.wait(10 * time.Minute)

				if verb != "get" && verb != "watch" {
					assert.NotZero(t, len(w.takeCalls()), "the engine lives")
				}

				w.setHangs(nil)
				w.wait(5 * time.Minute)
				assert.Empty(t, w.finalizers("pool-old"))
				assert.Equal(t, []string{"pool-new"}, w.cloud.names())
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-new"))
				assert.LessOrEqual(t, w.cloud.count("create pool-new"), 2)
				assert.Empty(t, w.health())
			})
		})
	}
}

// A watch that is taken and then says nothing is no watch.
func TestWatchThatSaysNothingIsOpenedAgain(t *testing.T) {
	run(t, func(w *world) {
		w.stop()
		w.mute(infra.MachineRequestType)
		w.request("pool-a")
		w.start()
		w.wait(5 * time.Minute)
		assert.Empty(t, w.cloud.names())

		entries := w.logs.FilterMessage("watch is opened again").All()
		require.NotEmpty(t, entries)
		assert.Contains(t, fmt.Sprint(entries[0].ContextMap()), "no word from Omni for 1m0s")

		w.mute("")
		w.wait(3 * time.Minute)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
	})
}
