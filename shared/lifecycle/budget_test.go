package lifecycle_test

import (
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Round trips to Omni are what a machine's provisioning waits for when the cloud is fast.
func TestMachineTakesFewCallsToOmni(t *testing.T) {
	run(t, func(w *world) {
		w.holdAll(0)
		w.wait(time.Minute)
		w.takeCalls()

		w.request("pool-a")
		w.wait(time.Second)

		status, _ := w.status("pool-a")
		require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage)

		calls, writes := w.takeCalls(), 0

		for _, call := range calls {
			if !strings.HasPrefix(call, "get ") {
				writes++
			}
		}

		t.Log("made by", calls)
		assert.LessOrEqual(t, len(calls), 14)
		assert.LessOrEqual(t, writes, 6, "also when Omni's finalizer comes between a read and a write")

		w.join("pool-a", status.TypedSpec().Value.Id)
		w.wait(5 * time.Minute)
		assert.LessOrEqual(t, len(w.takeCalls()), 2, "what is seen of a machine that has joined")

		w.wait(time.Hour)
		assert.Empty(t, w.takeCalls(), "at rest")

		w.teardown("pool-a")
		w.wait(time.Minute)
		require.Empty(t, w.finalizers("pool-a"))

		calls = w.takeCalls()
		t.Log("removed by", calls)
		assert.LessOrEqual(t, len(calls), 8)
	})
}
