package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func (w *world) operator() *lifecycle.Operator { return lifecycle.NewOperator(w.st, providerID) }

// order places an order and waits for it.
func (w *world) order(order lifecycle.Order, timeout time.Duration) (progress []string, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()

	if err := w.operator().Place(ctx, order); err != nil {
		return nil, err
	}

	w.operator().Await(ctx, []lifecycle.Order{order}, func(_ lifecycle.Order, text string) { progress = append(progress, text) },
		func(_ lifecycle.Order, failed error) { err = failed })

	return progress, err
}

func (w *world) infraMachine(uuid string, power specs.InfraMachineSpec_MachinePowerState) {
	m := infra.NewMachine(uuid)
	m.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)
	m.TypedSpec().Value.PreferredPowerState = power
	require.NoError(w.t, w.st.Create(w.ctx, m))
	w.wait(time.Second)
}

func TestMachinesAreListedWithTheirState(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("pool-a")

		w.cloud.ensure = func(context.Context, driver.Task) error { return errors.New("the pool is full") }

		w.request("pool-b", func(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) })
		w.request("other", func(r *infra.MachineRequest) { r.Metadata().Labels().Set(omni.LabelInfraProviderID, "other") })
		w.wait(time.Minute)

		infos, err := w.operator().Machines(w.ctx)
		require.NoError(t, err)
		require.Len(t, infos, 2)

		assert.Equal(t, lifecycle.MachineInfo{
			Request: "pool-a", Set: "pool", UUID: uuid, Machine: "vm-pool-a", Power: "on", Joined: true,
			Stage: "provisioned", Phase: "Provision Complete", Created: infos[0].Created,
		}, infos[0])
		assert.Equal(t, "provisioning", infos[1].Stage)
		assert.Contains(t, infos[1].Error, "the pool is full")
		assert.Equal(t, "unknown", infos[1].Power)
		assert.Empty(t, infos[1].Set)
	})
}

func TestOrderIsCarriedOutOnce(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		_, err := w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOff}, time.Minute)
		require.NoError(t, err)
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))

		// Somebody switches it on at the machine: the order was for once.
		w.cloud.change(driver.Ref{RequestID: "pool-a"}, func(m *driver.Machine) { m.Power = driver.PowerOn })
		w.wait(time.Hour)
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))

		_, err = w.order(lifecycle.RebootOrder("pool-a"), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))

		w.stop()
		w.start()
		w.wait(time.Hour)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))
	})
}

func TestRestartNeverStartsAMachineThatWasSwitchedOff(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		_, err := w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOn}, time.Minute)
		require.NoError(t, err)
		_, err = w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOff}, time.Minute)
		require.NoError(t, err)

		w.stop()
		w.start()
		w.wait(time.Hour)
		assert.Zero(t, w.cloud.count("power pool-a on"))

		_, err = w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOn}, time.Minute)
		require.NoError(t, err)

		// The guest shuts itself down: being switched on once is no wish to be kept on.
		w.cloud.change(driver.Ref{RequestID: "pool-a"}, func(m *driver.Machine) { m.Power = driver.PowerOff })
		w.stop()
		w.start()
		w.wait(time.Hour)
		assert.Equal(t, 1, w.cloud.count("power pool-a on"))
	})
}

func TestOrderWaitsForTheNextProvider(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")
		w.stop()
		w.wait(time.Minute)

		order := lifecycle.RebootOrder("pool-a")
		require.ErrorContains(t, w.operator().Alive(w.ctx), `no provider "test" is running: its last heartbeat was`)

		_, err := w.order(order, time.Minute)
		require.ErrorContains(t, err, "the order stays for the next one")

		w.start()
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("reboot pool-a"))
		w.operator().Await(w.ctx, []lifecycle.Order{order}, func(lifecycle.Order, string) {}, func(_ lifecycle.Order, err error) { require.NoError(t, err) })
	})
}

func TestOrderIsRefusedWithTheReason(t *testing.T) {
	run(t, func(w *world) {
		uuid := w.joined("pool-a")

		w.request("pool-young")
		w.wait(time.Second)
		w.cloud.ensure = func(context.Context, driver.Task) error { return errors.New("no") }
		w.request("pool-none")
		w.wait(time.Second)

		off := func(id string) error {
			return w.operator().Place(w.ctx, lifecycle.Order{Request: id, Power: driver.PowerOff})
		}

		require.EqualError(t, off("pool-x"),
			`power off of the machine of "pool-x": provider "test" has no such machine request; there are pool-a, pool-none, pool-young`)
		require.ErrorContains(t, off("pool-young"), "it has not joined Omni yet")
		require.ErrorContains(t, off("pool-none"), "there is no machine yet (stage provisioning)")

		w.annotate("pool-a", lifecycle.PowerAnnotation, "on")
		require.ErrorContains(t, off("pool-a"), "the annotation omni-infra.dev/power of the machine request decides that")
		require.NoError(t, w.operator().Place(w.ctx, lifecycle.RebootOrder("pool-a")), "of reboots it says nothing")

		w.annotate("pool-a", lifecycle.RebootAnnotation, "1")
		require.ErrorContains(t, w.operator().Place(w.ctx, lifecycle.RebootOrder("pool-a")), "the annotation omni-infra.dev/reboot-id")

		w.infraMachine(uuid, specs.InfraMachineSpec_POWER_STATE_ON)
		require.ErrorContains(t, off("pool-a"), fmt.Sprintf("the InfraMachine %q decides that", uuid))

		// A finalizer of somebody else keeps it visible.
		require.NoError(t, w.st.AddFinalizer(w.ctx, infra.NewMachineRequest("pool-a").Metadata(), "somebody"))
		w.teardown("pool-a")
		require.ErrorContains(t, off("pool-a"), "it is being removed")
	})
}

func TestMachineThatIsOffIsNotRebooted(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		_, err := w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOff}, time.Minute)
		require.NoError(t, err)
		require.ErrorContains(t, w.operator().Place(w.ctx, lifecycle.RebootOrder("pool-a")), "it is off; switch it on instead")
		assert.Zero(t, w.cloud.count("reboot pool-a"))
	})
}

func TestOrderThatCanNeverBeDoneFailsWithTheProvidersWords(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		// It goes off unnoticed.
		w.cloud.change(driver.Ref{RequestID: "pool-a"}, func(m *driver.Machine) { m.Power = driver.PowerOff })

		_, err := w.order(lifecycle.RebootOrder("pool-a"), time.Minute)
		require.ErrorContains(t, err, "the machine is off; switch it on instead")

		_, err = w.order(lifecycle.Order{Request: "pool-a", Power: driver.PowerOn}, time.Minute)
		require.NoError(t, err, "an order ends the pause after an error")
		w.wait(time.Hour)
		assert.Zero(t, w.cloud.count("reboot pool-a"), "what was refused is not done later")
	})
}

func TestOrderIsForgottenWhenSomebodyElseDecides(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")
		w.stop()

		require.NoError(t, w.operator().Place(w.ctx, lifecycle.Order{Request: "pool-a", Power: driver.PowerOff}))
		w.annotate("pool-a", lifecycle.PowerAnnotation, "on")
		w.start()
		w.wait(time.Minute)

		_, err := w.st.UpdateWithConflicts(w.ctx, infra.NewMachineRequest("pool-a").Metadata(), func(r resource.Resource) error {
			r.Metadata().Annotations().Delete(lifecycle.PowerAnnotation)

			return nil
		})
		require.NoError(t, err)
		w.wait(time.Hour)
		assert.Zero(t, w.cloud.count("power pool-a off"))
	})
}

func TestOrderIsOfNoConcernToTheNextMachine(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a", func(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) })
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		uuid := status.TypedSpec().Value.Id
		w.join("pool-a", uuid)
		w.wait(time.Second)
		w.stop()

		require.NoError(t, w.operator().Place(w.ctx, lifecycle.RebootOrder("pool-a")))
		require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRegistration(uuid).Metadata()))
		w.start()
		w.wait(5 * time.Minute)
		require.ErrorContains(t, w.operator().Place(w.ctx, lifecycle.RebootOrder("pool-a")), "there is no machine")

		w.annotate("pool-a", lifecycle.ReplaceAnnotation, "1")
		w.wait(time.Minute)
		w.join("pool-a", uuid)
		w.wait(time.Hour)
		assert.Zero(t, w.cloud.count("reboot pool-a"))
	})
}

func TestOrderThatIsDoneCountsAlsoWhenAnotherIsNot(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")
		w.joined("pool-b")
		w.cloud.set(func(_ context.Context, call, request string) error {
			if call == "reboot" && request == "pool-a" {
				return errors.New("500 broken")
			}

			return nil
		})

		orders := []lifecycle.Order{lifecycle.RebootOrder("pool-a"), lifecycle.RebootOrder("pool-b")}
		for _, order := range orders {
			require.NoError(t, w.operator().Place(w.ctx, order))
		}

		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()

		ended := map[string]error{}
		w.operator().Await(ctx, orders, func(lifecycle.Order, string) {}, func(order lifecycle.Order, err error) { ended[order.Request] = err })
		require.Len(t, ended, 2)
		require.ErrorContains(t, ended["pool-a"], "is not done in time (the provider tries again: ")
		require.NoError(t, ended["pool-b"])
	})
}
