package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

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

func TestImportsDelayNoPowerSwitch(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(time.Second)

		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error { <-ctx.Done(); return ctx.Err() }

		for i := range 50 {
			w.request(fmt.Sprintf("pool-%d", i))
		}

		w.wait(time.Second)
		w.annotate("pool-a", lifecycle.PowerAnnotation, "off")
		w.wait(time.Second)
		assert.Equal(t, 1, w.cloud.count("power pool-a off"))
	})
}

func TestReplacementOfAMachineOfASetIsRefusedAloud(t *testing.T) {
	run(t, func(w *world) {
		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		w.join("pool-a", status.TypedSpec().Value.Id)
		w.annotate("pool-a", lifecycle.ReplaceAnnotation, "1")
		w.wait(time.Minute)

		status, _ = w.status("pool-a")
		assert.Contains(t, status.TypedSpec().Value.Error, `omni-infra.dev/replace has no effect: this request is of the set "pool"`)

		w.takeCalls()
		w.wait(time.Hour)
		assert.Empty(t, w.takeCalls(), "it is said once")

		w.annotate("pool-a", lifecycle.ReplaceAnnotation, "")
		w.wait(time.Minute)

		status, _ = w.status("pool-a")
		assert.Empty(t, status.TypedSpec().Value.Error)
		assert.Equal(t, 1, w.cloud.count("create pool-a"))
	})
}
